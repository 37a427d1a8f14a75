from pilotfish.v1 import peer_pb2 as _peer_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DraftEnd(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DRAFT_END_UNSPECIFIED: _ClassVar[DraftEnd]
    DRAFT_END_GAMMA: _ClassVar[DraftEnd]
    DRAFT_END_DEADLINE: _ClassVar[DraftEnd]
    DRAFT_END_NO_MATCH: _ClassVar[DraftEnd]
    DRAFT_END_CONTEXT: _ClassVar[DraftEnd]
    DRAFT_END_SURVIVAL: _ClassVar[DraftEnd]
DRAFT_END_UNSPECIFIED: DraftEnd
DRAFT_END_GAMMA: DraftEnd
DRAFT_END_DEADLINE: DraftEnd
DRAFT_END_NO_MATCH: DraftEnd
DRAFT_END_CONTEXT: DraftEnd
DRAFT_END_SURVIVAL: DraftEnd

class DrafterInfoRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DrafterInfoResponse(_message.Message):
    __slots__ = ("peer",)
    PEER_FIELD_NUMBER: _ClassVar[int]
    peer: _peer_pb2.PeerInfo
    def __init__(self, peer: _Optional[_Union[_peer_pb2.PeerInfo, _Mapping]] = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("items",)
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    items: _containers.RepeatedCompositeFieldContainer[DraftItem]
    def __init__(self, items: _Optional[_Iterable[_Union[DraftItem, _Mapping]]] = ...) -> None: ...

class DraftItem(_message.Message):
    __slots__ = ("header", "open", "chunk", "propose", "close")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    PROPOSE_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    header: _peer_pb2.Header
    open: DrafterOpen
    chunk: _peer_pb2.TokenChunk
    propose: Propose
    close: _peer_pb2.Close
    def __init__(self, header: _Optional[_Union[_peer_pb2.Header, _Mapping]] = ..., open: _Optional[_Union[DrafterOpen, _Mapping]] = ..., chunk: _Optional[_Union[_peer_pb2.TokenChunk, _Mapping]] = ..., propose: _Optional[_Union[Propose, _Mapping]] = ..., close: _Optional[_Union[_peer_pb2.Close, _Mapping]] = ...) -> None: ...

class DrafterOpen(_message.Message):
    __slots__ = ("start", "speculator", "is_coupled")
    START_FIELD_NUMBER: _ClassVar[int]
    SPECULATOR_FIELD_NUMBER: _ClassVar[int]
    IS_COUPLED_FIELD_NUMBER: _ClassVar[int]
    start: _peer_pb2.SessionStart
    speculator: str
    is_coupled: bool
    def __init__(self, start: _Optional[_Union[_peer_pb2.SessionStart, _Mapping]] = ..., speculator: _Optional[str] = ..., is_coupled: _Optional[bool] = ...) -> None: ...

class Propose(_message.Message):
    __slots__ = ("tokens", "gamma", "deadline_us", "price", "calibration", "step_price", "side_lines")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GAMMA_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    PRICE_FIELD_NUMBER: _ClassVar[int]
    CALIBRATION_FIELD_NUMBER: _ClassVar[int]
    STEP_PRICE_FIELD_NUMBER: _ClassVar[int]
    SIDE_LINES_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    gamma: int
    deadline_us: int
    price: float
    calibration: Calibration
    step_price: float
    side_lines: SideLines
    def __init__(self, tokens: _Optional[_Iterable[int]] = ..., gamma: _Optional[int] = ..., deadline_us: _Optional[int] = ..., price: _Optional[float] = ..., calibration: _Optional[_Union[Calibration, _Mapping]] = ..., step_price: _Optional[float] = ..., side_lines: _Optional[_Union[SideLines, _Mapping]] = ...) -> None: ...

class SideLines(_message.Message):
    __slots__ = ("num_lines", "num_levels", "num_nodes")
    NUM_LINES_FIELD_NUMBER: _ClassVar[int]
    NUM_LEVELS_FIELD_NUMBER: _ClassVar[int]
    NUM_NODES_FIELD_NUMBER: _ClassVar[int]
    num_lines: int
    num_levels: int
    num_nodes: int
    def __init__(self, num_lines: _Optional[int] = ..., num_levels: _Optional[int] = ..., num_nodes: _Optional[int] = ...) -> None: ...

class Calibration(_message.Message):
    __slots__ = ("offset", "slope")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SLOPE_FIELD_NUMBER: _ClassVar[int]
    offset: float
    slope: float
    def __init__(self, offset: _Optional[float] = ..., slope: _Optional[float] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("answers", "load")
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[DraftAnswer]
    load: DrafterLoad
    def __init__(self, answers: _Optional[_Iterable[_Union[DraftAnswer, _Mapping]]] = ..., load: _Optional[_Union[DrafterLoad, _Mapping]] = ...) -> None: ...

class DraftAnswer(_message.Message):
    __slots__ = ("header", "opened", "part", "refusal")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    header: _peer_pb2.Header
    opened: DrafterOpened
    part: DraftPart
    refusal: _peer_pb2.Refusal
    def __init__(self, header: _Optional[_Union[_peer_pb2.Header, _Mapping]] = ..., opened: _Optional[_Union[DrafterOpened, _Mapping]] = ..., part: _Optional[_Union[DraftPart, _Mapping]] = ..., refusal: _Optional[_Union[_peer_pb2.Refusal, _Mapping]] = ...) -> None: ...

class DrafterOpened(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DraftPart(_message.Message):
    __slots__ = ("draft", "first_node", "is_complete", "end", "draft_us", "confidences")
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    FIRST_NODE_FIELD_NUMBER: _ClassVar[int]
    IS_COMPLETE_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    DRAFT_US_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCES_FIELD_NUMBER: _ClassVar[int]
    draft: _peer_pb2.Draft
    first_node: int
    is_complete: bool
    end: DraftEnd
    draft_us: int
    confidences: bytes
    def __init__(self, draft: _Optional[_Union[_peer_pb2.Draft, _Mapping]] = ..., first_node: _Optional[int] = ..., is_complete: _Optional[bool] = ..., end: _Optional[_Union[DraftEnd, str]] = ..., draft_us: _Optional[int] = ..., confidences: _Optional[bytes] = ...) -> None: ...

class DrafterLoad(_message.Message):
    __slots__ = ("start_us", "token_us", "num_queued", "num_sessions")
    START_US_FIELD_NUMBER: _ClassVar[int]
    TOKEN_US_FIELD_NUMBER: _ClassVar[int]
    NUM_QUEUED_FIELD_NUMBER: _ClassVar[int]
    NUM_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    start_us: int
    token_us: int
    num_queued: int
    num_sessions: int
    def __init__(self, start_us: _Optional[int] = ..., token_us: _Optional[int] = ..., num_queued: _Optional[int] = ..., num_sessions: _Optional[int] = ...) -> None: ...
