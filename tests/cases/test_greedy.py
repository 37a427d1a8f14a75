"""At temperature 0 no drafter changes a token."""

from __future__ import annotations

import asyncio
import random

import pytest

from coordinator.policy import Decision, Snapshot, clip
from pilotfish.messages import Speculation, TokenKind
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, drafts

NAMES = ("Perfect", "Adverse", "Noise", "Part", "Fork")


class Given:
    """A policy that takes γ from a list, over and over; a round that has no drafter runs free."""

    def __init__(self, gammas: list[int]) -> None:
        self._gammas = gammas
        self._num_decisions = 0

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off

    def heeds_price(self, _wishes: Speculation) -> bool:
        return False

    def decide(self, snapshot: Snapshot) -> Decision:
        gamma = self._gammas[self._num_decisions % len(self._gammas)]
        self._num_decisions += 1
        if not snapshot.is_drafter_up or snapshot.wishes.is_off:
            return Decision(0, "drafter_down")
        return clip(Decision(gamma, "fixed"), snapshot)


@pytest.mark.parametrize("name", NAMES)
async def test_text_is_the_plain_one_whatever_drafts_it(serve: Serve, name: str) -> None:
    """Every γ of every drafter gives the ids, the text and the end of plain decoding, which are the table's own."""
    # seen in vllm#41758, llama.cpp#27975
    async with serve() as services:
        plain = await services.plain(max_tokens=60)
        assert plain.ids == services.greedy("abc", 60)
        answers = await asyncio.gather(
            *(services.complete(max_tokens=60, speculation=drafts(name, gamma)) for gamma in GAMMAS)
        )
        for answer in answers:
            assert (answer.ids, answer.text, answer.finish_reason) == (plain.ids, plain.text, plain.finish_reason)
        if name == "Adverse":
            assert [answer.statistics.num_accepted_tokens for answer in answers] == [0] * len(GAMMAS)
            assert all(TokenKind.ACCEPTED not in answer.kinds for answer in answers)


@pytest.mark.parametrize("m", range(6))
async def test_partly_right_drafts_lose_and_double_nothing(serve: Serve, m: int) -> None:
    """Drafts that are right for m tokens commit exactly those and one more, at every γ."""
    # seen in openvino.genai#4190
    async with serve(speculators=["Part"], options=[f"m={m}"]) as services:
        wanted = services.greedy("abc", 61)
        answers = await asyncio.gather(
            *(
                services.complete(max_tokens=61, speculation=drafts("Part", gamma), include_rounds=True)
                for gamma in GAMMAS
            )
        )
        for gamma, answer in zip(GAMMAS, answers, strict=True):
            assert answer.ids == wanted
            for entry in answer.rounds:
                assert entry.num_accepted == min(m, entry.num_drafted)
                assert entry.num_committed == entry.num_accepted + 1
            assert all(entry.num_drafted <= gamma for entry in answer.rounds)


async def test_copies_of_a_prompt_at_once_get_one_answer(serve: Serve) -> None:
    """Eight copies of one prompt, drafted in eight ways at once, get the answer that the prompt gets alone."""
    # seen in ArcticInference#143
    async with serve() as services:
        alone = await services.plain(max_tokens=80)
        ways = [drafts(name, gamma) for name in ("Perfect", "Part", "Noise", "Adverse") for gamma in (2, 5)]
        answers = await asyncio.gather(*(services.complete(max_tokens=80, speculation=way) for way in ways))
        assert {answer.ids for answer in answers} == {alone.ids}


@pytest.mark.parametrize("speculator", ["tests.drafters:Perfect", "tests.drafters:Part", "ngram"])
async def test_prompts_of_every_length(serve: Serve, speculator: str) -> None:
    """Prompts of one token and more, shorter and longer than a draft, an n-gram and a page, continue as plain ones."""
    # seen in vllm#53051, TGI#2997
    async with serve(speculators=["Perfect", "Part", "ngram"], verifier={"page_size": 4}) as services:
        prompts = [[(7 * i) % 16 for i in range(length)] for length in range(1, 12)]
        answers = await asyncio.gather(
            *(
                services.complete(prompt, max_tokens=12, speculation=Speculation(gamma=8, speculator=speculator))
                for prompt in prompts
            )
        )
        assert [answer.ids for answer in answers] == [services.greedy(prompt, 12) for prompt in prompts]


@pytest.mark.parametrize("name", NAMES)
async def test_gamma_may_change_every_round(serve: Serve, name: str) -> None:
    """A policy that draws γ anew every round, 0 included, changes no token."""
    # seen in sglang#30549
    chance = random.Random(8)
    policy = Given([chance.choice(GAMMAS) for _ in range(97)])
    async with serve(policy=policy) as services:
        prompts = [[chance.randrange(16) for _ in range(5)] for _ in range(6)]
        answers = await asyncio.gather(
            *(services.complete(prompt, max_tokens=70, speculation=drafts(name)) for prompt in prompts)
        )
        assert [answer.ids for answer in answers] == [services.greedy(prompt, 70) for prompt in prompts]


async def test_first_draft_after_a_free_run_holds(serve: Serve) -> None:
    """After 4 drafted tokens a round, 50 free ones and 4 again, what a perfect drafter proposes is accepted whole."""
    # seen in vllm-metal#716
    table = {"vocabulary": list("abcdefgh"), "random": {"seed": 2, "order": 2}, "pass_us": [[1, 3000]]}
    async with serve(table, policy=Given([4] * 5 + [0] * 50 + [4] * 8)) as services:
        answer = await services.complete(max_tokens=160, speculation=drafts("Perfect"), include_rounds=True)
        assert answer.ids == services.greedy("abc", 160)
        drafted = [entry for entry in answer.rounds if entry.num_drafted]
        assert all(entry.num_accepted == entry.num_drafted for entry in drafted)
        index_of_free = [entry.index for entry in answer.rounds if entry.gamma == 0]
        assert any(entry.index > index_of_free[20] for entry in drafted)


async def test_a_perfect_drafter_is_accepted_to_the_end(serve: Serve) -> None:
    """Over 2,000 tokens every draft of a perfect drafter holds whole."""
    # seen in mlxcel#994
    async with serve() as services:
        answer = await services.complete(max_tokens=2000, speculation=drafts("Perfect", 8))
        assert answer.ids == services.greedy("abc", 2000)
        assert answer.statistics.acceptance_rate == 1.0
        assert answer.statistics.num_drafts == -(-2000 // 9)
