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
    """A draft that is growing. `draft` holds what was drawn, and all of it has been sent."""

    request: DraftRequest
    arrived_s: float
    rule: StopRule
    survival: Survival
    draft: Draft = Draft.EMPTY

    def sight(self, now_s: float) -> Sight:
        return Sight(self.request.position, self.draft.num_levels, self.elapsed_us(now_s), self.survival.survival)

    def elapsed_us(self, now_s: float) -> int:
        return max(0, round((now_s - self.arrived_s) * 1e6))


class Drawn(NamedTuple):
    """A part to send, and the request it belongs to: that very one, should it have been sent twice."""

    request: DraftRequest
    part: DraftPart


class Rounds:
    """Drives a speculator: at most one round per session, one step of all of them at a time.

    A session's round joins at the next step and leaves when its rule says so, whatever the others do.
    """

    def __init__(self, speculator: Speculator, clock: Clock) -> None:
        self._speculator = speculator
        self._clock = clock
        self._rounds: dict[SessionId, Round] = {}

    @property
    def is_idle(self) -> bool:
        """Whether no draft is due."""
        return not self._rounds

    def open(self, start: Open) -> None:
        self._speculator.open(start)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        """Tell what was committed; a draft that is still growing is abandoned, since it builds on less."""
        self._rounds.pop(session, None)
        if tokens:
            self._speculator.observe(session, tokens)

    def start(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None:
        survival = Survival(request.price, request.calibration)
        self._rounds[request.session] = Round(request, arrived_s, rule, survival)

    def close(self, session: SessionId) -> None:
        self._rounds.pop(session, None)
        self._speculator.close(session)

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
            end = round_.rule(round_.sight(now_s))
            if end is None:
                num_levels = round_.request.gamma - round_.draft.num_levels
                asks.append(Ask(session, round_.request.position, round_.draft, num_levels, round_.survival))
            else:
                parts.append(self._part(round_, len(round_.draft), Draft.EMPTY, end, now_s))
        return parts, asks

    def _settle(self, asks: Sequence[Ask], drafts: Sequence[Draft | None]) -> list[Drawn]:
        parts: list[Drawn] = []
        now_s = self._clock()
        for ask, nodes in zip(asks, drafts, strict=True):
            if nodes is None:
                continue
            round_ = self._rounds[ask.session]
            first_node = len(round_.draft)
            round_.draft = round_.draft.append(nodes)
            if round_.draft.num_levels > ask.draft.num_levels + ask.num_levels:
                raise SpeculatorError(f"asked for {ask.num_levels} levels more, got {len(nodes)} nodes: {nodes}")
            confidences = _confidences(round_, first_node)
            # Whether to go on is asked now rather than at the next step, so that the last nodes can say they are.
            end = _end(round_, nodes, now_s)
            parts.append(self._part(round_, first_node, nodes, end, now_s, confidences))
        return parts

    def _part(
        self,
        round_: Round,
        first_node: int,
        nodes: Draft,
        end: DraftEnd | None,
        now_s: float,
        confidences: tuple[float, ...] = (),
    ) -> Drawn:
        request = round_.request
        if end is not None:
            del self._rounds[request.session]
        part = DraftPart(
            session=request.session,
            position=request.position,
            round=request.round,
            first_node=first_node,
            draft=nodes,
            is_complete=end is not None,
            end=end,
            draft_us=round_.elapsed_us(now_s),
            confidences=confidences,
        )
        return Drawn(request, part)


def _end(round_: Round, nodes: Draft, now_s: float) -> DraftEnd | None:
    """Why the draft ends with these nodes, or None."""
    if round_.survival.is_over:
        return DraftEnd.SURVIVAL
    return round_.rule(round_.sight(now_s)) if nodes.tokens else DraftEnd.NO_MATCH


def _confidences(round_: Round, first_node: int) -> tuple[float, ...]:
    """Of the nodes from `first_node` on, and of one that was not drawn; () where the speculator does not tell.

    Raises:
        SpeculatorError: it told of other nodes than it drew; one that was drawn and kept back would bias the text.
    """
    survival = round_.survival
    num_told = len(survival.confidences)
    if num_told and num_told != len(round_.draft) + survival.is_over:
        raise SpeculatorError(
            f"asked whether to draw {num_told} nodes, "
            f"{'all but the last' if survival.is_over else 'all'} allowed, and drew {len(round_.draft)}: {round_.draft}"
        )
    return tuple(survival.confidences[first_node:])
