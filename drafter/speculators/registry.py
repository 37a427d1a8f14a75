"""Speculators by name: entry points of the group `pilotfish.speculators`, or `module:Class`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from drafter.speculators import Speculator
from pilotfish.errors import ConfigurationError

if TYPE_CHECKING:
    from drafter.settings import DrafterSettings

GROUP = "pilotfish.speculators"


def installed() -> dict[str, EntryPoint]:
    """The entry points of all installed packages, by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def make(names: Sequence[str], settings: DrafterSettings) -> dict[str, Speculator]:
    """The speculators of these names, ready to work, in order.

    Raises:
        ConfigurationError: no such speculator, or it cannot start with these settings.
    """
    return {name: find(name).from_settings(settings) for name in names}


def find(name: str) -> type[Speculator]:
    """The class of a name; only its own module is imported.

    Raises:
        ConfigurationError: there is none; the message says which there are.
    """
    points = installed()
    if name in points:
        return _loaded(name, points[name].value)
    if ":" in name:
        return _loaded(name, name)
    raise ConfigurationError.of(
        "speculators", name, f"installed are {', '.join(sorted(points))}; one of your own is given as module:Class"
    )


def _loaded(name: str, target: str) -> type[Speculator]:
    module, _, attribute = target.partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError.of(
            "speculators", name, f"cannot be imported ({error}); is its package installed where the drafter runs?"
        ) from error
    if not (isinstance(found, type) and hasattr(found, "propose")):
        raise ConfigurationError.of("speculators", name, f"{found!r} is no speculator class; see docs/speculators.md")
    return found
