"""Arms without services: the verifier's own engine and the drafter's own speculator, called in one loop.

The same model, the same passes, the same rounds, and nothing between them: what the services take more than this is
what the split costs.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from benchmarks.records import Answer, Question, RoundRecord
from drafter.speculators import Ask, Speculator
from pilotfish.draft import Draft
from pilotfish.errors import PilotfishError
from pilotfish.messages import Close, Open, Refusal, Rule, Sampling, SessionId, Verdict, VerifierLoad, Work
from pilotfish.prefix import EMPTY, extend

if TYPE_CHECKING:
    import verifier.engine
    from verifier.settings import VerifierSettings
    from verifier.target import Target

CALLER, STREAM, INCARNATION = "benchmark", 0, 1
LEASE_S = 3600.0
NO_GRANT_PATIENCE_US = 3_600_000_000


class Unwatched:
    """An observer of the engine that looks away."""

    def passed(self, record: verifier.engine.PassRecord) -> None:
        """Nobody counts."""

    def dropped(self, cause: str) -> None:
        """Nothing may be dropped here."""
        raise AssertionError(f"a draft was dropped: {cause}")

    def expired(self) -> None:
        """Leases are longer than a benchmark."""


class LocalEngine:
    """An engine that is turned by its user, in the user's thread."""

    def __init__(self, settings: VerifierSettings) -> None:
        """Load the target of the settings; everything else of them holds too."""
        from verifier.admission import Capacity
        from verifier.engine import Answer as EngineAnswer
        from verifier.engine import Engine
        from verifier.schedule import PassLimits, StartByWorth
        from verifier.target import Target

        self.target: Target = Target.load(settings)
        self._verdicts: list[Verdict] = []
        capacity = Capacity(
            incarnation=INCARNATION,
            vocabulary_hash=self.target.vocabulary_hash,
            vocabulary_size=self.target.vocabulary_size,
            context_length=self.target.context_length,
            page_size=settings.page_size,
            num_pages=self.target.num_kv_pages(settings),
            max_sessions=settings.max_sessions,
            max_waiting=settings.max_waiting,
            max_lease_s=LEASE_S,
        )

        def emit(answers: list[EngineAnswer], _load: VerifierLoad) -> None:
            for answer in answers:
                if isinstance(answer.message, Refusal):
                    raise PilotfishError(f"the engine refused: {answer.message.message}")
                if isinstance(answer.message, Verdict):
                    self._verdicts.append(answer.message)

        limits = PassLimits(settings.max_positions, settings.prefill_positions)
        self.engine = Engine(self.target.backend, capacity, limits, StartByWorth(0.0), emit, Unwatched())

    def submit(self, item: Open | Work | Close) -> None:
        from verifier.engine import Command

        self.engine.submit(Command(CALLER, STREAM, item, time.monotonic()))

    def verdict(self) -> Verdict:
        """Run passes until one has decided something."""
        while not self._verdicts:
            due_s = self.engine.turn()
            if due_s == inf and not self._verdicts:
                raise PilotfishError("the engine waits for nothing; a work item is missing")
        return self._verdicts.pop(0)

    def close(self, session: SessionId) -> None:
        self.submit(Close(session, INCARNATION))
        self.engine.turn()


@dataclass(frozen=True, slots=True)
class OneProcess:
    """The round loop in one process; with no speculator the engine runs free."""

    name: str
    local: LocalEngine
    speculator: Speculator | None = None
    gamma: int = 0

    def answer(self, question: Question) -> Answer:
        """Read the prompt, then draft and verify until the end."""
        session = secrets.token_bytes(16)
        is_free = self.speculator is None
        begin = time.perf_counter()
        opened = self._open(session, question, grant=question.max_tokens if is_free else 1)
        self.local.submit(opened)
        if self.speculator is not None:
            self.speculator.open(opened)
        verdict = self.local.verdict()
        first_s = time.perf_counter() - begin
        num_first = len(verdict.tokens)
        ids = list(verdict.tokens)
        rounds = [_record(verdict, 0, 0, 0, round(first_s * 1e6))]
        while verdict.finish is None:
            start = time.perf_counter()
            drafted = start
            if self.speculator is not None:
                self.speculator.observe(session, verdict.tokens)
                position = len(question.prompt) + len(ids)
                draft = self._draft(session, position, question.max_tokens - len(ids) - 1)
                drafted = time.perf_counter()
                self.local.submit(self._work(session, (*question.prompt, *ids), draft, len(rounds)))
            verdict = self.local.verdict()
            end = time.perf_counter()
            ids += verdict.tokens
            since_us = (round((when - begin) * 1e6) for when in (start, drafted, end))
            rounds.append(_record(verdict, self.gamma, *since_us))
        total_s = time.perf_counter() - begin
        self.local.close(session)
        if self.speculator is not None:
            self.speculator.close(session)
        return Answer(tuple(ids), num_first, first_s, total_s, tuple(rounds))

    def _draft(self, session: SessionId, position: int, num_left: int) -> Draft:
        """A chain of at most γ tokens, drawn step by step as a drafter draws it."""
        assert self.speculator is not None
        draft = Draft.EMPTY
        while len(draft) < min(self.gamma, num_left):
            ask = Ask(session, position, draft, min(self.gamma, num_left) - len(draft))
            (step,) = self.speculator.propose([ask])
            if step is None:
                continue
            if not len(step):
                break
            draft = draft.append(step)
        return draft

    def _open(self, session: SessionId, question: Question, grant: int) -> Open:
        return Open(
            session=session,
            incarnation=INCARNATION,
            vocabulary_hash=self.local.target.vocabulary_hash,
            prompt=question.prompt,
            output_so_far=(),
            sampling=Sampling(temperature=question.temperature),
            seed=question.seed,
            rule=Rule.MATCH,
            end_ids=frozenset(self.local.target.end_ids),
            max_tokens=question.max_tokens,
            lease_s=LEASE_S,
            grant=grant,
            patience_us=0,
        )

    def _work(self, session: SessionId, committed: tuple[int, ...], draft: Draft, number: int) -> Work:
        """The draft, held until the next one; or one plain token where there is none."""
        return Work(
            session=session,
            incarnation=INCARNATION,
            position=len(committed),
            prefix_hash=extend(EMPTY, committed),
            round=number,
            draft=draft,
            first_node=0,
            is_complete=True,
            grant=0 if len(draft) else 1,
            patience_us=NO_GRANT_PATIENCE_US if len(draft) else 0,
        )


def _record(verdict: Verdict, gamma: int, start_us: int, drafted_us: int, end_us: int) -> RoundRecord:
    return RoundRecord(
        num_committed=len(verdict.tokens),
        gamma=gamma,
        num_drafted=verdict.num_drafted,
        num_accepted=verdict.num_accepted,
        start_us=start_us,
        draft_us=drafted_us - start_us,
        verify_us=end_us - drafted_us,
        queue_us=verdict.queue_us,
        pass_us=verdict.pass_us,
        pass_positions=verdict.pass_positions,
    )
