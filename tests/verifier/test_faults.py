"""What goes wrong inside a pass, and who feels it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pilotfish.engine.batch import Batch
from pilotfish.engine.table import TableBackend
from pilotfish.messages import Sampling
from tests.verifier.bench import Bench, greedy, random_table

TABLE = random_table()


class FaultyBackend(TableBackend):
    """A table that goes wrong for whoever has the token 15 in a pass, or in a given pass as a whole."""

    def __init__(self, fault: str) -> None:
        super().__init__(TABLE)
        self.fault = fault
        self.is_armed = False

    def forward(self, batch: Batch) -> Tensor:
        logits = super().forward(batch)
        if not self.is_armed:
            return logits
        if self.fault == "raise":
            self.is_armed = False
            raise RuntimeError("out of memory, say")
        for row, logit_row in zip(logits, batch.logit_rows, strict=True):
            if batch.token_ids[logit_row] == 15:
                row.fill_(math.nan)
        return logits


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_session_whose_target_gives_no_numbers_fails_alone(temperature: float) -> None:
    """NaN in the logits of one session ends that one with an internal error; the others go on and are right."""
    backend = FaultyBackend("nan")
    backend.is_armed = True
    bench = Bench(TABLE, backend=backend)
    sound = bench.session([1, 2], grant=5, max_tokens=5)
    sick = bench.session([3, 15], grant=5, sampling=Sampling(temperature))
    bench.settle()
    assert [(refusal.reason, refusal.code) for refusal in sick.refusals] == [("target", 13)]
    assert sick.verdicts == []
    assert sound.output == greedy(TABLE, [1, 2], 5)
    assert len(bench.engine.sessions) == 1


def test_a_pass_that_raises_ends_its_sessions_and_the_engine_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """The sessions of a failed pass get an internal error; a held one and a new one are served as ever."""
    backend = FaultyBackend("raise")
    bench = Bench(TABLE, backend=backend)
    held = bench.session([4, 5, 6])
    bench.settle()
    backend.is_armed = True
    riders = [bench.session([1, 2], grant=5), bench.session([3, 4], grant=5)]
    bench.settle()
    assert [rider.refusals[0].reason for rider in riders] == ["target"] * 2
    assert "out of memory" not in riders[0].refusals[0].message
    assert "out of memory" in caplog.text
    text = greedy(TABLE, [4, 5, 6], 9)
    held.work(text[:3])
    fresh = bench.session([1, 2], grant=5)
    bench.settle()
    assert held.output == text[:4]
    assert fresh.output == greedy(TABLE, [1, 2], 5)


def test_ids_beyond_the_vocabulary_are_never_committed() -> None:
    """Rows of padding behind the tokenizer's ids are not drawn, however likely the model finds them."""

    class Padded(TableBackend):
        def forward(self, batch: Batch) -> Tensor:
            logits = super().forward(batch)
            return torch.cat([logits, torch.full((len(logits), 4), 100.0, dtype=logits.dtype)], dim=1)

    bench = Bench(TABLE, backend=Padded(TABLE))
    greedy_session = bench.session([1, 2], grant=20)
    drawn = bench.session([1, 2], grant=50, sampling=Sampling(1.0))
    bench.settle()
    assert greedy_session.output == greedy(TABLE, [1, 2], 20)
    assert max(drawn.output) < TABLE.vocabulary_size


def test_the_engine_says_for_how_long_it_has_been_at_one_turn() -> None:
    """A pass that does not come back shows as a stall; waiting for work does not."""
    stalls: list[float] = []

    class Slow(TableBackend):
        def forward(self, batch: Batch) -> Tensor:
            bench.now_s += 40.0
            stalls.append(bench.engine.stalled_s(bench.now_s))
            return super().forward(batch)

    bench = Bench(TABLE, backend=Slow(TABLE))
    bench.session([1, 2], grant=1, lease_s=1000.0)
    bench.settle()
    assert stalls == [40.0]
