"""Random messages: sound ones as values, hostile ones as protos."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pilotfish.confidence import Calibration, read_confidences
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import (
    Close,
    DraftEnd,
    DrafterLoad,
    DraftPart,
    DraftRequest,
    FinishReason,
    Open,
    Opened,
    Refusal,
    Rule,
    Sampling,
    ServiceInfo,
    SideLines,
    TokenKind,
    TraceContext,
    Verdict,
    VerifierLoad,
    Work,
)
from pilotfish.price import Plan, Profile
from pilotfish.v1 import drafter_pb2, peer_pb2, verifier_pb2

V = 50
INCARNATION = 77

u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
small = st.integers(0, 9)
f32 = st.floats(allow_nan=False, allow_infinity=False, width=32)
any_f32 = st.floats(width=32)
confidences = st.binary(min_size=1, max_size=1).map(read_confidences).map(lambda values: values[0])
tokens = st.lists(st.integers(0, V - 1), max_size=6).map(tuple)
some_tokens = st.lists(st.integers(0, V - 1), min_size=1, max_size=6).map(tuple)
sessions = st.binary(min_size=16, max_size=16)
traces = st.none() | st.builds(
    TraceContext,
    st.builds("00-{:032x}-{:016x}-{:02x}".format, st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), small),
    st.sampled_from(["", "a=b", "vendor=value,b=c"]),
)
samplings = st.builds(
    Sampling,
    st.floats(0, 5, allow_nan=False),
    st.none() | st.integers(1, 2**32 - 1),
    st.none() | st.floats(0, 1, exclude_min=True, allow_nan=False),
)


@st.composite
def distributions(draw: Any, token: int) -> Distribution | None:
    """None, or a q that can have given `token`."""
    if draw(st.booleans()):
        return None
    others = draw(st.sets(st.integers(0, V - 1).filter(lambda other: other != token), max_size=4))
    ids = draw(st.permutations([token, *sorted(others)]))
    weights = draw(st.lists(st.integers(1, 2**32 - 1), min_size=len(ids), max_size=len(ids)))
    return Distribution(tuple(ids), tuple(weights))


@st.composite
def drafts(draw: Any, first_node: int = 0, *, min_nodes: int = 0) -> Draft:
    """A sound draft, or the part of one that begins with `first_node`."""
    chosen = draw(st.lists(st.integers(0, V - 1), min_size=min_nodes, max_size=5))
    parents = [draw(st.integers(-1, first_node + node - 1)) for node in range(len(chosen))]
    return Draft(tuple(chosen), tuple(parents), tuple(draw(distributions(token)) for token in chosen))


@st.composite
def profiles(draw: Any) -> Profile:
    survival = sorted(draw(st.lists(st.integers(0, 255), max_size=16)), reverse=True)
    start_s, token_s, round_trip_s = (draw(u32) / 1e6 for _ in range(3))
    return Profile(
        tuple(value / 255 for value in survival),
        start_s,
        token_s,
        round_trip_s,
        may_draft_ahead=draw(st.booleans()),
        is_drawn=draw(st.booleans()),
        offered=draw(st.integers(0, 255)) / 255,
    )


@st.composite
def plans(draw: Any) -> Plan:
    price, rate = draw(st.floats(0, width=32)), draw(st.floats(0, 1e9, width=32))
    period, length, kind = draw(u32) / 1e6, draw(u32) / 1e6, draw(small)
    return Plan(price, period, length, rate, kind, draw(st.none() | u32.map(lambda value: value / 1e6)))


@st.composite
def works(draw: Any) -> Work:
    first_node = draw(small)
    return Work(
        session=draw(sessions),
        incarnation=draw(u64),
        position=draw(u64),
        prefix_hash=draw(u64),
        round=draw(u32),
        draft=draw(drafts(first_node)),
        first_node=first_node,
        is_complete=draw(st.booleans()),
        grant=draw(u32),
        patience_us=draw(u32),
        assumes=draw(tokens),
        profile=draw(st.none() | profiles()),
        trace=draw(traces),
    )


@st.composite
def parts(draw: Any) -> DraftPart:
    first_node = draw(small)
    draft = draw(drafts(first_node))
    end = draw(st.none() | st.sampled_from(DraftEnd))
    num_undrawn = draw(st.integers(0, end is DraftEnd.SURVIVAL))
    num_told = len(draft) + num_undrawn if draw(st.booleans()) else 0
    return DraftPart(
        session=draw(sessions),
        position=draw(u64),
        round=draw(u32),
        first_node=first_node,
        draft=draft,
        is_complete=draw(st.booleans()),
        end=end,
        draft_us=draw(u32),
        confidences=tuple(draw(st.lists(confidences, min_size=num_told, max_size=num_told))),
    )


@st.composite
def opens(draw: Any, *, at_verifier: bool) -> Open:
    output = draw(tokens)
    here = {"grant": draw(u32), "patience_us": draw(u32), "first_token_us": draw(st.none() | u32)}
    there = {"is_coupled": draw(st.booleans()), "speculator": draw(st.none() | st.sampled_from(["ngram", "model"]))}
    return Open(
        session=draw(sessions),
        incarnation=draw(u64),
        vocabulary_hash=draw(st.text(max_size=8)),
        prompt=draw(some_tokens),
        output_so_far=output,
        sampling=draw(samplings),
        seed=draw(u64),
        rule=draw(st.sampled_from(Rule)),
        end_ids=frozenset(draw(tokens)),
        max_tokens=len(output) + draw(st.integers(1, 100)),
        lease_s=draw(st.integers(1, 2**32 - 1)) / 1e3,
        tenant=draw(st.text(max_size=8)),
        trace=draw(traces),
        **(here if at_verifier else there),
    )


closes = st.builds(Close, sessions, u64, traces)


def _requests(
    gammas: st.SearchStrategy[int], side_lines: st.SearchStrategy[SideLines | None]
) -> st.SearchStrategy[DraftRequest]:
    return st.builds(
        DraftRequest,
        sessions,
        u64,
        st.integers(6, 2**64 - 1),
        u64,
        u32,
        tokens,
        gammas,
        u32,
        traces,
        price=f32.map(abs),
        step_price=f32.map(abs),
        calibration=st.none() | st.builds(Calibration, f32, f32),
        side_lines=side_lines,
    )


# with side lines no more than 256 nodes in all
requests = _requests(st.integers(0, 256), st.none()) | _requests(
    st.integers(0, 200), st.builds(SideLines, st.integers(1, 8), u32, st.integers(0, 6))
)
refusals = st.builds(
    Refusal,
    sessions,
    st.none() | u64,
    u64,
    st.integers(0, 16),
    st.text(max_size=9),
    st.sampled_from(["position", "full"]),
)
verifier_openeds = st.builds(Opened, sessions, u64, u64)
drafter_openeds = st.builds(Opened, sessions, u64)


@st.composite
def verdicts(draw: Any) -> Verdict:
    committed = draw(some_tokens)
    num_drafted = draw(small)
    return Verdict(
        session=draw(sessions),
        position=draw(u64),
        tokens=committed,
        kinds=tuple(draw(st.sampled_from(TokenKind)) for _ in committed),
        round=draw(st.none() | u32),
        num_drafted=num_drafted,
        num_accepted=draw(st.integers(0, num_drafted)),
        num_reused=draw(u32),
        node_probabilities=draw(st.sampled_from([b"", bytes(num_drafted)])),
        finish=draw(st.none() | st.sampled_from(FinishReason)),
        queue_us=draw(u32),
        pass_us=draw(u32),
        pass_positions=draw(u32),
    )


shares = st.floats(0, 1, width=32)
unplanned = st.builds(VerifierLoad, u32, u32, u32, u32, u32, u32, u32, shares)
planned = st.builds(VerifierLoad, u32, u32, u32, u32, u32, u32, u32, shares, plans(), st.none() | shares)
verifier_loads = unplanned | planned
drafter_loads = st.builds(DrafterLoad, u32, u32, u32, u32)
infos = st.builds(
    ServiceInfo,
    role=st.just("verifier"),
    version=st.text(max_size=5),
    incarnation=st.integers(1, 2**64 - 1),
    model=st.text(max_size=5),
    vocabulary_hash=st.none() | st.text(min_size=1, max_size=5),
    vocabulary_size=st.just(V),
    context_length=u64,
    end_ids=tokens,
    dtype=st.text(max_size=5),
    device=st.text(max_size=5),
    speculators=st.lists(st.text(max_size=5), max_size=3).map(tuple),
    max_nodes=u32,
    page_size=u32,
    num_kv_pages=u32,
    settings=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3),
)

# ---- hostile protos ----------------------------------------------------------------------------------------------

any_id = st.sampled_from([0, 1, V - 1, V, 2**31 - 1, 2**32 - 1])
any_ids = st.lists(any_id, max_size=5)
any_header = st.builds(
    peer_pb2.Header,
    session=st.binary(max_size=17) | st.just(b"s" * 16),
    incarnation=st.sampled_from([0, INCARNATION]),
    position=st.sampled_from([0, 3, 2**64 - 1]),
    prefix_hash=u64,
    round=st.none() | u32,
    trace=st.none()
    | st.builds(peer_pb2.TraceContext, traceparent=st.text(max_size=60), tracestate=st.text(max_size=9)),
)
any_draft = st.builds(
    peer_pb2.Draft,
    tokens=any_ids,
    parents=st.lists(st.integers(-(2**31), 2**31 - 1) | st.integers(-2, 5), max_size=5),
    q=st.lists(st.builds(peer_pb2.Distribution, ids=any_ids, weights=st.lists(u32 | small, max_size=5)), max_size=5),
)
any_start = st.builds(
    peer_pb2.SessionStart,
    num_prompt_tokens=st.sampled_from([0, 1, 2, 2**20, 2**64 - 1]),
    num_output_tokens=st.sampled_from([0, 1, 2**64 - 1]),
    seed=u64,
    rule=st.integers(0, 9),
    end_ids=any_ids,
    max_tokens=st.sampled_from([0, 1, 2, 2**64 - 1]),
    lease_ms=small,
)
any_chunk = st.builds(peer_pb2.TokenChunk, offset=small | u64, tokens=any_ids)
any_refusal = st.builds(peer_pb2.Refusal, expected_position=st.none() | u64, reason=st.text(max_size=5))


def _one_of(message: type, **kinds: Any) -> Any:
    """The message with at most one of its kinds set."""
    return st.builds(message, header=any_header) | st.one_of(
        *(st.builds(message, header=any_header, **{name: kind}) for name, kind in kinds.items())
    )


any_verify_item = _one_of(
    verifier_pb2.VerifyItem,
    open=st.builds(
        verifier_pb2.VerifierOpen, start=any_start, grant=u32, patience_us=u32, first_token_us=st.none() | u32
    ),
    chunk=any_chunk,
    work=st.builds(
        verifier_pb2.Work,
        draft=any_draft,
        first_node=small | u32,
        is_complete=st.booleans(),
        grant=u32,
        patience_us=u32,
        assumes=any_ids,
    ),
    close=st.just(peer_pb2.Close()),
)
any_draft_item = _one_of(
    drafter_pb2.DraftItem,
    open=st.builds(drafter_pb2.DrafterOpen, start=any_start, speculator=st.text(max_size=5), is_coupled=st.booleans()),
    chunk=any_chunk,
    propose=st.builds(
        drafter_pb2.Propose,
        tokens=any_ids,
        gamma=u32 | small,
        deadline_us=u32,
        price=any_f32,
        step_price=any_f32,
        calibration=st.none() | st.builds(drafter_pb2.Calibration, offset=any_f32, slope=any_f32),
        side_lines=st.none() | st.builds(drafter_pb2.SideLines, num_lines=u32, num_levels=u32, num_nodes=u32),
    ),
    close=st.just(peer_pb2.Close()),
)
any_verify_answer = _one_of(
    verifier_pb2.VerifyAnswer,
    opened=st.builds(verifier_pb2.VerifierOpened, num_cached_tokens=u64),
    verdict=st.builds(
        verifier_pb2.Verdict,
        tokens=any_ids,
        kinds=st.lists(st.integers(0, 9), max_size=5),
        num_drafted=small,
        num_accepted=small,
        node_probabilities=st.binary(max_size=5),
        finish=st.integers(0, 9),
    ),
    refusal=any_refusal,
)
any_draft_answer = _one_of(
    drafter_pb2.DraftAnswer,
    opened=st.just(drafter_pb2.DrafterOpened()),
    part=st.builds(
        drafter_pb2.DraftPart,
        draft=any_draft,
        first_node=small | u32,
        is_complete=st.booleans(),
        end=st.integers(0, 9),
        draft_us=u32,
        confidences=st.binary(max_size=5),
    ),
    refusal=any_refusal,
)
