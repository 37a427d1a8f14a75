"""How likely drafts hold: acceptance by depth, from all sessions of a kind and from the session's own recent rounds.

The probability that a node is kept, given that its parent was, is counted for each depth as a Beta distribution whose
counts decay: what drafts of this kind (drafter, speculator, workload, temperature band) did lately. Depths that were
seldom reached lean on the depth above them. A session is better or worse than its kind by one factor of the odds at all
depths, from its own last rounds. How long a session's rounds count, and how much they count against its kind, is
learned for each kind from how well each way would have foretold the rounds that followed: sessions that are alike lean
on one another, sessions that differ on themselves. A node that was asked for and never proposed counts as one that did
not hold: what is estimated is what asking for a draft is worth. How often any node comes at all is counted apart, for
each kind and session: where one only looks tokens up, mostly none does.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from coordinator.calibration import Line
from pilotfish.confidence import Calibration

FIRST_RATE = 0.7  # of the first node, before anything is known: optimistic, so that it is tried
FIRST_WEIGHT = 2.0  # trials that guess is worth
MIN_RATE = 0.01  # no session is surer than this and its complement
FADE_TOKENS = 5  # tokens without a draft that make a session's rounds as old as one round does
FADE_MEMORY = 0.95  # however long its rounds count
WAY_GAIN = 0.5  # nats by which another way must have been better
MOST_ODDS = 999.0  # that a way is taken to have foretold, and their inverse: no surprise is worth more than 7 nats
LEAST_FAILURE = 1e-12  # of a rate, where its odds are taken: a kind whose nodes all hold comes to a rate of 1
OFFERS_REMEMBERED = 64.0  # answers of a drafter that a kind remembers
OFFER_MEMORY = 0.7  # of a session's, left after one
OFFER_WEIGHT = 1.0  # answers that what its kind found is worth
FORMAT_VERSION = 4


@dataclass(frozen=True, slots=True)
class Weights:
    """How much what counts, and what is left out when an ingredient's gain is measured."""

    kind_memory: float = 400.0  # trials a kind remembers at each depth, about
    depth_weight: float = 4.0  # trials the depth above is worth
    session_memories: tuple[float, ...] = (0.5, 0.85, 0.98)  # of a session's counts, left after a round: ways to try
    session_weights: tuple[float, ...] = (2.0, 8.0, 32.0)  # trials the kind is worth against them: ways to try
    way_memory: float = 0.995  # of how well each way foretold, left after a round of the kind
    first_way: int = 4  # before anything is known: index over memories, then weights
    has_kind: bool = True
    has_session: bool = True
    has_phase: bool = True
    learns_way: bool = True

    @property
    def num_ways(self) -> int:
        return len(self.session_memories) * len(self.session_weights)


class Phase(Enum):
    """What part of its answer a session is at."""

    ANSWER = "answer"
    REASONING = "reasoning"  # between the model's think marks


class Kind(NamedTuple):
    """What drafts are counted together for."""

    drafter: str  # its model, or its address
    speculator: str
    workload: str
    temperature_band: int
    phase: Phase = Phase.ANSWER

    @staticmethod
    def of(drafter: str, speculator: str, workload: str, temperature: float) -> Kind:
        return Kind(drafter, speculator, workload, temperature_band(temperature))


def temperature_band(temperature: float) -> int:
    """0 greedy, then bands of 0.4."""
    return 0 if temperature == 0.0 else 1 + min(int(temperature / 0.4), 4)


@dataclass(frozen=True, slots=True)
class Evidence:
    """What one round says of the drafts: counts by depth, the first node first."""

    num_kept: tuple[float, ...]
    num_tried: tuple[float, ...]

    @staticmethod
    def of_round(num_asked: int, num_drafted: int, num_accepted: int, is_cut_by_time: bool = False) -> Evidence:
        """A chain: nodes up to the first that did not hold.

        Args:
            num_asked: γ.
            num_drafted: nodes that were verified.
            num_accepted: of them.
            is_cut_by_time: the draft ended for a reason that says nothing of its worth (deadline, patience).
        """
        kept = (1.0,) * num_accepted
        did_fail = num_accepted < num_drafted or (num_drafted < num_asked and not is_cut_by_time)
        return Evidence(kept + (0.0,) * did_fail, kept + (1.0,) * did_fail)

    def with_undrawn(self, rate: float) -> Evidence:
        """The round with a node more, which was not drawn for being so unlikely: drawn ones alone would flatter.

        Args:
            rate: at which such nodes hold, as their confidence or that of the last node drawn has it.
        """
        return Evidence((*self.num_kept, rate), (*self.num_tried, 1.0))

    @staticmethod
    def of_probabilities(rates: tuple[float, ...]) -> Evidence:
        """Every node's own probability of being kept, given its parent: evidence even below a rejection."""
        return Evidence(rates, (1.0,) * len(rates))


@dataclass(slots=True)
class Counts:
    """Kept and tried nodes by depth, decaying."""

    kept: list[float] = field(default_factory=list)
    tried: list[float] = field(default_factory=list)

    def add(self, evidence: Evidence, memory: float) -> None:
        """Let what was counted fade by `memory`, then count the round."""
        while len(self.tried) < len(evidence.num_tried):
            self.kept.append(0.0)
            self.tried.append(0.0)
        for depth in range(len(self.tried)):
            self.kept[depth] *= memory
            self.tried[depth] *= memory
        for depth, (kept, tried) in enumerate(zip(evidence.num_kept, evidence.num_tried, strict=True)):
            self.kept[depth] += kept
            self.tried[depth] += tried

    def add_bounded(self, evidence: Evidence, most: float) -> None:
        """Count the round; a depth that holds more than `most` trials forgets the oldest in proportion."""
        self.add(evidence, 1.0)
        for depth in range(len(evidence.num_tried)):
            if self.tried[depth] > most:
                share = most / self.tried[depth]
                self.kept[depth] *= share
                self.tried[depth] *= share

    def rates(self, num_depths: int, depth_weight: float) -> list[float]:
        """Rate by depth; each leans on the one above it."""
        rates: list[float] = []
        above, weight = FIRST_RATE, FIRST_WEIGHT
        for kept, tried in zip(self.kept[:num_depths], self.tried, strict=False):
            above = (weight * above + kept) / (weight + tried)
            weight = depth_weight
            rates.append(above)
        return rates + [above] * (num_depths - len(rates))


@dataclass(slots=True)
class Offers:
    """Answers to requests for a draft, and those of them that had any node; older ones count less."""

    given: float = 0.0
    asked: float = 0.0

    def add(self, is_given: bool, memory: float) -> None:
        """Count an answer; what was counted fades by `memory`."""
        self.given = memory * self.given + is_given
        self.asked = memory * self.asked + 1.0

    def rate(self, expected: float) -> float:
        """Probability that a draft comes, where so much was expected before anything was counted."""
        return (OFFER_WEIGHT * expected + self.given) / (OFFER_WEIGHT + self.asked)


@dataclass(slots=True)
class KindState:
    """What is known of one kind."""

    counts: Counts
    losses: list[float]  # by way: decayed log loss of what it foretold
    best_way: int
    line: Line = field(default_factory=Line)  # from confidence to acceptance
    offers: Offers = field(default_factory=Offers)

    def judge(self, losses: list[float], memory: float) -> None:
        """So badly did each way foretell a round."""
        self.losses = [memory * before + loss for before, loss in zip(self.losses, losses, strict=True)]
        least = min(self.losses)
        if self.losses[self.best_way] > least + WAY_GAIN:
            self.best_way = self.losses.index(least)


class Estimator:
    """Acceptance of every kind of draft, and a place to keep it."""

    def __init__(self, weights: Weights = Weights()) -> None:
        self._weights = weights
        self._kinds: dict[Kind, KindState] = {}

    def session(self, kind: Kind) -> SessionEstimator:
        """An estimator for one session whose drafts are of this kind."""
        return SessionEstimator(self._state, kind, self._weights)

    def _state(self, kind: Kind) -> KindState:
        return self._kinds.setdefault(kind, self._unknown())

    def rates(self, kind: Kind, num_depths: int) -> list[float]:
        """What is known of a kind, without any session."""
        return self._kinds.get(kind, self._unknown()).counts.rates(num_depths, self._weights.depth_weight)

    @property
    def acceptance_rate(self) -> float | None:
        """Kept over tried nodes of all kinds, as far as they are remembered; None where none was tried."""
        tried = sum(sum(state.counts.tried) for state in self._kinds.values())
        kept = sum(sum(state.counts.kept) for state in self._kinds.values())
        return kept / tried if tried else None

    def _unknown(self) -> KindState:
        return KindState(Counts(), [0.0] * self._weights.num_ways, self._weights.first_way)

    def save(self, path: Path) -> None:
        """Write all counts to a file, whole or not at all."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        kinds = [
            {
                "kind": [*kind[:-1], kind.phase.value],
                "kept": state.counts.kept,
                "tried": state.counts.tried,
                "line": state.line.numbers,
                "offers": [state.offers.given, state.offers.asked],
            }
            for kind, state in self._kinds.items()
        ]
        temporary.write_text(json.dumps({"format": FORMAT_VERSION, "kinds": kinds}))
        temporary.replace(path)

    def load(self, path: Path) -> bool:
        """Take counts from a file, at most half as sure as they were; False where there is none that can be read."""
        try:
            content = json.loads(path.read_text())
            if content["format"] != FORMAT_VERSION:
                return False
            for entry in content["kinds"]:
                drafter, speculator, workload, band, phase = entry["kind"]
                counts = Counts([kept / 2 for kept in entry["kept"]], [tried / 2 for tried in entry["tried"]])
                kind = Kind(str(drafter), str(speculator), str(workload), int(band), Phase(phase))
                state = self._state(kind)
                state.line.restore(entry["line"], sureness=0.5)
                given, asked = entry["offers"]
                state.counts, state.offers = counts, Offers(given / 2, asked / 2)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True


@dataclass(slots=True)
class Own:
    """A session's nodes, decaying: how many were kept, how many its kind would have kept, how many were tried."""

    kept: float = 0.0
    expected: float = 0.0
    tried: float = 0.0

    def odds(self, weight: float) -> float:
        """The session's odds over its kind's, the kind being worth `weight` trials."""
        if not self.tried:
            return 1.0
        mean = min(1.0 - MIN_RATE, max(MIN_RATE, self.expected / self.tried))
        own = (weight * mean + self.kept) / (weight + self.tried)
        own = min(1.0 - MIN_RATE, max(MIN_RATE, own))
        return own / (1.0 - own) * (1.0 - mean) / mean


class SessionEstimator:
    """Acceptance in one session: its own recent rounds, leaning on its kind."""

    def __init__(self, find: Callable[[Kind], KindState], kind: Kind, weights: Weights) -> None:
        """Make one that has seen nothing.

        Args:
            find: what is known of a kind.
            kind: of the session, as it begins.
        """
        self._find = find
        self._of = kind
        self._kind = find(kind)
        self._weights = weights
        self._own = [Own() for _ in weights.session_memories]
        self._offers = Offers()

    def enter(self, phase: Phase) -> None:
        """The drafts that follow are of this phase: another kind, over which the session's odds stay what they were."""
        if self._weights.has_phase and phase is not self._of.phase:
            self._of = self._of._replace(phase=phase)
            self._kind = self._find(self._of)

    def observe(self, evidence: Evidence) -> None:
        """Learn from a round, for this session and for all of its kind."""
        weights, kind = self._weights, self._kind
        rates = self._kind_rates(len(evidence.num_tried))
        if weights.learns_way:
            kind.judge(self._losses(evidence, rates), weights.way_memory)
        kept, tried = sum(evidence.num_kept), sum(evidence.num_tried)
        expected = sum(rate * num for rate, num in zip(rates, evidence.num_tried, strict=True))
        for own, memory in zip(self._own, weights.session_memories, strict=True):
            own.kept = memory * own.kept + kept
            own.expected = memory * own.expected + expected
            own.tried = memory * own.tried + tried
        kind.counts.add_bounded(evidence, weights.kind_memory)

    @property
    def offered(self) -> float:
        """Probability that a draft has any node; before anything is known it has."""
        return self._offers.rate(self._kind.offers.rate(1.0) if self._weights.has_kind else 1.0)

    def answered(self, *, is_given: bool) -> None:
        """A request for a draft was answered, with nodes or without any."""
        self._offers.add(is_given, OFFER_MEMORY)
        self._kind.offers.add(is_given, 1.0 - 1.0 / OFFERS_REMEMBERED)

    @property
    def calibration(self) -> Calibration:
        """What a drafter's confidence is worth in drafts of this kind."""
        return self._kind.line.calibration

    def calibrate(self, confidences: Sequence[float], num_kept: int) -> None:
        """Learn what confidences were worth, as `Line.observe` has it."""
        self._kind.line.observe(confidences, num_kept)

    def fade(self, num_tokens: int) -> None:
        """So many tokens were committed without a draft: what was known of the session's drafts grows old.

        So a bad spell ends by itself: the session leans on its kind again, and a draft is tried.
        """
        for own, memory in zip(self._own, self._weights.session_memories, strict=True):
            share = min(memory, FADE_MEMORY) ** (num_tokens / FADE_TOKENS)
            own.kept, own.expected, own.tried = own.kept * share, own.expected * share, own.tried * share

    def survival(self, num_depths: int) -> tuple[float, ...]:
        """Probability that the first node, the first two, … hold; [num_depths], never rising."""
        weights = self._weights
        rates = self._kind_rates(num_depths)
        odds = self._odds(self._kind.best_way) if weights.has_session else 1.0
        alive, survival = 1.0, []
        for rate in rates:
            alive *= rate * odds / (1.0 - rate + rate * odds)
            survival.append(alive)
        return tuple(survival)

    def _kind_rates(self, num_depths: int) -> list[float]:
        if not self._weights.has_kind:
            return [FIRST_RATE] * num_depths
        return self._kind.counts.rates(num_depths, self._weights.depth_weight)

    def _odds(self, way: int) -> float:
        memory, weight = divmod(way, len(self._weights.session_weights))
        return self._own[memory].odds(self._weights.session_weights[weight])

    def _losses(self, evidence: Evidence, rates: Sequence[float]) -> list[float]:
        """By way: log loss, in nats, of what it would have foretold of this round.

        A node whose odds are x was foretold to hold at x / (1 + x), and to fail at 1 / (1 + x).
        """
        nodes = [
            (rate / max(LEAST_FAILURE, 1.0 - rate), kept, tried, tried == 1.0 and kept in {0.0, 1.0})
            for rate, kept, tried in zip(rates, evidence.num_kept, evidence.num_tried, strict=True)
        ]
        losses = []
        for own in map(self._odds, range(self._weights.num_ways)):
            likelihood, loss = 1.0, 0.0
            for kind, kept, tried, is_whole in nodes:
                odds = own * kind
                if odds > MOST_ODDS:
                    odds = MOST_ODDS
                elif odds < 1.0 / MOST_ODDS:
                    odds = 1.0 / MOST_ODDS
                if is_whole:  # the usual case: one logarithm will do for all
                    likelihood *= (odds if kept else 1.0) / (1.0 + odds)
                else:
                    loss += tried * math.log1p(odds) - kept * math.log(odds)
            losses.append(loss - math.log(max(likelihood, 1e-300)))
        return losses
