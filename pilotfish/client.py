"""The client: text from a coordinator. Needs grpcio and protobuf, nothing else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Generator, Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, Unpack

import grpc
import grpc.aio

from pilotfish.errors import InvalidArgument, PilotfishError
from pilotfish.messages import (
    Chat,
    Chunk,
    CoordinatorInfo,
    Finished,
    FinishReason,
    Message,
    Objective,
    Round,
    Rule,
    Speculation,
    Started,
    Statistics,
    Targets,
    TokenKind,
)
from pilotfish.request import Options, Prompt, make_request
from pilotfish.resume import Progress
from pilotfish.rpc import TENANT_KEY, channel_options
from pilotfish.status import from_rpc_error
from pilotfish.v1 import coordinator_pb2
from pilotfish.wire.coordinator import read_info

__all__ = [
    "AsyncClient",
    "Chat",
    "Chunk",
    "Client",
    "Completion",
    "CoordinatorInfo",
    "FinishReason",
    "Message",
    "Objective",
    "Options",
    "Prompt",
    "Round",
    "Rule",
    "Speculation",
    "Statistics",
    "Targets",
    "TokenKind",
]

Metadata: TypeAlias = tuple[tuple[str, str], ...]

DEFAULT_ADDRESS: Final = "localhost:50050"
_SERVICE: Final = "/pilotfish.v1.Coordinator/"
_KEEPALIVE_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer."""

    text: str
    ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]  # how each token came about
    started: Started
    finished: Finished
    rounds: tuple[Round, ...] = ()  # where `include_rounds` was set
    num_characters: tuple[int, ...] = ()  # of the text, that each token made certain

    @property
    def finish_reason(self) -> FinishReason:
        return self.finished.reason

    @property
    def num_prompt_tokens(self) -> int:
        return self.finished.num_prompt_tokens

    @property
    def num_output_tokens(self) -> int:
        return self.finished.num_output_tokens

    @property
    def statistics(self) -> Statistics:
        """How speculation went."""
        return self.finished.statistics

    @staticmethod
    def of(chunks: Iterable[Chunk]) -> Completion:
        """The answer that the chunks of one stream make.

        Raises:
            PilotfishError: the stream did not say how it began or how it ended.
        """
        chunks = tuple(chunks)
        started = next((chunk.started for chunk in chunks if chunk.started is not None), None)
        finished = next((chunk.finished for chunk in chunks if chunk.finished is not None), None)
        if started is None or finished is None:
            raise PilotfishError("the answer came to no end: is the coordinator of another version than this client?")
        return Completion(
            text="".join(chunk.text for chunk in chunks),
            ids=tuple(token for chunk in chunks for token in chunk.ids),
            kinds=tuple(kind for chunk in chunks for kind in chunk.kinds),
            started=started,
            finished=finished,
            rounds=tuple(entry for chunk in chunks for entry in chunk.rounds),
            num_characters=tuple(number for chunk in chunks for number in chunk.num_characters),
        )


class _Addresses:
    """Where the coordinators are, and which one is asked next."""

    def __init__(self, address: str | Sequence[str], attempts: int) -> None:
        self.all = (address,) if isinstance(address, str) else tuple(address)
        if not self.all:
            raise InvalidArgument.of("address", address, "name at least one coordinator, as host:port")
        self.attempts = attempts
        self.index = 0

    def advance(self) -> None:
        self.index = (self.index + 1) % len(self.all)


def _metadata(traceparent: str | None, tenant: str | None) -> Metadata:
    said = (("traceparent", traceparent), (TENANT_KEY, tenant))
    return tuple((key, value) for key, value in said if value is not None)


def _checked_tenant(tenant: str | None) -> str | None:
    if tenant is not None and not (tenant.isascii() and tenant.isprintable() and tenant.strip()):
        raise InvalidArgument.of("tenant", tenant, "a tenant's name is of printable ASCII; None is no tenant")
    return tenant


class Client:
    """Talks to one or several coordinators, blocking. May be shared between threads.

    Example:
        with Client("localhost:50050") as client:
            for chunk in client.generate("Once upon a time", max_tokens=50):
                print(chunk.text, end="")
    """

    def __init__(
        self, address: str | Sequence[str] = DEFAULT_ADDRESS, *, attempts: int = 3, tenant: str | None = None
    ) -> None:
        """Make a client; it connects when it is first used.

        Args:
            address: `host:port`, or several: the next one takes over where one is not there, in mid-answer too.
            attempts: how often each address is tried before `Unavailable` is raised.
            tenant: whose requests these are, where the connection itself does not say; None: nobody's.
        """
        self._addresses = _Addresses(address, attempts)
        self._tenant = _checked_tenant(tenant)
        self._channels = [
            grpc.insecure_channel(one, options=channel_options(_KEEPALIVE_S)) for one in self._addresses.all
        ]

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> Generator[Chunk, None, None]:
        """Stream an answer. Closing the iterator, or leaving a loop over it, cancels the request everywhere.

        Args:
            prompt: text, token ids, or the messages of a conversation.
            timeout_s: for the whole answer.
            traceparent: W3C trace context of the caller; the request's spans become a part of that trace.
            options: see `Options`.

        Raises:
            PilotfishError: whatever is wrong, as a class of the tree in `pilotfish.errors`.
        """
        request = make_request(prompt, **options)
        progress = Progress(request, len(self._channels), timeout_s, self._addresses.attempts)
        return self._stream(progress, _metadata(traceparent, self._tenant))

    def complete(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer; takes and raises what `generate` does."""
        return Completion.of(self.generate(prompt, timeout_s=timeout_s, traceparent=traceparent, **options))

    def info(self, *, timeout_s: float = 5.0) -> CoordinatorInfo:
        """What the coordinator serves and which peers it has."""
        ask = self._channels[self._addresses.index].unary_unary(
            _SERVICE + "Info",
            request_serializer=coordinator_pb2.CoordinatorInfoRequest.SerializeToString,
            response_deserializer=coordinator_pb2.CoordinatorInfoResponse.FromString,
        )
        try:
            return read_info(ask(coordinator_pb2.CoordinatorInfoRequest(), timeout=timeout_s))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    def close(self) -> None:
        """Close every connection; streams that run end with an error."""
        for channel in self._channels:
            channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _stream(self, progress: Progress, metadata: Metadata) -> Generator[Chunk, None, None]:
        while not progress.is_finished:
            call: Any = self._call(progress, metadata)
            try:
                for answer in call:
                    yield progress.take(answer)
                progress.end()
            except grpc.RpcError as error:
                pause_s = progress.pause_s(from_rpc_error(error))
                self._addresses.advance()
                time.sleep(pause_s)
            finally:
                call.cancel()

    def _call(self, progress: Progress, metadata: Metadata) -> Any:
        generate = self._channels[self._addresses.index].unary_stream(
            _SERVICE + "Generate",
            request_serializer=coordinator_pb2.GenerateRequest.SerializeToString,
            response_deserializer=coordinator_pb2.GenerateResponse.FromString,
        )
        return generate(progress.request(), timeout=progress.timeout_s(), metadata=metadata)


class AsyncClient:
    """Talks to one or several coordinators in an event loop. Use it in the loop that it was made in.

    Example:
        async with AsyncClient("localhost:50050") as client:
            async for chunk in client.generate("Once upon a time", max_tokens=50):
                print(chunk.text, end="")
    """

    def __init__(
        self, address: str | Sequence[str] = DEFAULT_ADDRESS, *, attempts: int = 3, tenant: str | None = None
    ) -> None:
        """Make a client; see `Client`."""
        self._addresses = _Addresses(address, attempts)
        self._tenant = _checked_tenant(tenant)
        self._channels = [
            grpc.aio.insecure_channel(one, options=channel_options(_KEEPALIVE_S)) for one in self._addresses.all
        ]

    def generate(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> AsyncGenerator[Chunk, None]:
        """Stream an answer; see `Client.generate`. `aclose()` or cancelling the task cancels the request."""
        request = make_request(prompt, **options)
        progress = Progress(request, len(self._channels), timeout_s, self._addresses.attempts)
        return self._stream(progress, _metadata(traceparent, self._tenant))

    async def complete(
        self,
        prompt: Prompt,
        *,
        timeout_s: float | None = None,
        traceparent: str | None = None,
        **options: Unpack[Options],
    ) -> Completion:
        """The whole answer; takes and raises what `generate` does."""
        answer = self.generate(prompt, timeout_s=timeout_s, traceparent=traceparent, **options)
        return Completion.of([chunk async for chunk in answer])

    async def info(self, *, timeout_s: float = 5.0) -> CoordinatorInfo:
        """What the coordinator serves and which peers it has."""
        ask: Any = self._channels[self._addresses.index].unary_unary(
            _SERVICE + "Info",
            request_serializer=coordinator_pb2.CoordinatorInfoRequest.SerializeToString,
            response_deserializer=coordinator_pb2.CoordinatorInfoResponse.FromString,
        )
        try:
            return read_info(await ask(coordinator_pb2.CoordinatorInfoRequest(), timeout=timeout_s))
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error

    async def close(self) -> None:
        """Close every connection; streams that run end with an error."""
        for channel in self._channels:
            await channel.close(None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _stream(self, progress: Progress, metadata: Metadata) -> AsyncGenerator[Chunk, None]:
        while not progress.is_finished:
            call: Any = self._call(progress, metadata)
            try:
                async for answer in call:
                    yield progress.take(answer)
                progress.end()
            except grpc.RpcError as error:
                pause_s = progress.pause_s(from_rpc_error(error))
                self._addresses.advance()
                await asyncio.sleep(pause_s)
            finally:
                call.cancel()

    def _call(self, progress: Progress, metadata: Metadata) -> Any:
        generate: Any = self._channels[self._addresses.index].unary_stream(
            _SERVICE + "Generate",
            request_serializer=coordinator_pb2.GenerateRequest.SerializeToString,
            response_deserializer=coordinator_pb2.GenerateResponse.FromString,
        )
        return generate(progress.request(), timeout=progress.timeout_s(), metadata=metadata)
