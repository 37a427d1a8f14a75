"""Prompt lookup against a search written down as the definition says it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drafter.speculators import Ask
from drafter.speculators.ngram import NgramIndex, NgramSpeculator
from pilotfish.draft import Draft
from tests.drafter.openings import opening

TEXTS = st.lists(st.integers(0, 2), max_size=40)
RANGES = st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def searched(tokens: list[int], min_n: int, max_n: int, num_tokens: int) -> list[int]:
    """What a proposal must be, by scanning."""
    end = len(tokens)
    for length in range(min(max_n, end), min_n - 1, -1):
        suffix = tokens[end - length :]
        for start in range(end - 1, length - 1, -1):  # most recent first; the suffix's own place has no continuation
            if tokens[start - length : start] == suffix:
                longer = tokens[start:]
                while len(longer) < num_tokens:
                    longer = longer + tokens[start:]
                return longer[:num_tokens]
    return []


@given(TEXTS, RANGES, st.integers(1, 12))
def test_proposal_is_the_continuation_of_the_most_recent_longest_match(
    tokens: list[int], lengths: tuple[int, int], num_tokens: int
) -> None:
    """The longest suffix in range that occurred before is found where it occurred last, and what follows is copied."""
    index = NgramIndex(*lengths)
    index.append(tokens)

    assert index.continuation(num_tokens) == searched(tokens, *lengths, num_tokens)


@given(TEXTS, st.lists(st.integers(0, 40), max_size=5), RANGES)
def test_pieces_make_the_same_index_as_the_whole(tokens: list[int], cuts: list[int], lengths: tuple[int, int]) -> None:
    """How the tokens arrive does not matter: look-ups agree after every piece."""
    index = NgramIndex(*lengths)
    start = 0
    for cut in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        index.append(tokens[start:cut])
        start = cut
        assert index.continuation(5) == searched(tokens[:cut], *lengths, 5)


@pytest.mark.parametrize("num_tokens", range(6))
def test_prompt_shorter_than_the_ngram_proposes_nothing_or_what_fits(num_tokens: int) -> None:
    """A prompt of any length is fine; without a match nothing is proposed."""
    index = NgramIndex(3, 5)
    index.append(range(num_tokens))

    assert index.continuation(4) == []


def test_period_is_continued_beyond_the_end_of_the_text() -> None:
    """A copy that reaches the end of the text goes on with itself."""
    index = NgramIndex(2, 4)
    index.append([7, 8, 9, 7, 8, 9, 7])

    assert index.continuation(8) == [8, 9, 7, 8, 9, 7, 8, 9]


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2), (-1, 2)])
def test_senseless_range_is_refused(min_n: int, max_n: int) -> None:
    """A range of lengths that holds none is an error that names both ends."""
    with pytest.raises(ValueError, match=f"min_n {min_n} and max_n {max_n}"):
        NgramSpeculator(min_n, max_n)


def test_sessions_do_not_learn_from_one_another() -> None:
    """A session whose text begins like another's is not given what followed there, whatever the tenant."""
    secret = [1, 2, 3, 4, 5, 6, 7, 8]
    speculator = NgramSpeculator()
    speculator.open(opening(b"a" * 16, secret + secret, tenant="a"))
    speculator.open(opening(b"b" * 16, secret[:4], tenant="b"))
    speculator.open(opening(b"c" * 16, secret[:4], tenant="a"))

    owner, other, same_tenant = speculator.propose([Ask(bytes([letter]) * 16, 4, Draft.EMPTY, 4) for letter in b"abc"])

    assert owner.tokens == (1, 2, 3, 4)
    assert other == same_tenant == Draft.EMPTY


def test_nodes_are_one_hot_and_as_many_as_asked_for() -> None:
    """A match gives a chain of exactly the levels asked for, without q, since nothing was drawn."""
    speculator = NgramSpeculator(1, 2)
    speculator.open(opening(b"a" * 16, [4, 4, 4]))

    [draft] = speculator.propose([Ask(b"a" * 16, 3, Draft.EMPTY, 5)])

    assert draft == Draft.chain([4] * 5)
    assert not draft.has_q


def test_closed_session_leaves_nothing() -> None:
    """What a session wrote is gone when it is closed, and a new one under the same id starts from its own text."""
    speculator = NgramSpeculator()
    speculator.open(opening(b"a" * 16, [1, 2, 3, 1, 2]))
    speculator.close(b"a" * 16)
    speculator.open(opening(b"a" * 16, [9, 1, 2]))

    assert speculator.propose([Ask(b"a" * 16, 3, Draft.EMPTY, 2)]) == [Draft.EMPTY]
