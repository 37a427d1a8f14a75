"""Prompt lookup: what followed the last tokens when they occurred before, follows again. No model, no torch.

Saxena 2023 (github.com/apoorvumang/prompt-lookup-decoding); also known as n-gram speculation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from drafter.speculators import Ask, Speculator
from pilotfish.draft import Draft
from pilotfish.messages import Open, SessionId

if TYPE_CHECKING:
    from typing import Self

    from drafter.settings import DrafterSettings


MAX_AGREEMENT: Final = 32  # tokens; that texts agree even further back says nothing more


class Match(NamedTuple):
    """Where the last `length` tokens of a text occurred before."""

    start: int  # index of the token that followed them there
    length: int


class NgramIndex:
    """A text and where each of its n-grams last occurred; O(max_n) per token and per look-up.

    An n-gram enters the index when the token after it is appended, so whatever is found has a continuation, and the
    text's own end is never found.
    """

    def __init__(self, min_n: int, max_n: int) -> None:
        if not 1 <= min_n <= max_n:
            raise ValueError(f"need 1 <= min_n <= max_n, got min_n {min_n} and max_n {max_n}")
        self.tokens: list[int] = []
        self._lengths = range(max_n, min_n - 1, -1)  # longest first
        self._next: dict[tuple[int, ...], int] = {}  # n-gram -> index of the token after its last occurrence

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            end = len(self.tokens)
            for length in self._lengths:
                if length <= end:
                    self._next[tuple(self.tokens[end - length :])] = end
            self.tokens.append(token)

    def find(self) -> Match | None:
        """The most recent earlier occurrence of the longest suffix that has one."""
        end = len(self.tokens)
        for length in self._lengths:
            if length <= end:
                start = self._next.get(tuple(self.tokens[end - length :]))
                if start is not None:
                    return Match(start, length)
        return None

    def agreement(self) -> int:
        """How many tokens before the match are those before the text's end; `MAX_AGREEMENT` at most, 0: no match."""
        match = self.find()
        if match is None:
            return 0
        length, most = match.length, min(match.start, MAX_AGREEMENT)
        while length < most and self.tokens[match.start - 1 - length] == self.tokens[-1 - length]:
            length += 1
        return length

    def continuation(self, num_tokens: int) -> list[int]:
        """What followed the match, at most `num_tokens`; [] without a match.

        Where it reaches the end of the text it goes on with what it copied itself: the text is taken to be periodic.
        """
        match = self.find()
        if match is None:
            return []
        copied = self.tokens[match.start : match.start + num_tokens]
        period = len(self.tokens) - match.start
        while len(copied) < num_tokens:
            copied.append(copied[len(copied) - period])
        return copied


class NgramSpeculator(Speculator):
    """Prompt lookup over each session's own text."""

    is_instant: ClassVar[bool] = True

    def __init__(self, min_n: int = 2, max_n: int = 5) -> None:
        NgramIndex(min_n, max_n)  # refuses a senseless range now rather than at the first session
        self._min_n, self._max_n = min_n, max_n
        self._indices: dict[SessionId, NgramIndex] = {}

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        return cls(settings.min_n, settings.max_n)

    def open(self, start: Open) -> None:
        index = self._indices[start.session] = NgramIndex(self._min_n, self._max_n)
        index.append(start.tokens)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self._indices[session].append(tokens)

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        return [self._copy(ask, self._indices[ask.session]) for ask in asks]

    def _copy(self, ask: Ask, index: NgramIndex) -> Draft:
        """What followed the match, as far as it is worth it: the longer two texts agree, the likelier they go on so."""
        num_agreed, num_levels = index.agreement(), 0
        while num_agreed and num_levels < ask.num_levels and ask.draws(_probability(num_agreed + num_levels)):
            num_levels += 1
        return ask.chain(index.continuation(num_levels))

    def close(self, session: SessionId) -> None:
        del self._indices[session]


def _probability(num_agreed: int) -> float:
    """That two texts which agree in so many tokens have the next one in common: as after so many successes in a row."""
    return (num_agreed + 1) / (num_agreed + 2)
