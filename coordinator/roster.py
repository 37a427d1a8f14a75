"""All peers of a coordinator, and which of them a request gets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TypeVar

from coordinator import router
from coordinator.discovery import Addresses, Discovery
from coordinator.peers import DrafterPeer, VerifierPeer, Watch, drafter_peer, no_verifier, verifier_peer
from pilotfish.errors import InvalidArgument
from pilotfish.messages import DrafterLoad
from pilotfish.messages import Peer as PeerMessage

logger = logging.getLogger(__name__)

AnyPeer = TypeVar("AnyPeer", VerifierPeer, DrafterPeer)


class Roster:
    """The peers, kept in line with what discovery says."""

    def __init__(self, watch: Watch) -> None:
        self.verifiers: dict[str, VerifierPeer] = {}
        self.drafters: dict[str, DrafterPeer] = {}
        self._watch = watch
        self._leaving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._on_change: Callable[[], None] = lambda: None

    async def follow(self, discovery: Discovery, on_change: Callable[[], None]) -> None:
        """Dial whom discovery names, and part from whom it names no more. Returns when nothing can change any more."""
        self._on_change = on_change
        async for addresses in discovery.watch():
            self._update(addresses)

    def _update(self, addresses: Addresses) -> None:
        self._keep(self.verifiers, addresses.verifiers, verifier_peer)
        self._keep(self.drafters, addresses.drafters, drafter_peer)
        self._signal()

    def _keep(
        self,
        peers: dict[str, AnyPeer],
        addresses: Iterable[str],
        make: Callable[[str, Watch, Callable[[], None]], AnyPeer],
    ) -> None:
        wanted = dict.fromkeys(addresses)
        for address in [address for address in peers if address not in wanted]:
            peer = peers[address]
            del peers[address]
            task = asyncio.create_task(peer.stop())
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)
        for address in wanted:
            if address not in peers:
                peers[address] = make(address, self._watch, self._signal)
                peers[address].start()

    def _signal(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self._on_change()

    async def stop(self) -> None:
        """End all streams."""
        stops = [peer.stop() for peer in self.verifiers.values()] + [peer.stop() for peer in self.drafters.values()]
        await asyncio.gather(*stops, *self._leaving)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose_verifier(self, avoid: Iterable[str] = ()) -> VerifierPeer | None:
        """A verifier for a request; None: none is up."""
        views = [
            router.VerifierView(peer.address, peer.is_up, peer.num_sessions, peer.load)
            for peer in self.verifiers.values()
        ]
        address = router.choose_verifier(views, avoid)
        return None if address is None else self.verifiers[address]

    async def wait_for_verifier(self, timeout_s: float, avoid: Iterable[str] = ()) -> VerifierPeer:
        """A verifier for a request, as soon as one is up.

        Raises:
            Unavailable: none came up in time; the message says what is the matter with each.
        """
        if not await self.wait_until(lambda: self.has_verifier, timeout_s):
            raise no_verifier(list(self.verifiers.values()))
        peer = self.choose_verifier(avoid)
        assert peer is not None, "one is up"
        return peer

    async def wait_until(self, claim: Callable[[], bool], timeout_s: float) -> bool:
        """Whether something comes to hold of the peers in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while not claim():
            if loop.time() >= end_s:
                return False
            with suppress(TimeoutError):
                # A peer's health may change without a sign, so look again now and then.
                await asyncio.wait_for(self._changed.wait(), min(0.25, end_s - loop.time()))
        return True

    def choose_drafter(self, speculator: str | None) -> DrafterPeer | None:
        """A drafter for a request; None: none is up that offers the speculator."""
        views = [
            router.DrafterView(
                peer.address, peer.is_up, peer.num_sessions, peer.info.speculators if peer.info else (), peer.load
            )
            for peer in self.drafters.values()
        ]
        address = router.choose_drafter(views, speculator)
        return None if address is None else self.drafters[address]

    def check_speculator(self, speculator: str | None) -> None:
        """Refuse a name that no drafter has.

        Raises:
            InvalidArgument: naming those there are. Where no drafter was ever reached, any name is taken.
        """
        known = dict.fromkeys(
            name for peer in self.drafters.values() if peer.info is not None for name in peer.info.speculators
        )
        if speculator is not None and known and speculator not in known:
            raise InvalidArgument.of("speculation.speculator", speculator, f"the drafters have {', '.join(known)}")

    # -- telling -----------------------------------------------------------------------------------------------------

    @property
    def has_verifier(self) -> bool:
        return any(peer.is_up for peer in self.verifiers.values())

    @property
    def num_drafters_up(self) -> int:
        return sum(peer.is_up for peer in self.drafters.values())

    def describe(self) -> tuple[PeerMessage, ...]:
        """Every peer as `Info` tells it."""
        peers: list[VerifierPeer | DrafterPeer] = [*self.verifiers.values(), *self.drafters.values()]
        return tuple(
            PeerMessage(
                role=peer.role,
                address=peer.address,
                is_up=peer.is_up,
                problem=peer.problem,
                model=peer.info.model if peer.info else None,
                speculators=peer.info.speculators if peer.info else (),
                num_sessions=peer.num_sessions,
                round_trip_us=peer.round_trip_us,
                draft_start_us=peer.load.start_us if isinstance(peer.load, DrafterLoad) else 0,
                draft_token_us=peer.load.token_us if isinstance(peer.load, DrafterLoad) else 0,
            )
            for peer in peers
        )
