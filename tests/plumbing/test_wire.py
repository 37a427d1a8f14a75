from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pilotfish.confidence import LEAST, MOST
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.errors import InvalidArgument, Overloaded, PromptTooLong, StalePosition, UnknownSession
from pilotfish.messages import (
    Close,
    DraftEnd,
    DrafterLoad,
    DraftPart,
    DraftRequest,
    Open,
    Opened,
    Refusal,
    Rule,
    Sampling,
    SideLines,
    TokenKind,
    Verdict,
    VerifierLoad,
    Work,
)
from pilotfish.v1 import drafter_pb2, peer_pb2, verifier_pb2
from pilotfish.wire import drafter as wire_drafter
from pilotfish.wire import verifier as wire_verifier
from pilotfish.wire.drafts import read_draft, write_draft
from pilotfish.wire.openings import Openings
from pilotfish.wire.values import Limits, Received, read_info, refuse, write_info
from tests.plumbing import strategies as some

LIMITS = Limits(vocabulary_size=some.V)
SESSION = b"0123456789abcdef"


def is_sound(draft: Draft, first_node: int, limits: Limits) -> bool:
    """Whether a draft (or part) keeps every promise that the code behind `wire` relies on."""
    nodes = list(zip(draft.tokens, draft.parents, draft.q, strict=True))
    return first_node + len(nodes) <= max(limits.max_nodes, first_node) and all(
        0 <= token < limits.num_ids
        and -1 <= parent < first_node + node
        and (
            q is None
            or (
                len(q.ids) == len(q.weights) == len(set(q.ids)) <= limits.max_support
                and min(q.weights) > 0
                and all(0 <= token < limits.num_ids for token in q.ids)
                and q.probability(token) > 0.0
            )
        )
        for node, (token, parent, q) in enumerate(nodes)
    )


# ---- round trips -------------------------------------------------------------------------------------------------


@given(st.one_of(some.works(), some.opens(at_verifier=True), some.closes))
def test_what_a_verifier_reads_is_what_was_written(message: Work | Open | Close) -> None:
    """Every sound message to a verifier survives the wire unchanged, with nothing dropped."""
    frame = verifier_pb2.VerifyRequest(items=wire_verifier.write_items(message))
    frame = verifier_pb2.VerifyRequest.FromString(frame.SerializeToString())
    assert wire_verifier.VerifierInbox(LIMITS, some.INCARNATION).read(frame) == [Received(message, None)]


@given(st.one_of(some.requests, some.opens(at_verifier=False), some.closes))
def test_what_a_drafter_reads_is_what_was_written(message: DraftRequest | Open | Close) -> None:
    """Every sound message to a drafter survives the wire unchanged."""
    frame = drafter_pb2.DraftRequest(items=wire_drafter.write_items(message))
    frame = drafter_pb2.DraftRequest.FromString(frame.SerializeToString())
    assert wire_drafter.DrafterInbox(LIMITS, some.INCARNATION).read(frame) == [message]


@given(st.lists(st.one_of(some.verdicts(), some.verifier_openeds, some.refusals), max_size=3), some.verifier_loads)
def test_answers_of_a_verifier_survive_the_wire(messages: list[Verdict | Opened | Refusal], load: object) -> None:
    """A frame of sound answers, and the load beside them, survives the wire unchanged and in order."""
    answers = [wire_verifier.write_answer(message, some.INCARNATION) for message in messages]
    frame = wire_verifier.write_frame(answers, load)  # type: ignore[arg-type]
    frame = verifier_pb2.VerifyResponse.FromString(frame.SerializeToString())
    read = wire_verifier.read_answers(frame, LIMITS, some.INCARNATION)
    assert read == [Received(message, None) for message in messages]
    assert wire_verifier.read_load(frame.load) == load


@given(st.lists(st.one_of(some.parts(), some.drafter_openeds, some.refusals), max_size=3), some.drafter_loads)
def test_answers_of_a_drafter_survive_the_wire(messages: list[DraftPart | Opened | Refusal], load: object) -> None:
    """A frame of sound answers, and the load beside them, survives the wire unchanged and in order."""
    answers = [wire_drafter.write_answer(message, some.INCARNATION) for message in messages]
    frame = wire_drafter.write_frame(answers, load)  # type: ignore[arg-type]
    frame = drafter_pb2.DraftResponse.FromString(frame.SerializeToString())
    read = wire_drafter.read_answers(frame, LIMITS, some.INCARNATION)
    assert read == [Received(message, None) for message in messages]
    assert wire_drafter.read_load(frame.load) == load


@given(some.infos)
def test_what_a_peer_says_of_itself_survives_the_wire(info: object) -> None:
    """A peer's description survives the wire unchanged."""
    assert read_info("verifier", write_info(info)) == info  # type: ignore[arg-type]


def test_a_prompt_of_many_chunks_arrives_whole() -> None:
    """A prompt and an output longer than a chunk are put together again and told apart."""
    prompt, output = tuple(range(20_000)), tuple(range(9_000))
    opening = Open(SESSION, 1, "", prompt, output, Sampling(), 1, Rule.BLOCK, frozenset(), 10_000, 1.0, grant=3)
    items = wire_verifier.write_items(opening)
    inbox = wire_verifier.VerifierInbox(Limits(), some.INCARNATION)
    read = [value for item in items for value in inbox.read(verifier_pb2.VerifyRequest(items=[item]))]
    assert read == [Received(opening, None)]
    assert len(items) == 1 + 4
    assert max(item.ByteSize() for item in items) < 60_000


@pytest.mark.parametrize(("said", "read"), [(None, None), (0, 0), (1, 1), (1 << 40, (1 << 32) - 1)])
def test_what_is_left_for_the_first_token_survives_the_wire(said: int | None, read: int | None) -> None:
    """No target and one that is missed are told apart; what is more than the wire holds is its most."""
    opening = Open(SESSION, 1, "", (1,), (), Sampling(), 1, Rule.BLOCK, frozenset(), 9, 1.0, first_token_us=said)
    inbox = wire_verifier.VerifierInbox(Limits(), some.INCARNATION)
    values = inbox.read(verifier_pb2.VerifyRequest(items=wire_verifier.write_items(opening)))
    assert values == [Received(replace(opening, first_token_us=read), None)]


# ---- liars -------------------------------------------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(some.any_verify_item, max_size=4))
def test_a_verifier_reads_garbage_as_refusals(items: list[verifier_pb2.VerifyItem]) -> None:
    """Whatever is in a frame, reading it raises nothing, and what comes out as work is sound."""
    inbox = wire_verifier.VerifierInbox(LIMITS, some.INCARNATION)
    for value, dropped in inbox.read(verifier_pb2.VerifyRequest(items=items)):
        match value:
            case Work():
                assert len(value.session) == 16
                assert is_sound(value.draft, value.first_node, LIMITS)
                assert all(token < some.V for token in value.assumes)
                assert value.is_complete or dropped is None
            case Open():
                assert value.prompt
                assert len(value.output_so_far) < value.max_tokens
                assert all(token < some.V for token in value.tokens)
            case Refusal():
                assert value.incarnation == some.INCARNATION
                assert value.message
                assert wire_verifier.write_answer(value, some.INCARNATION).HasField("refusal")


@settings(max_examples=300)
@given(st.lists(some.any_draft_item, max_size=4))
def test_a_drafter_reads_garbage_as_refusals(items: list[drafter_pb2.DraftItem]) -> None:
    """Whatever is in a frame, reading it raises nothing, and what comes out as a request is sound."""
    inbox = wire_drafter.DrafterInbox(LIMITS, some.INCARNATION)
    for value in inbox.read(drafter_pb2.DraftRequest(items=items)):
        match value:
            case DraftRequest():
                aside = value.side_lines or SideLines(0, 0, 0)
                assert value.gamma + aside.num_lines * (1 + aside.num_nodes) <= LIMITS.max_nodes
                assert len(value.tokens) <= value.position
                assert all(token < some.V for token in value.tokens)
                assert 0.0 <= value.price < math.inf
                assert value.calibration is None or 0.0 <= value.calibration.probability(LEAST) <= 1.0
            case Refusal():
                assert wire_drafter.write_answer(value, some.INCARNATION).HasField("refusal")


@settings(max_examples=300)
@given(some.any_verify_answer)
def test_a_coordinator_believes_no_impossible_verdict(answer: verifier_pb2.VerifyAnswer) -> None:
    """A verdict that comes out of a frame has known ids, a kind for each, and no more accepted than drafted."""
    frame = verifier_pb2.VerifyResponse(answers=[answer])
    ((value, _),) = wire_verifier.read_answers(frame, LIMITS, some.INCARNATION)
    if isinstance(value, Verdict):
        assert all(token < some.V for token in value.tokens)
        assert len(value.kinds) == len(value.tokens)
        assert value.tokens or value.finish
        assert value.num_accepted <= value.num_drafted
        assert answer.header.incarnation == some.INCARNATION


@settings(max_examples=300)
@given(some.any_draft_answer)
def test_a_coordinator_believes_no_impossible_draft(answer: drafter_pb2.DraftAnswer) -> None:
    """A draft that comes out of a frame is sound, whatever was sent, and complete where it was cut."""
    frame = drafter_pb2.DraftResponse(answers=[answer])
    ((value, dropped),) = wire_drafter.read_answers(frame, LIMITS, some.INCARNATION)
    if isinstance(value, DraftPart):
        assert is_sound(value.draft, value.first_node, LIMITS)
        assert value.is_complete or dropped is None
        assert all(LEAST <= confidence <= MOST for confidence in value.confidences)
        assert len(value.confidences) in {0, len(value.draft), len(value.draft) + 1}


def test_confidences_that_are_not_as_many_as_the_nodes_are_none() -> None:
    """Of a part that tells of more or fewer nodes than it should, the nodes are taken and the confidences are not."""
    for told, end, expected in (
        ((1.0, 2.0), DraftEnd.GAMMA, (1.0, 2.0)),
        ((1.0, 2.0, 3.0), DraftEnd.SURVIVAL, (1.0, 2.0, 3.0)),
        ((1.0, 2.0), DraftEnd.SURVIVAL, (1.0, 2.0)),
        ((1.0,), DraftEnd.SURVIVAL, ()),
        ((1.0, 2.0, 3.0, 4.0), DraftEnd.SURVIVAL, ()),
        ((1.0,), DraftEnd.GAMMA, ()),
        ((1.0, 2.0, 3.0), DraftEnd.GAMMA, ()),
    ):
        part = DraftPart(SESSION, 1, 0, 0, Draft.chain((1, 2)), is_complete=True, end=end, confidences=told)
        frame = wire_drafter.write_frame([wire_drafter.write_answer(part, 1)], DrafterLoad())
        ((value, dropped),) = wire_drafter.read_answers(frame, LIMITS, 1)
        assert dropped is None
        assert isinstance(value, DraftPart)
        assert (value.draft.tokens, value.confidences) == ((1, 2), expected)


def test_confidences_of_nodes_that_were_cut_go_with_them() -> None:
    """A part that is cut keeps the confidences of the nodes that are left."""
    draft = Draft.chain((1, 2, some.V))
    part = DraftPart(SESSION, 1, 0, 0, draft, is_complete=True, end=DraftEnd.GAMMA, confidences=(1.0, 2.0, 3.0))
    frame = wire_drafter.write_frame([wire_drafter.write_answer(part, 1)], DrafterLoad())
    ((value, dropped),) = wire_drafter.read_answers(frame, LIMITS, 1)
    assert isinstance(value, DraftPart)
    assert (value.draft.tokens, value.confidences, dropped) == ((1, 2), (1.0, 2.0), "token")


@pytest.mark.parametrize("bad", [some.V, 2**32 - 1, 2**31 - 1])
def test_a_draft_is_cut_before_an_id_outside_the_vocabulary(bad: int) -> None:
    """Nodes before the bad id stay, it and all after it go, and the cause is told."""
    proto = peer_pb2.Draft(tokens=[1, 2, bad, 3])
    assert read_draft(proto, 0, LIMITS) == (Draft.chain((1, 2)), "token")


def test_a_draft_is_cut_before_a_parent_that_is_no_earlier_node() -> None:
    """A node below itself, below a later node or below -2 ends the draft, and so does everything under it."""
    for parent in (1, 2, -2):
        proto = peer_pb2.Draft(tokens=[1, 2, 3], parents=[-1, parent, 1])
        assert read_draft(proto, 0, LIMITS) == (Draft.chain((1,)), "parent")


def test_parents_of_a_part_count_in_the_whole_draft() -> None:
    """In a part that begins with node 3, node 2 is an earlier node, and no parents at all mean a chain."""
    assert read_draft(peer_pb2.Draft(tokens=[7, 8], parents=[2, 0]), 3, LIMITS) == (
        Draft((7, 8), (2, 0), (None, None)),
        None,
    )
    assert read_draft(peer_pb2.Draft(tokens=[7, 8]), 3, LIMITS).value.parents == (2, 3)


def test_a_draft_is_cut_at_the_most_nodes_that_are_verified() -> None:
    """Nodes past the limit are dropped and counted; parts count with those before them."""
    proto = peer_pb2.Draft(tokens=[1, 2, 3])
    assert read_draft(proto, 0, Limits(some.V, max_nodes=2)) == (Draft.chain((1, 2)), "nodes")
    assert read_draft(proto, 2, Limits(some.V, max_nodes=2)) == (Draft.EMPTY, "nodes")


@pytest.mark.parametrize(
    ("ids", "weights"),
    [
        ([1, 1], [1, 1]),
        ([1, some.V], [1, 1]),
        ([1, 2], [1, 0]),
        ([1, 2], [0, 1]),
        ([1, 2], [1]),
        ([2, 3], [1, 1]),
        ([], [1]),
        ([1], []),
        (list(range(20)), [1] * 20),
    ],
    ids=["twice", "range", "zero", "zero of the token", "length", "without the token", "no ids", "no weights", "large"],
)
def test_a_q_that_is_none_empties_the_draft(ids: list[int], weights: list[int]) -> None:
    """A q with repeated ids, ids out of range, zero weights, without the drawn token, or too large leaves nothing."""
    q = [peer_pb2.Distribution(ids=[0], weights=[1]), peer_pb2.Distribution(ids=ids, weights=weights)]
    proto = peer_pb2.Draft(tokens=[0, 1], q=q)
    assert read_draft(proto, 0, Limits(some.V, max_support=16)) == (Draft.EMPTY, "q")


def test_one_hot_nodes_may_be_mixed_with_drawn_ones() -> None:
    """A node whose q has no ids was chosen without chance."""
    draft = Draft.chain((1, 2), (None, Distribution((2, 5), (3, 4))))
    assert read_draft(write_draft(draft), 0, LIMITS) == (draft, None)


def test_lists_of_different_length_empty_the_draft() -> None:
    """A draft whose parents or q are not one a node means nothing."""
    assert read_draft(peer_pb2.Draft(tokens=[1, 2], parents=[-1]), 0, LIMITS) == (Draft.EMPTY, "shape")
    q = [peer_pb2.Distribution()]
    assert read_draft(peer_pb2.Draft(tokens=[1, 2], q=q), 0, LIMITS) == (Draft.EMPTY, "shape")


def test_an_answer_of_another_life_is_dropped_and_counted() -> None:
    """A draft from before a restart of the drafter does not reach a session."""
    part = DraftPart(SESSION, 1, 0, 0, Draft.chain((1,)), is_complete=True)
    frame = wire_drafter.write_frame([wire_drafter.write_answer(part, 1)], DrafterLoad())
    assert wire_drafter.read_answers(frame, LIMITS, 2) == [(None, "incarnation")]


def test_a_meaningless_verdict_refuses_its_session() -> None:
    """A verdict with an id outside the vocabulary becomes a refusal, so its session is not waited for."""
    verdict = Verdict(SESSION, 1, (some.V,), (TokenKind.PLAIN,), None, 0, 0)
    frame = wire_verifier.write_frame([wire_verifier.write_answer(verdict, 1)], VerifierLoad())
    ((value, dropped),) = wire_verifier.read_answers(frame, LIMITS, 1)
    assert isinstance(value, Refusal)
    assert (value.session, value.reason, dropped) == (SESSION, "malformed", "malformed")


# ---- openings ----------------------------------------------------------------------------------------------------


def opening(**changes: object) -> Open:
    """A sound opening."""
    base = Open(SESSION, 1, "", (1, 2, 3), (), Sampling(), 1, Rule.MATCH, frozenset(), 10, 1.0)
    return replace(base, **changes)  # type: ignore[arg-type]


def chunk(offset: int, *ids: int) -> peer_pb2.TokenChunk:
    return peer_pb2.TokenChunk(offset=offset, tokens=ids)


def test_a_gap_an_overlap_or_an_excess_of_chunks_drops_the_opening() -> None:
    """Chunks come in order and exactly; after one that does not, the session has to be opened anew."""
    for bad in (chunk(2, 3), chunk(0, 1), chunk(1, 2, 3, 4), chunk(1), chunk(1, some.V)):
        openings = Openings(LIMITS)
        openings.start(opening(), 3, 0)
        assert openings.add(SESSION, chunk(0, 1)) is None
        with pytest.raises(InvalidArgument):
            openings.add(SESSION, bad)
        with pytest.raises(UnknownSession):
            openings.add(SESSION, chunk(1, 2, 3))


def test_openings_are_bounded_in_sessions_and_tokens() -> None:
    """A caller that starts sessions without sending their tokens is told to wait, and room comes back."""
    openings = Openings(Limits(some.V, max_pending_tokens=10, max_pending_sessions=2))
    openings.start(opening(session=b"a" * 16), 8, 0)
    with pytest.raises(Overloaded) as refused:
        openings.start(opening(session=b"b" * 16), 3, 0)
    assert refused.value.retry_after_s
    openings.start(opening(session=b"b" * 16), 2, 0)
    with pytest.raises(Overloaded):
        openings.start(opening(session=b"c" * 16), 0, 0)
    openings.drop(b"a" * 16)
    openings.start(opening(session=b"c" * 16), 8, 0)
    assert len(openings) == 2


def test_a_prompt_over_the_limit_is_refused_at_its_start() -> None:
    """A prompt that can never fit is refused before its tokens are taken."""
    items = wire_verifier.write_items(opening(prompt=tuple(range(30))))
    inbox = wire_verifier.VerifierInbox(Limits(some.V, max_sequence_tokens=20), 9)
    ((value, _),) = inbox.read(verifier_pb2.VerifyRequest(items=items[:1]))
    assert isinstance(value, Refusal)
    assert (value.reason, value.incarnation) == (PromptTooLong.reason, 9)
    assert "20" in value.message


def test_a_closed_session_is_not_opened_by_its_last_chunk() -> None:
    """A close between the chunks ends the opening too."""
    items = wire_verifier.write_items(opening())
    closing = wire_verifier.write_items(Close(SESSION, 1))
    inbox = wire_verifier.VerifierInbox(LIMITS, 9)
    values = [value for value, _ in inbox.read(verifier_pb2.VerifyRequest(items=[items[0], *closing, items[1]]))]
    assert values[0] == Close(SESSION, 1)
    assert isinstance(values[1], Refusal)
    assert values[1].reason == "unknown_session"


def test_a_refusal_carries_the_right_position() -> None:
    """The error's own position reaches the coordinator, and none where the session does not exist."""
    stale = refuse(StalePosition("at 7, not 5", position=7), SESSION, 9)
    gone = refuse(UnknownSession("no such session"), SESSION, 9)
    frame = wire_verifier.write_frame(
        [wire_verifier.write_answer(refusal, 9) for refusal in (stale, gone)], VerifierLoad()
    )
    values = [value for value, _ in wire_verifier.read_answers(frame, LIMITS, 1)]
    assert values == [stale, gone]
    assert [value.position for value in values if isinstance(value, Refusal)] == [7, None]
