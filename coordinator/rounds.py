"""The round loop of one request: decide → draft → verify → emit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from coordinator.admission import Admitted
from coordinator.answer import Answer
from coordinator.drafting import Drafting
from coordinator.estimator import Estimator, Phase
from coordinator.peers import Inbox, News, PeerNews, code_name
from coordinator.policy import Decision, Policy, Snapshot
from coordinator.realised import Realised
from coordinator.reasoning import Reasoning, ThinkMarks
from coordinator.record import Record, RoundUnderway
from coordinator.roster import Roster
from coordinator.sessions import Committed, Tempo, VerifierSession
from coordinator.text import Vocabulary
from pilotfish.errors import PilotfishError, Unavailable, restore
from pilotfish.messages import Chunk, DraftPart, Opened, Refusal, Round, Verdict
from pilotfish.noise import Purpose, uniform
from pilotfish.price import Choice

MIN_PATIENCE_US: Final = 20_000  # less would be over before a busy machine gets to it
_MAX_REOPENINGS: Final = 5  # of a verifier's session without a verdict in between
_REOPENED: Final = frozenset({"position", "prefix", "unknown_session", "incarnation", "malformed"})  # reasons
_ELSEWHERE: Final = frozenset({"UNAVAILABLE", "RESOURCE_EXHAUSTED"})  # another verifier may take what this one refuses


@dataclass(frozen=True, slots=True)
class Means:
    """What the loop of every request works with."""

    roster: Roster
    vocabulary: Vocabulary
    policy: Policy
    tempo: Tempo
    estimator: Estimator
    realised: Realised
    failover_s: float  # how long a request waits for a verifier
    think_marks: ThinkMarks | None = None  # None: the model does not reason, or nobody cares


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
        self._answer = Answer(admitted, means.vocabulary, self._committed, record)
        self._drafting = Drafting(
            admitted, self._committed, means.roster, means.tempo, record, self._inbox, means.estimator
        )
        self._reasoning = Reasoning(means.think_marks, self._committed.tokens)
        self._enter_phase()
        self._verifier: VerifierSession | None = None
        self._round: RoundUnderway | None = None
        self._free = Decision(0, "request")  # the last decision to run free
        self._choice: Choice | None = None  # the last one by the price
        self._num_numbers = 0  # given to items so far
        self._last_verdict_ns = record.start_ns
        self._num_reopenings = 0

    async def answer(self) -> AsyncIterator[Chunk]:
        """The answer in pieces, one for each verdict.

        Raises:
            PilotfishError: it cannot go on; what was yielded is true all the same.
        """
        if whole := self._answer.resume():
            yield whole
            return
        try:
            await self._choose_verifier()
            self._draft(self._decide())
            while not self._answer.is_finished:
                chunk = self._emit(await self._verify())
                if not self._answer.is_finished:
                    self._draft(self._decide())
                    await asyncio.sleep(0)  # the request for the draft goes out before the client has its piece
                yield chunk
        except PilotfishError:
            self._record.has_failed = True  # before the peers are parted from: what they have held back is wanted
            raise
        finally:
            self.close()

    # -- decide ------------------------------------------------------------------------------------------------------

    def _decide(self) -> Decision:
        """How far to draft in the round that begins."""
        if self._round is not None:
            if self._drafting.is_silent:
                self._drafting.lose("drafter_silent")
                self._draft_no_more()
            return Decision(0, "draft_late")
        policy, drafting = self._means.policy, self._drafting
        wishes = self._admitted.request.speculation
        if policy.may_draft(wishes):
            if not self._admitted.max_gamma:
                return Decision(0, "limit")
            drafting.open()
        snapshot = self._snapshot()
        self._record.decided_at(snapshot.verifier.plan)
        decision = policy.decide(snapshot)
        self._choice = decision.choice
        return decision

    def _snapshot(self) -> Snapshot:
        """What is known before the round that begins."""
        drafting, verifier, request = self._drafting, self._opened_verifier, self._admitted.request
        max_gamma = min(self._admitted.max_gamma, verifier.max_nodes)
        outlook = None if drafting.meter is None else drafting.meter.outlook(max_gamma)
        if outlook is not None:
            verifier.outlook = outlook.profile(drafting.load, may_draft_ahead=False)
        position = self._committed.position
        num_remaining = self._admitted.max_tokens - self._committed.num_output
        return Snapshot(
            position=position,
            num_remaining=num_remaining,
            num_draftable=drafting.num_draftable,
            max_gamma=max_gamma,
            is_drafter_up=drafting.session is not None,
            wishes=request.speculation,
            verifier=verifier.peer.load,
            drafter=drafting.load,
            outlook=outlook,
            objective=self._admitted.objective,
            need=self._record.pace.need(num_remaining),
            last=self._choice,
            chance=uniform(self._admitted.opening.seed, Purpose.EXPLORE, position, 0),
        )

    def _patience_us(self, decision: Decision) -> int:
        """How long the session is held for a draft: two passes, or twice what it should take, where that is known."""
        tempo, verifier = self._means.tempo, self._opened_verifier
        if not decision.gamma or not decision.is_held:
            return 0
        if decision.choice is None or verifier.outlook is None:
            return tempo.patience_us
        away_us = round(1e6 * verifier.outlook.away_s(decision.gamma))
        return min(tempo.patience_us, max(MIN_PATIENCE_US, 2 * verifier.peer.load.pass_us, 2 * away_us))

    # -- draft -------------------------------------------------------------------------------------------------------

    def _draft(self, decision: Decision) -> None:
        """Ask for a draft, or let the verifier run free."""
        verifier, committed = self._opened_verifier, self._committed
        if not verifier.is_open:
            patience_us = self._patience_us(decision)
            verifier.open(self._inbox, self._admitted.opening, decision.gamma, patience_us, self._record.context)
        if decision.gamma == 0:
            self._free = decision
            self._run_free()
            return
        self._round = self._record.begin_round(
            self._next_number(),
            decision.gamma,
            decision.reason,
            committed.position,
            committed.prefix_hash,
            self._last_verdict_ns,
        )
        self._round.is_held, self._round.patience_us = decision.is_held, self._patience_us(decision)
        self._drafting.ask(self._round)
        if self._drafting.session is None:
            self._draft_no_more()
        if verifier.is_low if not verifier.is_held else not decision.is_held:
            verifier.renew(self._next_number())

    def _run_free(self) -> None:
        """Let the verifier commit by itself; says nothing where it does already and has enough of its grant left."""
        verifier = self._opened_verifier
        if self._round is not None and self._round.num_nodes:
            return  # its verdict is on the way
        if verifier.is_held or verifier.is_low:
            verifier.renew(self._next_number())

    def _next_number(self) -> int:
        """A number that no item of this request has: rounds and grants of one position must differ in it."""
        self._num_numbers += 1
        return self._num_numbers - 1

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
                self._answer.num_cached_tokens = answer.num_cached_tokens

    def _forward(self, part: DraftPart) -> None:
        round_ = self._drafting.take(part)
        if round_ is None:
            return
        if round_ is not self._round or round_.is_complete:
            self._record.drop("late")  # the verifier did not wait for these nodes, or never had those before them
            return
        if part.first_node != round_.num_nodes:
            self._record.drop("order")
            if part.first_node > round_.num_nodes or part.is_complete:
                self._draft_no_more()
            return
        if part.draft.tokens:
            round_.num_nodes += len(part.draft.tokens)
            round_.draft_end_ns = self._record.clock()
            round_.tokens += part.draft.tokens
        round_.is_complete, round_.end = part.is_complete, part.end
        if part.is_complete and part.draft.tokens and self._drafting.meter is not None:
            away_s = (round_.draft_end_ns - round_.start_ns) / 1e9 - part.draft_us / 1e6
            self._drafting.meter.came_back(away_s + self._opened_verifier.peer.round_trip_us / 1e6)
        if round_.is_nothing:
            self._record.drop(part.end.value if part.end else "empty")
            self._run_free()
        else:
            self._opened_verifier.forward(round_, part)

    def _draft_no_more(self) -> None:
        """No more nodes of the round follow, though the drafter has not said so: the verifier need not wait."""
        round_ = self._round
        if round_ is None or round_.is_complete:
            return
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
        if num_known < 0:
            await self._reopen("gap")
            return None
        if self._contradicts(verdict):
            await self._reopen("contradiction")  # its position cannot be right, and what follows there neither
            return None
        if num_known == 0:
            return verdict
        if num_known >= len(verdict.tokens):
            self._record.drop("duplicate")
            return None
        return replace(
            verdict,
            position=self._committed.position,
            tokens=verdict.tokens[num_known:],
            kinds=verdict.kinds[num_known:],
        )

    def _contradicts(self, verdict: Verdict) -> bool:
        """Whether the verdict goes on from other tokens than those that are known, or repeats them wrongly."""
        position, committed = verdict.position, self._committed
        repeated = committed.tokens[position : position + len(verdict.tokens)]
        if list(verdict.tokens[: len(repeated)]) != repeated:
            return True
        return verdict.prefix_hash is not None and verdict.prefix_hash != committed.hashes.at(position)

    # -- emit --------------------------------------------------------------------------------------------------------

    def _emit(self, verdict: Verdict) -> Chunk:
        """What the verdict adds to the answer."""
        began_ns = self._last_verdict_ns
        round_, ended = self._end_round(verdict)
        self._compare(round_, verdict, self._last_verdict_ns - began_ns)
        self._num_reopenings = 0
        peer = self._opened_verifier.peer
        self._answer.verifier, self._answer.is_lossy = peer.address, peer.info is not None and peer.info.is_lossy
        self._answer.drafter = self._drafting.address
        piece = self._answer.piece(verdict, ended)
        if (meter := self._drafting.meter) is not None:
            if round_.tokens:
                meter.decided(round_.gamma, round_.tokens, self._committed.tokens[round_.position :], round_.end)
            else:
                meter.ran_free(len(verdict.tokens))
        if self._reasoning.follow(piece.ids):
            self._enter_phase()
        return piece

    def _enter_phase(self) -> None:
        """While the model reasons drafts are counted by themselves, and no target is to be kept: nobody reads along."""
        self._drafting.enter(self._reasoning.phase)
        self._record.pace.is_paused = self._reasoning.phase is Phase.REASONING

    def _compare(self, round_: RoundUnderway, verdict: Verdict, took_ns: int) -> None:
        """Count the verdict of a session that speculates beside plain decoding; the first one read the prompt."""
        plain_us, drafter = self._opened_verifier.peer.load.plain_us, self._drafting.address
        does_speculate = round_.gamma > 0 or self._round is not None  # its draft is decided, or still on the way
        if drafter is None or not plain_us or not self._committed.num_output or not does_speculate:
            return
        workload = self._admitted.request.workload
        self._means.realised.count(drafter, workload, round_.reason, len(verdict.tokens), took_ns / 1e3 / plain_us)

    def _end_round(self, verdict: Verdict) -> tuple[RoundUnderway, Round]:
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
        return round_, ended

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
        self._record.opened("verifier", self._verifier.id)

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
        self._opened_verifier.open(self._inbox, self._admitted.opening, 0, 0, self._record.context)

    def _forget_nodes(self) -> None:
        """What was forwarded of the draft is lost: its round comes to nothing."""
        if self._round is not None and self._round.num_nodes:
            self._round.num_nodes = 0
            self._round.is_complete = True

    async def _accept_refusal(self, refusal: Refusal) -> None:
        if self._drafting.is_of(refusal.session):
            self._drafting.refuse(refusal)
            self._draft_no_more()
            return
        if not self._is_of_verifier(refusal.session):
            self._record.drop("stale")
            return
        peer = self._opened_verifier.peer
        if refusal.reason == "position" and refusal.position == self._committed.position:
            self._record.drop("behind")  # a draft that nothing hangs below any more
            self._forget_nodes()
            self._opened_verifier.renew(self._next_number())
        elif refusal.reason in _REOPENED:
            peer.doubt(refusal.incarnation)
            await self._reopen(refusal.reason)
        elif code_name(refusal.code) in _ELSEWHERE and self._means.roster.choose_verifier((peer.address,)) is not peer:
            await self._reopen(refusal.reason, avoid=(peer.address,))
        else:
            raise restore(code_name(refusal.code), f"verifier {peer.address}: {refusal.message}", reason=refusal.reason)

    async def _hear(self, news: PeerNews) -> None:
        """The stream to a peer broke, or came back."""
        if self._drafting.is_of(news.session):
            self._drafting.lose("drafter_lost")
            self._draft_no_more()
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
        kept = self._record.kept
        self._drafting.close(kept)
        if self._verifier is not None and self._verifier.is_open:
            self._verifier.close(kept)
        round_, self._round = self._round, None
        if round_ is not None:
            self._record.give_up(round_)
