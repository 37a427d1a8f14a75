"""Round trips between a coordinator and its peers, on the real engine: what a network costs each arm."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.load import Arm, Block
from benchmarks.verdicts import OURS, PLAIN, Verdict, ratio, verdicts
from pilotfish.client import Client
from pilotfish.errors import PilotfishError
from pilotfish.messages import Speculation

LEAST_OF_NEAR: Final = 0.97  # plain decoding with a round trip, of plain decoding without
LEAST_OF_PLAIN: Final = 1.0  # ours, of plain decoding with the same round trip
NUM_TOKENS: Final = 24  # that a pass is measured with


def pass_s(address: str, prompt: Sequence[int]) -> float:
    """Median length of a pass of one position.

    Raises:
        PilotfishError: the verifier reports none.
    """
    with Client(address) as client:
        answer = client.complete(
            prompt, max_tokens=NUM_TOKENS, speculation=Speculation(is_off=True), include_rounds=True, temperature=0.0
        )
    lengths = [round_.pass_us for round_ in answer.rounds if round_.pass_positions == 1]
    if not lengths:
        raise PilotfishError(f"no pass of one position among {len(answer.rounds)} rounds; is somebody else served?")
    return statistics.median(lengths) / 1e6


def arms_at(addresses: Mapping[float, str], arms: Sequence[Arm]) -> list[Arm]:
    """Every arm at every coordinator.

    Args:
        addresses: of the coordinators, by their round trip in passes.
        arms: as they are at any of them.
    """
    return [
        replace(arm, name=named(arm.name, trip), address=address) for trip, address in addresses.items() for arm in arms
    ]


def named(arm: str, round_trip: float) -> str:
    """An arm's name at a distance."""
    return f"{arm} @{round_trip:g}"


def at(blocks: Sequence[Block], round_trip: float) -> list[Block]:
    """The blocks at one distance, as loads of their own."""
    end = named("", round_trip)
    return [
        replace(block, arm=block.arm.removesuffix(end), workload=f"{block.workload}, {round_trip:g} passes away")
        for block in blocks
        if block.arm.endswith(end)
    ]


def judged(blocks: Sequence[Block], round_trips: Sequence[float]) -> list[Verdict]:
    """Plain decoding does not feel the network, and ours is never under plain decoding.

    Where there is no round trip of 0 passes the first claim cannot be judged.
    """
    found = []
    for point in dict.fromkeys(block.point for block in blocks):
        here = [block for block in blocks if block.point == point]
        for trip in round_trips:
            where = f"{point[0]}, {point[1]} at once, {trip:g} passes away"
            if trip and 0.0 in round_trips:
                near = ratio(here, named(PLAIN, trip), named(PLAIN, 0.0))
                found.append(Verdict(where, "plain over plain at 0", LEAST_OF_NEAR, near))
            ours = ratio(here, named(OURS, trip), named(PLAIN, trip))
            found.append(Verdict(where, "ours over plain", LEAST_OF_PLAIN, ours))
    return found


def against_fixed(blocks: Sequence[Block], round_trips: Sequence[float], least: float) -> list[Verdict]:
    """Ours over the best γ that is fixed at the same distance."""
    of_distance = (verdicts(at(blocks, trip), least_of_fixed=least) for trip in round_trips)
    return [one for found in of_distance for one in found if one.what.startswith("ours over the best fixed")]
