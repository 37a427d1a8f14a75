"""Where a speculator's calls are made: in the event loop if they take microseconds, else in a thread that owns it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from drafter.rounds import Clock, Drawn, Rounds
from drafter.speculators import Facts, Speculator
from drafter.stopping import StopRule
from pilotfish.logs import about
from pilotfish.messages import DraftRequest, Open, SessionId
from pilotfish.telemetry import Metric, Telemetry

logger = logging.getLogger(__name__)


class Receiver(Protocol):
    """Takes what a speculator brings about; called in the event loop."""

    def drawn(self, drawn: Sequence[Drawn]) -> None:
        """Nodes were drawn, or drafts ended."""

    def failed(self, sessions: Sequence[SessionId], error: Exception) -> None:
        """A step raised an error: these sessions' drafts are over, the sessions go on."""

    def lost(self, session: SessionId, error: Exception) -> None:
        """The speculator did not take what it was told of a session, which is over."""


class Runner(Protocol):
    """A speculator at work. Its methods are called in the event loop, return at once and are done in order."""

    @property
    def facts(self) -> Facts: ...

    def open(self, start: Open) -> None: ...

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None: ...

    def draft(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None: ...

    def close(self, session: SessionId) -> None: ...

    def stop(self) -> None: ...


def start(speculator: Speculator, receiver: Receiver, clock: Clock, telemetry: Telemetry) -> Runner:
    """Set a speculator to work; its answers go to `receiver`."""
    rounds = TimedRounds(speculator, clock, telemetry)
    if speculator.is_instant:
        return InstantRunner(speculator.facts, rounds, receiver)
    return ThreadRunner(speculator.facts, rounds, receiver, asyncio.get_running_loop())


class TimedRounds(Rounds):
    """Rounds whose steps are measured."""

    def __init__(self, speculator: Speculator, clock: Clock, telemetry: Telemetry) -> None:
        super().__init__(speculator, clock)
        self._telemetry = telemetry

    def step(self) -> list[Drawn]:
        started_s = time.perf_counter()
        drawn = super().step()
        self._telemetry.observe(Metric.STEP_SECONDS, time.perf_counter() - started_s)
        return drawn


class InstantRunner:
    """Makes the calls where it is called."""

    def __init__(self, facts: Facts, rounds: Rounds, receiver: Receiver) -> None:
        self.facts = facts
        self._rounds = rounds
        self._receiver = receiver

    def open(self, start: Open) -> None:
        self._call(start.session, partial(self._rounds.open, start))

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self._call(session, partial(self._rounds.observe, session, tokens))

    def draft(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None:
        self._rounds.start(request, arrived_s, rule)
        while not self._rounds.is_idle:
            parts, failure = _step(self._rounds)
            self._receiver.drawn(parts)
            if failure is not None:
                self._receiver.failed(*failure)

    def close(self, session: SessionId) -> None:
        self._call(session, partial(self._rounds.close, session))

    def stop(self) -> None:
        """Nothing runs by itself."""

    def _call(self, session: SessionId, call: Callable[[], None]) -> None:
        error = _told(self._rounds, session, call)
        if error is not None:
            self._receiver.lost(session, error)


class ThreadRunner:
    """One thread that owns the speculator: it takes what was asked, then makes a step, and so on."""

    def __init__(self, facts: Facts, rounds: Rounds, receiver: Receiver, loop: asyncio.AbstractEventLoop) -> None:
        self.facts = facts
        self._rounds = rounds
        self._receiver = receiver
        self._loop = loop
        self._calls: SimpleQueue[tuple[SessionId, Callable[[], None]] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="speculator", daemon=True)
        self._thread.start()

    def open(self, start: Open) -> None:
        self._calls.put((start.session, partial(self._rounds.open, start)))

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        self._calls.put((session, partial(self._rounds.observe, session, tokens)))

    def draft(self, request: DraftRequest, arrived_s: float, rule: StopRule) -> None:
        self._calls.put((request.session, partial(self._rounds.start, request, arrived_s, rule)))

    def close(self, session: SessionId) -> None:
        self._calls.put((session, partial(self._rounds.close, session)))

    def stop(self) -> None:
        """End the thread; returns when it has."""
        self._calls.put(None)
        self._thread.join()

    def _run(self) -> None:
        has_more_to_read = False
        while True:
            is_free = self._rounds.is_idle and not has_more_to_read
            try:
                call = self._calls.get(block=is_free)
            except Empty:
                has_more_to_read = self._step()
                continue
            if call is None:
                return
            self._call(*call)
            has_more_to_read = True  # it may have brought something to read

    def _step(self) -> bool:
        """One step of the drafts that are due, or else of reading ahead; whether there may be more to read."""
        if self._rounds.is_idle:
            return _read_ahead(self._rounds)
        parts, failure = _step(self._rounds)
        if parts:
            self._deliver(partial(self._receiver.drawn, parts))
        if failure is not None:
            self._deliver(partial(self._receiver.failed, *failure))
        return True

    def _call(self, session: SessionId, call: Callable[[], None]) -> None:
        error = _told(self._rounds, session, call)
        if error is not None:
            self._deliver(partial(self._receiver.lost, session, error))

    def _deliver(self, receive: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody is left to tell
            self._loop.call_soon_threadsafe(receive)


# A speculator may be anybody's. What it raises ends a draft or a session, never the service.


def _step(rounds: Rounds) -> tuple[list[Drawn], tuple[list[SessionId], Exception] | None]:
    """The parts of a step, or the sessions whose drafts failed with it."""
    try:
        return rounds.step(), None
    except Exception as error:
        logger.exception("a draft step failed; its drafts are given up, their sessions go on")
        return [], ([request.session for request in rounds.fail()], error)


def _told(rounds: Rounds, session: SessionId, call: Callable[[], None]) -> Exception | None:
    """Make a call that tells of a session; the error that cost the session."""
    try:
        call()
    except Exception as error:
        logger.exception("the speculator could not take what it was told", extra=about(session=session))
        _forget(rounds, session)
        return error
    return None


def _forget(rounds: Rounds, session: SessionId) -> None:
    """Have the speculator free what it still holds of a session that it has failed."""
    try:
        rounds.close(session)
    except Exception:
        logger.debug("the session could not be closed either", exc_info=True, extra=about(session=session))


def _read_ahead(rounds: Rounds) -> bool:
    try:
        return rounds.read_ahead()
    except Exception:
        logger.exception("reading ahead failed; the next draft will read for itself")
        return False
