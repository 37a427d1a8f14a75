"""Lines beside the drafter's likeliest: what it drew for the case that a verdict corrects one of its nodes."""

from __future__ import annotations

from dataclasses import dataclass, field

from coordinator.line import Line
from coordinator.record import RoundUnderway
from pilotfish.messages import DraftPart, Verdict


@dataclass(slots=True, eq=False)
class SideLine:
    """One of them. Its first token stands where the main line has another, or guesses the bonus otherwise."""

    start: int  # position of its first token
    tokens: list[int]
    is_whole: bool = False  # no more nodes come
    round: RoundUnderway | None = None  # what was sent of it; None: nothing yet

    def of(self, verdict: Verdict, line: Line) -> bool:
        """Whether the verdict leaves the main line for this one."""
        if not verdict.position <= self.start < verdict.position + len(verdict.tokens):
            return False
        path = (*line.between(verdict.position, self.start), *self.tokens)
        return path[: len(verdict.tokens)] == verdict.tokens


@dataclass(slots=True)
class Sides:
    """The side lines of a line that still could be what is committed."""

    lines: list[SideLine] = field(default_factory=list)
    _request: int = -1  # whose nodes come
    _lines_of: list[SideLine | None] = field(default_factory=list)  # of its nodes, the line of each; None: the main one
    _depths: list[int] = field(default_factory=list)  # likewise, its level
    _parents: set[int] = field(default_factory=set)  # nodes that others hang below

    def take(self, part: DraftPart) -> tuple[int, list[int]] | None:
        """Take the nodes of a part that are not of the main line.

        Returns:
            Level of the first that is of the main line, and their tokens; None: nodes before them are missing.
        """
        if part.round != self._request:
            self._request, self._lines_of, self._depths, self._parents = part.round, [], [], set()
        if part.first_node != len(self._depths):
            return None
        level, main = 0, list[int]()
        for token, parent in zip(part.draft.tokens, part.draft.parents, strict=True):
            depth = self._depths[parent] + 1 if parent >= 0 else 0
            line = self._line_of(parent, part.position + depth)
            if line is not None:
                line.tokens.append(token)
            else:
                level = level if main else depth
                main.append(token)
            self._lines_of.append(line)
            self._depths.append(depth)
        grows = self._lines_of[-1] if self._lines_of else None
        for each in self.lines:
            each.is_whole = each.is_whole or part.is_complete or each is not grows
        return level, main

    def _line_of(self, parent: int, position: int) -> SideLine | None:
        """The line that a node below `parent` goes on with, or a new one where another node hangs there already."""
        is_first = parent not in self._parents
        self._parents.add(parent)
        if is_first:
            return self._lines_of[parent] if parent >= 0 else None
        self.lines.append(side := SideLine(position, []))
        return side

    def unsent(self, num_nodes: int) -> list[SideLine]:
        """Lines that have come, with so many nodes where there are more to come."""
        sent = {(side.start, side.tokens[0]) for side in self.lines if side.round is not None}
        return [
            side
            for side in self.lines
            if side.round is None
            and len(side.tokens) > 1
            and (side.is_whole or len(side.tokens) > num_nodes)
            and (side.start, side.tokens[0]) not in sent
        ]

    def turn(self, verdict: Verdict, line: Line) -> SideLine | None:
        """Take out the line that the verdict goes on with."""
        side = next((side for side in self.lines if side.of(verdict, line)), None)
        if side is not None:
            self.lines.remove(side)
        return side

    def pass_by(self, position: int) -> list[SideLine]:
        """Take out those that are wrong, since the main line was committed up to there."""
        passed = [side for side in self.lines if side.start < position]
        self.lines = [side for side in self.lines if side.start >= position]
        return passed
