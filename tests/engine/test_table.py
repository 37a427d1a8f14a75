"""The table model: a law that is known, real slots, a format that is checked."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pilotfish.engine.batch import Item, pack
from pilotfish.engine.kv import KVPool
from pilotfish.engine.table import TableBackend
from pilotfish.errors import ConfigurationError, InvalidArgument
from pilotfish.tablefile import TableFile, parse

TOY: dict[str, Any] = {
    "vocabulary": ["a", "b", "ab", "<0xC3>", "<0xBC>", "."],
    "end_ids": [5],
    "law": {"*": [1, 1, 1, 1, 1, 1], "0": {"1": 3, "2": 1}, "1,0": [0, 0, 0, 0, 0, 2]},
}
RANDOM: dict[str, Any] = {"vocabulary": list("abcd"), "random": {"seed": 3, "order": 2, "sharpness": 1.0}}


def test_longest_context_wins() -> None:
    """The row of the last two tokens holds before that of the last one, and '*' where there is neither."""
    table = parse(TOY)
    assert table.probabilities([1, 0]) == (0, 0, 0, 0, 0, 1)
    assert table.probabilities([2, 0]) == (0, 0.75, 0.25, 0, 0, 0)
    assert table.probabilities([0]) == (0, 0.75, 0.25, 0, 0, 0)
    assert table.probabilities([]) == table.probabilities([0, 1]) == (1 / 6,) * 6


def test_backend_says_the_law_on_chains_and_trees(device: str) -> None:
    """Every node of a tree gets the law after its own path, in float64, whatever else is in the pass."""
    table = parse(RANDOM)
    backend, pool = TableBackend(table, device), KVPool(16, 4)
    backend.allocate(16, 4)
    prompt, nodes, parents = [0, 1, 2, 3, 0, 2], [1, 3, 3, 0, 2], (-1, -1, 0, 2, 1)
    pool.open("other", [1])
    pool.reserve("other", 1)
    pool.open("a", prompt)
    pool.reserve("a", len(prompt) + len(nodes))
    got = backend.forward(
        pack([Item([1], 0, pool.pages("other")), Item(prompt, 0, pool.pages("a"), nodes, parents, 6)], 4)
    )
    paths = [[0, 2], [2, 1], [2, 3], [1, 3], [3, 0], [3, 2]]
    expected = [table.probabilities([1]), *map(table.probabilities, paths)]
    torch.testing.assert_close(got.exp().cpu(), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=0)


def test_accepted_path_is_read_after_compaction() -> None:
    """Once an accepted path was copied to the front, the law follows it; without the copy the fault is caught."""
    table = parse(RANDOM)
    backend, pool = TableBackend(table), KVPool(4, 4)
    backend.allocate(4, 4)
    pool.open("a", [0, 1])
    pool.reserve("a", 9)
    tree = pack([Item([0, 1], 0, pool.pages("a"), [3, 2, 1, 0], (-1, -1, 1, 2), 5)], 4)
    backend.forward(tree)
    follow = pack([Item([3], 5, pool.pages("a"))], 4)
    with pytest.raises(RuntimeError, match="should see positions 0 to"):
        backend.forward(follow)  # nodes 1, 2, 3 were accepted and not moved
    backend.forward(tree)
    backend.copy(*pool.move("a", [3, 4, 5], 2))
    pool.advance("a", 5)
    assert backend._tokens[:5].tolist() == [0, 1, 2, 1, 0]
    assert tuple(backend.forward(follow)[0].exp().tolist()) == pytest.approx(table.probabilities([0, 3]), abs=1e-15)


def test_script_is_followed_from_the_end_of_the_prompt() -> None:
    """A script's ids come one by one after the prompt, then the end id; the rest of the mass is spread evenly."""
    table = parse({"vocabulary": list("abcd"), "end_ids": [3], "script": {"ids": [2, 0], "probability": 0.7}})
    backend = TableBackend(table)
    backend.allocate(4, 4)
    got = backend.forward(pack([Item([1, 1, 1], 0, [0, 1], [2, 0], num_logits=3, num_prompt=3)], 4)).exp()
    rest = pytest.approx(0.1)
    assert got.tolist() == [
        [rest, rest, pytest.approx(0.7), rest],
        [pytest.approx(0.7), rest, rest, rest],
        [0, 0, 0, 1],
    ]
    assert parse({"vocabulary": ["a", "b"], "script": [0, 1]}).scripted(2) == (1, 0)


def test_random_law_is_the_same_everywhere() -> None:
    """A law drawn from a seed is a function of the file alone."""
    assert parse(RANDOM).rows == parse(RANDOM).rows
    assert parse(RANDOM).rows != parse({**RANDOM, "random": {"seed": 4, "order": 2}}).rows
    assert all(math.isclose(math.fsum(row), 1.0, rel_tol=1e-14) for row in parse(RANDOM).rows.values())


def test_pass_time_follows_its_points() -> None:
    """A simulated pass is flat before its first point, straight between points, on by the last slope; then it waits."""
    waits: list[float] = []
    table = parse({**RANDOM, "pass_us": [[4, 1000], [8, 1000], [16, 3000]]})
    assert [table.pass_time_us(n) for n in (1, 4, 6, 8, 12, 16, 20)] == [1000, 1000, 1000, 1000, 2000, 3000, 4000]
    backend = TableBackend(table, wait=waits.append)
    backend.allocate(2, 4)
    backend.forward(pack([Item([0], 0, [0])], 4))
    assert len(waits) == 1
    assert 0 < waits[0] <= 1e-3


def test_text_takes_the_longest_token_and_falls_back_to_bytes() -> None:
    """Encoding is greedy over the token strings, characters without one become byte tokens, decoding joins them."""
    table = parse(TOY)
    assert table.encode("abba.ü") == [2, 1, 0, 5, 3, 4]
    assert table.decode([2, 1, 0, 5, 3, 4]) == "abba.ü"
    assert table.decode_bytes([3]) == b"\xc3"
    with pytest.raises(InvalidArgument, match="'z'"):
        table.encode("az")


def test_vocabulary_hash_depends_on_strings_and_their_order() -> None:
    """Two vocabularies of one size and other strings, or another order, have other hashes."""
    hashes = {
        parse({"vocabulary": vocabulary, "random": {}}).vocabulary_hash
        for vocabulary in (["a", "b"], ["b", "a"], ["a", "c"], ["ab", ""])
    }
    assert len(hashes) == 4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"vocabulary": []}, "1 to 64 tokens"),
        ({"vocabulary": ["a"] * 2}, "'a' twice"),
        ({"vocabulary": [str(i) for i in range(65)]}, "has 65"),
        ({"vocabulary": "ab"}, "must be a list"),
        ({"law": {"0": [1] * 6}}, "no '\\*' row"),
        ({"law": {"*": [1] * 5}}, "must be 6 weights"),
        ({"law": {"*": [1, 1, 1, 1, 1, -1]}}, "id 5 is -1"),
        ({"law": {"*": [1, 1, 1, 1, 1, math.nan]}}, "id 5 is nan"),
        ({"law": {"*": [0] * 6}}, "sum to 0"),
        ({"law": {"*": [1] * 6, "6": [1] * 6}}, "6 is no id"),
        ({"law": {"*": [1] * 6, "1,1,1": [1] * 6}}, "last one or two tokens"),
        ({"law": {"*": {"9": 1}}}, "'9' is no id"),
        ({"end_ids": [6]}, "6 is no id"),
        ({"context_length": 1}, "'context_length'"),
        ({"pass_us": [[4, 1], [4, 2]]}, "ascending"),
        ({"script": [0]}, "exactly one"),
    ],
)
def test_impossible_files_are_refused(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    """A file that cannot be meant is refused with its path, the key and what would be right."""
    path = tmp_path / "toy.json"
    path.write_text(json.dumps({**TOY, **change}))
    with pytest.raises(ConfigurationError, match=f"toy.json.*{message}"):
        TableFile.load(path)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    """A path without a file and a file without JSON are told apart."""
    with pytest.raises(ConfigurationError, match=r"cannot read table model .*none.json"):
        TableFile.load(tmp_path / "none.json")
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigurationError, match="is not JSON"):
        TableFile.load(tmp_path / "broken.json")


def test_documented_example_is_valid() -> None:
    """Every example in docs/table-model.md loads."""
    text = (Path(__file__).parents[2] / "docs" / "table-model.md").read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in text.split("```json\n")[1:]]
    assert len(examples) >= 3
    for example in examples:
        assert TableBackend(parse(json.loads(example))).vocabulary_size > 1
