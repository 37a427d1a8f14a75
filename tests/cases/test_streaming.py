"""The pieces of an answer, joined, are the answer: whole characters, the same for every way of drafting."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from pilotfish.messages import Chunk, Speculation
from tests.cases.conftest import Serve
from tests.cases.services import GAMMAS, Services, drafts, script

BYTES = [f"<0x{byte:02X}>" for byte in (0xF0, 0x9F, 0x98, 0x80, 0xC3, 0xA9, 0xE2, 0x82, 0xAC)]
WORDS = ["a", "b", " the", "\n", "\N{SLIGHTLY SMILING FACE}", "e", "\N{COMBINING ACUTE ACCENT}", *BYTES]
SMILE = [WORDS.index(byte) for byte in BYTES[:4]]
ACCENT = [WORDS.index(byte) for byte in BYTES[4:6]]
EURO = [WORDS.index(byte) for byte in BYTES[6:9]]


async def pieces(services: Services, **options: Any) -> list[Chunk]:
    return [chunk async for chunk in services.generate("a", **options)]


def ways() -> list[Speculation]:
    """Every γ, as drafted perfectly and half right."""
    return [drafts(name, gamma) for name in ("Perfect", "Part") for gamma in GAMMAS]


async def test_a_character_of_many_tokens_comes_whole(serve: Serve) -> None:
    """A character spelled byte by byte is never shown in part, wherever the blocks break."""
    # seen in dynamo#12630
    ids = [0, *SMILE, 1, *ACCENT, *EURO, *SMILE, *SMILE, 4, 2, 5, 6, *EURO]
    text = "a😀b\xe9€😀😀🙂 thee\N{COMBINING ACUTE ACCENT}€"
    async with serve(script(ids, WORDS)) as services:
        for chunks in await asyncio.gather(*(pieces(services, max_tokens=len(ids), speculation=way) for way in ways())):
            assert all("�" not in chunk.text for chunk in chunks)
            assert "".join(chunk.text for chunk in chunks) == text


@pytest.mark.parametrize("num_tokens", range(1, 8))
async def test_an_answer_that_ends_inside_a_character_leaves_it_out(serve: Serve, num_tokens: int) -> None:
    """The limit inside a character ends the text before it; ids and usage still count its tokens."""
    async with serve(script([0, *SMILE, *ACCENT, 1], WORDS)) as services:
        wanted = {1: "a", 2: "a", 3: "a", 4: "a", 5: "a😀", 6: "a😀", 7: "a😀é"}[num_tokens]
        for way in ways():
            answer = await services.complete("a", max_tokens=num_tokens, speculation=way)
            assert (answer.text, answer.num_output_tokens, len(answer.ids)) == (wanted, num_tokens, num_tokens)


async def test_broken_bytes_are_the_same_text_however_they_come(serve: Serve) -> None:
    """Bytes that never make a character give one and the same text for every γ, and the stream does not stall."""
    chance = random.Random(4)
    ids = [chance.randrange(len(WORDS)) for _ in range(120)]
    async with serve(script(ids, WORDS)) as services:
        answers = await asyncio.gather(*(services.complete("a", max_tokens=120, speculation=way) for way in ways()))
        assert {answer.ids for answer in answers} == {tuple(ids)}
        assert len({answer.text for answer in answers}) == 1
        whole, text = services.table.decode(ids), answers[0].text
        assert whole.startswith(text)
        assert set(whole[len(text) :]) <= {"�"}  # the answer ended inside a character


@pytest.mark.parametrize("temperature", [0.0, 1.2])
async def test_what_is_streamed_is_the_whole(serve: Serve, temperature: float) -> None:
    """Every piece says how much of it each token made certain; start comes first and once, the end last and once."""
    # seen in vllm#43221
    ids = [0, *SMILE, 1, *ACCENT, 3, 2, 2, 4, *EURO, 1, 0]
    async with serve(script(ids, WORDS)) as services:
        streams = await asyncio.gather(
            *(
                pieces(services, max_tokens=40, speculation=way, temperature=temperature, seed=3, stop=["the\n"])
                for way in ways()
            )
        )
        texts = {"".join(chunk.text for chunk in chunks) for chunks in streams}
        assert len(texts) == 1
        for chunks in streams:
            assert [chunk.started is not None for chunk in chunks] == [True] + [False] * (len(chunks) - 1)
            assert [chunk.finished is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
            for chunk in chunks:
                assert len(chunk.ids) == len(chunk.kinds) == len(chunk.num_characters)
                assert sum(chunk.num_characters) <= len(chunk.text)
                assert chunk.finished or sum(chunk.num_characters) == len(chunk.text)
            finished = chunks[-1].finished
            assert finished is not None
            assert finished.num_output_tokens == sum(len(chunk.ids) for chunk in chunks)
