from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotfish.errors import InvalidArgument
from pilotfish.messages import (
    Chat,
    Chunk,
    CoordinatorInfo,
    Finished,
    FinishReason,
    Message,
    Objective,
    Peer,
    Request,
    Round,
    Rule,
    Speculation,
    Started,
    Statistics,
    Targets,
    TokenKind,
)
from pilotfish.request import make_request
from pilotfish.v1 import common_pb2, coordinator_pb2
from pilotfish.wire.coordinator import (
    read_chunk,
    read_info,
    read_request,
    write_chunk,
    write_info,
    write_request,
)
from tests.plumbing.strategies import V, samplings, small, some_tokens, tokens, u32, u64

CAP = 8
words = st.text(min_size=1, max_size=6)
chats = st.lists(st.builds(Message, words, st.text(max_size=6)), min_size=1, max_size=3).map(tuple).map(Chat)


@st.composite
def speculations(draw: Any) -> Speculation:
    gamma = draw(st.none() | st.integers(0, CAP))
    return Speculation(
        is_off=draw(st.booleans()) and not gamma,
        gamma=gamma,
        max_gamma=draw(st.none() | st.integers(gamma or 0, CAP)),
        rule=draw(st.none() | st.sampled_from(Rule)),
        speculator=draw(st.none() | words),
    )


seconds = st.none() | st.integers(1, 10**12).map(lambda us: us / 1e6)


@st.composite
def requests(draw: Any) -> Request:
    output = draw(tokens)
    return Request(
        prompt=draw(words | chats | some_tokens),
        sampling=draw(samplings),
        seed=draw(st.none() | u64),
        max_tokens=draw(st.none() | st.integers(max(1, len(output)), 2**32 - 1)),
        stop=draw(st.lists(words, max_size=3).map(tuple)),
        stop_ids=draw(tokens),
        ignore_eos=draw(st.booleans()),
        speculation=draw(speculations()),
        output_so_far=output,
        model=draw(st.none() | words),
        include_rounds=draw(st.booleans()),
        workload=draw(st.just("") | st.text("ab γ", max_size=6)),
        objective=draw(st.none() | st.sampled_from(Objective)),
        targets=draw(st.builds(Targets, seconds, seconds)),
    )


rounds = st.builds(Round, u32, u32, words, u32, u32, u32, u64, u32, u32, u32, u32, u32)
statistics = st.builds(
    Statistics, u32, u32, u32, u32, st.lists(u32, max_size=3).map(tuple), u32, u64, u64, u64, u64,
    st.dictionaries(words, u32, max_size=3), st.dictionaries(words, st.booleans(), max_size=2),
)  # fmt: skip
starteds = st.builds(
    Started, words, words, u32, u32, st.none() | words, words, st.none() | st.sampled_from(Rule), st.none() | words
)
chunks = st.builds(
    Chunk,
    text=st.text(max_size=6),
    ids=st.just((1, 2)),
    kinds=st.tuples(st.sampled_from(TokenKind), st.sampled_from(TokenKind)),
    num_characters=st.tuples(u32, u32),
    rounds=st.lists(rounds, max_size=2).map(tuple),
    started=st.none() | starteds,
    finished=st.none() | st.builds(Finished, st.sampled_from(FinishReason), u32, u32, statistics),
)
peers = st.builds(
    Peer, words, words, st.booleans(), st.none() | words, st.none() | words, st.just(("a", "b")), u32, u32
)
infos = st.builds(
    CoordinatorInfo, words, words, u64, u32, st.lists(peers, max_size=2).map(tuple), st.dictionaries(words, words)
)


@given(requests())
def test_a_request_survives_the_wire(request: Request) -> None:
    """Every sound request reaches the coordinator unchanged."""
    encoded = write_request(request).SerializeToString()
    proto = coordinator_pb2.GenerateRequest.FromString(encoded)
    assert read_request(proto, max_gamma=CAP, vocabulary_size=V) == request


@given(chunks)
def test_a_chunk_survives_the_wire(chunk: Chunk) -> None:
    """Every chunk reaches the client unchanged."""
    encoded = write_chunk(chunk).SerializeToString()
    assert read_chunk(coordinator_pb2.GenerateResponse.FromString(encoded)) == chunk


@given(infos)
def test_what_a_coordinator_serves_survives_the_wire(info: CoordinatorInfo) -> None:
    """A coordinator's description reaches the client unchanged."""
    assert read_info(write_info(info)) == info


def proto(**fields: Any) -> coordinator_pb2.GenerateRequest:
    """A sound request with some fields changed."""
    if not fields.keys() & {"text", "chat", "tokens"}:
        fields["text"] = "Hello"
    return coordinator_pb2.GenerateRequest(**fields)


BAD = [
    ("prompt", {"text": None}),
    ("text", {"text": ""}),
    ("chat.messages", {"chat": coordinator_pb2.Chat()}),
    ("chat.messages[0].role", {"chat": coordinator_pb2.Chat(messages=[coordinator_pb2.Message(content="x")])}),
    ("tokens.ids", {"tokens": coordinator_pb2.Tokens()}),
    ("tokens.ids", {"tokens": coordinator_pb2.Tokens(ids=[1, V])}),
    ("sampling.temperature", {"sampling": common_pb2.Sampling(temperature=-0.1)}),
    ("sampling.temperature", {"sampling": common_pb2.Sampling(temperature=math.nan)}),
    ("sampling.temperature", {"sampling": common_pb2.Sampling(temperature=math.inf)}),
    ("sampling.top_p", {"sampling": common_pb2.Sampling(top_p=0.0)}),
    ("sampling.top_p", {"sampling": common_pb2.Sampling(top_p=1.01)}),
    ("sampling.top_p", {"sampling": common_pb2.Sampling(top_p=math.nan)}),
    ("sampling.top_k", {"sampling": common_pb2.Sampling(top_k=0)}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tokens", {"max_tokens": 1, "output_so_far": [1, 2]}),
    ("output_so_far", {"output_so_far": [V]}),
    ("stop[1]", {"stop": ["a", ""]}),
    ("stop", {"stop": ["x"] * 65}),
    ("stop_ids", {"stop_ids": [V]}),
    ("stop_ids", {"stop_ids": [1] * 65}),
    ("speculation.gamma", {"speculation": coordinator_pb2.Speculation(gamma=CAP + 1)}),
    ("speculation.max_gamma", {"speculation": coordinator_pb2.Speculation(max_gamma=CAP + 1)}),
    ("speculation.gamma", {"speculation": coordinator_pb2.Speculation(gamma=3, max_gamma=2)}),
    ("speculation.gamma", {"speculation": coordinator_pb2.Speculation(gamma=3, is_off=True)}),
    ("speculation.rule", {"speculation": coordinator_pb2.Speculation(rule=9)}),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("field", "changes"), BAD, ids=lambda value: value if isinstance(value, str) else "")
def test_a_request_that_cannot_be_served_is_refused_by_field(field: str, changes: dict[str, Any]) -> None:
    """Each impossible value is an INVALID_ARGUMENT that names its field."""
    with pytest.raises(InvalidArgument) as refused:
        read_request(proto(**changes), max_gamma=CAP, vocabulary_size=V)
    assert refused.value.field == field
    assert field in refused.value.message


def test_a_gamma_over_the_cap_is_refused_with_the_cap() -> None:
    """The message says what is allowed."""
    with pytest.raises(InvalidArgument, match=f"cap of this coordinator is {CAP}"):
        read_request(proto(speculation=coordinator_pb2.Speculation(gamma=100)), max_gamma=CAP)


def test_what_is_left_out_has_the_documented_default() -> None:
    """A bare request is sampled at temperature 1 without a limit, a seed or a wish about speculation."""
    request = read_request(proto(), max_gamma=CAP)
    assert request == Request("Hello")
    assert (request.sampling.temperature, request.max_tokens, request.seed) == (1.0, None, None)


hostile = st.builds(
    coordinator_pb2.GenerateRequest,
    text=st.text(max_size=3),
    sampling=st.builds(
        common_pb2.Sampling, temperature=st.none() | st.floats(), top_k=st.none() | u32, top_p=st.none() | st.floats()
    ),
    max_tokens=st.none() | small,
    stop=st.lists(st.text(max_size=2), max_size=3),
    stop_ids=st.lists(u32, max_size=3),
    output_so_far=st.lists(u32, max_size=3),
    speculation=st.builds(
        coordinator_pb2.Speculation,
        is_off=st.booleans(),
        gamma=st.none() | u32 | small,
        max_gamma=st.none() | u32 | small,
        rule=st.integers(0, 9),
    ),
)


@given(hostile)
def test_a_hostile_request_is_refused_or_sound(request: coordinator_pb2.GenerateRequest) -> None:
    """Whatever is in a request, it either raises InvalidArgument or has only values that can be served."""
    try:
        value = read_request(request, max_gamma=CAP, vocabulary_size=V)
    except InvalidArgument:
        return
    sampling, speculation = value.sampling, value.speculation
    assert 0.0 <= sampling.temperature < math.inf
    assert sampling.top_p is None or 0.0 < sampling.top_p <= 1.0
    assert sampling.top_k is None or sampling.top_k >= 1
    assert max(speculation.gamma or 0, speculation.max_gamma or 0) <= CAP
    assert "" not in value.stop
    assert all(token < V for token in value.stop_ids + value.output_so_far)


def test_prompts_are_told_apart_by_what_they_are() -> None:
    """Text, ids, messages and dictionaries become what they mean."""
    chat = Chat((Message("user", "Hi"),))
    assert make_request("Hi").prompt == "Hi"
    assert make_request([1, 2]).prompt == (1, 2)
    assert make_request([{"role": "user", "content": "Hi"}]).prompt == chat
    assert make_request([Message("user", "Hi")]).prompt == chat
    assert make_request(chat).prompt == chat


@pytest.mark.parametrize(
    ("prompt", "options", "field"),
    [
        ([1, -1], {}, "prompt"),
        ([1, "a"], {}, "prompt"),
        ([True], {}, "prompt"),
        ([{"role": "user"}], {}, "prompt"),
        ("Hi", {"max_tokens": -1}, "max_tokens"),
        ("Hi", {"top_k": 2**32}, "top_k"),
        ("Hi", {"seed": -1}, "seed"),
        ("Hi", {"stop_ids": [-1]}, "stop_ids"),
        ("Hi", {"max_tokens": 1.5}, "max_tokens"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_it_is(prompt: Any, options: Any, field: str) -> None:
    """Values that no message can hold are refused by the client itself, with the field."""
    with pytest.raises(InvalidArgument) as refused:
        make_request(prompt, **options)
    assert refused.value.field == field


def test_an_option_that_there_is_not_is_a_type_error() -> None:
    """A misspelt option is refused with the names there are."""
    with pytest.raises(TypeError, match="max_token; there are max_tokens"):
        make_request("Hi", max_token=3)  # type: ignore[call-arg]
