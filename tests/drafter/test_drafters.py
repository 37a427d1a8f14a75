"""The drafters that the whole project is tested with do what their names say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from drafter.rounds import Rounds
from drafter.settings import DrafterSettings
from drafter.speculators import registry
from drafter.stopping import Deadline
from pilotfish.distribution import draw
from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, DraftPart, Rule, Sampling
from pilotfish.noise import Purpose, uniform
from pilotfish.tablefile import TableFile, parse
from pilotfish.wire.drafts import read_draft, write_draft
from pilotfish.wire.values import Limits
from tests import drafters
from tests.drafter.desk import Clock, Desk
from tests.drafter.openings import opening, request

A = b"a" * 16
TEXT = [1, 2]
CONTENT = {"vocabulary": list("abcdef"), "random": {"seed": 4, "order": 2, "sharpness": 1.5}}
DRAWN = {"sampling": Sampling(temperature=1.0), "rule": Rule.BLOCK, "seed": 11}


@pytest.fixture
def table() -> TableFile:
    return parse(CONTENT)


def drafted(speculator: drafters.TableSpeculator, gamma: int, **fields: Any) -> tuple[Draft, DraftPart]:
    """A whole draft of one session, and its last part."""
    desk = Desk(speculator)
    desk.tell(opening(A, TEXT, vocabulary_hash=speculator.table.vocabulary_hash, **fields))
    draft, parts = Draft.EMPTY, desk.tell(request(A, TEXT, gamma))
    for part in parts:
        assert isinstance(part, DraftPart), part
        draft = draft.append(part.draft)
    last = parts[-1]
    assert isinstance(last, DraftPart)
    return draft, last


def greedy(table: TableFile, num_tokens: int) -> list[int]:
    path = list(TEXT)
    for _ in range(num_tokens):
        path.append(drafters.likeliest(table.probabilities(path)))
    return path[2:]


async def test_perfect_is_the_targets_own_continuation(table: TableFile) -> None:
    """PERFECT at T = 0 drafts the greedy path of the table."""
    draft, last = drafted(drafters.Perfect(table), 5)

    assert draft == Draft.chain(greedy(table, 5))
    assert last.end is DraftEnd.GAMMA


async def test_perfect_draws_from_the_target(table: TableFile) -> None:
    """PERFECT at T > 0 draws from p, and sends it as q: to nine digits the table's law."""
    draft, _ = drafted(drafters.Perfect(table), 3, **DRAWN)
    path = list(TEXT)
    for node, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        assert q is not None
        law = table.probabilities(path)
        assert [q.probability(i) for i in range(6)] == pytest.approx(law, abs=1e-8)
        assert token == draw(q, uniform(11, Purpose.DRAFT, 2, node))
        path.append(token)


async def test_adverse_is_least_likely_and_one_hot(table: TableFile) -> None:
    """ADVERSE drafts the table's least likely token at every node, without q."""
    draft, _ = drafted(drafters.Adverse(table), 4, **DRAWN)
    path = list(TEXT)
    for token in draft.tokens:
        assert token == drafters.least_likely(table.probabilities(path))
        path.append(token)
    assert (len(draft), draft.has_q) == (4, False)


async def test_noise_draws_from_the_q_it_sends(table: TableFile) -> None:
    """NOISE sends random q, another at every node, and the tokens are their draws."""
    draft, _ = drafted(drafters.Noise(table), 4, **DRAWN)

    assert len(set(draft.q)) == 4
    for node, (token, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
        assert q is not None
        assert token == draw(q, uniform(11, Purpose.DRAFT, 2, node))


@pytest.mark.parametrize("m", range(4))
async def test_part_is_right_m_times(table: TableFile, m: int) -> None:
    """PART(m) agrees with the greedy path in its first m nodes and not in the next."""
    draft, _ = drafted(drafters.Part(table, m), 4)
    path = greedy(table, 4)

    assert draft.tokens[:m] == tuple(path[:m])
    assert draft.tokens[m] != path[m]


async def test_fork_is_a_tree_with_the_greedy_path(table: TableFile) -> None:
    """FORK has two children below every node of the likeliest path."""
    draft, _ = drafted(drafters.Fork(table), 3)

    assert draft.find(greedy(table, 3)) is not None
    assert draft.parents == (-1, -1, 0, 0, 2, 2)


def test_silent_waits_until_its_deadline_ends_the_draft(table: TableFile) -> None:
    """SILENT draws nothing; the deadline ends the draft with no node."""
    clock = Clock()
    rounds = Rounds(drafters.Silent(table), clock)
    rounds.open(opening(A, TEXT))
    rounds.start(request(A, TEXT, 3), clock(), Deadline(1000))
    assert rounds.step() == []
    clock.now_s += 1.0
    [drawn] = rounds.step()

    assert (drawn.part.draft, drawn.part.end) == (Draft.EMPTY, DraftEnd.DEADLINE)


@pytest.mark.parametrize(
    ("lie", "num_kept", "cause"),
    [
        ("id", 1, "token"), ("large_id", 0, "token"), ("absent", 0, "q"), ("zero", 0, "q"),
        ("twice", 0, "q"), ("outside", 0, "q"), ("shape", 0, "q"), ("claim", 3, None),
    ],
)  # fmt: skip
async def test_lies_are_found_by_whoever_reads_them(
    table: TableFile, lie: str, num_kept: int, cause: str | None
) -> None:
    """What LIAR sends is cut or emptied on reading, with its cause; only the lie that looks valid passes."""
    draft, _ = drafted(drafters.Liar(table, lie), 3)
    read = read_draft(write_draft(draft), 0, Limits(vocabulary_size=6))

    assert (len(read.value), read.dropped) == (num_kept, cause)


@pytest.mark.parametrize("name", ["Perfect", "Adverse", "Noise", "Part", "Fork", "Late", "Silent", "Liar"])
def test_each_starts_from_settings(name: str, tmp_path: Path) -> None:
    """Every one can be named in the drafter's settings, with its table as an option."""
    path = tmp_path / "table.json"
    path.write_text(json.dumps(CONTENT))
    name = f"tests.drafters:{name}"
    settings = DrafterSettings(speculators=(name,), options=(f"table=table:{path}", "m=3"))

    [made] = registry.make(settings.speculator_names, settings).values()
    assert isinstance(made, drafters.TableSpeculator)
    assert made.facts.vocabulary_size == 6
