"""Which rule decides on which round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from torch import Tensor

from pilotfish import sampling
from pilotfish.messages import Rule
from verifier.acceptance import block, chain, match, token
from verifier.acceptance.chain import ChainRule
from verifier.acceptance.rounds import Outcome, Round

TOKEN = ChainRule(token.thresholds, token.survivals, token.scales, token.keep)
BLOCK = ChainRule(block.thresholds, block.survivals, block.scales, block.keep)

RULES: dict[Rule, Callable[[Sequence[Round], Tensor], list[Outcome]]] = {
    Rule.MATCH: match.accept,
    Rule.TOKEN: lambda rounds, law: chain.accept(rounds, law, TOKEN),
    Rule.BLOCK: lambda rounds, law: chain.accept(rounds, law, BLOCK),
}


def accept(rounds: Sequence[Round], logits: Tensor) -> list[Outcome]:
    """Decide on the rounds of a pass.

    At T = 0 all rules say the same and the probabilities are not needed. A tree under a rule for chains is decided by
    `match`, which is exact for any draft. A round that comes to a row without a law (NaN) fails, and it alone; below
    what was rejected such a row means nothing, else whoever drafts could end requests.

    Args:
        logits: [R, V], on any device; float64 is kept, everything else is read as float32.

    Returns:
        An outcome for each round, in order.
    """
    outcomes: dict[int, Outcome] = {}
    greedy = [index for index, round_ in enumerate(rounds) if round_.sampling.is_greedy]
    if greedy:
        outcomes |= zip(greedy, match.accept_greedy([rounds[index] for index in greedy], logits), strict=True)
    drawn = [index for index, round_ in enumerate(rounds) if not round_.sampling.is_greedy]
    if drawn:
        outcomes |= zip(drawn, _accept_drawn([rounds[index] for index in drawn], logits), strict=True)
    return [outcomes[index] for index in range(len(rounds))]


def rule_of(round_: Round) -> Rule:
    """The rule that decides on a round."""
    return round_.rule if round_.draft.is_chain else Rule.MATCH


def _accept_drawn(rounds: Sequence[Round], logits: Tensor) -> list[Outcome]:
    """Decide on rounds of T > 0: p of their rows first, then rule by rule."""
    rows = [row for round_ in rounds for row in round_.rows]
    law = sampling.probabilities(
        logits if rows == list(range(len(logits))) else logits[rows],
        [round_.sampling for round_ in rounds for _ in round_.rows],
    )
    is_sound = (~law[:, 0].isnan()).tolist()
    if not all(is_sound):
        # A stand-in, so that no rule meets NaN. Rounds that come to such a row fail; the law of the others is
        # untouched, since every rule is exact for every target, one with these rows included.
        unsound = law[:, 0].isnan()
        law[unsound] = 0.0
        law[unsound, 0] = 1.0
    outcomes: dict[int, Outcome] = {}
    by_rule: dict[Rule, list[tuple[int, Round]]] = {}
    first_row = 0
    for index, round_ in enumerate(rounds):
        by_rule.setdefault(rule_of(round_), []).append((index, replace(round_, first_row=first_row)))
        first_row += len(round_.rows)
    for rule, located_rounds in by_rule.items():
        decided = RULES[rule]([round_ for _, round_ in located_rounds], law)
        for (index, round_), outcome in zip(located_rounds, decided, strict=True):
            outcomes[index] = outcome.checked(round_, is_sound)
    return [outcomes[index] for index in range(len(rounds))]
