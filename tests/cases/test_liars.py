"""A drafter that lies costs speed at most: what cannot be is cut or dropped, counted, and never sent to anybody."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from pilotfish.messages import Rule
from tests.cases.conftest import Serve
from tests.cases.services import drafts

CUT = ("id", "large_id")  # ids outside the vocabulary
BAD_Q = ("absent", "zero", "twice", "outside", "shape")


@pytest.mark.parametrize("lie", [*CUT, *BAD_Q, "claim"])
async def test_lies_change_no_token_of_a_greedy_or_seeded_answer(serve: Serve, lie: str) -> None:
    """Whatever is lied, greedy answers under every rule and seeded ones are the plain ones, and the lie is counted."""
    # seen in vllm PR#41834
    async with serve(speculators=["Liar"], options=[f"lie={lie}"]) as services:
        ways = [drafts("Liar", gamma, rule) for gamma in (1, 2, 5, 8) for rule in Rule]
        answers = await asyncio.gather(*(services.complete(max_tokens=30, speculation=way) for way in ways))
        assert {answer.ids for answer in answers} == {services.greedy("abc", 30)}
        seeded = {"max_tokens": 30, "temperature": 1.3, "seed": 3}
        plain = await services.plain(**seeded)
        under_match = [way for way in ways if way.rule is Rule.MATCH]
        more = await asyncio.gather(*(services.complete(**seeded, speculation=way) for way in under_match))
        assert {answer.ids for answer in more} == {plain.ids}
        dropped: Counter[str] = Counter()
        for answer in answers + more:
            assert answer.statistics.num_accepted_tokens <= answer.statistics.num_drafted_tokens
            dropped.update(answer.statistics.num_dropped_by_cause)
        if lie != "claim":
            assert dropped["token" if lie in CUT else "q"] > 0, dropped


@pytest.mark.parametrize("lie", [*CUT, *BAD_Q])
async def test_a_lie_that_cannot_be_never_gets_past_the_wire(serve: Serve, lie: str) -> None:
    """At a temperature, under the rules that trust q, what cannot be a q is never verified, and the answer is whole."""
    async with serve(speculators=["Liar"], options=[f"lie={lie}"]) as services:
        ways = [drafts("Liar", 3, rule) for rule in (Rule.TOKEN, Rule.BLOCK) for _ in range(3)]
        answers = await asyncio.gather(
            *(services.complete(max_tokens=30, temperature=1.0, speculation=way) for way in ways)
        )
        for answer in answers:
            assert len(answer.ids) == 30
            assert all(token < 16 for token in answer.ids)
            assert answer.statistics.num_drafted_tokens == 0 or lie == "id"
