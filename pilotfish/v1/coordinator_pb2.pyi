from pilotfish.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Objective(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECTIVE_UNSPECIFIED: _ClassVar[Objective]
    OBJECTIVE_LATENCY: _ClassVar[Objective]
    OBJECTIVE_BALANCED: _ClassVar[Objective]
    OBJECTIVE_THROUGHPUT: _ClassVar[Objective]
OBJECTIVE_UNSPECIFIED: Objective
OBJECTIVE_LATENCY: Objective
OBJECTIVE_BALANCED: Objective
OBJECTIVE_THROUGHPUT: Objective

class GenerateRequest(_message.Message):
    __slots__ = ("text", "chat", "tokens", "sampling", "seed", "max_tokens", "stop", "stop_ids", "ignore_eos", "speculation", "output_so_far", "model", "include_rounds", "workload", "objective", "targets")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_EOS_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_SO_FAR_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    WORKLOAD_FIELD_NUMBER: _ClassVar[int]
    OBJECTIVE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    text: str
    chat: Chat
    tokens: Tokens
    sampling: _common_pb2.Sampling
    seed: int
    max_tokens: int
    stop: _containers.RepeatedScalarFieldContainer[str]
    stop_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_eos: bool
    speculation: Speculation
    output_so_far: _containers.RepeatedScalarFieldContainer[int]
    model: str
    include_rounds: bool
    workload: str
    objective: Objective
    targets: Targets
    def __init__(self, text: _Optional[str] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., tokens: _Optional[_Union[Tokens, _Mapping]] = ..., sampling: _Optional[_Union[_common_pb2.Sampling, _Mapping]] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., stop: _Optional[_Iterable[str]] = ..., stop_ids: _Optional[_Iterable[int]] = ..., ignore_eos: _Optional[bool] = ..., speculation: _Optional[_Union[Speculation, _Mapping]] = ..., output_so_far: _Optional[_Iterable[int]] = ..., model: _Optional[str] = ..., include_rounds: _Optional[bool] = ..., workload: _Optional[str] = ..., objective: _Optional[_Union[Objective, str]] = ..., targets: _Optional[_Union[Targets, _Mapping]] = ...) -> None: ...

class Targets(_message.Message):
    __slots__ = ("first_token_us", "token_us")
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    first_token_us: int
    token_us: int
    def __init__(self, first_token_us: _Optional[int] = ..., token_us: _Optional[int] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[Message]
    def __init__(self, messages: _Optional[_Iterable[_Union[Message, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Tokens(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Speculation(_message.Message):
    __slots__ = ("is_off", "gamma", "max_gamma", "rule", "speculator")
    IS_OFF_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    MAX_GAMMA_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    SPECULATOR_FIELD_NUMBER: _ClassVar[int]
    is_off: bool
    gamma: int
    max_gamma: int
    rule: _common_pb2.Rule
    speculator: str
    def __init__(self, is_off: _Optional[bool] = ..., gamma: _Optional[int] = ..., max_gamma: _Optional[int] = ..., rule: _Optional[_Union[_common_pb2.Rule, str]] = ..., speculator: _Optional[str] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("text", "ids", "kinds", "num_characters", "rounds", "started", "finished")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    NUM_CHARACTERS_FIELD_NUMBER: _ClassVar[int]
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    STARTED_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    text: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    kinds: _containers.RepeatedScalarFieldContainer[_common_pb2.TokenKind]
    num_characters: _containers.RepeatedScalarFieldContainer[int]
    rounds: _containers.RepeatedCompositeFieldContainer[Round]
    started: Started
    finished: Finished
    def __init__(self, text: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., kinds: _Optional[_Iterable[_Union[_common_pb2.TokenKind, str]]] = ..., num_characters: _Optional[_Iterable[int]] = ..., rounds: _Optional[_Iterable[_Union[Round, _Mapping]]] = ..., started: _Optional[_Union[Started, _Mapping]] = ..., finished: _Optional[_Union[Finished, _Mapping]] = ...) -> None: ...

class Started(_message.Message):
    __slots__ = ("request_id", "model", "num_prompt_tokens", "num_cached_tokens", "drafter", "verifier", "rule", "trace_id", "is_lossy")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_CACHED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFTER_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    RULE_FIELD_NUMBER: _ClassVar[int]
    TRACE_ID_FIELD_NUMBER: _ClassVar[int]
    IS_LOSSY_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    model: str
    num_prompt_tokens: int
    num_cached_tokens: int
    drafter: str
    verifier: str
    rule: _common_pb2.Rule
    trace_id: str
    is_lossy: bool
    def __init__(self, request_id: _Optional[str] = ..., model: _Optional[str] = ..., num_prompt_tokens: _Optional[int] = ..., num_cached_tokens: _Optional[int] = ..., drafter: _Optional[str] = ..., verifier: _Optional[str] = ..., rule: _Optional[_Union[_common_pb2.Rule, str]] = ..., trace_id: _Optional[str] = ..., is_lossy: _Optional[bool] = ...) -> None: ...

class Round(_message.Message):
    __slots__ = ("index", "gamma", "reason", "num_drafted", "num_accepted", "num_committed", "start_us", "draft_us", "verify_us", "queue_us", "pass_us", "pass_positions")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    NUM_COMMITTED_FIELD_NUMBER: _ClassVar[int]
    START_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    PASS_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    index: int
    gamma: int
    reason: str
    num_drafted: int
    num_accepted: int
    num_committed: int
    start_us: int
    draft_us: int
    verify_us: int
    queue_us: int
    pass_us: int
    pass_positions: int
    def __init__(self, index: _Optional[int] = ..., gamma: _Optional[int] = ..., reason: _Optional[str] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., num_committed: _Optional[int] = ..., start_us: _Optional[int] = ..., draft_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., queue_us: _Optional[int] = ..., pass_us: _Optional[int] = ..., pass_positions: _Optional[int] = ...) -> None: ...

class Finished(_message.Message):
    __slots__ = ("reason", "num_prompt_tokens", "num_output_tokens", "statistics")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    reason: _common_pb2.FinishReason
    num_prompt_tokens: int
    num_output_tokens: int
    statistics: Statistics
    def __init__(self, reason: _Optional[_Union[_common_pb2.FinishReason, str]] = ..., num_prompt_tokens: _Optional[int] = ..., num_output_tokens: _Optional[int] = ..., statistics: _Optional[_Union[Statistics, _Mapping]] = ...) -> None: ...

class Statistics(_message.Message):
    __slots__ = ("num_verdicts", "num_drafts", "num_drafted_tokens", "num_accepted_tokens", "num_accepted_by_depth", "num_plain_tokens", "draft_us", "verify_us", "first_token_us", "total_us", "num_dropped_by_cause", "targets_met", "num_correction_tokens", "num_bonus_tokens", "max_drafted_tokens", "num_rounds_by_reason", "queue_us", "pass_us")
    class NumDroppedByCauseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class TargetsMetEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: bool
        def __init__(self, key: _Optional[str] = ..., value: _Optional[bool] = ...) -> None: ...
    class NumRoundsByReasonEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NUM_VERDICTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    NUM_PLAIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    VERIFY_US_FIELD_NUMBER: _ClassVar[int]
    FIRST_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    TOTAL_US_FIELD_NUMBER: _ClassVar[int]
    NUM_DROPPED_BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    TARGETS_MET_FIELD_NUMBER: _ClassVar[int]
    NUM_CORRECTION_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BONUS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_DRAFTED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_ROUNDS_BY_REASON_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    PASS_US_FIELD_NUMBER: _ClassVar[int]
    num_verdicts: int
    num_drafts: int
    num_drafted_tokens: int
    num_accepted_tokens: int
    num_accepted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    num_plain_tokens: int
    draft_us: int
    verify_us: int
    first_token_us: int
    total_us: int
    num_dropped_by_cause: _containers.ScalarMap[str, int]
    targets_met: _containers.ScalarMap[str, bool]
    num_correction_tokens: int
    num_bonus_tokens: int
    max_drafted_tokens: int
    num_rounds_by_reason: _containers.ScalarMap[str, int]
    queue_us: int
    pass_us: int
    def __init__(self, num_verdicts: _Optional[int] = ..., num_drafts: _Optional[int] = ..., num_drafted_tokens: _Optional[int] = ..., num_accepted_tokens: _Optional[int] = ..., num_accepted_by_depth: _Optional[_Iterable[int]] = ..., num_plain_tokens: _Optional[int] = ..., draft_us: _Optional[int] = ..., verify_us: _Optional[int] = ..., first_token_us: _Optional[int] = ..., total_us: _Optional[int] = ..., num_dropped_by_cause: _Optional[_Mapping[str, int]] = ..., targets_met: _Optional[_Mapping[str, bool]] = ..., num_correction_tokens: _Optional[int] = ..., num_bonus_tokens: _Optional[int] = ..., max_drafted_tokens: _Optional[int] = ..., num_rounds_by_reason: _Optional[_Mapping[str, int]] = ..., queue_us: _Optional[int] = ..., pass_us: _Optional[int] = ...) -> None: ...

class CoordinatorInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CoordinatorInfoResponse(_message.Message):
    __slots__ = ("version", "model", "context_length", "max_gamma", "peers", "settings", "acceptance_rate")
    class SettingsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTH_FIELD_NUMBER: _ClassVar[int]
    MAX_GAMMA_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_RATE_FIELD_NUMBER: _ClassVar[int]
    version: str
    model: str
    context_length: int
    max_gamma: int
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    settings: _containers.ScalarMap[str, str]
    acceptance_rate: float
    def __init__(self, version: _Optional[str] = ..., model: _Optional[str] = ..., context_length: _Optional[int] = ..., max_gamma: _Optional[int] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., settings: _Optional[_Mapping[str, str]] = ..., acceptance_rate: _Optional[float] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("role", "address", "is_up", "problem", "model", "speculators", "num_sessions", "round_trip_us", "draft_start_us", "draft_token_us")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    IS_UP_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SPECULATORS_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ROUND_TRIP_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_START_US_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    role: str
    address: str
    is_up: bool
    problem: str
    model: str
    speculators: _containers.RepeatedScalarFieldContainer[str]
    num_sessions: int
    round_trip_us: int
    draft_start_us: int
    draft_token_us: int
    def __init__(self, role: _Optional[str] = ..., address: _Optional[str] = ..., is_up: _Optional[bool] = ..., problem: _Optional[str] = ..., model: _Optional[str] = ..., speculators: _Optional[_Iterable[str]] = ..., num_sessions: _Optional[int] = ..., round_trip_us: _Optional[int] = ..., draft_start_us: _Optional[int] = ..., draft_token_us: _Optional[int] = ...) -> None: ...
