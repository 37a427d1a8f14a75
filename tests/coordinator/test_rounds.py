from __future__ import annotations

import pytest

from pilotfish.messages import FinishReason
from tests.coordinator.conftest import VOCABULARY, Start, ids
from tests.coordinator.fakes import chaotic, right_for, scripted


async def test_plain(start: Start) -> None:
    """Without a drafter the verifier runs free, and the text is the target's."""
    stack = await start.coordinator([await start.verifier()])
    done = await stack.complete(max_tokens=11)
    assert done.text == "hello world"


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_right", [0, 1, 2, 3, 8])
async def test_partly_right(start: Start, gamma: int, num_right: int) -> None:
    """However many tokens of a draft are right, no word is missing and none doubled."""
    law = chaotic(26)
    stack = await start.stack(law, right_for(num_right, law, 26))
    plain = await stack.complete(max_tokens=40, gamma=0)
    done = await stack.complete(max_tokens=40, gamma=gamma)
    assert done.ids == plain.ids
