"""A round's draft as it comes, and what of it still counts."""

from __future__ import annotations

import pytest

from pilotfish.draft import Draft
from pilotfish.messages import Work
from verifier.drafts import DraftInHand, RestState, clip


def hand(tokens: list[int], *, is_complete: bool = True, num_verified: int = 0) -> DraftInHand:
    work = Work(b"s" * 16, 1, 2, 0, 0, Draft.chain(tokens), 0, is_complete, 0, 0)
    begun = DraftInHand.begin(work, 0.0)
    begun.num_verified = num_verified
    return begun


@pytest.mark.parametrize(
    ("committed", "is_complete", "state", "tail"),
    [
        ([], True, RestState.USABLE, (5, 6, 7)),
        ([5], True, RestState.USABLE, (6, 7)),
        ([5, 6, 7], True, RestState.USED_UP, ()),
        ([5, 6, 7], False, RestState.COMING, ()),
        ([5, 6, 7, 8], True, RestState.WRONG, ()),
        ([5, 6, 7, 8], False, RestState.COMING, ()),
        ([5, 9], True, RestState.WRONG, ()),
        ([5, 9], False, RestState.WRONG, ()),
    ],
)
def test_what_counts_of_a_chain_is_what_hangs_below_the_committed_tokens(
    committed: list[int], is_complete: bool, state: RestState, tail: tuple[int, ...]
) -> None:
    """A chain 5 6 7 at position 2, after so many tokens were committed without it."""
    rest = hand([5, 6, 7], is_complete=is_complete).rest([0, 1, *committed])
    assert (rest.state, rest.draft.tokens) == (state, tail)


def test_a_tree_may_still_grow_the_branch_that_was_committed() -> None:
    """While a tree is incomplete a branch that is not there yet may come."""
    tree = hand([], is_complete=False)
    tree.draft = Draft((5, 6), (-1, -1), (None, None))
    assert tree.rest([0, 1, 7]).state is RestState.COMING


def test_nodes_that_were_verified_are_never_verified_again() -> None:
    """A token that was rejected and yet committed does not bring back the nodes below it: chance has seen them."""
    assert hand([5, 6, 7], num_verified=3).rest([0, 1, 5]).state is RestState.WRONG


@pytest.mark.parametrize("num_levels", range(4))
def test_clipping_leaves_the_first_levels(num_levels: int) -> None:
    """A tree clipped to n levels keeps exactly the nodes of depth under n, and their parents."""
    tree = Draft((1, 2, 3, 4, 5), (-1, -1, 1, 0, 3), (None,) * 5)
    clipped = clip(tree, num_levels)
    assert clipped.tokens == {0: (), 1: (1, 2), 2: (1, 2, 3, 4), 3: (1, 2, 3, 4, 5)}[num_levels]
    assert clipped.num_levels == num_levels
    assert clip(Draft.chain([1, 2, 3]), num_levels).tokens == (1, 2, 3)[:num_levels]
