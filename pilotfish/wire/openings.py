"""Openings on the wire: a session's start, and its tokens in chunks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pilotfish.errors import InvalidArgument, Overloaded, PromptTooLong, UnknownSession
from pilotfish.messages import Open, SessionId
from pilotfish.v1 import peer_pb2
from pilotfish.wire.sampling import read_rule, read_sampling, write_rule, write_sampling
from pilotfish.wire.values import MAX_CHUNK_TOKENS, Limits, microseconds, read_session, read_tokens, read_trace


def write_start(opening: Open) -> peer_pb2.SessionStart:
    """What both peers need to know of a session; its tokens follow in chunks."""
    return peer_pb2.SessionStart(
        num_prompt_tokens=len(opening.prompt),
        num_output_tokens=len(opening.output_so_far),
        sampling=write_sampling(opening.sampling),
        seed=opening.seed,
        rule=write_rule(opening.rule),
        vocabulary_hash=opening.vocabulary_hash,
        end_ids=sorted(opening.end_ids),
        max_tokens=opening.max_tokens,
        lease_ms=max(1, microseconds(opening.lease_s * 1e3)),
        tenant=opening.tenant,
    )


def write_chunks(opening: Open) -> Iterator[peer_pb2.TokenChunk]:
    """The tokens of a session, in pieces that leave room in a frame."""
    tokens = opening.tokens
    for offset in range(0, len(tokens), MAX_CHUNK_TOKENS):
        yield peer_pb2.TokenChunk(offset=offset, tokens=tokens[offset : offset + MAX_CHUNK_TOKENS])


def read_start(head: peer_pb2.Header, start: peer_pb2.SessionStart, limits: Limits) -> tuple[Open, int, int]:
    """A session without its tokens, the number of tokens of its prompt, and of its output so far.

    Raises:
        InvalidArgument: a value that no session can have.
    """
    num_prompt, num_output = start.num_prompt_tokens, start.num_output_tokens
    if num_prompt < 1:
        raise InvalidArgument.of("num_prompt_tokens", num_prompt, "a prompt has at least one token")
    if num_prompt + num_output > limits.max_sequence_tokens:
        raise PromptTooLong.of(
            "num_prompt_tokens", num_prompt + num_output, f"at most {limits.max_sequence_tokens} tokens fit here"
        )
    if start.max_tokens <= num_output:
        raise InvalidArgument.of("max_tokens", start.max_tokens, f"must be over the {num_output} tokens there are")
    if start.lease_ms < 1:
        raise InvalidArgument.of("lease_ms", start.lease_ms, "must be at least 1")
    rule = read_rule(start.rule)
    if rule is None:
        raise InvalidArgument.of("rule", start.rule, "a session needs one of the rules that this version knows")
    opening = Open(
        session=read_session(head),
        incarnation=head.incarnation,
        vocabulary_hash=start.vocabulary_hash,
        prompt=(),
        output_so_far=(),
        sampling=read_sampling(start.sampling),
        seed=start.seed,
        rule=rule,
        end_ids=frozenset(read_tokens("end_ids", start.end_ids, limits)),
        max_tokens=start.max_tokens,
        lease_s=start.lease_ms / 1e3,
        tenant=start.tenant,
        trace=read_trace(head),
    )
    return opening, num_prompt, num_output


class _Opening:
    """A session whose tokens are still arriving."""

    def __init__(self, opening: Open, num_prompt: int, num_output: int) -> None:
        self.opening = opening
        self.num_prompt = num_prompt
        self.num_tokens = num_prompt + num_output
        self.tokens: list[int] = []


class Openings:
    """The sessions of one stream whose tokens are still arriving, in bounded memory."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._pending: dict[SessionId, _Opening] = {}
        self._num_tokens = 0  # announced, of all that are pending

    def __len__(self) -> int:
        return len(self._pending)

    def start(self, opening: Open, num_prompt: int, num_output: int) -> None:
        """Expect the tokens of a session.

        Raises:
            Overloaded: too many sessions or tokens are pending already.
        """
        self.drop(opening.session)
        limits = self._limits
        num_tokens = self._num_tokens + num_prompt + num_output
        if len(self._pending) >= limits.max_pending_sessions or num_tokens > limits.max_pending_tokens:
            raise Overloaded(
                f"{len(self._pending)} sessions wait for {self._num_tokens} tokens: try again when they are open",
                retry_after_s=1.0,
            )
        self._pending[opening.session] = _Opening(opening, num_prompt, num_output)
        self._num_tokens = num_tokens

    def add(self, session: SessionId, chunk: peer_pb2.TokenChunk) -> Open | None:
        """Take the next tokens of a session; the whole opening once they are all there.

        Raises:
            UnknownSession: it was not started on this stream.
            InvalidArgument: a gap, an overlap, or more tokens than were announced. The opening is dropped.
        """
        pending = self._pending.get(session)
        if pending is None:
            raise UnknownSession("a chunk of a session that was not started on this stream: open it first")
        try:
            tokens = read_tokens("chunk.tokens", chunk.tokens, self._limits)
            if chunk.offset != len(pending.tokens):
                raise InvalidArgument.of("chunk.offset", chunk.offset, f"the next token is {len(pending.tokens)}")
            if not tokens or chunk.offset + len(tokens) > pending.num_tokens:
                raise InvalidArgument.of("chunk.tokens", len(tokens), f"of {pending.num_tokens} announced tokens")
        except InvalidArgument:
            self.drop(session)
            raise
        pending.tokens += tokens
        if len(pending.tokens) < pending.num_tokens:
            return None
        self.drop(session)
        prompt, output = pending.tokens[: pending.num_prompt], pending.tokens[pending.num_prompt :]
        return replace(pending.opening, prompt=tuple(prompt), output_so_far=tuple(output))

    def drop(self, session: SessionId) -> None:
        """Forget a session whose tokens have not all come; nothing where there is none."""
        pending = self._pending.pop(session, None)
        if pending is not None:
            self._num_tokens -= pending.num_tokens
