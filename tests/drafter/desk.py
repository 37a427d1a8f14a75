"""A drafter without transport, and a speculator whose time the test moves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from drafter.drafter import Drafter
from drafter.speculators import Ask, Facts, Speculator
from pilotfish.draft import Draft
from pilotfish.messages import DraftPart, Open, Opened, Refusal, SessionId
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.wire.drafter import FromDrafter, ToDrafter
from tests.drafter.openings import INCARNATION

Answer = TypeVar("Answer", DraftPart, Opened, Refusal)


class Clock:
    """Time that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Steps(Speculator):
    """One node a step, numbered; each step takes 10 ms of the clock."""

    is_instant = True

    def __init__(self, clock: Clock, context_length: int | None = None) -> None:
        self._clock = clock
        self._facts = Facts(context_length=context_length)
        self.texts: dict[SessionId, list[int]] = {}
        self.num_draws = 0

    @property
    def facts(self) -> Facts:
        return self._facts

    def open(self, start: Open) -> None:
        self.texts[start.session] = list(start.tokens)

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self.texts[session] += tokens

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        self.num_draws += 1
        self._clock.now_s += 0.010
        return [ask.chain([len(ask.draft)]) for ask in asks]

    def close(self, session: SessionId) -> None:
        del self.texts[session]


class Desk:
    """A drafter with one speculator, and the answers of one stream in order."""

    def __init__(self, speculator: Speculator, **options: object) -> None:
        self.clock = Clock() if not isinstance(speculator, Steps) else speculator._clock
        self.telemetry = Telemetry("drafter")
        values = {"clock": self.clock, "telemetry": self.telemetry} | options
        self.drafter = Drafter({"it": speculator}, INCARNATION, **values)  # type: ignore[arg-type]
        self.answers: list[FromDrafter] = []
        self.reply: Callable[[FromDrafter], None] = self.answers.append

    def tell(self, message: ToDrafter) -> list[FromDrafter]:
        """What is answered to a message at once."""
        self.answers.clear()
        self.drafter.take(message, self.reply)
        return list(self.answers)

    def dropped(self, cause: str) -> float:
        return self.telemetry.value(Metric.ITEMS_DROPPED, cause)


def only(answers: list[FromDrafter], kind: type[Answer]) -> Answer:
    [answer] = answers
    assert isinstance(answer, kind), answer
    return answer
