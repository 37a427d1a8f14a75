from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pilotfish.distribution import Distribution
from pilotfish.draft import Draft

TREE = Draft((5, 6, 7, 5, 8), (-1, -1, 0, 0, 3), (None,) * 5)


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Trees of up to 12 nodes over 3 ids; a q here marks its node, so that a mixed-up order shows."""
    num_nodes = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(-1, node - 1)) for node in range(num_nodes))
    tokens = tuple(draw(st.integers(0, 2)) for _ in range(num_nodes))
    return Draft(tokens, parents, tuple(Distribution((token,), (node + 1,)) for node, token in enumerate(tokens)))


def test_chain_hangs_node_below_node() -> None:
    """A chain has the parents -1, 0, 1, … and, unless told, no q."""
    chain = Draft.chain([4, 5, 6])
    assert chain == Draft((4, 5, 6), (-1, 0, 1), (None, None, None))
    assert chain.is_chain
    assert not chain.has_q
    assert chain.depths == (0, 1, 2)
    assert chain.num_levels == len(chain) == 3


def test_empty_draft_is_a_chain_without_levels() -> None:
    """The empty draft is a chain of no node and no path."""
    assert Draft.empty() is Draft.EMPTY
    assert Draft.EMPTY.is_chain
    assert (len(Draft.EMPTY), Draft.EMPTY.num_levels, Draft.EMPTY.paths) == (0, 0, ())


def test_tree_knows_its_paths() -> None:
    """Depths, children, paths and ancestor masks follow from the parents."""
    assert not TREE.is_chain
    assert TREE.depths == (0, 0, 1, 1, 2)
    assert TREE.children(-1) == (0, 1)
    assert TREE.children(0) == (2, 3)
    assert TREE.path(4) == (0, 3, 4)
    assert TREE.paths == ((1,), (0, 2), (0, 3, 4))
    assert TREE.ancestor_mask() == (0b1, 0b10, 0b101, 0b1001, 0b11001)


def test_child_is_the_first_that_carries_the_token() -> None:
    """Of two siblings with one token the first is meant."""
    assert Draft((5, 5), (-1, -1), (None, None)).child(-1, 5) == 0
    assert TREE.child(0, 9) is None


def test_tail_is_what_hangs_below_the_committed_path() -> None:
    """After a commit along a path the tail keeps the nodes below, renumbered; a path that is not there has none."""
    assert TREE.after([5]) == (Draft((7, 5, 8), (-1, -1, 1), (None,) * 3), 1)
    assert TREE.after([5, 5, 8]) == (Draft.EMPTY, 3)
    assert TREE.after([]) == (TREE, 0)
    assert TREE.after([9]) is None
    assert TREE.after([6, 5]) is None


@given(drafts(), st.integers(1, 5))
def test_parts_put_together_are_the_draft(draft: Draft, num_nodes: int) -> None:
    """Nodes that travel in parts are the same draft at the other end."""
    whole = Draft.EMPTY
    for first, part in draft.parts(num_nodes):
        assert first == len(whole)
        whole = whole.append(part)
    assert whole == draft


@given(drafts(), st.integers(0, 12))
def test_truncated_draft_is_its_beginning(draft: Draft, num_nodes: int) -> None:
    """The first nodes are a draft: no parent is missing."""
    beginning = draft.truncate(num_nodes)
    assert len(beginning) == min(num_nodes, len(draft))
    assert all(parent < node for node, parent in enumerate(beginning.parents))
    rest = slice(num_nodes, None)
    assert beginning.append(Draft(draft.tokens[rest], draft.parents[rest], draft.q[rest])) == draft


@given(drafts(), st.lists(st.integers(0, 2), max_size=4))
def test_tail_has_the_paths_of_the_draft_that_begin_so(draft: Draft, committed: list[int]) -> None:
    """Every node of the tail, with its path and its q, is a node of the draft below the committed path."""
    tail = draft.after(committed)
    node = draft.find(committed)
    if tail is None:
        assert node is None
        return
    assert node is not None
    below = [other for other in range(len(draft)) if node in (-1, *draft.path(other)) and other != node]
    old = [(draft.q[other], draft.path(other)[len(committed) :]) for other in below]
    new = [
        (tail[0].q[other], tuple(below[ancestor] for ancestor in tail[0].path(other))) for other in range(len(below))
    ]
    assert old == new
    assert len(tail[0]) == len(below)
    assert tail[1] == len(committed)


@given(drafts())
def test_ancestor_mask_is_the_path(draft: Draft) -> None:
    """A node sees the nodes of its own path and no other."""
    masks = draft.ancestor_mask()
    for node, mask in enumerate(masks):
        assert tuple(bit for bit in range(len(draft)) if mask >> bit & 1) == draft.path(node)
