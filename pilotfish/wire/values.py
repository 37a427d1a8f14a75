"""What the messages of all services share: headers, tokens, refusals, what a peer is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Generic, Literal, NamedTuple, TypeAlias, TypeVar

from google.rpc import code_pb2, status_pb2

from pilotfish.errors import InvalidArgument, PilotfishError
from pilotfish.messages import Refusal, ServiceInfo, SessionId, TraceContext
from pilotfish.v1 import peer_pb2

SESSION_ID_BYTES = 16
MAX_ROUNDS_AHEAD = 8  # of a session that a verifier holds
MAX_CHUNK_TOKENS = 8192

Value = TypeVar("Value")
# Why a draft, or all of an item, was not taken as it was sent:
DropCause: TypeAlias = Literal[
    "token",  # an id outside the vocabulary: cut there
    "parent",  # a parent that is not an earlier node: cut there
    "nodes",  # more nodes than will be verified: cut there
    "q",  # not a distribution, or one that cannot have given the token: nothing is left
    "shape",  # lists of different length: nothing is left
    "malformed",  # an answer that means nothing
    "incarnation",  # an answer from another life of the peer
]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a receiver takes."""

    vocabulary_size: int = 0  # 0: not known, any id below 2**31
    max_nodes: int = 256  # in a draft; also of gamma and of assumed tokens
    max_support: int = 1024  # ids in one q
    max_sequence_tokens: int = 1 << 20  # prompt and output_so_far of one session
    max_pending_tokens: int = 1 << 22  # of all sessions of a stream whose openings are not complete
    max_pending_sessions: int = 4096

    @property
    def num_ids(self) -> int:
        return self.vocabulary_size or 1 << 31


class Received(NamedTuple, Generic[Value]):
    """A value from a peer, and why it is less than what was sent."""

    value: Value
    dropped: DropCause | None = None


# ---- header ------------------------------------------------------------------------------------------------------

_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_TRACESTATE = 512


def header(
    session: SessionId,
    incarnation: int,
    position: int = 0,
    *,
    prefix_hash: int = 0,
    round: int | None = None,  # noqa: A002 - the word of the protocol
    trace: TraceContext | None = None,
) -> peer_pb2.Header:
    """The head of an item."""
    head = peer_pb2.Header(
        session=session, incarnation=incarnation, position=position, prefix_hash=prefix_hash, round=round
    )
    if trace is not None:
        head.trace.traceparent = trace.traceparent
        head.trace.tracestate = trace.tracestate
    return head


def read_session(head: peer_pb2.Header) -> SessionId:
    """Whose item it is.

    Raises:
        InvalidArgument: not 16 bytes.
    """
    session = head.session
    if len(session) != SESSION_ID_BYTES:
        raise InvalidArgument.of("header.session", session, f"a session id is {SESSION_ID_BYTES} random bytes")
    return session


def read_round(head: peer_pb2.Header) -> int:
    """The round of an item that must have one.

    Raises:
        InvalidArgument: it has none.
    """
    if not head.HasField("round"):
        raise InvalidArgument.of("header.round", None, "this item belongs to a round; set its number")
    return head.round


def read_trace(head: peer_pb2.Header) -> TraceContext | None:
    """The trace context of an item."""
    return trace_of(head.trace.traceparent, head.trace.tracestate) if head.HasField("trace") else None


def trace_of(parent: str, state: str) -> TraceContext | None:
    """A trace context by its two headers.

    None where there is none that W3C would accept: a trace is no reason to refuse work.
    """
    if not _TRACEPARENT.fullmatch(parent):
        return None
    return TraceContext(parent, state if len(state) <= _MAX_TRACESTATE else "")


# ---- tokens ------------------------------------------------------------------------------------------------------


def read_tokens(field: str, ids: object, limits: Limits, max_tokens: int = MAX_CHUNK_TOKENS) -> tuple[int, ...]:
    """Token ids of the vocabulary.

    Raises:
        InvalidArgument: too many, or one outside the vocabulary.
    """
    tokens = tuple(ids)  # type: ignore[arg-type,var-annotated] # protobuf's repeated field of uint32
    if len(tokens) > max_tokens:
        raise InvalidArgument(f"{field} has {len(tokens)} tokens: at most {max_tokens} go into one item", field=field)
    if tokens and max(tokens) >= limits.num_ids:
        raise InvalidArgument.of(field, max(tokens), f"ids of this vocabulary are below {limits.num_ids}")
    return tokens


# ---- refusals, what a peer is -------------------------------------------------------------------------------------


def refuse(error: PilotfishError, session: SessionId, incarnation: int, position: int | None = None) -> Refusal:
    """The answer to an item that raised.

    Args:
        incarnation: of the peer that refuses.
        position: the right one, where the session exists; the error's own where None.
    """
    code: int = code_pb2.Code.Value(error.code)
    position = error.position if position is None else position
    return Refusal(session[:SESSION_ID_BYTES], position, incarnation, code, error.message, error.reason)


def write_refusal(refusal: Refusal) -> peer_pb2.Refusal:
    """The proto of a refusal, without its header."""
    status = status_pb2.Status(code=refusal.code, message=refusal.message)
    return peer_pb2.Refusal(status=status, expected_position=refusal.position, reason=refusal.reason)


def read_refusal(head: peer_pb2.Header, proto: peer_pb2.Refusal) -> Refusal:
    """What a peer refused.

    Raises:
        InvalidArgument: no session.
    """
    position = proto.expected_position if proto.HasField("expected_position") else None
    session, incarnation = read_session(head), head.incarnation
    return Refusal(session, position, incarnation, proto.status.code, proto.status.message, proto.reason or "unknown")


def write_info(info: ServiceInfo) -> peer_pb2.PeerInfo:
    """What a peer says of itself."""
    return peer_pb2.PeerInfo(
        version=info.version,
        incarnation=info.incarnation,
        model=info.model,
        vocabulary_hash=info.vocabulary_hash or "",
        vocabulary_size=info.vocabulary_size,
        context_length=info.context_length,
        end_ids=info.end_ids,
        dtype=info.dtype,
        device=info.device,
        speculators=info.speculators,
        max_nodes=info.max_nodes,
        page_size=info.page_size,
        num_kv_pages=info.num_kv_pages,
        settings=info.settings,
    )


def read_info(role: str, proto: peer_pb2.PeerInfo) -> ServiceInfo:
    """What a peer says of itself.

    Args:
        role: the service that was asked: "drafter" or "verifier".

    Raises:
        InvalidArgument: no incarnation, or end ids outside the vocabulary.
    """
    if proto.incarnation == 0:
        raise InvalidArgument.of("incarnation", 0, "a peer draws one at every start; this is not one of this version")
    return ServiceInfo(
        role=role,
        version=proto.version,
        incarnation=proto.incarnation,
        model=proto.model,
        vocabulary_hash=proto.vocabulary_hash or None,
        vocabulary_size=proto.vocabulary_size,
        context_length=proto.context_length,
        end_ids=read_tokens("end_ids", proto.end_ids, Limits(proto.vocabulary_size)),
        dtype=proto.dtype,
        device=proto.device,
        speculators=tuple(proto.speculators),
        max_nodes=proto.max_nodes,
        page_size=proto.page_size,
        num_kv_pages=proto.num_kv_pages,
        settings=dict(proto.settings),
    )


def microseconds(value: float) -> int:
    """A duration as a uint32 of the wire, at its bounds where it is outside."""
    return max(0, min(round(value), (1 << 32) - 1))
