"""One peer: its stream, and which requests hear from it."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from google.rpc import code_pb2

from coordinator.outlook import Common
from pilotfish.errors import PilotfishError, Unavailable, VocabularyMismatch
from pilotfish.messages import DrafterLoad, DraftPart, ServiceInfo, SessionId, VerifierLoad
from pilotfish.peer import Dial, Pace, PeerStream, drafter_dial, verifier_dial
from pilotfish.telemetry import Metric, Telemetry
from pilotfish.wire import drafter as drafter_wire
from pilotfish.wire import verifier as verifier_wire
from pilotfish.wire.drafter import FromDrafter, ToDrafter
from pilotfish.wire.values import Limits, Received
from pilotfish.wire.verifier import FromVerifier, ToVerifier

logger = logging.getLogger(__name__)

ToPeer = TypeVar("ToPeer")
FromPeer = TypeVar("FromPeer")
Load = TypeVar("Load", bound=VerifierLoad | DrafterLoad)


class News(Enum):
    """What became of a peer's stream."""

    CUT = "cut"  # the stream broke; the sessions there may still be alive
    BACK = "back"  # a new stream to the same incarnation: the sessions there are alive
    LOST = "lost"  # it has restarted, or stays away: the sessions there are gone
    QUIET = "quiet"  # nothing was heard of anybody for long


class PeerNews(NamedTuple):
    """Tells a request what became of a peer it has a session at."""

    session: SessionId  # empty: of all its peers
    news: News


Event: TypeAlias = Received[FromVerifier | None] | Received[FromDrafter | None] | PeerNews


class Inbox:
    """What peers tell one request, put by their readers: nodes of drafts are passed on at once, the rest waits.

    Nodes are what there is most of, and what the verifier waits for: they do not wait for the request's task.
    """

    __slots__ = ("_alarm", "_events", "_forward", "_has_heard", "_quiet_s", "_waiter")

    def __init__(self, forward: Callable[[DraftPart], None], quiet_s: float) -> None:
        """Have nothing yet.

        Args:
            quiet_s: that is news as well: the reader waits, and for so long, or up to twice that, nothing came.
        """
        self._forward = forward
        self._quiet_s = quiet_s
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._alarm: asyncio.TimerHandle | None = None
        self._has_heard = False  # since the alarm was set

    def put(self, event: Any) -> None:
        """Take an event."""
        if isinstance(event, Received) and isinstance(event.value, DraftPart) and event.dropped is None:
            self._forward(event.value)
            return
        self._events.append(event)
        self._has_heard = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def get(self) -> Event:
        """The next event. For one reader."""
        while not self._events:
            loop = asyncio.get_running_loop()
            if self._alarm is None:
                self._set_alarm(loop)
            self._waiter = loop.create_future()
            await self._waiter
        return self._events.popleft()

    def close(self) -> None:
        """Nobody reads any more."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _set_alarm(self, loop: asyncio.AbstractEventLoop) -> None:
        """One alarm goes off now and then, instead of one for every event that is waited for."""
        self._has_heard = False
        self._alarm = loop.call_later(self._quiet_s, self._ring, loop)

    def _ring(self, loop: asyncio.AbstractEventLoop) -> None:
        is_waited_for = self._waiter is not None and not self._waiter.done()
        if is_waited_for and not self._has_heard:
            self.put(PeerNews(b"", News.QUIET))
        self._set_alarm(loop)


@dataclass(frozen=True, slots=True)
class Dialect(Generic[ToPeer, FromPeer, Load]):
    """How one kind of peer is spoken to."""

    role: str
    dial: Dial[Any, Any]
    write_items: Callable[[ToPeer], Sequence[Any]]
    read_answers: Callable[[Any, Limits, int], Sequence[Received[FromPeer | None]]]
    read_load: Callable[[Any], Load]
    no_load: Load


@dataclass(frozen=True, slots=True)
class Watch:
    """How closely peers are watched, and what is taken from them."""

    vocabulary_hash: str  # of the served model; a peer with another one is not used
    limits: Limits
    lost_after_s: float = 2.0  # a stream that is not back by then is lost
    pace: Pace = field(default_factory=Pace)
    telemetry: Telemetry = field(default_factory=Telemetry.off)
    caller: str = field(default_factory=lambda: secrets.token_hex(16))  # what this coordinator calls itself


class Peer(Generic[ToPeer, FromPeer, Load]):
    """One drafter or verifier: connected as long as that is possible, and told to every request that has a session."""

    def __init__(
        self,
        address: str,
        dialect: Dialect[ToPeer, FromPeer, Load],
        watch: Watch,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """Make a peer that is not dialled yet.

        Args:
            on_change: called whenever the stream opens or breaks.
        """
        self.address = address
        self.role = dialect.role
        self.incarnation = 0
        self.load: Load = dialect.no_load
        self.common: defaultdict[str, Common] = defaultdict(Common)  # of a drafter, by speculator
        self.num_dropped_by_cause: Counter[str] = Counter()  # answers that belong to no request here
        self._num_sent_bytes = 0  # told to telemetry, of the stream that is open
        self._dialect: Dialect[ToPeer, FromPeer, Load] = dialect
        self._watch = watch
        self._on_change = on_change
        self._mismatch: PilotfishError | None = None
        self._inboxes: dict[SessionId, Inbox] = {}
        self._farewell: asyncio.TimerHandle | None = None
        self._is_cut = True
        self._stream: PeerStream[Any, Any] = PeerStream(
            address,
            dialect.dial,
            on_up=self._up,
            on_answer=self._take,
            on_down=self._down,
            pace=watch.pace,
        )

    @property
    def info(self) -> ServiceInfo | None:
        """What it said of itself last; None: it was never reached."""
        return self._stream.info

    @property
    def is_up(self) -> bool:
        """Whether sessions may be opened: connected, of the served vocabulary, and it says that it takes work."""
        return self._stream.is_up and self._mismatch is None

    @property
    def is_fitting(self) -> bool:
        """Whether its vocabulary is the served one, as far as it was reached."""
        return self._mismatch is None

    @property
    def problem(self) -> str | None:
        """Why it is not up."""
        problem = self._mismatch or self._stream.problem
        return None if problem is None else problem.message

    @property
    def round_trip_us(self) -> int:
        return self._stream.round_trip_us

    @property
    def num_sessions(self) -> int:
        return len(self._inboxes)

    def start(self) -> None:
        """Connect, and stay connected."""
        self._stream.start()

    async def stop(self) -> None:
        """End the stream for good."""
        if self._farewell is not None:
            self._farewell.cancel()
        await self._stream.stop()

    def attach(self, session: SessionId, inbox: Inbox) -> None:
        """Tell this inbox what the peer answers to the session, and what becomes of the peer."""
        self._inboxes[session] = inbox
        self._watch.telemetry.add(Metric.SESSIONS, 1)

    def detach(self, session: SessionId) -> None:
        if self._inboxes.pop(session, None) is not None:
            self._watch.telemetry.add(Metric.SESSIONS, -1)

    def send(self, message: ToPeer) -> None:
        """Queue a message; without a stream it is lost, and the session hears of that by the news.

        Raises:
            Overloaded: the peer does not read.
        """
        stream = self._stream
        if stream.is_open:
            for item in self._dialect.write_items(message):
                stream.send(item)

    def doubt(self, incarnation: int) -> None:
        """Ask the peer anew who it is: it refused an item, as the given incarnation."""
        if incarnation != self.incarnation:
            self._stream.redial()

    # -- the stream tells --------------------------------------------------------------------------------------------

    def _up(self, info: ServiceInfo) -> None:
        """A stream is open: the sessions of the same incarnation go on, those of an earlier one are gone."""
        self._mismatch = self._compare(info)
        is_same, self.incarnation = info.incarnation == self.incarnation, info.incarnation
        self._is_cut = False
        self._num_sent_bytes = 0
        if self._farewell is not None:
            self._farewell.cancel()
            self._farewell = None
        if self._mismatch is None:
            logger.info("%s %s is up", self.role, self.address)
        else:
            logger.error("%s", self._mismatch.message)
        self._tell(News.BACK if is_same else News.LOST)
        self._on_change()

    def _compare(self, info: ServiceInfo) -> VocabularyMismatch | None:
        served = self._watch.vocabulary_hash
        if info.vocabulary_hash == served or (info.vocabulary_hash is None and self.role == "drafter"):
            return None
        return VocabularyMismatch(
            f"{self.role} {self.address} has the model {info.model!r}, whose vocabulary is not the served one "
            f"(hash {info.vocabulary_hash}, not {served}): it is not used; give it a model with the same tokenizer"
        )

    def _take(self, frame: Any) -> None:
        """Hand every answer of a frame to its request."""
        self.load = self._dialect.read_load(frame.load)
        inboxes = self._inboxes
        for answer in self._dialect.read_answers(frame, self._watch.limits, self.incarnation):
            value: Any = answer.value
            inbox = None if value is None else inboxes.get(value.session)
            if inbox is not None:
                inbox.put(answer)
            else:
                cause = answer.dropped or "stale"
                self.num_dropped_by_cause[cause] += 1
                self._watch.telemetry.add(Metric.ITEMS_DROPPED, 1, cause)
        self._count_bytes(frame.ByteSize())

    def _count_bytes(self, num_received: int) -> None:
        telemetry, num_sent = self._watch.telemetry, self._stream.num_sent_bytes
        telemetry.add(Metric.WIRE_BYTES, num_received, self.role, "received")
        telemetry.add(Metric.WIRE_BYTES, max(num_sent - self._num_sent_bytes, 0), self.role, "sent")
        self._num_sent_bytes = num_sent

    def _down(self, error: PilotfishError) -> None:
        """The stream is gone, or could not be opened."""
        if self._is_cut:
            return
        self._is_cut = True
        logger.warning("%s %s is down: %s", self.role, self.address, error.message)
        self._tell(News.CUT)
        loop = asyncio.get_running_loop()
        self._farewell = loop.call_later(self._watch.lost_after_s, self._tell, News.LOST)
        self._on_change()

    def _tell(self, news: News) -> None:
        for session, inbox in list(self._inboxes.items()):
            inbox.put(PeerNews(session, news))
        if news is News.LOST:
            self._watch.telemetry.add(Metric.SESSIONS, -len(self._inboxes))
            self._inboxes.clear()


VerifierPeer: TypeAlias = Peer[ToVerifier, FromVerifier, VerifierLoad]
DrafterPeer: TypeAlias = Peer[ToDrafter, FromDrafter, DrafterLoad]


def verifier_peer(address: str, watch: Watch, on_change: Callable[[], None] = lambda: None) -> VerifierPeer:
    """A verifier, not dialled yet."""
    dialect: Dialect[ToVerifier, FromVerifier, VerifierLoad] = Dialect(
        role="verifier",
        dial=verifier_dial(watch.caller),
        write_items=verifier_wire.write_items,
        read_answers=verifier_wire.read_answers,
        read_load=verifier_wire.read_load,
        no_load=VerifierLoad(),
    )
    return Peer(address, dialect, watch, on_change)


def drafter_peer(address: str, watch: Watch, on_change: Callable[[], None] = lambda: None) -> DrafterPeer:
    """A drafter, not dialled yet."""
    dialect: Dialect[ToDrafter, FromDrafter, DrafterLoad] = Dialect(
        role="drafter",
        dial=drafter_dial(),
        write_items=drafter_wire.write_items,
        read_answers=drafter_wire.read_answers,
        read_load=drafter_wire.read_load,
        no_load=DrafterLoad(),
    )
    return Peer(address, dialect, watch, on_change)


def no_verifier(verifiers: Sequence[VerifierPeer]) -> Unavailable:
    """Why a request cannot be served."""
    if not verifiers:
        return Unavailable("no verifier is known; set verifiers in the coordinator's settings", retry_after_s=5.0)
    problems = "; ".join(f"{peer.address}: {peer.problem or 'busy'}" for peer in verifiers)
    return Unavailable(f"no verifier can be reached ({problems}); try again", retry_after_s=1.0)


def code_name(code: int) -> str:
    """Name of a google.rpc.Code; UNKNOWN for one that is none."""
    try:
        name: str = code_pb2.Code.Name(code)
    except ValueError:
        return "UNKNOWN"
    return name
