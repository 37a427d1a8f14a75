"""Tenants: whose requests are served by which cap, objective and targets.

A tenant is written as its name and what differs from the coordinator's own settings, and several with commas:

    acme max_gamma=4 token_ms=40, bulk objective=throughput

No cap may be over the coordinator's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pilotfish.messages import NO_TARGETS, Objective, Targets


@dataclass(frozen=True, slots=True)
class Terms:
    """By what a tenant's requests are served, where they do not say otherwise."""

    max_gamma: int  # more is refused
    objective: Objective = Objective.BALANCED
    targets: Targets = NO_TARGETS
    whose: str = "this coordinator"


@dataclass(frozen=True, slots=True)
class Tenants:
    """The terms of everybody."""

    default: Terms  # of callers without a name, and of names that nothing was written for
    by_name: Mapping[str, Terms] = field(default_factory=dict)

    def terms(self, name: str) -> Terms:
        """By what a tenant is served; "" is nobody's."""
        return self.by_name.get(name, self.default)

    @staticmethod
    def parse(entries: Sequence[str], default: Terms) -> Tenants:
        """Read what was written of each tenant.

        Raises:
            ValueError: it means nothing, or more than the coordinator's own cap.
        """
        by_name: dict[str, Terms] = {}
        for entry in entries:
            name, *words = entry.split() or [""]
            if not name or "=" in name:
                raise ValueError(f"{entry!r} has no name; write NAME {' '.join(f'{key}=…' for key in _KEYS)}")
            if name in by_name:
                raise ValueError(f"tenant {name} is there twice; write all of it in one entry")
            by_name[name] = _terms(name, words, default)
        return Tenants(default, by_name)


def _terms(name: str, words: Sequence[str], default: Terms) -> Terms:
    terms = replace(default, whose=f"tenant {name}")
    for word in words:
        key, is_given, text = word.partition("=")
        if not is_given or key not in _KEYS:
            raise ValueError(f"tenant {name} has {word!r}; write one of {', '.join(f'{key}=…' for key in _KEYS)}")
        try:
            terms = _KEYS[key](terms, text)
        except ValueError as error:
            raise ValueError(f"tenant {name} has {word!r}: {error}") from error
    if terms.max_gamma > default.max_gamma:
        raise ValueError(
            f"tenant {name} has max_gamma={terms.max_gamma}, over the coordinator's max_gamma of {default.max_gamma}; "
            "lower the one or raise the other"
        )
    return terms


def _with_cap(terms: Terms, text: str) -> Terms:
    if not (text.isascii() and text.isdigit()):
        raise ValueError("write a whole number of tokens, 0 or more")
    return replace(terms, max_gamma=int(text))


def _with_objective(terms: Terms, text: str) -> Terms:
    if text not in {objective.value for objective in Objective}:
        raise ValueError(f"write {', '.join(objective.value for objective in Objective)}")
    return replace(terms, objective=Objective(text))


def _with_target(target: str) -> Callable[[Terms, str], Terms]:
    def read(terms: Terms, text: str) -> Terms:
        try:
            milliseconds = float(text)
        except ValueError:
            milliseconds = math.nan
        if not 0.0 < milliseconds < math.inf:
            raise ValueError("write milliseconds, over 0")
        changes: dict[str, Any] = {target: milliseconds / 1e3}
        return replace(terms, targets=replace(terms.targets, **changes))

    return read


_KEYS: Final[Mapping[str, Callable[[Terms, str], Terms]]] = {
    "max_gamma": _with_cap,
    "objective": _with_objective,
    "first_token_ms": _with_target("first_token_s"),
    "token_ms": _with_target("token_s"),
}
