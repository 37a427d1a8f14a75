"""Real processes that freeze, die and come back while a client reads: it sees the plain text, whole and once."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import coordinator.__main__ as coordinator_main
import drafter.__main__ as drafter_main
import verifier.__main__ as verifier_main
from pilotfish import AsyncClient
from pilotfish.messages import Chunk, Speculation, TokenKind
from pilotfish.tablefile import TableFile
from tests.end_to_end.processes import fleet

NUM_TOKENS = 3000
PERFECT = Speculation(gamma=4, speculator="tests.drafters:Perfect")
TEMPO = ("--patience-ms", "150", "--draft-deadline-ms", "100", "--lost-after-s", "1", "--failover-s", "60")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.json"
    content = {"vocabulary": list("abcdefghijklmnop"), "random": {"seed": 3, "order": 2}, "pass_us": [[1, 2000]]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def greedy(path: Path, prompt: Sequence[int], num_tokens: int) -> list[int]:
    law = TableFile.load(path)
    tokens = list(prompt)
    for _ in range(num_tokens):
        row = law.probabilities(tokens)
        tokens.append(row.index(max(row)))
    return tokens[len(prompt) :]


def a_verifier(table: Path) -> tuple[str, ...]:
    return ("verifier", "--model", f"table:{table}")


def a_drafter(table: Path) -> tuple[str, ...]:
    return ("drafter", "--speculators", "tests.drafters:Perfect", "--options", f"table={table}")


def a_coordinator(table: Path, verifiers: Sequence[str], drafters: Sequence[str]) -> tuple[str, ...]:
    peers = ("--verifiers", ",".join(verifiers), "--drafters", ",".join(drafters))
    return ("coordinator", "--model", f"table:{table}", *peers, *TEMPO)


class Reader:
    """Reads an answer as far as it is told."""

    def __init__(self, stream: AsyncIterator[Chunk]) -> None:
        self.ids: list[int] = []
        self.verifier = ""
        self._stream = stream

    async def read(self, is_enough: Callable[[Chunk], bool], times: int = 1) -> None:
        """Until so many pieces were what is looked for."""
        while times:
            chunk = await anext(self._stream)
            self.ids += chunk.ids
            self.verifier = chunk.started.verifier if chunk.started else self.verifier
            times -= is_enough(chunk)

    async def drafted(self) -> None:
        await self.read(lambda chunk: TokenKind.BONUS in chunk.kinds, 5)

    async def plain(self) -> None:
        await self.read(lambda chunk: TokenKind.PLAIN in chunk.kinds, 20)


async def test_a_drafter_that_freezes_dies_and_comes_back(table: Path) -> None:
    """A drafter that is absent, started, stopped, continued, killed and started again costs drafts, and no token."""
    # seen in lmdeploy#4883, osaurus#2420, dynamo#13889
    async with fleet() as processes:
        verifying, drafting = await processes.start_all(a_verifier(table), a_drafter(table))
        await drafting.kill()
        coordinating = await processes.start(*a_coordinator(table, [verifying.address], [drafting.address]))
        async with AsyncClient(coordinating.address) as client:
            stream = client.generate([1, 2], temperature=0.0, max_tokens=NUM_TOKENS, speculation=PERFECT)
            reader = Reader(stream)
            await reader.plain()
            await drafting.start()
            await reader.drafted()
            drafting.send(signal.SIGSTOP)
            await reader.plain()
            drafting.send(signal.SIGCONT)
            await reader.drafted()
            await drafting.kill()
            await reader.plain()
            await drafting.start()
            await reader.drafted()
            await stream.aclose()
            assert reader.ids == greedy(table, [1, 2], len(reader.ids))
            whole = await client.complete([1, 2], temperature=0.0, max_tokens=41, speculation=PERFECT)
            assert whole.ids == tuple(greedy(table, [1, 2], 41))
            assert whole.statistics.acceptance_rate == 1.0


async def test_verifiers_that_die_in_mid_answer(table: Path) -> None:
    """When an answer's verifier is killed the other goes on, and when there is no other the one that comes back."""
    async with fleet() as processes:
        *verifying, drafting = await processes.start_all(a_verifier(table), a_verifier(table), a_drafter(table))
        addresses = [verifier.address for verifier in verifying]
        coordinating = await processes.start(*a_coordinator(table, addresses, [drafting.address]))
        async with AsyncClient(coordinating.address) as client:
            seeded: dict[str, Any] = {"temperature": 1.2, "seed": 5, "max_tokens": NUM_TOKENS}
            greedy_stream = client.generate([1, 2], temperature=0.0, max_tokens=NUM_TOKENS, speculation=PERFECT)
            seeded_stream = client.generate([3], speculation=PERFECT, **seeded)
            free_stream = client.generate([3], speculation=Speculation(is_off=True), **seeded)
            readers = [Reader(greedy_stream), Reader(seeded_stream), Reader(free_stream)]

            async def go_on() -> None:
                await asyncio.gather(*(reader.read(lambda chunk: bool(chunk.ids), 40) for reader in readers))

            await go_on()
            first, second = (verifying[addresses.index(address)] for address in _in_order(readers[0], addresses))
            await first.kill()
            await go_on()
            await asyncio.gather(first.start(), second.kill())
            await go_on()
            for stream in (greedy_stream, seeded_stream, free_stream):
                await stream.aclose()
            one, two, three = (reader.ids for reader in readers)
            assert one == greedy(table, [1, 2], len(one))
            length = min(len(two), len(three))
            assert two[:length] == three[:length]
            undisturbed = await client.complete([3], speculation=PERFECT, **(seeded | {"max_tokens": length}))
            assert list(undisturbed.ids) == two[:length]


def _in_order(reader: Reader, addresses: Sequence[str]) -> list[str]:
    """The verifier that serves first, then the other."""
    return sorted(addresses, key=lambda address: address != reader.verifier)


async def test_a_coordinator_that_dies_or_is_told_to_end(table: Path) -> None:
    """When its coordinator is killed the client goes on at another; one told to end finishes what it has, with 0.

    So does a verifier, which does not wait for the sessions of the one that was killed.
    """
    async with fleet() as processes:
        patient = (*a_verifier(table), "--grace-s", "600")
        verifying, drafting = await processes.start_all(patient, a_drafter(table))
        one = (*a_coordinator(table, [verifying.address], [drafting.address]), "--lease-s", "600")
        first, second = await processes.start_all(one, one)
        async with AsyncClient([first.address, second.address]) as client:
            stream = client.generate([1, 2], temperature=0.0, max_tokens=600, speculation=PERFECT)
            reader = Reader(stream)
            await reader.read(lambda chunk: bool(chunk.ids), 10)
            await first.kill()
            await reader.read(lambda chunk: bool(chunk.ids), 10)
            second.send(signal.SIGTERM)
            await reader.read(lambda chunk: chunk.finished is not None)
            assert reader.ids == greedy(table, [1, 2], 600)
            assert await second.ended() == 0
        for process in (drafting, verifying):
            process.send(signal.SIGTERM)
            assert await process.ended() == 0


@pytest.mark.parametrize(
    ("main", "arguments", "words"),
    [
        (coordinator_main.main, ["--draft-deadline-ms", "-1"], ["--draft-deadline-ms", "-1"]),
        (coordinator_main.main, ["--draft-deadline-ms", "0"], ["--draft-deadline-ms", "0"]),
        (coordinator_main.main, ["--patience-ms", "nan"], ["--patience-ms", "nan"]),
        (coordinator_main.main, ["--patience-ms", "10", "--draft-deadline-ms", "20"], ["patience_ms", "10", "20"]),
        (coordinator_main.main, ["--lease-s", "0.2", "--patience-ms", "400"], ["lease_s", "0.2", "400"]),
        (coordinator_main.main, ["--drafter", "127.0.0.1:1"], ["--drafter", "--drafters"]),
        (coordinator_main.main, ["--verifiers", "localhost"], ["localhost", "host:port"]),
        (coordinator_main.main, ["--verifiers", "a:1,a:1"], ["a:1", "twice"]),
        (coordinator_main.main, ["--gamma", "20"], ["gamma", "20", "16"]),
        (coordinator_main.main, ["--port", "99999"], ["--port", "99999", "65535"]),
        (drafter_main.main, ["--port", "99999"], ["--port", "99999", "65535"]),
        (drafter_main.main, ["--max-gama", "3"], ["--max-gama", "--max-gamma"]),
        (drafter_main.main, ["--speculators", "model"], ["model", "--model"]),
        (drafter_main.main, ["--speculators", "no.such:Thing", "--port", "0"], ["no.such:Thing"]),
        (verifier_main.main, ["--port", "99999"], ["--port", "99999", "65535"]),
        (verifier_main.main, ["--stall-s", "-1"], ["--stall-s", "-1"]),
        (verifier_main.main, ["--num-kv-pages", "0"], ["--num-kv-pages", "0"]),
        (verifier_main.main, ["--model", "table:/no/such.json", "--port", "0"], ["/no/such.json"]),
        (verifier_main.main, ["--max-nodes", "400"], ["max_nodes", "400", "max_positions"]),
    ],
)
def test_impossible_settings_end_the_start(
    capsys: pytest.CaptureFixture[str], main: Callable[[Sequence[str]], int], arguments: list[str], words: list[str]
) -> None:
    """A setting that cannot be ends the start with status 2 and one line that names it, its value and the remedy."""
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert all(word in said for word in words), said


def test_a_misspelt_variable_ends_the_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment variable of the service that is no setting ends the start and is named, with the nearest one."""
    monkeypatch.setenv("PILOTFISH_COORDINATOR_DRAFT_TIMEOUT_MS", "-1")
    assert coordinator_main.main([]) == 2
    said = capsys.readouterr().err
    assert "PILOTFISH_COORDINATOR_DRAFT_TIMEOUT_MS" in said
    assert "PILOTFISH_COORDINATOR_" in said.partition("nearest")[2]
