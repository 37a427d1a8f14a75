"""The round loop of one request: decide → draft → verify → emit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from coordinator.admission import Admitted
from coordinator.peers import Inbox, News, PeerNews, code_name
from coordinator.policy import Decision, Policy, Snapshot
from coordinator.record import Record, RoundUnderway
from coordinator.roster import Roster
from coordinator.sessions import UNLIMITED, Committed, DrafterSession, Tempo, VerifierSession
from coordinator.text import AnswerText, Vocabulary
from pilotfish.errors import Unavailable, restore
from pilotfish.messages import (
    Chunk,
    DrafterLoad,
    DraftPart,
    Finished,
    FinishReason,
    Opened,
    Refusal,
    Round,
    Started,
    Verdict,
)

_MAX_REOPENINGS: Final = 5  # of a verifier's session without a verdict in between
_FIRST_RETRY_S: Final = 0.05  # until a drafter is tried again; doubled while it does not answer
_LAST_RETRY_S: Final = 2.0
_SESSION_GOES_ON: Final = frozenset({"argument", "malformed", "internal"})  # reasons for which a draft alone is lost
_ELSEWHERE: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})  # another verifier may take what this one refuses


@dataclass(frozen=True, slots=True)
class Means:
    """What the loop of every request works with."""

    roster: Roster
    vocabulary: Vocabulary
    policy: Policy
    tempo: Tempo
    failover_s: float  # how long a request waits for a verifier


class RoundLoop:
    """Serves one request: opens a session at a verifier and a drafter, and leads them from round to round.

    At any time at most one round has a draft on its way (`_round`). Meanwhile verdicts may come that are not its own,
    when the patience was over or the session ran free: each of them is a round of its own, with γ = 0.
    """

    def __init__(self, admitted: Admitted, means: Means, record: Record) -> None:
        self._admitted = admitted
        self._means = means
        self._record = record
        self._inbox = Inbox(self._forward)
        self._committed = Committed(admitted.prompt, admitted.request.output_so_far)
        self._text = AnswerText(means.vocabulary, admitted.request.stop)
        self._verifier: VerifierSession | None = None
        self._drafter: DrafterSession | None = None
        self._round: RoundUnderway | None = None
        self._free = Decision(0, "request")  # the last decision to run free
        self._num_rounds = 0  # numbers given on the wire
        self._last_verdict_ns = record.start_ns
        self._num_reopenings = 0
        self._retry_at_s = 0.0  # when a drafter may be tried again
        self._retry_s = 0.0
        self._num_cached = 0
        self._is_started = False
        self._is_finished = False

    async def answer(self) -> AsyncIterator[Chunk]:
        """The answer in pieces, one for each verdict.

        Raises:
            PilotfishError: it cannot go on; what was yielded is true all the same.
        """
        if finished := self._resume():
            yield finished
            return
        try:
            await self._choose_verifier()
            while not self._is_finished:
                self._draft(self._decide())
                yield self._emit(await self._verify())
        finally:
            self.close()

    def _resume(self) -> Chunk | None:
        """Take in what the client has already; the end, where that was the whole answer."""
        if not (output := self._admitted.request.output_so_far):
            return None
        piece = self._text.feed(output)
        if piece.is_stopped or output[-1] in self._admitted.opening.end_ids:
            return self._first(self._last(Chunk(), FinishReason.STOP))
        if len(output) >= self._admitted.max_tokens:
            return self._first(self._last(Chunk(), FinishReason.LENGTH))
        return None

    # -- decide ------------------------------------------------------------------------------------------------------

    def _decide(self) -> Decision:
        if self._round is not None:
            return Decision(0, "draft_late")
        wishes = self._admitted.request.speculation
        if self._drafter is None and not wishes.is_off:
            self._open_drafter()
        verifier, drafter, committed = self._opened_verifier, self._drafter, self._committed
        return self._means.policy.decide(
            Snapshot(
                position=committed.position,
                num_remaining=self._admitted.max_tokens - committed.num_output,
                num_draftable=UNLIMITED if drafter is None else drafter.num_draftable,
                max_gamma=min(self._admitted.max_gamma, verifier.max_nodes),
                is_drafter_up=drafter is not None,
                wishes=wishes,
                verifier=verifier.peer.load,
                drafter=_NO_LOAD if drafter is None else drafter.peer.load,
            )
        )

    # -- draft -------------------------------------------------------------------------------------------------------

    def _draft(self, decision: Decision) -> None:
        """Ask for a draft, or let the verifier run free."""
        verifier = self._opened_verifier
        if not verifier.is_open:
            verifier.open(self._inbox, self._admitted.opening, decision.gamma, self._record.context)
        if decision.gamma == 0:
            self._free = decision
            self._run_free()
            return
        drafter, committed = self._drafter, self._committed
        assert drafter is not None, "a policy drafts only where a drafter is up"
        number = self._next_number()
        self._round = self._record.begin_round(
            number, decision.gamma, decision.reason, committed.position, committed.prefix_hash, self._last_verdict_ns
        )
        drafter.propose(self._round)
        if not verifier.is_held and verifier.is_low:
            verifier.renew(self._next_number())

    def _run_free(self) -> None:
        """Let the verifier commit by itself; says nothing where it does already and has enough of its grant left."""
        verifier = self._opened_verifier
        if self._round is not None and self._round.num_nodes:
            return  # its verdict is on the way
        if verifier.is_held or verifier.is_low:
            verifier.renew(self._next_number())

    def _next_number(self) -> int:
        number, self._num_rounds = self._num_rounds, self._num_rounds + 1
        return number

    # -- verify ------------------------------------------------------------------------------------------------------

    async def _verify(self) -> Verdict:
        """Wait for the next verdict. Meanwhile the inbox has the nodes of the draft forwarded as they come."""
        while True:
            event = await self._inbox.get()
            if isinstance(event, PeerNews):
                await self._hear(event)
                continue
            answer, dropped = event
            if dropped is not None:
                self._record.drop(dropped)
            if isinstance(answer, DraftPart):
                self._forward(answer)
            elif isinstance(answer, Verdict):
                if (verdict := await self._next(answer)) is not None:
                    return verdict
            elif isinstance(answer, Refusal):
                await self._accept_refusal(answer)
            elif isinstance(answer, Opened) and self._is_of_verifier(answer.session):
                self._num_cached = self._num_cached or answer.num_cached_tokens

    def _forward(self, part: DraftPart) -> None:
        drafter, round_ = self._drafter, self._round
        due = drafter.due if drafter is not None and drafter.id == part.session else None
        if drafter is None or due is None or part.round != due.number or part.position != due.position:
            self._record.drop("stale")
            return
        if part.is_complete:
            drafter.due = None
            self._retry_s = 0.0
        if round_ is not due or round_.is_complete:
            self._record.drop("late")  # the verifier did not wait for these nodes, or never had those before them
            return
        if part.first_node != round_.num_nodes:
            self._record.drop("order")
            if part.first_node > round_.num_nodes or part.is_complete:
                self._end_draft(round_)
            return
        if part.draft.tokens:
            round_.num_nodes += len(part.draft.tokens)
            round_.draft_end_ns = self._record.clock()
        round_.is_complete = part.is_complete
        if round_.is_nothing:
            self._record.drop(part.end.value if part.end else "empty")
            self._run_free()
        else:
            self._opened_verifier.forward(round_, part)

    def _end_draft(self, round_: RoundUnderway) -> None:
        """No more nodes of the round follow, though the drafter has not said so."""
        round_.is_complete = True
        if round_.num_nodes:
            self._opened_verifier.end_draft(round_)
        else:
            self._run_free()

    async def _next(self, verdict: Verdict) -> Verdict | None:
        """The verdict, if it goes on where the answer stands; what it repeats is cut off."""
        if not self._is_of_verifier(verdict.session):
            self._record.drop("stale")
            return None
        num_known = self._committed.position - verdict.position
        if num_known == 0:
            return verdict
        if num_known < 0:
            await self._reopen("gap")
            return None
        if num_known >= len(verdict.tokens):
            self._record.drop("duplicate")
            return None
        return replace(
            verdict,
            position=self._committed.position,
            tokens=verdict.tokens[num_known:],
            kinds=verdict.kinds[num_known:],
        )

    # -- emit --------------------------------------------------------------------------------------------------------

    def _emit(self, verdict: Verdict) -> Chunk:
        """Commit what the verdict says, up to where the answer ends."""
        ended = self._end_round(verdict)
        piece = self._text.feed(verdict.tokens)
        num_tokens = len(piece.num_characters)
        tokens = verdict.tokens[:num_tokens]
        self._committed.extend(tokens)
        self._num_reopenings = 0
        chunk = Chunk(
            text=piece.text,
            ids=tokens,
            kinds=verdict.kinds[:num_tokens],
            rounds=(ended,) if self._admitted.request.include_rounds else (),
            num_characters=piece.num_characters,
        )
        finish = FinishReason.STOP if piece.is_stopped else verdict.finish
        return self._first(chunk if finish is None else self._last(chunk, finish))

    def _end_round(self, verdict: Verdict) -> Round:
        """The round that the verdict ends: the one whose draft it decides, or one that ran free."""
        round_ = self._round
        if verdict.round is not None:
            self._opened_verifier.settle(round_ if round_ is not None and round_.number == verdict.round else None)
        if round_ is not None and (round_.number == verdict.round or round_.is_nothing):
            self._round = None
            if round_.num_nodes and not verdict.num_drafted:
                self._record.drop("behind")
        else:
            reason = self._free.reason if round_ is None else "draft_late"
            round_ = self._record.begin_round(
                0, 0, reason, verdict.position, self._committed.prefix_hash, self._last_verdict_ns
            )
        ended = self._record.end_round(round_, verdict)
        self._last_verdict_ns = self._record.clock()
        return ended

    def _first(self, chunk: Chunk) -> Chunk:
        if self._is_started:
            return chunk
        self._is_started = True
        admitted = self._admitted
        return replace(
            chunk,
            started=Started(
                request_id=admitted.request_id,
                model=admitted.model,
                num_prompt_tokens=len(admitted.prompt),
                num_cached_tokens=self._num_cached,
                drafter=None if self._drafter is None else self._drafter.peer.address,
                verifier="" if self._verifier is None else self._verifier.peer.address,
                rule=admitted.opening.rule,
                trace_id=self._record.trace_id,
            ),
        )

    def _last(self, chunk: Chunk, reason: FinishReason) -> Chunk:
        self._is_finished = True
        num_output = self._committed.num_output
        finished = Finished(
            reason=reason,
            num_prompt_tokens=self._committed.num_prompt,
            num_output_tokens=num_output,
            statistics=self._record.finish(reason, num_output),
        )
        return replace(chunk, text=chunk.text + self._text.finish(), finished=finished)

    # -- the drafter comes and goes ----------------------------------------------------------------------------------

    def _open_drafter(self) -> None:
        """Open a session at a drafter, where there is one and it is time to try."""
        now_s = asyncio.get_running_loop().time()
        if now_s < self._retry_at_s:
            return
        peer = self._means.roster.choose_drafter(self._admitted.opening.speculator)
        if peer is None:
            self._retry_at_s = now_s + _FIRST_RETRY_S
            return
        self._drafter = DrafterSession(peer, self._committed, self._means.tempo)
        self._drafter.open(self._inbox, self._admitted.opening, self._record.context)

    def _lose_drafter(self, cause: str) -> None:
        """Go on without it, at once; another one, or the same, is opened with what is committed then."""
        drafter, self._drafter = self._drafter, None
        assert drafter is not None
        drafter.close()
        self._record.drop(cause)
        self._record.fail_over("drafter")
        self._retry_at_s = asyncio.get_running_loop().time() + self._retry_s
        self._retry_s = min(2 * self._retry_s or _FIRST_RETRY_S, _LAST_RETRY_S)
        if self._round is not None and not self._round.is_complete:
            self._end_draft(self._round)

    def _accept_drafter_refusal(self, drafter: DrafterSession, refusal: Refusal) -> None:
        if refusal.reason not in _SESSION_GOES_ON:
            drafter.peer.doubt(refusal.incarnation)
            self._lose_drafter(refusal.reason)
            return
        self._record.drop(refusal.reason)
        due, drafter.due = drafter.due, None
        if due is not None and due is self._round and not due.is_complete:
            self._end_draft(due)

    # -- the verifier comes and goes ---------------------------------------------------------------------------------

    @property
    def _opened_verifier(self) -> VerifierSession:
        assert self._verifier is not None, "chosen before the first round"
        return self._verifier

    def _is_of_verifier(self, session: bytes) -> bool:
        return self._verifier is not None and self._verifier.id == session

    async def _choose_verifier(self, avoid: tuple[str, ...] = ()) -> None:
        peer = await self._means.roster.wait_for_verifier(self._means.failover_s, avoid)
        self._verifier = VerifierSession(peer, self._committed, self._means.tempo)

    async def _reopen(self, cause: str, avoid: tuple[str, ...] = ()) -> None:
        """Open the session again, here or elsewhere, with what the client has; it sees no gap and no repeat."""
        self._record.drop(cause)
        self._record.fail_over("verifier")
        self._num_reopenings += 1
        old = self._opened_verifier
        old.close()
        if self._num_reopenings > _MAX_REOPENINGS:
            raise Unavailable(
                f"the session was opened {_MAX_REOPENINGS} times and lost each time, last at {old.peer.address} "
                f"({cause}); see that verifier's log",
                retry_after_s=5.0,
            )
        await self._choose_verifier(avoid)
        self._forget_nodes()
        self._opened_verifier.open(self._inbox, self._admitted.opening, 0, self._record.context)

    def _forget_nodes(self) -> None:
        """What was forwarded of the draft is lost: its round comes to nothing."""
        if self._round is not None and self._round.num_nodes:
            self._round.num_nodes = 0
            self._round.is_complete = True

    async def _accept_refusal(self, refusal: Refusal) -> None:
        drafter = self._drafter
        if drafter is not None and refusal.session == drafter.id:
            self._accept_drafter_refusal(drafter, refusal)
            return
        if not self._is_of_verifier(refusal.session):
            self._record.drop("stale")
            return
        peer = self._opened_verifier.peer
        if refusal.reason == "position" and refusal.position == self._committed.position:
            self._record.drop("behind")  # a draft that nothing hangs below any more
            self._forget_nodes()
            self._opened_verifier.renew(self._next_number())
        elif refusal.reason in {"position", "prefix", "unknown_session", "incarnation", "malformed"}:
            peer.doubt(refusal.incarnation)
            await self._reopen(refusal.reason)
        elif code_name(refusal.code) in _ELSEWHERE and self._means.roster.choose_verifier((peer.address,)) is not peer:
            await self._reopen(refusal.reason, avoid=(peer.address,))
        else:
            raise restore(code_name(refusal.code), f"verifier {peer.address}: {refusal.message}", reason=refusal.reason)

    async def _hear(self, news: PeerNews) -> None:
        """The stream to a peer broke, or came back."""
        if self._drafter is not None and news.session == self._drafter.id:
            self._lose_drafter("drafter_lost")
        elif self._is_of_verifier(news.session):
            if news.news is News.LOST:
                await self._reopen("verifier_lost")
            elif news.news is News.BACK:
                # Nobody knows what arrived. An item on a new stream brings the verdicts that were lost with the old.
                self._record.drop("stream_cut")
                self._forget_nodes()
                self._opened_verifier.renew(self._next_number())

    # -- the end -----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Free what the services hold for this request, however it ended; once is enough."""
        drafter, self._drafter = self._drafter, None
        if drafter is not None:
            drafter.close()
        if self._verifier is not None and self._verifier.is_open:
            self._verifier.close()
        round_, self._round = self._round, None
        if round_ is not None:
            self._record.give_up(round_)


_NO_LOAD: Final = DrafterLoad()
