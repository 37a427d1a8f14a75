"""Synthetic acceptance keeps drafts at the rates it was given, whatever they say."""

from __future__ import annotations

import torch

from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from verifier.acceptance import Round, synthetic

RATES = (0.8, 0.5)


def test_rates_by_depth() -> None:
    """Of 4,000 drafts of three wrong tokens each depth holds at its rate, the last rate serving all deeper ones.

    Five standard errors are .032 at most; seeds are fixed, the false-alarm rate over seeds is about 2e-6.
    """
    draft = Draft.chain([1, 1, 1])
    logits = torch.zeros(4, 3)
    logits[:, 0] = 9.0  # the target would never say 1
    kept = [0, 0, 0]
    for seed in range(4000):
        round_ = Round(0, draft, Sampling(0.0), Rule.MATCH, seed, 7)
        outcome = synthetic(RATES)([round_], logits)[0]
        assert outcome.path == tuple(range(len(outcome.path)))
        assert outcome.token == 0
        assert outcome.is_bonus == (len(outcome.path) == 3)
        for depth in outcome.path:
            kept[depth] += 1
    assert abs(kept[0] / 4000 - 0.8) < 0.032
    assert abs(kept[1] / kept[0] - 0.5) < 0.045
    assert abs(kept[2] / kept[1] - 0.5) < 0.065


def test_plain_rounds_are_decided_by_the_law() -> None:
    """A round without a draft draws from the target as always."""
    logits = torch.tensor([[0.0, 9.0, 0.0]])
    round_ = Round(0, Draft.EMPTY, Sampling(0.0), Rule.MATCH, 1, 7)
    assert synthetic(RATES)([round_], logits)[0].token == 1
