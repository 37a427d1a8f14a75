"""What can go wrong, as one tree; each line names the gRPC status and the HTTP code that a caller sees.

    PilotfishError                  INTERNAL             500
    ├── InvalidArgument             INVALID_ARGUMENT     400
    │   └── PromptTooLong           INVALID_ARGUMENT     400
    ├── NotFound                    NOT_FOUND            404
    │   └── UnknownSession          NOT_FOUND            404
    ├── FailedPrecondition          FAILED_PRECONDITION  412
    │   ├── VocabularyMismatch      FAILED_PRECONDITION  412
    │   ├── StaleIncarnation        FAILED_PRECONDITION  412
    │   ├── StalePosition           FAILED_PRECONDITION  412
    │   └── PrefixMismatch          FAILED_PRECONDITION  412
    ├── Overloaded                  RESOURCE_EXHAUSTED   429
    │   └── PoolFull                RESOURCE_EXHAUSTED   429
    ├── Unavailable                 UNAVAILABLE          503
    │   └── PeerLost                UNAVAILABLE          503
    ├── DeadlineExceeded            DEADLINE_EXCEEDED    504
    ├── Cancelled                   CANCELLED            499
    ├── Unimplemented               UNIMPLEMENTED        501
    ├── TargetFailed                INTERNAL             500
    ├── UnsupportedModel            FAILED_PRECONDITION  412
    ├── MissingModel                NOT_FOUND            404
    ├── CorruptDownload             DATA_LOSS            500
    └── ConfigurationError          INVALID_ARGUMENT     400
        └── PortTaken               INVALID_ARGUMENT     400

Every message names the value and what to do about it. `rpc` turns an error into a status, once, for every service;
`restore` makes the error of a status again, so that a client catches what a service raised.
"""

# ruff: noqa: N818 - a class is named after what happened; that it is an error, its base says

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self, TypeVar

Error = TypeVar("Error", bound="PilotfishError")

_SHOWN_CHARACTERS = 80  # of a value in a message


class PilotfishError(Exception):
    """Anything that Pilotfish refuses or fails to do.

    Args:
        message: for people; names the value and the remedy.
        field: of the request or of the settings, where one is at fault.
        retry_after_s: how long to wait before trying again, where that can help.
        position: the right position of the session, where one was wrong.
    """

    code: ClassVar[str] = "INTERNAL"  # name of the grpc.StatusCode
    http_status: ClassVar[int] = 500
    reason: ClassVar[str] = "internal"  # one word for counting

    def __init__(
        self,
        message: str,
        *,
        field: str | None = None,
        retry_after_s: float | None = None,
        position: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s
        self.position = position

    @classmethod
    def of(cls, field: str, value: object, remedy: str) -> Self:
        """The error of a field whose value cannot be used: `top_p is 1.5: …`."""
        shown = repr(value)
        if len(shown) > _SHOWN_CHARACTERS:
            shown = shown[:_SHOWN_CHARACTERS] + "…"
        return cls(f"{field} is {shown}: {remedy}", field=field)


class InvalidArgument(PilotfishError):
    """A request that can never be served, whatever the state of the service. Made with `of`."""

    code = "INVALID_ARGUMENT"
    http_status = 400
    reason = "argument"


class PromptTooLong(InvalidArgument):
    """The prompt does not leave room for one more token in the model's context."""

    reason = "context"


class NotFound(PilotfishError):
    """Something named is not there: a model, a speculator, a session."""

    code = "NOT_FOUND"
    http_status = 404
    reason = "not_found"


class UnknownSession(NotFound):
    """The peer has no such session: never opened, closed, or its lease ran out."""

    reason = "unknown_session"


class FailedPrecondition(PilotfishError):
    """Sound in itself, but not in the state that the service is in."""

    code = "FAILED_PRECONDITION"
    http_status = 412
    reason = "precondition"


class VocabularyMismatch(FailedPrecondition):
    """Two peers whose token strings differ."""

    reason = "vocabulary"


class StaleIncarnation(FailedPrecondition):
    """Meant for an earlier life of this peer, which knew sessions that this one does not."""

    reason = "incarnation"


class StalePosition(FailedPrecondition):
    """Neither the committed length nor the base of the last verdict; `position` is the right one."""

    reason = "position"


class PrefixMismatch(FailedPrecondition):
    """The position is right, but what was committed before it is not what the sender believes."""

    reason = "prefix"


class Overloaded(PilotfishError):
    """No room now; `retry_after_s` says when to try again."""

    code = "RESOURCE_EXHAUSTED"
    http_status = 429
    reason = "full"


class PoolFull(Overloaded):
    """No pages of KV are left, and nothing can be preempted for this session."""

    reason = "kv_full"


class Unavailable(PilotfishError):
    """A service is not there, is starting or is going; another one may serve the same request."""

    code = "UNAVAILABLE"
    http_status = 503
    reason = "unavailable"


class PeerLost(Unavailable):
    """The stream to a peer broke."""

    reason = "peer_lost"


class DeadlineExceeded(PilotfishError):
    """The caller's time is over."""

    code = "DEADLINE_EXCEEDED"
    http_status = 504
    reason = "deadline"


class Cancelled(PilotfishError):
    """The caller went away."""

    code = "CANCELLED"
    http_status = 499
    reason = "cancelled"


class Unimplemented(PilotfishError):
    """The service does not know this call: another version, or another service at this address."""

    code = "UNIMPLEMENTED"
    http_status = 501
    reason = "unimplemented"


class TargetFailed(PilotfishError):
    """The target's logits are not numbers; this request alone fails."""

    reason = "target"


class UnsupportedModel(PilotfishError):
    """A model that cannot be run exactly: refused at load, by name."""

    code = "FAILED_PRECONDITION"
    http_status = 412
    reason = "unsupported_model"


class MissingModel(PilotfishError):
    """A model, or a file of it, that is not where it was said to be."""

    code = "NOT_FOUND"
    http_status = 404
    reason = "missing_model"


class CorruptDownload(PilotfishError):
    """A fetched file whose checksum or size is not the published one."""

    code = "DATA_LOSS"
    reason = "corrupt_download"


class ConfigurationError(PilotfishError):
    """A setting that is unknown or impossible; found at start."""

    code = "INVALID_ARGUMENT"
    http_status = 400
    reason = "configuration"


class PortTaken(ConfigurationError):
    """The address cannot be bound."""

    reason = "port_taken"


def tree(root: type[PilotfishError] = PilotfishError) -> Iterator[type[PilotfishError]]:
    """Every class of the tree, parents first."""
    yield root
    for child in root.__subclasses__():
        yield from tree(child)


def restore(
    code: str,
    message: str,
    *,
    reason: str | None = None,
    field: str | None = None,
    retry_after_s: float | None = None,
    position: int | None = None,
) -> PilotfishError:
    """The error that a status was made of: by its `reason` where that is known, else by its `code`.

    Args:
        code: name of a grpc.StatusCode. One that no class has (UNKNOWN, ABORTED, …) becomes a PilotfishError.
    """
    classes = [error for error in tree() if error.code == code]
    named = [error for error in classes if error.reason == reason]
    error = (named or classes or [PilotfishError])[0]
    return error(message, field=field, retry_after_s=retry_after_s, position=position)
