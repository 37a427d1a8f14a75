"""Lines beside the likeliest: which are drawn, in which order, and what becomes of one that came true."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from drafter.speculators import Ask
from drafter.speculators.ngram import NgramSpeculator
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, DraftPart, Refusal, SideLines
from tests.drafter.desk import Clock, Desk, Steps
from tests.drafter.openings import opening, request

A = b"a" * 16
TEXT = [1, 2, 3, 4]
INSTEAD = 100  # a runner-up is its node and so much


def law(tokens: Sequence[int]) -> int:
    """What comes next, of tokens under 100 and runners-up alike."""
    return (7 * sum(tokens) + len(tokens)) % 97


class Sure(Steps):
    """The law, a node a step, and runners-up with a share by level."""

    is_repeatable: ClassVar[bool] = True

    def __init__(self, share: Callable[[int], float] | None, spoil: Draft | None = None) -> None:
        super().__init__(Clock())
        self._share = share
        self._spoil = spoil
        self.asked: list[tuple[int, ...]] = []  # paths that a node was asked below

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        self.num_draws += 1
        return [self._draw(ask) for ask in asks]

    def _draw(self, ask: Ask) -> Draft:
        path = ask.draft.tokens
        self.asked.append(path)
        if self._spoil is not None and any(token >= INSTEAD for token in path):
            return self._spoil
        token = law([*self.texts[ask.session], *path])
        if self._share is not None:
            ask.tells(token + INSTEAD, self._share(len(path)))
        return ask.chain([token])


def whole(parts: Sequence[object]) -> Draft:
    """The draft of all parts."""
    draft = Draft.EMPTY
    for part in parts:
        assert isinstance(part, DraftPart)
        assert part.first_node == len(draft)
        draft = draft.append(part.draft)
    assert isinstance(parts[-1], DraftPart)
    assert parts[-1].is_complete
    return draft


def continued(tokens: Sequence[int], num_tokens: int) -> tuple[int, ...]:
    """What the law says follows."""
    text = list(tokens)
    for _ in range(num_tokens):
        text.append(law(text))
    return tuple(text[len(tokens) :])


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[node] for node in path) for path in draft.paths}


@pytest.mark.parametrize(
    ("share", "levels"),
    [
        (lambda level: (0.05, 0.4, 0.3)[level] if level < 3 else 0.01, (1, 2)),
        (lambda level: (0.5, 0.02, 0.02)[level] if level < 3 else 0.01, (0,)),  # the others are not worth it
        (lambda _: 0.0, ()),
    ],
)
async def test_the_likeliest_corrections_are_followed(share: Callable[[int], float], levels: Sequence[int]) -> None:
    """Two lines at the most, in the first three levels, of two nodes below the runner-up; the main line is whole."""
    desk = Desk(Sure(share))
    desk.tell(opening(A, TEXT))
    draft = whole(desk.tell(request(A, TEXT, 6, side_lines=SideLines(2, 3, 2))))
    main = continued(TEXT, 6)
    beside = {(*main[:level], main[level] + INSTEAD) for level in levels}
    assert paths(draft) == {main} | {(*path, *continued([*TEXT, *path], 2)) for path in beside}


@pytest.mark.parametrize(("share", "is_main_first"), [(0.02, True), (0.45, False)])
async def test_what_is_likelier_to_be_wanted_is_drawn_first(share: float, is_main_first: bool) -> None:
    """A sure drafter goes on with its line, one in doubt follows its doubts; the round itself comes first anyway."""
    speculator = Sure(lambda _: share)
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    desk.tell(request(A, TEXT, 9, side_lines=SideLines(1, 3, 2)))
    is_aside = [any(token >= INSTEAD for token in path) for path in speculator.asked]
    assert sum(is_aside) == 2
    assert not any(is_aside[:3])
    assert is_aside.index(True) == (9 if is_main_first else 3)


async def test_line_that_came_true_is_sent_again_and_not_drawn_again() -> None:
    """Where the runner-up was right its line begins the next draft."""
    speculator = Sure(lambda level: 0.4 if level == 1 else 0.01)
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT))
    desk.tell(request(A, TEXT, 4, side_lines=SideLines(1, 3, 2)))
    main = continued(TEXT, 2)
    text = [*TEXT, main[0], main[1] + INSTEAD]
    speculator.asked.clear()
    draft = whole(desk.tell(request(A, text, 4, told=len(TEXT), round_=1, side_lines=SideLines(1, 1, 2))))
    assert draft.tokens[:4] == continued(text, 4)
    assert min(len(path) for path in speculator.asked) == 2  # two of its nodes were there


async def test_without_runners_up_there_is_the_draft_alone() -> None:
    """A speculator that tells none is asked as if nobody had wanted them."""
    drafts = []
    for side_lines in (None, SideLines(3, 3, 2)):
        desk = Desk(Sure(None))
        desk.tell(opening(A, TEXT))
        parts = desk.tell(request(A, TEXT, 5, side_lines=side_lines))
        drafts.append(whole(parts))
        assert isinstance(parts[-1], DraftPart)
        assert parts[-1].end is DraftEnd.GAMMA
    assert drafts[0] == drafts[1]


async def test_one_that_answers_in_one_step_is_asked_for_the_whole_line() -> None:
    """A lookup goes on in what it copies; asked piece by piece it would begin again each time."""
    text = [*range(1, 10), 1, 2, 3]
    drafts = []
    for side_lines in (None, SideLines(4, 3, 2)):
        desk = Desk(NgramSpeculator())
        desk.tell(opening(A, text))
        drafts.append(whole(desk.tell(request(A, text, 9, side_lines=side_lines))))
    assert drafts[0] == drafts[1] == Draft.chain((4, 5, 6, 7, 8, 9, 1, 2, 3))


async def test_deadline_ends_the_lines_beside_it_too() -> None:
    """What was drawn in time is sent, and the draft is complete."""
    speculator = Sure(lambda _: 0.4)
    desk = Desk(speculator, clock=lambda: 100.0 + 0.01 * speculator.num_draws)
    desk.tell(opening(A, TEXT))
    parts = desk.tell(request(A, TEXT, 3, deadline_us=45_000, side_lines=SideLines(3, 3, 4)))
    whole(parts)
    assert speculator.num_draws == 5
    assert isinstance(parts[-1], DraftPart)
    assert parts[-1].end is DraftEnd.DEADLINE


async def test_no_more_below_a_runner_up_ends_that_line_alone() -> None:
    """A speculator that finds nothing there has its other nodes sent."""
    desk = Desk(Sure(lambda _: 0.4, spoil=Draft.EMPTY))
    desk.tell(opening(A, TEXT))
    draft = whole(desk.tell(request(A, TEXT, 5, side_lines=SideLines(2, 3, 2))))
    assert paths(draft) == {continued(TEXT, 5)}


async def test_tree_where_a_chain_was_asked_for_is_refused() -> None:
    """A speculator that answers something else beside the line costs its draft, by name."""
    desk = Desk(Sure(lambda _: 0.4, spoil=Draft((1, 2), (-1, -1), (None, None))))
    desk.tell(opening(A, TEXT))
    answers = desk.tell(request(A, TEXT, 5, side_lines=SideLines(2, 3, 2)))
    assert isinstance(answers[-1], Refusal)
    assert "a chain" in answers[-1].message


async def test_what_nodes_were_drawn_from_goes_with_them() -> None:
    """Nodes with q, as nobody asks for beside one another, keep it."""
    q = Distribution((5, 6), (1, 3))

    class Drawn(Sure):
        def _draw(self, ask: Ask) -> Draft:
            return ask.chain([5], [q])

    desk = Desk(Drawn(None))
    desk.tell(opening(A, TEXT))
    assert whole(desk.tell(request(A, TEXT, 3, side_lines=SideLines(2, 3, 2)))).q == (q,) * 3
