"""Speculators that are right, wrong, late or lying on purpose: what the whole project is tested with.

They know the target's law, a table model, and are started as any speculator of one's own, in the drafter's process:

    python -m drafter --speculators tests.drafters:Part --options table=target.json,m=2

| class     | proposes                                                             | options            |
|-----------|----------------------------------------------------------------------|--------------------|
| `Perfect` | what the target says; at T > 0 drawn from p, with p as q             | table              |
| `Adverse` | the target's least likely token, one-hot                             | table              |
| `Noise`   | tokens drawn honestly from a random q                                | table              |
| `Part`    | the target's likeliest token m times a round, then the least likely  | table, m           |
| `Fork`    | a tree: below every node of the likeliest path the two likeliest     | table              |
| `Late`    | as `Perfect`, but each step takes so long                            | table, delay_s     |
| `Silent`  | nothing, and never says so                                           | table              |
| `Liar`    | ids or q that cannot be, or a q that was not drawn from              | table, lie         |
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Self

from drafter.speculators import Ask, Facts, Speculator
from pilotfish import noise
from pilotfish.distribution import Distribution, draw, quantise
from pilotfish.draft import Draft
from pilotfish.messages import Open, Rule, Sampling, SessionId
from pilotfish.noise import Purpose
from pilotfish.tablefile import TableFile

if TYPE_CHECKING:
    from drafter.settings import DrafterSettings

NUM_BITS = 30  # of a weight in a q: p to nine digits


class Node(NamedTuple):
    """A token and what it was drawn from."""

    token: int
    q: Distribution | None = None


class TableSpeculator(Speculator):
    """Knows the target's table and every session's text; draws one node a step."""

    is_instant: ClassVar[bool] = True

    def __init__(self, table: TableFile) -> None:
        self.table = table
        self.starts: dict[SessionId, Open] = {}
        self.texts: dict[SessionId, list[int]] = {}

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        return cls(TableFile.load(settings.option("table").removeprefix("table:")))

    @property
    def facts(self) -> Facts:
        size = self.table.vocabulary_size
        return Facts(self.table.name, self.table.vocabulary_hash, size, size, self.table.context_length)

    def open(self, start: Open) -> None:
        self.starts[start.session] = start
        self.texts[start.session] = list(start.tokens)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self.texts[session] += tokens

    def close(self, session: SessionId) -> None:
        del self.starts[session], self.texts[session]

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        return [self._chain(ask, self.node(ask, self.starts[ask.session])) for ask in asks]

    def _chain(self, ask: Ask, node: Node | None) -> Draft:
        return Draft.EMPTY if node is None else ask.chain([node.token], [node.q])

    def node(self, ask: Ask, start: Open) -> Node | None:
        """The next node of a draft."""
        raise NotImplementedError

    def law(self, ask: Ask, more: Sequence[int] = ()) -> tuple[float, ...]:
        """The target's law after the draft so far and `more`, before sampling parameters."""
        context = [*self.texts[ask.session], *ask.draft.tokens, *more]
        return self.table.probabilities(context, len(self.starts[ask.session].prompt))


def likeliest(law: Sequence[float]) -> int:
    return law.index(max(law))


def least_likely(law: Sequence[float]) -> int:
    return law.index(min(law))


def processed(law: Sequence[float], sampling: Sampling) -> list[float]:
    """The law after temperature (over 0), top_k and top_p, up to a factor; ties are kept from the lowest id on."""
    largest = max(law)
    weights = [(probability / largest) ** (1 / sampling.temperature) for probability in law]
    kept = sorted(range(len(weights)), key=lambda token: (-weights[token], token))[: sampling.top_k]
    if sampling.top_p is not None:
        mass, wanted = 0.0, sampling.top_p * sum(weights[token] for token in kept)
        for count, token in enumerate(kept, 1):
            mass += weights[token]
            if mass >= wanted:
                kept = kept[:count]
                break
    return [weight if token in set(kept) else 0.0 for token, weight in enumerate(weights)]


class Perfect(TableSpeculator):
    """Says what the target says: every draft holds under `match`, and under the q rules since q is p."""

    def node(self, ask: Ask, start: Open) -> Node | None:
        law = self.law(ask)
        if start.sampling.is_greedy or (start.rule is Rule.MATCH and not start.is_coupled):
            return Node(likeliest(law))
        weights = processed(law, start.sampling)
        ids = [token for token, weight in enumerate(weights) if weight > 0]
        if start.is_coupled:
            exponentials = noise.exponentials(start.seed, ask.position + len(ask.draft), ids)
            scores = [weights[token] / exponential for token, exponential in zip(ids, exponentials, strict=True)]
            return Node(ids[scores.index(max(scores))])
        q = quantise(ids, [weights[token] for token in ids], NUM_BITS)
        return Node(draw(q, noise.uniform(start.seed, Purpose.DRAFT, ask.position, len(ask.draft))), q)


class Adverse(TableSpeculator):
    """Always the least likely token."""

    def node(self, ask: Ask, start: Open) -> Node | None:
        return Node(least_likely(self.law(ask)))


class Noise(TableSpeculator):
    """A random q over all ids, drawn from honestly."""

    def node(self, ask: Ask, start: Open) -> Node | None:
        chance = random.Random(f"{start.seed} {ask.position} {ask.draft.tokens}")
        ids = tuple(range(self.table.vocabulary_size))
        q = Distribution(ids, tuple(chance.randrange(1, 1000) for _ in ids))
        return Node(draw(q, noise.uniform(start.seed, Purpose.DRAFT, ask.position, len(ask.draft))), q)


class Part(TableSpeculator):
    """Right m times in a round, then wrong."""

    def __init__(self, table: TableFile, m: int = 2) -> None:
        super().__init__(table)
        self.m = m

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        return cls(TableFile.load(settings.option("table").removeprefix("table:")), int(settings.option("m", "2")))

    def node(self, ask: Ask, start: Open) -> Node | None:
        law = self.law(ask)
        return Node(likeliest(law) if len(ask.draft) < self.m else least_likely(law))


class Fork(TableSpeculator):
    """A tree of one-hot nodes, in one step: the likeliest path, each of its nodes with a sibling."""

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        return [self._tree(ask) for ask in asks]

    def _tree(self, ask: Ask) -> Draft:
        tokens: list[int] = []
        parents: list[int] = []
        path: list[int] = []
        node = -1
        for _ in range(ask.num_levels):
            law = self.law(ask, path)
            first, second = sorted(range(len(law)), key=lambda token: -law[token])[:2]
            parents += [node, node]
            node = len(tokens)
            tokens += [first, second]
            path.append(first)
        return Draft(tuple(tokens), tuple(parents), (None,) * len(tokens))


class Late(Perfect):
    """Right, but each step takes `delay_s`. In a thread of its own, as what takes long must be."""

    is_instant: ClassVar[bool] = False

    def __init__(self, table: TableFile, delay_s: float = 0.5, wait: Callable[[float], object] | None = None) -> None:
        super().__init__(table)
        self.delay_s = delay_s
        self._wait = wait or threading.Event().wait

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        table = TableFile.load(settings.option("table").removeprefix("table:"))
        return cls(table, float(settings.option("delay_s", "0.5")))

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        self._wait(self.delay_s)
        return super().propose(asks)


class Silent(TableSpeculator):
    """Asks for more time, for ever; only its deadline ends a draft."""

    is_instant: ClassVar[bool] = False

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        return [None for _ in asks]


class Liar(TableSpeculator):
    """Sends what cannot be, or what looks as if it could.

    | lie         | each node                                                             |
    |-------------|-----------------------------------------------------------------------|
    | `id`        | an id just beyond the vocabulary, after one that is the likeliest      |
    | `large_id`  | 2**31 - 1                                                              |
    | `absent`    | a token that its own q gives no weight                                 |
    | `zero`      | a q whose weights are all 0                                            |
    | `twice`     | a q with an id twice                                                   |
    | `outside`   | a q with an id beyond the vocabulary                                   |
    | `shape`     | a q with more ids than weights                                         |
    | `claim`     | always the least likely token, as if it had had one chance in ten      |
    """

    def __init__(self, table: TableFile, lie: str = "id") -> None:
        super().__init__(table)
        self.lie = lie

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:
        return cls(TableFile.load(settings.option("table").removeprefix("table:")), settings.option("lie", "id"))

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        return [self._lie(ask) for ask in asks]

    def _lie(self, ask: Ask) -> Draft:
        size = self.table.vocabulary_size
        right, wrong = likeliest(self.law(ask)), least_likely(self.law(ask))
        first = len(ask.draft)
        lies: dict[str, tuple[int, Distribution | None]] = {
            "id": (size if first else right, None),
            "large_id": ((1 << 31) - 1, None),
            "absent": (right, Distribution(((right + 1) % size,), (1,))),
            "zero": (right, Distribution((right,), (0,))),
            "twice": (right, Distribution((right, right), (1, 1))),
            "outside": (right, Distribution((right, size), (1, 1))),
            "shape": (right, Distribution((right, (right + 1) % size), (1,))),
            "claim": (wrong, Distribution((wrong, right), (1, 9))),
        }
        token, q = lies[self.lie]
        return ask.chain([token], [q])
