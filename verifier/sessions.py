"""A session: one sequence, what it may commit and when, and what it does with the items it is sent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from math import inf
from typing import Literal, NamedTuple, TypeAlias

from pilotfish.draft import Draft
from pilotfish.errors import PilotfishError, PrefixMismatch, StalePosition
from pilotfish.messages import FinishReason, Open, Refusal, Rule, SessionId, TokenKind, Verdict, Work
from pilotfish.prefix import PrefixHashes
from pilotfish.wire.values import MAX_ROUNDS_AHEAD, DropCause, refuse
from verifier.drafts import DraftInHand, RestState, clip

NO_TARGET_S = 10.0  # from its opening a prompt that nobody waits for by a certain time is due
SMOOTHING = 0.3  # share of the newest in what is smoothed

Drop: TypeAlias = Literal[
    "behind",  # other tokens were committed before it came
    "overtaken",  # all it proposes was committed before it came
    "late",  # a part of a round that is over
    "superseded",  # a later round came before it was complete
    "assumption",  # other tokens were committed than it was drafted on
    "ahead_full",  # more rounds ahead than are held
    "resend",  # the round was decided already: its verdict was sent again
    "finished",  # the session commits nothing more
    "stale_grant",  # a grant from before the last one
]
"""Why an item, or part of its draft, was of no use; besides the causes that `wire` cuts drafts for."""


class SessionKey(NamedTuple):
    """Whose session, and which: ids are scoped to the caller, so nobody reaches another's by guessing."""

    caller: str
    session: SessionId


class Claim(NamedTuple):
    """What a session would commit with in a pass that began now."""

    draft: Draft = Draft.EMPTY  # empty: one token of the grant
    num_reused: int = 0
    hand: DraftInHand | None = None  # where the draft is from


class Decision(NamedTuple):
    """What a pass decided for a session, and what the verdict tells of the pass."""

    tokens: tuple[int, ...]  # accepted path and one more
    num_accepted: int
    is_bonus: bool
    node_probabilities: bytes = b""
    queue_us: int = 0
    pass_us: int = 0
    pass_positions: int = 0


@dataclass(slots=True, eq=False)
class Session:
    """One sequence.

        tokens   [0, start) given at open · [start, length) committed here
        time     held until `held_until` unless a draft is complete; then free while length < free_until

    Tokens are committed in two ways only: with a draft (accepted path and one more), or, one in a pass, by the grant.
    """

    key: SessionKey
    opened: Open
    ordinal: int  # the order of opening: who came first is served first when KV is short
    limit: int  # most tokens, prompt included
    stream: int  # where answers go: the stream its last item came on
    count_drop: Callable[[Drop | DropCause], None]
    held_until_s: float
    lease_s: float
    now_s: InitVar[float]
    lease_until_s: float = field(init=False, default=-inf)
    tokens: list[int] = field(init=False)
    kinds: list[TokenKind] = field(init=False, default_factory=list)  # of the tokens committed here
    hashes: PrefixHashes = field(init=False)
    free_until: int = field(init=False)
    in_hand: DraftInHand | None = field(init=False, default=None)  # never WRONG or USED_UP between two calls
    ahead: list[DraftInHand] = field(init=False, default_factory=list)
    over: DraftInHand | None = field(init=False, default=None)  # dropped unverified: the next verdict says so
    next_round: int = field(init=False, default=0)  # rounds before it are over
    last_grant: tuple[int, int] = field(init=False, default=(-1, -1))  # position, round
    last_verdict: Verdict | None = field(init=False, default=None)
    finish: FinishReason | None = field(init=False, default=None)
    opened_s: float = field(init=False)
    last_pass: int = field(init=False, default=0)  # number of the pass that served it last
    last_draft_pass: int = field(init=False, default=0)  # number of the pass that carried its last draft
    verdict_at_s: float | None = field(init=False, default=None)  # of the last verdict, until the next item has come
    awaits_draft: bool = field(init=False, default=False)  # none was there at the last verdict, nor has come since
    unanswered_s: float | None = field(init=False, default=None)  # the verdict before it, where the same is true of it
    turnaround_s: float | None = field(init=False, default=None)  # from a verdict to the next item, smoothed
    deviation_s: float = field(init=False, default=0.0)  # by how much that differs from one to the next, smoothed
    tokens_per_draft: float = field(init=False, default=1.0)  # committed with a draft, smoothed
    nodes_per_draft: float = field(init=False, default=1.0)  # smoothed
    offered: float = field(init=False, default=1.0)  # share of the verdicts that a draft followed, smoothed

    def __post_init__(self, now_s: float) -> None:
        self.renew(now_s)
        self.opened_s = now_s
        self.tokens = list(self.opened.tokens)
        self.hashes = PrefixHashes(self.tokens)
        self.free_until = len(self.tokens) + self.opened.grant

    @property
    def start(self) -> int:
        return len(self.opened.prompt) + len(self.opened.output_so_far)

    def renew(self, now_s: float) -> None:
        """Count the lease from now: for a caller that is heard of, and while it is we who keep it waiting."""
        self.lease_until_s = max(now_s + self.lease_s, self.lease_until_s)

    # -- what a pass asks --------------------------------------------------------------------------------------------

    def claim(self, now_s: float) -> Claim | None:
        """What it would commit with in a pass that began now; None: nothing, it waits for an item or is finished."""
        if self.finish is not None:
            return None
        hand, is_held = self.in_hand, now_s < self.held_until_s
        if hand is not None and (hand.is_complete or not is_held):
            state, draft, num_reused = hand.rest(self.tokens)
            if state is RestState.USABLE:
                return Claim(clip(draft, self.limit - len(self.tokens) - 1), num_reused, hand)
        if not is_held and len(self.tokens) < self.free_until:
            return Claim()
        return None

    def may_put_off(self, now_s: float) -> bool:
        """Whether it may commit by its grant though its draft is there; what hangs below that token counts later.

        A matter of time, of counts and of the request, never of what the nodes say. Where drafts are drawn by chance
        and judged by their law it may not: tokens committed meanwhile are seldom theirs, and which drafts count must
        not hang on anything that their tokens have a part in.
        """
        return not self._is_drawn and now_s >= self.held_until_s and len(self.tokens) < self.free_until

    @property
    def _is_drawn(self) -> bool:
        """Whether drafts may be drawn by chance and judged by their law."""
        return self.opened.rule is not Rule.MATCH and not self.opened.sampling.is_greedy

    def first_by_s(self, now_s: float) -> float:
        """When its prompt is to be read: by its target, or as any other where it has none, or it is missed or met."""
        left_us = self.opened.first_token_us
        by_s = -inf if left_us is None or self.kinds else self.opened_s + left_us / 1e6
        return by_s if now_s < by_s else self.opened_s + NO_TARGET_S

    def due_at_s(self, now_s: float) -> float:
        """When its next draft should come, by how long the last ones took; inf: none is to be expected.

        A session that is held says that one will; of one that runs free it is known by how often one came.
        """
        is_waited_for = now_s < self.held_until_s or (self.awaits_draft and not self._is_drawn)
        if self.finish is not None or not is_waited_for or self.verdict_at_s is None or self.turnaround_s is None:
            return inf
        return self.verdict_at_s + self.turnaround_s

    @property
    def wakes_at_s(self) -> float:
        """When it may commit though nothing comes; inf: never."""
        if self.finish is not None:
            return inf
        has_nodes = self.in_hand is not None and self.in_hand.rest(self.tokens).state is RestState.USABLE
        return self.held_until_s if has_nodes or len(self.tokens) < self.free_until else inf

    def commit(self, claim: Claim, decision: Decision, now_s: float) -> Verdict:
        """Commit what a pass decided, cut after the first end id and at the limit."""
        position = len(self.tokens)
        tokens, finish = self._cut(decision.tokens)
        kinds = _kinds(claim, decision)[: len(tokens)]
        self.tokens += tokens
        self.kinds += kinds
        self.hashes.extend(tokens)
        self.finish = finish
        hand = claim.hand
        if self.unanswered_s is not None:
            self.offered -= SMOOTHING * self.offered
        if hand is not None:
            self.tokens_per_draft += SMOOTHING * (len(tokens) - self.tokens_per_draft)
            self.nodes_per_draft += SMOOTHING * (len(claim.draft) - self.nodes_per_draft)
            self.next_round = max(self.next_round, hand.round + 1)
            hand.num_verified = len(hand.draft)
            if hand.is_complete and self.in_hand is hand:
                self.in_hand = None
            self.over = None
        self._sort_hands()
        ended = hand or self.over
        if ended is not None:
            self.free_until, self.held_until_s, self.over = ended.free_until, now_s + ended.patience_s, None
        if finish is not None:
            self.in_hand, self.ahead = None, []
        # What came during the pass has not been taken yet: it will follow the verdict before this one.
        self.unanswered_s = self.verdict_at_s if self.awaits_draft else None
        self.verdict_at_s, self.awaits_draft = now_s, self.in_hand is None
        self.last_verdict = Verdict(
            session=self.key.session,
            position=position,
            tokens=tokens,
            kinds=kinds,
            round=None if ended is None else ended.round,
            num_drafted=len(claim.draft),
            num_accepted=decision.num_accepted,
            num_reused=claim.num_reused,
            node_probabilities=decision.node_probabilities,
            finish=finish,
            queue_us=decision.queue_us,
            pass_us=decision.pass_us,
            pass_positions=decision.pass_positions,
            prefix_hash=self.hashes.at(position),
        )
        return self.last_verdict

    def _cut(self, tokens: tuple[int, ...]) -> tuple[tuple[int, ...], FinishReason | None]:
        tokens = tokens[: self.limit - len(self.tokens)]
        for i, token in enumerate(tokens):
            if token in self.opened.end_ids:
                return tokens[: i + 1], FinishReason.STOP
        is_full = len(self.tokens) + len(tokens) >= self.limit
        return tokens, FinishReason.LENGTH if is_full else None

    # -- what an item does -------------------------------------------------------------------------------------------

    def take(self, work: Work, stream: int, now_s: float, cut: DropCause | None = None) -> list[Verdict | Refusal]:
        """Take an item; the answers that can be given without a pass.

        By position, as the contract has it: at the committed length it is work; at the base of the last verdict that
        verdict again; behind, what hangs below the tokens committed since; ahead, with what it assumes, held.

        Args:
            cut: why the draft is less than was sent, where it is; counted.
        """
        self.renew(now_s)
        has_moved, self.stream = stream != self.stream, stream
        if refusal := self._refusal(work):
            return [refusal]
        again = self._again(work, has_moved)
        if self.finish is not None:
            if not again:
                self.count_drop("finished")
            return again
        if cut is not None:
            self.count_drop(cut)
        if cut is None and _is_grant(work):
            self._grant(work, now_s)
            return again
        if again and self._is_resend(work):
            self.count_drop("resend")
            return again
        return again + self._take_draft(work, now_s)

    def resume(self, opened: Open, stream: int, now_s: float) -> list[Verdict] | None:
        """Open the session that is open already, as after a lost stream: what was committed beyond what is known.

        Returns:
            None: it is another request under the same id.
        """
        same = (opened.sampling, opened.seed, opened.rule, opened.prompt, opened.end_ids, opened.tenant)
        ours = self.opened
        num_known = len(opened.tokens)
        if same != (ours.sampling, ours.seed, ours.rule, ours.prompt, ours.end_ids, ours.tenant):
            return None
        if not self.start <= num_known <= len(self.tokens) or tuple(self.tokens[:num_known]) != opened.tokens:
            return None
        self.stream = stream
        self.renew(now_s)
        return [self._since(num_known, None)] if num_known < len(self.tokens) else []

    def _refusal(self, work: Work) -> Refusal | None:
        length = len(self.tokens)
        if not self.start <= work.position <= length:
            what = f"position {work.position} is outside the committed [{self.start}, {length}]; go on at {length}"
            return self.refuse(StalePosition(what))
        if self.hashes.at(work.position) != work.prefix_hash:
            what = f"the {work.position} tokens before the item are not those committed here; reopen the session"
            return self.refuse(PrefixMismatch(what))
        return None

    def _again(self, work: Work, has_moved: bool) -> list[Verdict | Refusal]:
        """What the sender seems not to have heard: the last verdict, or after a new stream all since its position."""
        verdict = self.last_verdict
        if verdict is not None and work.position == verdict.position and (has_moved or self._is_resend(work)):
            return [verdict]
        if has_moved and work.position < len(self.tokens):
            return [self._since(work.position, work.round if work.round < self.next_round else None)]
        return []

    def _is_resend(self, work: Work) -> bool:
        """Whether an item at the base of the last verdict asks for that verdict, and is no draft that came too late."""
        verdict, hand = self.last_verdict, self.in_hand
        if verdict is None or work.position != verdict.position or work.assumes:
            return False
        if work.first_node and (not verdict.num_drafted or (hand is not None and hand.round == work.round)):
            return False  # a late part: nodes that the verdict did not see
        if work.round == verdict.round or (work.position, work.round) == self.last_grant:
            return True
        return bool(verdict.num_drafted and work.draft.tokens)

    def _since(self, position: int, round_: int | None) -> Verdict:
        """One verdict over everything committed from `position` on."""
        first = position - self.start
        return Verdict(
            session=self.key.session,
            position=position,
            tokens=tuple(self.tokens[position:]),
            kinds=tuple(self.kinds[first:]),
            round=round_,
            num_drafted=0,
            num_accepted=0,
            finish=self.finish,
            prefix_hash=self.hashes.at(position),
        )

    def _grant(self, work: Work, now_s: float) -> None:
        if work.position < self.last_grant[0]:
            self.count_drop("stale_grant")
            return
        self.last_grant = work.position, work.round
        self.free_until = work.position + work.grant
        self.held_until_s = now_s + work.patience_us / 1e6
        if self.in_hand is not None and self.in_hand.round == work.round and not self.in_hand.draft.tokens:
            self.in_hand = None  # the round it announced has come to nothing

    def _take_draft(self, work: Work, now_s: float) -> list[Verdict | Refusal]:
        hand = self._hand_of(work.round)
        if hand is not None:
            if (hand.position, hand.assumes) != (work.position, work.assumes):
                what = f"round {work.round} began at position {hand.position}, this part says {work.position}"
                return [self.refuse(StalePosition(what))]
            if not hand.add(work, now_s):
                return [self._refuse_gap(work, len(hand.draft))]
        elif work.round < self.next_round:
            if work.draft.tokens:
                self.count_drop("late")
            return []
        elif work.first_node:
            return [self._refuse_gap(work, 0)]
        else:
            self._take_first(DraftInHand.begin(work, now_s))
        self._sort_hands()
        self._measure_turnaround(now_s)
        return self._refuse_if_stuck()

    def _measure_turnaround(self, now_s: float) -> None:
        hand = self.in_hand
        if hand is None or not hand.is_complete:
            return
        if self.verdict_at_s is not None and hand.arrived_s >= self.verdict_at_s:
            took_s, self.verdict_at_s = now_s - self.verdict_at_s, None
        elif self.unanswered_s is not None and hand.arrived_s >= self.unanswered_s:  # it came during the pass
            took_s, self.unanswered_s = now_s - self.unanswered_s, None
        else:
            return  # one that lay there before the verdict says nothing of how long they take
        self.awaits_draft = False
        self.offered += SMOOTHING * (1.0 - self.offered)
        known_s = took_s if self.turnaround_s is None else self.turnaround_s
        self.deviation_s += SMOOTHING * (abs(took_s - known_s) - self.deviation_s)
        self.turnaround_s = known_s + SMOOTHING * (took_s - known_s)

    def _hand_of(self, round_: int) -> DraftInHand | None:
        if self.in_hand is not None and self.in_hand.round == round_:
            return self.in_hand
        return next((hand for hand in self.ahead if hand.round == round_), None)

    def _take_first(self, hand: DraftInHand) -> None:
        if hand.base <= len(self.tokens) and hand.assumption_holds(self.tokens):
            self._put_in_hand(hand)
        elif len(self.ahead) < MAX_ROUNDS_AHEAD:
            self.ahead.append(hand)
        else:
            self.count_drop("ahead_full")

    def _put_in_hand(self, hand: DraftInHand) -> None:
        if self.in_hand is not None and len(self.in_hand.draft) > self.in_hand.num_verified:
            self.count_drop("superseded")
        self.in_hand = hand
        self.next_round = max(self.next_round, hand.round)

    def _sort_hands(self) -> None:
        """Bring the drafts in line with what is committed: put in hand what was ahead, drop what is not below it."""
        for hand in sorted(self.ahead, key=lambda hand: hand.round):
            is_reached, holds = hand.base <= len(self.tokens), hand.assumption_holds(self.tokens)
            if is_reached or not holds:
                self.ahead.remove(hand)
            if not holds:
                self.count_drop("assumption")
            elif is_reached:
                self._put_in_hand(hand)
        hand_now = self.in_hand
        if hand_now is None:
            return
        state = hand_now.rest(self.tokens).state
        if state in {RestState.USABLE, RestState.COMING}:
            return
        self.in_hand = None
        if hand_now.num_verified:
            if len(hand_now.draft) > hand_now.num_verified:
                self.count_drop("late")
            return
        if hand_now.draft.tokens:  # else it was cut to nothing, which is counted
            self.count_drop("overtaken" if state is RestState.USED_UP else "behind")
        self.next_round = max(self.next_round, hand_now.round + 1)
        self.free_until = max(self.free_until, hand_now.free_until)
        self.held_until_s = -inf  # what it was held for has come
        self.over = hand_now

    # -- refusals ----------------------------------------------------------------------------------------------------

    def refuse(self, error: PilotfishError) -> Refusal:
        """A refusal that says where the session is."""
        return refuse(error, self.key.session, self.opened.incarnation, position=len(self.tokens))

    def _refuse_gap(self, work: Work, num_nodes: int) -> Refusal:
        what = f"round {work.round} has {num_nodes} nodes here, this part begins at node {work.first_node}"
        return self.refuse(StalePosition(f"{what}; send the draft again from node {num_nodes}"))

    def _refuse_if_stuck(self) -> list[Verdict | Refusal]:
        """Where a draft was dropped and no grant is left, no verdict would ever say so."""
        if self.over is None or self.in_hand is not None or len(self.tokens) < self.free_until:
            return []
        ended, self.over = self.over, None
        what = f"round {ended.round} drafts at {ended.base}, where other tokens were committed since"
        return [self.refuse(StalePosition(f"{what}; go on at {len(self.tokens)}"))]


def _is_grant(work: Work) -> bool:
    """Whether an item is nothing but a new grant."""
    return work.is_complete and not work.first_node and not work.draft.tokens


def _kinds(claim: Claim, decision: Decision) -> tuple[TokenKind, ...]:
    if not claim.draft.tokens:
        return (TokenKind.PLAIN,)
    last = TokenKind.BONUS if decision.is_bonus else TokenKind.CORRECTION
    return (*(TokenKind.ACCEPTED for _ in range(decision.num_accepted)), last)
