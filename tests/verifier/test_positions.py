"""What an item does, by its position: work, the last verdict again, a tail, held ahead, or refused."""

from __future__ import annotations

from math import inf
from typing import Any

import pytest

from pilotfish.draft import Draft
from pilotfish.messages import TokenKind
from pilotfish.wire.values import MAX_ROUNDS_AHEAD
from tests.verifier.bench import INCARNATION, NUM_IDS, Bench, BenchSession, greedy, random_table
from verifier.sessions import SessionKey

PROMPT = [1, 2, 3]
TABLE = random_table()
TEXT = greedy(TABLE, PROMPT, 60)


def wrong(token: int) -> int:
    return (token + 1) % NUM_IDS


def opened(**keys: Any) -> tuple[Bench, BenchSession]:
    bench = Bench(TABLE)
    session = bench.session(PROMPT, **keys)
    bench.settle()
    return bench, session


@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("num_right", range(9))
def test_a_draft_commits_what_holds_and_one_more(gamma: int, num_right: int) -> None:
    """Of a draft that is right for m tokens, m are accepted and one more is committed; no word is lost or doubled."""
    num_right = min(num_right, gamma)
    bench, session = opened()
    while len(session.output) < 40:
        done = len(session.output)
        draft = TEXT[done : done + num_right] + [wrong(token) for token in TEXT[done + num_right : done + gamma]]
        session.work(draft)
        bench.settle()
        verdict = session.verdicts[-1]
        assert (verdict.num_drafted, verdict.num_accepted) == (gamma, num_right)
        last = TokenKind.BONUS if num_right == gamma else TokenKind.CORRECTION
        assert verdict.kinds == (TokenKind.ACCEPTED,) * num_right + (last,)
    assert session.output == TEXT[: len(session.output)]


def test_a_resend_gets_the_stored_verdict_whatever_its_draft() -> None:
    """An item at the base of the last verdict gets that verdict again, unchanged, with another draft too."""
    bench, session = opened()
    session.work(TEXT[:3], round_=0)
    bench.settle()
    session.work(TEXT[:3], position=3, round_=0)
    session.work([9, 9], position=3, round_=0)
    session.work([9, 9], position=3, round_=1)
    bench.settle()
    assert session.verdicts == [session.verdicts[0]] * 4
    assert len(bench.record.passes) == 2
    assert bench.record.drops["resend"] == 3


def test_a_position_that_is_neither_is_refused_with_the_right_one() -> None:
    """Items beyond the committed length, or before the session's start, are refused with the right position."""
    bench, session = opened(grant=2)
    session.work([1], position=9, prefix_hash=0)
    session.work([1], position=1, prefix_hash=0)
    bench.settle()
    assert [(refusal.position, refusal.reason) for refusal in session.refusals] == [(5, "position")] * 2
    assert len(session.output) == 2


def test_a_prefix_that_differs_is_refused() -> None:
    """An item whose prefix hash is not that of the committed tokens is refused by that name; nothing is committed."""
    bench, session = opened()
    session.work(TEXT[:2], prefix_hash=123)
    bench.settle()
    assert [refusal.reason for refusal in session.refusals] == ["prefix"]
    assert session.verdicts == []


def test_a_stale_incarnation_is_refused_with_the_current_one() -> None:
    """An item or an opening for an earlier life of the verifier is refused and told the incarnation of this one."""
    bench, session = opened()
    session.work(TEXT[:2], incarnation=INCARNATION - 1)
    late = bench.session(PROMPT, incarnation=INCARNATION - 1)
    bench.settle()
    for refusal in session.refusals + late.refusals:
        assert (refusal.reason, refusal.incarnation) == ("incarnation", INCARNATION)
    assert len(session.refusals) == len(late.refusals) == 1


def test_an_unknown_session_is_refused_and_closing_one_is_no_error() -> None:
    """Work for a session that was closed is refused as unknown; closing it twice says nothing."""
    bench, session = opened()
    session.close()
    session.close()
    session.work(TEXT[:2])
    bench.settle()
    assert [(refusal.reason, refusal.position) for refusal in session.refusals] == [("unknown_session", None)]


# -- behind --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_free", range(1, 7))
def test_the_tail_of_a_draft_that_came_late_is_used(num_free: int) -> None:
    """A session ran free for k tokens; of a right draft of 6 that builds before them, the other 6 - k are verified."""
    bench, session = opened(grant=num_free)
    assert session.output == TEXT[:num_free]
    session.work(TEXT[:6], position=3, round_=0, grant=num_free + 1)
    bench.settle()
    verdict = session.verdicts[-1]
    assert verdict.round == 0
    assert session.output == TEXT[: max(7, num_free + 1)]
    assert verdict.num_drafted == verdict.num_accepted == 6 - num_free
    assert verdict.num_reused == (num_free if num_free < 6 else 0)


def test_a_late_draft_that_differs_is_dropped_and_the_next_verdict_says_so() -> None:
    """A draft that does not hold what was committed meanwhile is counted, and the next verdict carries its round."""
    bench, session = opened(grant=2)
    session.work([wrong(TEXT[0]), *TEXT[1:4]], position=3, round_=4, grant=4)
    bench.settle()
    assert bench.record.drops == {"behind": 1}
    assert [verdict.round for verdict in session.verdicts[2:]] == [4, None]
    assert session.verdicts[2].num_drafted == 0
    assert session.output == TEXT[:4]


def test_a_dropped_draft_without_grant_is_refused_so_that_nobody_waits_for_ever() -> None:
    """Where no verdict can follow, the drop is told by a refusal with the right position."""
    bench, session = opened(grant=2)
    session.work([wrong(TEXT[0])], position=3, round_=0)
    bench.settle()
    assert [(refusal.reason, refusal.position) for refusal in session.refusals] == [("position", 5)]
    session.work(TEXT[2:4], round_=1)
    bench.settle()
    assert session.output == TEXT[:5]


def test_a_drafter_joins_a_free_session_without_a_bubble() -> None:
    """Drafts that always come two tokens late are used by their tails; passes never wait, and the text is the same."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=1000)
    bench.turn()
    num_passes_with_drafts = 0
    while len(session.output) < 50:
        base = len(session.output)
        bench.turn()
        bench.turn()
        session.work(TEXT[base : base + 5], position=3 + base, grant=1000)
        bench.turn()
        num_passes_with_drafts += session.verdicts[-1].num_drafted == 3
    assert session.output == TEXT[: len(session.output)]
    assert num_passes_with_drafts == sum(verdict.num_drafted > 0 for verdict in session.verdicts) > 5


# -- parts ---------------------------------------------------------------------------------------------------------


def test_how_often_and_when_drafts_follow_is_known_of_a_free_session_too() -> None:
    """A draft that came during a pass is counted from the verdict before it, though it is taken after the next."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=1000)
    bench.turn()
    inside = bench.engine.sessions[SessionKey("", session.id)]
    assert inside.due_at_s(bench.now_s) == inf
    for _ in range(8):
        position, began_s = len(session.tokens), bench.now_s
        bench.now_s = began_s + 1.0
        bench.turn()
        bench.now_s = began_s + 0.3
        session.work(TEXT[position - 3 : position + 1], position=position, grant=1000)
        bench.now_s = began_s + 2.0
        bench.turn()
    assert inside.turnaround_s == pytest.approx(0.3)
    assert inside.offered == pytest.approx(1.0)
    assert inside.due_at_s(bench.now_s) == pytest.approx(bench.now_s + 0.3)
    for _ in range(8):
        bench.now_s += 1.0
        bench.turn()
    assert inside.offered < 0.1


def test_parts_are_verified_as_one_draft() -> None:
    """Nodes that travel in three parts make one round, verified when the last has come."""
    bench, session = opened(grant=0, patience_us=10**6)
    session.work(TEXT[:2], round_=0, is_complete=False)
    session.work(TEXT[2:3], position=3, round_=0, first_node=2, is_complete=False)
    bench.settle()
    assert session.verdicts == []
    session.work(TEXT[3:5], position=3, round_=0, first_node=3)
    bench.settle()
    assert [(verdict.num_drafted, verdict.num_accepted) for verdict in session.verdicts] == [(5, 5)]


def test_an_empty_last_part_completes_a_draft() -> None:
    """A part without nodes that follows others and is complete ends the draft."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[:2], round_=0, is_complete=False)
    session.work(position=3, round_=0, first_node=2)
    bench.settle()
    assert session.output == TEXT[:3]


def test_when_patience_ends_the_nodes_that_have_come_are_verified() -> None:
    """At the end of the patience what has come counts; a grant is not needed for it."""
    bench, session = opened(patience_us=10_000)
    session.work(TEXT[:2], round_=0, is_complete=False)
    bench.settle()
    assert session.verdicts == []
    bench.advance(0.02)
    assert [(verdict.round, verdict.num_drafted) for verdict in session.verdicts] == [(0, 2)]


@pytest.mark.parametrize("bonus_is_drafted", [True, False])
def test_late_parts_of_a_round_are_used_by_their_tail_or_dropped(bonus_is_drafted: bool) -> None:
    """After the patience verified two of five nodes, the rest counts below the bonus if the bonus is its head."""
    bench, session = opened(patience_us=10_000)
    session.work(TEXT[:2], round_=0, is_complete=False, grant=3, patience_us=10_000)
    bench.advance(0.02)
    head = TEXT[2] if bonus_is_drafted else wrong(TEXT[2])
    session.work([head, *TEXT[3:5]], position=3, round_=0, first_node=2)
    bench.settle()
    if bonus_is_drafted:
        assert [(v.num_drafted, v.num_reused) for v in session.verdicts] == [(2, 0), (2, 3)]
        assert session.output == TEXT[:6]
    else:
        assert len(session.verdicts) == 1
        assert bench.record.drops == {"late": 1}


def test_a_part_that_leaves_a_gap_is_refused() -> None:
    """A part that begins beyond what has come is refused with what is there; the round can still be completed."""
    bench, session = opened()
    session.work(TEXT[3:5], round_=0, first_node=3)
    bench.settle()
    assert "0 nodes here" in session.refusals[0].message
    session.work(TEXT[:5], round_=0)
    bench.settle()
    assert session.output == TEXT[:6]


def test_a_gap_within_a_round_is_refused_and_can_be_filled() -> None:
    """A part beyond what a round has is refused with the number of nodes there; the missing ones then complete it."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[:2], round_=0, is_complete=False)
    session.work(TEXT[4:6], position=3, round_=0, first_node=4)
    bench.settle()
    assert "2 nodes here" in session.refusals[0].message
    session.work(TEXT[2:6], position=3, round_=0, first_node=2)
    bench.settle()
    assert [(verdict.num_drafted, verdict.num_accepted) for verdict in session.verdicts] == [(6, 6)]


def test_a_part_that_comes_twice_changes_nothing() -> None:
    """Nodes that are there already are passed over, alone or before new ones."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[:2], round_=0, is_complete=False)
    session.work(TEXT[:2], round_=0, is_complete=False)
    session.work(TEXT[1:4], position=3, round_=0, first_node=1)
    bench.settle()
    assert [(verdict.num_drafted, verdict.num_accepted) for verdict in session.verdicts] == [(4, 4)]


def test_free_running_takes_the_nodes_that_are_there_when_a_pass_begins() -> None:
    """A session that runs free verifies parts as they come, each below what was committed meanwhile."""
    bench = Bench(TABLE)
    session = bench.session(PROMPT, grant=1000)
    bench.turn()  # commits TEXT[0]
    session.work(TEXT[1:3], round_=0, is_complete=False, grant=100)
    bench.turn()  # two nodes and a bonus
    assert session.output == TEXT[:4]
    session.work(TEXT[3:6], position=4, round_=0, first_node=2, grant=100)
    bench.turn()  # the bonus was the head of the rest
    assert session.output == TEXT[:7]
    assert session.verdicts[-1].num_drafted == 2


def test_a_late_round_is_superseded_by_a_later_one() -> None:
    """A new round at the same position takes the place of one that is not complete, which is counted."""
    bench, session = opened(patience_us=10**6)
    session.work([9, 9], round_=0, is_complete=False)
    session.work(TEXT[:2], round_=1)
    session.work([9], position=3, round_=0, first_node=2)
    bench.settle()
    assert session.output == TEXT[:3]
    assert bench.record.drops == {"superseded": 1, "late": 1}


def test_a_draft_that_was_cut_to_nothing_ends_its_round() -> None:
    """A draft of which nothing could be believed counts as empty: counted, and the next verdict carries its round."""
    bench, session = opened(patience_us=10**6)
    session.work((), round_=0, grant=1, cut="q")
    bench.settle()
    assert [(verdict.round, verdict.num_drafted) for verdict in session.verdicts] == [(0, 0)]
    assert bench.record.drops == {"q": 1}


# -- ahead ---------------------------------------------------------------------------------------------------------


def test_a_draft_ahead_is_held_until_its_assumption_is_committed() -> None:
    """A round that assumes the draft before it and its bonus is verified in the very next pass."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[4:7], position=3, round_=1, assumes=tuple(TEXT[:4]))
    bench.settle()
    assert session.verdicts == []
    session.work(TEXT[:3], round_=0, patience_us=10**6)
    bench.settle()
    assert [(verdict.round, verdict.num_accepted) for verdict in session.verdicts] == [(0, 3), (1, 3)]
    assert session.output == TEXT[:8]


def test_a_draft_ahead_whose_assumption_fails_is_dropped() -> None:
    """A round that assumed another token than was committed is counted and never verified."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[4:7], position=3, round_=1, assumes=(*TEXT[:3], wrong(TEXT[3])))
    session.work(TEXT[:3], round_=0)
    bench.settle()
    assert [verdict.round for verdict in session.verdicts] == [0]
    assert bench.record.drops == {"assumption": 1}


def test_a_draft_ahead_of_the_bonus_is_used_by_its_tail() -> None:
    """A round that assumes only the draft before it is used where its head is the bonus."""
    bench, session = opened(patience_us=10**6)
    session.work(TEXT[3:6], position=3, round_=1, assumes=tuple(TEXT[:3]))
    session.work(TEXT[:3], round_=0)
    bench.settle()
    assert session.output == TEXT[:7]
    assert (session.verdicts[-1].num_drafted, session.verdicts[-1].num_reused) == (2, 1)


def test_drafts_ahead_are_bounded() -> None:
    """More rounds ahead than are held are dropped and counted."""
    bench, session = opened()
    for round_ in range(MAX_ROUNDS_AHEAD + 2):
        session.work(TEXT[4:6], position=3, round_=round_ + 1, assumes=tuple(TEXT[:4]))
    bench.settle()
    assert bench.record.drops == {"ahead_full": 2}


# -- trees ---------------------------------------------------------------------------------------------------------


def test_a_tree_commits_its_right_path_and_the_text_goes_on() -> None:
    """Of a tree with wrong branches the right path is accepted, its KV compacted, and later rounds agree."""
    bench, session = opened()
    while len(session.output) < 40:
        a, b, c = TEXT[len(session.output) : len(session.output) + 3]
        tree = Draft((wrong(a), a, wrong(b), b, wrong(a), c, wrong(c)), (-1, -1, 1, 1, 0, 3, 3), (None,) * 7)
        session.work(tree)
        bench.settle()
        assert session.verdicts[-1].num_accepted == 3
    assert session.output == TEXT[: len(session.output)]


def test_the_tail_of_a_tree_is_what_hangs_below_the_committed_path() -> None:
    """A tree that came two tokens late is used from the branch that was committed."""
    bench, session = opened(grant=2)
    a, b, c = TEXT[:3]
    tree = Draft((wrong(a), a, wrong(b), b, c, wrong(c)), (-1, -1, 1, 1, 3, 2), (None,) * 6)
    session.work(tree, position=3, round_=0)
    bench.settle()
    assert (session.verdicts[-1].num_drafted, session.verdicts[-1].num_accepted) == (1, 1)
    assert session.output == TEXT[:4]
