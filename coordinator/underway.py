"""The rounds of one request that wait for their verdict: the one that is next, and those that lie ahead of it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import count
from typing import NamedTuple

from coordinator.drafting import Drafting
from coordinator.line import NO_LEAD, Lead, Line
from coordinator.policy import Decision
from coordinator.record import Record, RoundUnderway
from coordinator.sessions import ANYTHING, Committed, Worth
from coordinator.sides import SideLine, Sides
from coordinator.verifying import Verifying
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, DraftPart, Round, Verdict


class Start(NamedTuple):
    """How a round begins."""

    decision: Decision
    patience_us: int  # for how long the session is held for its draft
    lead: Lead = NO_LEAD  # how far the drafter goes on beyond it


class Underway:
    """Has drafts drawn and verified.

    At any time at most one round has a draft on its way or in a pass, `current`. Where the drafter may stop after it,
    its nodes are forwarded as they come. Where it goes on, they and those after them form a line: the round is sent
    whole, and after it rounds that lie ahead, on the assumption that it holds and that the guess of its bonus is right.
    A verdict of which that is true makes the next of them the current one. One that corrects a node may be what a line
    beside it begins with: then that line goes on in its place, and its round is the current one. Any other, and all of
    them are dropped, here as at the verifier.

    Meanwhile verdicts may come that are not a round's own, when the patience was over or the session ran free: each of
    them is a round by itself, with γ = 0.
    """

    def __init__(self, record: Record, drafting: Drafting, verifying: Verifying, committed: Committed) -> None:
        self.current: RoundUnderway | None = None
        self.is_hit = False  # the last verdict was what the line said, so the next round is there or begins in it
        self.free = Decision(0, "request")  # the last decision to run free
        self.last_verdict_ns = record.start_ns
        self._record = record
        self._drafting = drafting
        self._verifying = verifying
        self._committed = committed
        self._line: Line | None = None
        self._sides = Sides()  # of the line
        self._ahead: deque[RoundUnderway] = deque()
        self._start = Start(self.free, 0)  # of rounds that lie ahead
        self._numbers: Iterator[int] = count()  # rounds, requests and grants of one position must differ in it

    @property
    def is_late(self) -> bool:
        """Whether a round waits though the verifier has gone on without it."""
        return self.current is not None and not self.is_hit

    # -- draft -------------------------------------------------------------------------------------------------------

    def begin(self, start: Start) -> None:
        """Begin a round at what is committed: ask for its draft, and beyond it where the drafter may go on."""
        gamma, position = start.decision.gamma, self._committed.position
        round_ = self.current = self._round(start, gamma, position)
        self._end_line()
        self._start, self.is_hit = start, False
        num_levels = start.lead.num_levels(gamma)
        if start.lead.num_nodes:
            self._line = Line(position, start.lead, position + gamma + 1, position + num_levels)
        worth = ANYTHING if start.lead.num_nodes else Worth(start.decision.price, start.decision.step_price)
        side_lines = start.lead.side_lines(gamma, self._drafting.max_nodes)
        self._drafting.ask(round_.number, num_levels, round_.trace, worth=worth, side_lines=side_lines)
        if self._drafting.session is None:
            self.end_draft()

    def go_on(self, start: Start) -> bool:
        """Have the line go on after a hit; False: there is none that could, and a round is to begin anew."""
        line = self._line
        if line is None or not self.is_hit:
            return False
        self._start = start
        if not start.lead.num_nodes or line.is_stopped:
            line.is_stopped = True
            return self.current is not None
        line.lead = start.lead
        gamma = min(start.lead.num_nodes, start.lead.room)
        if self.current is None:
            self.current = self._round(start, gamma, self._committed.position)
            line.cut_until = self._committed.position + gamma + 1
        num_levels = start.lead.num_levels(self.current.gamma)
        if self._committed.position + num_levels > line.asked_until or line.is_ended:
            is_asked = line.is_asked
            line.is_ended, line.asked_until = False, self._committed.position + num_levels
            side_lines = start.lead.side_lines(self.current.gamma, self._drafting.max_nodes)
            number, trace = next(self._numbers), self.current.trace
            self._drafting.ask(number, num_levels, trace, goes_on=is_asked, side_lines=side_lines)
        self._cut()
        if self._drafting.session is None:
            self.end_draft()
        return True

    def _round(self, start: Start, gamma: int, position: int) -> RoundUnderway:
        decision = start.decision
        number, hashes = next(self._numbers), self._committed.hashes
        prefix_hash = hashes.at(min(position, self._committed.position))
        round_ = self._record.begin_round(number, gamma, decision.reason, position, prefix_hash, self.last_verdict_ns)
        round_.is_held, round_.patience_us = decision.is_held, start.patience_us
        return round_

    def pause(self, decision: Decision) -> None:
        """Draft no further. What lies at the verifier is verified all the same."""
        self.free = decision
        if self._line is not None:
            self._line.is_stopped = True
        self.run_free()

    def run_free(self) -> None:
        """Let the verifier commit by itself; says nothing where it does already and has enough of its grant left."""
        if self.current is not None and self.current.num_nodes:
            return  # its verdict is on the way
        verifier = self._verifying.session
        if verifier.is_held or verifier.is_low:
            self.renew()

    def hold(self, start: Start) -> None:
        """Have the verifier wait for the draft that is on its way."""
        self._verifying.session.hold(next(self._numbers), start.decision.gamma, start.patience_us)

    def renew(self) -> None:
        """Give the verifier a whole new grant to run free with."""
        self._verifying.session.renew(next(self._numbers))

    # -- nodes come --------------------------------------------------------------------------------------------------

    def take(self, part: DraftPart) -> None:
        """Nodes from the drafter: pass them on."""
        if not self._drafting.take(part):
            return
        if self._line is not None:
            self._take_line(self._line, part)
            return
        round_ = self.current
        if round_ is None or part.round != round_.number or round_.is_complete:
            self._record.drop("late")  # the verifier did not wait for these nodes, or never had those before them
            return
        if part.first_node != round_.num_nodes:
            self._record.drop("order")
            if part.first_node > round_.num_nodes or part.is_complete:
                self.end_draft()
            return
        if len(round_.confidences) == round_.num_nodes:
            round_.confidences += part.confidences
        if part.draft.tokens:
            round_.num_nodes += len(part.draft.tokens)
            round_.draft_end_ns = self._record.clock()
            round_.tokens += part.draft.tokens
        round_.is_complete, round_.end = part.is_complete, part.end
        if part.is_complete and part.draft.tokens:
            self._measure(round_, part)
        if round_.is_nothing:
            self._record.drop(part.end.value if part.end else "empty")
            self.run_free()
        else:
            self._verifying.session.forward(round_, part)

    def _take_line(self, line: Line, part: DraftPart) -> None:
        if line.is_stopped and self.current is not None and self.current.is_complete:
            return  # nothing of it is wanted any more
        if part.position < line.position:
            self._record.drop("given_up")  # of the line before this one, beside which it was drawn
            return
        end = line.end
        if not self._add(line, part):
            self._record.drop("order")
            line.is_stopped = line.is_ended = True
        elif part.is_complete and self._drafting.is_answered:
            line.is_ended, line.drafter_end = True, part.end
        round_ = self.current
        if not line.holds(end, self._committed.tokens[end : line.end]):  # committed before these nodes came
            self._miss()
            self.run_free()
            return
        is_first = round_ is not None and round_.position == line.position and not round_.is_complete
        self._cut()
        self._send_sides(line)
        if round_ is not None and is_first and round_.num_nodes:
            self._measure(round_, part)

    def _add(self, line: Line, part: DraftPart) -> bool:
        """Take nodes of the line and of those beside it; False: some are missing, or they are not what was known."""
        if not line.lead.num_sides:
            return line.add(part.position + part.first_node, part.draft, part.first_node)
        found = self._sides.take(part)
        if found is None:
            return False
        level, tokens = found
        return not tokens or line.add(part.position + level, Draft.chain(tokens), 0)

    def _measure(self, round_: RoundUnderway, part: DraftPart) -> None:
        """A round's draft is whole: how long it was away, its drawing left out."""
        if self._drafting.meter is not None:
            away_s = (round_.draft_end_ns - round_.start_ns) / 1e9 - part.draft_us / 1e6
            away_s += self._verifying.session.peer.round_trip_us / 1e6
            self._drafting.meter.came_back(away_s, is_held=round_.is_held)

    def _cut(self) -> None:
        """Send the rounds that the line has all nodes of."""
        line, current = self._line, self.current
        if line is None:
            return
        if current is not None and not current.is_complete:
            num_nodes = line.end - current.position
            if num_nodes < current.gamma and not line.is_ended:
                return
            if num_nodes <= 0:
                self._end_line()
                self._come_to_nothing(current, line.drafter_end.value if line.drafter_end else "empty")
                self.run_free()
                return
            self._send(line, current)
        while (
            not line.is_stopped
            and len(self._ahead) < line.lead.num_rounds
            and line.end - line.cut_until >= line.lead.num_nodes
        ):
            round_ = self._round(self._start, line.lead.num_nodes, line.cut_until)
            line.cut_until += round_.gamma + 1
            self._send(line, round_)
            self._ahead.append(round_)

    def _send(self, line: Line, round_: RoundUnderway) -> None:
        """Send a round whole, with the nodes before it that are not committed."""
        nodes = line.between(round_.position, round_.position + round_.gamma)
        end = DraftEnd.GAMMA if len(nodes) == round_.gamma else line.drafter_end
        self._send_whole(round_, nodes, end, line.between(self._committed.position, round_.position))

    def _send_sides(self, line: Line) -> None:
        """Send the side lines that have come, as rounds that lie ahead below a correction."""
        if line.is_stopped or self._line is not line:
            return
        self._pass_sides_by(self._committed.position)  # some came when the verdict was out
        for side in self._sides.unsent(line.lead.num_side_nodes):
            first, *nodes = side.tokens
            side.round = self._round(self._start, len(nodes), side.start + 1)
            assumed = (*line.between(self._committed.position, side.start), first)
            self._send_whole(side.round, nodes, DraftEnd.GAMMA, assumed)

    def _send_whole(
        self, round_: RoundUnderway, nodes: Sequence[int], end: DraftEnd | None, assumed: tuple[int, ...]
    ) -> None:
        round_.tokens, round_.num_nodes, round_.is_complete, round_.end = list(nodes), len(nodes), True, end
        round_.draft_end_ns = self._record.clock()
        self._verifying.session.send_whole(round_, assumed)

    def end_draft(self) -> None:
        """No more nodes follow, though the drafter has not said so: the verifier need not wait."""
        if self._line is not None:
            self._line.is_stopped = self._line.is_ended = True
            self._cut()
            return
        round_ = self.current
        if round_ is None or round_.is_complete:
            return
        round_.is_complete = True
        if round_.num_nodes:
            self._verifying.session.end_draft(round_)
        else:
            self.run_free()

    # -- a verdict comes ---------------------------------------------------------------------------------------------

    def settle(self, verdict: Verdict) -> tuple[RoundUnderway, Round]:
        """The round that a verdict ends: the one whose draft it decides, or one that ran free."""
        self._pass_over(verdict.round)
        self._judge(verdict)
        round_ = self.current
        if verdict.round is not None:
            is_own = round_ is not None and round_.number == verdict.round
            self._verifying.session.settle(round_ if is_own else None)
        if round_ is not None and (round_.number == verdict.round or round_.is_nothing):
            self.current = None
            if round_.num_nodes and not verdict.num_drafted:
                self._record.drop("behind")
        else:
            reason = self.free.reason if round_ is None else "draft_late"
            round_ = self._record.begin_round(
                0, 0, reason, verdict.position, self._committed.hashes.at(verdict.position), self.last_verdict_ns
            )
        ended = self._record.end_round(round_, verdict)
        self.last_verdict_ns = self._record.clock()
        self._promote()
        return round_, ended

    def _pass_over(self, number: int | None) -> None:
        """Give up the rounds before the one that was decided: all they propose was committed without them."""
        while number is not None and self.current is not None and self.current.number < number:
            self._drop(self.current, "overtaken")
            self.current = self._ahead.popleft() if self._ahead else None

    def _judge(self, verdict: Verdict) -> None:
        """See whether the line is what was committed; if not, what lies ahead is dropped, here as at the verifier."""
        line, current = self._line, self.current
        if line is None:
            return
        if current is not None and current.number == verdict.round:
            current.guess = next(iter(line.between(current.position + len(current.tokens), line.end)), None)
        end = verdict.position + len(verdict.tokens)
        if not line.holds(verdict.position, verdict.tokens):
            side = self._sides.turn(verdict, line)
            self._miss()
            num_assumed = 0 if current is None else max(0, current.position - verdict.position)
            if current is not None and not line.holds(verdict.position, verdict.tokens[:num_assumed]):
                self._drop(current, "assumption")  # it lay ahead there: no verdict will ever say what became of it
                self.current = None
            if side is not None:
                self._turn(side, line, end)
            return
        self._pass_sides_by(end)
        if current is None or current.is_complete:
            is_own = current is None or current.number == verdict.round
            if is_own and not line.knows(end):
                self._end_line()  # whether the guess was right is not known yet
        elif end >= current.position + current.gamma:
            self._end_line()
            self._come_to_nothing(current, "overtaken")

    def _turn(self, side: SideLine, line: Line, end: int) -> None:
        """Go on with a side line where a verdict left the main one; what was sent of it lies at the verifier."""
        nodes, round_ = side.tokens[end - side.start :], side.round
        if nodes:
            self._line = Line(end, line.lead, cut_until=end, asked_until=end, tokens=nodes)
            if round_ is not None and round_.position == end:
                self._line.cut_until = end + round_.gamma + 1
                self._ahead.append(round_)
                return
        self._drop_side(side)

    def _promote(self) -> None:
        """After a hit the next round that lies ahead is the current one."""
        self.is_hit = self.current is None and self._line is not None
        if self.is_hit and self._ahead:
            self.current = self._ahead.popleft()
            self.current.start_ns = self.last_verdict_ns
            self.current.draft_end_ns = 0  # it was there before

    # -- what comes to nothing ---------------------------------------------------------------------------------------

    def forget(self) -> None:
        """What was sent to the verifier is lost: its rounds come to nothing."""
        if self.current is None or self.current.num_nodes:
            self._drop_ahead("forgotten")
            self.is_hit = False
        if self.current is not None and self.current.num_nodes:
            self.current.num_nodes = 0
            self.current.is_complete = True

    def _miss(self) -> None:
        """Other tokens were committed than the line has."""
        self._drop_ahead("assumption")
        if self.current is not None and not self.current.is_complete:
            self._come_to_nothing(self.current, "behind")

    def _come_to_nothing(self, round_: RoundUnderway, cause: str) -> None:
        round_.is_complete = True
        self._record.drop(cause)

    def _drop_ahead(self, cause: str) -> None:
        """Give the line up, and what of it lies ahead."""
        self._end_line()
        while self._ahead:
            self._drop(self._ahead.popleft(), cause)

    def _end_line(self) -> None:
        """Give the line up, and those beside it; rounds that were cut from it may still hold."""
        self._line = None
        sides, self._sides = self._sides, Sides()
        for side in sides.lines:
            self._drop_side(side)

    def _pass_sides_by(self, position: int) -> None:
        for side in self._sides.pass_by(position):
            self._drop_side(side)

    def _drop_side(self, side: SideLine) -> None:
        if side.round is not None:
            self._drop(side.round, "assumption")

    def _drop(self, round_: RoundUnderway, cause: str) -> None:
        self._record.drop(cause)
        self._record.give_up(round_)

    def close(self) -> None:
        """Give up all rounds, with the request."""
        if self.current is not None:
            self._record.give_up(self.current)
        for round_ in self._ahead:
            self._record.give_up(round_)
        self.current = None
        self._ahead.clear()
        self._end_line()
