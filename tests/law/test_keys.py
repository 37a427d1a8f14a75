"""The keys of the verifier's own code, enumerated: its uniforms are asked for by key and never given a value."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import pytest
import torch
from torch import Tensor

from pilotfish import noise
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from pilotfish.noise import Purpose
from tests.law.enumeration import Chance, TargetLaw, Tokens, largest_difference, text_law, total_variation
from tests.law.programs import keyed_law
from tests.law.reference import Decide
from tests.law.tables import Pair, draw_chain
from verifier.acceptance import Round, chain
from verifier.acceptance.chain import ChainRule, UniformOf, keyed
from verifier.acceptance.dispatch import BLOCK, TOKEN

PAIR = Pair(2, seed=23)


class Unknown(float):
    """A uniform of which only its key is known; comparing it asks chance."""

    chance: Chance
    key: Hashable

    def __lt__(self, threshold: float) -> bool:
        return self.chance.below(self.key, threshold)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Chance]:
    """The chance that answers for the noise; the test puts it here."""
    current: list[Chance] = []

    def uniform(seed: int, purpose: Purpose, position: int, node: int) -> float:
        unknown = Unknown(0.0)
        unknown.chance, unknown.key = current[-1], (seed, purpose, position, node)
        return unknown

    def draw(weights: Tensor, uniforms: Sequence[Unknown]) -> list[int]:
        return [
            unknown.chance.choose(unknown.key, row) for row, unknown in zip(weights.tolist(), uniforms, strict=True)
        ]

    monkeypatch.setattr(noise, "uniform", uniform)
    monkeypatch.setattr(chain, "draw", draw)
    return current


def deciding(rule: ChainRule, uniform_of: UniformOf, asked: list[Chance]) -> Decide:
    """The verifier's code as a decision to enumerate."""

    def decide(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
        asked[:] = [chance]
        laws = [target((*tokens, *draft.tokens[:kept])) for kept in range(len(draft) + 1)]
        law = torch.tensor(laws, dtype=torch.float64)
        round_ = Round(0, draft, Sampling(), Rule.BLOCK, 5, len(tokens))
        (outcome,) = chain.accept([round_], law, rule, uniform_of)
        return (*draft.tokens[: len(outcome.path)], outcome.token)

    return decide


@pytest.mark.parametrize("rule", [TOKEN, BLOCK], ids=["token", "block"])
@pytest.mark.parametrize("num_free", [(0, 0), (1, 0), (0, 1)])
def test_rounds_share_no_uniform(rule: ChainRule, num_free: tuple[int, int], asked: list[Chance]) -> None:
    """Two rounds of the verifier's code, with the keys it really uses, have the target's law."""
    law = keyed_law(draw_chain(PAIR, 2), deciding(rule, keyed, asked), PAIR.p, 5, num_free)
    assert largest_difference(law, text_law(PAIR.p, 5)) < 1e-12


def test_uniforms_keyed_by_position_are_caught(asked: list[Chance]) -> None:
    """The same code with the node's own position as the key shows the bias that base positions avoid."""

    def by_position(round_: Round, purpose: Purpose, node: int) -> float:
        return noise.uniform(round_.seed, purpose, round_.position + node, 0)

    law = keyed_law(draw_chain(PAIR, 2), deciding(BLOCK, by_position, asked), PAIR.p, 5)
    assert total_variation(law, text_law(PAIR.p, 5)) > 0.02
