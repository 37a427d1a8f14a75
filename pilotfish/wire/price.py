"""What verifier and coordinators tell one another of the price: profiles one way, the plan the other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from pilotfish.price import Plan, Profile
from pilotfish.v1 import verifier_pb2
from pilotfish.wire.values import microseconds

MAX_DEPTHS = 64


def write_profile(profile: Profile) -> verifier_pb2.Profile:
    """What speculating is like for a session; survival in a byte a depth."""
    return verifier_pb2.Profile(
        survival=bytes(int(255 * survival + 1e-6) for survival in profile.survival[:MAX_DEPTHS]),
        start_us=microseconds(round(1e6 * profile.start_s)),
        token_us=microseconds(round(1e6 * profile.token_s)),
        round_trip_us=microseconds(round(1e6 * profile.round_trip_s)),
        may_draft_ahead=profile.may_draft_ahead,
        is_drawn=profile.is_drawn,
        offered=None if profile.offered >= 1.0 else int(255 * profile.offered + 1e-6),
    )


def read_profile(proto: verifier_pb2.Profile) -> Profile:
    """The profile; a survival that rises is held at what came before it, so that none can be invented."""
    falling = accumulate(proto.survival[:MAX_DEPTHS], min)
    return Profile(
        survival=tuple(value / 255 for value in falling),
        start_s=proto.start_us / 1e6,
        token_s=proto.token_us / 1e6,
        round_trip_s=proto.round_trip_us / 1e6,
        may_draft_ahead=proto.may_draft_ahead,
        is_drawn=proto.is_drawn,
        offered=min(proto.offered, 255) / 255 if proto.HasField("offered") else 1.0,
    )


def write_plan(plan: Plan, realised_speedup: float | None) -> verifier_pb2.Plan:
    """How a verifier means to run."""
    return verifier_pb2.Plan(
        price=plan.price,
        period_us=microseconds(round(1e6 * plan.period_s)),
        pass_us=microseconds(round(1e6 * plan.pass_s)),
        tokens_per_s=plan.tokens_per_s,
        kind=plan.kind,
        realised_speedup=realised_speedup,
        ahead_us=None if plan.ahead_s is None else microseconds(round(1e6 * plan.ahead_s)),
    )


def read_plan(proto: verifier_pb2.Plan) -> Plan:
    """The plan; a price that is no number is one at which nobody drafts."""
    return Plan(
        price=proto.price if proto.price >= 0.0 else float("inf"),
        period_s=proto.period_us / 1e6,
        pass_s=proto.pass_us / 1e6,
        tokens_per_s=proto.tokens_per_s,
        kind=proto.kind,
        ahead_s=proto.ahead_us / 1e6 if proto.HasField("ahead_us") else None,
    )


def write_curve(
    points: Sequence[tuple[int, float]], sequence_s: float, context_s: float, ridge: int | None
) -> verifier_pb2.CostCurve:
    """How long a pass takes.

    Args:
        points: positions and seconds, ascending.
        sequence_s: what each further sequence adds.
        context_s: what a thousand tokens of context add.
        ridge: positions from which a pass's length is half their own doing.
    """
    return verifier_pb2.CostCurve(
        positions=[positions for positions, _ in points],
        pass_us=[microseconds(1e6 * seconds) for _, seconds in points],
        sequence_ns=microseconds(1e9 * sequence_s),
        context_ns=microseconds(1e9 * context_s),
        ridge=ridge,
    )
