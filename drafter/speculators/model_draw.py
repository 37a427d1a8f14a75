"""From the logits of a draft step to its nodes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from enum import Enum, auto

import torch
from torch import Tensor

from drafter.speculators import Ask
from pilotfish import noise, sampling
from pilotfish.distribution import Distribution, draw
from pilotfish.draft import Draft
from pilotfish.messages import Open, Rule
from pilotfish.noise import Purpose

logger = logging.getLogger(__name__)

NUM_COUPLED_IDS = 1024  # noise is drawn for so many of the likeliest ids; what lies beyond is not drafted


class Way(Enum):
    """How a node is chosen."""

    LIKELIEST = auto()  # without chance: one-hot
    COUPLED = auto()  # the largest log q + the noise that `match` adds there: only the id is sent
    QUANTISED = auto()  # drawn from the quantised law, which is sent


def way(start: Open) -> Way:
    """How a session's nodes are chosen: what its rule will accept most of."""
    if start.sampling.is_greedy:
        return Way.LIKELIEST
    if start.is_coupled:
        return Way.COUPLED
    # `match` draws without looking at the draft, so no id is more often right than the likeliest
    return Way.LIKELIEST if start.rule is Rule.MATCH else Way.QUANTISED


class Drawer:
    """Draws one node for each row of a step; rows do not influence one another."""

    def __init__(self, vocabulary_size: int, num_ids: int, num_bits: int) -> None:
        self._vocabulary_size = vocabulary_size  # ids from here on are padding, and never drawn
        self._num_ids = num_ids
        self._num_bits = num_bits

    def draw(self, logits: Tensor, asks: Sequence[Ask], starts: Sequence[Open]) -> list[Draft]:
        """The next node of each ask, as a draft of one node.

        It is empty where the node is not worth drawing, and where the logits have no law (NaN). Whether it is worth
        drawing is asked when its law is known, before anything is drawn from it.

        Args:
            logits: [R, V or more].
            asks: R of them.
            starts: of their sessions.
        """
        logits = logits[:, : self._vocabulary_size]
        nodes = [Draft.EMPTY] * len(asks)
        for kind, choose in (
            (Way.LIKELIEST, self._likeliest),
            (Way.COUPLED, self._coupled),
            (Way.QUANTISED, self._quantised),
        ):
            rows = [row for row, start in enumerate(starts) if way(start) is kind]
            if rows:
                part = logits if len(rows) == len(logits) else logits[rows]
                chosen = choose(part, [asks[row] for row in rows], [starts[row] for row in rows])
                for row, node in zip(rows, chosen, strict=True):
                    nodes[row] = node
        if num_unsound := sum(
            not node.tokens and not ask.survival.is_over for node, ask in zip(nodes, asks, strict=True)
        ):
            logger.warning("%d of %d rows of a draft step have no law (NaN or infinite)", num_unsound, len(nodes))
        return nodes

    def _likeliest(self, logits: Tensor, asks: Sequence[Ask], starts: Sequence[Open]) -> list[Draft]:
        tokens, is_sound = sampling.greedy(logits)
        temperatures = [start.sampling.temperature or 1.0 for start in starts]
        nodes = [
            ask.chain([token]) if sound and ask.draws(probability) else Draft.EMPTY
            for ask, token, sound, probability in zip(
                asks, tokens.tolist(), is_sound.tolist(), _largest(logits, temperatures), strict=True
            )
        ]
        if any(ask.runners_up is not None for ask in asks):
            weights, ids = _scaled(logits, temperatures).softmax(-1).topk(2)
            _tell_runners_up(asks, nodes, ids, weights)
        return nodes

    def _coupled(self, logits: Tensor, asks: Sequence[Ask], starts: Sequence[Open]) -> list[Draft]:
        law = sampling.probabilities(logits, [start.sampling for start in starts])
        values, ids = law.topk(min(NUM_COUPLED_IDS, law.shape[-1]))
        keys = [
            noise.key(start.seed, Purpose.COUPLED, ask.position + ask.draft.num_levels)
            for ask, start in zip(asks, starts, strict=True)
        ]
        exponentials = noise.exponentials_of(torch.tensor(keys, device=ids.device)[:, None], ids)
        weights = values.double() / exponentials
        best = weights.argmax(-1, keepdim=True)  # the largest log q + Gumbel
        tokens = ids.gather(1, best)[:, 0].tolist()
        nodes = [
            ask.chain([token]) if sound and ask.draws(probability) else Draft.EMPTY
            for ask, token, sound, probability in zip(asks, tokens, _is_sound(law), values[:, 0].tolist(), strict=True)
        ]
        if any(ask.runners_up is not None for ask in asks) and weights.shape[-1] > 1:
            weights, best = weights.topk(2)
            _tell_runners_up(asks, nodes, ids.gather(1, best), weights)
        return nodes

    def _quantised(self, logits: Tensor, asks: Sequence[Ask], starts: Sequence[Open]) -> list[Draft]:
        law = sampling.probabilities(logits, [start.sampling for start in starts])
        is_sound = _is_sound(law)
        # the row of an unsound law is replaced by one that is sound, and its node left out
        laws = sampling.quantised(law.nan_to_num(nan=1.0), self._num_ids, self._num_bits)
        return [
            _drawn(ask, start, q) if sound and ask.draws(max(q.weights) / q.total) else Draft.EMPTY
            for ask, start, q, sound in zip(asks, starts, laws, is_sound, strict=True)
        ]


def _drawn(ask: Ask, start: Open, q: Distribution) -> Draft:
    return ask.chain([draw(q, noise.uniform(start.seed, Purpose.DRAFT, ask.position, len(ask.draft)))], [q])


def _tell_runners_up(asks: Sequence[Ask], nodes: Sequence[Draft], ids: Tensor, weights: Tensor) -> None:
    """Tell of each node that was drawn which token came second.

    Args:
        ids: [R, 2], the heaviest two.
        weights: [R, 2], of them.
    """
    for ask, node, pair, (first, second) in zip(asks, nodes, ids.tolist(), weights.tolist(), strict=True):
        if node.tokens:
            other = pair[1] if pair[0] == node.tokens[0] else pair[0]  # of two that weigh the same either is first
            ask.tells(other, second / (first + second))


def _scaled(logits: Tensor, temperatures: Sequence[float]) -> Tensor:
    return logits.float() / torch.tensor(temperatures, device=logits.device)[:, None]


def _largest(logits: Tensor, temperatures: Sequence[float]) -> list[float]:
    """The largest probability of each row at its temperature; NaN where the row has no law."""
    largest: list[float] = _scaled(logits, temperatures).softmax(-1).amax(-1).tolist()
    return largest


def _is_sound(law: Tensor) -> list[bool]:
    sound: list[bool] = (~law[:, 0].isnan()).tolist()
    return sound
