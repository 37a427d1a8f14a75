from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.prefix import EMPTY, PrefixHashes, extend

ids = st.lists(st.integers(0, 2**32 - 1), max_size=20)


def splitmix64(value: int) -> int:
    """The published generator's step, written down a second time."""
    value = (value + 0x9E3779B97F4A7C15) % 2**64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) % 2**64
    return value ^ (value >> 31)


def test_splitmix_is_the_published_one() -> None:
    """The first outputs of SplitMix64 from seed 0, as its authors list them."""
    assert [splitmix64(step * 0x9E3779B97F4A7C15 % 2**64) for step in range(2)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]


@given(ids)
def test_the_hash_is_the_documented_one(tokens: list[int]) -> None:
    """H' = splitmix64(h ^ (token + golden mod 2**64)), from 0."""
    value = 0
    for token in tokens:
        value = splitmix64(value ^ (token + 0x9E3779B97F4A7C15) % 2**64)
    assert extend(EMPTY, tokens) == value


@given(ids, ids)
def test_hashing_in_two_runs_is_hashing_in_one(head: list[int], tail: list[int]) -> None:
    """The hash of a text does not depend on the pieces it came in, and every earlier position can be asked."""
    hashes = PrefixHashes(head)
    hashes.extend(tail)
    assert hashes.last == extend(extend(EMPTY, head), tail) == extend(EMPTY, head + tail)
    assert len(hashes) == len(head) + len(tail)
    assert [hashes.at(position) for position in range(len(hashes) + 1)] == [
        extend(EMPTY, (head + tail)[:position]) for position in range(len(hashes) + 1)
    ]
    hashes.truncate(len(head))
    assert hashes.last == extend(EMPTY, head)


@given(ids, ids)
def test_different_texts_have_different_hashes(one: list[int], other: list[int]) -> None:
    """Order, length and every id count; a false alarm has a probability of 2**-64 a pair."""
    assert (extend(EMPTY, one) == extend(EMPTY, other)) == (one == other)


def test_a_position_that_is_not_there_has_no_hash() -> None:
    """Positions before 0 or past the end are errors, not somebody else's hash."""
    for position in (-1, 3):
        with pytest.raises(IndexError):
            PrefixHashes((1, 2)).at(position)
