"""Everything that a broken peer or a bad line may do to frames, at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.cases.meddler import Cut


@dataclass(slots=True)
class Chaos:
    """A `Meddle` that does each thing with its own chance, the same in every run for one seed."""

    seed: int
    duplicate: float = 0.0  # the frame comes twice
    replay: float = 0.0  # an older frame comes again before it
    reorder: float = 0.0  # its items come in another order
    drop: float = 0.0  # it does not come at all
    garbage: float = 0.0  # a frame like it, with values that cannot be, comes before it
    cut: float = 0.0  # it is lost and the stream breaks
    most_cuts: int = 4  # and no more
    counts: Counter[str] = field(default_factory=Counter)
    _chance: random.Random = field(init=False)
    _past: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed)

    def __call__(self, frame: Any) -> Sequence[Any]:
        """What is passed on for a frame."""
        passed: list[Any] = []
        if self.counts["cut"] < self.most_cuts and self._happens("cut"):
            raise Cut
        if self._past and self._happens("replay"):
            passed.append(self._chance.choice(self._past))
        if self._happens("garbage"):
            passed.append(self._spoilt(frame))
        if not self._happens("drop"):
            passed += [self._shuffled(frame) if self._happens("reorder") else frame]
        if self._happens("duplicate"):
            passed.append(frame)
        self._past = [*self._past[-20:], frame]
        return passed

    def _happens(self, what: str) -> bool:
        happens = self._chance.random() < float(getattr(self, what))
        self.counts[what] += happens
        return happens

    def _copy(self, frame: Any) -> Any:
        copy = type(frame)()
        copy.CopyFrom(frame)
        return copy

    def _items(self, frame: Any) -> Any:
        return frame.items if hasattr(frame, "items") else frame.answers

    def _shuffled(self, frame: Any) -> Any:
        copy = self._copy(frame)
        items = list(self._items(copy))
        self._chance.shuffle(items)
        del self._items(copy)[:]
        self._items(copy).extend(items)
        return copy

    def _spoilt(self, frame: Any) -> Any:
        """The frame with one thing in every item that makes no sense."""
        copy = self._copy(frame)
        for item in self._items(copy):
            self._spoil(item)
        return copy

    def _spoil(self, item: Any) -> None:
        chance, header = self._chance, item.header
        kind = item.WhichOneof("kind")
        match chance.randrange(7):
            case 0:
                header.session = chance.randbytes(chance.choice([0, 3, 16, 40]))
            case 1:
                header.position = chance.choice([0, header.position + chance.randrange(1, 9), 2**63])
            case 2:
                header.prefix_hash = chance.getrandbits(64)
                header.incarnation = header.incarnation if kind == "close" else chance.getrandbits(64)
            case 3:
                header.incarnation = chance.getrandbits(64)
            case 4 if kind in {"work", "part"}:
                draft = getattr(item, kind).draft
                draft.tokens.extend(chance.choice([[2**31], [3] * 500, [1, 2**32 - 1]]))
            case 5 if kind in {"work", "part"}:
                getattr(item, kind).first_node = chance.choice([1, 7, 2**32 - 1])
                header.incarnation = chance.getrandbits(64)
            case _:
                item.ClearField("kind" if kind is None else kind)
                header.session = chance.randbytes(16)
