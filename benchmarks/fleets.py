"""More services than one `pilotfish up`: coordinators of the same peers at several distances, verifiers set unlike."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

from pilotfish.cli.local import Local, services
from pilotfish.cli.processes import Fleet, Service, free_port, serves
from pilotfish.cli.up import running, unseen
from pilotfish.errors import Unavailable

READY_TIMEOUT_S: Final = 60.0
PEERS: Final = ("drafter", "verifier")


@contextmanager
def at_distances(local: Local, fleet: Fleet, round_trips_s: Sequence[float]) -> Iterator[dict[float, str]]:
    """Addresses of coordinators, by the round trip between them and the peers of a running fleet.

    A round trip of 0 is the fleet's own coordinator. Every other one is a coordinator of its own behind wires of its
    own: what one has learned the others do not know.
    """
    found = {0.0: fleet.address("coordinator")}
    with ExitStack() as stack:
        for round_trip_s in round_trips_s:
            if round_trip_s:
                away = _away(local, fleet, round_trip_s)
                found[round_trip_s] = stack.enter_context(_started(away)).address("coordinator")
        yield {round_trip_s: found[round_trip_s] for round_trip_s in round_trips_s}


def _away(local: Local, fleet: Fleet, round_trip_s: float) -> list[Service]:
    """A coordinator, and the wires to the fleet's peers."""
    peers = [service for service in fleet.services if service.module in PEERS]
    ports = {service.module: free_port() for service in peers}
    wires = [f"{ports[service.module]}={service.address}" for service in peers]
    near = {f"{service.module}s": f"127.0.0.1:{ports[service.module]}" for service in peers}
    flags = {**local.settings.get("coordinator", {}), **near}
    far = replace(local, port=0, settings={**local.settings, "coordinator": flags})
    coordinator = next(service for service in services(far) if service.module == "coordinator")
    arguments = (f"--one-way-ms={round_trip_s * 500:.4f}", *wires)
    wire = Service("benchmarks.delay", arguments, f"127.0.0.1:{next(iter(ports.values()))}", health="")
    return [coordinator, wire]


@contextmanager
def _started(chosen: Sequence[Service]) -> Iterator[Fleet]:
    """Processes beside a running fleet, which has the signals."""
    fleet = Fleet(chosen, unseen, check=_is_ready)
    try:
        fleet.start()
        if fleet.wait_until_ready(READY_TIMEOUT_S) is not None:
            raise Unavailable("a signal asked for the end while services were started")
        yield fleet
    finally:
        fleet.stop()


def _is_ready(service: Service) -> bool:
    return serves(service) if service.health else _listens(service.address)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1.0).close()
    except OSError:
        return False
    return True


@contextmanager
def set_unlike(local: Local, role: str, settings: Mapping[str, Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Addresses of the coordinators of several fleets, side by side, by name.

    Args:
        local: what they have in common.
        role: of the service whose settings differ.
        settings: by name, those on top of the common ones.
    """
    with ExitStack() as stack:
        found = {}
        for name, differing in settings.items():
            flags = {**local.settings.get(role, {}), **differing}
            unlike = replace(local, port=0, settings={**local.settings, role: flags})
            found[name] = stack.enter_context(running(unlike, unseen)).address("coordinator")
        yield found
