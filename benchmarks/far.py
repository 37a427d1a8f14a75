"""The three services in one process, on table models with simulated pass times, the drafter behind a slow wire."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.delay import Wire
from benchmarks.inprocess import serve
from coordinator import service as coordinator
from coordinator.settings import CoordinatorSettings
from drafter import service as drafter
from drafter.settings import DrafterSettings
from pilotfish import AsyncClient
from pilotfish.tokenizer import load_tokenizer
from pilotfish.v1 import coordinator_pb2_grpc, drafter_pb2_grpc, verifier_pb2_grpc
from verifier import service as verifier
from verifier.settings import VerifierSettings

NUM_IDS = 16


@dataclass(frozen=True, slots=True)
class Models:
    """Two table models in files; what to give as the model."""

    target: str
    draft: str


def models(folder: Path, apart: float, pass_us: float, token_us: float) -> Models:
    """A target and a drafter whose laws, of order 2 over 16 ids, lie apart by so much of a mixture.

    Args:
        apart: share of another law in the drafter's; 0: it is the target's.
        pass_us: of the target, flat.
        token_us: of a step of the drafter.
    """
    chance = np.random.default_rng(7)
    target, other = (chance.dirichlet(np.full(NUM_IDS, 0.3), (NUM_IDS, NUM_IDS)) for _ in range(2))
    return Models(
        _write_table(folder / "target.json", target, pass_us),
        _write_table(folder / "draft.json", (1.0 - apart) * target + apart * other, token_us),
    )


def _write_table(path: Path, law: np.ndarray, pass_us: float) -> str:
    rows = {f"{a},{b}": law[a, b].tolist() for a in range(NUM_IDS) for b in range(NUM_IDS)}
    content = {
        "vocabulary": [chr(ord("a") + number) for number in range(NUM_IDS)],
        "law": {"*": [1.0] * NUM_IDS} | rows,
        "pass_us": [[1, pass_us], [1024, pass_us]],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    return f"table:{path}"


@asynccontextmanager
async def services(models: Models, round_trip_s: float, **settings: Any) -> AsyncIterator[AsyncClient]:
    """A client of a coordinator with a verifier beside it and a drafter so far away.

    Args:
        settings: further ones of the coordinator.
    """
    async with AsyncExitStack() as exits:
        target = verifier.VerifierService(VerifierSettings(model=models.target, port=0))
        near = await serve(exits, verifier.SERVICE, target, verifier_pb2_grpc.add_VerifierServicer_to_server)
        draft = drafter.DrafterService(DrafterSettings(model=models.draft, port=0, speculators=("model",)))
        wire = Wire(
            await serve(exits, drafter.SERVICE, draft, drafter_pb2_grpc.add_DrafterServicer_to_server), round_trip_s / 2
        )
        exits.push_async_callback(wire.stop)
        chosen = CoordinatorSettings(
            model=models.target, port=0, verifiers=(near,), drafters=(await wire.start(),), **settings
        )
        coordinating = coordinator.CoordinatorService(chosen, load_tokenizer(models.target))
        add = coordinator_pb2_grpc.add_CoordinatorServicer_to_server
        address = await serve(exits, coordinator.SERVICE, coordinating, add)
        if not await coordinating.roster.wait_until(lambda: coordinating.roster.num_drafters_up == 1, 10.0):
            raise TimeoutError("the drafter was not reached in 10 s")
        yield await exits.enter_async_context(AsyncClient(address))
