"""Whatever a coordinator does, in any order: the text is the target's, and KV comes back."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling
from tests.verifier.bench import Bench, BenchSession, random_table
from verifier.schedule import PassLimits, StartByWorth

NUM_IDS = 4
MAX_TOKENS = 40
TABLE = random_table(seed=3, num_ids=NUM_IDS)
LIMITS = PassLimits(max_positions=24, prefill_positions=5)

prompts = st.lists(st.integers(0, NUM_IDS - 1), min_size=1, max_size=14)
few = st.integers(0, 5)
patiences_us = st.sampled_from([0, 0, 500, 20_000])


class Caller:
    """A session under test, and the same request run alone, without drafts: what its text must be."""

    def __init__(self, session: BenchSession, expected: list[int]) -> None:
        self.session = session
        self.expected = expected
        self.is_closed = False

    @property
    def base(self) -> int:
        return len(self.session.opened.tokens)

    def next_tokens(self, num_tokens: int) -> list[int]:
        done = len(self.session.output)
        return self.expected[done : done + num_tokens]


def alone(prompt: list[int], keys: dict[str, Any]) -> list[int]:
    bench = Bench(TABLE)
    session = bench.session(prompt, grant=MAX_TOKENS, **keys)
    bench.settle()
    return session.output


class Coordinators(RuleBasedStateMachine):
    """Opens, right and wrong and late and repeated and unknown work, closes, over a pool too small for all."""

    callers = Bundle("callers")

    @initialize(num_pages=st.integers(14, 24), max_wait_ms=st.sampled_from([0.0, 2.0]))
    def begin(self, num_pages: int, max_wait_ms: float) -> None:
        rule_ = StartByWorth(max_wait_ms / 1e3)
        self.bench = Bench(TABLE, num_pages=num_pages, limits=LIMITS, start_rule=rule_, max_sessions=8)
        self.all: list[Caller] = []
        self.running = [self.open([token], 0, False, False, 0, 0) for token in range(4)]

    @rule(
        target=callers,
        prompt=prompts,
        seed=st.integers(0, 3),
        is_greedy=st.booleans(),
        has_end=st.sampled_from([False, False, False, True]),
        grant=few,
        patience_us=patiences_us,
    )
    def opened(
        self, prompt: list[int], seed: int, is_greedy: bool, has_end: bool, grant: int, patience_us: int
    ) -> Caller:
        return self.open(prompt, seed, is_greedy, has_end, grant, patience_us)

    def open(
        self, prompt: list[int], seed: int, is_greedy: bool, has_end: bool, grant: int, patience_us: int
    ) -> Caller:
        keys: dict[str, Any] = {
            "max_tokens": MAX_TOKENS,
            "seed": seed,
            "sampling": Sampling(0.0 if is_greedy else 1.0),
            "rule": Rule.MATCH,
            "end_ids": [3] if has_end else [],
        }
        session = self.bench.session(prompt, grant=grant, patience_us=patience_us, **keys)
        caller = Caller(session, alone(prompt, keys))
        self.all.append(caller)
        return caller

    @rule(caller=callers, num_right=few, num_wrong=few, grant=few, patience_us=patiences_us, is_complete=st.booleans())
    def draft(
        self, caller: Caller, num_right: int, num_wrong: int, grant: int, patience_us: int, is_complete: bool
    ) -> None:
        right = caller.next_tokens(num_right)
        chain = right + [(token + 1) % NUM_IDS for token in caller.next_tokens(num_right + num_wrong)[num_right:]]
        caller.session.work(chain, grant=grant, patience_us=patience_us, is_complete=is_complete)

    @rule(caller=callers, data=st.data(), num_nodes=st.integers(1, 9), grant=few)
    def tree(self, caller: Caller, data: st.DataObject, num_nodes: int, grant: int) -> None:
        parents = tuple(data.draw(st.integers(-1, node - 1)) for node in range(num_nodes))
        tokens = tuple(data.draw(st.lists(st.integers(0, NUM_IDS - 1), min_size=num_nodes, max_size=num_nodes)))
        caller.session.work(Draft(tokens, parents, (None,) * num_nodes), grant=grant)

    @rule(caller=callers, first_node=few, num_nodes=few, is_complete=st.booleans(), back=st.integers(0, 2))
    def part(self, caller: Caller, first_node: int, num_nodes: int, is_complete: bool, back: int) -> None:
        session = caller.session
        round_ = max(0, session.round - 1 - back)
        tokens = (caller.expected * 2)[first_node : first_node + num_nodes]
        position = max(caller.base, len(session.tokens) - back)
        session.work(tokens, position=position, round_=round_, first_node=first_node, is_complete=is_complete)

    @rule(caller=callers, back=st.integers(1, 4), num_nodes=few, grant=few, is_repeated=st.booleans())
    def behind(self, caller: Caller, back: int, num_nodes: int, grant: int, is_repeated: bool) -> None:
        position = max(caller.base, len(caller.session.tokens) - back)
        done = position - len(caller.session.opened.prompt)
        chain = caller.expected[done : done + num_nodes]
        round_ = max(0, caller.session.round - 1) if is_repeated else None
        caller.session.work(chain, position=position, round_=round_, grant=grant)

    @rule(caller=callers, grant=st.integers(0, 12), patience_us=patiences_us, stream=st.integers(0, 1))
    def grant(self, caller: Caller, grant: int, patience_us: int, stream: int) -> None:
        caller.session.work(grant=grant, patience_us=patience_us, stream=stream)

    @rule(number=st.integers(0, 3), num_right=st.integers(0, 8), grant=few)
    def run(self, number: int, num_right: int, grant: int) -> None:
        """The usual: a draft, its verdict, and time passes; what fills the pool."""
        self.draft(self.running[number], num_right, 1, grant, 0, True)
        self.bench.advance(0.001)

    @rule(number=st.integers(0, 3), num_nodes=st.integers(2, 6), num_early=st.integers(1, 3))
    def late(self, number: int, num_nodes: int, num_early: int) -> None:
        """The patience ends after some nodes; the others come late."""
        session, chain = self.running[number].session, self.running[number].next_tokens(num_nodes)
        position = len(session.tokens)
        session.work(chain[:num_early], is_complete=False, grant=1)
        self.bench.turn()
        session.work(chain[num_early:], position=position, round_=session.round - 1, first_node=num_early)

    @rule(number=st.integers(0, 3), num_nodes=st.integers(1, 4), num_assumed=st.integers(1, 5), is_right=st.booleans())
    def pipeline(self, number: int, num_nodes: int, num_assumed: int, is_right: bool) -> None:
        """A draft, and the next one ahead of its verdict."""
        caller = self.running[number]
        first = caller.session.round
        self.ahead_of(caller, first + 1, num_assumed, is_right)
        caller.session.work(caller.next_tokens(num_nodes), round_=first)
        caller.session.round = first + 2

    def ahead_of(self, caller: Caller, round_: int, num_assumed: int, is_right: bool) -> None:
        both = caller.next_tokens(num_assumed + 3)
        assumed = both[:num_assumed] if is_right else [(token + 1) % NUM_IDS for token in both[:num_assumed]]
        caller.session.work(both[num_assumed:], assumes=tuple(assumed), round_=round_)

    @rule(caller=callers, lie=st.sampled_from(["position", "prefix", "incarnation"]))
    def nonsense(self, caller: Caller, lie: str) -> None:
        keys: dict[str, Any] = {
            "position": {"position": 10_000, "prefix_hash": 0},
            "prefix": {"prefix_hash": 1},
            "incarnation": {"incarnation": 1},
        }[lie]
        caller.session.work([1, 2], **keys)

    @rule(caller=consumes(callers))
    def close(self, caller: Caller) -> None:
        caller.session.close()
        caller.is_closed = True

    @rule(num_turns=st.integers(1, 4))
    def turn(self, num_turns: int) -> None:
        for _ in range(num_turns):
            self.bench.turn()

    @rule(seconds=st.sampled_from([0.0001, 0.001, 0.03]))
    def wait(self, seconds: float) -> None:
        self.bench.advance(seconds)

    @invariant()
    def text_is_the_targets(self) -> None:
        """Every session's text so far is the beginning of what it would be alone, and KV adds up."""
        if not hasattr(self, "bench"):
            return
        self.bench.engine.pool.check()
        for caller in self.all:
            output = caller.session.output
            assert output == caller.expected[: len(output)]

    def teardown(self) -> None:
        """Whoever is not closed gets a grant and finishes; then nothing is left."""
        if not hasattr(self, "bench"):
            return
        self.bench.settle()
        for caller in self.all:
            if not caller.is_closed and not any(refusal.reason == "full" for refusal in caller.session.refusals):
                for _ in range(3):
                    caller.session.work(grant=MAX_TOKENS)
                    self.bench.advance(1.0)
                assert caller.session.output == caller.expected
        for caller in self.all:
            caller.session.close()
        self.bench.settle()
        load = self.bench.engine.load()
        assert load.num_sessions == load.num_kv_pages_used == load.num_queued == 0


TestCoordinators = Coordinators.TestCase
TestCoordinators.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
