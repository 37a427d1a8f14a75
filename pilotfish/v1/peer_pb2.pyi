from google.rpc import status_pb2 as _status_pb2
from pilotfish.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Header(_message.Message):
    __slots__ = ("session", "incarnation", "position", "prefix_hash", "round", "trace")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    PREFIX_HASH_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TRACE_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    incarnation: int
    position: int
    prefix_hash: int
    round: int
    trace: TraceContext
    def __init__(self, session: _Optional[bytes] = ..., incarnation: _Optional[int] = ..., position: _Optional[int] = ..., prefix_hash: _Optional[int] = ..., round: _Optional[int] = ..., trace: _Optional[_Union[TraceContext, _Mapping]] = ...) -> None: ...

class TraceContext(_message.Message):
    __slots__ = ("traceparent", "tracestate")
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    TRACESTATE_FIELD_NUMBER: _ClassVar[int]
    traceparent: str
    tracestate: str
    def __init__(self, traceparent: _Optional[str] = ..., tracestate: _Optional[str] = ...) -> None: ...

class Distribution(_message.Message):
    __slots__ = ("ids", "weights")
    IDS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[int]] = ...) -> None: ...

class Draft(_message.Message):
    __slots__ = ("tokens", "parents", "q")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    PARENTS_FIELD_NUMBER: _ClassVar[int]
    Q_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    parents: _containers.RepeatedScalarFieldContainer[int]
    q: _containers.RepeatedCompositeFieldContainer[Distribution]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., parents: _Optional[_Iterable[int]] = ..., q: _Optional[_Iterable[_Union[Distribution, _Mapping]]] = ...) -> None: ...

class TokenChunk(_message.Message):
    __slots__ = ("offset", "tokens")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    offset: int
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, offset: _Optional[int] = ..., tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class SessionStart(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_output_tokens", "sampling", "seed", "rule", "vocabulary_hash", "end_ids", "max_tokens", "lease_ms", "tenant")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_HASH_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_output_tokens: int
    sampling: _common_pb2.Sampling
    seed: int
    rule: _common_pb2.Rule
    vocabulary_hash: str
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    max_tokens: int
    lease_ms: int
    tenant: str
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., rule: _Optional[_Union[_common_pb2.Rule, str]] = ..., vocabulary_hash: _Optional[str] = ..., end_ids: _Optional[_Iterable[int]] = ..., max_tokens: _Optional[int] = ..., lease_ms: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("status", "expected_position", "reason")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_POSITION_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    expected_position: int
    reason: str
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., expected_position: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class PeerInfo(_message.Message):
    __slots__ = ("version", "incarnation", "model", "vocabulary_hash", "vocabulary_size", "context_length", "end_ids", "dtype", "device", "speculators", "max_nodes", "page_size", "num_kv_pages", "settings")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    END_IDS_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    MAX_NODES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    NUM_KV_PAGES_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    version: str
    incarnation: int
    model: str
    vocabulary_hash: str
    vocabulary_size: int
    context_length: int
    end_ids: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    device: str
    speculators: _containers.RepeatedScalarFieldContainer[str]
    max_nodes: int
    page_size: int
    num_kv_pages: int
    settings: _containers.ScalarMap[str, str]
    def __init__(self, version: _Optional[str] = ..., incarnation: _Optional[int] = ..., model: _Optional[str] = ..., vocabulary_hash: _Optional[str] = ..., vocabulary_size: _Optional[int] = ..., context_length: _Optional[int] = ..., end_ids: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ..., device: _Optional[str] = ..., speculators: _Optional[_Iterable[str]] = ..., max_nodes: _Optional[int] = ..., page_size: _Optional[int] = ..., num_kv_pages: _Optional[int] = ..., settings: _Optional[_Mapping[str, str]] = ...) -> None: ...
