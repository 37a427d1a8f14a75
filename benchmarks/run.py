"""Run arms against one another: every prompt by all of them in turn, so that what the machine does hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.prompts import Prompt
from benchmarks.records import Arm, Measurement, Question


@dataclass(frozen=True, slots=True)
class Plan:
    """What is run."""

    prompts: Sequence[Prompt]
    max_tokens: int
    repeats: int = 1
    temperatures: Sequence[float] = (0.0,)

    def __len__(self) -> int:
        """Answers of each arm."""
        return len(self.prompts) * self.repeats * len(self.temperatures)


Encode = Callable[[Prompt], tuple[int, ...]]


def interleaved(
    arms: Sequence[Arm], plan: Plan, encode: Encode, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Measurement]:
    """Measure, arm by arm within a prompt; each prompt begins with another arm.

    Args:
        arms: at least one. Each answers the first prompt once before, unmeasured: caches and pages are warm then.
        plan: what is run.
        encode: ids of a prompt, the same for all arms.
        tell: hears of every answer.
    """
    for arm in arms:
        tell(f"warm up {arm.name}")
        arm.answer(Question(encode(plan.prompts[0]), min(8, plan.max_tokens)))
    for turn, (repeat, temperature, prompt) in enumerate(_rounds(plan)):
        ids = encode(prompt)
        for arm in (*arms[turn % len(arms) :], *arms[: turn % len(arms)]):
            answer = arm.answer(Question(ids, plan.max_tokens, temperature, seed=repeat))
            rate = f"{answer.tokens_per_s:.1f} tokens/s" if answer.tokens_per_s else "one piece"
            tell(f"{prompt} T={temperature:g} {arm.name}: {len(answer.ids)} tokens, {rate}")
            yield Measurement(arm.name, prompt.set, prompt.name, repeat, temperature, len(ids), answer)


def _rounds(plan: Plan) -> Iterable[tuple[int, float, Prompt]]:
    for repeat in range(plan.repeats):
        for temperature in plan.temperatures:
            for prompt in plan.prompts:
                yield repeat, temperature, prompt
