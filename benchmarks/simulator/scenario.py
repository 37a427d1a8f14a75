"""One deployment under one load: every arm answers the same requests, and what that costs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any, Literal, TypeAlias

from benchmarks.simulator import hardware
from benchmarks.simulator.arms import Fixed, Ours, Table
from benchmarks.simulator.hardware import MODELS
from benchmarks.simulator.outcome import Outcome, percentile
from benchmarks.simulator.run import Arm, Simulation, Verifier
from benchmarks.simulator.world import Network, Request, Workload, poisson

Placement: TypeAlias = Literal["remote", "shared", "none"]
BATCH_TABLE = ((1, 5), (4, 4), (8, 3), (16, 2), (32, 1), (64, 0))  # as tables by batch size are usually given
LOCAL_ROUND_TRIP_S = 0.2e-3  # of a drafter on the verifier's own device


@dataclass(frozen=True, slots=True)
class Deployment:
    """Who runs where, and what that costs."""

    target: str  # of hardware.MODELS
    gpu: str  # of hardware.MEMORY_GB
    num_gpus: int
    drafter: str | None  # of hardware.MODELS; None looks tokens up
    drafter_gpu: str
    num_verifiers: int = 1
    num_pods: int = 1  # drafters for each verifier
    placement: Placement = "remote"
    verifier_dollars: float | None = None  # per hour, each; None: what such devices usually cost
    drafter_dollars: float | None = None

    def verifiers(self, network: Network) -> list[Verifier]:
        """Fresh ones."""
        on = hardware.host(self.gpu, self.num_gpus)
        guest = MODELS[self.drafter] if self.drafter and self.placement == "shared" else None
        model = hardware.verifier_model(MODELS[self.target], on, guest)
        drafts_on = on if self.placement == "shared" else hardware.host(self.drafter_gpu)
        own = MODELS[self.drafter] if self.drafter else None
        drafter = hardware.drafter_model(own, drafts_on, 1 if self.placement == "shared" else self.num_pods)
        return [Verifier(model, drafter, network) for _ in range(self.num_verifiers)]

    @property
    def dollars_per_hour(self) -> float:
        """Of all instances together."""
        verifier = self.verifier_dollars
        if verifier is None:
            verifier = hardware.host(self.gpu, self.num_gpus).dollars_per_hour
        has_pods = self.placement == "remote" and self.drafter is not None
        pod = self.drafter_dollars
        if pod is None:
            pod = hardware.host(self.drafter_gpu).dollars_per_hour
        return self.num_verifiers * (verifier + (self.num_pods * pod if has_pods else 0.0))


@dataclass(frozen=True, slots=True)
class Load:
    """What comes in."""

    workload: Workload
    rate_per_s: float = 1.0
    duration_s: float = 30.0
    warm_s: float = 5.0
    trace: Sequence[Request] | None = None  # instead of the workload

    def requests(self, round_trip_s: float, seed: int) -> list[Request]:
        """The same for every arm; round trips are the deployment's."""
        if self.trace is not None:
            return [replace(request, round_trip_s=round_trip_s) for request in self.trace]
        return poisson(self.rate_per_s, self.duration_s, self.workload, round_trip_s, random.Random(seed))


@dataclass(frozen=True, slots=True)
class Targets:
    """What counts as served well; infinite: anything does."""

    first_token_s: float = inf
    token_s: float = inf


def arm_of(name: str, seed: int) -> Callable[[], Arm]:
    """An arm by name: plain, a number, table, ours, oracle, ours-ahead, oracle-ahead; KeyError for any other."""
    if name == "plain":
        return lambda: Fixed(0)
    if name.isdecimal():
        return lambda: Fixed(int(name))
    if name == "table":
        return lambda: Table(BATCH_TABLE)
    base, _, ahead = name.partition("-")
    if base not in {"ours", "oracle"} or ahead not in {"", "ahead"}:
        raise KeyError(name)
    return lambda: Ours(knows_alpha=base == "oracle", may_draft_ahead=bool(ahead), seed=seed)


def run(
    deployment: Deployment, load: Load, round_trip_s: float, arm: str, targets: Targets, seed: int
) -> dict[str, Any]:
    """One arm under one load, as figures by name."""
    if deployment.placement == "shared":
        round_trip_s = LOCAL_ROUND_TRIP_S
    requests = load.requests(round_trip_s, seed)
    verifiers = deployment.verifiers(Network(jitter=0.02, jitter_s=0.02 * round_trip_s + 20e-6))
    simulation = Simulation(verifiers, requests, arm_of(arm, seed)(), seed)
    outcome = simulation.run(load.duration_s, load.warm_s)
    return {
        "arm": arm,
        "placement": deployment.placement,
        "round_trip_s": round_trip_s,
        "rate_per_s": load.rate_per_s,
        **figures(outcome, targets, deployment.dollars_per_hour, len(verifiers)),
    }


def figures(outcome: Outcome, targets: Targets, dollars_per_hour: float, num_verifiers: int) -> dict[str, Any]:
    """What was measured, by name; None where nothing was."""
    first, each = ([f.first_token_s for f in outcome.finished], [f.token_s for f in outcome.finished])
    rate = outcome.tokens_per_s
    return {
        "num_finished": len(outcome.finished),
        "tokens_per_s": rate,
        "goodput": outcome.goodput(targets.first_token_s, targets.token_s),
        "first_token_s_p50": percentile(first, 0.5),
        "first_token_s_p99": percentile(first, 0.99),
        "token_s_p50": percentile(each, 0.5),
        "token_s_p99": percentile(each, 0.99),
        "dollars_per_million_tokens": dollars_per_hour / rate / 3600 * 1e6 if rate else None,
        "amplification": outcome.amplification,
        "acceptance": outcome.num_accepted / outcome.num_drafted if outcome.num_drafted else None,
        "drafted_per_round": outcome.num_drafted / outcome.num_rounds if outcome.num_rounds else 0.0,
        "switches_per_round": outcome.switches_per_round,
        "busy": outcome.busy_s / outcome.seconds / num_verifiers if outcome.seconds else 0.0,
    }
