"""Openings, leases, streams that break, and who is who."""

from __future__ import annotations

import pytest

from pilotfish.messages import Opened
from tests.verifier.bench import INCARNATION, Bench, BenchSession, greedy, random_table

PROMPT = [1, 2, 3]
TABLE = random_table()
TEXT = greedy(TABLE, PROMPT, 60)


def test_a_session_that_is_not_heard_of_is_gone_after_its_lease() -> None:
    """An abandoned session frees its KV when its lease ends, its caller is told, and later items are refused."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=2, lease_s=10.0)
    bench.settle()
    bench.advance(9.0)
    assert bench.engine.load().num_kv_pages_used > 0
    bench.advance(1.5)
    assert bench.engine.load().num_sessions == bench.engine.load().num_kv_pages_used == 0
    session.work(TEXT[2:4])
    bench.settle()
    assert [refusal.reason for refusal in session.refusals] == ["unknown_session"] * 2
    assert bench.record.num_expired == 1


def test_every_item_renews_the_lease() -> None:
    """A session that is heard of every 9 seconds lives on with a lease of 10."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, lease_s=10.0)
    for _ in range(4):
        bench.advance(9.0)
        session.work(grant=1)
        bench.settle()
    assert session.refusals == []
    assert len(session.output) == 4


def test_the_lease_does_not_run_while_the_verifier_owes_something() -> None:
    """A session that waits for KV longer than its lease keeps its place; abandoned, it ends a lease after its turn."""
    bench = Bench(TABLE, num_pages=8, page_size=4)
    first = bench.session([1] * 20, max_tokens=10, lease_s=10.0)
    waiting = bench.session([2] * 20, max_tokens=10, lease_s=10.0, grant=4)
    for _ in range(5):
        bench.advance(9.0)
        first.work(grant=1)
        bench.settle()
    assert bench.engine.load().num_queued == 1
    first.close()
    bench.settle()
    assert waiting.output == greedy(TABLE, [2] * 20, 4)
    assert waiting.refusals == []
    bench.advance(10.5)
    assert [refusal.reason for refusal in waiting.refusals] == ["unknown_session"]
    assert bench.engine.load().num_sessions == bench.engine.load().num_kv_pages_used == 0


def test_sessions_of_two_callers_with_one_id_are_two_sessions() -> None:
    """A caller that uses another's session id reaches nothing of it."""
    bench = Bench(TABLE)
    mine = bench.session(PROMPT, grant=3, caller="a")
    theirs = BenchSession(bench, mine.id, [4, 5], grant=1, caller="b")
    theirs.close()
    bench.settle()
    assert [key.caller for key in bench.engine.sessions] == ["a"]
    mine_answers = [answer for answer in bench.answers if answer.key.caller == "a"]
    assert len(mine_answers) == 4


def test_a_second_request_under_one_id_is_refused() -> None:
    """Another prompt under the id of an open session is refused; the session goes on."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=2)
    BenchSession(bench, session.id, [4, 4, 4])
    bench.settle()
    assert [refusal.reason for refusal in session.refusals] == ["precondition"]
    assert session.output == TEXT[:2]


def test_opening_again_on_a_new_stream_tells_what_was_committed_since() -> None:
    """A caller whose stream broke opens with what it knows and hears the rest in one verdict, on the new stream."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=6)
    bench.settle()
    seen = len(bench.answers)
    BenchSession(bench, session.id, PROMPT, output_so_far=TEXT[:2], stream=1)
    bench.settle()
    opened, verdict = bench.answers[seen:]
    assert (opened.stream, verdict.stream) == (1, 1)
    assert isinstance(opened.message, Opened)
    assert opened.message.position == 5
    assert verdict.message.position == 5
    assert list(verdict.message.tokens) == TEXT[2:6]  # type: ignore[union-attr] # a verdict


def test_an_item_on_a_new_stream_is_told_what_its_sender_missed() -> None:
    """A verdict that was lost with a stream is sent again when the round comes again on the next one."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT)
    bench.settle()
    session.work(TEXT[:3], round_=0)
    bench.settle()
    session.work(TEXT[:3], round_=0, position=3, stream=1)
    bench.settle()
    assert [answer.stream for answer in bench.answers] == [0, 0, 1]
    assert bench.answers[1].message == bench.answers[2].message


def test_a_sender_that_missed_several_verdicts_hears_them_as_one() -> None:
    """After a new stream an item far behind gets one verdict over all that was committed since its position."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=7)
    bench.settle()
    session.work(grant=9, round_=3, position=4, stream=1)
    bench.settle()
    caught_up = bench.answers[8]
    assert (caught_up.stream, caught_up.message.position) == (1, 4)
    assert list(caught_up.message.tokens) == TEXT[1:7]  # type: ignore[union-attr] # a verdict
    assert session.output == TEXT[:10]


def test_a_finished_session_repeats_its_end_until_it_is_closed() -> None:
    """Work for a finished session does nothing; on a new stream it gets the last verdict again."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, max_tokens=4, grant=9)
    bench.settle()
    session.work(grant=5)
    bench.settle()
    assert bench.record.drops["finished"] == 1
    session.work(grant=5, position=6, round_=0, stream=1)
    bench.settle()
    assert bench.answers[-1].message == session.verdicts[3]
    session.close()
    bench.settle()
    assert not bench.engine.sessions


@pytest.mark.parametrize(
    ("keys", "reason", "words"),
    [
        ({"vocabulary_hash": "other"}, "vocabulary", "token strings differ"),
        ({"prompt": [0] * 4096}, "context", "4096"),
        ({"prompt": [1, 99]}, "argument", "below 16"),
        ({"prompt": [1] * 100, "max_tokens": 2000}, "kv_full", "525 KV pages"),
        ({"incarnation": INCARNATION + 1}, "incarnation", "reopen"),
    ],
)
def test_a_session_that_can_never_be_served_is_refused_by_name(
    keys: dict[str, object], reason: str, words: str
) -> None:
    """The refusal of an opening has the word for counting, and the numbers that decided."""
    bench = Bench(TABLE, num_pages=64)
    prompt = keys.pop("prompt", PROMPT)
    session = bench.session(prompt, **{"max_tokens": 10, **keys})  # type: ignore[arg-type] # as given above
    bench.settle()
    assert [refusal.reason for refusal in session.refusals] == [reason]
    assert words in session.refusals[0].message


def test_sessions_over_the_limit_are_refused_with_a_delay() -> None:
    """One session more than are taken is refused as overload; once another closes it is taken."""
    bench = Bench(TABLE, max_sessions=2)
    first, _, third = (bench.session(PROMPT) for _ in range(3))
    bench.settle()
    assert [(refusal.reason, refusal.code) for refusal in third.refusals] == [("full", 8)]
    assert "try again in 1 s" in third.refusals[0].message
    first.close()
    fourth = bench.session(PROMPT, grant=1)
    bench.settle()
    assert fourth.output == TEXT[:1]


def test_a_draining_verifier_takes_no_session_and_finishes_those_it_has() -> None:
    """While it drains an opening is refused as unavailable, and the open session runs to its end."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, max_tokens=5)
    bench.settle()
    bench.engine.is_draining = True
    late = bench.session(PROMPT)
    session.work(grant=9)
    bench.settle()
    assert [refusal.reason for refusal in late.refusals] == ["unavailable"]
    assert session.output == TEXT[:5]
    assert not bench.engine.unfinished
