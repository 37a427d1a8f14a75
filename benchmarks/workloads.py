"""What is asked under load: requests that every arm gets alike.

    chat        open questions; nothing to copy
    code_edit   change one thing in a function, give all of it back
    mixed       half of the sessions chat, half copy, at once
    phases      each text goes to and fro between copying and free prose; at a temperature, with a seed
    reasoning   puzzles and sums step by step, four times as long
    high, low   a table model's texts whose drafts are accepted with .85, and with .4
    both        half of the sessions high, half low, at once

A table model has `high`, `low`, `both` and `phases` (see `benchmarks.tables`), any other model the first five.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from benchmarks.phases import begun
from benchmarks.prompts import Prompt, prompts
from benchmarks.tables.generate import REGIONS
from pilotfish.errors import NotFound
from pilotfish.models import resolve
from pilotfish.tokenizer import Tokenizer, load_tokenizer

NUM_PHASES: Final = 16  # texts of that workload
PHASES_LENGTH: Final = 3  # times --max-tokens: long enough to change
REASONING_LENGTH: Final = 4
PHASES_TEMPERATURE: Final = 0.7  # greedy, a small model would copy the prose too
TABLE_PROMPT: Final = 24  # tokens
SALT_IDS: Final = 4


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    name: str
    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None  # None: greedy, or every answer differs
    kind: str = ""  # its label, where labels are sent


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one sort, or of several in turn."""

    name: str
    asks: tuple[Ask, ...]

    @property
    def max_tokens(self) -> int:
        """Of the longest answer."""
        return max(ask.max_tokens for ask in self.asks)

    def of_worker(self, worker: int, num_workers: int, turn: int) -> Iterator[Ask]:
        """What one of the sessions asks, one after another, for ever.

        Neighbours ask different kinds. The first answers are of different lengths, so that the sessions of a block are
        spread over their texts from its beginning; a turn begins with other requests than the one before.
        """
        for index in count():
            ask = self.asks[(turn + worker + index) % len(self.asks)]
            if index:
                yield ask
            else:
                yield replace(ask, max_tokens=max(2, ask.max_tokens * (worker + 1) // num_workers))


def salted(ask: Ask, number: int, vocabulary_size: int) -> Ask:
    """The same request with a beginning of its own, so that no cache knows its prompt."""
    digits = tuple(number // vocabulary_size**place % vocabulary_size for place in range(SALT_IDS))
    return replace(ask, prompt=digits + ask.prompt)


def workloads(model: str, names: Sequence[str], per_set: int, max_tokens: int) -> list[Workload]:
    """The workloads of these names, all of them held out from tuning.

    Args:
        model: what is to answer: decides which there are, and the ids of the prompts.
        names: of workloads; none: all there are.
        per_set: requests of each sort, at most.
        max_tokens: most tokens of an answer of usual length.

    Raises:
        NotFound: no such workload for this model.
    """
    if resolve(model).is_table:
        return [_of_table(name, per_set, max_tokens) for name in _known(names, TABLE_WORKLOADS, model)]
    tokenizer = load_tokenizer(model)
    return [MODEL_WORKLOADS[name](tokenizer, per_set, max_tokens) for name in _known(names, MODEL_WORKLOADS, model)]


def _known(names: Sequence[str], there_are: Sequence[str] | dict[str, MakeWorkload], model: str) -> Sequence[str]:
    for name in names:
        if name not in there_are:
            raise NotFound(f"no workload {name!r} for {model}; there are {', '.join(there_are)}")
    return names or tuple(there_are)


MakeWorkload = Callable[[Tokenizer, int, int], Workload]


def _of_sets(name: str, sets: Sequence[str], length: int = 1) -> MakeWorkload:
    """The sets' prompts in turn, set by set; a set with fewer than the others begins again."""

    def make(tokenizer: Tokenizer, per_set: int, max_tokens: int) -> Workload:
        by_set = [prompts([set_], per_set=per_set) for set_ in sets]
        longest = max(map(len, by_set))
        in_turn = [of_set[index % len(of_set)] for index in range(longest) for of_set in by_set]
        return Workload(name, tuple(_ask(tokenizer, prompt, length * max_tokens) for prompt in in_turn))

    return make


def _ask(tokenizer: Tokenizer, prompt: Prompt, max_tokens: int) -> Ask:
    ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}])
    return Ask(str(prompt), tuple(ids), max_tokens, kind=prompt.set)


def _phases(tokenizer: Tokenizer, per_set: int, max_tokens: int) -> Workload:
    asks = []
    for number in range(min(per_set, NUM_PHASES)):
        question, answer = begun(number)
        ids = tokenizer.apply_chat_template([{"role": "user", "content": question}]) + tokenizer.encode(answer)
        length = PHASES_LENGTH * max_tokens
        asks.append(Ask(f"phases/{number}", tuple(ids), length, PHASES_TEMPERATURE, seed=number, kind="phases"))
    return Workload("phases", tuple(asks))


def _of_table(name: str, per_set: int, max_tokens: int) -> Workload:
    regions = {"both": ("high", "low")}.get(name, (name,))
    length = PHASES_LENGTH if name == "phases" else 1
    chance = random.Random(name)
    asks = []
    for number in range(per_set):
        for region in regions:
            prompt = tuple(chance.choices(REGIONS[region], k=TABLE_PROMPT))
            asks.append(Ask(f"{region}/{number}", prompt, length * max_tokens, 1.0, kind=region))
    return Workload(name, tuple(asks))


TABLE_WORKLOADS: Final = ("high", "low", "both", "phases")
MODEL_WORKLOADS: Final[dict[str, MakeWorkload]] = {
    "chat": _of_sets("chat", ["chat"]),
    "code_edit": _of_sets("code_edit", ["code_edit"]),
    "mixed": _of_sets("mixed", ["chat", "code_edit", "chat", "json"]),
    "phases": _phases,
    "reasoning": _of_sets("reasoning", ["reasoning"], REASONING_LENGTH),
}
