"""The session of a request at one peer: what it was told, and what it is to be told next."""

from __future__ import annotations

import secrets
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from coordinator.peers import DrafterPeer, Inbox, VerifierPeer
from coordinator.record import RoundUnderway
from pilotfish.confidence import Calibration
from pilotfish.draft import Draft
from pilotfish.errors import Overloaded
from pilotfish.messages import Close, DraftPart, DraftRequest, Open, SideLines, TraceContext, Work
from pilotfish.prefix import PrefixHashes
from pilotfish.price import Profile, differ
from pilotfish.wire.values import MAX_CHUNK_TOKENS, SESSION_ID_BYTES

UNLIMITED: Final = 1 << 40  # tokens; the context of a drafter without one
_MAX_REQUESTS: Final = 8  # on their way together that one line answers


class Committed:
    """The tokens of a request that can no longer change."""

    __slots__ = ("hashes", "num_prompt", "tokens")

    def __init__(self, prompt: Sequence[int], output_so_far: Sequence[int] = ()) -> None:
        self.num_prompt = len(prompt)
        self.tokens = [*prompt, *output_so_far]
        self.hashes = PrefixHashes(self.tokens)

    @property
    def prefix_hash(self) -> int:
        return self.hashes.last

    @property
    def position(self) -> int:
        return len(self.tokens)

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def prompt(self) -> tuple[int, ...]:
        return tuple(self.tokens[: self.num_prompt])

    @property
    def output(self) -> tuple[int, ...]:
        return tuple(self.tokens[self.num_prompt :])

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens
        self.hashes.extend(tokens)


@dataclass(frozen=True, slots=True)
class Tempo:
    """How long the services wait for one another, and how far a verifier may go alone."""

    grant: int  # tokens a verifier may commit without hearing again, beyond those of a round's draft
    patience_us: int  # how long a speculating session is held for a draft while it is not known how long they take
    most_patience_us: int  # how long it is held for twice of what they take
    deadline_us: int  # how long a drafter may draw
    silent_after_s: float = 2.0  # a drafter that has not answered by then is given up, for another or none

    @property
    def quiet_s(self) -> float:
        """Without a verdict for so long, a verifier is told to go on: longer than any session is held."""
        return 2.0 * max(self.silent_after_s, self.most_patience_us / 1e6)


class VerifierSession:
    """The session at a verifier.

    It is *held* after a verdict whose item had patience, until the next item comes or the patience is over, and runs
    *free* after an item without. Its grant is absolute: it may commit up to `granted_until`.
    """

    __slots__ = (
        "_committed", "_profile", "_tempo", "granted_until", "id", "incarnation", "is_held", "is_open", "outlook",
        "peer",
    )  # fmt: skip

    def __init__(self, peer: VerifierPeer, committed: Committed, tempo: Tempo) -> None:
        self.peer = peer
        self.id = secrets.token_bytes(SESSION_ID_BYTES)
        self.incarnation = peer.incarnation
        self._committed = committed
        self._tempo = tempo
        self.is_open = False
        self.is_held = False
        self.granted_until = 0
        self.outlook: Profile | None = None  # what drafting is worth here: told with the next item, where it has moved
        self._profile: Profile | None = None  # as it was told last

    @property
    def max_nodes(self) -> int:
        """Most nodes of a draft that this verifier checks."""
        info = self.peer.info
        return info.max_nodes if info is not None and info.max_nodes else UNLIMITED

    def open(self, inbox: Inbox, template: Open, grant: int, patience_us: int, trace: TraceContext | None) -> None:
        """Open it with all that is committed.

        Args:
            inbox: where its answers go.
            template: the opening, but for what belongs to this session.
            grant: tokens that it may commit without hearing again.
            patience_us: how long it is held for the draft that is on its way; 0: it is not.
            trace: of the request.
        """
        self.peer.attach(self.id, inbox)
        self.is_open = True
        self.is_held = patience_us > 0
        self.granted_until = self._committed.position + grant
        self.peer.send(
            replace(
                template,
                session=self.id,
                incarnation=self.incarnation,
                prompt=self._committed.prompt,
                output_so_far=self._committed.output,
                grant=grant,
                patience_us=patience_us,
                profile=self._moved_profile(),
                is_coupled=False,
                speculator=None,
                trace=trace,
            )
        )

    def forward(self, round_: RoundUnderway, part: DraftPart) -> None:
        """Send nodes of the round's draft, as they came from the drafter."""
        self._send_work(round_, part.draft, part.first_node, part.is_complete)

    def end_draft(self, round_: RoundUnderway) -> None:
        """Say that no more nodes of the round's draft follow."""
        self._send_work(round_, Draft.EMPTY, round_.num_nodes, True)

    def send_whole(self, round_: RoundUnderway, assumes: Sequence[int]) -> None:
        """Send a round with all its nodes.

        Args:
            round_: whose tokens are a chain.
            assumes: tokens before its draft that are not committed yet.
        """
        self._send_work(round_, Draft.chain(round_.tokens), 0, is_complete=True, assumes=tuple(assumes))

    def _send_work(
        self, round_: RoundUnderway, draft: Draft, first_node: int, is_complete: bool, assumes: tuple[int, ...] = ()
    ) -> None:
        position = round_.position - len(assumes)
        self.peer.send(
            Work(
                session=self.id,
                incarnation=self.incarnation,
                position=position,
                prefix_hash=self._committed.hashes.at(position),
                round=round_.number,
                draft=draft,
                first_node=first_node,
                is_complete=is_complete,
                grant=len(assumes) + round_.gamma + 1 + self._tempo.grant,
                patience_us=round_.patience_us,
                assumes=assumes,
                profile=self._moved_profile(),
                trace=round_.trace,
            )
        )

    def _moved_profile(self) -> Profile | None:
        """The profile where it has moved since it was told."""
        new, known = self.outlook, self._profile
        if new is None or (known is not None and not differ(known, new)):
            return None
        self._profile = new
        return new

    def settle(self, round_: RoundUnderway | None) -> None:
        """Take note of a round's verdict: from now on grant and patience of its item hold.

        Args:
            round_: None where the round was given up here, though not there.
        """
        self.granted_until = (
            round_.position + round_.gamma + 1 + self._tempo.grant if round_ else self._committed.position
        )
        self.is_held = round_ is None or round_.patience_us > 0

    @property
    def is_low(self) -> bool:
        """Whether more than half of the grant is used up."""
        return 2 * (self.granted_until - self._committed.position) < self._tempo.grant

    @property
    def stands(self) -> bool:
        """Whether its grant is used up, so that it commits nothing until it hears again."""
        return self.granted_until <= self._committed.position

    def hold(self, number: int, gamma: int, patience_us: int) -> None:
        """Let it wait for the draft of γ tokens that is on its way, where it only stands."""
        self._send_grant(number, gamma + 1 + self._tempo.grant, patience_us)

    def renew(self, number: int) -> None:
        """Let it run free from now on, with a whole grant.

        As the first item on a new stream it also brings every verdict that was lost with the old one.
        """
        self._send_grant(number, self._tempo.grant)

    def _send_grant(self, number: int, grant: int, patience_us: int = 0) -> None:
        self.is_held = patience_us > 0
        self.granted_until = self._committed.position + grant
        self.peer.send(
            Work(
                session=self.id,
                incarnation=self.incarnation,
                position=self._committed.position,
                prefix_hash=self._committed.prefix_hash,
                round=number,
                draft=Draft.EMPTY,
                first_node=0,
                is_complete=True,
                grant=grant,
                patience_us=patience_us,
                profile=self._moved_profile(),
            )
        )

    def close(self, trace: TraceContext | None = None) -> None:
        """End it.

        Args:
            trace: set where spans that the peer has held back are to be sent after all.
        """
        self.is_open = False
        self.peer.detach(self.id)
        with suppress(Overloaded):  # it does not read; its lease frees the session
            self.peer.send(Close(self.id, self.incarnation, trace))


class Worth(NamedTuple):
    """What nodes must be worth to be drawn, as `DraftRequest` has it."""

    price: float = 0.0
    step_price: float = 0.0
    calibration: Calibration | None = None


ANYTHING: Final = Worth()  # as many nodes as can be are of use


class DrafterSession:
    """The session at a drafter: at most one draft is due at a time. One that goes on answers several requests."""

    __slots__ = (
        "_asked", "_committed", "_num_known", "_over", "_tempo", "due", "id", "incarnation", "peer",
    )  # fmt: skip

    def __init__(self, peer: DrafterPeer, committed: Committed, tempo: Tempo) -> None:
        self.peer = peer
        self.id = secrets.token_bytes(SESSION_ID_BYTES)
        self.incarnation = peer.incarnation
        self._committed = committed
        self._tempo = tempo
        self._num_known = committed.position
        self._asked: dict[int, int] = {}  # position by number, of the requests whose nodes are still of use
        self._over: deque[int] = deque(maxlen=_MAX_REQUESTS)  # numbers of those before them
        self.due: int | None = None  # number of the last request, while more nodes of it may come

    @property
    def num_draftable(self) -> int:
        """Tokens until the drafter's context is full."""
        context_length = self.peer.info.context_length if self.peer.info else 0
        return (context_length or UNLIMITED) - self._committed.position

    @property
    def is_behind(self) -> bool:
        """Whether it missed more tokens than go into one item, so that it must be opened again."""
        return self._committed.position - self._num_known > MAX_CHUNK_TOKENS

    def open(self, inbox: Inbox, template: Open, trace: TraceContext | None) -> None:
        """Open it with all that is committed."""
        self.peer.attach(self.id, inbox)
        info = self.peer.info
        self.peer.send(
            replace(
                template,
                session=self.id,
                incarnation=self.incarnation,
                vocabulary_hash=template.vocabulary_hash if info and info.vocabulary_hash else "",
                prompt=self._committed.prompt,
                output_so_far=self._committed.output,
                grant=0,
                patience_us=0,
                trace=trace,
            )
        )

    @property
    def max_nodes(self) -> int:
        """Most nodes that this drafter draws for a request."""
        info = self.peer.info
        return info.max_nodes if info is not None and info.max_nodes else UNLIMITED

    def propose(
        self,
        number: int,
        gamma: int,
        trace: TraceContext | None,
        *,
        goes_on: bool,
        worth: Worth,
        side_lines: SideLines | None = None,
    ) -> None:
        """Ask for nodes below what is committed, and tell what was committed since the last time.

        Args:
            number: of the request; that of its round, where it begins one.
            gamma: most nodes on a path.
            trace: of the round.
            goes_on: nodes that still come of the requests before are of use too.
            worth: what nodes must be worth to be drawn.
            side_lines: to be drawn beside them.
        """
        position = self._committed.position
        if not goes_on:
            self._over.extend(self._asked)
            self._asked.clear()
        elif len(self._asked) == _MAX_REQUESTS:
            self._over.append(oldest := next(iter(self._asked)))
            del self._asked[oldest]
        self._asked[number] = position
        self.due = number
        known, self._num_known = self._num_known, position
        self.peer.send(
            DraftRequest(
                session=self.id,
                incarnation=self.incarnation,
                position=position,
                prefix_hash=self._committed.prefix_hash,
                round=number,
                tokens=tuple(self._committed.tokens[known:position]),
                gamma=gamma,
                deadline_us=self._tempo.deadline_us,
                trace=trace,
                price=worth.price,
                step_price=worth.step_price,
                calibration=worth.calibration,
                side_lines=side_lines,
            )
        )

    def problem(self, part: DraftPart) -> str | None:
        """Why nodes are of no use: "given_up" where what they go on with is over; None: they are what was asked for."""
        if self._asked.get(part.round) == part.position:
            return None
        return "given_up" if part.round in self._over else "stale"

    def close(self, trace: TraceContext | None = None) -> None:
        """End it; see `VerifierSession.close`."""
        self.peer.detach(self.id)
        with suppress(Overloaded):  # it does not read; its lease frees the session
            self.peer.send(Close(self.id, self.incarnation, trace))
