"""Where an answer ends, and that nothing behind its end gets out, whatever a block of tokens held."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pilotfish.client import Completion
from pilotfish.messages import FinishReason, Speculation
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, LETTERS, RANDOM, Services, drafts, script

NAMES = ("Perfect", "Adverse", "Part")
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH
END = 15


async def every_way(services: Services, prompt: Any = "abc", **options: Any) -> list[Completion]:
    """The answers to one request under every γ of every drafter."""
    ways = [Speculation(is_off=True)] + [drafts(name, gamma) for name in NAMES for gamma in GAMMAS[1:]]
    return await asyncio.gather(*(services.complete(prompt, speculation=way, **options) for way in ways))


@pytest.mark.parametrize("num_before", range(7))
async def test_an_end_id_inside_a_block_ends_it(serve: Serve, num_before: int) -> None:
    """An end id at any place of an accepted block is the last token, the finish is stop and usage counts up to it."""
    # seen in koboldcpp#1276, transformers#47912
    wanted = (*range(num_before), END)
    async with serve(script([*wanted, 3, 4, 5, 6, 7, 8], end_ids=[END])) as services:
        for answer in await every_way(services, max_tokens=40):
            assert answer.ids == wanted
            assert answer.text == "".join(LETTERS[:num_before])
            assert (answer.finish_reason, answer.num_output_tokens) == (STOP, num_before + 1)


async def test_an_end_id_that_the_target_rejects_ends_nothing(serve: Serve) -> None:
    """Drafts full of end ids that the target never says change nothing: the answer goes on to its limit."""
    # seen in openvino.genai#1951
    ids = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    table = {"vocabulary": LETTERS, "end_ids": [0], "law": {"*": {"1": 1, "0": 1e-9}}} | {
        "law": {"*": [0.01] + [0.1] * 15} | {str(i): {str(i % 10 + 1): 1.0, "0": 1e-6} for i in range(16)}
    }
    async with serve(table) as services:
        answers = await every_way(services, [10], max_tokens=30)
        assert {answer.ids for answer in answers} == {tuple(3 * ids)}
        assert {answer.finish_reason for answer in answers} == {LENGTH}


async def test_an_ignored_end_id_is_an_ordinary_token(serve: Serve) -> None:
    """With ignore_eos the end id is a token like others, in a draft and outside of one."""
    async with serve(dict(RANDOM) | {"end_ids": [1, 2, 5, 11]}) as services:
        wanted = services.greedy("abc", 60)
        assert set(wanted) & {1, 2, 5, 11}
        for answer in await every_way(services, max_tokens=60, ignore_eos=True):
            assert (answer.ids, answer.finish_reason) == (wanted, LENGTH)
        for answer in await every_way(services, max_tokens=60):
            first = next(i for i, token in enumerate(wanted) if token in {1, 2, 5, 11})
            assert (answer.ids, answer.finish_reason) == (wanted[: first + 1], STOP)


async def test_a_stop_id_ends_like_an_end_id(serve: Serve) -> None:
    """The first of the request's stop ids is the last token; end ids still count, unless they are ignored."""
    async with serve(script([1, 2, 3, END, 4, 5, 6], end_ids=[END])) as services:
        for answer in await every_way(services, max_tokens=20, stop_ids=[9, 3]):
            assert (answer.ids, answer.finish_reason) == ((1, 2, 3), STOP)
        for answer in await every_way(services, max_tokens=20, stop_ids=[5]):
            assert (answer.ids, answer.finish_reason) == ((1, 2, 3, END), STOP)
        for answer in await every_way(services, max_tokens=20, stop_ids=[5], ignore_eos=True):
            assert (answer.ids, answer.finish_reason) == ((1, 2, 3, END, 4, 5), STOP)


WORDS = ("a", "b", "E", "N", "D!", "ND", "c", "d", "x", "<0xC3>", "<0xA9>")


def spelled(*words: str) -> list[int]:
    return [WORDS.index(word) for word in words]


STOPS: list[tuple[list[str], Any, str, int]] = [
    # tokens of the target, stops, the text, how many tokens the answer has
    (["a", "b", "E", "N", "D!", "c", "d"], "END", "ab", 5),
    (["E", "N", "D!", "c", "d"], ["END"], "", 3),
    (["a", "E", "E", "ND", "c", "d"], "END", "aE", 4),
    (["a", "E", "N", "c", "E", "ND", "d"], ["END"], "aENc", 6),
    (["a", "b", "c", "d", "a", "b"], ["cd", "bc"], "a", 3),  # the one that is complete first
    (["a", "b", "c", "d", "a", "b"], ["dab", "bcd"], "a", 4),
    (["a", "D!", "b", "c"], ["D!b", "!"], "aD", 2),
    (["a", "b", "c", "x", "x", "d"], ["xd", "cx"], "ab", 4),
    (["a", "<0xC3>", "<0xA9>", "b", "c"], "éb", "a", 4),
]


@pytest.mark.parametrize(("words", "stop", "text", "num_tokens"), STOPS, ids=str)
async def test_a_stop_string_is_cut_before(
    serve: Serve, words: list[str], stop: Any, text: str, num_tokens: int
) -> None:
    """A stop string over any tokens of a block cuts text, ids, kinds and usage alike; the first complete one wins."""
    # seen in sglang#23802, vllm PR#49391, vllm PR#47616
    async with serve(script(spelled(*words) + spelled("a", "x"), WORDS)) as services:
        for answer in await every_way(services, "a", max_tokens=30, stop=stop):
            assert (answer.text, answer.finish_reason) == (text, STOP)
            assert answer.ids == tuple(spelled(*words)[:num_tokens])
            assert len(answer.kinds) == len(answer.num_characters) == answer.num_output_tokens == num_tokens


async def test_a_stop_at_the_limit(serve: Serve) -> None:
    """A stop that is complete at the fifth token is a stop under a limit of five and six, and length under four."""
    # seen in sglang#31599
    async with serve(script(spelled("a", "b", "E", "N", "D!", "c", "d", "x"), WORDS)) as services:
        for max_tokens, reason, text in ((6, STOP, "ab"), (5, STOP, "ab"), (4, LENGTH, "abEN"), (3, LENGTH, "abE")):
            for answer in await every_way(services, "a", max_tokens=max_tokens, stop="END"):
                assert (answer.text, answer.finish_reason) == (text, reason)
                assert answer.num_output_tokens == min(max_tokens, 5)


async def test_every_limit_is_exact(serve: Serve) -> None:
    """From one token to two more than the largest draft there are exactly so many, and usage says so."""
    # seen in ik_llama#2358
    async with serve() as services:
        for max_tokens in range(1, 12):
            for answer in await every_way(services, max_tokens=max_tokens):
                assert answer.ids == services.greedy("abc", max_tokens)
                assert (answer.finish_reason, answer.num_output_tokens) == (LENGTH, max_tokens)
                assert answer.num_prompt_tokens == 3


@pytest.mark.parametrize("room", [1, 2, 3, 5, 9, 10])
async def test_the_context_ends_an_answer(serve: Serve, room: int) -> None:
    """A prompt that leaves room for a few tokens gets exactly those, with length, with a limit beyond or none."""
    # seen in vllm#5342
    async with serve(dict(RANDOM) | {"context_length": 64}) as services:
        prompt = [i % 16 for i in range(64 - room)]
        for max_tokens in (None, 1000):
            for answer in await every_way(services, prompt, max_tokens=max_tokens):
                assert answer.ids == services.greedy(prompt, room)
                assert (answer.finish_reason, answer.num_output_tokens) == (LENGTH, room)


async def test_an_answer_that_was_cut_off_goes_on_as_if_it_had_not(serve: Serve) -> None:
    """Whatever the client has already of an answer, the rest is the same, seeded or greedy, with stops and limits."""
    async with serve(dict(RANDOM) | {"end_ids": [14]}) as services:
        for options in ({"temperature": 0.0}, {"seed": 5, "temperature": 1.1}):
            whole = await services.plain(max_tokens=30, **options)
            for num_known in (1, 2, 9, len(whole.ids) - 1, len(whole.ids)):
                rest = await services.complete(
                    max_tokens=30, output_so_far=whole.ids[:num_known], speculation=drafts("Perfect", 4), **options
                )
                assert rest.ids == whole.ids[num_known:]
                assert (rest.finish_reason, rest.num_output_tokens) == (whole.finish_reason, len(whole.ids))
