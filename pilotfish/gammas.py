"""A table of γ by batch size, the field's usual baseline: `1:8,4:4,16:2,64:0`."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

MAX_GAMMA_BOUND: Final = 1024
_ROW: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,9})")


@dataclass(frozen=True, slots=True)
class GammaTable:
    """γ by how many sessions run at a verifier. A single number is a table of one row."""

    rows: tuple[tuple[int, int], ...]  # (from so many sessions on, γ), ascending, the first from 1 on

    @staticmethod
    def fixed(gamma: int) -> GammaTable:
        """The same γ however many there are."""
        return GammaTable(((1, gamma),))

    @staticmethod
    def parse(text: str) -> GammaTable:
        """Read `4`, or `SESSIONS:GAMMA,…`.

        Raises:
            ValueError: it is neither.
        """
        text = text.strip()
        rows = GammaTable.fixed(int(text)).rows if text.isascii() and text.isdigit() else _rows(text)
        if most := next((gamma for _, gamma in rows if gamma > MAX_GAMMA_BOUND), None):
            raise ValueError(f"γ of {most} is over {MAX_GAMMA_BOUND}, the most there can be")
        return GammaTable(rows)

    @property
    def most(self) -> int:
        """The largest γ of all rows."""
        return max(gamma for _, gamma in self.rows)

    def gamma(self, num_sessions: int) -> int:
        """γ where so many sessions run."""
        return self.rows[max(0, bisect_right(self.rows, (num_sessions, MAX_GAMMA_BOUND)) - 1)][1]

    def __str__(self) -> str:
        if len(self.rows) == 1:
            return str(self.rows[0][1])
        return ",".join(f"{start}:{gamma}" for start, gamma in self.rows)


def _rows(text: str) -> tuple[tuple[int, int], ...]:
    remedy = "write a number of tokens, or SESSIONS:GAMMA with commas, such as 1:8,4:4,16:2,64:0"
    rows = []
    for entry in text.split(","):
        match = _ROW.fullmatch(entry.strip())
        if match is None:
            raise ValueError(f"{entry.strip()!r} is no row; {remedy}")
        rows.append((int(match[1]), int(match[2])))
    if rows[0][0] != 1:
        raise ValueError(f"the first row is from {rows[0][0]} sessions on; it must be from 1 on, such as 1:8")
    for (before, _), (after, _) in pairwise(rows):
        if after <= before:
            raise ValueError(f"{after} sessions come after {before}; write the rows in ascending order")
    return tuple(rows)
