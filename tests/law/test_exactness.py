"""Two rounds of every rule, summed over everything that can happen, are the target's own law."""

from __future__ import annotations

import pytest
import torch

from tests.law import reference
from tests.law.batched import batched_law, expected_num_kept
from tests.law.enumeration import largest_difference, text_law
from tests.law.programs import ahead_law, independent_law, keyed_law
from tests.law.reference import Decide
from tests.law.tables import Pair, draw_chain, draw_tree
from verifier.acceptance.chain import ChainRule
from verifier.acceptance.dispatch import BLOCK, TOKEN

EXACT = 1e-12
RULES = [reference.match, reference.token, reference.block]
CHAIN_RULES = [reference.token, reference.block]
MIXED = [(), (False, True, False), (True, False, True), (False, True, True)]
TREES = [(-1, -1), (-1, -1, 0, 0, 1), (-1, 0, 0, -1, 3, 1)]
BATCHED: dict[str, ChainRule | None] = {"match": None, "token": TOKEN, "block": BLOCK}


@pytest.mark.parametrize("one_hot", MIXED)
@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize(("num_ids", "gamma"), [(2, 1), (3, 2), (4, 3)])
def test_chains(decide: Decide, num_ids: int, gamma: int, one_hot: tuple[bool, ...]) -> None:
    """Chains, some of whose nodes were chosen without chance, leave the target's law as it is."""
    pair, num_tokens = Pair(num_ids, seed=11), gamma + 3
    law = independent_law(draw_chain(pair, gamma, one_hot), decide, pair.p, num_tokens)
    assert largest_difference(law, text_law(pair.p, num_tokens)) < EXACT


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize(("num_ids", "gamma", "num_free"), [(2, 3, (0, 0)), (3, 2, (0, 0)), (2, 2, (0, 0, 0))])
def test_rounds_with_the_keys_of_the_services(
    decide: Decide, num_ids: int, gamma: int, num_free: tuple[int, ...]
) -> None:
    """Rounds whose uniforms are keyed by the base position share none, so their common law is exact."""
    pair, num_tokens = Pair(num_ids, seed=12), gamma + 3
    law = keyed_law(draw_chain(pair, gamma), decide, pair.p, num_tokens, num_free)
    assert largest_difference(law, text_law(pair.p, num_tokens)) < EXACT


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize("num_free", [(1, 0), (0, 1), (1, 2), (2, 1), (3, 3)])
def test_free_running_and_tail_reuse(decide: Decide, num_free: tuple[int, int]) -> None:
    """A draft that comes after the session ran free is used from where it agrees with what was committed."""
    pair = Pair(2, seed=13)
    law = keyed_law(draw_chain(pair, 3), decide, pair.p, 7, num_free)
    assert largest_difference(law, text_law(pair.p, 7)) < EXACT


@pytest.mark.parametrize("one_hot", [(True,) * 5, ()], ids=["guessed", "drawn"])
@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize(("gammas", "num_free"), [((1, 1), ()), ((2, 1), ()), ((1, 1), (1, 0)), ((1, 1), (0, 1))])
def test_rounds_that_lie_ahead(
    decide: Decide, gammas: tuple[int, ...], num_free: tuple[int, ...], one_hot: tuple[bool, ...]
) -> None:
    """Rounds cut out of one line, on guesses of the bonus, leave the target's law as it is, hit or miss."""
    pair, num_tokens = Pair(2, seed=18), sum(gammas) + len(gammas) + 1
    num_nodes = sum(gammas) + len(gammas) - 1
    law = ahead_law(draw_chain(pair, num_nodes, one_hot), decide, pair.p, num_tokens, gammas, num_free)
    assert largest_difference(law, text_law(pair.p, num_tokens)) < EXACT


@pytest.mark.parametrize("one_hot", [(True,) * 5, ()], ids=["guessed", "drawn"])
@pytest.mark.parametrize("decide", RULES)
def test_rounds_that_lie_ahead_with_three_ids(decide: Decide, one_hot: tuple[bool, ...]) -> None:
    """The same over a larger vocabulary."""
    pair = Pair(3, seed=19)
    law = ahead_law(draw_chain(pair, 3, one_hot), decide, pair.p, 4, (1, 1))
    assert largest_difference(law, text_law(pair.p, 4)) < EXACT


@pytest.mark.parametrize("decide", RULES)
@pytest.mark.parametrize("one_hot", MIXED)
def test_tail_reuse_with_four_ids(decide: Decide, one_hot: tuple[bool, ...]) -> None:
    """The same over a larger vocabulary and chains with nodes that were chosen without chance."""
    pair = Pair(4, seed=14)
    law = independent_law(draw_chain(pair, 3, one_hot), decide, pair.p, 5, (1, 2))
    assert largest_difference(law, text_law(pair.p, 5)) < EXACT


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize("num_free", [(0, 0), (1, 1)])
def test_trees_under_match(parents: tuple[int, ...], num_free: tuple[int, int]) -> None:
    """`match` is exact for trees, siblings with the same token and reused tails included."""
    pair = Pair(3 if len(parents) < 6 else 2, seed=15)
    law = independent_law(draw_tree(pair, parents), reference.match, pair.p, 5, num_free)
    assert largest_difference(law, text_law(pair.p, 5)) < EXACT


@pytest.mark.parametrize("name", BATCHED)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("num_ids", "gamma", "one_hot"), [(4, 3, ()), (3, 3, MIXED[1]), (3, 3, MIXED[2]), (3, 2, MIXED[3]), (2, 1, ())]
)
def test_batched_chains(
    name: str, dtype: torch.dtype, tolerance: float, num_ids: int, gamma: int, one_hot: tuple[bool, ...]
) -> None:
    """The batched code is as exact as its arithmetic, over two rounds of chains."""
    pair, num_tokens = Pair(num_ids, seed=16), gamma + 3
    law = batched_law(pair, draw_chain(pair, gamma, one_hot), BATCHED[name], dtype, num_tokens)
    assert largest_difference(law, text_law(pair.p, num_tokens)) < tolerance


@pytest.mark.parametrize("parents", TREES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, EXACT), (torch.float32, 1e-5)])
def test_batched_trees(parents: tuple[int, ...], dtype: torch.dtype, tolerance: float) -> None:
    """The batched code is as exact as its arithmetic, over two rounds of trees under `match`."""
    pair = Pair(3 if len(parents) < 6 else 2, seed=17)
    law = batched_law(pair, draw_tree(pair, parents), None, dtype, 5)
    assert largest_difference(law, text_law(pair.p, 5)) < tolerance


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("one_hot", [(), (False, True, False)])
def test_block_never_keeps_fewer_than_token(seed: int, one_hot: tuple[bool, ...]) -> None:
    """At every context of random tables, block keeps at least as many nodes as token in expectation."""
    pair = Pair(3, seed=100 + seed)
    draw = draw_chain(pair, 3, one_hot)
    by_token, by_block = (expected_num_kept(pair, draw, rule) for rule in (TOKEN, BLOCK))
    assert all(by_block[context] >= by_token[context] - EXACT for context in by_token)
    assert sum(by_block.values()) > sum(by_token.values()) + 1e-3
