from pilotfish.v1 import common_pb2 as _common_pb2
from pilotfish.v1 import peer_pb2 as _peer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifierInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class VerifierInfoResponse(_message.Message):
    __slots__ = ("peer", "cost_curve", "is_lossy")
    PEER_FIELD_NUMBER: _ClassVar[int]
    COST_CURVE_FIELD_NUMBER: _ClassVar[int]
    IS_LOSSY_FIELD_NUMBER: _ClassVar[int]
    peer: _peer_pb2.PeerInfo
    cost_curve: CostCurve
    is_lossy: bool
    def __init__(self, peer: _Optional[_Union[_peer_pb2.PeerInfo, _Mapping]] = ..., cost_curve: _Optional[_Union[CostCurve, _Mapping]] = ..., is_lossy: _Optional[bool] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[VerifyItem]
    def __init__(self, items: _Optional[_Iterable[_Union[VerifyItem, _Mapping]]] = ...) -> None: ...

class VerifyItem(_message.Message):
    __slots__ = ("header", "open", "chunk", "work", "close")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    WORK_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    header: _peer_pb2.Header
    open: VerifierOpen
    chunk: _peer_pb2.TokenChunk
    work: Work
    close: _peer_pb2.Close
    def __init__(self, header: _Optional[_Union[_peer_pb2.Header, _Mapping]] = ..., open: _Optional[_Union[VerifierOpen, _Mapping]] = ..., chunk: _Optional[_Union[_peer_pb2.TokenChunk, _Mapping]] = ..., work: _Optional[_Union[Work, _Mapping]] = ..., close: _Optional[_Union[_peer_pb2.Close, _Mapping]] = ...) -> None: ...

class VerifierOpen(_message.Message):
    __slots__ = ("start", "grant", "patience_us", "first_token_us", "profile")
    START_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    start: _peer_pb2.SessionStart
    grant: int
    patience_us: int
    first_token_us: int
    profile: Profile
    def __init__(self, start: _Optional[_Union[_peer_pb2.SessionStart, _Mapping]] = ..., grant: _Optional[int] = ..., patience_us: _Optional[int] = ..., first_token_us: _Optional[int] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ...) -> None: ...

class Work(_message.Message):
    __slots__ = ("draft", "first_node", "is_complete", "grant", "patience_us", "assumes", "profile")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    PATIENCE_US_FIELD_NUMBER: _ClassVar[int]
    ASSUMES_FIELD_NUMBER: _ClassVar[int]
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    draft: _peer_pb2.Draft
    first_node: int
    is_complete: bool
    grant: int
    patience_us: int
    assumes: _containers.RepeatedScalarFieldContainer[int]
    profile: Profile
    def __init__(self, draft: _Optional[_Union[_peer_pb2.Draft, _Mapping]] = ..., first_node: _Optional[int] = ..., is_complete: _Optional[bool] = ..., grant: _Optional[int] = ..., patience_us: _Optional[int] = ..., assumes: _Optional[_Iterable[int]] = ..., profile: _Optional[_Union[Profile, _Mapping]] = ...) -> None: ...

class Profile(_message.Message):
    __slots__ = ("survival", "start_us", "token_us", "round_trip_us", "may_draft_ahead", "is_drawn", "offered")
    SURVIVAL_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    MAY_DRAFT_AHEAD_FIELD_NUMBER: _ClassVar[int]
    IS_DRAWN_FIELD_NUMBER: _ClassVar[int]
    OFFERED_FIELD_NUMBER: _ClassVar[int]
    survival: bytes
    start_us: int
    token_us: int
    round_trip_us: int
    may_draft_ahead: bool
    is_drawn: bool
    offered: int
    def __init__(self, survival: _Optional[bytes] = ..., start_us: _Optional[int] = ..., token_us: _Optional[int] = ..., round_trip_us: _Optional[int] = ..., may_draft_ahead: _Optional[bool] = ..., is_drawn: _Optional[bool] = ..., offered: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("answers", "load")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[VerifyAnswer]
    load: VerifierLoad
    def __init__(self, answers: _Optional[_Iterable[_Union[VerifyAnswer, _Mapping]]] = ..., load: _Optional[_Union[VerifierLoad, _Mapping]] = ...) -> None: ...

class VerifyAnswer(_message.Message):
    __slots__ = ("header", "opened", "verdict", "refusal")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    header: _peer_pb2.Header
    opened: VerifierOpened
    verdict: Verdict
    refusal: _peer_pb2.Refusal
    def __init__(self, header: _Optional[_Union[_peer_pb2.Header, _Mapping]] = ..., opened: _Optional[_Union[VerifierOpened, _Mapping]] = ..., verdict: _Optional[_Union[Verdict, _Mapping]] = ..., refusal: _Optional[_Union[_peer_pb2.Refusal, _Mapping]] = ...) -> None: ...

class VerifierOpened(_message.Message):
    __slots__ = ("num_cached_tokens",)
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    num_cached_tokens: int
    def __init__(self, num_cached_tokens: _Optional[int] = ...) -> None: ...

class Verdict(_message.Message):
    __slots__ = ("tokens", "kinds", "num_drafted", "num_accepted", "num_reused", "node_probabilities", "finish", "queue_us", "pass_us", "pass_positions")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_REUSED_FIELD_NUMBER: _ClassVar[int]
    NODE_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    FINISH_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    PASS_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    kinds: _containers.RepeatedScalarFieldContainer[_common_pb2.TokenKind]
    num_drafted: int
    num_accepted: int
    num_reused: int
    node_probabilities: bytes
    finish: _common_pb2.FinishReason
    queue_us: int
    pass_us: int
    pass_positions: int
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., kinds: _Optional[_Iterable[_Union[_common_pb2.TokenKind, str]]] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_reused: _Optional[int] = ..., node_probabilities: _Optional[bytes] = ..., finish: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., queue_us: _Optional[int] = ..., pass_us: _Optional[int] = ..., pass_positions: _Optional[int] = ...) -> None: ...

class VerifierLoad(_message.Message):
    __slots__ = ("pass_us", "pass_positions", "pass_sequences", "num_queued", "num_sessions", "num_kv_pages", "num_kv_pages_used", "saturation", "plan", "plain_us")
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    PASS_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PASS_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_PAGES_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_PAGES_USED_FIELD_NUMBER: _ClassVar[int]
    SATURATION_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    PLAIN_US_FIELD_NUMBER: _ClassVar[int]
    pass_us: int
    pass_positions: int
    pass_sequences: int
    num_queued: int
    num_sessions: int
    num_kv_pages: int
    num_kv_pages_used: int
    saturation: float
    plan: Plan
    plain_us: int
    def __init__(self, pass_us: _Optional[int] = ..., pass_positions: _Optional[int] = ..., pass_sequences: _Optional[int] = ..., num_queued: _Optional[int] = ..., num_sessions: _Optional[int] = ..., num_kv_pages: _Optional[int] = ..., num_kv_pages_used: _Optional[int] = ..., saturation: _Optional[float] = ..., plan: _Optional[_Union[Plan, _Mapping]] = ..., plain_us: _Optional[int] = ...) -> None: ...

class Plan(_message.Message):
    __slots__ = ("price", "period_us", "pass_us", "capacity", "tokens_per_s", "kind", "realised_speedup", "ahead_us")
    PRICE_FIELD_NUMBER: _ClassVar[int]
    PERIOD_US_FIELD_NUMBER: _ClassVar[int]
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    REALISED_SPEEDUP_FIELD_NUMBER: _ClassVar[int]
    AHEAD_US_FIELD_NUMBER: _ClassVar[int]
    price: float
    period_us: int
    pass_us: int
    capacity: int
    tokens_per_s: float
    kind: int
    realised_speedup: float
    ahead_us: int
    def __init__(self, price: _Optional[float] = ..., period_us: _Optional[int] = ..., pass_us: _Optional[int] = ..., capacity: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., kind: _Optional[int] = ..., realised_speedup: _Optional[float] = ..., ahead_us: _Optional[int] = ...) -> None: ...

class CostCurve(_message.Message):
    __slots__ = ("positions", "pass_us", "sequence_ns", "context_ns", "ridge")
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_NS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_NS_FIELD_NUMBER: _ClassVar[int]
    RIDGE_FIELD_NUMBER: _ClassVar[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    pass_us: _containers.RepeatedScalarFieldContainer[int]
    sequence_ns: int
    context_ns: int
    ridge: int
    def __init__(self, positions: _Optional[_Iterable[int]] = ..., pass_us: _Optional[_Iterable[int]] = ..., sequence_ns: _Optional[int] = ..., context_ns: _Optional[int] = ..., ridge: _Optional[int] = ...) -> None: ...
