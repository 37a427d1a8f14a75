"""Peers that follow a script: real gRPC services that can be killed, cut off, frozen, and made to lie."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from pilotfish import prefix
from pilotfish.draft import Draft as Tree
from pilotfish.errors import PilotfishError, StaleIncarnation, StalePosition, UnknownSession
from pilotfish.messages import (
    Close,
    DraftEnd,
    DrafterLoad,
    DraftPart,
    DraftRequest,
    FinishReason,
    Open,
    Opened,
    Refusal,
    ServiceInfo,
    TokenKind,
    Verdict,
    VerifierLoad,
    Work,
)
from pilotfish.rpc import FrameQueue, server_options
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from pilotfish.wire import drafter as drafter_wire
from pilotfish.wire import verifier as verifier_wire
from pilotfish.wire.values import Limits, refuse, write_info

Law = Callable[[Sequence[int], int], int]
"""The next token after some tokens, of which so many are the prompt."""

_incarnations = itertools.count(1)


def scripted(script: Sequence[int]) -> Law:
    """A law that continues every prompt with a script, over and over."""
    return lambda tokens, num_prompt: script[(len(tokens) - num_prompt) % len(script)]


def chaotic(num_ids: int) -> Law:
    """A law under which every token depends on the two before it."""
    return lambda tokens, num_prompt: prefix.extend(7, tokens[-2:]) % num_ids


class FakePeer:
    """A server on a port of its own, which keeps the port through restarts."""

    name = ""  # of the service, for health

    def __init__(self, vocabulary_hash: str | None, **info: Any) -> None:
        self.vocabulary_hash = vocabulary_hash
        self.info = info
        self.port = 0
        self.incarnation = 0
        self.answers: set[FrameQueue[Any]] = set()
        self.server: grpc.aio.Server | None = None
        self.health = HealthServicer()
        self.num_streams = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def service_info(self) -> ServiceInfo:
        values: dict[str, Any] = {"model": "fake", "vocabulary_size": 0, "context_length": 4096} | self.info
        return ServiceInfo(
            role="fake",
            version="0",
            incarnation=self.incarnation,
            vocabulary_hash=self.vocabulary_hash,
            **values,
        )

    def register(self, server: grpc.aio.Server) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Listen, as a new incarnation without sessions."""
        self.incarnation = next(_incarnations)
        server = grpc.aio.server(options=server_options())
        self.register(server)
        self.health = HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, server)
        self.port = server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self.set_ready(True)
        await server.start()
        self.server = server

    async def set_ready(self, is_ready: bool) -> None:
        status = health_pb2.HealthCheckResponse
        await self.health.set(self.name, status.SERVING if is_ready else status.NOT_SERVING)

    async def kill(self) -> None:
        """End the process, as it were: streams break, sessions are gone."""
        self.cut()
        self.forget()
        server, self.server = self.server, None
        if server is not None:
            await server.stop(None)

    def forget(self) -> None:
        raise NotImplementedError

    def cut(self) -> None:
        """Break the streams; sessions stay."""
        for queue in self.answers:
            queue.close()


class FakeVerifier(FakePeer, verifier_pb2_grpc.VerifierServicer):
    """A verifier whose target follows a law. It checks drafts by `match` and keeps positions as the contract says."""

    name = "pilotfish.v1.Verifier"

    def __init__(self, law: Law, vocabulary_hash: str, **info: Any) -> None:
        super().__init__(vocabulary_hash, **info)
        self.law = law
        self.sessions: dict[bytes, FakeSession] = {}
        self.opens: list[Open] = []
        self.works: list[Work] = []
        self.counts: Counter[str] = Counter()
        self.refuse_opens: PilotfishError | None = None
        self.mangle: Callable[[list[Any]], list[Any]] = lambda answers: answers  # what is sent for what was meant
        self.is_frozen = False  # makes no pass
        self.pass_s = 0.0
        self.pass_us = 0  # that it tells: how long passes are
        self.patience = 1  # times longer than it is told
        self.is_lockstep = False  # commits once for every item, however much is granted
        self.puts_off: Callable[[], bool] = lambda: False  # whether a draft that could ride in a pass does not
        self._is_scheduled = False

    def register(self, server: grpc.aio.Server) -> None:
        verifier_pb2_grpc.add_VerifierServicer_to_server(self, server)

    def forget(self) -> None:
        self.sessions.clear()

    async def Info(self, request: Any, context: Any) -> verifier_pb2.VerifierInfoResponse:  # noqa: N802 - the name in the contract
        return verifier_pb2.VerifierInfoResponse(peer=write_info(self.service_info()))

    async def Verify(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the name in the contract
        inbox = verifier_wire.VerifierInbox(Limits(), self.incarnation)
        answers: FrameQueue[Any] = FrameQueue()
        self.answers.add(answers)
        self.num_streams += 1
        reader = asyncio.create_task(self._read(inbox, request_iterator, answers))
        try:
            async for items in answers.frames():
                load = VerifierLoad(pass_us=self.pass_us, num_sessions=len(self.sessions))
                yield verifier_wire.write_frame(self.mangle(items), load)
        finally:
            self.answers.discard(answers)
            reader.cancel()

    async def _read(self, inbox: verifier_wire.VerifierInbox, frames: AsyncIterator[Any], answers: Any) -> None:
        try:
            async for frame in frames:
                for value, dropped in inbox.read(frame):
                    if dropped:
                        self.counts[dropped] += 1
                    self.take(value, answers)
        finally:
            answers.close()

    def take(self, item: Open | Work | Close | Refusal, answers: FrameQueue[Any]) -> None:
        def say(answer: Opened | Verdict | Refusal) -> None:
            answers.put(verifier_wire.write_answer(answer, self.incarnation))

        match item:
            case Refusal():
                say(item)
            case Close():
                self.sessions.pop(item.session, None)
            case Open() if self.refuse_opens is not None:
                say(refuse(self.refuse_opens, item.session, self.incarnation))
            case Open() if item.incarnation != self.incarnation:
                say(refuse(StaleIncarnation("restarted"), item.session, self.incarnation))
            case Open():
                self.opens.append(item)
                self.sessions[item.session] = FakeSession(item, self, say)
                say(Opened(item.session, len(item.tokens), 0))
            case Work():
                self.works.append(item)
                session = self.sessions.get(item.session)
                if session is None:
                    say(refuse(UnknownSession("never opened here"), item.session, self.incarnation))
                else:
                    has_moved, session.say = session.answers is not answers, say
                    session.answers = answers
                    session.take(item, has_moved)
        self.wake()

    def wake(self) -> None:
        """Make passes from now on, one in every turn of the event loop, while any session has something to commit."""
        if not self._is_scheduled and not self.is_frozen:
            self._is_scheduled = True
            asyncio.get_running_loop().call_later(self.pass_s, self.make_pass)

    def make_pass(self) -> None:
        """Commit what one pass commits, for every session."""
        self._is_scheduled = False
        committed = [session.step() for session in list(self.sessions.values())]
        if any(committed):
            self.wake()


class FakeSession:
    """One sequence at a fake verifier."""

    def __init__(self, opened: Open, owner: FakeVerifier, say: Callable[[Any], None]) -> None:
        self.opened = opened
        self.owner = owner
        self.say = say
        self.answers: Any = None
        self.tokens = list(opened.tokens)
        self.free_until = len(self.tokens) + opened.grant
        self.draft: Work | None = None
        self.nodes = Tree.EMPTY
        self.ahead: list[Work] = []
        self.over: Work | None = None
        self.last: Verdict | None = None
        self.is_finished = False
        self.num_works = 0
        self.num_verdicts = 0
        self.hold(opened.patience_us)

    def hold(self, patience_us: int) -> None:
        patience_us *= self.owner.patience
        loop = asyncio.get_running_loop()
        self.held_until = loop.time() + patience_us / 1e6
        if patience_us:
            loop.call_later(patience_us / 1e6 + 1e-3, self.owner.wake)

    @property
    def is_held(self) -> bool:
        return asyncio.get_running_loop().time() < self.held_until

    def take(self, work: Work, has_moved: bool) -> None:
        length = len(self.tokens)
        self.num_works += 1
        if work.incarnation != self.owner.incarnation:
            return self.refuse(StaleIncarnation("restarted"))
        if work.position > length or prefix.extend(0, self.tokens[: work.position]) != work.prefix_hash:
            return self.refuse(StalePosition(f"go on at {length}", position=length))
        if has_moved and work.position < length:
            self.say(self.verdict(work.position, self.tokens[work.position :], None))
        if work.is_complete and not work.draft.tokens and not work.first_node:
            self.free_until = work.position + work.grant
            return self.hold(work.patience_us)
        if work.assumes:
            assert work.is_complete
            assert not work.first_node
            self.ahead.append(work)
            return self.sort()
        if self.draft is not None and self.draft.round == work.round:
            if work.first_node != len(self.nodes):
                return self.refuse(StalePosition("gap", position=length))
            self.nodes = self.nodes.append(work.draft)
        elif work.first_node:
            return self.refuse(StalePosition("gap", position=length))
        else:
            self.nodes = work.draft
        self.draft = work
        return None

    def base(self, work: Work) -> int:
        """Where the draft of an item begins."""
        return work.position + len(work.assumes)

    def sort(self) -> None:
        """Take up what lay ahead and is reached now; drop what assumes other tokens."""
        for work in list(self.ahead):
            committed = tuple(self.tokens[work.position : self.base(work)])
            if committed != work.assumes[: len(committed)]:
                self.owner.counts["assumption"] += 1
                self.ahead.remove(work)
            elif committed == work.assumes:
                self.ahead.remove(work)
                self.draft, self.nodes = work, work.draft

    def refuse(self, error: PilotfishError) -> None:
        self.say(refuse(error, self.opened.session, self.owner.incarnation, error.position))

    def step(self) -> bool:
        """Commit what one pass commits; whether anything was."""
        if self.is_finished or (self.owner.is_lockstep and self.num_works <= self.num_verdicts):
            return False
        work, reused = self.draft, None
        if work is not None and (work.is_complete or not self.is_held):
            reused = self.nodes.after(self.tokens[self.base(work) :])
            if work.is_complete and (reused is None or not reused[0].tokens):
                self.draft, self.over = None, work
                reused = None
        may_run_free = not self.is_held and len(self.tokens) < self.free_until
        rides = not may_run_free or not self.owner.puts_off()
        if work is not None and reused is not None and reused[0].tokens and rides:
            self.check(work, *reused)
            return True
        if may_run_free:
            self.commit([self.next()], self.over)
            return True
        if self.over is not None:
            self.over = None
            self.refuse(StalePosition("too late", position=len(self.tokens)))
        return False

    def next(self) -> int:
        return self.owner.law(self.tokens, len(self.opened.prompt))

    def check(self, work: Work, draft: Tree, num_reused: int) -> None:
        node, path, tokens = -1, [], list(self.tokens)
        while True:
            token = self.owner.law(tokens, len(self.opened.prompt))
            tokens.append(token)
            child = draft.child(node, token)
            path.append(token)
            if child is None:
                break
            node = child
        self.draft = None
        self.commit(path, work, draft, len(path) - 1, num_reused)

    def commit(
        self, tokens: list[int], work: Work | None, draft: Tree = Tree.EMPTY, num_accepted: int = 0, num_reused: int = 0
    ) -> None:
        position = len(self.tokens)
        finish = None
        limit = len(self.opened.prompt) + self.opened.max_tokens
        tokens = tokens[: limit - position]
        for index, token in enumerate(tokens):
            if token in self.opened.end_ids:
                tokens, finish = tokens[: index + 1], FinishReason.STOP
                break
        self.tokens += tokens
        if not draft.tokens and self.draft is not None and self.draft.is_complete:
            left = self.nodes.after(self.tokens[self.base(self.draft) :])
            if left is None or not left[0].tokens:  # the grant went past it
                work, self.draft = self.draft, None
        self.sort()
        if finish is None and len(self.tokens) >= limit:
            finish = FinishReason.LENGTH
        self.is_finished = finish is not None
        verdict = self.verdict(position, tokens, work, draft, num_accepted, num_reused)
        self.last = replace(verdict, finish=finish)
        self.over = None
        if work is not None:
            self.free_until = work.position + work.grant
            self.hold(work.patience_us)
        self.num_verdicts += 1
        self.say(self.last)

    def verdict(
        self,
        position: int,
        tokens: Sequence[int],
        work: Work | None,
        draft: Tree = Tree.EMPTY,
        num_accepted: int = 0,
        num_reused: int = 0,
    ) -> Verdict:
        kinds = [TokenKind.PLAIN] * len(tokens)
        if draft.tokens:
            last = TokenKind.BONUS if num_accepted == draft.num_levels else TokenKind.CORRECTION
            kinds = ([TokenKind.ACCEPTED] * num_accepted + [last])[: len(tokens)]
        return Verdict(
            session=self.opened.session,
            position=position,
            tokens=tuple(tokens),
            kinds=tuple(kinds),
            round=None if work is None else work.round,
            num_drafted=len(draft),
            num_accepted=num_accepted,
            num_reused=num_reused,
            finish=FinishReason.LENGTH if self.is_finished else None,
            pass_us=1,
            pass_positions=1 + len(draft),
        )


Proposer = Callable[[Sequence[int], int, int], Sequence[int]]
"""What a drafter proposes: after some tokens, of which so many are the prompt, at most γ."""


def right_for(num_right: int, law: Law, num_ids: int) -> Proposer:
    """A drafter that is right for so many tokens and then wrong."""

    def propose(tokens: Sequence[int], num_prompt: int, gamma: int) -> list[int]:
        path = list(tokens)
        for depth in range(gamma):
            token = law(path, num_prompt)
            path.append(token if depth < num_right else (token + 1) % num_ids)
        return path[len(tokens) :]

    return propose


@dataclass
class FakeDrafterSession:
    """One sequence at a fake drafter."""

    opened: Open
    tokens: list[int]
    say: Callable[[Any], None] = field(repr=False)


class FakeDrafter(FakePeer, drafter_pb2_grpc.DrafterServicer):
    """A drafter that proposes what it is told to, in one part or node by node."""

    name = "pilotfish.v1.Drafter"

    def __init__(self, propose: Proposer, vocabulary_hash: str | None, **info: Any) -> None:
        super().__init__(vocabulary_hash, **({"speculators": ("model",)} | info))
        self.propose = propose
        self.sessions: dict[bytes, FakeDrafterSession] = {}
        self.opens: list[Open] = []
        self.requests: list[DraftRequest] = []
        self.is_by_node = False
        self.confidence: float | None = None  # in every node; None: it does not say
        self.delay_s = 0.0
        self.is_frozen = False  # answers later, when it is thawed
        self.mangle: Callable[[list[Any]], list[Any]] = lambda answers: answers
        self.asked = asyncio.Event()
        self._waiting: list[DraftRequest] = []

    def register(self, server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServicer_to_server(self, server)

    def forget(self) -> None:
        self.sessions.clear()

    def thaw(self) -> None:
        self.is_frozen = False
        waiting, self._waiting = self._waiting, []
        for request in waiting:
            self.answer(request)

    async def Info(self, request: Any, context: Any) -> drafter_pb2.DrafterInfoResponse:  # noqa: N802 - the name in the contract
        return drafter_pb2.DrafterInfoResponse(peer=write_info(self.service_info()))

    async def Draft(self, request_iterator: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:  # noqa: N802 - the name in the contract
        inbox = drafter_wire.DrafterInbox(Limits(), self.incarnation)
        answers: FrameQueue[Any] = FrameQueue()
        self.answers.add(answers)
        self.num_streams += 1
        reader = asyncio.create_task(self._read(inbox, request_iterator, answers))
        try:
            async for items in answers.frames():
                yield drafter_wire.write_frame(self.mangle(items), DrafterLoad(num_sessions=len(self.sessions)))
        finally:
            self.answers.discard(answers)
            reader.cancel()

    async def _read(self, inbox: drafter_wire.DrafterInbox, frames: AsyncIterator[Any], answers: Any) -> None:
        def say(answer: Opened | DraftPart | Refusal) -> None:
            answers.put(drafter_wire.write_answer(answer, self.incarnation))

        try:
            async for frame in frames:
                for item in inbox.read(frame):
                    self.take(item, say)
        finally:
            answers.close()

    def take(self, item: Open | DraftRequest | Close | Refusal, say: Callable[[Any], None]) -> None:
        match item:
            case Refusal():
                say(item)
            case Close():
                self.sessions.pop(item.session, None)
            case Open() if item.incarnation != self.incarnation:
                say(refuse(StaleIncarnation("restarted"), item.session, self.incarnation))
            case Open():
                self.opens.append(item)
                self.sessions[item.session] = FakeDrafterSession(item, list(item.tokens), say)
                say(Opened(item.session, len(item.tokens)))
            case DraftRequest():
                self.requests.append(item)
                self.asked.set()
                if self.is_frozen:
                    self._waiting.append(item)
                elif item.session not in self.sessions:
                    say(refuse(UnknownSession("never opened here"), item.session, self.incarnation))
                else:
                    self.answer(item)

    def answer(self, request: DraftRequest) -> None:
        session = self.sessions.get(request.session)
        if session is None:
            return
        start = request.position - len(request.tokens)
        if not start <= len(session.tokens) <= request.position:
            error = StalePosition("a gap", position=len(session.tokens))
            session.say(refuse(error, request.session, self.incarnation, len(session.tokens)))
            return
        session.tokens = session.tokens[:start] + list(request.tokens)
        assert prefix.extend(0, session.tokens) == request.prefix_hash, "the coordinator told other tokens than it has"
        tokens = self.propose(session.tokens, len(session.opened.prompt), request.gamma)
        for part in self.parts(request, Tree.chain(tuple(tokens))):
            if self.delay_s:
                asyncio.get_running_loop().call_later(self.delay_s, session.say, part)
            else:
                session.say(part)

    def parts(self, request: DraftRequest, draft: Tree) -> list[DraftPart]:
        end = DraftEnd.GAMMA if len(draft) else DraftEnd.NO_MATCH
        told = () if self.confidence is None else (self.confidence,) * len(draft)
        part = DraftPart(request.session, request.position, request.round, 0, draft, True, end, confidences=told)
        if not self.is_by_node or not len(draft):
            return [part]
        return [
            replace(
                part,
                first_node=first,
                draft=node,
                is_complete=first == len(draft) - 1,
                end=None,
                confidences=told[first : first + 1],
            )
            for first, node in draft.parts(1)
        ]


async def until(claim: Callable[[], bool]) -> None:
    """Let the event loop run until something holds; the test's own time limit is the only one."""
    while not claim():  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0.001)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
