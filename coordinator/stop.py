"""Stop strings in a stream: the answer ends before the first that is complete, wherever tokens and blocks break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """What a piece of text made certain."""

    text: str  # belongs to the answer, whatever follows
    is_stopped: bool  # a stop string is complete; `text` ends before it


class StopStrings:
    """Looks for stop strings, and holds back only as much text as could be the beginning of one."""

    __slots__ = ("_held", "_longest", "_stops")

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""  # the longest end of the text so far that begins a stop string

    def feed(self, piece: str) -> Cut:
        """Take the next piece of the text. After a stop nothing may be fed."""
        if not self._stops:
            return Cut(piece, False)
        # A match that begins before the held text would have made the held text longer: this window has them all.
        window = self._held + piece
        if (start := self._first_stop(window)) is not None:
            self._held = ""
            return Cut(window[:start], True)
        num_certain = len(window) - self._num_held(window)
        self._held = window[num_certain:]
        return Cut(window[:num_certain], False)

    def finish(self) -> str:
        """The text still held back: nothing follows, so it begins no stop string."""
        held, self._held = self._held, ""
        return held

    def _first_stop(self, window: str) -> int | None:
        """Where the stop string begins that is complete first; of two complete at once, the one that began first."""
        found = [(start + len(stop), start) for stop in self._stops if (start := window.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _num_held(self, window: str) -> int:
        for length in range(min(self._longest - 1, len(window)), 0, -1):
            end = window[-length:]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0
