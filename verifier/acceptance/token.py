"""The rule `token` for chains: keep x while u < min(1, p(x)/q(x)).

Leviathan et al. 2023 (arXiv:2211.17192), Chen et al. 2023 (arXiv:2302.01318).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from verifier.acceptance.chain import Chains


def thresholds(chains: Chains) -> list[list[float]]:
    """min(1, p/q) of each node of each chain: node i is kept if all before are and u_i is under it."""
    return [
        [min(1.0, p / q) for p, q in zip(chain_p, chain_q, strict=True)]
        for chain_p, chain_q in zip(chains.p, chains.q, strict=True)
    ]


def survivals(chains: Chains) -> list[list[float]]:
    """Probability that each node is kept, given the draft."""
    return [list(accumulate(chain, mul)) for chain in thresholds(chains)]


def scales(chains: Chains) -> list[list[float]]:
    """What p is multiplied by in the residual after so many nodes were kept: always 1."""
    return [[1.0] * (len(chain) + 1) for chain in chains.p]


def keep(thresholds: Sequence[float], uniforms: Sequence[float]) -> int:
    """How many nodes are kept: those before the first that fails."""
    decisions = zip(thresholds, uniforms, strict=True)
    return next((node for node, (threshold, u) in enumerate(decisions) if not u < threshold), len(thresholds))
