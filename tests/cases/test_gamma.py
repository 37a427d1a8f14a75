"""γ through the running services, on passes whose length the table says."""

from __future__ import annotations

from pilotfish.messages import Speculation
from tests.cases.conftest import Serve
from tests.cases.services import LETTERS

SLOW = {"vocabulary": LETTERS, "random": {"seed": 3, "order": 2, "sharpness": 1.5}, "pass_us": [[64, 2000]]}
NUM_BAD = 200  # rounds


async def test_drafts_that_never_hold_end(serve: Serve) -> None:
    """After 200 rounds with a drafter that is always wrong γ is 0 and 1.2 positions or fewer are verified a token."""
    # seen in llama.cpp PR#22931
    async with serve(SLOW, speculators=["Adverse"]) as services:
        answer = await services.complete(
            max_tokens=700,
            seed=1,
            speculation=Speculation(speculator="tests.drafters:Adverse"),
            include_rounds=True,
        )
        assert answer.ids == services.greedy("abc", 700)
        later = answer.rounds[NUM_BAD:]
        assert {entry.gamma for entry in later if entry.reason != "explore"} == {0}
        num_positions = sum(1 + entry.num_drafted for entry in later)
        assert num_positions <= 1.2 * sum(entry.num_committed for entry in later)


async def test_a_lookup_that_finds_nothing_verifies_nothing(serve: Serve) -> None:
    """A text in which nothing repeats gets no drafts from a lookup, and every pass is a plain one."""
    # seen in pie#436
    ids = list(range(60))
    table = {
        "vocabulary": [f"<{number}>" for number in ids],
        "script": {"ids": ids, "probability": 0.9},
        "pass_us": [[64, 2000]],
    }
    async with serve(table, speculators=["ngram"]) as services:
        answer = await services.complete([59], max_tokens=50, include_rounds=True)
        assert answer.ids == tuple(ids[:50])
        assert answer.statistics.num_drafted_tokens == 0
        assert answer.statistics.num_verdicts == 50
