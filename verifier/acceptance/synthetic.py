"""Acceptance at given rates instead of by the law: to learn what hardware would gain before there is a drafter.

The text that comes out means nothing, and everything that carries it says so (`is_lossy`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

from torch import Tensor

from pilotfish.draft import Draft
from pilotfish.noise import Purpose, uniform
from verifier.acceptance.dispatch import accept
from verifier.acceptance.rounds import Outcome, Round, node_bytes

Accept: TypeAlias = Callable[[Sequence[Round], Tensor], list[Outcome]]


def synthetic(rates: Sequence[float]) -> Accept:
    """Keep the node at each depth of a chain with a given probability, whatever it is; then draw from p as always.

    Args:
        rates: of the first node, the second given the first, …; deeper ones have the last rate.
    """

    def accept_synthetic(rounds: Sequence[Round], logits: Tensor) -> list[Outcome]:
        paths = [_path(round_, rates) for round_ in rounds]
        ends = [
            replace(round_, first_row=round_.row(path[-1] if path else -1), draft=Draft.EMPTY, position=round_.position)
            for round_, path in zip(rounds, paths, strict=True)
        ]
        drawn = accept(ends, logits)
        return [
            replace(
                outcome,
                path=path,
                is_bonus=len(path) == len(round_.draft),
                node_probabilities=node_bytes(_survival(len(round_.draft), rates)),
            )
            if outcome.error is None
            else outcome
            for round_, path, outcome in zip(rounds, paths, drawn, strict=True)
        ]

    return accept_synthetic


def _path(round_: Round, rates: Sequence[float]) -> tuple[int, ...]:
    """Nodes that are kept: down the first child of each, as far as chance says."""
    path: list[int] = []
    node: int | None = 0 if round_.draft.tokens else None
    while node is not None:
        rate = rates[min(len(path), len(rates) - 1)]
        if uniform(round_.seed, Purpose.ACCEPT, round_.position, node) >= rate:
            break
        path.append(node)
        node = next(iter(round_.draft.children(node)), None)
    return tuple(path)


def _survival(num_nodes: int, rates: Sequence[float]) -> list[float]:
    survival, product = [], 1.0
    for depth in range(num_nodes):
        product *= rates[min(depth, len(rates) - 1)]
        survival.append(product)
    return survival
