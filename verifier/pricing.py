"""The engine's side of the price: what its passes cost, and the plan that follows for the sessions it has."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final

import numpy as np

from pilotfish.price import Plan, Profile
from verifier.cost import CostCurve, PassShape
from verifier.plan import CostCurve as Curve
from verifier.planner import Planner
from verifier.tempo import PassLength
from verifier.traffic import PassRecord

RUNS_FREE: Final = Profile((), 0.0, 0.0, 0.0)  # of a session of which nothing is known


@dataclass(frozen=True, slots=True)
class PassYield:
    """What a pass brought, beside its record."""

    num_context_tokens: int  # of KV that its sequences attended to
    num_tokens: int  # committed
    since_s: float  # from when its time counts: the end of the pass before it, where sessions were held for drafts
    num_running: int = 0  # sessions that have read their prompts; known where the pass read prompts


class Pricing:
    """Learns from every pass and keeps the plan. Belongs to the engine's thread."""

    def __init__(self, curve: CostCurve, max_gamma: int, now_s: float) -> None:
        """Begin with a curve that was measured.

        Args:
            curve: kept up to date from now on.
            max_gamma: most tokens in a draft.
            now_s: the time.
        """
        self.curve = curve
        self._context_tokens = 0.0  # of a session, smoothed
        self._planner = Planner(self._cost, max_gamma, now_s, time.perf_counter)
        self.saturation = 0.0  # of the last pass, in [0, 1]

    @property
    def plan(self) -> Plan:
        return self._planner.plan

    @property
    def realised_speedup(self) -> float | None:
        """Tokens committed over those of plain decoding in the same time, in the last full window."""
        return self._planner.realised_speedup

    @property
    def plain_s(self) -> float:
        """Length of a pass if every session ran free; 0: there is none."""
        return self._planner.plain_s

    @property
    def length(self) -> PassLength:
        """T, for sessions with as much context as those that are there."""
        return self.curve.length(self._context_tokens)

    def put(self, session: Hashable, profile: Profile) -> None:
        """A session is there, or what is known of it has changed."""
        self._planner.put(session, profile)

    def remove(self, session: Hashable) -> None:
        """A session has ended."""
        self._planner.remove(session)

    def prepare(self, now_s: float) -> None:
        """Before a pass, whose verdicts will be answered by the plan: have one for the sessions that are there."""
        if self._planner.is_for_others:
            self._planner.update(now_s)

    def passed(self, record: PassRecord, brought: PassYield) -> None:
        """Take in a pass. One that read prompts teaches nothing of what passes cost, only whether the plan pays."""
        shape = PassShape(record.num_positions, record.num_sequences, brought.num_context_tokens)
        seconds = record.ended_s - brought.since_s
        if not record.num_prefill_positions:
            self.curve.observe(shape, record.length_s)
            self._context_tokens += 0.1 * (brought.num_context_tokens / record.num_sequences - self._context_tokens)
            self._planner.observe(brought.num_tokens, seconds)
            self.saturation = self.curve.saturation(shape)
        elif brought.num_running:
            self._planner.observe(brought.num_tokens, seconds, self._plain_rate(record, brought.num_running))
        self._planner.update(record.ended_s)

    def _plain_rate(self, record: PassRecord, num_running: int) -> float:
        """Tokens per second if the sessions that run had run free in a pass that read the same prompts.

        Its length is that of the pass, changed as the curve has it: so what prompts cost beyond it changes nothing.
        """
        num_positions = np.array([num_running + record.num_prefill_positions, record.num_positions], dtype=float)
        plain_s, pass_s = self._cost(self._planner.num_sessions)(num_positions)
        return float(num_running * pass_s / (plain_s * record.length_s))

    def _cost(self, num_sessions: int) -> Curve:
        return self.curve.at(num_sessions, round(num_sessions * self._context_tokens))
