"""Blocks of a load, against a client that is made up: what is counted, and when a block ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import pytest

from benchmarks.load import Arm, Load, Sessions, arms_of
from benchmarks.workloads import Ask, Workload
from pilotfish.client import Chunk
from pilotfish.errors import Unavailable
from pilotfish.gammas import GammaTable
from pilotfish.messages import Finished, FinishReason, Speculation, Statistics

PLAIN = Arm("plain", "", "ngram", GammaTable.fixed(0))
CHAT = Workload("chat", tuple(Ask(f"chat/{number}", (number,), 6) for number in range(3)))


@dataclass
class FakeClient:
    """Answers at once: `max_tokens` ids in pieces of so many."""

    piece: int = 1
    fails_at: int | None = None  # number of the request that fails
    asked: list[dict[str, Any]] = field(default_factory=list)
    num_tokens: int = 0
    num_open: int = 0

    async def generate(self, prompt: tuple[int, ...], **options: Any) -> AsyncIterator[Chunk]:
        self.asked.append({"prompt": prompt, **options})
        if len(self.asked) - 1 == self.fails_at:
            raise Unavailable("gone")
        self.num_open += 1
        try:
            for first in range(0, options["max_tokens"], self.piece):
                await asyncio.sleep(0)
                ids = tuple(range(first, min(first + self.piece, options["max_tokens"])))
                self.num_tokens += len(ids)
                yield Chunk("", ids)
            statistics = Statistics(num_drafted_tokens=4, num_accepted_tokens=3)
            yield Chunk(finished=Finished(FinishReason.LENGTH, 1, options["max_tokens"], statistics))
        finally:
            self.num_open -= 1


def sessions(client: FakeClient, load: Load, concurrency: int, turn: int = 0) -> Sessions:
    return Sessions(client, PLAIN, load, CHAT, concurrency, turn)  # type: ignore[arg-type]


async def test_a_block_ends_with_its_tokens_and_leaves_nothing_running() -> None:
    """Tokens count from when every session has its first, up to as many as were asked for."""
    client, load = FakeClient(), Load([CHAT], [4], 1, min_tokens=50)
    block = await sessions(client, load, 4).run()
    assert block.num_tokens == 50
    assert 50 < client.num_tokens < 50 + 4 * CHAT.max_tokens
    assert client.num_open == 0
    assert block.seconds > 0


async def test_every_session_has_room_for_an_answer() -> None:
    """With many sessions a block is longer than the fewest tokens; where it only warms up, a quarter of that."""
    load = Load([CHAT], [20], 1, min_tokens=50)
    assert (await sessions(FakeClient(), load, 20).run()).num_tokens == 20 * CHAT.max_tokens
    assert (await sessions(FakeClient(), load, 20, turn=-1).run()).num_tokens == 20 * CHAT.max_tokens // 4


async def test_first_tokens_are_those_of_later_requests() -> None:
    """The requests that all come at once at the beginning say nothing of how long one waits under load."""
    client = FakeClient()
    block = await sessions(client, Load([CHAT], [3], 1, min_tokens=60), 3).run()
    assert len(client.asked) - 3 - 3 <= len(block.first_token_s) <= len(client.asked) - 3
    assert block.num_decoded < block.num_tokens  # the first piece of each answer is not decoded
    assert (block.num_drafted % 4, block.num_accepted) == (0, block.num_drafted * 3 // 4)


async def test_a_request_that_fails_fails_the_block() -> None:
    """An error is not measured as speed."""
    client = FakeClient(fails_at=5)
    with pytest.raises(Unavailable, match="gone"):
        await sessions(client, Load([CHAT], [2], 1, min_tokens=1000), 2).run()
    assert client.num_open == 0


async def test_salt_makes_every_prompt_new_and_the_same_for_every_arm() -> None:
    """No prompt of a turn has a beginning that another one has; another arm is asked the same."""
    load = Load([CHAT], [3], 1, min_tokens=90, salt_ids=1000)
    asked = []
    for _ in range(2):
        client = FakeClient()
        await sessions(client, load, 3).run()
        asked.append({one["prompt"] for one in client.asked})
        beginnings = [one["prompt"][:-1] for one in client.asked]
        assert len(set(beginnings)) == len(beginnings) > 3
    assert asked[0] & asked[1]


async def test_labels_are_sent_only_where_asked_for() -> None:
    """A site may say what kind of text it asks for, or not."""
    for has_labels in (False, True):
        client, workload = FakeClient(), Workload("x", (Ask("x/0", (1,), 4, kind="json"),))
        load = Load([workload], [1], 1, min_tokens=8, has_labels=has_labels)
        await Sessions(client, PLAIN, load, workload, 1, 0).run()  # type: ignore[arg-type]
        assert {one["workload"] for one in client.asked} == ({"json"} if has_labels else {""})


def test_arms_speculate_as_their_names_say() -> None:
    """Plain is off at every load, a fixed γ fixed, a table goes by the load, ours leaves everything open."""
    arms = {arm.name: arm for arm in arms_of("", "model", [0, 2], GammaTable.parse("1:8,4:0"))}
    assert list(arms) == ["plain", "auto", "γ=2", "table"]
    assert arms["plain"].speculation(9) == Speculation(is_off=True) == arms["table"].speculation(9)
    assert arms["auto"].speculation(1) == Speculation(speculator="model")
    assert arms["γ=2"].speculation(9) == Speculation(gamma=2, speculator="model")
    assert arms["table"].speculation(1) == Speculation(gamma=8, speculator="model")


def test_sessions_are_spread_over_texts_and_kinds() -> None:
    """Neighbours ask different things, first answers are of different lengths, and a turn begins elsewhere."""
    firsts = [next(CHAT.of_worker(worker, 3, turn=0)) for worker in range(3)]
    assert [ask.max_tokens for ask in firsts] == [2, 4, 6]
    assert len({ask.name for ask in firsts}) == 3
    later = list(islice(CHAT.of_worker(0, 3, turn=1), 1, 5))
    assert [ask.name for ask in later] == ["chat/2", "chat/0", "chat/1", "chat/2"]
    assert {ask.max_tokens for ask in later} == {6}
