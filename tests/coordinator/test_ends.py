"""Where an answer ends, and that text, ids and usage are cut alike."""

from __future__ import annotations

from typing import Any

import pytest

from pilotfish.messages import FinishReason
from tests.coordinator.conftest import END, VOCABULARY, Start, ids
from tests.coordinator.fakes import right_for, scripted

GAMMAS = [0, 1, 2, 3, 5, 8]
NUM_IDS = len(VOCABULARY)
EMOJI = [VOCABULARY.index(byte) for byte in ("<0xF0>", "<0x9F>", "<0x98>", "<0x80>")]


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_end_id_in_a_block(start: Start, gamma: int) -> None:
    """Nothing after an end id inside an accepted draft leaks, and the usage counts up to it."""
    stack = await start.stack(scripted([*ids("abc"), END, *ids("defgh")]))
    done = await stack.complete(max_tokens=50, gamma=gamma)
    assert done.text == "abc"
    assert done.ids == (*ids("abc"), END)
    assert done.num_output_tokens == 4
    assert done.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("gamma", GAMMAS[1:])
async def test_end_id_of_a_draft(start: Start, gamma: int) -> None:
    """An end id that only the drafter proposed ends nothing."""
    stack = await start.stack(scripted(ids("abcdefghij")), lambda tokens, num_prompt, gamma: [END] * gamma)
    done = await stack.complete(max_tokens=20, gamma=gamma)
    assert done.text == "abcdefghijabcdefghij"
    assert done.finish_reason is FinishReason.LENGTH
    assert done.statistics.num_accepted_tokens == 0


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_ignore_eos(start: Start, gamma: int) -> None:
    """With ignore_eos the end id is an ordinary token."""
    stack = await start.stack(scripted([*ids("abc"), END, *ids("de")]))
    done = await stack.complete(max_tokens=6, gamma=gamma, ignore_eos=True)
    assert done.ids == (*ids("abc"), END, *ids("de"))
    assert done.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_stop_ids(start: Start, gamma: int) -> None:
    """The answer ends with the first of the stop ids, which is part of it."""
    stack = await start.stack(scripted(ids("abcdefghij")))
    done = await stack.complete(max_tokens=20, gamma=gamma, stop_ids=ids("fd"))
    assert done.ids == tuple(ids("abcd"))
    assert done.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("gamma", GAMMAS)
@pytest.mark.parametrize(
    ("text", "stop", "expected", "num_tokens"),
    [
        ("abcdef", "cd", "ab", 4),
        ("abcdef", ["ef", "bcd"], "a", 4),
        ("abcdef", ["cde", "bc"], "a", 3),
        ("aabaab", "abaab", "a", 6),
        ("a b c d e f g", "d e", "a b c ", 9),
    ],
)
async def test_stop_strings(start: Start, gamma: int, text: str, stop: Any, expected: str, num_tokens: int) -> None:
    """The answer ends before the stop string that is complete first, ids and usage with the token that completes it."""
    stack = await start.stack(scripted(ids(text)))
    done = await stack.complete(max_tokens=40, gamma=gamma, stop=stop)
    assert done.text == expected
    assert done.ids == tuple(ids(text)[:num_tokens])
    assert done.num_output_tokens == num_tokens
    assert len(done.kinds) == num_tokens
    assert done.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(("max_tokens", "reason"), [(4, "length"), (5, "stop"), (6, "stop")])
async def test_stop_at_the_limit(start: Start, max_tokens: int, reason: str) -> None:
    """A stop string that is complete with the last token ends as a stop, one cut short by the limit does not."""
    stack = await start.stack(scripted(ids("abcdefgh")))
    done = await stack.complete(max_tokens=max_tokens, gamma=5, stop="de")
    assert done.finish_reason.value == reason
    assert done.text == ("abcd" if reason == "length" else "abc")
    assert done.num_output_tokens == min(max_tokens, 5)


async def test_stop_string_whose_beginning_is_elsewhere_too(start: Start) -> None:
    """Text that begins like a stop string and goes on otherwise is held back, and then given out."""
    stack = await start.stack(scripted(ids("abxabyabz")))
    chunks = await stack.chunks(max_tokens=9, gamma=0, stop="abz")
    assert "".join(chunk.text for chunk in chunks) == "abxaby"
    assert chunks[0].text == ""


@pytest.mark.parametrize("gamma", GAMMAS)
async def test_emoji(start: Start, gamma: int) -> None:
    """A character of four tokens is never shown in halves, wherever drafts break."""
    stack = await start.stack(scripted([*ids("a"), *EMOJI, *ids("b")]))
    chunks = await stack.chunks(max_tokens=18, gamma=gamma)
    assert "".join(chunk.text for chunk in chunks) == "a\U0001f600b" * 3
    assert all("\ufffd" not in chunk.text for chunk in chunks)
    assert sum(n for chunk in chunks for n in chunk.num_characters) == 9


@pytest.mark.parametrize("num_bytes", [1, 2, 3])
async def test_end_within_a_character(start: Start, num_bytes: int) -> None:
    """An answer that ends within a character leaves it out; its tokens count."""
    stack = await start.stack(scripted([*ids("a"), *EMOJI]))
    done = await stack.complete(max_tokens=1 + num_bytes, gamma=2)
    assert done.text == "a"
    assert done.num_output_tokens == 1 + num_bytes


@pytest.mark.parametrize("num_right", [0, 2, 8])
async def test_stream_equals_plain(start: Start, num_right: int) -> None:
    """The text joined from the pieces is the same for every γ."""
    law = scripted([*ids("the cat "), *EMOJI, *ids("sat on the mat ")])
    stack = await start.stack(law, right_for(num_right, law, NUM_IDS))
    texts = {(await stack.complete(max_tokens=60, gamma=gamma)).text for gamma in range(9)}
    assert len(texts) == 1
