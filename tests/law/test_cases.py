"""What went wrong in other decoders, through the door `accept` with the noise that the services use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product

import pytest
import torch
from scipy import stats
from torch import Tensor

from pilotfish import noise, sampling
from pilotfish.distribution import Distribution, draw
from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from pilotfish.noise import Purpose
from tests.law.enumeration import Law, Tokens, text_law
from tests.law.tables import Pair
from verifier.acceptance import Outcome, Round, accept, chain
from verifier.acceptance.dispatch import BLOCK, TOKEN

NUM_RUNS = 20_000
JUST_UNDER_ONE = 1.0 - 2.0**-53
PAIR = Pair(5, seed=40)
Drafter = Callable[[int, Tokens], Draft]  # seed, committed tokens


def log(probabilities: Sequence[float]) -> list[float]:
    return [math.log(probability) if probability else -math.inf for probability in probabilities]


def tempered(probabilities: Sequence[float], temperature: float) -> list[float]:
    return sampling.probabilities(torch.tensor([log(probabilities)], dtype=torch.float64), [Sampling(temperature)])[
        0
    ].tolist()


def drawn_chain(gamma: int, q_of: Callable[[Tokens], Distribution]) -> Drafter:
    """Draws as a drafter draws: keyed by the base position and the node."""
    known: dict[Tokens, Distribution] = {}

    def draft(seed: int, tokens: Tokens) -> Draft:
        drafted: list[int] = []
        qs = []
        for node in range(gamma):
            context = (*tokens, *drafted)[-2:]
            q = known.setdefault(context, q_of(context)) if context not in known else known[context]
            drafted.append(draw(q, noise.uniform(seed, Purpose.DRAFT, len(tokens), node)))
            qs.append(q)
        return Draft.chain(drafted, qs)

    return draft


def perfect(gamma: int, temperature: float) -> Drafter:
    """Draws from the target's own law, in 16 bits."""

    def q_of(context: Tokens) -> Distribution:
        p = torch.tensor([tempered(PAIR.p(context), temperature)], dtype=torch.float64)
        return sampling.quantised(p, PAIR.num_ids, 16)[0]

    return drawn_chain(gamma, q_of)


def adverse(gamma: int) -> Drafter:
    """Proposes the target's least likely token, without chance."""

    def draft(seed: int, tokens: Tokens) -> Draft:
        drafted: list[int] = []
        for _ in range(gamma):
            p = PAIR.p((*tokens, *drafted))
            drafted.append(p.index(min(p)))
        return Draft.chain(drafted)

    return draft


def run(rule: Rule, parameters: Sampling, draft: Drafter, num_tokens: int) -> list[tuple[Tokens, int]]:
    """Texts of NUM_RUNS sessions, all in the same passes, with the tokens committed in their first round."""
    texts: list[Tokens] = [()] * NUM_RUNS
    first = [0] * NUM_RUNS
    while True:
        active = [seed for seed, text in enumerate(texts) if len(text) < num_tokens]
        if not active:
            return list(zip(texts, first, strict=True))
        rounds: list[Round] = []
        contexts: list[Tokens] = []
        for seed in active:
            drafted = draft(seed, texts[seed])
            rounds.append(Round(len(contexts), drafted, parameters, rule, seed, len(texts[seed])))
            paths = [drafted.path(node) for node in range(-1, len(drafted))]
            contexts += [(*texts[seed], *(drafted.tokens[node] for node in path))[-2:] for path in paths]
        outcomes = accept(rounds, logits_of(contexts))
        for round_, outcome in zip(rounds, outcomes, strict=True):
            assert outcome.error is None
            tokens = (*(round_.draft.tokens[node] for node in outcome.path), outcome.token)
            first[round_.seed] = first[round_.seed] or len(tokens)
            texts[round_.seed] += tokens


def logits_of(contexts: list[Tokens]) -> Tensor:
    distinct = {context: index for index, context in enumerate(dict.fromkeys(contexts))}
    table = torch.tensor([log(PAIR.p(context)) for context in distinct], dtype=torch.float64)
    return table[[distinct[context] for context in contexts]]


def p_value(texts: Sequence[Tokens], law: Law) -> float:
    """Chi-square of counted texts against their law; cells that expect fewer than 5 are one cell."""
    counts = Counter(texts)
    assert set(counts) <= set(law)
    large = [text for text, probability in law.items() if probability * len(texts) >= 5]
    observed = [counts[text] for text in large]
    expected = [law[text] * len(texts) for text in large]
    if len(texts) - sum(expected) > 5:
        observed.append(len(texts) - sum(observed))
        expected.append(len(texts) - sum(expected))
    scale = sum(observed) / sum(expected)
    return float(stats.chisquare(observed, [value * scale for value in expected]).pvalue)


@pytest.mark.parametrize(
    ("rule", "temperature", "draft"),
    [
        (Rule.MATCH, 0.8, drawn_chain(3, PAIR.q)),
        (Rule.TOKEN, 0.8, drawn_chain(3, PAIR.q)),
        (Rule.BLOCK, 0.8, drawn_chain(3, PAIR.q)),
        (Rule.BLOCK, 0.8, adverse(2)),
        (Rule.BLOCK, 0.3, perfect(3, 0.3)),
        (Rule.TOKEN, 1.0, perfect(2, 1.7)),
        (Rule.BLOCK, 1.7, drawn_chain(2, PAIR.q)),
    ],
)
def test_first_three_tokens_follow_the_target(rule: Rule, temperature: float, draft: Drafter) -> None:
    """Whatever the rule, the temperature and the drafter, 20,000 texts have the target's law; false alarm 1e-4."""
    texts = [text[:3] for text, _ in run(rule, Sampling(temperature), draft, 3)]
    law = text_law(lambda tokens: tempered(PAIR.p(tokens), temperature), 3)
    assert p_value(texts, law) > 1e-4


def test_chi_square_sees_a_wrong_law() -> None:
    """The same texts do not pass for those of a temperature 0.05 away: the test above has power."""
    texts = [text[:3] for text, _ in run(Rule.BLOCK, Sampling(0.8), drawn_chain(2, PAIR.q), 3)]
    assert p_value(texts, text_law(lambda tokens: tempered(PAIR.p(tokens), 0.85), 3)) < 1e-4


def test_perfect_drafter_gives_two_tokens_a_round() -> None:
    """With one node and q = p both tokens of a round are kept, and the second follows p given the first."""
    p = {context: (0.5, 0.25, 0.25) if sum(context) % 2 else (0.125, 0.5, 0.375) for context in contexts_of(3)}
    exact = Distribution((0, 1, 2), (4, 2, 2)), Distribution((0, 1, 2), (1, 4, 3))
    rounds: list[Round] = []
    rows: list[list[float]] = []
    for seed in range(NUM_RUNS):
        q = exact[0] if seed % 2 else exact[1]
        context: Tokens = (seed % 2,)
        token = draw(q, noise.uniform(seed, Purpose.DRAFT, 1, 0))
        rounds.append(Round(len(rows), Draft.chain([token], [q]), Sampling(), Rule.BLOCK, seed, 1))
        rows += [log(p[context]), log(p[(*context, token)])]
    outcomes = accept(rounds, torch.tensor(rows, dtype=torch.float64))
    assert all(outcome.path == (0,) and outcome.is_bonus for outcome in outcomes)
    assert {outcome.node_probabilities for outcome in outcomes} <= {b"\xff", b"\xfe"}
    texts = [
        (round_.seed % 2, round_.draft.tokens[0], outcome.token)
        for round_, outcome in zip(rounds, outcomes, strict=True)
    ]
    law: Law = {
        (start, first, second): 0.5 * p[(start,)][first] * p[(start, first)][second]
        for start, first, second in product(range(2), range(3), range(3))
    }
    assert p_value(texts, law) > 1e-4


def contexts_of(num_ids: int) -> list[Tokens]:
    return [context for size in range(3) for context in product(range(num_ids), repeat=size)]


def test_tree_with_two_children_a_node() -> None:
    """Under match the first token and the second given the first have the target's law; false alarm 1e-4."""

    def draft(seed: int, tokens: Tokens) -> Draft:
        # Two siblings may carry the same token, as a drafter that draws them independently would have it.
        drawn = [int(noise.uniform(seed, Purpose.DRAFT, len(tokens), node) * PAIR.num_ids) for node in range(6)]
        return Draft(tuple(drawn), (-1, -1, 0, 0, 1, 1), (None,) * 6)

    runs = run(Rule.MATCH, Sampling(), draft, 2)
    assert p_value([text[:2] for text, _ in runs], text_law(PAIR.p, 2)) > 1e-4
    assert {size for _, size in runs} == {1, 2, 3}


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_token_chosen_without_chance_is_kept_with_its_probability(rule: chain.ChainRule) -> None:
    """A one-hot draft is accepted with p(x), at every depth."""
    p = torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]], dtype=torch.float64)
    rounds = [Round(0, Draft.chain([0, 1]), Sampling(), Rule.TOKEN, 0, 0)]
    thresholds = rule.thresholds(chain.read_chains(rounds, p))[0]
    kept = [0.0, 0.0, 0.0]
    for sides in product((True, False), repeat=2):
        uniforms = [side / 2 if below else 0.99 for side, below in zip(thresholds, sides, strict=True)]
        weight = math.prod(side if below else 1 - side for side, below in zip(thresholds, sides, strict=True))
        kept[rule.keep(thresholds, uniforms)] += weight
    assert kept == pytest.approx([0.75, 0.125, 0.125], abs=1e-15)


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize("parameters", [Sampling(1.3, top_k=1), Sampling(top_p=1e-6), Sampling(1e-6), Sampling(0.0)])
def test_parameters_that_mean_greedy_commit_the_greedy_ids(rule: Rule, parameters: Sampling) -> None:
    """Under every rule they keep the likeliest ids, and correct the first token that is not."""
    logits = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
    best = logits.argmax(-1).tolist()
    worst = int(logits[2].argmin())
    right = accept([Round(0, Draft.chain(best[:4], [full(40)] * 4), parameters, rule, 3, 9)], logits)
    assert right == [Outcome((0, 1, 2, 3), best[4], True, b"\xff" * 4)]
    wrong = Draft.chain([*best[:2], worst, best[3]], [full(40)] * 4)
    assert accept([Round(0, wrong, parameters, rule, 3, 9)], logits) == [
        Outcome((0, 1), best[2], False, b"\xff\xff\x00\x00")
    ]


def full(num_ids: int) -> Distribution:
    return Distribution(tuple(range(num_ids)), (1,) * num_ids)


def decide(
    rule: chain.ChainRule, p: Sequence[Sequence[float]], draft: Draft, accept_u: float, final_u: float
) -> Outcome:
    """One round with given uniforms."""
    rounds = [Round(0, draft, Sampling(), Rule.TOKEN, 0, 0)]

    def uniform_of(round_: Round, purpose: Purpose, node: int) -> float:
        return final_u if purpose is Purpose.FINAL else accept_u

    return chain.accept(rounds, torch.tensor(p, dtype=torch.float64), rule, uniform_of)[0]


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
@pytest.mark.parametrize("q", [Distribution((0, 1), (1, 1)), None])
def test_token_without_probability_is_never_kept(rule: chain.ChainRule, q: Distribution | None) -> None:
    """p(x) = 0 is rejected even at u = 0, and the correction is another token."""
    for final_u in (0.0, JUST_UNDER_ONE):
        outcome = decide(rule, [[0.0, 0.5, 0.5], [1.0, 0.0, 0.0]], Draft.chain([0], [q]), 0.0, final_u)
        assert outcome.path == ()
        assert outcome.token in (1, 2)
        assert outcome.node_probabilities == b"\x00"


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
@pytest.mark.parametrize("difference", [0.0, 1e-12, -1e-12, 1e-17])
def test_p_that_is_q_or_nearly_leaves_a_token_from_p(rule: chain.ChainRule, difference: float) -> None:
    """With p = q, or a rounding error away, and u just under 1, a token with p > 0 is committed."""
    p = [0.25 + difference, 0.75 - difference, 0.0]
    draft = Draft.chain([0], [Distribution((0, 1), (1, 3))])
    for final_u in (0.0, JUST_UNDER_ONE):
        outcome = decide(rule, [p, p], draft, JUST_UNDER_ONE, final_u)
        assert outcome.token in (0, 1)
        assert len(outcome.path) == (difference >= -1e-16)


@pytest.mark.parametrize("rule", [TOKEN, BLOCK])
def test_chain_whose_q_is_p_is_kept_whole(rule: chain.ChainRule) -> None:
    """With q = p at every node no uniform rejects anything: 0/0 counts as 1."""
    q = Distribution((0, 1), (1, 3))
    outcome = decide(rule, [[0.25, 0.75, 0.0]] * 4, Draft.chain([0, 1, 0], [q] * 3), JUST_UNDER_ONE, 0.5)
    assert outcome == Outcome((0, 1, 2), 1, True, b"\xff" * 3)


def test_residual_that_rounds_to_zero_falls_back_to_p() -> None:
    """Where nothing is left of max(0, p - q), p itself is drawn from."""
    rounds = [Round(0, Draft.chain([0], [Distribution((0, 1), (1, 3))]), Sampling(), Rule.TOKEN, 0, 0)]
    p = torch.tensor([[0.25, 0.75, 0.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    assert torch.equal(chain.last_weights(rounds, p, [0], [1.0]), p[:1])


def mixed_rounds(logits: Tensor) -> list[Round]:
    """Rounds of all rules, shapes and parameters, for the rows of `logits`."""
    q = Distribution((1, 2, 5), (3, 2, 1))
    drafts = [
        Draft.chain([1, 2, 5], [q, None, q]),
        Draft.EMPTY,
        Draft((1, 2, 5, 1), (-1, -1, 0, 2), (None,) * 4),
        Draft.chain([2]),
    ]
    parameters = [Sampling(), Sampling(0.0), Sampling(0.7, top_k=4), Sampling(1.2, top_p=0.8)]
    rounds: list[Round] = []
    first_row = 0
    for rule, draft, own in product(Rule, drafts, parameters):
        rounds.append(Round(first_row, draft, own, rule, 77 + len(rounds), 5))
        first_row += len(draft) + 1
    assert first_row <= len(logits)
    return rounds


def random_logits() -> Tensor:
    return torch.randn(200, 12, generator=torch.Generator().manual_seed(1))


def test_round_among_others_is_decided_as_alone() -> None:
    """A session's outcome is a function of its own draft, seed and rows: the batch does not matter."""
    logits = random_logits()
    rounds = mixed_rounds(logits)
    together = accept(rounds, logits)
    for round_, outcome in zip(rounds, together, strict=True):
        alone = accept([replace(round_, first_row=0)], logits[round_.rows.start : round_.rows.stop])
        assert alone == [outcome]
    backwards = accept(rounds[::-1], logits)
    assert backwards[::-1] == together


def test_device_decides_as_the_processor(device: str) -> None:
    """Where the logits lie does not matter: the outcomes of all rules are the same on --device."""
    logits = random_logits().double()
    rounds = mixed_rounds(logits)
    assert accept(rounds, logits.to(device)) == accept(rounds, logits)


def test_logits_that_are_not_numbers_fail_their_round_alone() -> None:
    """NaN in a row ends the request that draws from it with an error; the others are decided as if nothing had been."""
    logits = random_logits()
    rounds = mixed_rounds(logits)
    sound = accept(rounds, logits)
    for bad, round_ in enumerate(rounds):
        for node in (-1, *sound[bad].path):
            broken = logits.clone()
            broken[round_.row(node), 3] = math.nan
            outcomes = accept(rounds, broken)
            assert outcomes[:bad] + outcomes[bad + 1 :] == sound[:bad] + sound[bad + 1 :]
            if outcomes[bad].error is None:  # block may keep less where it sees less to come
                assert round_.rule is Rule.BLOCK
                assert node not in (-1, *outcomes[bad].path)
            else:
                assert outcomes[bad].error == "the target's logits are not numbers"


def test_logits_that_are_not_numbers_below_a_rejected_node_mean_nothing() -> None:
    """Where the target would not go its NaN ends no request: a draft decides how fast, never whether."""
    logits = random_logits()
    rounds = mixed_rounds(logits)
    sound = accept(rounds, logits)
    num_tried = 0
    for index, round_ in enumerate(rounds):
        for node in set(range(len(round_.draft))) - set(sound[index].path):
            broken = logits.clone()
            broken[round_.row(node), 3] = math.nan
            outcomes = accept(rounds, broken)
            assert all(outcome.error is None for outcome in outcomes)
            if round_.rule is not Rule.BLOCK:
                kept, wanted = outcomes[index], sound[index]
                assert (kept.path, kept.token, kept.is_bonus) == (wanted.path, wanted.token, wanted.is_bonus)
            num_tried += 1
    assert num_tried > 10


def test_no_rounds_have_no_outcomes() -> None:
    """An empty pass is decided too."""
    assert accept([], torch.zeros(0, 5)) == []


def test_tree_under_a_rule_for_chains_is_decided_by_match() -> None:
    """A tree under block has the outcome that it has under match."""
    logits = random_logits()
    tree = Draft((1, 2, 5, 1), (-1, -1, 0, 2), (None,) * 4)
    for seed in range(50):
        by_block, by_match = (
            accept([Round(0, tree, Sampling(), rule, seed, 3)], logits) for rule in (Rule.BLOCK, Rule.MATCH)
        )
        assert by_block == by_match


@pytest.mark.parametrize("rule", list(Rule))
def test_node_probabilities_say_how_good_every_node_was(rule: Rule) -> None:
    """The verdict has a byte for each node, reached or not: the rule's P_i."""
    p = [[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.2, 0.2, 0.6]]
    draft = Draft.chain([0, 1], [Distribution((0, 1), (1, 3)), Distribution((1, 2), (4, 1))])
    (outcome,) = accept([Round(0, draft, Sampling(), rule, 0, 0)], torch.tensor([log(row) for row in p]))
    expected = {
        Rule.MATCH: [0.5, 0.25],
        Rule.TOKEN: [1.0, 0.625],
        Rule.BLOCK: [1.0, 0.625],
    }[rule]
    assert list(outcome.node_probabilities) == pytest.approx([255 * value for value in expected], abs=1)
