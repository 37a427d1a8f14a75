from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.stop import StopStrings

LETTERS = st.text(alphabet="ab", max_size=30)


def first_stop(text: str, stops: list[str]) -> int | None:
    """Where the answer ends, found letter by letter: the slow way."""
    for end in range(1, len(text) + 1):
        starts = [end - len(stop) for stop in stops if text[:end].endswith(stop)]
        if starts:
            return min(starts)
    return None


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    """The text in pieces of the given lengths, over and over."""
    pieces: list[str] = []
    start = 0
    while start < len(text):
        length = cuts[len(pieces) % len(cuts)]
        pieces.append(text[start : start + length])
        start += length
    return pieces


@given(text=LETTERS, stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), max_size=3), data=st.data())
def test_every_chunking_cuts_alike(text: str, stops: list[str], data: st.DataObject) -> None:
    """However a text comes in pieces, it is cut before the stop string that is complete first."""
    cuts = data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    matcher, got, is_stopped = StopStrings(stops), "", False
    for piece in in_pieces(text, cuts):
        cut = matcher.feed(piece)
        got += cut.text
        if is_stopped := cut.is_stopped:
            break
    end = first_stop(text, stops)
    assert is_stopped == (end is not None)
    assert got + ("" if is_stopped else matcher.finish()) == text[:end]


@given(text=LETTERS, stops=st.lists(st.text(alphabet="ab", min_size=1, max_size=4), min_size=1, max_size=3))
def test_holds_back_no_more_than_needed(text: str, stops: list[str]) -> None:
    """What is held back begins a stop string, and what is given out never could."""
    matcher, got = StopStrings(stops), ""
    for num_fed, letter in enumerate(text, start=1):
        cut = matcher.feed(letter)
        got += cut.text
        if cut.is_stopped:
            return
        held = text[len(got) : num_fed]
        assert not held or any(stop.startswith(held) for stop in stops)
        assert not any(stop.startswith(text[start:num_fed]) for stop in stops for start in range(len(got)))


def test_two_at_once() -> None:
    """Of two stop strings that are complete at the same letter the answer ends before the one that began first."""
    assert StopStrings(["ND", "END"]).feed("THE END").text == "THE "


def test_shorter_first() -> None:
    """A stop string inside another one wins, for it is complete first."""
    assert StopStrings(["abcd", "bc"]).feed("xabcd") == ("xa", True)


def test_none() -> None:
    """Without stop strings nothing is held back."""
    matcher = StopStrings([])
    assert matcher.feed("anything") == ("anything", False)
    assert matcher.finish() == ""
