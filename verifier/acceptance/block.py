"""The rule `block` for chains: keep the longest beginning that may be kept as a whole.

Sun et al. 2024, "Block verification accelerates speculative decoding" (arXiv:2403.10444).
"""

from __future__ import annotations

from collections.abc import Sequence

from verifier.acceptance.chain import Chains


def survivals(chains: Chains) -> list[list[float]]:
    """P_i = min(1, P_{i-1} * p_i / q_i) of each node, with P_0 = 1."""
    result = []
    for chain_p, chain_q in zip(chains.p, chains.q, strict=True):
        survival, chain = 1.0, []
        for p, q in zip(chain_p, chain_q, strict=True):
            survival = min(1.0, survival * p / q)
            chain.append(survival)
        result.append(chain)
    return result


def scales(chains: Chains) -> list[list[float]]:
    """What p is multiplied by in the residual after so many nodes were kept: P of the last one."""
    return [[1.0, *chain] for chain in survivals(chains)]


def thresholds(chains: Chains) -> list[list[float]]:
    """h_i of each node: the chain is kept up to the *largest* i with u_i < h_i."""
    chain_scales = scales(chains)
    masses = chains.residual_masses([scale for chain in chain_scales for scale in chain[:-1]])
    result, first = [], 0
    for chain in chain_scales:
        num_nodes = len(chain) - 1
        # The mass below node i (counted from 1) is that of node i + 1's distribution; the last node has none below.
        inner = [_threshold(chain[i], masses[first + i]) for i in range(1, num_nodes)]
        result.append([*inner, *chain[1:][-1:]])
        first += num_nodes
    return result


def keep(thresholds: Sequence[float], uniforms: Sequence[float]) -> int:
    """How many nodes are kept: all are looked at, from the last on."""
    for kept in range(len(thresholds), 0, -1):
        if uniforms[kept - 1] < thresholds[kept - 1]:
            return kept
    return 0


def _threshold(survival: float, mass: float) -> float:
    """S / (S + 1 - P); 1 where that is 0/0."""
    return 1.0 if survival >= 1.0 else mass / (mass + 1.0 - survival)
