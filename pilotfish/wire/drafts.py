"""Drafts on the wire, and what is left of one that a peer got wrong."""

from __future__ import annotations

from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.v1 import peer_pb2
from pilotfish.wire.values import DropCause, Limits, Received


def write_draft(draft: Draft, first_node: int = 0) -> peer_pb2.Draft:
    """A draft, or a part of one that begins with node `first_node` of the whole."""
    num_nodes = len(draft)
    is_chain = draft.parents == tuple(range(first_node - 1, first_node + num_nodes - 1))
    proto = peer_pb2.Draft(tokens=draft.tokens, parents=() if is_chain else draft.parents)
    if draft.has_q:
        add = proto.q.add
        for q in draft.q:
            if q is None:
                add()
            else:
                add(ids=q.ids, weights=q.weights)
    return proto


def read_draft(proto: peer_pb2.Draft, first_node: int, limits: Limits) -> Received[Draft]:
    """A draft, or a part of one, that is sound whatever the peer sent.

    It is cut before the first node whose token or parent is impossible (so the nodes below that one go as well),
    and it is empty where a q cannot be what a token was drawn from: then nothing that is said of it can be believed.
    """
    tokens = tuple(proto.tokens)
    num_nodes = len(tokens)
    parents = tuple(proto.parents) or tuple(range(first_node - 1, first_node + num_nodes - 1))
    num_q = len(proto.q)
    if len(parents) != num_nodes or num_q not in {0, num_nodes}:
        return Received(Draft.EMPTY, "shape")
    num_sound, cause = _num_sound(tokens, parents, first_node, limits)
    if num_sound < num_nodes:
        tokens, parents = tokens[:num_sound], parents[:num_sound]
    if not num_q:
        return Received(Draft(tokens, parents, (None,) * num_sound), cause)
    q: list[Distribution | None] = []
    for token, node in zip(tokens, proto.q, strict=False):
        distribution = Distribution(tuple(node.ids), tuple(node.weights))
        if not distribution.ids and not distribution.weights:
            q.append(None)
        elif _is_sound(distribution, token, limits):
            q.append(distribution)
        else:
            return Received(Draft.EMPTY, "q")
    return Received(Draft(tokens, parents, tuple(q)), cause)


def _num_sound(
    tokens: tuple[int, ...], parents: tuple[int, ...], first_node: int, limits: Limits
) -> tuple[int, DropCause | None]:
    """How many nodes can stay, and what is wrong with the next one."""
    num_ids, room = limits.num_ids, max(0, limits.max_nodes - first_node)
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if node == room:
            return node, "nodes"
        if token >= num_ids:
            return node, "token"
        if not -1 <= parent < first_node + node:
            return node, "parent"
    return len(tokens), None


def _is_sound(q: Distribution, token: int, limits: Limits) -> bool:
    """Whether q is a distribution over the vocabulary from which the token can have been drawn."""
    ids = q.ids
    return (
        len(ids) == len(q.weights) <= limits.max_support
        and token in ids
        and min(q.weights) > 0
        and max(ids) < limits.num_ids
        and len(set(ids)) == len(ids)
    )
