"""Commits by the grant: free-running, patience, and what ends them."""

from __future__ import annotations

import pytest

from pilotfish.messages import FinishReason, TokenKind
from tests.verifier.bench import Bench, greedy, random_table, script_table

PROMPT = [1, 2, 3]


def test_grant_commits_one_token_a_pass_until_it_is_used_up() -> None:
    """A session with a grant of 5 gets 5 tokens in 5 passes, the table's own, and then waits."""
    bench = Bench(random_table())
    session = bench.session(PROMPT, grant=5)
    bench.settle()
    assert session.output == greedy(bench.table, PROMPT, 5)
    assert [len(verdict.tokens) for verdict in session.verdicts] == [1] * 5
    assert session.kinds == [TokenKind.PLAIN] * 5
    assert all(verdict.round is None for verdict in session.verdicts)


def test_without_grant_or_draft_nothing_is_committed() -> None:
    """A session opened without a grant is prefilled and commits nothing, however long it waits."""
    bench = Bench(random_table())
    session = bench.session(PROMPT)
    bench.advance(500.0)
    assert session.verdicts == []
    assert bench.engine.pool.length(next(iter(bench.engine.sessions))) == len(PROMPT) - 1


def test_a_grant_is_absolute_and_may_be_repeated() -> None:
    """The same grant sent three times, late too, commits no token more than once sent."""
    bench = Bench(random_table())
    session = bench.session(PROMPT)
    for _ in range(3):
        session.work(grant=4, position=3, round_=0)
        bench.settle()
    assert session.output == greedy(bench.table, PROMPT, 4)


def test_a_grant_of_zero_stops_a_free_session() -> None:
    """A session that ran free commits nothing more once an item with a grant of 0 has come."""
    bench = Bench(random_table())
    session = bench.session(PROMPT, grant=100)
    for _ in range(3):
        bench.turn()
    session.work(grant=0)
    bench.settle()
    assert len(session.output) == 3


def test_an_older_grant_does_not_undo_a_newer_one() -> None:
    """A grant that was overtaken by one at a later position is counted and changes nothing."""
    bench = Bench(random_table())
    session = bench.session(PROMPT, grant=2)
    bench.settle()
    session.work(grant=3, round_=1)
    session.work(grant=0, position=4, round_=0)
    bench.settle()
    assert len(session.output) == 5
    assert bench.record.drops["stale_grant"] == 1


def test_patience_holds_the_session_and_then_the_grant_applies() -> None:
    """After an empty item the session is held for its patience, then it runs free."""
    bench = Bench(random_table())
    session = bench.session(PROMPT, grant=3, patience_us=10_000)
    bench.advance(0.009)
    assert session.output == []
    bench.advance(0.002)
    assert len(session.output) == 3


def test_the_engine_sleeps_until_patience_or_lease_ends() -> None:
    """A turn with nothing to do says exactly when the next one is due, so that nobody polls."""
    bench = Bench(random_table())
    bench.session(PROMPT, grant=3, patience_us=10_000, lease_s=60.0)
    bench.turn()  # the prompt
    assert bench.turn() == pytest.approx(100.01)
    bench.now_s = 101.0
    bench.settle()
    assert bench.turn() == pytest.approx(161.0)  # a lease after it was served last


def test_patience_counts_from_the_verdict_of_a_draft() -> None:
    """A draft's item holds the session from its verdict on, not from its arrival."""
    bench = Bench(random_table())
    text = greedy(bench.table, PROMPT, 20)
    session = bench.session(PROMPT)
    bench.settle()
    bench.now_s += 5.0
    session.work(text[:2], grant=10, patience_us=10_000)
    bench.settle()
    assert session.output == text[:3]
    bench.advance(0.009)
    assert session.output == text[:3]
    bench.advance(0.002)
    assert session.output == text[:10]


def test_a_complete_draft_ends_the_hold() -> None:
    """A session held for a long patience verifies a complete draft at once."""
    bench = Bench(random_table())
    text = greedy(bench.table, PROMPT, 20)
    session = bench.session(PROMPT, grant=8, patience_us=60_000_000)
    bench.settle()
    session.work(text[:4], grant=4, patience_us=60_000_000)
    bench.settle()
    assert session.output == text[:5]


@pytest.mark.parametrize("max_tokens", range(1, 8))
@pytest.mark.parametrize("gamma", [0, 1, 3, 5])
def test_max_tokens_is_exact(max_tokens: int, gamma: int) -> None:
    """Exactly max_tokens are committed, whatever the draft's length, and the last verdict says length."""
    bench = Bench(random_table())
    text = greedy(bench.table, PROMPT, 20)
    session = bench.session(PROMPT, max_tokens=max_tokens, grant=0 if gamma else 100)
    bench.settle()
    while gamma and not (session.verdicts and session.verdicts[-1].finish):
        done = len(session.output)
        session.work(text[done : done + gamma])
        bench.settle()
    assert session.output == text[:max_tokens]
    assert session.verdicts[-1].finish is FinishReason.LENGTH
    assert [verdict.finish for verdict in session.verdicts[:-1]] == [None] * (len(session.verdicts) - 1)


@pytest.mark.parametrize("room", [1, 2, 4, 6])
@pytest.mark.parametrize("gamma", [0, 3, 8])
def test_the_context_ends_a_session_with_length_and_clips_the_draft(room: int, gamma: int) -> None:
    """A prompt that leaves `room` tokens of context gets exactly those; no node is verified that could not count."""
    bench = Bench(random_table(context_length=24))
    prompt = [i % 16 for i in range(24 - room)]
    text = greedy(bench.table, prompt, room + 10)
    session = bench.session(prompt, grant=0 if gamma else 100)
    bench.settle()
    if gamma:
        for _ in range(room):
            if session.verdicts and session.verdicts[-1].finish:
                break
            done = len(session.output)
            session.work(text[done : done + gamma])
            bench.settle()
            left = room - done
            assert session.verdicts[-1].num_drafted == min(gamma, left - 1)
    assert session.output == text[:room]
    assert session.verdicts[-1].finish is FinishReason.LENGTH


def test_an_end_id_ends_the_session_and_nothing_after_it_is_committed() -> None:
    """An end id inside an accepted draft is the last token; what was accepted beyond is not committed."""
    bench = Bench(script_table([4, 5, 6, 7, 8, 9]))
    session = bench.session(PROMPT, end_ids=[6])
    bench.settle()
    session.work([4, 5, 6, 7, 8])
    bench.settle()
    verdict = session.verdicts[-1]
    assert verdict.tokens == (4, 5, 6)
    assert verdict.finish is FinishReason.STOP
    assert verdict.num_accepted == 5
    assert bench.engine.load().num_kv_pages_used == 0


def test_an_end_id_in_a_draft_that_the_target_rejects_does_not_stop() -> None:
    """A drafted end id that does not hold is replaced by the target's token and the session goes on."""
    bench = Bench(script_table([4, 5, 6, 7, 8, 9]))
    session = bench.session(PROMPT, end_ids=[15])
    bench.settle()
    session.work([4, 15, 6], grant=2)
    bench.settle()
    assert session.verdicts[0].tokens == (4, 5)
    assert session.verdicts[0].finish is None


def test_without_end_ids_the_end_token_is_an_ordinary_token() -> None:
    """With no end ids (ignore_eos) the model's end id is committed like any other and the text goes on."""
    table = script_table([4, 15, 6, 7], end_ids=[15])
    bench = Bench(table)
    session = bench.session(PROMPT, grant=4)
    bench.settle()
    assert session.output == [4, 15, 6, 7]
    assert session.verdicts[-1].finish is None


def test_output_so_far_counts_against_max_tokens() -> None:
    """A resumed session gets what is left of its max_tokens, and the same text."""
    bench = Bench(random_table())
    text = greedy(bench.table, PROMPT, 10)
    session = bench.session(PROMPT, output_so_far=text[:4], max_tokens=6, grant=50)
    bench.settle()
    assert session.output == text[:6]
    assert session.verdicts[-1].finish is FinishReason.LENGTH
