"""What a draft costs: t(gamma) = t0 + gamma · td, of ngram and of a model: `python -m benchmarks.drafting`.

Speculators are driven as a drafter drives them, without gRPC; one thread, medians over rounds; the arms take turns. On
a CPU it is processor time, since the machine may be shared. t0 is what the first step takes beyond td: it reads two
tokens more than the others. Behind them what of a step is not the forward (td - forward: packing, p, drawing), what
committing a token costs, and the round trip through gRPC.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from drafter.rounds import Rounds
from drafter.service import SERVICE, DrafterService
from drafter.settings import DrafterSettings
from drafter.speculators import Speculator
from drafter.speculators.model import ModelSpeculator
from drafter.speculators.model_load import load
from drafter.speculators.ngram import NgramIndex, NgramSpeculator
from drafter.stopping import Gamma
from pilotfish import prefix
from pilotfish.engine.backend import Backend
from pilotfish.engine.batch import Batch
from pilotfish.messages import DraftRequest, Open, Rule, Sampling
from pilotfish.rpc import channel
from pilotfish.server import Server
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc
from pilotfish.wire.drafter import write_items

WAYS: dict[str, dict[str, Any]] = {
    "T = 0": {"sampling": Sampling(0.0), "rule": Rule.MATCH},
    "T = 0.7, top_p 0.9, block": {"sampling": Sampling(0.7, top_p=0.9), "rule": Rule.BLOCK},
    "T = 1, coupled": {"sampling": Sampling(1.0), "rule": Rule.MATCH, "is_coupled": True},
}


@dataclass
class Times:
    """Of the steps of one arm, in milliseconds."""

    first: list[float] = field(default_factory=list)  # those that begin a draft
    others: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)  # of the others, what is not the model's forward

    @property
    def td(self) -> float:
        return median(self.others) if self.others else 0.0

    @property
    def t0(self) -> float:
        return median(self.first) - self.td


class TimedBackend:
    """A backend that says how long its last forward took."""

    def __init__(self, backend: Backend, clock: Callable[[], float]) -> None:
        self._backend = backend
        self._clock = clock
        self.forward_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, batch: Batch) -> torch.Tensor:
        started_s = self._clock()
        logits = self._backend.forward(batch)
        self.forward_s = self._clock() - started_s
        return logits


def opening(session: int, tokens: Sequence[int], **way: Any) -> Open:
    """A session that starts with these tokens."""
    return Open(
        session=session.to_bytes(16, "big"), incarnation=1, vocabulary_hash="", prompt=tuple(tokens), output_so_far=(),
        seed=session, end_ids=frozenset(), max_tokens=1 << 20, lease_s=600.0, **way,
    )  # fmt: skip


class Arm:
    """Some sessions that draft together, round after round, every draft accepted as a whole."""

    def __init__(
        self,
        speculator: Speculator,
        texts: Mapping[int, Sequence[int]],
        way: Mapping[str, Any],
        gamma: int,
        clock: Callable[[], float],
        backend: TimedBackend | None = None,
    ) -> None:
        self.times = Times()
        self._rounds = Rounds(speculator, time.monotonic)
        self._gamma = gamma
        self._clock = clock
        self._backend = backend
        self._positions = {session.to_bytes(16, "big"): len(text) for session, text in texts.items()}
        for session, text in texts.items():
            self._rounds.open(opening(session, text, **way))
        while self._rounds.read_ahead():
            pass

    def round(self) -> None:
        """Draft once for each session, and commit what was drafted and a token more."""
        for session, position in self._positions.items():
            request = DraftRequest(session, 1, position, 0, 0, (), self._gamma, 1 << 30)
            self._rounds.start(request, time.monotonic(), Gamma(self._gamma))
        drafted: dict[bytes, list[int]] = {session: [] for session in self._positions}
        steps = 0
        while not self._rounds.is_idle:
            started_s = self._clock()
            drawn = self._rounds.step()
            self._record(self._clock() - started_s, is_first=not steps)
            steps += 1
            for _, part, _ in drawn:
                drafted[part.session] += part.draft.tokens
        for session, tokens in drafted.items():
            self._rounds.observe(session, [*tokens, 1])
            self._positions[session] += len(tokens) + 1

    def _record(self, step_s: float, *, is_first: bool) -> None:
        (self.times.first if is_first else self.times.others).append(step_s * 1e3)
        if self._backend is not None and not is_first:
            self.times.beside.append((step_s - self._backend.forward_s) * 1e3)


def model_arms(arguments: argparse.Namespace, clock: Callable[[], float]) -> dict[str, Arm]:
    """The model at each batch size, in each way of drawing."""
    settings = DrafterSettings(model=arguments.model, dtype=arguments.dtype, device=arguments.device, threads=1)
    loaded, facts, _ = load(settings)
    backend = TimedBackend(loaded, clock)
    speculator = ModelSpeculator(backend, facts, num_kv_pages=1024)
    chance = random.Random(0)
    arms: dict[str, Arm] = {}
    for batch in arguments.batch:
        for name, way in WAYS.items():
            first = 1000 * len(arms)
            texts = {
                first + i: [chance.randrange(facts.vocabulary_size) for _ in range(arguments.context)]
                for i in range(batch)
            }
            arms[f"model, {name}, batch {batch}"] = Arm(speculator, texts, way, arguments.gamma, clock, backend)
    return arms


def ngram_arms(arguments: argparse.Namespace, clock: Callable[[], float]) -> dict[str, Arm]:
    """Prompt lookup over texts that repeat themselves."""
    half = [random.Random(0).randrange(1000) for _ in range(arguments.context // 2)]
    return {
        f"ngram, batch {batch}": Arm(
            NgramSpeculator(), dict.fromkeys(range(batch), half * 2), WAYS["T = 0"], arguments.gamma, clock
        )
        for batch in arguments.batch
    }


def append_us(num_tokens: int = 32_768) -> float:
    """Microseconds to commit a token to ngram's index, in a long text."""
    chance = random.Random(0)
    tokens = [chance.randrange(49_152) for _ in range(num_tokens)]
    index = NgramIndex(2, 5)
    started_s = time.perf_counter()
    index.append(tokens)
    return (time.perf_counter() - started_s) / num_tokens * 1e6


async def round_trip_ms(gamma: int, num_rounds: int) -> float:
    """From sending a request to having its draft, through gRPC on loopback, with ngram."""
    service = DrafterService(DrafterSettings())
    server = Server(SERVICE, "127.0.0.1", 0)
    drafter_pb2_grpc.add_DrafterServicer_to_server(service, server.grpc)
    await server.start()
    await service.start()
    text = list(range(50)) * 2
    session = (1).to_bytes(16, "big")
    outgoing: asyncio.Queue[Any] = asyncio.Queue()

    async def frames() -> Any:
        while (frame := await outgoing.get()) is not None:
            yield frame

    def send(message: Any) -> None:
        outgoing.put_nowait(drafter_pb2.DraftRequest(items=write_items(message)))

    times = []
    async with channel(server.address) as to:
        answers = drafter_pb2_grpc.DrafterStub(to).Draft(frames()).__aiter__()
        start = opening(1, text, **WAYS["T = 0"])
        send(Open(**{name: getattr(start, name) for name in start.__slots__} | {"incarnation": service.incarnation}))
        await anext(answers)
        prefix_hash = prefix.extend(prefix.EMPTY, text)
        for round_ in range(num_rounds):
            started_s = time.perf_counter()
            send(DraftRequest(session, service.incarnation, len(text), prefix_hash, round_, (), gamma, 1 << 30))
            await anext(answers)
            times.append((time.perf_counter() - started_s) * 1e3)
        outgoing.put_nowait(None)
    await server.stop(1.0, service.stop)
    return median(times)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="what drafts; none: ngram only")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="sessions that draft together")
    parser.add_argument("--gamma", type=int, default=5)
    parser.add_argument("--context", type=int, default=256, help="tokens of a prompt")
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    clock = time.thread_time if arguments.device == "cpu" else time.perf_counter
    arms = ngram_arms(arguments, clock)
    if arguments.model != "none":
        arms |= model_arms(arguments, clock)
    for number in range(arguments.rounds + 2):
        for arm in arms.values():
            if number == 2:
                arm.times = Times()  # the first two rounds warm up
            arm.round()
    print(f"{arguments.model}, {arguments.dtype}, {arguments.device}, context {arguments.context}, γ {arguments.gamma}")
    print(f"{'ms':44}{'t0':>9}{'td':>9}{'td - forward':>14}")
    for name, arm in arms.items():
        beside = f"{median(arm.times.beside):14.3f}" if arm.times.beside else ""
        print(f"{name:44}{arm.times.t0:9.3f}{arm.times.td:9.3f}{beside}")
    print(f"ngram, a committed token in 32k: {append_us():.2f} us")
    print(f"ngram, round trip through gRPC: {asyncio.run(round_trip_ms(arguments.gamma, 200)):.2f} ms")


if __name__ == "__main__":
    main()
