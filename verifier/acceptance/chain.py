"""What the rules for chains share: reading p where the draft has q, and drawing from the residual.

No dense q is ever made. Of p only the drafted tokens and the supports of q come to the host, in one transfer; the
decisions are a few numbers a node; then one row a round is read again to draw the last token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pilotfish import noise
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.noise import Purpose
from verifier.acceptance.draw import draw
from verifier.acceptance.rounds import Outcome, Round, node_bytes

UniformOf = Callable[[Round, Purpose, int], float]


@dataclass(frozen=True, slots=True)
class Chains:
    """p and q of a batch of chains, on the host: a list for each chain, or flat over the supports of all nodes."""

    p: list[list[float]]  # of each drafted token, given those above it
    q: list[list[float]]  # > 0
    support_p: Tensor  # [E] float64
    support_q: Tensor  # [E] float64
    support_node: Tensor  # [E] int64: index of the node, counted over all chains

    def residual_masses(self, scales: Sequence[float]) -> list[float]:
        """Sum of max(0, scale * p - q) over the vocabulary at each node, all chains in one list.

        Outside the support of q the sum is scale * (1 - p(support)).
        """
        scale = torch.tensor(scales, dtype=torch.float64)
        inside = (scale[self.support_node] * self.support_p - self.support_q).clamp_(min=0.0)
        p_outside = torch.ones_like(scale).index_add_(0, self.support_node, self.support_p, alpha=-1.0)
        masses: list[float] = (scale * p_outside.clamp_(min=0.0)).index_add_(0, self.support_node, inside).tolist()
        return masses


@dataclass(frozen=True, slots=True)
class ChainRule:
    """A rule for chains, as functions of p and q alone; chance comes in `keep`."""

    thresholds: Callable[[Chains], list[list[float]]]
    survivals: Callable[[Chains], list[list[float]]]  # P of each node, for the estimator
    scales: Callable[[Chains], list[list[float]]]  # what p is multiplied by in the residual after 0, 1, … nodes
    keep: Callable[[Sequence[float], Sequence[float]], int]  # thresholds, uniforms -> number of nodes


def keyed(round_: Round, purpose: Purpose, node: int) -> float:
    """The uniform of a node of a round: keyed by the *base position* of the round (docs/law.md says why)."""
    return noise.uniform(round_.seed, purpose, round_.position, node)


def accept(rounds: Sequence[Round], law: Tensor, rule: ChainRule, uniform_of: UniformOf = keyed) -> list[Outcome]:
    """Decide on rounds whose drafts are chains.

    Args:
        law: [R, V], p of the rows of all rounds.
    """
    chains = read_chains(rounds, law)
    thresholds, scales = rule.thresholds(chains), rule.scales(chains)
    num_kept = []
    for round_, chain in zip(rounds, thresholds, strict=True):
        uniforms = [uniform_of(round_, Purpose.ACCEPT, node) for node in range(len(round_.draft))]
        num_kept.append(rule.keep(chain, uniforms))
    weights = last_weights(rounds, law, num_kept, [scale[kept] for scale, kept in zip(scales, num_kept, strict=True)])
    tokens = draw(weights, [uniform_of(round_, Purpose.FINAL, 0) for round_ in rounds])
    return [
        Outcome(tuple(range(kept)), token, kept == len(round_.draft), node_bytes(survivals))
        for round_, kept, token, survivals in zip(rounds, num_kept, tokens, rule.survivals(chains), strict=True)
    ]


def read_chains(rounds: Sequence[Round], law: Tensor) -> Chains:
    """Gather p at the drafted tokens and at the supports of q."""
    rows: list[int] = []
    ids: list[int] = []
    weights: list[int] = []
    totals: list[int] = []
    sizes: list[int] = []
    for round_ in rounds:
        for node, q in enumerate(supports(round_.draft)):
            rows.append(round_.row(node - 1))
            ids.extend(q.ids)
            weights.extend(q.weights)
            totals.append(q.total)
            sizes.append(len(q.ids))
    node_of = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes, dtype=torch.int64))
    all_rows = torch.cat([torch.tensor(rows, dtype=torch.int64)[node_of], torch.tensor(rows, dtype=torch.int64)])
    all_ids = torch.tensor(ids + [token for round_ in rounds for token in round_.draft.tokens], dtype=torch.int64)
    p = law[all_rows.to(law.device), all_ids.to(law.device)].double().cpu()
    total = torch.tensor(totals, dtype=torch.float64)
    return Chains(
        p=_split(p[len(node_of) :].tolist(), rounds),
        q=[[_drafted(round_.draft, node) for node in range(len(round_.draft))] for round_ in rounds],
        support_p=p[: len(node_of)],
        support_q=torch.tensor(weights, dtype=torch.float64) / total[node_of],
        support_node=node_of,
    )


def last_weights(rounds: Sequence[Round], law: Tensor, num_kept: Sequence[int], scales: Sequence[float]) -> Tensor:
    """The law of the token after the kept nodes, up to a factor: max(0, scale * p - q), or p after the last node.

    Returns:
        [B, V] float64; p itself where the residual is all zero by rounding.
    """
    rows = [round_.row(kept - 1) for round_, kept in zip(rounds, num_kept, strict=True)]
    p = law[rows].double()
    index: list[int] = []
    ids: list[int] = []
    q_values: list[float] = []
    factors: list[float] = []
    for row, (round_, kept, scale) in enumerate(zip(rounds, num_kept, scales, strict=True)):
        is_rejected = kept < len(round_.draft)
        factors.append(scale if is_rejected else 1.0)
        if is_rejected:
            q = _support(round_.draft, kept)
            total = q.total
            index.extend([row] * len(q.ids))
            ids.extend(q.ids)
            q_values.extend(weight / total for weight in q.weights)
    if not index:
        return p
    weights = p * torch.tensor(factors, dtype=torch.float64, device=p.device)[:, None]
    where = (torch.tensor(index, device=p.device), torch.tensor(ids, device=p.device))
    at_support = weights[where] - torch.tensor(q_values, dtype=torch.float64, device=p.device)
    weights[where] = at_support.clamp_(min=0.0)
    return torch.where(weights.sum(-1, keepdim=True) > 0, weights, p)


def supports(draft: Draft) -> list[Distribution]:
    """What each node was drawn from; a node without q from itself."""
    return [_support(draft, node) for node in range(len(draft))]


def _support(draft: Draft, node: int) -> Distribution:
    return draft.q[node] or Distribution((draft.tokens[node],), (1,))


def _drafted(draft: Draft, node: int) -> float:
    q = draft.q[node]
    return 1.0 if q is None else q.probability(draft.tokens[node])


def _split(values: list[float], rounds: Sequence[Round]) -> list[list[float]]:
    remaining = iter(values)
    return [[next(remaining) for _ in range(len(round_.draft))] for round_ in rounds]
