"""Supervision, with processes that are real and do little."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import pytest

from pilotfish.cli.processes import Asked, Fleet, Service, ServiceEnded, StartError, claim_port, free_port
from pilotfish.errors import PortTaken

ROOT = str(Path(__file__).parent.parent.parent)
ENVIRONMENT = {"PYTHONPATH": ROOT}


class Lines:
    """What services said, to be waited for."""

    def __init__(self) -> None:
        self._lines: SimpleQueue[str] = SimpleQueue()

    def __call__(self, _service: str, line: str) -> None:
        self._lines.put(line)

    def wait_for(self, words: str) -> str:
        while words not in (line := self._lines.get(timeout=60)):
            pass
        return line


def fake(how: str) -> Service:
    """A service that does what `how` names."""
    return Service("tests.cli.fake_service", (how,), "", "", ENVIRONMENT)


def always(_service: Service) -> bool:
    """Ready at once."""
    return True


@pytest.fixture
def lines() -> Lines:
    """What services say."""
    return Lines()


@pytest.fixture
def started(lines: Lines) -> Iterator[Callable[..., Fleet]]:
    """Starts a fleet of one, which is gone after the test."""
    fleets = []

    def start(how: str, check: Callable[[Service], bool] = always) -> Fleet:
        fleets.append(fleet := Fleet([fake(how)], lines, check))
        fleet.start()
        return fleet

    yield start
    for fleet in fleets:
        fleet.stop(grace_s=0)


def test_stop_ends_every_service(started: Callable[..., Fleet], lines: Lines) -> None:
    """A service that listens to SIGTERM is not killed, and is gone when stop returns."""
    fleet = started("waits")
    assert fleet.wait_until_ready(60) is None
    lines.wait_for("I am")
    assert fleet.stop() == []
    assert fleet.processes["tests.cli.fake_service"].status == -signal.SIGTERM


def test_a_service_that_will_not_end_is_killed_and_named(started: Callable[..., Fleet], lines: Lines) -> None:
    """A service that ignores SIGTERM is killed after the grace, and stop says which it was."""
    fleet = started("stubborn")
    lines.wait_for("ignoring SIGTERM")
    assert fleet.stop(grace_s=0.05) == ["tests.cli.fake_service"]
    assert fleet.processes["tests.cli.fake_service"].status == -signal.SIGKILL


def test_a_service_that_ends_before_it_is_ready_is_an_error_with_its_last_lines(started: Callable[..., Fleet]) -> None:
    """The error of a failed start names the service, its exit status and what it said, stderr included."""
    fleet = started("fails", check=lambda _service: False)
    with pytest.raises(StartError, match=r"(?s)fake_service ended before it was ready \(exit status 3\).*the reason"):
        fleet.wait_until_ready(60)


def test_a_service_that_ends_later_is_an_error(started: Callable[..., Fleet], lines: Lines) -> None:
    """A service that is killed from outside is noticed and described by the signal."""
    fleet = started("waits")
    fleet.wait_until_ready(60)
    lines.wait_for("I am")
    os.kill(fleet.processes["tests.cli.fake_service"].pid, signal.SIGKILL)
    with pytest.raises(ServiceEnded, match=r"by itself \(SIGKILL\)"):
        fleet.wait()


def test_not_ready_in_time_names_who(started: Callable[..., Fleet]) -> None:
    """A service that never answers is named when the time is over."""
    fleet = started("waits", check=lambda _service: False)
    with pytest.raises(StartError, match=r"fake_service not ready after 0 s"):
        fleet.wait_until_ready(0)


def test_a_signal_asks_for_the_end(started: Callable[..., Fleet]) -> None:
    """SIGTERM to this process ends the wait, and the handler before is put back."""
    fleet = started("waits")
    before = signal.getsignal(signal.SIGTERM)
    with fleet.signals():
        os.kill(os.getpid(), signal.SIGTERM)
        assert fleet.wait() == Asked(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_interrupts_work(started: Callable[..., Fleet]) -> None:
    """Who works with the services is interrupted once; a second signal does not disturb what ends them."""
    fleet = started("waits")
    with fleet.signals():
        with fleet.at_work():
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        assert fleet.wait() == Asked(signal.SIGINT)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux ends a child with its parent")
def test_a_killed_parent_leaves_nobody_behind() -> None:
    """When the process that started the services is killed with SIGKILL, they end too."""
    parent = subprocess.Popen(
        [sys.executable, "-m", "tests.cli.fake_parent"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    with parent.stdout:
        line = next(line for line in parent.stdout if line.startswith("child"))
        child = os.pidfd_open(int(line.split()[1]))
        try:
            parent.kill()
            parent.wait()
            poll = select.poll()
            poll.register(child, select.POLLIN)
            assert poll.poll(30_000), "the child is still alive"
        finally:
            os.close(child)


def test_a_port_that_is_taken_is_named() -> None:
    """Claiming a port that somebody listens on names the port and the remedy; a free one is claimed in silence."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(PortTaken, match=rf"port {port} .* --port"):
            claim_port("127.0.0.1", port)
    claim_port("127.0.0.1", free_port())
