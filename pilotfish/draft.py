"""The draft: a tree of proposed tokens below the last committed one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pilotfish.distribution import Distribution


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens, the parent of each, and what each was drawn from.

    Node i hangs below `parents[i] < i`; -1 is the last committed token. A chain has the parents -1, 0, 1, …
    What a peer sent is checked in `wire`; here a draft is sound.

    A *part* of a draft (nodes travel as they are drawn) counts its parents in the whole draft: it means something
    only once it was appended to what came before it.
    """

    EMPTY: ClassVar[Draft]

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    q: tuple[Distribution | None, ...] = ()  # None: one-hot, the token was chosen without chance

    @staticmethod
    def empty() -> Draft:
        """The draft that proposes nothing."""
        return Draft.EMPTY

    @staticmethod
    def chain(tokens: Sequence[int], q: Sequence[Distribution | None] | None = None) -> Draft:
        """A chain; without `q` every node is one-hot."""
        num_nodes = len(tokens)
        return Draft(tuple(tokens), tuple(range(-1, num_nodes - 1)), (None,) * num_nodes if q is None else tuple(q))

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def is_chain(self) -> bool:
        """Whether every node is the only child of the one before it; true of the empty draft."""
        return self.parents == tuple(range(-1, len(self) - 1))

    @property
    def has_q(self) -> bool:
        """Whether any node was drawn by chance."""
        return any(q is not None for q in self.q)

    @property
    def depths(self) -> tuple[int, ...]:
        """Depth of each node, 0 for a child of the last committed token: its token's index is `position + depth`."""
        depths: list[int] = []
        for parent in self.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        return tuple(depths)

    @property
    def num_levels(self) -> int:
        """Length of the longest path."""
        return max(self.depths, default=-1) + 1

    def children(self, node: int) -> tuple[int, ...]:
        """Nodes that hang below `node` (-1: the last committed token), in order."""
        return tuple(child for child in range(node + 1, len(self)) if self.parents[child] == node)

    def child(self, node: int, token: int) -> int | None:
        """First child of `node` that carries `token`."""
        return next((child for child in self.children(node) if self.tokens[child] == token), None)

    def path(self, node: int) -> tuple[int, ...]:
        """Nodes from the first level down to `node`, itself included; () for -1."""
        nodes: list[int] = []
        while node >= 0:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """The path to every leaf."""
        inner = set(self.parents)
        return tuple(self.path(node) for node in range(len(self)) if node not in inner)

    def ancestor_mask(self) -> tuple[int, ...]:
        """A bit mask for each node: bit j is set where node j is an ancestor of it or the node itself."""
        masks: list[int] = []
        for node, parent in enumerate(self.parents):
            masks.append((0 if parent < 0 else masks[parent]) | 1 << node)
        return tuple(masks)

    def append(self, part: Draft) -> Draft:
        """This draft and the next part of it."""
        return Draft(self.tokens + part.tokens, self.parents + part.parents, self.q + part.q)

    def parts(self, num_nodes: int) -> Iterator[tuple[int, Draft]]:
        """The draft in parts of at most `num_nodes` nodes, each with the index of its first node."""
        for first in range(0, len(self), num_nodes):
            rows = slice(first, first + num_nodes)
            yield first, Draft(self.tokens[rows], self.parents[rows], self.q[rows])

    def truncate(self, num_nodes: int) -> Draft:
        """The first `num_nodes` nodes: parents come first, so this is a draft again."""
        if num_nodes >= len(self):
            return self
        num_nodes = max(num_nodes, 0)
        return Draft(self.tokens[:num_nodes], self.parents[:num_nodes], self.q[:num_nodes])

    def rest(self, first_node: int) -> Draft:
        """The part from a node on."""
        return Draft(self.tokens[first_node:], self.parents[first_node:], self.q[first_node:])

    def find(self, tokens: Sequence[int]) -> int | None:
        """Node whose path carries exactly `tokens`; -1 for no tokens, None where there is no such path."""
        node = -1
        for token in tokens:
            child = self.child(node, token)
            if child is None:
                return None
            node = child
        return node

    def after(self, committed: Sequence[int]) -> tuple[Draft, int] | None:
        """What of the draft is left when `committed` came to be committed without it.

        Returns:
            The nodes below the path that carries `committed`, and the number of levels that path used (all of
            `committed`); None if no path does. Each node keeps its q: it was drawn given the path above it, which
            is what was committed, by chance that the commit did not see. So the law stays exact if acceptance
            starts afresh (see docs/law.md).
        """
        root = self.find(committed)
        if root is None:
            return None
        if root < 0:
            return self, 0
        index = {root: -1}
        kept: list[int] = []
        for node in range(root + 1, len(self)):
            if self.parents[node] in index:
                index[node] = len(kept)
                kept.append(node)
        tail = Draft(
            tuple(self.tokens[node] for node in kept),
            tuple(index[self.parents[node]] for node in kept),
            tuple(self.q[node] for node in kept),
        )
        return tail, len(committed)


Draft.EMPTY = Draft()
