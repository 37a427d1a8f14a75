from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pilotfish import noise, sampling
from pilotfish.distribution import Distribution, draw_coupled
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from pilotfish.noise import Purpose
from verifier.acceptance import Round, accept
from verifier.acceptance.draw import draw, draw_by_noise

NUM_DRAWS = 40_000
# Hoeffding: a share of 40,000 independent draws is off by more than this with probability 1e-9.
SLACK = math.sqrt(math.log(2e9) / (2 * NUM_DRAWS))
NUM_IDS = 12


def random_law(seed: int, peak: float) -> Tensor:
    """A law over NUM_IDS ids, float64."""
    return (torch.randn(NUM_IDS, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * peak).softmax(-1)


def agreement(p: Tensor, q: Tensor) -> float:
    """Probability that argmax(log p + g) = argmax(log q + g), by a race of exponentials."""
    return sum(1.0 / float(torch.maximum(p / p[token], q / q[token]).sum()) for token in range(NUM_IDS))


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("peak", [0.5, 2.0])
def test_coupled_draft_agrees_between_its_bounds(seed: int, peak: float) -> None:
    """Drafting with the noise of `match` agrees with a probability between (1 - TV)/(1 + TV) and 1 - TV."""
    p, q = random_law(seed, peak), random_law(1000 + seed, peak)
    variation = float((p - q).abs().sum()) / 2
    expected = agreement(p, q)
    assert (1 - variation) / (1 + variation) - 1e-12 <= expected <= 1 - variation + 1e-12
    keys = [noise.key(seed, Purpose.COUPLED, position) for position in range(NUM_DRAWS)]
    same = torch.tensor(draw_by_noise(p.expand(NUM_DRAWS, -1), keys)) == torch.tensor(
        draw_by_noise(q.expand(NUM_DRAWS, -1), keys)
    )
    assert abs(float(same.double().mean()) - expected) < SLACK


def test_drafter_and_verifier_draw_with_the_same_noise() -> None:
    """A drafter whose q is p proposes, for every seed and position, exactly the token that `match` commits."""
    q = Distribution(tuple(range(5)), (3, 1, 7, 2, 5))
    p = torch.tensor([[weight / q.total for weight in q.weights]], dtype=torch.float64)
    for seed in range(200):
        drafted = draw_coupled(q, noise.gumbel(seed, 30 + seed, q.ids))
        assert draw_by_noise(p, [noise.key(seed, Purpose.COUPLED, 30 + seed)]) == [drafted]


def test_noise_draws_from_p() -> None:
    """Shares of 40,000 draws are within Hoeffding's bound of p; false alarm under 2e-8."""
    p = random_law(3, 1.5)
    keys = [noise.key(9, Purpose.COUPLED, position) for position in range(NUM_DRAWS)]
    counts = torch.bincount(torch.tensor(draw_by_noise(p.expand(NUM_DRAWS, -1), keys)), minlength=NUM_IDS)
    assert (counts / NUM_DRAWS - p).abs().max() < SLACK


def test_noise_never_draws_what_has_no_probability() -> None:
    """Ids with p = 0 get no noise and are never drawn, whatever their number."""
    p = torch.zeros(500, 50, dtype=torch.float64)
    p[:, 31] = 1e-12
    assert set(draw_by_noise(p, list(range(500)))) == {31}


def test_inversion_divides_the_uniforms_by_weight() -> None:
    """A fine grid of uniforms selects each id as often as its weight says, to one step of the grid."""
    weights = torch.tensor([[0.0, 3.0, 0.0, 1.0, 2.0, 0.0]], dtype=torch.float64)
    drawn = draw(weights.expand(6000, -1), [(step + 0.5) / 6000 for step in range(6000)])
    assert torch.bincount(torch.tensor(drawn), minlength=6).tolist() == [0, 3000, 0, 1000, 2000, 0]
    assert draw(weights, [0.0]) == [1]
    assert draw(weights, [0.5 - 2.0**-53]) == [1]
    assert draw(weights, [0.5]) == [3]
    assert draw(weights, [1.0 - 2.0**-53]) == [4]


@dataclass(frozen=True)
class Writer:
    """Writes a text under `match` with a table over the last token, drafting in one of several ways."""

    seed: int
    temperature: float = 1.0

    def logits(self, token: int) -> Tensor:
        return torch.log(random_law(token + 500, 1.0))

    def draft(self, kind: str, text: list[int], gamma: int) -> Draft:
        tokens: list[int] = []
        for depth in range(gamma):
            last = (text + tokens)[-1]
            if kind == "coupled":
                q = sampling.probabilities(self.logits(last)[None] * 0.7, [Sampling(self.temperature)])
                tokens.append(draw_by_noise(q, [noise.key(self.seed, Purpose.COUPLED, len(text) + depth)])[0])
            elif kind == "adverse":
                tokens.append(int(self.logits(last).argmin()))
            else:
                tokens.append(int(self.logits(last).argmax()))
        if kind != "tree":
            return Draft.chain(tokens)
        # Every id as a child of the root, the likeliest continuation below the first of them.
        return Draft(tuple(range(NUM_IDS)) + tuple(tokens), (-1,) * NUM_IDS + (0,) * gamma, (None,) * (NUM_IDS + gamma))

    def write(self, kind: str, gamma: int, num_tokens: int = 30) -> tuple[list[int], int]:
        """The text and the number of rounds it took."""
        text, num_rounds = [0], 0
        while len(text) <= num_tokens:
            draft = self.draft(kind, text, gamma)
            before = [text[-1], *draft.tokens]
            logits = torch.stack([self.logits(token) for token in before])
            (outcome,) = accept([Round(0, draft, Sampling(self.temperature), Rule.MATCH, self.seed, len(text))], logits)
            text += [*(draft.tokens[node] for node in outcome.path), outcome.token]
            num_rounds += 1
        return text[: num_tokens + 1], num_rounds


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("temperature", [0.0, 0.8, 1.5])
def test_seeded_text_does_not_depend_on_the_draft(seed: int, temperature: float) -> None:
    """Under match a text is a function of seed and target: whoever drafts, however much, in whatever shape."""
    writer = Writer(seed, temperature)
    plain, num_rounds = writer.write("coupled", 0)
    assert num_rounds == 30
    for kind in ("coupled", "adverse", "likeliest", "tree"):
        for gamma in (1, 2, 3, 5):
            text, _ = writer.write(kind, gamma)
            assert text == plain


def test_coupled_drafts_are_accepted_more_often() -> None:
    """Ten texts at T = 1.5 take fewer rounds with coupled drafts than with the likeliest tokens."""
    rounds = {kind: sum(Writer(seed, 1.5).write(kind, 3)[1] for seed in range(10)) for kind in ("coupled", "likeliest")}
    assert rounds["coupled"] < 0.7 * rounds["likeliest"]


def test_unseeded_texts_differ() -> None:
    """50 sessions with seeds of their own at T = 1.5 do not all say the same."""
    assert len({tuple(Writer(seed, 1.5).write("adverse", 2, 10)[0]) for seed in range(50)}) > 40
