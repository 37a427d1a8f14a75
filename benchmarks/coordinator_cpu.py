"""What a round costs a coordinator: CPU time per round and session, against peers that answer at once.

    python -m benchmarks.coordinator_cpu --sessions 32 --gamma 4

Peers and clients run in processes of their own, so the CPU time of this one is the coordinator's; all run on uvloop, as
services do. The verifier makes a pass every `--pass-ms` and keeps all of every draft; the drafter answers in `--parts`
parts.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import multiprocessing
import pstats
import time
from collections.abc import AsyncIterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from coordinator.service import SERVICE, CoordinatorService
from coordinator.settings import CoordinatorSettings
from pilotfish import AsyncClient, tablefile
from pilotfish.messages import Speculation
from pilotfish.rpc import FrameQueue, server_options
from pilotfish.server import Server, run_process
from pilotfish.telemetry import Telemetry
from pilotfish.tokenizer import TableTokenizer
from pilotfish.v1 import (
    common_pb2,
    coordinator_pb2_grpc,
    drafter_pb2,
    drafter_pb2_grpc,
    peer_pb2,
    verifier_pb2,
    verifier_pb2_grpc,
)

VOCABULARY = tuple("abcdefghijklmnopqrstuvwxyz ")
TOKENIZER = TableTokenizer(tablefile.parse({"vocabulary": list(VOCABULARY), "script": [0]}))


class FastVerifier(verifier_pb2_grpc.VerifierServicer):
    """Keeps every draft; one pass for all that have come."""

    def __init__(self, pass_s: float) -> None:
        self.pass_s = pass_s
        self.num_passes = 0
        self.works: dict[
            bytes, tuple[int, list[int], bool, int, int]
        ] = {}  # position, tokens, is complete, round, limit
        self.limits: dict[bytes, int] = {}

    async def Info(self, request: Any, context: Any) -> verifier_pb2.VerifierInfoResponse:  # noqa: N802 - the name in the contract
        peer = peer_pb2.PeerInfo(
            incarnation=1,
            model="fast",
            vocabulary_hash=TOKENIZER.vocabulary_hash,
            vocabulary_size=len(VOCABULARY),
            context_length=1 << 20,
        )
        return verifier_pb2.VerifierInfoResponse(peer=peer)

    async def Verify(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the name in the contract
        answers: FrameQueue[Any] = FrameQueue()
        reader = asyncio.create_task(self._read(request_iterator))
        passes = asyncio.create_task(self._pass_often(answers))
        try:
            async for items in answers.frames():
                yield verifier_pb2.VerifyResponse(answers=items, load=verifier_pb2.VerifierLoad(pass_us=1))
        finally:
            reader.cancel()
            passes.cancel()

    async def _read(self, frames: AsyncIterator[Any]) -> None:
        async for frame in frames:
            for item in frame.items:
                session = item.header.session
                kind = item.WhichOneof("kind")
                if kind == "open":
                    start = item.open.start
                    self.limits[session] = start.num_prompt_tokens + start.max_tokens
                elif kind == "work":
                    self._take(session, item.header, item.work)
                elif kind == "close":
                    self.works.pop(session, None)
                    self.limits.pop(session, None)

    def _take(self, session: bytes, header: Any, work: Any) -> None:
        known = self.works.get(session)
        tokens = list(work.draft.tokens)
        if known is not None and known[3] == header.round:
            tokens = known[1] + tokens
        self.works[session] = (header.position, tokens, work.is_complete, header.round, self.limits.get(session, 0))

    async def _pass_often(self, answers: FrameQueue[Any]) -> None:
        while True:
            await asyncio.sleep(self.pass_s)
            self.num_passes += 1
            for session, (position, tokens, is_complete, round_, limit) in list(self.works.items()):
                if is_complete:
                    del self.works[session]
                    committed = [*tokens, 0][: limit - position]
                    is_last = position + len(committed) >= limit
                    answers.put(_verdict(session, position, committed, round_, len(tokens), is_last))


def _verdict(session: bytes, position: int, tokens: Sequence[int], round_: int, num_drafted: int, is_last: bool) -> Any:
    kinds = [common_pb2.TOKEN_KIND_ACCEPTED] * (len(tokens) - 1) + [common_pb2.TOKEN_KIND_BONUS]
    return verifier_pb2.VerifyAnswer(
        header=peer_pb2.Header(session=session, incarnation=1, position=position, round=round_),
        verdict=verifier_pb2.Verdict(
            tokens=tokens,
            kinds=kinds,
            num_drafted=num_drafted,
            num_accepted=num_drafted,
            node_probabilities=b"\xff" * num_drafted,
            finish=common_pb2.FINISH_REASON_LENGTH if is_last else common_pb2.FINISH_REASON_UNSPECIFIED,
            queue_us=1,
            pass_us=1,
            pass_positions=1,
        ),
    )


class FastDrafter(drafter_pb2_grpc.DrafterServicer):
    """Proposes the same tokens to everybody, at once."""

    def __init__(self, num_parts: int) -> None:
        self.num_parts = num_parts

    async def Info(self, request: Any, context: Any) -> drafter_pb2.DrafterInfoResponse:  # noqa: N802 - the name in the contract
        peer = peer_pb2.PeerInfo(
            incarnation=1, model="fast", vocabulary_hash=TOKENIZER.vocabulary_hash, speculators=["model"]
        )
        return drafter_pb2.DrafterInfoResponse(peer=peer)

    async def Draft(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the name in the contract
        answers: FrameQueue[Any] = FrameQueue()
        reader = asyncio.create_task(self._read(request_iterator, answers))
        try:
            async for items in answers.frames():
                yield drafter_pb2.DraftResponse(answers=items, load=drafter_pb2.DrafterLoad(start_us=1))
        finally:
            reader.cancel()

    async def _read(self, frames: AsyncIterator[Any], answers: FrameQueue[Any]) -> None:
        async for frame in frames:
            proposals = [item for item in frame.items if item.WhichOneof("kind") == "propose"]
            for part in range(self.num_parts):
                for item in proposals:
                    answers.put(self._part(item, part))
                if self.num_parts > 1:
                    await asyncio.sleep(0.001)

    def _part(self, item: Any, part: int) -> Any:
        gamma = item.propose.gamma
        size = -(-gamma // self.num_parts)
        first = part * size
        nodes = range(first, min(first + size, gamma))
        is_complete = first + size >= gamma
        header = peer_pb2.Header(
            session=item.header.session, incarnation=1, position=item.header.position, round=item.header.round
        )
        return drafter_pb2.DraftAnswer(
            header=header,
            part=drafter_pb2.DraftPart(
                draft=peer_pb2.Draft(
                    tokens=[node % len(VOCABULARY) for node in nodes],
                    parents=[node - 1 for node in nodes],
                    q=[peer_pb2.Distribution(ids=range(16), weights=range(1, 17)) for _ in nodes],
                ),
                first_node=first,
                is_complete=is_complete,
                end=drafter_pb2.DRAFT_END_GAMMA if is_complete else drafter_pb2.DRAFT_END_UNSPECIFIED,
            ),
        )


def run_peers(arguments: argparse.Namespace, pipe: Connection) -> None:
    """The peers' process: tells its two ports, runs until it is told to end."""

    async def serve() -> None:
        ports, servers = [], []
        for role in ("verifier", "drafter"):
            server = grpc.aio.server(options=server_options())
            if role == "verifier":
                verifier_pb2_grpc.add_VerifierServicer_to_server(FastVerifier(arguments.pass_ms / 1e3), server)
            else:
                drafter_pb2_grpc.add_DrafterServicer_to_server(FastDrafter(arguments.parts), server)
            health = HealthServicer()
            health_pb2_grpc.add_HealthServicer_to_server(health, server)
            await health.set(f"pilotfish.v1.{role.capitalize()}", health_pb2.HealthCheckResponse.SERVING)
            ports.append(server.add_insecure_port("127.0.0.1:0"))
            await server.start()
            servers.append(server)
        pipe.send(ports)
        await asyncio.to_thread(pipe.recv)
        for server in servers:
            await server.stop(None)

    run_process(serve())


def run_clients(arguments: argparse.Namespace, address: str, pipe: Connection) -> None:
    """The clients' process: for every number of tokens it is told, all sessions generate so many; tells the rounds."""

    async def generate() -> None:
        async with AsyncClient(address) as client:
            while (num_tokens := await asyncio.to_thread(pipe.recv)) is not None:
                requests = [
                    client.complete("abc", max_tokens=num_tokens, speculation=Speculation(gamma=arguments.gamma))
                    for _ in range(arguments.sessions)
                ]
                answers = await asyncio.gather(*requests)
                pipe.send(sum(answer.statistics.num_verdicts for answer in answers))

    run_process(generate())


async def measure(arguments: argparse.Namespace, ports: Sequence[int]) -> dict[str, int | float]:
    """Serve the clients and measure this process's CPU time meanwhile."""
    settings = CoordinatorSettings(
        port=0,
        model="fast",
        verifiers=(f"127.0.0.1:{ports[0]}",),
        drafters=(f"127.0.0.1:{ports[1]}",),
        draft_deadline_ms=1000.0,
        patience_ms=1000.0,
    )
    service = CoordinatorService(settings, TOKENIZER, telemetry=Telemetry("coordinator"))
    server = Server(SERVICE, "127.0.0.1", 0)
    coordinator_pb2_grpc.add_CoordinatorServicer_to_server(service, server.grpc)
    await server.start()
    await service.start()
    while service.roster.num_drafters_up == 0:  # noqa: ASYNC110 - once, and soon
        await asyncio.sleep(0.01)
    pipe, end = multiprocessing.Pipe()
    clients = multiprocessing.get_context("spawn").Process(target=run_clients, args=(arguments, server.address, end))
    clients.start()
    pipe.send(20)
    await asyncio.to_thread(pipe.recv)
    profile = cProfile.Profile() if arguments.profile else None
    pipe.send(arguments.tokens)
    begin_s, begin_cpu_s = time.perf_counter(), time.process_time()
    if profile is not None:
        profile.enable()
    num_rounds = await asyncio.to_thread(pipe.recv)
    if profile is not None:
        profile.disable()
        pstats.Stats(profile).sort_stats("tottime").print_stats(35)
    wall_s, cpu_s = time.perf_counter() - begin_s, time.process_time() - begin_cpu_s
    pipe.send(None)
    await asyncio.to_thread(clients.join)
    await server.stop(1.0, service.stop)
    return {
        "sessions": arguments.sessions,
        "gamma": arguments.gamma,
        "parts": arguments.parts,
        "rounds": num_rounds,
        "rounds_per_s": num_rounds / wall_s,
        "cpu_share": cpu_s / wall_s,
        "cpu_ms_per_round_and_session": cpu_s * 1e3 / num_rounds,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=32, help="requests at once")
    parser.add_argument("--gamma", type=int, default=4, help="tokens drafted in a round")
    parser.add_argument("--parts", type=int, default=1, help="parts a draft comes in")
    parser.add_argument("--tokens", type=int, default=500, help="tokens of an answer")
    parser.add_argument("--pass-ms", type=float, default=20.0, help="time between two passes")
    parser.add_argument("--profile", action="store_true", help="print where the time goes; the profiler costs as well")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    pipe, end = multiprocessing.Pipe()
    peers = multiprocessing.get_context("spawn").Process(target=run_peers, args=(arguments, end))
    peers.start()
    try:
        figures = run_process(measure(arguments, pipe.recv()))
    finally:
        pipe.send(None)
        peers.join()
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:>30}  {value:.3f}" if isinstance(value, float) else f"{name:>30}  {value}")


if __name__ == "__main__":
    main()
