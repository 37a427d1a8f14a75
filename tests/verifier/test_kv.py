"""Sharing KV between sessions: the prefix cache, preemption, prompts in chunks."""

from __future__ import annotations

import pytest

from pilotfish.draft import Draft
from pilotfish.messages import Opened
from tests.verifier.bench import Bench, greedy, random_table
from verifier.schedule import PassLimits

TABLE = random_table()


@pytest.mark.parametrize("num_prompt", range(1, 14))
@pytest.mark.parametrize("gamma", [0, 4])
def test_prompts_of_every_length_are_continued_exactly(num_prompt: int, gamma: int) -> None:
    """Prompts around the sizes of pages and chunks get the table's continuation, with and without drafts."""
    bench = Bench(TABLE, limits=PassLimits(max_positions=64, prefill_positions=3))
    prompt = [(7 * i + 2) % 16 for i in range(num_prompt)]
    text = greedy(TABLE, prompt, 30)
    session = bench.session(prompt, grant=0 if gamma else 20)
    bench.settle()
    while gamma and len(session.output) < 20:
        done = len(session.output)
        session.work(text[done : done + gamma])
        bench.settle()
    assert session.output[:20] == text[:20]


def test_the_second_run_of_a_prompt_finds_its_kv() -> None:
    """The same prompt again computes only what is not in whole pages, and says the same."""
    bench = Bench(TABLE)
    prompt = [i % 16 for i in range(22)]
    first = bench.session(prompt, grant=10)
    bench.settle()
    first.close()
    second = bench.session(prompt, grant=10)
    bench.settle()
    opened = second.messages[0]
    assert isinstance(opened, Opened)
    assert opened.num_cached_tokens == 20
    assert second.output == first.output == greedy(TABLE, prompt, 10)
    assert [record.num_positions for record in bench.record.passes] == [22, *[1] * 9, 2, *[1] * 9]


def test_another_tenant_shares_nothing() -> None:
    """The same prompt of another tenant finds nothing in the prefix cache."""
    bench = Bench(TABLE)
    prompt = [i % 16 for i in range(22)]
    bench.session(prompt, grant=1, tenant="a")
    bench.settle()
    other = bench.session(prompt, grant=1, tenant="b")
    bench.settle()
    opened = other.messages[0]
    assert isinstance(opened, Opened)
    assert opened.num_cached_tokens == 0


def test_a_session_preempted_between_draft_and_verdict_is_recomputed() -> None:
    """When the first session grows into a full pool the latest loses its KV, not its draft, and still gets it all."""
    bench = Bench(TABLE, num_pages=7, page_size=4)
    text_a, text_b = greedy(TABLE, [1, 2], 30), greedy(TABLE, [3, 4, 5], 30)
    first = bench.session([1, 2], max_tokens=26)
    latest = bench.session([3, 4, 5], max_tokens=24, patience_us=10**9)
    bench.settle()
    latest.work(text_b[:4], round_=0, is_complete=False, patience_us=10**9)
    for _ in range(5):
        first.work(text_a[len(first.output) :][:4])
        bench.settle()
    assert sum(record.num_preempted for record in bench.record.passes) == 1
    assert bench.engine.load().num_queued == 1
    latest.work(text_b[4:6], round_=0, first_node=4, position=3)
    bench.settle()
    assert latest.output == []  # no room yet
    first.close()
    bench.settle()
    assert latest.output == text_b[:7]
    assert first.output == text_a[: len(first.output)]


def test_more_sessions_than_kv_all_finish_with_their_text() -> None:
    """Twelve free-running sessions through a pool that holds three all get their text, and the pool is empty after."""
    bench = Bench(TABLE, num_pages=18, page_size=4)
    prompts = [[i % 16, 3, (5 * i) % 16] for i in range(12)]
    sessions = [bench.session(prompt, max_tokens=20, grant=20) for prompt in prompts]
    bench.settle()
    for prompt, session in zip(prompts, sessions, strict=True):
        assert session.output == greedy(TABLE, prompt, 20)
        session.close()
    bench.settle()
    assert bench.engine.load().num_kv_pages_used == 0


def test_the_admission_queue_is_bounded() -> None:
    """When as many sessions wait for KV as may, the next one is refused as overload."""
    bench = Bench(TABLE, num_pages=8, page_size=4, max_waiting=2)
    sessions = []
    for _ in range(4):
        sessions.append(bench.session([1] * 29, max_tokens=3))
        bench.settle()
    assert [len(session.refusals) for session in sessions] == [0, 0, 0, 1]
    assert sessions[3].refusals[0].reason == "full"


def test_a_tree_wider_than_the_pool_is_cut_to_what_fits() -> None:
    """A session alone in a small pool gets as many nodes verified as fit, and the right text."""
    bench = Bench(TABLE, num_pages=4, page_size=4)
    text = greedy(TABLE, [1, 2, 3], 13)
    session = bench.session([1, 2, 3], max_tokens=13)
    bench.settle()
    others = [token for token in range(16) if token != text[0]]
    session.work(Draft((*others[:15], text[0]), (-1,) * 16, (None,) * 16), grant=13)
    bench.settle()
    assert session.verdicts[0].num_drafted == 13
    assert session.output == text


def test_a_long_prompt_does_not_stop_those_who_decode() -> None:
    """While a long prompt is computed in chunks, a free-running session gets a token in every pass."""
    bench = Bench(TABLE, limits=PassLimits(max_positions=64, prefill_positions=10))
    free = bench.session([1, 2], grant=1000)
    bench.turn()
    long = bench.session([i % 16 for i in range(100)], grant=1, max_tokens=10)
    for num_passes in range(1, 11):
        bench.turn()
        assert len(free.output) == 1 + num_passes
    assert [record.num_positions for record in bench.record.passes[1:]] == [11] * 10
    assert len(long.output) == 1


@pytest.mark.parametrize("num_copies", [1, 8])
def test_copies_of_a_prompt_at_once_get_equal_answers(num_copies: int) -> None:
    """Sessions that share passes and prompts all say what one alone says."""
    bench = Bench(TABLE)
    text = greedy(TABLE, [5, 6, 7, 8, 9], 60)
    sessions = [bench.session([5, 6, 7, 8, 9]) for _ in range(num_copies)]
    bench.settle()
    for i in range(12):
        for number, session in enumerate(sessions):
            done = len(session.output)
            session.work(text[done : done + (i + number) % 4], grant=1)
        bench.settle()
    assert all(session.output == text[: len(session.output)] for session in sessions)


def test_closing_one_session_leaves_the_others_and_the_next_alone() -> None:
    """A session closed in the middle of its draft frees its KV; those beside and after it are not touched."""
    bench = Bench(TABLE, num_pages=16)
    a = bench.session([1, 2, 3], patience_us=10**9, max_tokens=30)
    b = bench.session([4, 5, 6], grant=30, max_tokens=31)
    bench.turn()
    a.work([1, 2, 3], is_complete=False, patience_us=10**9)
    bench.turn()
    a.close()
    c = bench.session([7, 8], grant=20, max_tokens=21)
    bench.settle()
    assert b.output == greedy(TABLE, [4, 5, 6], 30)
    assert c.output == greedy(TABLE, [7, 8], 20)
    assert len(bench.engine.sessions) == 2
