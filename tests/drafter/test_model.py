"""The model speculator: what it draws, what it reads, and that its KV never shows."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from scipy.stats import chi2

from drafter.rounds import Rounds
from drafter.speculators import Facts
from drafter.speculators.model import ModelSpeculator
from drafter.stopping import Gamma
from pilotfish import noise, tablefile
from pilotfish.distribution import draw, quantise
from pilotfish.draft import Draft
from pilotfish.engine.backend import Backend
from pilotfish.engine.batch import Batch
from pilotfish.engine.model import TransformersBackend
from pilotfish.engine.table import TableBackend
from pilotfish.messages import Rule, Sampling
from pilotfish.noise import Purpose
from pilotfish.tablefile import TableFile
from tests.drafter.openings import opening, request

A, B = b"a" * 16, b"b" * 16
PLAIN = Sampling(temperature=1.0)


class Counting:
    """A backend that remembers how many rows its passes had, and can answer one session with NaN."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self.passes: list[int] = []
        self.spoil_row: int | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def forward(self, batch: Batch) -> torch.Tensor:
        self.passes.append(len(batch))
        logits = self._backend.forward(batch).clone()
        if self.spoil_row is not None:
            logits[self.spoil_row] = math.nan
        return logits


def table(num_ids: int = 8, order: int = 2, seed: int = 3) -> TableFile:
    return tablefile.parse(
        {
            "vocabulary": [chr(97 + token) for token in range(num_ids)],
            "random": {"seed": seed, "order": order, "sharpness": 1.0},
        }
    )


def tiny_llama() -> TransformersBackend:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    for parameter in model.parameters():
        parameter.data *= 4.0  # logits far enough apart that rounding decides nothing
    return TransformersBackend(model, "tiny")


def make(backend: Any, *, vocabulary_size: int | None = None, context_length: int = 10_000, **settings: Any) -> Rounds:
    """A model speculator at work; time stands still."""
    facts = Facts("test", "hash", vocabulary_size or backend.vocabulary_size, backend.vocabulary_size, context_length)
    return Rounds(ModelSpeculator(backend, facts, **({"page_size": 4} | settings)), lambda: 0.0)


def check(rounds: Rounds) -> None:
    speculator = rounds._speculator
    assert isinstance(speculator, ModelSpeculator)
    speculator.check()


def drafts(rounds: Rounds, texts: Mapping[bytes, Sequence[int]], gamma: int) -> dict[bytes, Draft]:
    """A draft of γ nodes for each session, all drawn together, each told nothing new."""
    for session, tokens in texts.items():
        rounds.start(request(session, tokens, gamma), 0.0, Gamma(gamma))
    found = dict.fromkeys(texts, Draft.EMPTY)
    while not rounds.is_idle:
        for drawn in rounds.step():
            found[drawn.part.session] = found[drawn.part.session].append(drawn.part.draft)
        check(rounds)
    return found


def draft(rounds: Rounds, session: bytes, tokens: Sequence[int], gamma: int) -> Draft:
    return drafts(rounds, {session: tokens}, gamma)[session]


def test_greedy_draft_is_the_likeliest_path() -> None:
    """At T = 0 the draft of a table model is the argmax of its table, token after token, one-hot."""
    law = table()
    rounds = make(TableBackend(law))
    rounds.open(opening(A, [1, 2, 3]))
    path = [1, 2, 3]
    for _ in range(6):
        row = law.probabilities(path)
        path.append(row.index(max(row)))

    assert draft(rounds, A, [1, 2, 3], 6) == Draft.chain(path[3:])


@pytest.mark.parametrize("sampling", [PLAIN, Sampling(temperature=0.6, top_k=3), Sampling(top_p=0.5)])
def test_q_is_the_quantised_law_and_the_token_its_draw(sampling: Sampling) -> None:
    """Each node carries the quantised law of its context, and its token is that law's draw at (seed, base, node)."""
    law = table()
    rounds = make(TableBackend(law), num_bits=12, num_ids=5)
    rounds.open(opening(A, [1, 2, 3], sampling=sampling, rule=Rule.BLOCK, seed=99))
    path = [1, 2, 3]

    found = draft(rounds, A, path, 4)

    for node, (token, q) in enumerate(zip(found.tokens, found.q, strict=True)):
        expected = processed(law.probabilities(path), sampling)
        ids = sorted(range(8), key=lambda token: (-expected[token], token))[:5]
        assert q == quantise(ids, [expected[token] for token in ids], 12)
        assert token == draw(q, noise.uniform(99, Purpose.DRAFT, 3, node))
        path.append(token)


def processed(law: Sequence[float], sampling: Sampling) -> list[float]:
    """The law after temperature, top_k and top_p, up to a factor."""
    weights = [probability ** (1 / sampling.temperature) for probability in law]
    order = sorted(range(len(weights)), key=lambda token: -weights[token])[: sampling.top_k]
    share, kept, mass = sampling.top_p or 1.0, [], 0.0
    total = sum(weights[token] for token in order)
    for token in order:
        if mass < share * total:
            kept.append(token)
            mass += weights[token]
    return [weight if token in kept else 0.0 for token, weight in enumerate(weights)]


def test_drafts_follow_the_law_of_the_table() -> None:
    """The first two tokens of 6,000 drafts have the table's law: χ² over 16 cells, false-alarm rate 1e-4."""
    law = table(num_ids=4, order=1)
    rounds = make(TableBackend(law), num_kv_pages=256)
    counts: Counter[tuple[int, ...]] = Counter()
    num_runs, num_together = 6_000, 100
    for first in range(0, num_runs, num_together):
        texts = {run.to_bytes(16, "big"): [0] for run in range(first, first + num_together)}
        for session in texts:
            seed = random.Random(int.from_bytes(session, "big")).getrandbits(64)
            rounds.open(opening(session, [0], sampling=PLAIN, rule=Rule.BLOCK, seed=seed))
        counts.update(found.tokens for found in drafts(rounds, texts, 2).values())
        for session in texts:
            rounds.close(session)
    expected = {
        (x, y): num_runs * law.probabilities([0])[x] * law.probabilities([x])[y] for x in range(4) for y in range(4)
    }
    statistic = sum((counts[cell] - mean) ** 2 / mean for cell, mean in expected.items())

    assert statistic < chi2.ppf(1 - 1e-4, 15)


def test_coupled_draft_is_what_match_would_draw_from_the_same_law() -> None:
    """A coupled node is the argmax of log q plus the noise of its own position; no q travels."""
    law = table()
    rounds = make(TableBackend(law))
    rounds.open(opening(A, [1, 2, 3], sampling=PLAIN, is_coupled=True, seed=5))
    path = [1, 2, 3]
    for position in range(3, 9):
        gumbel = noise.gumbel(5, position, list(range(8)))
        scores = [math.log(p) + g for p, g in zip(law.probabilities(path), gumbel, strict=True)]
        path.append(scores.index(max(scores)))

    assert draft(rounds, A, [1, 2, 3], 6) == Draft.chain(path[3:])


def test_uncoupled_match_drafts_the_likeliest_token() -> None:
    """Where the target draws without looking at the draft, no other token is right more often."""
    law = table()
    rounds = make(TableBackend(law))
    rounds.open(opening(A, [1, 2], sampling=Sampling(temperature=1.3), rule=Rule.MATCH))
    rounds.open(opening(B, [1, 2]))

    both = drafts(rounds, {A: [1, 2], B: [1, 2]}, 3)

    assert both[A] == both[B]


def test_padding_is_never_drafted() -> None:
    """Ids beyond the tokenizer's vocabulary have logits but are not drafted, whatever these say."""
    rounds = make(TableBackend(table()), vocabulary_size=2)
    rounds.open(opening(A, [0, 1]))
    rounds.open(opening(B, [0, 1], sampling=PLAIN, rule=Rule.BLOCK))

    both = drafts(rounds, {A: [0, 1], B: [0, 1]}, 8)

    assert max(*both[A].tokens, *both[B].tokens) < 2
    assert all(set(q.ids) <= {0, 1} for q in both[B].q if q is not None)


@pytest.mark.parametrize("backend_of", [tiny_llama, lambda: TableBackend(table())], ids=["llama", "table"])
def test_drafts_after_any_history_are_those_of_a_fresh_session(backend_of: Any) -> None:
    """A walk of accepted, partly accepted, rejected and never drafted tokens leaves no trace in the drafts."""
    rounds, fresh = make(backend_of()), make(backend_of())
    size = rounds._speculator.facts.vocabulary_size
    chance = random.Random(1)
    text = [chance.randrange(size) for _ in range(6)]
    rounds.open(opening(A, text))
    for turn in range(25):
        gamma = chance.randrange(5)
        nodes = draft(rounds, A, text, gamma).tokens if gamma else ()
        session = turn.to_bytes(16, "big")
        fresh.open(opening(session, text))
        assert nodes == (draft(fresh, session, text, gamma).tokens if gamma else ())
        fresh.close(session)
        new = [*nodes[: chance.randrange(gamma + 1)], *(chance.randrange(size) for _ in range(chance.randrange(4)))]
        rounds.observe(A, new)
        text += new
        check(rounds)


def test_batching_does_not_change_drafts() -> None:
    """Sessions of different lengths draft together what each drafts alone, though they join and leave in between."""
    chance = random.Random(2)
    texts = {bytes([i]) * 16: [chance.randrange(97) for _ in range(3 + 11 * i)] for i in range(6)}
    rounds = make(tiny_llama())
    for session, text in texts.items():
        rounds.open(opening(session, text))
    alone = {session: draft(rounds, session, text, 2 + session[0]) for session, text in texts.items()}
    together = dict.fromkeys(texts, Draft.EMPTY)
    for session, text in reversed(texts.items()):  # each joins one step later than the one before
        rounds.start(request(session, text, 2 + session[0]), 0.0, Gamma(2 + session[0]))
        for drawn in rounds.step():
            together[drawn.part.session] = together[drawn.part.session].append(drawn.part.draft)
    while not rounds.is_idle:
        for drawn in rounds.step():
            together[drawn.part.session] = together[drawn.part.session].append(drawn.part.draft)

    assert together == alone


def test_missed_tokens_are_read_in_one_go() -> None:
    """After a spell without drafts, the tokens missed are read in the first step, with one pass."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend)
    rounds.open(opening(A, [1]))
    draft(rounds, A, [1], 1)
    missed = [random.Random(3).randrange(8) for _ in range(50)]
    for token in missed:
        rounds.observe(A, [token])
    backend.passes.clear()
    draft(rounds, A, [1, *missed], 3)

    assert backend.passes == [50, 1, 1]


def test_accepted_nodes_are_not_read_again() -> None:
    """After a draft that held as a whole, only its last node and the bonus are read; after a rejection, one token."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend)
    rounds.open(opening(A, [1, 2]))
    held = draft(rounds, A, [1, 2], 4).tokens
    rounds.observe(A, [*held, 5])
    backend.passes.clear()
    second = draft(rounds, A, [1, 2, *held, 5], 4).tokens
    assert backend.passes == [2, 1, 1, 1]

    correction = (second[2] + 1) % 8
    rounds.observe(A, [*second[:2], correction])
    backend.passes.clear()
    draft(rounds, A, [1, 2, *held, 5, *second[:2], correction], 1)
    assert backend.passes == [1]


def test_prompt_is_read_before_it_is_asked_for() -> None:
    """While no draft is due, prompts are read ahead in chunks; the first draft then has few tokens to read."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend, chunk_tokens=32)
    prompt = [random.Random(4).randrange(8) for _ in range(100)]
    rounds.open(opening(A, prompt))
    while rounds.read_ahead():
        check(rounds)
    assert max(backend.passes) <= 32
    backend.passes.clear()
    draft(rounds, A, prompt, 1)

    assert backend.passes == [4]


def test_text_beyond_the_context_is_never_read() -> None:
    """A prompt that the model cannot read whole is not read at all, since nothing can be drafted after it."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend, context_length=40)
    rounds.open(opening(A, [1] * 41))

    assert not rounds.read_ahead()
    assert not backend.passes


def test_long_prompt_does_not_hold_up_the_others() -> None:
    """A step reads at most a chunk: a session with a long text waits for it, another drafts meanwhile."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend, chunk_tokens=16)
    prompt = [random.Random(5).randrange(8) for _ in range(90)]
    rounds.open(opening(A, prompt))
    rounds.open(opening(B, [1, 2]))
    rounds.start(request(A, prompt, 1), 0.0, Gamma(1))
    rounds.start(request(B, [1, 2], 2), 0.0, Gamma(2))
    ended = []
    while not rounds.is_idle:
        ended += [drawn.part.session for drawn in rounds.step() if drawn.part.is_complete]

    assert ended == [B, A]
    assert max(backend.passes) <= 17


def test_sessions_beyond_the_pool_take_turns() -> None:
    """Sessions whose KV does not fit together are read again, and draft what they draft with room for all."""
    chance = random.Random(6)
    texts = {bytes([i]) * 16: [chance.randrange(8) for _ in range(20)] for i in range(5)}
    found = []
    for num_kv_pages in (200, 9):
        rounds = make(TableBackend(table()), num_kv_pages=num_kv_pages)
        for session, text in texts.items():
            rounds.open(opening(session, text))
        found.append(drafts(rounds, texts, 3))

    assert found[0] == found[1]


def test_tenants_do_not_share_what_was_read() -> None:
    """A prompt read for one tenant is read again for another, and shared within one."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend)
    prompt = [1, 2, 3, 4, 5, 6, 7, 0, 1]
    reads = []
    for number, tenant in enumerate("aab"):
        session = bytes([number]) * 16
        rounds.open(opening(session, prompt, tenant=tenant))
        backend.passes.clear()
        draft(rounds, session, prompt, 1)
        reads.append(backend.passes[0])

    assert reads == [9, 1, 9]


def test_logits_that_are_not_numbers_end_one_draft() -> None:
    """NaN in one session's logits: nothing is drafted for it, and the others' drafts are what they were."""
    backend = Counting(TableBackend(table()))
    rounds = make(backend)
    rounds.open(opening(A, [1, 2], sampling=PLAIN, rule=Rule.BLOCK))
    rounds.open(opening(B, [1, 2], sampling=PLAIN, rule=Rule.BLOCK))
    backend.spoil_row = 0
    both = drafts(rounds, {A: [1, 2], B: [1, 2]}, 1)
    backend.spoil_row = None

    assert both[A] == Draft.EMPTY
    assert both[B] == draft(rounds, B, [1, 2], 1)


@pytest.mark.parametrize("way", [{}, {"sampling": PLAIN, "is_coupled": True}])
def test_goes_on_with_its_line(way: dict[str, Any]) -> None:
    """Of a line that was committed as drawn only what is new is drawn, and it is what a draft from scratch says."""
    law = table()
    backend = Counting(TableBackend(law))
    rounds = make(backend)
    rounds.open(opening(A, [1, 2, 3], **way))
    line = draft(rounds, A, [1, 2, 3], 8).tokens
    backend.passes.clear()
    rounds.observe(A, line[:3])
    longer = draft(rounds, A, [1, 2, 3, *line[:3]], 7).tokens
    assert longer[:5] == line[3:]
    assert backend.passes == [1, 1]
    line = line[:3] + longer
    scratch = make(TableBackend(law))
    scratch.open(opening(B, [1, 2, 3, *line[:3]], **way))
    assert draft(scratch, B, [1, 2, 3, *line[:3]], len(line) - 3).tokens == line[3:]


def test_line_that_was_wrong_is_drawn_anew() -> None:
    """Where another token was committed than the line has, nothing of it is used."""
    law = table()
    rounds = make(TableBackend(law))
    rounds.open(opening(A, [1, 2, 3]))
    line = draft(rounds, A, [1, 2, 3], 6).tokens
    wrong = (line[1] + 1) % 8
    rounds.observe(A, [line[0], wrong])
    text = [1, 2, 3, line[0], wrong]
    scratch = make(TableBackend(law))
    scratch.open(opening(B, text))
    assert draft(rounds, A, text, 6) == draft(scratch, B, text, 6)


def test_drawn_nodes_are_drawn_anew_at_a_new_base() -> None:
    """Nodes with a q belong to the base of their round: what is drawn at another one is drawn by other chance."""
    law = table()
    rounds = make(TableBackend(law))
    way: dict[str, Any] = {"sampling": PLAIN, "rule": Rule.BLOCK, "seed": 5}
    rounds.open(opening(A, [1, 2, 3], **way))
    line = draft(rounds, A, [1, 2, 3], 6).tokens
    rounds.observe(A, line[:1])
    text = [1, 2, 3, line[0]]
    scratch = make(TableBackend(law))
    scratch.open(opening(B, text, **way))
    assert draft(rounds, A, text, 6) == draft(scratch, B, text, 6)
