"""What running services have measured, for `pilotfish plan --from HOST`."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pilotfish.cli.info import Answer, ask, with_port
from pilotfish.errors import ConfigurationError, PilotfishError


@dataclass(frozen=True, slots=True)
class Curve:
    """A verifier's cost curve: seconds of a pass over so many positions, each sequence and its context aside."""

    positions: tuple[int, ...]
    seconds: tuple[float, ...]
    ridge: int | None = None

    def pass_s(self, num_positions: float) -> float:
        """T(n); a straight line between the points, the last one's slope beyond them."""
        n, known, values = num_positions, self.positions, self.seconds
        if n <= known[0] or len(known) == 1:
            return values[0]
        right = min(bisect_right(known, n), len(known) - 1)
        left = right - 1
        share = (n - known[left]) / (known[right] - known[left])
        return values[left] + share * (values[right] - values[left])

    def pass_length(self, num_positions: float) -> float:
        """T(n) over that of one position."""
        return self.pass_s(num_positions) / self.seconds[0]


@dataclass(frozen=True, slots=True)
class Measured:
    """What is known of running services; None: they have not measured it, or do not say."""

    source: str
    alpha: float | None = None
    draft_start_s: float | None = None
    draft_token_s: float | None = None
    round_trip_s: float | None = None  # of a round: to the drafter and to the verifier
    curve: Curve | None = None

    @property
    def cost(self) -> float | None:
        """c: a draft token over a pass of one position."""
        if self.draft_token_s is None or self.curve is None:
            return None
        return self.draft_token_s / self.curve.seconds[0]

    @property
    def round_trip(self) -> float | None:
        """Of a round, with the drafter's start, in passes of one position."""
        if self.round_trip_s is None or self.curve is None:
            return None
        return (self.round_trip_s + (self.draft_start_s or 0.0)) / self.curve.seconds[0]


def measured(host: str) -> Measured:
    """What the services at a host know: a coordinator's, with its verifiers and drafters, or a verifier's alone.

    Raises:
        Unavailable: nobody answers there.
        ConfigurationError: somebody does who has measured nothing of use.
    """
    answer = ask(with_port(host))
    if answer.role == "drafter":
        raise ConfigurationError(f"{host} is a drafter; give the coordinator that leads it, or a verifier")
    return _of_verifier(host, answer.facts) if answer.role == "verifier" else _of_coordinator(host, answer)


def _of_verifier(host: str, facts: Mapping[str, Any]) -> Measured:
    curve = _curve(facts)
    if curve is None:
        raise ConfigurationError(f"the verifier at {host} has measured no cost curve; start it with calibration on")
    return Measured(f"verifier {host}", curve=curve)


def _of_coordinator(host: str, answer: Answer) -> Measured:
    peers: Sequence[Mapping[str, Any]] = [peer for peer in answer.facts.get("peers", []) if peer.get("is_up")]
    verifiers = [peer for peer in peers if peer.get("role") == "verifier"]
    drafters = [peer for peer in peers if peer.get("role") == "drafter"]
    trips_us = [
        min(trips) for trips in (_values(verifiers, "round_trip_us"), _values(drafters, "round_trip_us")) if trips
    ]
    starts_us, tokens_us = _values(drafters, "draft_start_us"), _values(drafters, "draft_token_us")
    alpha = answer.facts.get("acceptance_rate")
    return Measured(
        f"coordinator {host}",
        alpha=float(alpha) if alpha else None,
        draft_start_s=min(starts_us) / 1e6 if starts_us else None,
        draft_token_s=min(tokens_us) / 1e6 if tokens_us else None,
        round_trip_s=sum(trips_us) / 1e6 if trips_us else None,
        curve=_first_curve(verifiers),
    )


def _first_curve(verifiers: Sequence[Mapping[str, Any]]) -> Curve | None:
    """Of the first verifier that can be reached from here and has one."""
    for peer in verifiers:
        try:
            if (curve := _curve(ask(str(peer.get("address"))).facts)) is not None:
                return curve
        except PilotfishError:
            continue
    return None


def _values(peers: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """What the peers say under a name; 0 is not measured."""
    return [float(peer[name]) for peer in peers if peer.get(name)]


def _curve(facts: Mapping[str, Any]) -> Curve | None:
    found = facts.get("cost_curve") or {}
    positions, pass_us = found.get("positions", []), found.get("pass_us", [])
    if not positions or len(positions) != len(pass_us) or pass_us[0] <= 0:
        return None
    return Curve(tuple(map(int, positions)), tuple(us / 1e6 for us in pass_us), found.get("ridge"))
