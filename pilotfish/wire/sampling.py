"""Sampling parameters, rules, kinds and finish reasons: what clients and services share. Needs only protobuf."""

from __future__ import annotations

from math import isfinite
from typing import Final

from pilotfish.errors import InvalidArgument
from pilotfish.messages import FinishReason, Rule, Sampling, TokenKind
from pilotfish.v1 import common_pb2

_RULES: Final = {
    Rule.MATCH: common_pb2.RULE_MATCH,
    Rule.TOKEN: common_pb2.RULE_TOKEN,
    Rule.BLOCK: common_pb2.RULE_BLOCK,
}
_KINDS: Final = {
    TokenKind.PLAIN: common_pb2.TOKEN_KIND_PLAIN,
    TokenKind.ACCEPTED: common_pb2.TOKEN_KIND_ACCEPTED,
    TokenKind.CORRECTION: common_pb2.TOKEN_KIND_CORRECTION,
    TokenKind.BONUS: common_pb2.TOKEN_KIND_BONUS,
}
_FINISHES: Final = {
    FinishReason.STOP: common_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: common_pb2.FINISH_REASON_LENGTH,
}
_RULE_OF: Final = {number: rule for rule, number in _RULES.items()}
_KIND_OF: Final = {number: kind for kind, number in _KINDS.items()}
_FINISH_OF: Final = {number: finish for finish, number in _FINISHES.items()}


def write_sampling(sampling: Sampling) -> common_pb2.Sampling:
    """Sampling parameters, all that are set."""
    return common_pb2.Sampling(temperature=sampling.temperature, top_k=sampling.top_k, top_p=sampling.top_p)


def read_sampling(proto: common_pb2.Sampling) -> Sampling:
    """Sampling parameters that a law can be made of.

    Raises:
        InvalidArgument: temperature not a number or negative, top_k of 0, top_p outside (0, 1].
    """
    temperature = proto.temperature if proto.HasField("temperature") else 1.0
    top_k = proto.top_k if proto.HasField("top_k") else None
    top_p = proto.top_p if proto.HasField("top_p") else None
    if not (isfinite(temperature) and temperature >= 0.0):
        remedy = "must be a number of at least 0; 0 is greedy, 1 the model's own distribution"
        raise InvalidArgument.of("sampling.temperature", temperature, remedy)
    if top_k == 0:
        raise InvalidArgument.of("sampling.top_k", top_k, "must be at least 1; leave it out for all ids")
    if top_p is not None and not 0.0 < top_p <= 1.0:
        raise InvalidArgument.of("sampling.top_p", top_p, "must be in (0, 1]; leave it out for all ids")
    return Sampling(temperature, top_k, top_p)


def write_rule(rule: Rule | None) -> common_pb2.Rule:
    """The rule; None is left to the receiver."""
    return common_pb2.RULE_UNSPECIFIED if rule is None else _RULES[rule]


def read_rule(number: int) -> Rule | None:
    """The rule; None where it is left open or unknown."""
    return _RULE_OF.get(number)  # type: ignore[call-overload,no-any-return] # an open enum is an int


def write_kinds(kinds: tuple[TokenKind, ...]) -> list[common_pb2.TokenKind]:
    """How tokens came about."""
    return [_KINDS[kind] for kind in kinds]


def read_kinds(numbers: object) -> tuple[TokenKind, ...]:
    """How tokens came about; kinds that this version does not know are left out."""
    return tuple(_KIND_OF[number] for number in numbers if number in _KIND_OF)  # type: ignore[attr-defined]


def write_finish(finish: FinishReason | None) -> common_pb2.FinishReason:
    """Why nothing more is committed; None: not finished."""
    return common_pb2.FINISH_REASON_UNSPECIFIED if finish is None else _FINISHES[finish]


def read_finish(number: int) -> FinishReason | None:
    """Why nothing more is committed; None: not finished."""
    return _FINISH_OF.get(number)  # type: ignore[call-overload,no-any-return] # an open enum is an int
