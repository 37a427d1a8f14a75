"""Peers must have one vocabulary: its strings are compared, not its size, and who differs is told by name."""

from __future__ import annotations

import json
from pathlib import Path

from pilotfish.messages import Speculation
from pilotfish.tablefile import TableFile
from tests.cases.conftest import Starting
from tests.cases.services import LETTERS, RANDOM, Drafter, Services, Start, until


async def drafter_of(starts: Start, folder: Path, vocabulary: list[str]) -> Drafter:
    """A drafter whose model has other token strings."""
    path = folder / "other.json"
    path.write_text(json.dumps(dict(RANDOM) | {"vocabulary": vocabulary}), encoding="utf-8")
    return await starts.drafter(["model"], model=f"table:{path}")


async def test_a_drafter_of_permuted_strings_is_refused_by_name(start: Starting, tmp_path: Path) -> None:
    """A drafter of as many tokens in another order is not used, Info says why, and requests are served plainly."""
    # seen in sglang#24051
    async with start(RANDOM) as starts:
        verifier = await starts.verifier()
        drafter = await drafter_of(starts, tmp_path, [LETTERS[1], LETTERS[0], *LETTERS[2:]])
        coordinator = await starts.coordinator([verifier.server.address], [drafter.server.address])
        services = Services(TableFile.load(starts.table), verifier, drafter, coordinator, starts.exits)
        await until(lambda: all(peer.incarnation for peer in coordinator.service.roster.drafters.values()))
        answer = await services.complete(max_tokens=30, speculation=Speculation(gamma=4))
        assert answer.ids == services.greedy("abc", 30)
        assert answer.statistics.num_drafts == 0
        info = await services.client.info()
        problem = next(peer.problem for peer in info.peers if peer.role == "drafter")
        assert problem is not None
        assert "vocabulary" in problem
        assert "tokenizer" in problem


async def test_a_verifier_of_other_strings_is_not_used(start: Starting, tmp_path: Path) -> None:
    """Of two verifiers the one with another vocabulary is never chosen, and Info says why."""
    path = tmp_path / "other.json"
    path.write_text(json.dumps(dict(RANDOM) | {"vocabulary": [*LETTERS[1:], "a"]}), encoding="utf-8")
    async with start(RANDOM) as starts:
        right, wrong = await starts.verifier(), await starts.verifier(model=f"table:{path}")
        drafter = await starts.drafter()
        addresses = [wrong.server.address, right.server.address]
        coordinator = await starts.coordinator(addresses, [drafter.server.address])
        await until(lambda: all(peer.incarnation for peer in coordinator.service.roster.verifiers.values()))
        services = Services(TableFile.load(starts.table), right, drafter, coordinator, starts.exits)
        for _ in range(4):
            answer = await services.complete(max_tokens=10)
            assert answer.started.verifier == right.server.address
            assert answer.ids == services.greedy("abc", 10)
        problems = {peer.address: peer.problem for peer in (await services.client.info()).peers}
        assert "vocabulary" in (problems[wrong.server.address] or "")
        assert problems[right.server.address] is None
