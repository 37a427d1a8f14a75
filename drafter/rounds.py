"""The rounds in progress of one speculator: plan → propose → settle. No threads, no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from drafter.lines import Branch, Line, likeliest_asides
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

    @property
    def is_owed(self) -> bool:
        """Whether what was not sent is to be sent before another step."""
        return False

    @property
    def lines(self) -> list[Line]:
        """The chains that it has, the likeliest first."""
        draft = self.draft
        if not draft.tokens or not draft.is_chain or draft.has_q:
            return []
        return [Line(draft.tokens, tuple(self.survival.confidences[: len(draft)]))]

    def ask(self, now_s: float) -> Ask | DraftEnd:
        """For its next nodes, or why there are none."""
        end = DraftEnd.SURVIVAL if self.survival.is_over else self.rule(self.sight(now_s))
        if end is not None:
            return end
        num_levels = self.request.gamma - self.draft.num_levels
        return Ask(self.request.session, self.request.position, self.draft, num_levels, self.survival)

    def take(self, nodes: Draft, now_s: float) -> DraftEnd | None:
        """Take what was drawn, and say why no more follow: asked now, not at the next step, so that these can tell."""
        self.draft = self.draft.append(nodes)
        _check(self.survival, self.draft)
        if self.survival.is_over:
            return DraftEnd.SURVIVAL
        return self.rule(self.sight(now_s)) if nodes.tokens else DraftEnd.NO_MATCH

    def confidences_from(self, first_node: int) -> tuple[float, ...]:
        """Of its nodes, and of one that was not drawn."""
        return tuple(self.survival.confidences[first_node:])

    def sight(self, now_s: float) -> Sight:
        return Sight(self.request.position, self.draft.num_levels, self.elapsed_us(now_s), self.survival.survival)

    def elapsed_us(self, now_s: float) -> int:
        return max(0, round((now_s - self.arrived_s) * 1e6))


class Fan(Round):
    """A round of several lines: the likeliest, and those that leave it with a runner-up.

    After the nodes in which others may leave it the likeliest line and those beside it are drawn piece by piece, always
    the one of which the next node is likeliest to be wanted.
    """

    def __init__(self, request: DraftRequest, arrived_s: float, rule: StopRule, survival: Survival, line: Line) -> None:
        super().__init__(request, arrived_s, rule, survival, Draft.chain(line.tokens))
        assert request.side_lines is not None
        self._wanted = request.side_lines
        self._main = Branch(list(line.tokens), survival, list(line.runners_up), nodes=list(range(len(line.tokens))))
        self._grows: Branch | None = self._main
        self._until = min(self._wanted.num_levels, request.gamma)  # length to which the branch that grows is drawn
        self._sides: list[Branch] = []  # begun
        self._to_come: list[Branch] | None = None  # None: not chosen yet

    @property
    def is_owed(self) -> bool:
        return self._to_come is not None and self.num_sent < len(self.draft)

    @property
    def lines(self) -> list[Line]:
        return [branch.line for branch in (self._main, *self._sides)] if not self.draft.has_q else []

    def ask(self, now_s: float) -> Ask | DraftEnd:
        branch = self._next()
        if branch is None:
            return DraftEnd.GAMMA
        if branch is self._main and branch.survival.is_over:
            return DraftEnd.SURVIVAL
        request = self.request
        # Of the likeliest line all that is left: a speculator that answers in one step knows no pieces.
        num_levels = (request.gamma if branch is self._main else self._until) - len(branch.tokens)
        sight = Sight(request.position + len(branch.tokens), 0, self.elapsed_us(now_s))
        draft = Draft.chain(branch.tokens)
        return self.rule(sight) or Ask(
            request.session, request.position, draft, num_levels, branch.survival, branch.runners_up
        )

    def _next(self) -> Branch | None:
        """Which branch grows, and how far; None: all are drawn."""
        if self._grows is not None and not self._is_drawn(self._grows):
            return self._grows
        if self._to_come is None:
            self._to_come = likeliest_asides(self._main, self._wanted)
        main, aside = self._main, self._to_come[-1] if self._to_come else None
        can_go_on = not main.is_over and len(main.tokens) < self.request.gamma
        if can_go_on and (aside is None or main.chance_of_all >= aside.chance):
            self._until = min(len(main.tokens) + self._wanted.num_nodes + 1, self.request.gamma)
            self._grows = main
        elif aside is not None:
            self._sides.append(self._to_come.pop())
            self._until = len(aside.tokens) + self._wanted.num_nodes
            self._grows = aside
        else:
            self._grows = None
        return self._grows

    def _is_drawn(self, branch: Branch) -> bool:
        return branch.is_over or len(branch.tokens) >= self._until

    def take(self, nodes: Draft, now_s: float) -> DraftEnd | None:
        branch = self._grows
        assert branch is not None
        first_drawn = len(branch.tokens)
        if nodes.parents != tuple(range(first_drawn - 1, first_drawn - 1 + len(nodes))):
            raise SpeculatorError(f"asked for a chain below {first_drawn} nodes, got {nodes}")
        branch.tokens += nodes.tokens
        branch.is_over = not nodes.tokens
        if branch is self._main:
            _check(branch.survival, Draft.chain(branch.tokens))
        if nodes.tokens:
            self._append(branch, nodes)
        elif branch.survival.is_over:
            return DraftEnd.SURVIVAL
        if not self._is_drawn(branch) or self._next() is not None:
            return None
        return DraftEnd.NO_MATCH if self._main.is_over and not self._sides else DraftEnd.GAMMA

    def _append(self, branch: Branch, nodes: Draft) -> None:
        """Hang the last nodes of a branch into the draft."""
        above = [-1, *self._main.nodes[: branch.num_above], *branch.nodes][-1]
        new = tuple(branch.tokens[branch.num_above + len(branch.nodes) :])
        q = (None,) * (len(new) - len(nodes)) + nodes.q  # before the first of a line beside the main one its runner-up
        first = len(self.draft)
        places = range(first, first + len(new))
        branch.nodes += places
        self.draft = self.draft.append(Draft(new, (above, *places[:-1]), q))

    def confidences_from(self, first_node: int) -> tuple[float, ...]:
        return super().confidences_from(first_node) if not self._sides else ()


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
        self._lines: dict[SessionId, list[Line]] = {}  # the likeliest first

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
        below = [line.below(tokens) for line in self._lines.pop(session, ())]
        if lines := [line for line in below if line.tokens]:
            self._lines[session] = lines
        if tokens:
            self._speculator.observe(session, tokens)

    def start(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None:
        """Begin a draft with what is there of it already."""
        line = next(iter(self._lines.pop(request.session, ())), Line())
        survival = Survival(request.price, request.calibration)
        num_nodes = min(len(line.tokens), request.gamma)
        for node, confidence in enumerate(line.confidences[:num_nodes]):
            if not survival.weighs(confidence):
                num_nodes = node
                break
        line = Line(line.tokens[:num_nodes], line.confidences[:num_nodes], line.runners_up[:num_nodes])
        if request.side_lines is None:
            round_ = Round(request, arrived_s, rule, survival, Draft.chain(line.tokens))
        else:
            round_ = Fan(request, arrived_s, rule, survival, line)
        self._rounds[request.session] = round_

    def close(self, session: SessionId) -> None:
        self._rounds.pop(session, None)
        self._lines.pop(session, None)
        self._speculator.close(session)

    def _keep(self, round_: Round) -> None:
        """Keep the nodes of a round that is over, where drawing them again would only give the same."""
        if self._speculator.is_repeatable and (lines := round_.lines):
            self._lines[round_.request.session] = lines

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
        for round_ in list(self._rounds.values()):
            asked = round_.ask(now_s)
            if isinstance(asked, DraftEnd):
                parts.append(self._part(round_, 0, asked, now_s))
                continue
            if round_.is_owed:
                parts.append(self._part(round_, 0, None, now_s))
            asks.append(asked)
        return parts, asks

    def _settle(self, asks: Sequence[Ask], drafts: Sequence[Draft | None]) -> list[Drawn]:
        parts: list[Drawn] = []
        now_s = self._clock()
        for ask, nodes in zip(asks, drafts, strict=True):
            if nodes is None:
                continue
            round_ = self._rounds[ask.session]
            most = ask.draft.num_levels + ask.num_levels
            if len(nodes) > ask.num_levels and ask.draft.append(nodes).num_levels > most:
                raise SpeculatorError(f"asked for {ask.num_levels} levels more, got {len(nodes)} nodes: {nodes}")
            end = round_.take(nodes, now_s)
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
            confidences=round_.confidences_from(first_node),
        )
        return Drawn(request, part, num_drawn)


def _check(survival: Survival, draft: Draft) -> None:
    """Compare what the speculator told with what it drew.

    Raises:
        SpeculatorError: it told of other nodes; one that was drawn and kept back would bias the text.
    """
    num_told = len(survival.confidences)
    if num_told and num_told != len(draft) + survival.is_over:
        raise SpeculatorError(
            f"asked whether to draw {num_told} nodes, "
            f"{'all but the last' if survival.is_over else 'all'} allowed, and drew {len(draft)}: {draft}"
        )
