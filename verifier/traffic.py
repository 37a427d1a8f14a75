"""What goes into the engine and what comes out: values that cross threads, and could cross processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, TypeAlias

from pilotfish.messages import Close, Open, Opened, Refusal, TraceContext, Verdict, VerifierLoad, Work
from pilotfish.wire.values import DropCause
from verifier.sessions import Drop, SessionKey


class Command(NamedTuple):
    """An item for the engine."""

    caller: str
    stream: int  # the stream it came on: where the session's answers go from now on
    item: Open | Work | Close
    arrived_s: float
    cut: DropCause | None = None  # why its draft is less than was sent

    @property
    def key(self) -> SessionKey:
        return SessionKey(self.caller, self.item.session)


class PassRecord(NamedTuple):
    """A pass that was run."""

    began_s: float = 0.0
    ended_s: float = 0.0
    num_positions: int = 0
    num_sequences: int = 0
    num_prefill_positions: int = 0  # of them, for tokens whose logits nobody needed
    num_preempted: int = 0  # sessions that lost their KV for it

    @property
    def length_s(self) -> float:
        return self.ended_s - self.began_s


class RoundTimes(NamedTuple):
    """When a round was where, on the engine's clock."""

    trace: TraceContext | None
    arrived_s: float  # its last node
    passed: PassRecord  # the same object for all rounds of a pass


class Answer(NamedTuple):
    """What the engine says about a session."""

    key: SessionKey
    stream: int
    message: Opened | Verdict | Refusal
    times: RoundTimes | None = None  # of a verified draft
    trace: TraceContext | None = None  # of the request, on a refusal


class Observer(Protocol):
    """What is told of the engine's doings, on its thread."""

    def passed(self, record: PassRecord) -> None:
        """A pass has ended."""

    def dropped(self, cause: Drop | DropCause) -> None:
        """A draft, or part of one, was dropped."""

    def expired(self) -> None:
        """A lease has run out."""


Emit: TypeAlias = Callable[[list[Answer], VerifierLoad], None]
"""Is handed the answers of a turn, on the engine's thread; it must not block."""
