"""How likely drafts hold: acceptance by depth, from all sessions of a kind and from the session's own recent rounds.

The probability that a node is kept, given that its parent was, is counted for each depth as a Beta distribution whose
counts decay. Two levels are combined: what drafts of this kind (drafter, speculator, workload, temperature band) did
lately, and what this session's drafts did in its last few rounds, which follows a change in mid-text. Depths that were
seldom reached lean on the depth above them. A node that was asked for and never proposed counts as one that did not
hold: what is estimated is what asking for a draft is worth.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from itertools import accumulate
from operator import mul
from pathlib import Path
from typing import NamedTuple

KIND_MEMORY = 400.0  # trials a kind remembers at each depth, about
SESSION_MEMORY = 0.85  # of a session's counts that is left after a round
KIND_WEIGHT = 2.0  # trials the kind's rate is worth against the session's own
DEPTH_WEIGHT = 4.0  # trials the depth above is worth
FIRST_RATE = 0.7  # of the first node, before anything is known: optimistic, so that it is tried
FIRST_WEIGHT = 2.0  # trials that guess is worth
FORMAT_VERSION = 1


class Kind(NamedTuple):
    """What drafts are counted together for."""

    drafter: str  # its model, or its address
    speculator: str
    workload: str
    temperature_band: int

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

    def rates(self, num_depths: int) -> list[float]:
        """Rate by depth; each leans on the one above it."""
        rates: list[float] = []
        above, weight = FIRST_RATE, FIRST_WEIGHT
        for depth in range(num_depths):
            kept, tried = (self.kept[depth], self.tried[depth]) if depth < len(self.tried) else (0.0, 0.0)
            above = (weight * above + kept) / (weight + tried)
            weight = DEPTH_WEIGHT
            rates.append(above)
        return rates


class Estimator:
    """Acceptance of every kind of draft, and a place to keep it."""

    def __init__(self) -> None:
        self._kinds: dict[Kind, Counts] = {}

    def session(self, kind: Kind) -> SessionEstimator:
        """An estimator for one session whose drafts are of this kind."""
        return SessionEstimator(self._kinds.setdefault(kind, Counts()))

    def rates(self, kind: Kind, num_depths: int) -> list[float]:
        """What is known of a kind, without any session."""
        return self._kinds.get(kind, Counts()).rates(num_depths)

    def save(self, path: Path) -> None:
        """Write all counts to a file, whole or not at all."""
        temporary = path.with_suffix(f".{os.getpid()}.tmp")
        kinds = [
            {"kind": list(kind), "kept": counts.kept, "tried": counts.tried} for kind, counts in self._kinds.items()
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
                drafter, speculator, workload, band = entry["kind"]
                counts = Counts([kept / 2 for kept in entry["kept"]], [tried / 2 for tried in entry["tried"]])
                self._kinds[Kind(str(drafter), str(speculator), str(workload), int(band))] = counts
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return True


class SessionEstimator:
    """Acceptance in one session: its own recent rounds, leaning on its kind."""

    def __init__(self, kind: Counts) -> None:
        self._kind = kind
        self._own = Counts()

    def observe(self, evidence: Evidence) -> None:
        """Learn from a round, for this session and for all of its kind."""
        self._own.add(evidence, SESSION_MEMORY)
        self._kind.add_bounded(evidence, KIND_MEMORY)

    def fade(self, num_tokens: int) -> None:
        """So many tokens were committed without a draft: what was known of the session's drafts grows old.

        So a bad spell ends by itself: the session leans on its kind again, and a draft is tried.
        """
        memory = SESSION_MEMORY ** (num_tokens / 8)
        self._own.add(Evidence((), ()), memory)

    def survival(self, num_depths: int) -> tuple[float, ...]:
        """Probability that the first node, the first two, … hold; [num_depths], never rising."""
        kind = self._kind.rates(num_depths)
        rates = []
        for depth, rate in enumerate(kind):
            kept, tried = (
                (self._own.kept[depth], self._own.tried[depth]) if depth < len(self._own.tried) else (0.0, 0.0)
            )
            rates.append((KIND_WEIGHT * rate + kept) / (KIND_WEIGHT + tried))
        return tuple(accumulate(rates, mul))
