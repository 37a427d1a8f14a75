"""What a verifier tells of itself: metrics of passes and verdicts, and the spans of rounds."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Final

from pilotfish.logs import about
from pilotfish.messages import Opened, Refusal, TokenKind, Verdict, VerifierLoad
from pilotfish.price import Plan
from pilotfish.telemetry import PASS, QUEUE, VERIFY, WHOLE_PASS, Attribute, Metric, Telemetry
from pilotfish.tracing import AttributeValue, Span
from verifier.traffic import Answer, PassRecord, RoundTimes

_INTERNAL: Final = 13  # google.rpc.Code

logger = logging.getLogger(__name__)


class Report:
    """Turns the engine's doings into metrics and spans."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._whole: tuple[PassRecord, Span] | None = None  # the last pass that a traced round was in

    # -- on the engine's thread --------------------------------------------------------------------------------------

    def passed(self, record: PassRecord) -> None:
        telemetry = self._telemetry
        telemetry.add(Metric.PASSES)
        telemetry.observe(Metric.PASS_SECONDS, record.length_s)
        telemetry.observe(Metric.PASS_POSITIONS, record.num_positions)
        telemetry.add(Metric.VERIFIED_POSITIONS, record.num_positions - record.num_prefill_positions)
        telemetry.add(Metric.PREFILL_POSITIONS, record.num_prefill_positions)
        if record.num_preempted:
            telemetry.add(Metric.PREEMPTIONS, record.num_preempted)

    def dropped(self, cause: str) -> None:
        self._telemetry.add(Metric.DRAFTS_DROPPED, 1, cause)

    def expired(self) -> None:
        self._telemetry.add(Metric.LEASES_EXPIRED)

    # -- in the event loop -------------------------------------------------------------------------------------------

    def answered(self, answers: Sequence[Answer], load: VerifierLoad) -> None:
        """Count the answers of a turn and record the rounds among them."""
        telemetry = self._telemetry
        telemetry.set(Metric.SESSIONS, load.num_sessions)
        telemetry.set(Metric.KV_PAGES, load.num_kv_pages)
        telemetry.set(Metric.KV_PAGES_USED, load.num_kv_pages_used)
        if load.plan is not None:
            self._price(load, load.plan)
        kinds: Counter[TokenKind] = Counter()
        for answer in answers:
            match answer.message:
                case Verdict() as verdict:
                    kinds.update(verdict.kinds)
                    if answer.times is not None:
                        self._round(verdict, answer.times, load)
                case Opened() as opened:
                    telemetry.add(Metric.CACHED_TOKENS, opened.num_cached_tokens)
                case Refusal() as refusal:
                    telemetry.add(Metric.ITEMS_DROPPED, 1, refusal.reason)
                    level = logging.WARNING if refusal.code == _INTERNAL else logging.DEBUG
                    extra = about(session=refusal.session, trace=answer.trace, more={"reason": refusal.reason})
                    logger.log(level, "refused: %s", refusal.message, extra=extra)
        for kind, number in kinds.items():
            telemetry.add(Metric.COMMITTED_TOKENS, number, kind.value)

    def _price(self, load: VerifierLoad, plan: Plan) -> None:
        telemetry = self._telemetry
        telemetry.set(Metric.SATURATION, load.saturation)
        telemetry.set(Metric.PRICE, plan.price)
        telemetry.set(Metric.PERIOD_SECONDS, plan.period_s)
        if load.plain_us and load.num_sessions:
            telemetry.set(Metric.PREDICTED_SPEEDUP, plan.tokens_per_s * load.plain_us / 1e6 / load.num_sessions)
        if load.realised_speedup is not None:
            telemetry.set(Metric.REALISED_SPEEDUP, load.realised_speedup)

    def _round(self, verdict: Verdict, times: RoundTimes, load: VerifierLoad) -> None:
        self._telemetry.observe(Metric.QUEUE_SECONDS, max(0.0, times.passed.began_s - times.arrived_s))
        if times.trace is None:
            return
        record = self._telemetry.tracer.record
        passed = times.passed
        arrived_ns, began_ns, ended_ns = (_ns(at_s) for at_s in (times.arrived_s, passed.began_s, passed.ended_s))
        attributes: dict[str, AttributeValue] = {
            Attribute.SESSION: verdict.session.hex(),
            Attribute.DRAFTED: verdict.num_drafted,
            Attribute.ACCEPTED: verdict.num_accepted,
            Attribute.COMMITTED: len(verdict.tokens),
        }
        if verdict.round is not None:
            attributes[Attribute.ROUND_INDEX] = verdict.round
        context = record(VERIFY, times.trace, arrived_ns, ended_ns, attributes).context
        record(QUEUE, context, arrived_ns, began_ns)
        whole = self._whole_pass(passed, load)
        record(PASS, context, began_ns, ended_ns, {Attribute.PASS_POSITIONS: passed.num_positions}, link=whole)

    def _whole_pass(self, passed: PassRecord, load: VerifierLoad) -> Span:
        """The span of the pass itself, one for all the rounds that were in it."""
        if self._whole is None or self._whole[0] is not passed:
            attributes: dict[str, AttributeValue] = {
                Attribute.PASS_POSITIONS: passed.num_positions,
                Attribute.PASS_SEQUENCES: passed.num_sequences,
                Attribute.PASS_PREFILL: passed.num_prefill_positions,
                Attribute.SATURATION: load.saturation,
            }
            began_ns, ended_ns = _ns(passed.began_s), _ns(passed.ended_s)
            self._whole = passed, self._telemetry.tracer.aside(WHOLE_PASS, began_ns, ended_ns, attributes)
        return self._whole[1]


def _ns(at_s: float) -> int:
    return round(at_s * 1e9)
