"""What telemetry costs: the same requests with none at all, with metrics, and with 10% and 100% of the requests traced.

    python -m benchmarks.tracing_cost                    # a table model: no time is spent but the services' own
    python -m benchmarks.tracing_cost --pass-ms 20       # its passes take the time of a GPU's, and no processor
    python -m benchmarks.tracing_cost --model smollm2-135m

The three services share a process with their client, so that everything telemetry does is in their throughput; spans
and metrics go by OTLP/gRPC to a process that throws them away. Arms take turns at the same services (another process
would be faster or slower by more than what is to be seen), in every block in another order, and are compared within it:
with `absent`, where services have no telemetry at all.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from benchmarks.documents import REWRITINGS
from benchmarks.inprocess import serve as serve_in
from benchmarks.statistics import Estimate, geometric_mean
from coordinator.service import SERVICE as COORDINATOR
from coordinator.service import CoordinatorService
from coordinator.settings import CoordinatorSettings
from drafter.service import SERVICE as DRAFTER
from drafter.service import DrafterService
from drafter.settings import DrafterSettings
from pilotfish import AsyncClient
from pilotfish.messages import Speculation
from pilotfish.metrics import Role
from pilotfish.server import run_process
from pilotfish.telemetry import Telemetry
from pilotfish.tokenizer import load_tokenizer
from pilotfish.v1 import coordinator_pb2_grpc, drafter_pb2_grpc, verifier_pb2_grpc
from verifier.service import SERVICE as VERIFIER
from verifier.service import VerifierService
from verifier.settings import VerifierSettings

TABLE: Final = {"vocabulary": [*"abcdefghijklmnop"], "random": {"seed": 3, "order": 2, "sharpness": 1.5}}
ROLES: Final[tuple[Role, ...]] = ("coordinator", "drafter", "verifier")
SPAWN: Final = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Arm:
    """How much telemetry services have."""

    name: str
    has_metrics: bool
    trace_ratio: float | None  # None: nothing is sent

    def telemetry(self, role: Role, endpoint: str) -> Telemetry:
        if not self.has_metrics:
            return Telemetry.off()
        if self.trace_ratio is None:
            return Telemetry(role)
        return Telemetry.of_service(role, "0", endpoint, "grpc", self.trace_ratio)


ARMS: Final = (Arm("absent", False, None), Arm("off", True, None), Arm("10%", True, 0.1), Arm("100%", True, 1.0))


class Turn(NamedTuple):
    """An arm's share of a block."""

    wall_s: float
    cpu_s: float  # of the services' process and client's
    num_tokens: int


def discard(pipe: Connection) -> None:
    """A collector's process: tells its port, answers everything with nothing, runs until it is told to end."""

    class Handler(grpc.GenericRpcHandler):  # type: ignore[type-arg] # generic only in the stubs
        def service(self, details: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"")

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Handler()])
    pipe.send(server.add_insecure_port("127.0.0.1:0"))
    server.start()
    pipe.recv()
    server.stop(None)


class Switched(Telemetry):
    """A service's telemetry that becomes another arm's between two turns: one process, so that nothing else differs."""

    def __init__(self, role: Role, endpoint: str) -> None:
        super().__init__()
        self._arms = {arm.name: arm.telemetry(role, endpoint) for arm in ARMS}

    def become(self, name: str) -> None:
        arms = self._arms
        self.__dict__ = vars(arms[name]) | {"_arms": arms}

    def shutdown(self) -> None:
        for telemetry in self._arms.values():
            telemetry.shutdown()


def serve(arguments: argparse.Namespace, model: str, endpoint: str, pipe: Connection) -> None:
    """The services' process: tells that it is there, runs a turn of every arm it is told, until that is empty."""

    async def turns() -> None:
        telemetries: dict[Role, Switched] = {role: Switched(role, endpoint) for role in ROLES}
        async with AsyncExitStack() as exits:
            client = await _services(exits, telemetries, arguments, model)
            pipe.send(None)
            while name := await asyncio.to_thread(pipe.recv):
                for telemetry in telemetries.values():
                    telemetry.become(name)
                pipe.send(await _turn(client, arguments))
        for telemetry in telemetries.values():
            telemetry.shutdown()

    run_process(turns())


async def _services(
    exits: AsyncExitStack, telemetries: Mapping[Role, Telemetry], arguments: argparse.Namespace, model: str
) -> AsyncClient:
    """The three services, and a client of theirs."""
    deciding = VerifierSettings(model=model, port=0, threads=1, dtype=arguments.dtype, measure_cost="never")
    verifier = VerifierService(deciding, telemetries["verifier"])
    to_verifier = await serve_in(exits, VERIFIER, verifier, verifier_pb2_grpc.add_VerifierServicer_to_server)
    drafter = DrafterService(DrafterSettings(port=0), telemetry=telemetries["drafter"])
    to_drafter = await serve_in(exits, DRAFTER, drafter, drafter_pb2_grpc.add_DrafterServicer_to_server)
    settings = CoordinatorSettings(model=model, port=0, verifiers=(to_verifier,), drafters=(to_drafter,))
    coordinator = CoordinatorService(settings, load_tokenizer(model), telemetry=telemetries["coordinator"])
    to_coordinator = await serve_in(
        exits, COORDINATOR, coordinator, coordinator_pb2_grpc.add_CoordinatorServicer_to_server
    )
    await coordinator.roster.wait_until(lambda: coordinator.roster.num_drafters_up == 1, 30.0)
    return await exits.enter_async_context(AsyncClient(to_coordinator))


async def _turn(client: AsyncClient, arguments: argparse.Namespace) -> Turn:
    """All requests of a turn, so many at a time."""
    num_tokens = 0
    numbers = iter(range(arguments.requests))

    async def ask() -> None:
        nonlocal num_tokens
        for number in numbers:
            answer = await client.complete(
                _prompt(arguments.model, number),
                temperature=0.0,
                max_tokens=arguments.tokens,
                ignore_eos=True,
                speculation=Speculation(gamma=arguments.gamma),
            )
            num_tokens += len(answer.ids)

    began_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(ask() for _ in range(arguments.sessions)))
    return Turn(time.perf_counter() - began_s, time.process_time() - cpu_s, num_tokens)


def _prompt(model: str | None, number: int) -> str:
    """Text with something to copy, so that lookup has something to draft."""
    if model is None:
        return "abcdefgh" * 4
    rewriting = REWRITINGS[number % len(REWRITINGS)]
    return f"{rewriting.task}\n\n{rewriting.text}\n"


def measure(arguments: argparse.Namespace, model: str) -> dict[str, list[Turn]]:
    """The turns of every arm, block by block."""
    collector, end = SPAWN.Pipe()
    collecting = SPAWN.Process(target=discard, args=(end,))
    collecting.start()
    services, end = SPAWN.Pipe()
    serving = SPAWN.Process(target=serve, args=(arguments, model, f"http://127.0.0.1:{collector.recv()}", end))
    serving.start()
    turns: dict[str, list[Turn]] = {arm.name: [] for arm in ARMS}
    order, chance = list(turns), random.Random(0)
    try:
        services.recv()
        for block in range(1 + arguments.blocks):
            chance.shuffle(order)
            for name in order:
                services.send(name)
                turn = services.recv()
                if block:  # the first one warms up
                    turns[name].append(turn)
    finally:
        for pipe, process in ((services, serving), (collector, collecting)):
            pipe.send("")
            process.join()  # the services send what they still have before the collector ends
    return turns


def ratios(turns: Sequence[Turn], absent: Sequence[Turn]) -> tuple[Estimate, Estimate]:
    """Throughput and processor time per token of an arm over those without telemetry, block by block."""
    pairs = list(zip(turns, absent, strict=True))
    throughput = [(a.num_tokens / a.wall_s) / (b.num_tokens / b.wall_s) for a, b in pairs]
    cpu = [(a.cpu_s / a.num_tokens) / (b.cpu_s / b.num_tokens) for a, b in pairs]
    return geometric_mean(throughput), geometric_mean(cpu)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="target; without it a table model")
    parser.add_argument("--pass-ms", type=float, default=0.0, help="what a pass of the table model takes")
    parser.add_argument("--dtype", default="auto", help="of the target's weights")
    parser.add_argument("--blocks", type=int, default=20, help="turns of each arm")
    parser.add_argument("--requests", type=int, default=40, help="in a turn")
    parser.add_argument("--sessions", type=int, default=8, help="requests at once")
    parser.add_argument("--tokens", type=int, default=48, help="tokens of an answer")
    parser.add_argument("--gamma", type=int, default=4, help="tokens drafted in a round")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table.json"
        pass_us = [[1, 1000 * arguments.pass_ms]] if arguments.pass_ms else []
        table.write_text(json.dumps(TABLE | {"pass_us": pass_us}), encoding="utf-8")
        turns = measure(arguments, arguments.model or f"table:{table}")
    absent = turns["absent"]
    if arguments.json:
        print(json.dumps({name: [turn._asdict() for turn in mine] for name, mine in turns.items()}))
        return
    mean = sum(turn.num_tokens for turn in absent) / sum(turn.wall_s for turn in absent)
    print(f"{'absent':>8}  {mean:.0f} tokens a second")
    for name, mine in turns.items():
        if name != "absent":
            throughput, cpu = ratios(mine, absent)
            print(f"{name:>8}  throughput {_interval(throughput)}  processor time per token {_interval(cpu)}")


def _interval(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} [{estimate.low:.3f}, {estimate.high:.3f}]"


if __name__ == "__main__":
    main()
