"""The verifier's batched code, enumerated: every draft, every side of every threshold, every last token."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor

from pilotfish import sampling
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from pilotfish.noise import Purpose
from tests.law.enumeration import Law, Tokens, compose, enumerate_law, extend
from tests.law.tables import DrawDraft, Pair
from verifier.acceptance import Outcome, Round, chain, match
from verifier.acceptance.chain import ChainRule


@dataclass(frozen=True)
class Case:
    """One draft at one context."""

    context: Tokens
    probability: float  # of drawing it there
    round: Round


@dataclass(frozen=True)
class Trial:
    """One case with the uniforms, or the draws, that it is decided with."""

    case: int
    probability: float
    uniforms: tuple[float, ...]
    final: float = 0.0


def batched_law(pair: Pair, draw: DrawDraft, rule: ChainRule | None, dtype: torch.dtype, num_tokens: int) -> Law:
    """The law of the text after two rounds that the batched code decides; rule None is `match`."""
    cases, logits = _cases(pair, draw)
    p = sampling.probabilities(logits.to(dtype), [case.round.sampling for case in cases for _ in case.round.rows])
    assert p.dtype == dtype
    outcomes = _match_outcomes(cases, p) if rule is None else _chain_outcomes(cases, p, rule)
    laws: dict[Tokens, Law] = {}
    for index, probability, outcome in outcomes:
        case = cases[index]
        tokens = (*(case.round.draft.tokens[node] for node in outcome.path), outcome.token)
        law = laws.setdefault(case.context, {})
        law[tokens] = law.get(tokens, 0.0) + case.probability * probability
    return extend(compose(lambda text: laws[text[-2:]], 2), pair.p, num_tokens)


def expected_num_kept(pair: Pair, draw: DrawDraft, rule: ChainRule) -> dict[Tokens, float]:
    """Expected number of nodes that the batched code keeps, at every context."""
    cases, logits = _cases(pair, draw)
    p = sampling.probabilities(logits, [case.round.sampling for case in cases for _ in case.round.rows])
    expected: dict[Tokens, float] = {}
    for index, probability, outcome in _chain_outcomes(cases, p, rule):
        case = cases[index]
        kept = case.probability * probability * len(outcome.path)
        expected[case.context] = expected.get(case.context, 0.0) + kept
    return expected


def _cases(pair: Pair, draw: DrawDraft) -> tuple[list[Case], Tensor]:
    cases: list[Case] = []
    rows: list[list[float]] = []
    for context in [context for size in range(3) for context in product(range(pair.num_ids), repeat=size)]:
        for draft, probability in enumerate_law(lambda chance, context=context: draw(chance, context)).items():  # type: ignore[misc]
            cases.append(Case(context, probability, Round(len(rows), draft, Sampling(), Rule.MATCH, 0, len(context))))
            rows.extend(_log(pair.p(context + _path_tokens(draft, node))) for node in range(-1, len(draft)))
    return cases, torch.tensor(rows, dtype=torch.float64)


def _path_tokens(draft: Draft, node: int) -> Tokens:
    return tuple(draft.tokens[ancestor] for ancestor in draft.path(node))


def _log(probabilities: Sequence[float]) -> list[float]:
    return [math.log(probability) if probability else -math.inf for probability in probabilities]


def _chain_outcomes(cases: list[Case], p: Tensor, rule: ChainRule) -> list[tuple[int, float, Outcome]]:
    rounds = [case.round for case in cases]
    chains = chain.read_chains(rounds, p)
    sides = [
        trial for index, thresholds in enumerate(rule.thresholds(chains)) for trial in _sides_of(index, thresholds)
    ]
    thresholds, scales = rule.thresholds(chains), rule.scales(chains)
    num_kept = [rule.keep(thresholds[trial.case], trial.uniforms) for trial in sides]
    weights = chain.last_weights(
        [rounds[trial.case] for trial in sides],
        p,
        num_kept,
        [scales[trial.case][kept] for trial, kept in zip(sides, num_kept, strict=True)],
    )
    trials = [
        replace(trial, probability=trial.probability * weight, final=middle)
        for trial, row in zip(sides, weights.tolist(), strict=True)
        for weight, middle in _cells(row)
    ]
    marked = [replace(rounds[trial.case], seed=index) for index, trial in enumerate(trials)]

    def uniform_of(round_: Round, purpose: Purpose, node: int) -> float:
        trial = trials[round_.seed]
        return trial.final if purpose is Purpose.FINAL else trial.uniforms[node]

    outcomes = chain.accept(marked, p, rule, uniform_of)
    return [(trial.case, trial.probability, outcome) for trial, outcome in zip(trials, outcomes, strict=True)]


def _sides_of(case: int, thresholds: Sequence[float]) -> list[Trial]:
    """A uniform in the middle of each side of each threshold, and how likely these sides are together."""
    trials = []
    for below in product((True, False), repeat=len(thresholds)):
        pairs = list(zip(below, thresholds, strict=True))
        probability = math.prod(threshold if is_below else 1.0 - threshold for is_below, threshold in pairs)
        if probability > 0.0:
            uniforms = tuple(threshold / 2 if is_below else (1.0 + threshold) / 2 for is_below, threshold in pairs)
            trials.append(Trial(case, probability, uniforms))
    return trials


def _cells(weights: Sequence[float]) -> list[tuple[float, float]]:
    """Size and middle of each part of [0, 1) that selects one id."""
    total, start, cells = sum(weights), 0.0, []
    for weight in weights:
        if weight > 0.0:
            cells.append((weight / total, (start + weight / 2) / total))
        start += weight
    return cells


def _match_outcomes(cases: list[Case], p: Tensor) -> list[tuple[int, float, Outcome]]:
    """All sequences of draws, one for each level; the draws that a walk did not come to are counted once."""
    num_levels = max(case.round.draft.num_levels for case in cases) + 1
    scripts = list(product(range(p.shape[1]), repeat=num_levels))
    rounds = [replace(case.round, position=0) for case in cases for _ in scripts]
    level = 0
    active = list(range(len(rounds)))

    def draw(law: Tensor, keys: Sequence[int]) -> list[int]:
        nonlocal level, active
        tokens = [scripts[index % len(scripts)][level] for index in active]
        probability[active] *= law[range(len(active)), tokens].double()
        drafts = [(rounds[index].draft, nodes[index]) for index in active]
        children = [draft.child(node, token) for (draft, node), token in zip(drafts, tokens, strict=True)]
        for index, child in zip(active, children, strict=True):
            nodes[index] = -1 if child is None else child
        active = [index for index, child in zip(active, children, strict=True) if child is not None]
        level += 1
        return tokens

    probability = torch.ones(len(rounds), dtype=torch.float64)
    nodes = [-1] * len(rounds)
    outcomes = match.accept(rounds, p, draw)
    return [
        (index // len(scripts), weight, outcome)
        for index, (weight, outcome) in enumerate(zip(probability.tolist(), outcomes, strict=True))
        if not any(scripts[index % len(scripts)][len(outcome.path) + 1 :])
    ]
