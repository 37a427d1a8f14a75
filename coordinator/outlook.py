"""What drafting is worth in one session: how its drafts held, how often there were any, how long they took to come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.estimator import Evidence, Phase, SessionEstimator
from pilotfish.confidence import Calibration
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, DrafterLoad
from pilotfish.price import Profile

DELAY_SHARE = 0.1  # of the newest round trip in a session's estimate
COMMON_SHARE = 0.05  # and in that of all sessions of a drafter
BUSY_SHARE = 0.2  # of that, for one that took longer while the session ran free
FREE_SHARE = 0.02  # of a pass: a drafter that takes less costs nothing to ask
CUT_BY_TIME = frozenset({DraftEnd.DEADLINE, DraftEnd.CONTEXT, DraftEnd.GAMMA, DraftEnd.SURVIVAL})


@dataclass(frozen=True, slots=True)
class Outlook:
    """What is known of the drafts of a session before a round."""

    survival: tuple[float, ...]  # of the nodes of a draft that came
    offered: float  # probability that one comes when it is asked for
    round_trip_s: float  # from a verdict until the draft is at the verifier, less the drafting
    num_rounds: int = 0  # that drafted
    is_drawn: bool = False  # drafts are drawn by chance and judged by their law

    def profile(self, drafter: DrafterLoad, *, may_draft_ahead: bool) -> Profile:
        """What asking for a draft is worth, and how long it takes: for the plan."""
        return Profile(
            self.survival,
            drafter.start_us / 1e6,
            drafter.token_us / 1e6,
            self.round_trip_s,
            may_draft_ahead,
            self.is_drawn,
            self.offered,
        )


def is_instant(drafter: DrafterLoad, pass_us: float, gamma: int) -> bool:
    """Whether drawing so many nodes takes next to nothing: tokens are only looked up."""
    return drafter.draft_us(gamma) <= FREE_SHARE * max(pass_us, 1)


@dataclass(slots=True)
class Common:
    """What the sessions of a drafter's speculator found alike: what a new one begins with."""

    away_s: float | None = None  # how long drafts are away, their drawing left out; None: none has come back yet
    is_drawn: bool | None = None  # whether nodes come with a q; None: none has come yet

    def came_back(self, seconds: float, sureness: float = 1.0) -> None:
        """A draft was away so long; that counts as much as it is sure."""
        known = seconds if self.away_s is None else self.away_s
        self.away_s = known + sureness * COMMON_SHARE * (seconds - known)


class Meter:
    """Measures the drafts of one session at one drafter."""

    def __init__(
        self,
        estimator: SessionEstimator,
        round_trip_s: float,
        common: Common | None = None,
        *,
        is_judged_by_law: bool = False,
    ) -> None:
        """Measure from now on.

        Args:
            estimator: of the session.
            round_trip_s: a first guess, where nothing is known of other sessions.
            common: of all sessions of the drafter's speculator.
            is_judged_by_law: a node that was drawn from a q is kept by what p and q say of it, not by equality.
        """
        self._estimator = estimator
        self._common = common or Common()
        self._round_trip_s = round_trip_s if self._common.away_s is None else self._common.away_s
        self._num_rounds = 0
        self._is_judged_by_law = is_judged_by_law
        self._has_q: bool | None = None  # whether any of its nodes came with one; None: none has come yet

    def outlook(self, num_depths: int) -> Outlook:
        """What is known now."""
        survival, offered = self._estimator.survival(num_depths), self._estimator.offered
        return Outlook(survival, offered, self._round_trip_s, self._num_rounds, self._is_drawn)

    @property
    def away_s(self) -> float:
        """How long a draft is away, its drawing left out."""
        return self._round_trip_s

    def enter(self, phase: Phase) -> None:
        """What is drafted from now on is of this phase."""
        self._estimator.enter(phase)

    def received(self, draft: Draft) -> None:
        """Nodes have come."""
        if draft.tokens:
            self._has_q = bool(self._has_q) or any(q is not None for q in draft.q)
            self._common.is_drawn = self._has_q

    @property
    def _is_drawn(self) -> bool:
        """Whether drafts are drawn by chance and judged by their law; where nothing is known yet, they may be."""
        has_q = self._common.is_drawn is not False if self._has_q is None else self._has_q
        return self._is_judged_by_law and has_q

    @property
    def calibration(self) -> Calibration:
        """What the drafter's confidence is worth, for it to stop by."""
        return self._estimator.calibration

    def answered(self, num_nodes: int) -> None:
        """An answer to a request for a draft is complete, with so many nodes."""
        self._estimator.answered(is_given=num_nodes > 0)

    def decided(
        self,
        gamma: int,
        nodes: Sequence[int],
        committed: Sequence[int],
        end: DraftEnd | None,
        num_overtaken: int = 0,
        confidences: Sequence[float] = (),
    ) -> None:
        """What became of a draft: its chain of tokens beside those that were committed from its position on.

        A node counts as kept where the token at its place is its own: so drafts that came late count too, as far as
        they can be told.

        Args:
            gamma: nodes that were asked for.
            nodes: tokens of the chain that came.
            committed: tokens from the draft's position on.
            end: why no more nodes came; None: not known.
            num_overtaken: places that had been committed before its verdict, by running on or because it came late. Of
                drafts that are judged by their law such a place says nothing.
            confidences: of the nodes, as far as the drafter says, and of one that it did not draw for its price.
        """
        if self._is_drawn:
            gamma, nodes, committed = gamma - num_overtaken, nodes[num_overtaken:], committed[num_overtaken:]
            confidences = confidences[num_overtaken:]
            if not committed:
                self.ran_free(num_overtaken)
                return
        if not nodes:
            return
        num_kept = next(
            (i for i, (node, token) in enumerate(zip(nodes, committed, strict=False)) if node != token),
            min(len(nodes), len(committed)),
        )
        is_decided = num_kept < min(len(nodes), len(committed))
        num_drafted = len(nodes) if is_decided or num_kept == len(nodes) else num_kept
        is_cut_by_time = end is None or end in CUT_BY_TIME or num_kept < len(nodes)
        self._num_rounds += 1
        self._estimator.calibrate(confidences[:num_drafted], num_kept)
        evidence = Evidence.of_round(gamma, num_drafted, num_kept, is_cut_by_time=is_cut_by_time and not is_decided)
        if end is DraftEnd.SURVIVAL and num_kept == len(nodes) and confidences:
            evidence = evidence.with_undrawn(self.calibration.probability(confidences[-1]))
        self._estimator.observe(evidence)

    def ran_free(self, num_tokens: int) -> None:
        """So many tokens were committed without a draft."""
        self._estimator.fade(num_tokens)

    def came_back(self, seconds: float, *, is_held: bool = True) -> None:
        """A draft took so long from the verdict before it, its drafting left out.

        What is asked is how long one takes that is waited for. While a session runs free so does the verifier, and
        where they share a machine drafts take longer for it: that is no reason not to wait, and counts little.
        """
        seconds = max(0.0, seconds)
        sureness = 1.0 if is_held or seconds < self._round_trip_s else BUSY_SHARE
        share = 1.0 if self._common.away_s is None else sureness * DELAY_SHARE  # the first one replaces a guess
        self._common.came_back(seconds, sureness)
        self._round_trip_s += share * (seconds - self._round_trip_s)
