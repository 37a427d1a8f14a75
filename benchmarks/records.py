"""What an arm is asked and what it answers, as values and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Question:
    """One request, the same for every arm."""

    prompt: tuple[int, ...]
    max_tokens: int
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One pass over the session, as it went; times in microseconds."""

    num_committed: int
    gamma: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    start_us: int = 0
    draft_us: int = 0
    verify_us: int = 0
    queue_us: int = 0
    pass_us: int = 0
    pass_positions: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back, and when."""

    ids: tuple[int, ...]
    num_first: int  # ids in the first piece
    first_s: float  # from the question until the first piece
    total_s: float
    rounds: tuple[RoundRecord, ...] = ()

    @property
    def decode_s(self) -> float:
        """Time after the first piece: decoding without the reading of the prompt."""
        return self.total_s - self.first_s

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of decoding; None where everything came in the first piece."""
        num_decoded = len(self.ids) - self.num_first
        return num_decoded / self.decode_s if num_decoded > 0 and self.decode_s > 0 else None

    @property
    def tokens_per_s_beside_drafting(self) -> float | None:
        """The same without the time spent waiting for drafts: as if drafting, on a machine of its own, took none."""
        draft_s = sum(round_.draft_us for round_ in self.rounds[1:]) / 1e6
        num_decoded, left_s = len(self.ids) - self.num_first, self.decode_s - draft_s
        return num_decoded / left_s if num_decoded > 0 and left_s > 0 else None

    @property
    def tokens_per_pass(self) -> float:
        """Committed tokens over passes."""
        return len(self.ids) / max(1, len(self.rounds))


class Arm(Protocol):
    """One way to answer."""

    @property
    def name(self) -> str: ...

    def answer(self, question: Question) -> Answer: ...


@dataclass(frozen=True, slots=True)
class Measurement:
    """One answer of one arm to one prompt."""

    arm: str
    set: str
    prompt: str
    repeat: int
    temperature: float
    num_prompt_tokens: int
    answer: Answer

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def as_rows(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row per round, with what tells whose it is: for a JSONL file."""
    return [
        {
            "arm": one.arm,
            "set": one.set,
            "prompt": one.prompt,
            "repeat": one.repeat,
            "temperature": one.temperature,
            "round": index,
            **dataclasses.asdict(round_),
        }
        for one in measurements
        for index, round_ in enumerate(one.answer.rounds)
    ]
