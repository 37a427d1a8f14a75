from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from pilotfish.messages import Chunk, Finished, FinishReason, Request, Round, Started, Statistics, TokenKind
from tests.plumbing.fakes import FakeCoordinator

PAGE = Path(__file__).parents[2] / "docs" / "client.md"
EXAMPLES = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


async def answer(request: Request) -> AsyncIterator[Chunk]:
    """Two tokens in a round of four."""
    yield Chunk(started=Started("00" * 16, "toy", 3))
    rounds = (Round(0, 4, "request", 4, 1, 2),) if request.include_rounds else ()
    yield Chunk("swims ahead", (1, 2), (TokenKind.ACCEPTED, TokenKind.CORRECTION), rounds)
    met = {} if request.targets.token_s is None else {"first_token": True, "token": True}
    statistics = Statistics(num_drafts=1, num_drafted_tokens=4, num_accepted_tokens=1, targets_met=met)
    yield Chunk(finished=Finished(FinishReason.LENGTH, 3, 2, statistics))


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
async def test_the_examples_of_the_clients_page_run(example: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Every example runs as it stands, with only the address changed, and prints something."""
    async with FakeCoordinator(answer) as coordinator:
        code = example.replace("localhost:50050", coordinator.address)
        await asyncio.to_thread(exec, compile(code, str(PAGE), "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.strip()


def test_the_page_has_its_examples() -> None:
    """The pattern that finds the examples finds all that are fenced."""
    assert len(EXAMPLES) == PAGE.read_text(encoding="utf-8").count("```python") >= 7
