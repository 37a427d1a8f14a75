"""What is recorded of one request: its statistics, its spans, and its share of the metrics."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from coordinator.admission import Admitted
from coordinator.pace import Pace
from pilotfish.logs import about
from pilotfish.messages import Chat, DraftEnd, FinishReason, Round, Statistics, TokenKind, TraceContext, Verdict
from pilotfish.price import Plan
from pilotfish.telemetry import GENERATE, PROVIDER_NAME, ROUND, Attribute, Metric, Telemetry
from pilotfish.tracing import SAMPLED, AttributeValue, Span, ids_of, sampled

logger = logging.getLogger(__name__)

Clock: TypeAlias = Callable[[], int]
"""Monotonic, in nanoseconds."""


@dataclass(slots=True)
class RoundUnderway:
    """A round from its decision until its verdict."""

    number: int  # on the wire: counts what was sent, and says nothing of how many verdicts there were
    gamma: int
    reason: str
    position: int  # where its draft begins
    prefix_hash: int
    start_ns: int
    span: Span
    price: float | None = None  # μ, when it was decided; None: there was none
    num_nodes: int = 0  # forwarded to the verifier
    is_complete: bool = False  # no more nodes follow
    draft_end_ns: int = 0  # when the last node had come; 0: none has
    is_held: bool = True  # the session is, until the draft is there
    patience_us: int = 0  # for how long, at the most, and after the round's verdict for the next draft
    tokens: list[int] = field(default_factory=list)  # of the nodes forwarded, where they form a chain
    confidences: list[float] = field(
        default_factory=list
    )  # of those nodes, and of one it did not draw, as far as it says
    end: DraftEnd | None = None  # why no more nodes came; None: not known
    guess: int | None = None  # of the token that follows its draft, where the drafter went on

    @property
    def trace(self) -> TraceContext | None:
        """What the round's items carry."""
        return self.span.context

    @property
    def is_nothing(self) -> bool:
        """Whether it came to nothing: no node was drafted and none will be."""
        return self.is_complete and self.num_nodes == 0


class Record:
    """Counts how one request goes. A γ = 0 round is no draft, a bonus is never accepted."""

    def __init__(
        self,
        telemetry: Telemetry,
        clock: Clock,
        parent: TraceContext | None = None,
        slow_s: float | None = None,
    ) -> None:
        """Begin the request.

        Args:
            parent: the client's trace; None: it has none.
            slow_s: a request that takes longer has its spans kept, sampled or not; None: only one that fails.
        """
        self.clock = clock
        self.start_ns = clock()
        self.has_failed = False
        self.num_verdicts = 0
        self.dropped: Counter[str] = Counter()
        self.pace = Pace()
        self._last_verdict_ns = self.start_ns
        self._telemetry = telemetry
        self._span = telemetry.tracer.begin(GENERATE, parent, start_ns=self.start_ns)
        self._context = self._span.context
        self._slow_s = math.inf if slow_s is None else slow_s
        self._price: float | None = None
        self._request_id: str | None = None
        self._sessions: dict[str, str] = {}  # the newest at each role, as its log writes it
        self._labels = "", PROVIDER_NAME, ""  # operation, provider and model; known once it is admitted
        self._num_drafts = 0
        self._num_drafted = 0
        self._num_accepted = 0
        self._num_committed = 0
        self._kinds: Counter[TokenKind] = Counter()
        self._reasons: Counter[str] = Counter()
        self._max_drafted = 0
        self._queue_us = 0
        self._pass_us = 0
        self._by_depth: list[int] = []
        self._draft_us = 0
        self._verify_us = 0
        self._first_token_ns = 0

    @property
    def trace_id(self) -> str | None:
        return self._span.trace_id

    @property
    def context(self) -> TraceContext | None:
        """The trace context of the whole request."""
        return self._context

    @property
    def kept(self) -> TraceContext | None:
        """The context with word that the spans of the request are to be sent after all; None: no need, or no cause."""
        if self._context is None or ids_of(self._context)[2] & SAMPLED:
            return None
        is_slow = (self.clock() - self.start_ns) / 1e9 > self._slow_s
        return sampled(self._context) if self.has_failed or is_slow else None

    @property
    def first_token_left_s(self) -> float | None:
        """As `Pace.first_token_left_s`, now."""
        return self.pace.first_token_left_s((self.clock() - self.start_ns) / 1e9)

    def opened(self, role: str, session: bytes) -> None:
        """A session was opened at a peer."""
        self._sessions[f"{role}_session"] = session.hex()

    # -- rounds ------------------------------------------------------------------------------------------------------

    def decided_at(self, plan: Plan | None) -> None:
        """The next decision is taken under this plan; a price without bound, where drafting pays nobody, is none."""
        self._price = plan.price if plan is not None and math.isfinite(plan.price) else None

    def begin_round(
        self, number: int, gamma: int, reason: str, position: int, prefix_hash: int, start_ns: int
    ) -> RoundUnderway:
        """A round is decided."""
        span = self._telemetry.tracer.begin(ROUND, self._context, start_ns=start_ns)
        return RoundUnderway(number, gamma, reason, position, prefix_hash, start_ns, span, self._price)

    def end_round(self, round_: RoundUnderway, verdict: Verdict) -> Round:
        """A round has ended with a verdict."""
        now_ns = self.clock()
        draft_ns = round_.draft_end_ns or round_.start_ns
        ended = Round(
            index=self.num_verdicts,
            gamma=round_.gamma,
            reason=round_.reason,
            num_drafted=verdict.num_drafted,
            num_accepted=verdict.num_accepted,
            num_committed=len(verdict.tokens),
            start_us=(round_.start_ns - self.start_ns) // 1000,
            draft_us=(draft_ns - round_.start_ns) // 1000,
            verify_us=(now_ns - draft_ns) // 1000,
            queue_us=verdict.queue_us,
            pass_us=verdict.pass_us,
            pass_positions=verdict.pass_positions,
        )
        self._first_token_ns = self._first_token_ns or now_ns
        self.pace.commit(ended.num_committed, (now_ns - self._last_verdict_ns) / 1e9)
        self._last_verdict_ns = now_ns
        self._count(verdict, ended)
        self._measure(verdict, ended)
        round_.span.set(_round_attributes(ended, round_.price))
        round_.span.end(now_ns)
        return ended

    def _count(self, verdict: Verdict, ended: Round) -> None:
        self.num_verdicts += 1
        self._num_committed += ended.num_committed
        self._draft_us += ended.draft_us
        self._verify_us += ended.verify_us
        self._queue_us += ended.queue_us
        self._pass_us += ended.pass_us
        self._reasons[ended.reason] += 1
        self._kinds.update(verdict.kinds)
        self._max_drafted = max(self._max_drafted, verdict.num_drafted)
        if not verdict.num_drafted:
            return
        self._num_drafts += 1
        self._num_drafted += verdict.num_drafted
        self._num_accepted += verdict.num_accepted
        self._by_depth += [0] * (verdict.num_accepted - len(self._by_depth))
        for depth in range(verdict.num_accepted):
            self._by_depth[depth] += 1

    def _measure(self, verdict: Verdict, ended: Round) -> None:
        telemetry = self._telemetry
        telemetry.add(Metric.ROUNDS, 1, ended.reason)
        telemetry.observe(Metric.GAMMA, ended.gamma)
        telemetry.observe(Metric.ROUND_SECONDS, (ended.draft_us + ended.verify_us) / 1e6)
        telemetry.observe(Metric.VERIFY_SECONDS, ended.verify_us / 1e6)
        if ended.draft_us:
            telemetry.observe(Metric.DRAFT_SECONDS, ended.draft_us / 1e6)
        if not verdict.num_drafted:
            telemetry.add(Metric.COMMITTED_TOKENS, ended.num_committed, TokenKind.PLAIN.value)
            return
        for kind in set(verdict.kinds):
            telemetry.add(Metric.COMMITTED_TOKENS, verdict.kinds.count(kind), kind.value)
        telemetry.add(Metric.DRAFTS)
        telemetry.add(Metric.DRAFT_TOKENS, verdict.num_drafted)
        telemetry.add(Metric.ACCEPTED_TOKENS, verdict.num_accepted)
        for depth in range(verdict.num_accepted):
            telemetry.add(Metric.ACCEPTED_BY_POSITION, 1, str(depth))

    def give_up(self, round_: RoundUnderway) -> None:
        """A round ends without a verdict, with the request."""
        round_.span.end()

    def drop(self, cause: str) -> None:
        """A draft, a part of one or an answer was dropped, or a draft came to nothing."""
        self.dropped[cause] += 1
        self._telemetry.add(Metric.DRAFTS_DROPPED, 1, cause)

    def fail_over(self, role: str) -> None:
        """A session is opened again."""
        self._telemetry.add(Metric.FAILOVERS, 1, role)

    # -- the request -------------------------------------------------------------------------------------------------

    def admit(self, admitted: Admitted) -> None:
        self._telemetry.add(Metric.PROMPT_TOKENS, len(admitted.prompt))
        self.pace.targets = admitted.targets
        request, sampling = admitted.request, admitted.request.sampling
        operation = "chat" if isinstance(request.prompt, Chat) else "text_completion"
        self._request_id = admitted.request_id
        self._labels = operation, PROVIDER_NAME, admitted.model
        attributes: dict[str, AttributeValue] = {
            Attribute.REQUEST: admitted.request_id,
            Attribute.OPERATION: operation,
            Attribute.PROVIDER: PROVIDER_NAME,
            Attribute.MODEL: admitted.model,
            Attribute.MAX_TOKENS: admitted.max_tokens,
            Attribute.TEMPERATURE: sampling.temperature,
            Attribute.RULE: admitted.opening.rule.value,
            Attribute.INPUT_TOKENS: len(admitted.prompt),
        }
        optional = {Attribute.TOP_K: sampling.top_k, Attribute.TOP_P: sampling.top_p, Attribute.SEED: request.seed}
        attributes |= {name: value for name, value in optional.items() if value is not None and value < 1 << 63}
        self._span.set(attributes)

    def finish(self, reason: FinishReason, num_prompt: int, num_output: int) -> Statistics:
        """The answer is whole."""
        now_ns = self.clock()
        first_ns = self._first_token_ns or now_ns
        telemetry = self._telemetry
        if self._first_token_ns:
            telemetry.observe(Metric.FIRST_TOKEN_SECONDS, (first_ns - self.start_ns) / 1e9, *self._labels)
        if self._num_committed > 1:
            seconds = (now_ns - first_ns) / 1e9 / (self._num_committed - 1)
            telemetry.observe(Metric.TOKEN_SECONDS, seconds, *self._labels)
        targets_met = self.pace.met()
        for target, is_met in targets_met.items():
            telemetry.add(Metric.TARGETS, 1, target)
            telemetry.add(Metric.TARGET_MISSED, not is_met, target)
        telemetry.observe(Metric.TOKEN_USAGE, num_prompt, *self._labels, "input")
        telemetry.observe(Metric.TOKEN_USAGE, num_output, *self._labels, "output")
        self._span.set({Attribute.FINISH_REASONS: reason.value, Attribute.OUTPUT_TOKENS: num_output})
        return Statistics(
            num_verdicts=self.num_verdicts,
            num_drafts=self._num_drafts,
            num_drafted_tokens=self._num_drafted,
            num_accepted_tokens=self._num_accepted,
            num_accepted_by_depth=tuple(self._by_depth),
            num_plain_tokens=self._kinds[TokenKind.PLAIN],
            draft_us=self._draft_us,
            verify_us=self._verify_us,
            first_token_us=(first_ns - self.start_ns) // 1000,
            total_us=(now_ns - self.start_ns) // 1000,
            num_dropped_by_cause=dict(self.dropped),
            targets_met=targets_met,
            num_correction_tokens=self._kinds[TokenKind.CORRECTION],
            num_bonus_tokens=self._kinds[TokenKind.BONUS],
            max_drafted_tokens=self._max_drafted,
            num_rounds_by_reason=dict(self._reasons),
            queue_us=self._queue_us,
            pass_us=self._pass_us,
        )

    def end(self, end: str, problem: str | None = None) -> None:
        """The request is over: `end` is stop, length, cancelled, or an error's word."""
        took_s = (self.clock() - self.start_ns) / 1e9
        self.has_failed = problem is not None
        error = end if self.has_failed else ""
        self._telemetry.add(Metric.REQUESTS, 1, end)
        self._telemetry.observe(Metric.REQUEST_SECONDS, took_s, *self._labels, error)
        if self.has_failed:
            self._span.set({Attribute.ERROR: error})
        if (kept := self.kept) is not None:
            self._telemetry.tracer.keep(kept)
        self._span.end(problem=problem)
        self._log(end, problem, took_s)

    def _log(self, end: str, problem: str | None, took_s: float) -> None:
        """One line a request: a warning where it failed."""
        more: dict[str, str | float] = {
            "end": end,
            "seconds": round(took_s, 6),
            "tokens": self._num_committed,
            "drafted": self._num_drafted,
            "accepted": self._num_accepted,
            **self._sessions,
        }
        extra = about(request=self._request_id, trace=self.trace_id, more=more)
        if problem is None:
            logger.info("request ended: %s", end, extra=extra)
        else:
            logger.warning("request failed: %s", problem, extra=extra)


def _round_attributes(ended: Round, price: float | None) -> dict[str, AttributeValue]:
    attributes: dict[str, AttributeValue] = {
        Attribute.ROUND_INDEX: ended.index,
        Attribute.GAMMA: ended.gamma,
        Attribute.GAMMA_REASON: ended.reason,
        Attribute.DRAFTED: ended.num_drafted,
        Attribute.ACCEPTED: ended.num_accepted,
        Attribute.COMMITTED: ended.num_committed,
    }
    return attributes if price is None else attributes | {Attribute.PRICE: price}
