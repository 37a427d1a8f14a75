"""Side lines as they come: which node is of which line, when one is to be sent, and which of them a verdict takes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from coordinator.line import NO_LEAD, Lead, Line
from coordinator.sides import Sides
from pilotfish.draft import Draft
from pilotfish.messages import DraftPart, SideLines, Verdict

SESSION = b"s" * 16
POSITION = 10
#   level   0   1   2   3          main line 1 2 3 4, of which node 3 comes after the first side line
#           1   2   3 - 4
#             \   \ - 8 9
#               5 6 7
TOKENS = (1, 2, 3, 5, 6, 7, 4, 8, 9)
PARENTS = (-1, 0, 1, 0, 3, 4, 2, 1, 7)


def part(start: int, end: int, *, round_: int = 1, is_complete: bool = False) -> DraftPart:
    draft = Draft(TOKENS[start:end], PARENTS[start:end], (None,) * (end - start))
    return DraftPart(SESSION, POSITION, round_, start, draft, is_complete)


def verdict(position: int, tokens: Sequence[int]) -> Verdict:
    return Verdict(SESSION, position, tuple(tokens), (), None, 0, 0, prefix_hash=0)


def line(tokens: Sequence[int]) -> Line:
    return Line(POSITION, Lead(2), POSITION, POSITION, list(tokens))


@pytest.mark.parametrize("size", range(1, len(TOKENS) + 1))
def test_every_node_finds_its_line(size: int) -> None:
    """In whatever parts they come."""
    sides, main = Sides(), list[int]()
    for start in range(0, len(TOKENS), size):
        end = min(start + size, len(TOKENS))
        found = sides.take(part(start, end, is_complete=end == len(TOKENS)))
        assert found is not None
        level, tokens = found
        assert not tokens or level == len(main)
        main += tokens
    assert main == [1, 2, 3, 4]
    assert [(side.start, side.tokens) for side in sides.lines] == [(11, [5, 6, 7]), (12, [8, 9])]
    assert all(side.is_whole for side in sides.lines)


def test_nodes_that_leave_a_gap_are_not_taken() -> None:
    """Of a request of which the beginning is missing nothing can be told."""
    sides = Sides()
    assert sides.take(part(0, 3)) is not None
    assert sides.take(part(4, 6)) is None
    assert sides.take(part(3, 6, round_=2)) is None
    assert not sides.lines


def test_a_line_is_sent_when_it_has_come() -> None:
    """With as many nodes as were wanted, or when another line goes on; the same line twice is sent once."""
    sides = Sides()
    sides.take(part(0, 5))
    assert not sides.unsent(2)
    assert [side.tokens for side in sides.unsent(1)] == [[5, 6]]
    sides.take(part(5, 7))
    (side,) = sides.unsent(4)
    assert side.tokens == [5, 6, 7]
    side.round = object()  # type: ignore[assignment]
    sides.take(part(0, 9, round_=2, is_complete=True))
    assert [side.tokens for side in sides.unsent(4)] == [[8, 9]]


@pytest.mark.parametrize(
    ("position", "tokens", "taken"),
    [
        (10, (1, 5), [5, 6, 7]),
        (10, (1, 5, 6), [5, 6, 7]),  # more than its first token: as after a lost stream
        (11, (5,), [5, 6, 7]),
        (10, (1, 2, 8), [8, 9]),
        (10, (1, 6), None),
        (10, (1,), None),
        (10, (2, 5), None),
        (12, (5,), None),
        (10, (1, 5, 6, 7, 1), None),  # beyond what is known
    ],
)
def test_a_verdict_takes_the_line_that_it_says(position: int, tokens: Sequence[int], taken: list[int] | None) -> None:
    """That of which the path is what was committed, and no other."""
    sides = Sides()
    sides.take(part(0, 9, is_complete=True))
    side = sides.turn(verdict(position, tokens), line([1, 2, 3, 4]))
    assert (None if side is None else side.tokens) == taken
    assert len(sides.lines) == 2 - (taken is not None)


def test_lines_that_were_passed_by_are_wrong() -> None:
    """Once the main line was committed beyond where they begin."""
    sides = Sides()
    sides.take(part(0, 9, is_complete=True))
    assert [side.start for side in sides.pass_by(12)] == [11]
    assert [side.start for side in sides.lines] == [12]


def test_lines_fit_into_what_a_drafter_draws() -> None:
    """The main line comes first; of the others as many are asked for as it takes nodes beside that."""
    lead = Lead(3, num_rounds=2, room=50, num_sides=4)
    assert lead.num_levels(4) == 12
    assert lead.side_lines(4, 1000) == SideLines(4, 5, 3)
    assert lead.side_lines(4, 20) == SideLines(2, 5, 3)
    assert lead.side_lines(4, 12) is None
    assert NO_LEAD.side_lines(4, 1000) is None
