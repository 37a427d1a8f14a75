"""Several services as processes of this one: started together, watched, and never left behind.

    fleet = Fleet(services, show=print_line)
    fleet.start(); fleet.wait_until_ready(timeout_s=120)
    event = fleet.wait()          # a signal asked for the end, or a service ended by itself
    fleet.stop()

Nothing is restarted: a service that ends takes the others with it, and its last lines are in the error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TypeAlias

from pilotfish.errors import PortTaken, Unavailable

NUM_LAST_LINES = 12
POLL_S = 0.1
GRACE_S = 10.0

Show: TypeAlias = Callable[[str, str], None]  # (service, line of its log)
Check: TypeAlias = Callable[["Service"], bool]  # whether the service answers that it is ready


@dataclass(frozen=True, slots=True)
class Service:
    """One service to be started: `python -m module arguments`."""

    module: str
    arguments: tuple[str, ...]
    address: str  # host:port where it will answer health checks
    health: str  # the health service whose SERVING means ready
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of ours


class StartError(Unavailable):
    """A service could not be started, or was not ready in time."""


class ServiceEnded(Unavailable):
    """A service ended though nobody asked it to."""


@dataclass(frozen=True, slots=True)
class Ended:
    """A service's process is over."""

    service: str
    status: int  # exit status; negative: killed by that signal


@dataclass(frozen=True, slots=True)
class Asked:
    """A signal asked for the end."""

    signal: int


Event: TypeAlias = Ended | Asked


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now. Somebody may take it before it is used; then that service says so."""
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def claim_port(host: str, port: int) -> None:
    """Raise PortTaken where `port` cannot be listened on."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"port {port} of {host} cannot be used: {error.strerror or error}; "
                f"choose another with --port, or find who has it with: ss -ltnp 'sport = :{port}'"
            ) from error


def serves(service: Service) -> bool:
    """Ask the service's health whether it is ready."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(service.address) as channel:
        try:
            answer = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=service.health), timeout=2.0
            )
        except grpc.RpcError:
            return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


class Process:
    """One running service; its output is read line by line, the last lines are kept."""

    def __init__(self, service: Service, show: Show, events: SimpleQueue[Event]) -> None:
        self.service = service
        self.last_lines: deque[str] = deque(maxlen=NUM_LAST_LINES)
        self._show = show
        self._events = events
        # In a session of its own: Ctrl-C reaches us alone, and the end of all comes in order.
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "pilotfish.cli.child", str(os.getpid()), service.module, *service.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **service.environment},
            start_new_session=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name=f"log of {service.module}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def status(self) -> int | None:
        return self._popen.poll()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        with self._popen.stdout as lines:
            for line in lines:
                self.last_lines.append(line.rstrip("\n"))
                with contextlib.suppress(OSError, SystemExit):  # nobody reads our output: the service must not wait
                    self._show(self.service.module, line.rstrip("\n"))
        self._events.put(Ended(self.service.module, self._popen.wait()))

    def signal(self, number: int) -> None:
        """Send a signal to the service and whatever it started."""
        if self.status is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def end(self, grace_s: float) -> bool:
        """Ask it to end, kill it where it has not within `grace_s`; whether it ended by itself."""
        self.signal(signal.SIGTERM)
        try:
            self._popen.wait(grace_s)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._popen.wait()
            return False
        finally:
            self._reader.join(1.0)
        return True


class Fleet:
    """The services of one `pilotfish up`, ended in the order they are given.

    Start it from the main thread: where the kernel ties a child to its parent, it means the thread.
    """

    def __init__(self, services: Sequence[Service], show: Show, check: Check = serves) -> None:
        self.processes: dict[str, Process] = {}
        self.services = tuple(services)
        self._show = show
        self._check = check
        self._events: SimpleQueue[Event] = SimpleQueue()
        self._is_at_work = False

    def address(self, module: str) -> str:
        """Where a service answers.

        Raises:
            KeyError: it is not part of this fleet.
        """
        return {service.module: service.address for service in self.services}[module]

    def start(self) -> None:
        for service in self.services:
            self.processes[service.module] = Process(service, self._show, self._events)

    def ask(self, number: int) -> None:
        """Ask for the end, as a signal does; may be called from a signal handler."""
        self._events.put(Asked(number))

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Turn SIGINT, SIGTERM and SIGHUP into `Asked` while the block runs; main thread only. See `at_work`."""

        def ask(number: int, _frame: FrameType | None) -> None:
            if self._is_at_work:
                self._is_at_work = False
                raise KeyboardInterrupt
            self.ask(number)

        before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def at_work(self) -> Iterator[None]:
        """Within `signals`, for a caller that is busy with the services: the first signal interrupts it.

        Those after it are `Asked` again, so that the services end in order.
        """
        self._is_at_work = True
        try:
            yield
        finally:
            self._is_at_work = False

    def wait_until_ready(self, timeout_s: float, tell: Callable[[str], None] | None = None) -> Asked | None:
        """Wait until every service is ready.

        Args:
            timeout_s: for all of them together.
            tell: hears the services that are not ready yet, whenever that changes.

        Returns:
            None, or the signal that asked for the end meanwhile.

        Raises:
            StartError: one ended, or was not ready in time.
        """
        deadline = time.monotonic() + timeout_s
        waiting = list(self.services)
        while waiting:
            if tell:
                tell(", ".join(service.module for service in waiting))
            event = self._next(POLL_S)
            if isinstance(event, Ended):
                raise StartError(self._describe(event, "before it was ready"))
            if event is not None:
                return event
            waiting = [service for service in waiting if not self._check(service)]
            if waiting and time.monotonic() > deadline:
                names = ", ".join(service.module for service in waiting)
                raise StartError(f"{names} not ready after {timeout_s:g} s; wait longer with --timeout")
        return None

    def wait(self) -> Asked:
        """Wait until a signal asks for the end.

        Raises:
            ServiceEnded: a service ended by itself.
        """
        event = self._next(None)
        if isinstance(event, Ended):
            raise ServiceEnded(self._describe(event, "by itself"))
        assert event is not None
        return event

    def check(self) -> None:
        """Raise ServiceEnded where a service ended by itself; does not wait."""
        event = self._next(0.0)
        if isinstance(event, Ended):
            raise ServiceEnded(self._describe(event, "by itself"))

    def stop(self, grace_s: float = GRACE_S) -> list[str]:
        """End every service, in order; names of those that had to be killed."""
        return [name for name, process in self.processes.items() if not process.end(grace_s)]

    def _next(self, timeout_s: float | None) -> Event | None:
        try:
            return self._events.get(timeout=timeout_s)
        except Empty:
            return None

    def _describe(self, ended: Ended, when: str) -> str:
        how = f"exit status {ended.status}" if ended.status >= 0 else signal.Signals(-ended.status).name
        lines = self.processes[ended.service].last_lines
        said = "".join(f"\n  {line}" for line in lines) or " nothing"
        return f"{ended.service} ended {when} ({how}); the last it said:{said}"
