"""How far a request of the client has come, and how it goes on after its stream broke."""

from __future__ import annotations

import random
import time
from dataclasses import replace

from pilotfish.errors import DeadlineExceeded, PilotfishError, Unavailable
from pilotfish.messages import Chunk, Request
from pilotfish.v1 import coordinator_pb2
from pilotfish.wire.coordinator import read_chunk, write_request


class Progress:
    """How far one request has come, over however many streams; decides what a broken one means.

    A stream that breaks as unavailable is taken up at the next address with what has been received: committed tokens
    are final, so nothing is missing and nothing repeated. Without progress every address is tried `attempts` times.
    """

    def __init__(self, request: Request, num_addresses: int, timeout_s: float | None, attempts: int) -> None:
        self._request = request
        self._ids: list[int] = list(request.output_so_far)
        self._end = None if timeout_s is None else time.monotonic() + timeout_s
        self._num_addresses = num_addresses
        self._max_failures = num_addresses * attempts
        self._failures = 0  # in a row
        self._has_started = False
        self.is_finished = False

    def request(self) -> coordinator_pb2.GenerateRequest:
        """What is left to ask for."""
        return write_request(replace(self._request, output_so_far=tuple(self._ids)))

    def timeout_s(self) -> float | None:
        """What is left of the time.

        Raises:
            DeadlineExceeded: nothing.
        """
        if self._end is None:
            return None
        left_s = self._end - time.monotonic()
        if left_s <= 0:
            raise DeadlineExceeded(f"the time of the request was over after {len(self._ids)} tokens")
        return left_s

    def take(self, proto: coordinator_pb2.GenerateResponse) -> Chunk:
        """The next chunk; `started` only once, however often the request was started."""
        chunk = read_chunk(proto)
        self._failures = 0
        self._ids.extend(chunk.ids)
        self.is_finished = chunk.finished is not None
        if chunk.started is not None and self._has_started:
            chunk = replace(chunk, started=None)
        self._has_started = True
        return chunk

    def end(self) -> None:
        """The stream came to its end.

        Raises:
            PilotfishError: without having said so.
        """
        if not self.is_finished:
            raise PilotfishError("the answer came to no end: is the coordinator of another version than this client?")

    def pause_s(self, error: PilotfishError) -> float:
        """How long to wait before the next address is asked; 0 where it has not failed yet.

        Raises:
            PilotfishError: there is no point in asking again.
        """
        if not isinstance(error, Unavailable):
            raise error
        self._failures += 1
        if self._failures >= self._max_failures:
            raise error
        rounds = self._failures // self._num_addresses
        return 0.0 if rounds == 0 else min(0.1 * 2 ** (rounds - 1), 2.0) * random.uniform(0.5, 1.0)
