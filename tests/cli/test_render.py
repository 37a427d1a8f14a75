"""How answers and rounds look, as text."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pilotfish.cli.render import Look, bar, spans, waterfall
from pilotfish.messages import TokenKind

A, C, B, P = TokenKind.ACCEPTED, TokenKind.CORRECTION, TokenKind.BONUS, TokenKind.PLAIN


@dataclass(frozen=True)
class Piece:
    text: str
    kinds: tuple[TokenKind, ...]
    num_characters: tuple[int, ...]


@dataclass(frozen=True)
class Round:
    index: int = 0
    gamma: int = 4
    reason: str = "fixed"
    num_drafted: int = 4
    num_accepted: int = 2
    num_committed: int = 3
    start_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    queue_us: int = 0
    pass_us: int = 0


def test_each_token_has_its_own_kind() -> None:
    """Text is cut at the number of characters of each token, in order."""
    piece = Piece("one two!", (A, A, C), (3, 4, 1))
    assert list(spans(piece)) == [("one", A), (" two", A), ("!", C)]


def test_a_token_inside_a_character_shows_nothing() -> None:
    """A token that made no character certain has no span."""
    assert list(spans(Piece("é", (A, A), (0, 1)))) == [("é", A)]


def test_text_that_only_the_end_released_goes_with_the_last_token() -> None:
    """Held back text belongs to the last token of its piece, or to none."""
    assert list(spans(Piece("ab EN", (P,), (2,)))) == [("ab EN", P)]
    assert list(spans(Piece("EN", (), ()))) == [("EN", None)]


def test_a_piece_without_lengths_is_shown_all_the_same() -> None:
    """An older coordinator that sends no lengths loses the kinds, not the text."""
    assert "".join(text for text, _ in spans(Piece("one two", (A, C), ()))) == "one two"


@given(st.lists(st.tuples(st.text(max_size=4), st.sampled_from([A, C, B, P])), max_size=12))
def test_no_text_is_lost_or_doubled(tokens: list[tuple[str, TokenKind]]) -> None:
    """Whatever the tokens, the spans put together are the text."""
    text = "".join(part for part, _ in tokens)
    piece = Piece(text, tuple(kind for _, kind in tokens), tuple(len(part) for part, _ in tokens))
    assert "".join(part for part, _ in spans(piece)) == text
    assert Look(has_colour=False, has_marks=False, is_terminal=False)(spans(piece)) == text


def test_control_characters_are_shown_and_not_obeyed() -> None:
    """An answer cannot move the cursor of the terminal it is shown in; line ends and tabs are its own."""
    shown = Look(has_colour=False, has_marks=False)([("a\x1b[2J\x07\x9b\tb\n", A)])
    assert shown == "a␛[2J␇\N{REPLACEMENT CHARACTER}\tb\n"


def test_marks_tell_kinds_apart_without_colour() -> None:
    """Runs of one kind stand in brackets of their own; plain text has none."""
    tokens = [("a", A), ("b", A), ("c", C), ("d", B), ("e", P)]
    assert Look(has_colour=False, has_marks=True)(tokens) == "⟦ab⟧⟨c⟩«d»e"
    assert Look(has_colour=False, has_marks=True, has_unicode=False)(tokens) == "[ab]{c}<d>e"


def test_colours_tell_kinds_apart() -> None:
    """With colour every kind but plain has a colour of its own, and without the escape codes the text is as it was."""
    coloured = Look(has_colour=True, has_marks=False)([("a\tb", A), ("c\n", C), ("d", B), ("e", P)])
    assert re.sub(r"\x1b\[[\d;]*m", "", coloured) == "a\tbc\nde"
    assert len(set(re.findall(r"\x1b\[(3\d)m", coloured))) == 3


def test_legend_names_all_kinds_or_is_empty() -> None:
    """What is told apart is explained; where nothing is, there is no legend."""
    legend = Look(has_colour=False, has_marks=True).legend()
    assert legend == "⟦accepted⟧  ⟨correction⟩  «bonus»  plain"
    assert not Look(has_colour=False, has_marks=False).legend()


@pytest.mark.parametrize(
    ("is_terminal", "no_colour", "expected"),
    [(True, False, (True, False)), (True, True, (False, True)), (False, False, (False, False))],
)
def test_look_suits_the_output(is_terminal: bool, no_colour: bool, expected: tuple[bool, bool]) -> None:
    """A terminal gets colour, with NO_COLOR it gets marks, and a file gets the text alone."""
    environment = {"TERM": "xterm", **({"NO_COLOR": "1"} if no_colour else {})}
    console = Console(file=io.StringIO(), force_terminal=is_terminal, _environ=environment)
    look = Look.of(console)
    assert (look.has_colour, look.has_marks) == expected
    assert Look.of(console, has_marks=True).has_marks


times = st.integers(0, 10**7)


@given(times, times, times, times, times, st.integers(1, 200))
def test_a_bar_never_leaves_its_line(
    start_us: int, draft_us: int, queue_us: int, pass_us: int, rest_us: int, width: int
) -> None:
    """Whatever the times, a bar's cells fit the line they are drawn on."""
    verify_us = queue_us + pass_us + rest_us
    round_ = Round(start_us=start_us, draft_us=draft_us, verify_us=verify_us, queue_us=queue_us, pass_us=pass_us)
    cells = bar(round_, 0, start_us + draft_us + verify_us, width)
    assert sum(length for _, length in cells) <= width
    assert all(length > 0 for _, length in cells)


def test_bars_stand_where_their_time_was() -> None:
    """A second round of 10 ms draft, 5 ms queue and 25 ms pass fills the second half in these proportions."""
    rounds = [
        Round(0, start_us=0, verify_us=40_000, pass_us=40_000),
        Round(1, start_us=40_000, draft_us=10_000, verify_us=30_000, queue_us=5_000, pass_us=25_000),
    ]
    lines = waterfall(rounds, width=104, has_unicode=False).plain.split("\n")
    assert lines[1].endswith("P" * 40)
    assert lines[2].endswith(" " * 40 + "d" * 10 + "q" * 5 + "P" * 25)
    assert "d draft 10.0 ms (12%)" in lines[3]
    assert "P pass 65.0 ms (81%)" in lines[3]


@pytest.mark.parametrize("num_rounds", [0, 1, 500])
def test_a_waterfall_has_a_bounded_height(num_rounds: int) -> None:
    """However many rounds there were, the waterfall says how many and stays short."""
    rounds = [Round(i, start_us=100 * i, verify_us=100, pass_us=90) for i in range(num_rounds)]
    text = waterfall(rounds, width=80, max_rows=20).plain
    assert text.count("\n") < 24
    if num_rounds == 500:
        assert "480 rounds more" in text
