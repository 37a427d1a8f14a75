"""Errors as gRPC statuses and back. Needs only grpcio; the details of a status need google.rpc, at the sender."""

from __future__ import annotations

from typing import Any, Final

import grpc
import grpc.aio

from pilotfish.errors import PilotfishError, restore

# What a client reads, since it may not have google.rpc: trailing metadata, one key each.
_REASON: Final = "pilotfish-reason"
_FIELD: Final = "pilotfish-field"
_RETRY_AFTER_MS: Final = "pilotfish-retry-after-ms"
_DETAILS: Final = "grpc-status-details-bin"
_DOMAIN: Final = "pilotfish"
_MAX_MESSAGE: Final = 1000  # characters; trailers are bounded


def status_code(error: PilotfishError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    return grpc.StatusCode[error.code]


def trailers(error: PilotfishError) -> tuple[tuple[str, str | bytes], ...]:
    """Trailing metadata of an error: a google.rpc.Status with its details, and the same for our own clients."""
    metadata: list[tuple[str, str | bytes]] = [(_DETAILS, _details(error)), (_REASON, error.reason)]
    if error.field is not None:
        metadata.append((_FIELD, error.field))
    if error.retry_after_s is not None:
        metadata.append((_RETRY_AFTER_MS, str(round(error.retry_after_s * 1e3))))
    return tuple(metadata)


def message(error: PilotfishError) -> str:
    """The text of an error, cut to what fits in a trailer."""
    return error.message[:_MAX_MESSAGE]


def _details(error: PilotfishError) -> bytes:
    from google.rpc import code_pb2, error_details_pb2, status_pb2

    status = status_pb2.Status(code=code_pb2.Code.Value(error.code), message=message(error))
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=error.reason.upper(), domain=_DOMAIN))
    if error.field is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.field, description=message(error))
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(error.retry_after_s * 1e3))
        status.details.add().Pack(retry)
    encoded: bytes = status.SerializeToString()
    return encoded


def from_rpc_error(error: grpc.RpcError) -> PilotfishError:
    """The error that a failed call stands for."""
    if not isinstance(error, grpc.aio.AioRpcError | grpc.Call):
        return restore("UNKNOWN", str(error))
    call: Any = error  # the stubs know less than the two classes have in common
    metadata = {key: value for key, value in call.trailing_metadata() or () if isinstance(value, str)}
    retry_after_ms = metadata.get(_RETRY_AFTER_MS, "")
    code: grpc.StatusCode | None = call.code()
    return restore(
        "UNKNOWN" if code is None else code.name,
        call.details() or "the call failed without a message",
        reason=metadata.get(_REASON),
        field=metadata.get(_FIELD),
        retry_after_s=int(retry_after_ms) / 1e3 if retry_after_ms.isdecimal() else None,
    )
