"""Sampling parameters and limits mean the same with a draft as without."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pilotfish.errors import InvalidArgument, PilotfishError
from pilotfish.messages import Rule, Speculation, TokenKind
from tests.cases.conftest import Serve
from tests.cases.services import RANDOM, drafts

ENDING = dict(RANDOM) | {"end_ids": [15]}


@pytest.mark.parametrize(
    "parameters",
    [
        {"temperature": 0.0},
        {"temperature": 1.3, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-6},
        {"temperature": 1e-6},
        {"temperature": 1e-30},
        {"temperature": 0.7, "top_k": 3, "top_p": 1e-6},
    ],
    ids=str,
)
async def test_parameters_that_mean_greedy_give_the_greedy_ids(serve: Serve, parameters: dict[str, Any]) -> None:
    """top_k of 1, a tiny top_p and a tiny temperature give the greedy ids under every rule and drafter."""
    async with serve() as services:
        names = ("Perfect", "Adverse", "Noise", "Part")
        ways = [drafts(name, gamma, rule) for rule in (None, *Rule) for name in names for gamma in (0, 3, 8)]
        answers = await asyncio.gather(
            *(services.complete(max_tokens=25, speculation=way, **parameters) for way in ways)
        )
        assert {answer.ids for answer in answers} == {services.greedy("abc", 25)}


PARAMETERS: dict[str, list[Any]] = {
    "temperature": [0.0, 0.4, 1.0, 1.8],
    "top_k": [1, 3, 16, 1000],
    "top_p": [0.3, 0.9, 1.0],
    "seed": [0, 1, 2**63, 2**64 - 1],
    "stop": ["ab", ["c", "de"], ["pppp"]],
    "stop_ids": [[3], [0, 9]],
    "max_tokens": [1, 7, 40],
    "ignore_eos": [True],
}


def combinations() -> list[dict[str, Any]]:
    """Each parameter alone, and a dozen random combinations; all of them deterministic by temperature 0 or a seed."""
    chance = random.Random(18)
    alone = [{name: value} for name, values in PARAMETERS.items() for value in values]
    mixed = [
        {name: chance.choice(values) for name, values in PARAMETERS.items() if chance.random() < 0.5} for _ in range(12)
    ]
    fixed = []
    for options in alone + mixed:
        seed = {"seed": 7} if options.get("temperature") else {}
        fixed.append({"temperature": 0.0, "max_tokens": 60} | seed | options)
    return fixed


@pytest.mark.parametrize("name", ["Perfect", "Adverse", "Noise", "Part", "Fork"])
async def test_every_combination_of_parameters_gives_the_plain_answer(serve: Serve, name: str) -> None:
    """Greedy and seeded requests with any parameters get the plain text, ids, end and usage from every drafter."""
    async with serve(ENDING) as services:
        for options in combinations():
            plain = await services.plain(**options)
            answers = await asyncio.gather(
                *(services.complete(**options, speculation=drafts(name, gamma)) for gamma in (1, 3, 8))
            )
            for answer in answers:
                assert (answer.text, answer.ids, answer.finish_reason) == (plain.text, plain.ids, plain.finish_reason)
                assert answer.num_output_tokens == plain.num_output_tokens == len(plain.ids), options


async def test_seeded_requests_are_alone_in_any_batch(serve: Serve) -> None:
    """Seeded requests among unseeded ones get what they get alone, however they are drafted."""
    # seen in vllm#11123, vllm#9441
    async with serve() as services:
        alone = [await services.plain(seed=seed, temperature=1.2, max_tokens=40) for seed in range(6)]
        seeded = [
            services.complete(seed=seed, temperature=1.2, max_tokens=40, speculation=drafts(name, gamma))
            for seed in range(6)
            for name, gamma in (("Perfect", 4), ("Noise", 3), ("Part", 8))
        ]
        unseeded = [
            services.complete(temperature=1.5, max_tokens=40, speculation=drafts("Perfect", 4)) for _ in range(50)
        ]
        answers = await asyncio.gather(*seeded, *unseeded)
        for i, answer in enumerate(answers[: len(seeded)]):
            assert answer.ids == alone[i // 3].ids
        assert len({answer.ids for answer in answers[len(seeded) :]}) == 50
        assert len({answer.ids for answer in alone}) == 6


async def test_a_request_says_how_it_is_drafted(serve: Serve) -> None:
    """Off drafts nothing, γ drafts exactly so many, a most of γ no more, and above the cap a request is refused."""
    # seen in vllm#6993, sglang#30263, llama.cpp#23052
    async with serve(coordinator={"gamma": 5, "max_gamma": 6}) as services:

        async def gammas(speculation: Speculation | None) -> set[int]:
            answer = await services.complete(max_tokens=43, speculation=speculation, include_rounds=True)
            assert answer.ids == services.greedy("abc", 43)
            return {entry.num_drafted for entry in answer.rounds[:4]}

        assert await gammas(Speculation(is_off=True)) == {0}
        assert await gammas(Speculation(gamma=0)) == {0}
        assert await gammas(None) == {5}
        assert await gammas(Speculation(gamma=3)) == {3}
        assert await gammas(Speculation(gamma=6)) == {6}
        assert await gammas(Speculation(max_gamma=2)) == {2}
        assert await gammas(Speculation(max_gamma=0)) == {0}
        for speculation in (Speculation(gamma=7), Speculation(max_gamma=7)):
            with pytest.raises(InvalidArgument, match="6"):
                await services.complete(speculation=speculation)


SENSELESS: list[tuple[dict[str, Any], str]] = [
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": float("nan")}, "temperature"),
    ({"temperature": float("inf")}, "temperature"),
    ({"top_p": 0.0}, "top_p"),
    ({"top_p": 1.5}, "top_p"),
    ({"top_p": float("nan")}, "top_p"),
    ({"top_k": 0}, "top_k"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"stop": [""]}, "stop"),
    ({"stop_ids": [16]}, "stop_ids"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": []}, "tokens"),
    ({"prompt": [16]}, "tokens.ids is 16"),
    ({"prompt": "abz"}, "z"),
    ({"prompt": [1] * 4096}, "4096"),
    ({"output_so_far": [16]}, "output_so_far"),
    ({"model": "other"}, "other"),
    ({"speculation": Speculation(speculator="fortune")}, "fortune"),
    ({"seed": 1, "temperature": 1.0, "speculation": Speculation(rule=Rule.BLOCK)}, "block"),
    ({"prompt": "ab\ud800"}, "surrogate"),
    ({"prompt": [{"role": "user", "content": "\udcff"}]}, "surrogate"),
    ({"stop": ["a", "\ud800"]}, "stop"),
    ({"model": "\ud800"}, "model"),
]


async def test_what_makes_no_sense_is_refused_by_name(serve: Serve) -> None:
    """A request that cannot be is refused with the value and its name, and the next one is served."""
    async with serve() as services:
        for options, word in SENSELESS:
            with pytest.raises(PilotfishError) as refused:
                await services.complete(**options)
            assert word in refused.value.message, options
            assert refused.value.code in {"INVALID_ARGUMENT", "NOT_FOUND"}, options
            assert (await services.complete()).ids == services.greedy("abc", 20)


async def test_kinds_say_how_tokens_came_about(serve: Serve) -> None:
    """Tokens of a right draft are accepted and end with a bonus, a wrong draft gives a correction, plain is plain."""
    async with serve() as services:
        perfect = await services.complete(max_tokens=8, speculation=drafts("Perfect", 3))
        assert perfect.kinds == 2 * (*3 * (TokenKind.ACCEPTED,), TokenKind.BONUS)
        adverse = await services.complete(max_tokens=3, speculation=drafts("Adverse", 3))
        assert adverse.kinds == (TokenKind.CORRECTION, TokenKind.CORRECTION, TokenKind.PLAIN)
        assert set((await services.plain(max_tokens=5)).kinds) == {TokenKind.PLAIN}
