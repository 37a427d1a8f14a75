"""The rounds in progress of one speculator: plan → propose → settle. No threads, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drafter.speculators import Ask, Speculator
from drafter.stopping import Sight, StopRule, Survival
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, DraftPart, DraftRequest, Open, SessionId

Clock = Callable[[], float]
"""Monotonic, in seconds."""


class SpeculatorError(Exception):
    """A speculator answered what it must not; the message says what. Its sessions go on with the next round."""


@dataclass(slots=True)
class Round:
    """A draft that is growing: nodes [0, num_sent) have been sent, those after them were drawn for an earlier round."""

    request: DraftRequest
    arrived_s: float
    rule: StopRule
    survival: Survival
    draft: Draft = Draft.EMPTY
    num_sent: int = 0

    def sight(self, now_s: float) -> Sight:
        return Sight(self.request.position, self.draft.num_levels, self.elapsed_us(now_s), self.survival.survival)

    def elapsed_us(self, now_s: float) -> int:
        return max(0, round((now_s - self.arrived_s) * 1e6))


class Line(NamedTuple):
    """Nodes of a session's last round that hang below what is committed, one below the other."""

    tokens: tuple[int, ...] = ()
    confidences: tuple[float, ...] = ()  # by node; (): not told

    def below(self, tokens: Sequence[int]) -> Line:
        """What of it hangs below tokens that came to be committed."""
        num_tokens = len(tokens)
        return Line(self.tokens[num_tokens:], self.confidences[num_tokens:]) if self.begins_with(tokens) else Line()

    def begins_with(self, tokens: Sequence[int]) -> bool:
        return self.tokens[: len(tokens)] == tuple(tokens)


class Drawn(NamedTuple):
    """A part to send, and the request it belongs to: that very one, should it have been sent twice."""

    request: DraftRequest
    part: DraftPart
    num_drawn: int  # of its nodes; the others were drawn for an earlier request


class Rounds:
    """Drives a speculator: at most one round per session, one step of all of them at a time.

    A session's round joins at the next step and leaves when its rule says so, whatever the others do. What was drawn
    and hangs below what came to be committed begins the next round: it is sent again, not drawn again.
    """

    def __init__(self, speculator: Speculator, clock: Clock) -> None:
        self._speculator = speculator
        self._clock = clock
        self._rounds: dict[SessionId, Round] = {}
        self._lines: dict[SessionId, Line] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no draft is due."""
        return not self._rounds

    def open(self, start: Open) -> None:
        self._speculator.open(start)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        """Tell what was committed; a draft that is still growing ends, since it builds on less."""
        round_ = self._rounds.pop(session, None)
        if round_ is not None:
            self._keep(round_)
        line = self._lines.pop(session, Line()).below(tokens)
        if line.tokens:
            self._lines[session] = line
        if tokens:
            self._speculator.observe(session, tokens)

    def start(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None:
        """Begin a draft with what is there of it already."""
        line, survival = self._lines.pop(request.session, Line()), Survival(request.price, request.calibration)
        num_nodes = min(len(line.tokens), request.gamma)
        for node, confidence in enumerate(line.confidences[:num_nodes]):
            if not survival.weighs(confidence):
                num_nodes = node
                break
        draft = Draft.chain(line.tokens[:num_nodes])
        self._rounds[request.session] = Round(request, arrived_s, rule, survival, draft)

    def close(self, session: SessionId) -> None:
        self._rounds.pop(session, None)
        self._lines.pop(session, None)
        self._speculator.close(session)

    def _keep(self, round_: Round) -> None:
        """Keep the nodes of a round that is over, where drawing them again would only give the same."""
        draft = round_.draft
        if self._speculator.is_repeatable and draft.tokens and draft.is_chain and not draft.has_q:
            confidences = tuple(round_.survival.confidences[: len(draft)])
            self._lines[round_.request.session] = Line(draft.tokens, confidences)

    def read_ahead(self) -> bool:
        return self._speculator.read_ahead()

    def step(self) -> list[Drawn]:
        """One step of every round: the parts to send, in the order of the rounds."""
        parts, asks = self._plan()
        if asks:
            parts += self._settle(asks, self._speculator.propose(asks))
        return parts

    def fail(self) -> list[DraftRequest]:
        """Give up all rounds, as when a step failed; their requests are returned."""
        requests = [round_.request for round_ in self._rounds.values()]
        self._rounds.clear()
        return requests

    def _plan(self) -> tuple[list[Drawn], list[Ask]]:
        """What ends before its next draw, and what to ask of the others."""
        parts: list[Drawn] = []
        asks: list[Ask] = []
        now_s = self._clock()
        for session, round_ in list(self._rounds.items()):
            end = DraftEnd.SURVIVAL if round_.survival.is_over else round_.rule(round_.sight(now_s))
            if end is None:
                num_levels = round_.request.gamma - round_.draft.num_levels
                asks.append(Ask(session, round_.request.position, round_.draft, num_levels, round_.survival))
            else:
                parts.append(self._part(round_, 0, end, now_s))
        return parts, asks

    def _settle(self, asks: Sequence[Ask], drafts: Sequence[Draft | None]) -> list[Drawn]:
        parts: list[Drawn] = []
        now_s = self._clock()
        for ask, nodes in zip(asks, drafts, strict=True):
            if nodes is None:
                continue
            round_ = self._rounds[ask.session]
            round_.draft = round_.draft.append(nodes)
            if round_.draft.num_levels > ask.draft.num_levels + ask.num_levels:
                raise SpeculatorError(f"asked for {ask.num_levels} levels more, got {len(nodes)} nodes: {nodes}")
            _check(round_)
            # Whether to go on is asked now rather than at the next step, so that the last nodes can say they are.
            end = _end(round_, nodes, now_s)
            parts.append(self._part(round_, len(nodes), end, now_s))
        return parts

    def _part(self, round_: Round, num_drawn: int, end: DraftEnd | None, now_s: float) -> Drawn:
        """The nodes that have not been sent, of which the last `num_drawn` have just been drawn."""
        request, first_node = round_.request, round_.num_sent
        round_.num_sent = len(round_.draft)
        if end is not None:
            del self._rounds[request.session]
            self._keep(round_)
        part = DraftPart(
            session=request.session,
            position=request.position,
            round=request.round,
            first_node=first_node,
            draft=round_.draft.rest(first_node),
            is_complete=end is not None,
            end=end,
            draft_us=round_.elapsed_us(now_s),
            confidences=tuple(round_.survival.confidences[first_node:]),
        )
        return Drawn(request, part, num_drawn)


def _end(round_: Round, nodes: Draft, now_s: float) -> DraftEnd | None:
    """Why the draft ends with these nodes, or None."""
    if round_.survival.is_over:
        return DraftEnd.SURVIVAL
    return round_.rule(round_.sight(now_s)) if nodes.tokens else DraftEnd.NO_MATCH


def _check(round_: Round) -> None:
    """Compare what the speculator told with what it drew.

    Raises:
        SpeculatorError: it told of other nodes; one that was drawn and kept back would bias the text.
    """
    survival = round_.survival
    num_told = len(survival.confidences)
    if num_told and num_told != len(round_.draft) + survival.is_over:
        raise SpeculatorError(
            f"asked whether to draw {num_told} nodes, "
            f"{'all but the last' if survival.is_over else 'all'} allowed, and drew {len(round_.draft)}: {round_.draft}"
        )
