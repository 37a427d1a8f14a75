"""Prompts are read in the order in which their clients stop waiting, and nobody starves."""

from __future__ import annotations

import pytest

from tests.verifier.bench import Bench, BenchSession, greedy, random_table
from verifier.schedule import PassLimits
from verifier.sessions import NO_TARGET_S

TABLE = random_table()
CHUNK = 16
SECOND_US = 1_000_000


def bench_of_chunks() -> Bench:
    """One whose passes read so much of a prompt and no more."""
    return Bench(TABLE, limits=PassLimits(max_positions=256, prefill_positions=CHUNK))


def until_heard(session: BenchSession) -> None:
    """Turn until it has a verdict."""
    for _ in range(100):
        session.bench.turn()
        if session.verdicts:
            return
    raise AssertionError("no verdict in 100 turns")


def test_a_later_prompt_with_a_target_is_read_before_long_ones_without() -> None:
    """It has its first token while none of the prompts before it has; all texts are what they are."""
    bench = bench_of_chunks()
    prompts = [[token] * 5 * CHUNK for token in range(4)]
    earlier = [bench.session(prompt, grant=4, max_tokens=8) for prompt in prompts[:3]]
    bench.turn()
    later = bench.session(prompts[3], grant=4, max_tokens=8, first_token_us=SECOND_US)
    until_heard(later)
    assert not any(session.verdicts for session in earlier)
    bench.settle()
    for session, prompt in zip([*earlier, later], prompts, strict=True):
        assert session.output == greedy(TABLE, prompt, 4)


@pytest.mark.parametrize("first_token_us", [None, 0], ids=["no target", "missed at its opening"])
def test_a_prompt_with_nothing_to_keep_is_read_in_its_turn(first_token_us: int | None) -> None:
    """It comes after an earlier one, to whom it would not help to be passed."""
    bench = bench_of_chunks()
    first = bench.session([1] * 3 * CHUNK, grant=1, max_tokens=8)
    bench.now_s += 0.001
    later = bench.session([2] * 3 * CHUNK, grant=1, max_tokens=8, first_token_us=first_token_us)
    until_heard(first)
    assert not later.verdicts
    bench.settle()
    assert later.output == greedy(TABLE, [2] * 3 * CHUNK, 1)


def test_a_target_that_is_missed_meanwhile_takes_nothing_any_more() -> None:
    """Half read when its time ends, a prompt falls back behind an earlier one."""
    bench = bench_of_chunks()
    first = bench.session([1] * 3 * CHUNK, grant=1, max_tokens=8)
    bench.now_s += 0.001
    hasty = bench.session([2] * 3 * CHUNK, grant=1, max_tokens=8, first_token_us=SECOND_US)
    bench.turn()
    keys = {session.id: key for session in (first, hasty) for key in bench.engine.sessions if key.session == session.id}
    assert (bench.engine.pool.length(keys[first.id]), bench.engine.pool.length(keys[hasty.id])) == (0, CHUNK)
    bench.now_s += 2.0
    until_heard(first)
    assert not hasty.verdicts


def test_prompts_with_targets_starve_nobody() -> None:
    """While each pass takes a second and brings another prompt with a target, one without is read when it is due."""
    bench = bench_of_chunks()
    patient = bench.session([15] * CHUNK, grant=1, max_tokens=8)
    began_s = bench.now_s
    for token in range(15):
        bench.session([token] * CHUNK, grant=1, max_tokens=8, first_token_us=3 * SECOND_US)
        bench.turn()
        assert token > 5 or not patient.verdicts
        if patient.verdicts:
            break
        bench.now_s += 1.0
    assert patient.output == greedy(TABLE, [15] * CHUNK, 1)
    assert bench.now_s - began_s <= NO_TARGET_S
