from __future__ import annotations

import pytest

from pilotfish.messages import FinishReason
from tests.coordinator.conftest import END, Start, ids
from tests.coordinator.fakes import scripted


@pytest.mark.parametrize("num_tokens", [1, 5, 10])
async def test_what_the_client_has_is_neither_repeated_nor_missing(start: Start, num_tokens: int) -> None:
    """An answer that is taken up after some of its tokens goes on with the next one."""
    stack = await start.coordinator([await start.verifier(scripted(ids("hello world ")))])
    whole = await stack.complete(max_tokens=11)
    rest = await stack.complete(max_tokens=11, output_so_far=whole.ids[:num_tokens])
    assert (rest.ids, rest.text) == (whole.ids[num_tokens:], whole.text[num_tokens:])
    assert (rest.finish_reason, rest.num_output_tokens) == (FinishReason.LENGTH, 11)


@pytest.mark.parametrize(
    ("output", "options", "reason"),
    [
        (ids("hello"), {"max_tokens": 5}, FinishReason.LENGTH),
        ([*ids("he"), END], {}, FinishReason.STOP),
        (ids("hello"), {"stop": "lo"}, FinishReason.STOP),
        (ids("hello"), {"stop_ids": ids("o")}, FinishReason.STOP),
    ],
    ids=["limit", "end", "stop", "stop id"],
)
async def test_an_answer_that_was_whole_ends_at_once(
    start: Start, output: list[int], options: dict[str, object], reason: FinishReason
) -> None:
    """Where the client has everything but the end, it gets the end, with what served it, and nothing more."""
    stack = await start.coordinator([await start.verifier()])
    done = await stack.complete(output_so_far=output, **options)
    assert (done.ids, done.text, done.finish_reason) == ((), "", reason)
    assert done.num_output_tokens == len(output)
