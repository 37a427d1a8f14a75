"""The sessions of a verifier as classes of like ones: what a plan is solved for."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from itertools import islice
from math import fsum

import numpy as np

from pilotfish.price import Profile

MAX_CLASSES = 8
NUM_TYPICAL = 8  # members whose mean stands for a class
Class = tuple[float, ...]  # survival of the first node and of one further down, offers, times, depth, two kinds
WEIGHTS = np.array([1 / 12, 1 / 12, 1 / 12, 1 / 20, 1 / 40, 1.0, 1.0, 1.0])  # of the differences between classes


@dataclass(slots=True)
class Crowd:
    """Profiles of sessions, counted by class as they come, change and go."""

    _profiles: dict[Hashable, tuple[Class, Profile]] = field(default_factory=dict)
    _members: dict[Class, dict[Hashable, None]] = field(default_factory=dict)

    @staticmethod
    def of(profiles: Iterable[Profile]) -> Crowd:
        """A crowd of sessions without names."""
        crowd = Crowd()
        for number, profile in enumerate(profiles):
            crowd.put(number, profile)
        return crowd

    def __len__(self) -> int:
        return len(self._profiles)

    def get(self, session: Hashable) -> Profile | None:
        """A session's profile."""
        known = self._profiles.get(session)
        return None if known is None else known[1]

    def put(self, session: Hashable, profile: Profile) -> None:
        """A session came, or what is known of it has changed."""
        found = _class(profile)
        known = self._profiles.get(session)
        if known is None or known[0] != found:
            if known is not None:
                self._leave(session, known[0])
            self._members.setdefault(found, {})[session] = None
        self._profiles[session] = (found, profile)

    def remove(self, session: Hashable) -> bool:
        """A session went; False where it was not there."""
        known = self._profiles.pop(session, None)
        if known is None:
            return False
        self._leave(session, known[0])
        return True

    def classes(self) -> list[tuple[Profile, int]]:
        """One profile for each class, with the number of its sessions; the rarest join the class nearest to them."""
        by_class = sorted(self._members.items(), key=lambda item: -len(item[1]))
        ordered = [members for _, members in by_class]
        kept = [self._typical(members) for members in ordered[:MAX_CLASSES]]
        counts = [len(members) for members in ordered[:MAX_CLASSES]]
        if rest := ordered[MAX_CLASSES:]:
            features = np.array([found for found, _ in by_class]) * WEIGHTS
            distances = np.abs(features[MAX_CLASSES:, None] - features[None, :MAX_CLASSES]).sum(2)
            for members, nearest in zip(rest, distances.argmin(1), strict=True):
                counts[nearest] += len(members)
        return list(zip(kept, counts, strict=True))

    def _typical(self, members: Iterable[Hashable]) -> Profile:
        """One profile for all members: the mean survival of some of them."""
        some = [self._profiles[session][1] for session in islice(members, NUM_TYPICAL)]
        if len(some) == 1:
            return some[0]
        offered = fsum(one.offered for one in some)
        survival = tuple(
            fsum(one.offered * value for one, value in zip(some, values, strict=True)) / offered if offered else 0.0
            for values in zip(*(one.survival for one in some), strict=True)
        )
        return replace(some[0], survival=survival, offered=offered / len(some))

    def _leave(self, session: Hashable, former: Class) -> None:
        members = self._members[former]
        del members[session]
        if not members:
            del self._members[former]


def _class(profile: Profile) -> Class:
    depth = len(profile.survival)
    first, middle = (profile.survival[0], profile.survival[depth // 4]) if depth else (0.0, 0.0)
    return (
        round(first * 12),
        round(middle * 12),
        round(profile.offered * 12),
        _band(profile.away_s(0)),
        _band(profile.token_s),
        depth,
        profile.may_draft_ahead,
        profile.is_drawn,
    )


def _band(seconds: float) -> float:
    """Times within a tenth are alike."""
    return float(round(10.0 * math.log(max(seconds, 1e-6))))
