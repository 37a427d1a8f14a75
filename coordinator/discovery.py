"""Where the peers are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Addresses:
    """Every peer that is to be used from now on, as host:port. Order is preference among equals."""

    verifiers: tuple[str, ...]
    drafters: tuple[str, ...]


class Discovery(Protocol):
    """Finds peers. A static list says so once; a watched registry whenever they change."""

    def watch(self) -> AsyncIterator[Addresses]:
        """All peers, at once and after every change; ends where nothing can change any more."""


class StaticDiscovery:
    """The addresses of the settings."""

    def __init__(self, addresses: Addresses) -> None:
        self._addresses = addresses

    async def watch(self) -> AsyncIterator[Addresses]:
        yield self._addresses
