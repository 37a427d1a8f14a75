"""An engine without its thread, a clock that is set by hand, and a caller that speaks to it in values."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from pilotfish.draft import Draft
from pilotfish.engine.table import TableBackend
from pilotfish.messages import (
    Close,
    Open,
    Opened,
    Refusal,
    Rule,
    Sampling,
    TokenKind,
    Verdict,
    VerifierLoad,
    Work,
)
from pilotfish.prefix import extend
from pilotfish.tablefile import TableFile, parse
from pilotfish.wire.values import DropCause
from verifier.admission import Capacity
from verifier.engine import Engine
from verifier.schedule import PassLimits, StartByWorth, StartRule
from verifier.traffic import Answer, Command, PassRecord

INCARNATION = 77
NUM_IDS = 16


def random_table(seed: int = 1, num_ids: int = NUM_IDS, **keys: Any) -> TableFile:
    """A law over the last two tokens, drawn once."""
    content = {"vocabulary": [chr(97 + i) for i in range(num_ids)], "random": {"seed": seed, "order": 2}, **keys}
    return parse(content)


def script_table(ids: Sequence[int], num_ids: int = NUM_IDS, **keys: Any) -> TableFile:
    """A target whose greedy continuation is `ids`."""
    content = {"vocabulary": [chr(97 + i) for i in range(num_ids)], "script": {"ids": list(ids)}, **keys}
    return parse(content)


def greedy(table: TableFile, prompt: Sequence[int], num_tokens: int) -> list[int]:
    """The table's own greedy continuation."""
    tokens = list(prompt)
    for _ in range(num_tokens):
        law = table.probabilities(tokens, len(prompt))
        tokens.append(max(range(len(law)), key=lambda token: (law[token], -token)))
    return tokens[len(prompt) :]


class Record:
    """An observer that counts."""

    def __init__(self) -> None:
        self.drops: Counter[str] = Counter()
        self.passes: list[PassRecord] = []
        self.num_expired = 0

    def passed(self, record: PassRecord) -> None:
        self.passes.append(record)

    def dropped(self, cause: str) -> None:
        self.drops[cause] += 1

    def expired(self) -> None:
        self.num_expired += 1


class Bench:
    """An engine over a table, driven turn by turn."""

    def __init__(
        self,
        table: TableFile,
        *,
        num_pages: int = 256,
        page_size: int = 4,
        max_sessions: int = 64,
        max_waiting: int = 64,
        limits: PassLimits | None = None,
        start_rule: StartRule | None = None,
        backend: Any = None,
        vocabulary_size: int | None = None,
        **engine_keys: Any,
    ) -> None:
        self.table = table
        self.now_s = 100.0
        self.record = Record()
        self.answers: list[Answer] = []
        self.messages: dict[bytes, list[Opened | Verdict | Refusal]] = defaultdict(list)
        self.capacity = Capacity(
            incarnation=INCARNATION,
            vocabulary_hash=table.vocabulary_hash,
            vocabulary_size=vocabulary_size or table.vocabulary_size,
            context_length=table.context_length,
            page_size=page_size,
            num_pages=num_pages,
            max_sessions=max_sessions,
            max_waiting=max_waiting,
            max_lease_s=3600.0,
        )
        self.backend = backend or TableBackend(table)
        self.engine = Engine(
            self.backend,
            self.capacity,
            limits or PassLimits(max_positions=256, prefill_positions=64),
            start_rule or StartByWorth(max_wait_s=0.0),
            self._emit,
            self.record,
            clock=self._clock,
            **engine_keys,
        )
        self._num_callers = 0

    def _emit(self, answers: list[Answer], load: VerifierLoad) -> None:
        self.answers += answers
        for answer in answers:
            self.messages[answer.key.session].append(answer.message)

    def _clock(self) -> float:
        return self.now_s

    def session(self, prompt: Sequence[int], **keys: Any) -> BenchSession:
        """Open a session."""
        self._num_callers += 1
        return BenchSession(self, self._num_callers.to_bytes(16, "big"), prompt, **keys)

    def submit(
        self, item: Open | Work | Close, stream: int = 0, caller: str = "", cut: DropCause | None = None
    ) -> None:
        self.engine.submit(Command(caller, stream, item, self.now_s, cut))

    def turn(self) -> float:
        """One turn of the engine; when the next is due."""
        due = self.engine.turn()
        self.engine.pool.check()
        return due

    def settle(self, max_turns: int = 10_000) -> None:
        """Turn until nothing is to be done at this time."""
        for _ in range(max_turns):
            if self.turn() > self.now_s:
                return
        raise AssertionError(f"still at work after {max_turns} turns")

    def advance(self, seconds: float) -> None:
        self.now_s += seconds
        self.settle()


class BenchSession:
    """One session as its coordinator sees it."""

    def __init__(
        self,
        bench: Bench,
        session: bytes,
        prompt: Sequence[int],
        *,
        output_so_far: Sequence[int] = (),
        max_tokens: int = 1000,
        grant: int = 0,
        patience_us: int = 0,
        sampling: Sampling | None = None,
        rule: Rule = Rule.MATCH,
        seed: int = 5,
        end_ids: Sequence[int] = (),
        lease_s: float = 1000.0,
        stream: int = 0,
        caller: str = "",
        **keys: Any,
    ) -> None:
        self.bench = bench
        self.id = session
        self.stream = stream
        self.caller = caller
        self.round = 0
        self.opened = Open(
            session=session,
            incarnation=keys.pop("incarnation", INCARNATION),
            vocabulary_hash=keys.pop("vocabulary_hash", bench.table.vocabulary_hash),
            prompt=tuple(prompt),
            output_so_far=tuple(output_so_far),
            sampling=sampling or Sampling(temperature=0.0),
            seed=seed,
            rule=rule,
            end_ids=frozenset(end_ids),
            max_tokens=max_tokens,
            lease_s=lease_s,
            grant=grant,
            patience_us=patience_us,
            **keys,
        )
        bench.submit(self.opened, stream, caller)

    # -- what it has heard -------------------------------------------------------------------------------------------

    @property
    def messages(self) -> list[Opened | Verdict | Refusal]:
        return self.bench.messages[self.id]

    @property
    def verdicts(self) -> list[Verdict]:
        return [message for message in self.messages if isinstance(message, Verdict)]

    @property
    def refusals(self) -> list[Refusal]:
        return [message for message in self.messages if isinstance(message, Refusal)]

    @property
    def tokens(self) -> list[int]:
        """All that is committed, put together from the verdicts; they leave no gap and never contradict."""
        tokens = list(self.opened.tokens)
        for verdict in self.verdicts:
            assert verdict.position <= len(tokens), "a gap between verdicts"
            end = verdict.position + len(verdict.tokens)
            assert tuple(tokens[verdict.position : end]) == verdict.tokens[: len(tokens) - verdict.position]
            tokens[verdict.position : end] = verdict.tokens if end > len(tokens) else tokens[verdict.position : end]
        return tokens

    @property
    def output(self) -> list[int]:
        return self.tokens[len(self.opened.prompt) :]

    @property
    def kinds(self) -> list[TokenKind]:
        return [kind for verdict in self.verdicts for kind in verdict.kinds]

    # -- what it says ------------------------------------------------------------------------------------------------

    def work(
        self,
        draft: Draft | Sequence[int] = (),
        *,
        position: int | None = None,
        round_: int | None = None,
        first_node: int = 0,
        is_complete: bool = True,
        grant: int = 0,
        patience_us: int = 0,
        cut: DropCause | None = None,
        stream: int | None = None,
        **keys: Any,
    ) -> Work:
        """Send an item at the committed length as far as it was heard, or at `position`."""
        tokens = self.tokens
        position = len(tokens) if position is None else position
        if round_ is None:
            round_, self.round = self.round, self.round + 1
        chain = draft if isinstance(draft, Draft) else Draft.chain(tuple(draft))
        if not isinstance(draft, Draft) and first_node:
            chain = Draft(chain.tokens, tuple(range(first_node - 1, first_node - 1 + len(chain))), chain.q)
        work = Work(
            session=self.id,
            incarnation=keys.pop("incarnation", INCARNATION),
            position=position,
            prefix_hash=keys.pop("prefix_hash", extend(0, tokens[:position])),
            round=round_,
            draft=chain,
            first_node=first_node,
            is_complete=is_complete,
            grant=grant,
            patience_us=patience_us,
            **keys,
        )
        self.bench.submit(work, self.stream if stream is None else stream, self.caller, cut)
        return work

    def close(self) -> None:
        self.bench.submit(Close(self.id, INCARNATION), self.stream, self.caller)
