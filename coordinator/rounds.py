"""The round loop of one request: decide → draft → verify → emit."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from coordinator.admission import Admitted
from coordinator.answer import Answer
from coordinator.drafting import Drafting, Leave
from coordinator.estimator import Estimator, Phase
from coordinator.line import NO_LEAD, Lead, lead
from coordinator.peers import Inbox, News, PeerNews
from coordinator.policy import Decision, Policy, Snapshot
from coordinator.realised import Realised
from coordinator.reasoning import Reasoning, ThinkMarks
from coordinator.record import Record, RoundUnderway
from coordinator.roster import Roster
from coordinator.sessions import Committed, Tempo
from coordinator.text import Vocabulary
from coordinator.underway import Start, Underway
from coordinator.verifying import Verifying
from pilotfish.errors import PilotfishError
from pilotfish.messages import Chunk, DraftPart, Opened, Refusal, Verdict
from pilotfish.noise import Purpose, uniform
from pilotfish.price import Choice

MIN_PATIENCE_US: Final = 20_000  # less would be over before a busy machine gets to it


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
    leave: Leave
    think_marks: ThinkMarks | None = None  # None: the model does not reason, or nobody cares


class RoundLoop:
    """Serves one request: leads a session at a verifier and one at a drafter from round to round."""

    def __init__(self, admitted: Admitted, means: Means, record: Record) -> None:
        self._admitted = admitted
        self._means = means
        self._record = record
        inbox = self._inbox = Inbox(self._forward, means.tempo.quiet_s)
        committed = self._committed = Committed(admitted.prompt, admitted.request.output_so_far)
        self._answer = Answer(admitted, means.vocabulary, committed, record)
        roster, tempo = means.roster, means.tempo
        self._drafting = Drafting(admitted, committed, roster, tempo, record, inbox, means.estimator, means.leave)
        self._verifying = Verifying(admitted, committed, roster, tempo, means.failover_s, record, inbox)
        self._underway = Underway(record, self._drafting, self._verifying, committed)
        self._reasoning = Reasoning(means.think_marks, committed.tokens)
        self._enter_phase()
        self._choice: Choice | None = None  # the last one by the price

    async def answer(self) -> AsyncIterator[Chunk]:
        """The answer in pieces, one for each verdict.

        Raises:
            PilotfishError: it cannot go on; what was yielded is true all the same.
        """
        if whole := self._answer.resume():
            yield whole
            return
        try:
            await self._verifying.choose()
            self._begin()
            while not self._answer.is_finished:
                chunk = self._emit(await self._verify())
                if not self._answer.is_finished:
                    self._go_on()
                    await asyncio.sleep(0)  # the request for the draft goes out before the client has its piece
                yield chunk
        except PilotfishError:
            self._record.has_failed = True  # before the peers are parted from: what they have held back is wanted
            raise
        finally:
            self.close()

    # -- decide ------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begin the first round: a session that would be held for a draft has its first token before.

        A draft that is not there when the prompt's pass begins would have that pass commit nothing. And what it should
        be is known better when the first verdict has brought the plan. One that is looked up near by is asked for all
        the same: where it is there in time it rides, else its tail counts.
        """
        start = self._decide()
        decision = start.decision
        if not decision.gamma or not decision.is_held or not self._heeds_price:
            self._draft(start)
        elif self._drafting.is_near(decision.gamma, self._verifying.session.peer.load.pass_us):
            self._draft(Start(decision._replace(is_held=False), 0))
        else:
            self._underway.free = Decision(0, "first_token")
            self._verifying.open_for_one()

    def _go_on(self) -> None:
        """Begin the next round, or wait for the one whose draft is late."""
        if self._drafting.is_silent:
            self._drafting.lose("drafter_silent")
            self._underway.end_draft()
        if self._underway.is_late:
            self._underway.free = Decision(0, "draft_late")
            self._underway.run_free()
        else:
            self._draft(self._decide())

    def _decide(self) -> Start:
        """How the round that begins is drafted."""
        policy, drafting = self._means.policy, self._drafting
        if policy.may_draft(self._admitted.request.speculation):
            if not self._admitted.max_gamma:
                return Start(Decision(0, "limit"), 0)
            drafting.open()
        snapshot = self._snapshot()
        self._record.decided_at(snapshot.verifier.plan)
        decision = policy.decide(snapshot)
        self._choice = decision.choice
        return Start(decision, self._patience_us(decision), self._lead(decision, snapshot))

    def _snapshot(self) -> Snapshot:
        """What is known before the round that begins."""
        drafting, verifier = self._drafting, self._verifying.session
        max_gamma = min(self._admitted.max_gamma, verifier.max_nodes)
        wishes = self._admitted.request.speculation
        heeds_price = self._heeds_price
        outlook = drafting.meter.outlook(max_gamma) if heeds_price and drafting.meter is not None else None
        stops_early, may_draft_ahead = self._means.leave.early_stop, drafting.may_go_on
        if outlook is not None:
            if stops_early and drafting.is_near(max_gamma, verifier.peer.load.pass_us):
                may_draft_ahead = False  # what lies ahead is drawn to a number of nodes, not as far as it is worth it
            verifier.outlook = outlook.profile(drafting.load, may_draft_ahead=may_draft_ahead)
        position = self._committed.position
        num_remaining = self._admitted.max_tokens - self._committed.num_output
        return Snapshot(
            position=position,
            num_remaining=num_remaining,
            num_draftable=drafting.num_draftable,
            max_gamma=max_gamma,
            is_drafter_up=drafting.session is not None,
            wishes=wishes,
            verifier=verifier.peer.load,
            drafter=drafting.load,
            outlook=outlook,
            objective=self._admitted.objective,
            need=self._record.pace.need(num_remaining),
            may_draft_ahead=may_draft_ahead,
            stops_early=stops_early,
            is_alone=verifier.peer.num_sessions <= 1,
            last=self._choice,
            chance=uniform(self._admitted.opening.seed, Purpose.EXPLORE, position, 0) if heeds_price else 1.0,
        )

    @property
    def _heeds_price(self) -> bool:
        return self._means.policy.heeds_price(self._admitted.request.speculation)

    def _patience_us(self, decision: Decision) -> int:
        """How long the session is held for a draft: twice what one usually takes.

        Where that is not known, and where nobody has reckoned with it, for the patience that is set at the least.
        """
        tempo, drafting, verifier = self._means.tempo, self._drafting, self._verifying.session
        if not decision.gamma or not decision.is_held:
            return 0
        away_us = round(2e6 * drafting.away_s(decision.gamma))
        least_us = tempo.patience_us
        if decision.choice is not None and decision.choice.gamma:
            least_us = min(tempo.patience_us, max(MIN_PATIENCE_US, 2 * verifier.peer.load.pass_us))
        return max(least_us, min(away_us, tempo.most_patience_us))

    def _lead(self, decision: Decision, snapshot: Snapshot) -> Lead:
        """How far the drafter goes on beyond the round: as the policy chose, where it may and there is room."""
        verifier, choice = self._verifying.session, decision.choice
        most = min(verifier.max_nodes, self._drafting.max_nodes)
        room = min(snapshot.num_remaining - 1, snapshot.num_draftable, most)
        if choice is None or verifier.outlook is None or not snapshot.may_draft_ahead or room < 1:
            return NO_LEAD
        num_sides = self._drafting.num_side_lines
        return lead(choice.ahead, verifier.outlook, snapshot.verifier.pass_us / 1e6, room, num_sides)

    # -- draft -------------------------------------------------------------------------------------------------------

    def _draft(self, start: Start) -> None:
        """Ask for a draft, or let the verifier run free."""
        verifier, underway, decision = self._verifying.session, self._underway, start.decision
        self._verifying.open(decision.gamma, start.patience_us)
        if decision.gamma == 0:
            underway.pause(decision)
            return
        if not underway.go_on(start):
            underway.begin(start)
        if decision.is_held and verifier.stands:
            underway.hold(start)
        elif verifier.is_low if not verifier.is_held else not decision.is_held:
            underway.renew()

    def _forward(self, part: DraftPart) -> None:
        self._underway.take(part)

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
            elif isinstance(answer, Opened) and self._verifying.is_of(answer.session):
                self._answer.num_cached_tokens = answer.num_cached_tokens

    async def _next(self, verdict: Verdict) -> Verdict | None:
        """The verdict, if it goes on where the answer stands; what it repeats is cut off."""
        if not self._verifying.is_of(verdict.session):
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
        began_ns = self._underway.last_verdict_ns
        round_, ended = self._underway.settle(verdict)
        self._compare(round_, verdict, self._underway.last_verdict_ns - began_ns)
        self._verifying.heard()
        peer = self._verifying.session.peer
        self._answer.verifier, self._answer.is_lossy = peer.address, peer.info is not None and peer.info.is_lossy
        self._answer.drafter = self._drafting.address
        piece = self._answer.piece(verdict, ended)
        self._learn(round_, verdict)
        if self._reasoning.follow(piece.ids):
            self._enter_phase()
        return piece

    def _enter_phase(self) -> None:
        """While the model reasons drafts are counted by themselves, and no target is to be kept: nobody reads along."""
        self._drafting.enter(self._reasoning.phase)
        self._record.pace.is_paused = self._reasoning.phase is Phase.REASONING

    def _learn(self, round_: RoundUnderway, verdict: Verdict) -> None:
        """Tell the meter what became of the round's draft; a guess of its bonus is a node like any other."""
        meter = self._drafting.meter
        if meter is None:
            return
        if not round_.tokens:
            meter.ran_free(len(verdict.tokens))
            return
        guess = [] if round_.guess is None else [round_.guess]
        committed = self._committed.tokens[round_.position :]
        num_overtaken = verdict.position - round_.position if verdict.num_drafted else len(committed)
        nodes = [*round_.tokens, *guess]
        meter.decided(round_.gamma + len(guess), nodes, committed, round_.end, num_overtaken, round_.confidences)

    def _compare(self, round_: RoundUnderway, verdict: Verdict, took_ns: int) -> None:
        """Count the verdict of a session that speculates beside plain decoding; the first one read the prompt."""
        plain_us, drafter = self._verifying.session.peer.load.plain_us, self._drafting.address
        does_speculate = round_.gamma > 0 or self._underway.current is not None  # its draft is decided, or on the way
        if drafter is None or not plain_us or not self._committed.num_output or not does_speculate:
            return
        workload = self._admitted.request.workload
        self._means.realised.count(drafter, workload, round_.reason, len(verdict.tokens), took_ns / 1e3 / plain_us)

    # -- peers come and go -------------------------------------------------------------------------------------------

    async def _reopen(self, cause: str) -> None:
        await self._verifying.reopen(cause)
        self._underway.forget()

    async def _accept_refusal(self, refusal: Refusal) -> None:
        if self._drafting.is_of(refusal.session):
            self._drafting.refuse(refusal)
            self._underway.end_draft()
        elif not self._verifying.is_of(refusal.session):
            self._record.drop("stale")
        elif refusal.reason == "position" and refusal.position == self._committed.position:
            self._record.drop("behind")  # a draft that nothing hangs below any more
            self._underway.forget()
            self._underway.renew()
        else:
            await self._verifying.recover(refusal)
            self._underway.forget()

    async def _hear(self, news: PeerNews) -> None:
        """The stream to a peer broke, or came back, or nobody has said anything for long."""
        if news.news is News.QUIET:
            self._go_on_anew("quiet")  # whatever is amiss: a grant is never wrong, and a round can be spared
        elif self._drafting.is_of(news.session):
            self._drafting.lose("drafter_lost")
            self._underway.end_draft()
        elif self._verifying.is_of(news.session):
            if news.news is News.LOST:
                await self._reopen("verifier_lost")
            elif news.news is News.BACK:
                # Nobody knows what arrived. An item on a new stream brings the verdicts that were lost with the old.
                self._go_on_anew("stream_cut")

    def _go_on_anew(self, cause: str) -> None:
        """Count nothing that was sent as arrived, and let the verifier run free."""
        self._record.drop(cause)
        self._underway.forget()
        self._underway.renew()

    def close(self) -> None:
        """Free what the services hold for this request, however it ended; once is enough."""
        kept = self._record.kept
        self._inbox.close()
        self._drafting.close(kept)
        self._verifying.close(kept)
        self._underway.close()
