"""Pilotfish serves large language models faster without changing what they say.

The client and the errors are loaded when they are first named, so `import pilotfish` needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotfish.client import AsyncClient, Client
    from pilotfish.errors import PilotfishError
    from pilotfish.messages import Speculation, Targets

__all__ = ["AsyncClient", "Client", "PilotfishError", "Speculation", "Targets"]

_HOMES = {
    "AsyncClient": "pilotfish.client",
    "Client": "pilotfish.client",
    "PilotfishError": "pilotfish.errors",
    "Speculation": "pilotfish.messages",
    "Targets": "pilotfish.messages",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
