from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pilotfish import sampling
from pilotfish.distribution import quantise
from pilotfish.messages import Sampling


def reference(logits: Sequence[float], parameters: Sampling) -> list[float]:
    """The law of one row, by sorting everything in double precision."""
    order = sorted(range(len(logits)), key=lambda token: (-logits[token], token))
    if parameters.is_greedy:
        return [float(token == order[0]) for token in range(len(logits))]
    weights = [math.exp((logit - max(logits)) / parameters.temperature) for logit in logits]
    order = order[: parameters.top_k]
    kept, reached = [], 0.0
    for token in order:
        if parameters.top_p is not None and reached >= parameters.top_p * math.fsum(weights[i] for i in order):
            break
        kept.append(token)
        reached += weights[token]
    total = math.fsum(weights[token] for token in kept)
    return [weights[token] / total if token in kept else 0.0 for token in range(len(logits))]


def rows(num_rows: int, num_ids: int, seed: int = 0, scale: float = 2.0) -> Tensor:
    """Logits with a long tail."""
    generator = torch.Generator().manual_seed(seed)
    tail = -torch.log(torch.arange(1, num_ids + 1, dtype=torch.float64))
    noise = torch.randn(num_rows, num_ids, generator=generator, dtype=torch.float64)
    return torch.stack([row[torch.randperm(num_ids, generator=generator)] for row in scale * noise + 1.2 * tail])


PARAMETERS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 0.3, 0.8, 1.0, 1.7]),
    top_k=st.sampled_from([None, 1, 2, 5, 300, 1000]),
    top_p=st.sampled_from([None, 1e-6, 0.3, 0.9, 0.999, 1.0]),
)


@given(st.lists(PARAMETERS, min_size=1, max_size=6), st.integers(0, 1000), st.sampled_from([3, 40, 700]))
def test_rows_of_a_batch_each_have_their_own_law(parameters: list[Sampling], seed: int, num_ids: int) -> None:
    """Any mixture of parameters gives, row by row, what sorting one row gives."""
    logits = rows(len(parameters), num_ids, seed)
    expected = torch.tensor([reference(row, own) for row, own in zip(logits.tolist(), parameters, strict=True)])
    assert torch.allclose(sampling.probabilities(logits, parameters).float(), expected, atol=1e-6)


@given(PARAMETERS, st.lists(st.integers(-2, 2), min_size=1, max_size=12))
def test_ties_are_kept_from_the_lowest_id_on(parameters: Sampling, logits: list[int]) -> None:
    """Where a cut falls among equal logits, the lowest ids stay, however they are laid out."""
    law = sampling.probabilities(torch.tensor([logits], dtype=torch.float64), [parameters])
    assert law[0].tolist() == pytest.approx(reference(logits, parameters), abs=1e-12)


@pytest.mark.parametrize(
    "parameters",
    [
        Sampling(top_p=0.9),
        Sampling(top_p=0.999),
        Sampling(top_k=7),
        Sampling(top_k=450),
        Sampling(top_k=300, top_p=0.4),
    ],
)
@pytest.mark.parametrize("scale", [20.0, 2.0, 0.2, 0.0])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("few", [0, sampling.FEW])
def test_only_what_is_over_is_cut(
    parameters: Sampling, scale: float, dtype: torch.dtype, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a cut falls, in steep rows and in flat ones, what is kept is the same as after sorting, ties too."""
    monkeypatch.setattr(sampling, "FEW", few)
    logits = (rows(5, 500, seed=3) * scale).round(decimals=1).to(dtype)
    law = sampling.probabilities(logits, [parameters] * 5)
    expected = torch.tensor([reference(row, parameters) for row in logits.double().tolist()], dtype=torch.float64)
    assert torch.equal(law > 0, expected.to(dtype) > 0)
    assert torch.allclose(law.double(), expected, atol=1e-6)


def test_a_row_without_a_law_harms_no_other() -> None:
    """A NaN, an infinity or nothing at all in one row leaves the other rows' laws as they are alone."""
    logits = rows(4, 60).float()
    logits[0, 3], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    for parameters in (Sampling(top_p=0.9), Sampling(top_k=5), Sampling(0.7, top_k=20, top_p=0.5)):
        law = sampling.probabilities(logits, [parameters] * 4)
        assert law[:3].isnan().all()
        assert torch.equal(law[3:], sampling.probabilities(logits[3:], [parameters]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_float64_is_kept_and_the_rest_becomes_float32(dtype: torch.dtype) -> None:
    """The law is at least float32, and rows sum to 1 in it."""
    law = sampling.probabilities(rows(3, 50).to(dtype), [Sampling(0.7, top_p=0.9)] * 3)
    assert law.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert torch.allclose(law.sum(-1), torch.ones(3, dtype=law.dtype), atol=1e-6)


@pytest.mark.parametrize(
    "parameters", [Sampling(1.3, top_k=1), Sampling(1.0, top_p=1e-6), Sampling(1e-6), Sampling(1e-300), Sampling(0.0)]
)
@pytest.mark.parametrize("scale", [2.0, 1e4, 1e-3])
def test_parameters_that_mean_greedy_are_greedy(parameters: Sampling, scale: float) -> None:
    """top_k = 1, a vanishing top_p and a vanishing temperature all leave the likeliest id, without infinities."""
    logits = (rows(4, 300, seed=5) * scale).float()
    law = sampling.probabilities(logits, [parameters] * 4)
    assert torch.equal(law.argmax(-1), sampling.greedy(logits).tokens)
    assert torch.equal(law.amax(-1), torch.ones(4))


def test_likeliest_of_tied_ids_is_the_lowest() -> None:
    """At T = 0 the first of the largest logits is taken."""
    logits = torch.tensor([[1.0, 3.0, 3.0], [2.0, 2.0, 2.0]])
    assert sampling.greedy(logits).tokens.tolist() == [1, 0]
    assert sampling.probabilities(logits, [Sampling(0.0)] * 2).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("parameters", [Sampling(), Sampling(0.0), Sampling(top_k=2), Sampling(top_p=0.9)])
def test_row_without_a_law_is_told_apart(bad: float, parameters: Sampling) -> None:
    """NaN or +infinity anywhere makes that row NaN, and no other; nothing but -infinity too."""
    logits = rows(4, 20).float()
    logits[1, 13] = bad
    logits[2] = -math.inf
    law = sampling.probabilities(logits, [parameters] * 4)
    assert law[1].isnan().all()
    assert law[2].isnan().all()
    alone = sampling.probabilities(logits[[0, 3]], [parameters] * 2)
    assert torch.equal(law[[0, 3]], alone)
    assert sampling.greedy(logits).is_sound.tolist() == [True, False, False, True]


@pytest.mark.parametrize("parameters", [Sampling(), Sampling(0.7, top_k=5), Sampling(0.7, top_p=0.9)])
def test_forbidden_ids_have_probability_zero(parameters: Sampling) -> None:
    """A logit of -infinity is probability 0 and disturbs nothing."""
    logits = rows(2, 30).float()
    logits[:, ::2] = -math.inf
    law = sampling.probabilities(logits, [parameters] * 2)
    assert (law[:, ::2] == 0).all()
    assert torch.allclose(law.sum(-1), torch.ones(2))


def test_input_is_left_as_it_was() -> None:
    """The logits belong to the caller."""
    logits = rows(3, 40).float()
    before = logits.clone()
    sampling.probabilities(logits, [Sampling(0.0), Sampling(top_k=3), Sampling(top_p=0.5)])
    assert torch.equal(logits, before)


def test_rows_do_not_depend_on_one_another() -> None:
    """A row among others is bit-equal to the row alone."""
    logits = rows(6, 3000, seed=8).float()
    parameters = [
        Sampling(temperature, top_k, top_p)
        for temperature in (0.5, 1.2)
        for top_k, top_p in ((None, None), (40, None), (None, 0.95))
    ]
    together = sampling.probabilities(logits, parameters)
    for row in range(6):
        assert torch.equal(together[row], sampling.probabilities(logits[row : row + 1], [parameters[row]])[0])


@pytest.mark.parametrize(("num_ids", "num_bits"), [(1, 8), (16, 4), (64, 16), (10_000, 8)])
def test_quantised_rows_are_what_quantise_says(num_ids: int, num_bits: int) -> None:
    """The batched form gives each row the weights that the plain function gives it."""
    law = sampling.probabilities(rows(4, 500, seed=9), [Sampling(0.8)] * 4)
    for q, row in zip(sampling.quantised(law, num_ids, num_bits), law.tolist(), strict=True):
        best = sorted(range(500), key=lambda token: -row[token])[:num_ids]
        assert q == quantise(best, [row[token] for token in best], num_bits)
