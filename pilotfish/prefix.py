"""Rolling hash of a committed prefix: two services that agree on it agree on every token before a position."""

from __future__ import annotations

from array import array
from collections.abc import Iterable

EMPTY = 0  # hash of no tokens

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def extend(value: int, tokens: Iterable[int]) -> int:
    """The hash after `tokens`, from the hash before them: h' = splitmix64(h ^ (token + golden)).

    Not a secret and not proof against an adversary: it finds bugs and lost messages, with 64 bits of certainty.
    """
    for token in tokens:
        value = (value ^ (token + _GOLDEN)) + _GOLDEN & _MASK
        value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
        value ^= value >> 31
    return value


class PrefixHashes:
    """The hash at every position of one growing sequence."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._values = array("Q", (EMPTY,))
        self.extend(tokens)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self._values) - 1

    @property
    def last(self) -> int:
        """The hash of the whole sequence."""
        return self._values[-1]

    def at(self, position: int) -> int:
        """The hash of the first `position` tokens.

        Raises:
            IndexError: there are fewer tokens.
        """
        if not 0 <= position <= len(self):
            raise IndexError(f"no hash at position {position} of a sequence of {len(self)} tokens")
        return self._values[position]

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens."""
        value = self._values[-1]
        for token in tokens:
            value = extend(value, (token,))
            self._values.append(value)

    def truncate(self, position: int) -> None:
        """Forget every token from `position` on."""
        del self._values[position + 1 :]
