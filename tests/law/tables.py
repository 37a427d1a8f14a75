"""Small targets and drafters whose laws are known: tables over the last two tokens."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from tests.law.enumeration import Chance, Tokens

DrawDraft = Callable[[Chance, Tokens], Draft]


@dataclass(frozen=True)
class Pair:
    """A target and a drafter: p and q of the next token, functions of the last two tokens."""

    num_ids: int
    seed: int
    num_bits: int = 12  # of the weights of q

    def p(self, tokens: Tokens) -> tuple[float, ...]:
        """What the target says; some ids have probability 0."""
        return _weights(self.num_ids, f"p{self.seed}", tokens[-2:])

    def q(self, tokens: Tokens) -> Distribution:
        """What the drafter draws from; some ids are not in it."""
        return weighted(_weights(self.num_ids, f"q{self.seed}", tokens[-2:]), self.num_bits)

    def guess(self, tokens: Tokens) -> int:
        """A token chosen without chance, not always a likely one."""
        return random.Random(f"guess{self.seed}{tokens[-2:]}").randrange(self.num_ids)


def weighted(probabilities: Sequence[float], num_bits: int) -> Distribution:
    """The distribution in integer weights."""
    weights = [round(probability * (1 << num_bits)) for probability in probabilities]
    kept = [(token, weight) for token, weight in enumerate(weights) if weight]
    return Distribution(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))


def draw_chain(pair: Pair, gamma: int, one_hot: Sequence[bool] = ()) -> DrawDraft:
    """A drafter of chains; nodes marked one-hot are guessed instead of drawn."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        base = len(tokens)
        drafted: list[int] = []
        qs: list[Distribution | None] = []
        for node in range(gamma):
            context = (*tokens, *drafted)
            if node < len(one_hot) and one_hot[node]:
                drafted.append(pair.guess(context))
                qs.append(None)
            else:
                q = pair.q(context)
                drafted.append(q.ids[chance.choose(("draft", base, node), q.weights)])
                qs.append(q)
        return Draft.chain(drafted, qs)

    return draw


def draw_tree(pair: Pair, parents: Sequence[int]) -> DrawDraft:
    """A drafter of trees of one shape, each node drawn by itself: two siblings may carry the same token."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        base, draft = len(tokens), Draft.EMPTY
        for node, parent in enumerate(parents):
            q = pair.q((*tokens, *(draft.tokens[ancestor] for ancestor in draft.path(parent))))
            token = q.ids[chance.choose(("draft", base, node), q.weights)]
            draft = draft.append(Draft((token,), (parent,), (q,)))
        return draft

    return draw


@cache
def _weights(num_ids: int, name: str, context: Tokens) -> tuple[float, ...]:
    """Uneven probabilities; a third of the contexts lack an id."""
    generator = random.Random(f"{name}{context}")
    weights = [generator.expovariate(1.0) ** 1.5 + 0.02 for _ in range(num_ids)]
    if generator.random() < 1 / 3 and num_ids > 2:
        weights[generator.randrange(num_ids)] = 0.0
    return tuple(weight / sum(weights) for weight in weights)
