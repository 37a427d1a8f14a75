"""Pilotfish serves large language models faster without changing what they say.

`Client` and `AsyncClient` are loaded when they are first named, so `import pilotfish` needs nothing but Python.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotfish.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("pilotfish.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
