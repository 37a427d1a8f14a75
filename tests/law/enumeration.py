"""Exact laws of programs that use chance: every branch is run, none is sampled.

A program asks a `Chance` whether a uniform is below a threshold, or which of some weights it selects. Uniforms have
keys; one that is asked again under its key is the same number, of which only the interval it lies in is known. So
randomness that is wrongly shared, between rounds or between positions, shows in the law exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import pairwise, product
from typing import TypeVar

Result = TypeVar("Result", bound=Hashable)
Tokens = tuple[int, ...]
Law = dict[Tokens, float]
TargetLaw = Callable[[Tokens], Sequence[float]]


class Chance:
    """One branch: answers the first questions as told, the rest with the first possible answer."""

    def __init__(self, script: Sequence[int]) -> None:
        self.script = list(script)
        self.sizes: list[int] = []  # number of possible answers of each question asked
        self.probability = 1.0
        self._intervals: dict[Hashable, tuple[float, float]] = {}

    def below(self, key: Hashable, threshold: float) -> bool:
        """Whether the uniform of `key` is < threshold."""
        return self._branch(key, [0.0, min(max(threshold, 0.0), 1.0), 1.0]) == 0

    def choose(self, key: Hashable, weights: Sequence[float]) -> int:
        """Index of the weight that the uniform of `key` selects by inversion."""
        total, borders = sum(weights), [0.0]
        for weight in weights:
            borders.append(borders[-1] + weight / total)
        borders[-1] = 1.0
        return self._branch(key, borders)

    def _branch(self, key: Hashable, borders: Sequence[float]) -> int:
        low, high = self._intervals.get(key, (0.0, 1.0))
        cells = [
            (cell, max(low, start), min(high, end))
            for cell, (start, end) in enumerate(pairwise(borders))
            if min(high, end) > max(low, start)
        ]
        asked = len(self.sizes)
        if asked == len(self.script):
            self.script.append(0)
        self.sizes.append(len(cells))
        cell, start, end = cells[self.script[asked]]
        self.probability *= (end - start) / (high - low)
        self._intervals[key] = (start, end)
        return cell


def enumerate_law(program: Callable[[Chance], Result]) -> dict[Result, float]:
    """The law of what a program returns."""
    law: dict[Result, float] = {}
    script: list[int] = []
    while True:
        chance = Chance(script)
        result = program(chance)
        law[result] = law.get(result, 0.0) + chance.probability
        script = chance.script[: len(chance.sizes)]
        while script and script[-1] + 1 == chance.sizes[len(script) - 1]:
            script.pop()
        if not script:
            return law
        script[-1] += 1


def text_law(target: TargetLaw, num_tokens: int) -> Law:
    """What the target says: the law of its first tokens."""
    return extend({(): 1.0}, target, num_tokens)


def extend(law: Mapping[Tokens, float], target: TargetLaw, num_tokens: int) -> Law:
    """Cut texts to a length, or let the target itself write what is missing."""
    extended: Law = {}
    for text, probability in law.items():
        num_missing = max(num_tokens - len(text), 0)
        for more in product(range(len(target(()))), repeat=num_missing):
            weight, tokens = probability, text[:num_tokens]
            for token in more:
                weight *= target(tokens)[token]
                tokens = (*tokens, token)
            if weight > 0.0:
                extended[tokens] = extended.get(tokens, 0.0) + weight
    return extended


def compose(round_law: Callable[[Tokens], Law], num_rounds: int) -> Law:
    """The law of the text after some rounds whose chances are independent.

    Args:
        round_law: committed tokens -> law of the tokens that a round adds.
    """
    law: Law = {(): 1.0}
    for _ in range(num_rounds):
        longer: Law = {}
        for text, probability in law.items():
            for tokens, weight in round_law(text).items():
                longer[text + tokens] = longer.get(text + tokens, 0.0) + probability * weight
        law = longer
    return law


def largest_difference(law: Mapping[Tokens, float], other: Mapping[Tokens, float]) -> float:
    """The largest difference of two probabilities of one text."""
    return max(abs(law.get(text, 0.0) - other.get(text, 0.0)) for text in {*law, *other})


def total_variation(law: Mapping[Tokens, float], other: Mapping[Tokens, float]) -> float:
    """Half the sum of the differences: the share of texts that comes out wrong."""
    return sum(abs(law.get(text, 0.0) - other.get(text, 0.0)) for text in {*law, *other}) / 2
