from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from pilotfish.draft import Draft
from pilotfish.errors import PeerLost, PilotfishError, Unavailable
from pilotfish.messages import Open, Opened, Rule, Sampling, ServiceInfo, TokenKind, Verdict, Work
from pilotfish.peer import Pace, PeerStream, verifier_dial
from pilotfish.v1 import verifier_pb2
from pilotfish.wire import verifier as wire_verifier
from pilotfish.wire.values import Limits
from tests.plumbing.fakes import FakeVerifier

SESSION = b"0123456789abcdef"
FAST = Pace(first_backoff_s=0.01, max_backoff_s=0.05, probe_interval_s=0.01)


def bonus(work: Work) -> Verdict:
    """Everything holds, and 9 comes after it."""
    n = len(work.draft)
    kinds = (*(TokenKind.ACCEPTED,) * n, TokenKind.BONUS)
    return Verdict(work.session, work.position, (*work.draft.tokens, 9), kinds, work.round, n, n)


class Owner:
    """What a coordinator does with a stream, as far as these tests care."""

    def __init__(self, address: str, pace: Pace = FAST) -> None:
        self.events: asyncio.Queue[Any] = asyncio.Queue()
        self.stream: PeerStream[verifier_pb2.VerifyItem, verifier_pb2.VerifyResponse] = PeerStream(
            address,
            verifier_dial(),
            on_up=self.events.put_nowait,
            on_answer=self.on_answer,
            on_down=self.events.put_nowait,
            pace=pace,
        )

    def on_answer(self, frame: verifier_pb2.VerifyResponse) -> None:
        assert self.stream.info is not None
        for value, _ in wire_verifier.read_answers(frame, Limits(50), self.stream.info.incarnation):
            self.events.put_nowait(value)

    def send(self, message: Open | Work) -> None:
        for item in wire_verifier.write_items(message):
            self.stream.send(item)

    async def next_of(self, kind: type) -> Any:
        """The next event of a kind; those before it are let go."""
        while not isinstance(event := await self.events.get(), kind):
            pass
        return event

    async def until(self, *, is_up: bool) -> None:
        while self.stream.is_up is not is_up:  # noqa: ASYNC110 - nothing tells when a probe was answered
            await asyncio.sleep(0.005)


def work(position: int, *tokens: int) -> Work:
    return Work(SESSION, 1, position, 0, 0, Draft.chain(tokens), 0, True, 0, 0)


async def test_items_go_out_and_answers_come_back() -> None:
    """An opened stream carries a session's opening and its rounds."""
    verifier = FakeVerifier(bonus)
    await verifier.start()
    owner = Owner(verifier.address)
    owner.stream.start()
    info = await owner.next_of(ServiceInfo)
    assert (info.incarnation, owner.stream.is_up, owner.stream.problem) == (1, True, None)
    owner.send(Open(SESSION, 1, "", (1, 2), (), Sampling(), 1, Rule.MATCH, frozenset(), 10, 1.0))
    assert await owner.next_of(Opened) == Opened(SESSION, 2)
    owner.send(work(2, 3, 4))
    assert (await owner.next_of(Verdict)).tokens == (3, 4, 9)
    assert owner.stream.num_sent_bytes > 0
    await owner.stream.stop()
    await verifier.stop()


async def test_a_peer_that_is_not_there_is_dialled_until_it_is() -> None:
    """While nobody answers, sending is refused with the reason; when the peer appears, the stream opens."""
    verifier = FakeVerifier(bonus)
    await verifier.start()
    port = verifier.server.port
    await verifier.kill()
    owner = Owner(f"127.0.0.1:{port}")
    with pytest.raises(Unavailable):
        owner.stream.send(verifier_pb2.VerifyItem())
    owner.stream.start()
    assert isinstance(await owner.next_of(PilotfishError), PeerLost)
    assert not owner.stream.is_up
    with pytest.raises(Unavailable, match=str(port)):
        owner.stream.send(verifier_pb2.VerifyItem())
    late = FakeVerifier(bonus, port=port)
    await late.start()
    assert await owner.next_of(ServiceInfo)
    await owner.stream.stop()
    await late.stop()


async def test_a_restarted_peer_is_known_by_its_incarnation() -> None:
    """When a peer dies the loss is told, and the next life announces itself with another incarnation."""
    first = FakeVerifier(bonus)
    await first.start()
    owner = Owner(first.address)
    owner.stream.start()
    assert (await owner.next_of(ServiceInfo)).incarnation == 1
    await first.kill()
    assert isinstance(await owner.next_of(PilotfishError), PeerLost)
    second = FakeVerifier(bonus, incarnation=2, port=first.server.port)
    await second.start()
    assert (await owner.next_of(ServiceInfo)).incarnation == 2
    owner.send(work(2, 3))
    assert (await owner.next_of(Verdict)).tokens == (3, 9)
    await owner.stream.stop()
    await second.stop()


async def test_a_peer_that_shuts_down_ends_the_stream() -> None:
    """An orderly shutdown is a loss, too, so that its sessions go elsewhere."""
    verifier = FakeVerifier(bonus)
    await verifier.start()
    owner = Owner(verifier.address)
    owner.stream.start()
    await owner.next_of(ServiceInfo)
    await verifier.stop()
    assert isinstance(await owner.next_of(PilotfishError), PeerLost)
    await owner.stream.stop()


async def test_a_peer_that_takes_no_new_work_is_open_but_not_up() -> None:
    """Readiness is watched: a draining peer keeps its stream and gets no new sessions."""
    verifier = FakeVerifier(bonus)
    await verifier.start()
    owner = Owner(verifier.address)
    owner.stream.start()
    await owner.next_of(ServiceInfo)
    await verifier.server.set_ready(False)
    await owner.until(is_up=False)
    assert owner.stream.is_open
    await verifier.server.set_ready(True)
    await owner.until(is_up=True)
    assert owner.stream.round_trip_us > 0
    await owner.stream.stop()
    await verifier.stop()


async def test_dialling_anew_asks_who_is_there() -> None:
    """After a refusal for its incarnation the owner dials again, and hears the new one."""
    verifier = FakeVerifier(bonus)
    await verifier.start()
    owner = Owner(verifier.address)
    owner.stream.start()
    await owner.next_of(ServiceInfo)
    verifier.incarnation = 5
    owner.stream.redial()
    assert (await owner.next_of(ServiceInfo)).incarnation == 5
    await owner.stream.stop()
    await verifier.stop()


FREEZABLE = """
import asyncio
from tests.plumbing.fakes import FakeVerifier

async def main():
    verifier = FakeVerifier(lambda work: None)
    await verifier.start()
    print(verifier.server.port, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@contextmanager
def freezable() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A verifier in a process of its own, and its address."""
    with subprocess.Popen([sys.executable, "-c", FREEZABLE], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, f"127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


async def test_a_frozen_peer_is_not_up_until_it_thaws() -> None:
    """A peer whose process is stopped keeps its stream for a while but gets no work; once continued it is up again."""
    with freezable() as (process, address):
        owner = Owner(address, replace(FAST, probe_timeout_s=0.2))
        owner.stream.start()
        await owner.until(is_up=True)
        process.send_signal(signal.SIGSTOP)
        await owner.until(is_up=False)
        assert owner.stream.is_open
        process.send_signal(signal.SIGCONT)
        await owner.until(is_up=True)
        await owner.stream.stop()


async def test_a_peer_that_stays_frozen_is_lost() -> None:
    """A peer that answers no ping is gone for good after the keepalive, so that its sessions go elsewhere."""
    with freezable() as (process, address):
        owner = Owner(address, replace(FAST, keepalive_s=0.4))
        owner.stream.start()
        await owner.next_of(ServiceInfo)
        process.send_signal(signal.SIGSTOP)
        assert isinstance(await owner.next_of(PilotfishError), PeerLost)
        assert not owner.stream.is_open
        await owner.stream.stop()
