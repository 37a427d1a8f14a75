from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Rule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RULE_UNSPECIFIED: _ClassVar[Rule]
    RULE_MATCH: _ClassVar[Rule]
    RULE_TOKEN: _ClassVar[Rule]
    RULE_BLOCK: _ClassVar[Rule]

class TokenKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOKEN_KIND_UNSPECIFIED: _ClassVar[TokenKind]
    TOKEN_KIND_PLAIN: _ClassVar[TokenKind]
    TOKEN_KIND_ACCEPTED: _ClassVar[TokenKind]
    TOKEN_KIND_CORRECTION: _ClassVar[TokenKind]
    TOKEN_KIND_BONUS: _ClassVar[TokenKind]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
RULE_UNSPECIFIED: Rule
RULE_MATCH: Rule
RULE_TOKEN: Rule
RULE_BLOCK: Rule
TOKEN_KIND_UNSPECIFIED: TokenKind
TOKEN_KIND_PLAIN: TokenKind
TOKEN_KIND_ACCEPTED: TokenKind
TOKEN_KIND_CORRECTION: TokenKind
TOKEN_KIND_BONUS: TokenKind
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason

class Sampling(_message.Message):
    __slots__ = ("temperature", "top_k", "top_p")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_k: int
    top_p: float
    def __init__(self, temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ...) -> None: ...
