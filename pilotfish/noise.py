"""Chance as a function: uniforms and Gumbel noise from (seed, purpose, position, node or id).

Nothing here has state, so any service can draw any number again, in any order. The arithmetic is on 64-bit integers
that wrap, and is the same for Python ints, numpy arrays and torch tensors of int64: all get the same bits. (The
logarithms of the Gumbel noise may differ in the last bit between libraries.)

What is keyed by what is part of the law (docs/law.md): draws of `token` and `block` by the base position of the round
and the node, the noise of `match` and of coupled drafting by the token's own position and its id.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import IntEnum
from typing import Any


class Purpose(IntEnum):
    """What a number is for; numbers for different purposes are independent."""

    DRAFT = 1  # drawing a draft node: base position of the round, node
    ACCEPT = 2  # keeping a draft node: base position of the round, node
    FINAL = 3  # the correction, the bonus, or a token without draft: base position of the round, node 0
    COUPLED = 4  # Gumbel noise of `match` and of coupled drafting: the token's own position, id
    EXPLORE = 5  # decisions that have nothing to do with the text


_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # constants as signed 64-bit integers
_FIRST = 0xBF58476D1CE4E5B9 - (1 << 64)
_SECOND = 0x94D049BB133111EB - (1 << 64)
_STEP = 2.0**-53  # between two neighbours of the uniforms


def uniform(seed: int, purpose: Purpose, position: int, node: int) -> float:
    """A number in [0, 1), a multiple of 2**-53."""
    value: int = _unsigned_shift(bits(seed, purpose, position, node), 11)
    return value * _STEP


def exponentials(seed: int, position: int, ids: Any) -> Any:
    """-log of the open-interval uniforms of the ids at a position: float64, > 0, the shape and kind of `ids`.

    The id with the largest p / exponential is the one with the largest log p + Gumbel.

    Args:
        ids: an int64 tensor or array, or a sequence of ints (then a list is returned).
    """
    return exponentials_of(key(seed, Purpose.COUPLED, position), ids)


def exponentials_of(start: Any, ids: Any) -> Any:
    """`exponentials` where the keys are known: `start` is one of them, or a tensor of them as long as `ids`."""
    if isinstance(ids, Sequence):
        return [-math.log(_open(_items(start, token))) for token in ids]
    return -_log(_open(_items(start, ids)))


def gumbel(seed: int, position: int, ids: Any) -> Any:
    """Standard Gumbel noise of the ids at a position, in float64; see `exponentials`."""
    noise = exponentials(seed, position, ids)
    return [-math.log(value) for value in noise] if isinstance(noise, list) else -_log(noise)


def bits(seed: int, purpose: Purpose, position: int, items: Any) -> Any:
    """64 bits for each of the items (nodes or ids), as signed integers."""
    return _items(key(seed, purpose, position), items)


def key(seed: int, purpose: Purpose, position: int) -> int:
    """Where the numbers of a purpose at a position start: 64 bits, signed. A seed counts with its lowest 64 bits."""
    of_purpose = _mix(_wrap(_mix(_wrap(seed)) + _wrap(int(purpose) * _GOLDEN)))
    return int(_mix(_wrap(of_purpose + _wrap((position + 1) * _GOLDEN))))


def _items(start: Any, items: Any) -> Any:
    """SplitMix64's outputs number `items` from `start` on."""
    return _mix(_wrap(_wrap((items + 1) * _GOLDEN) + start))


def _mix(value: Any) -> Any:
    """The finaliser of SplitMix64: a bijection of 64-bit integers that leaves no pattern."""
    value = _wrap((value ^ _unsigned_shift(value, 30)) * _FIRST)
    value = _wrap((value ^ _unsigned_shift(value, 27)) * _SECOND)
    return value ^ _unsigned_shift(value, 31)


def _unsigned_shift(value: Any, num_bits: int) -> Any:
    return (value >> num_bits) & ((1 << (64 - num_bits)) - 1)


def _wrap(value: Any) -> Any:
    """What 64 bits hold of a Python int, signed; arrays and tensors wrap by themselves."""
    return ((value + (1 << 63)) & ((1 << 64) - 1)) - (1 << 63) if isinstance(value, int) else value


def _open(value: Any) -> Any:
    """52 of the 64 bits as a float64 in the open interval (0, 1), exact."""
    return (_unsigned_shift(value, 12) * 2 + 1) * _STEP if isinstance(value, int) else _open_array(value)


def _open_array(value: Any) -> Any:
    odd = _unsigned_shift(value, 12) * 2 + 1  # < 2**53: exact in float64
    return (odd.double() if hasattr(odd, "double") else odd.astype("float64")) * _STEP


def _log(value: Any) -> Any:
    if hasattr(value, "log"):
        return value.log()
    import numpy  # the array came from it

    return numpy.log(value)
