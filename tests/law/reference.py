"""The rules once more: slow, dense, in double precision, straight from the papers; chance is asked, never drawn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from pilotfish.draft import Draft
from tests.law.enumeration import Chance, TargetLaw, Tokens

KeyOf = Callable[[str, int, int], Hashable]
Decide = Callable[[Chance, Tokens, Draft, TargetLaw], Tokens]


def base_keyed(purpose: str, base: int, node: int) -> Hashable:
    """The right key of a round's uniforms: its base position and the node."""
    return (purpose, base, node)


def dense(draft: Draft, node: int, num_ids: int) -> list[float]:
    """The q of a node over the whole vocabulary."""
    q = draft.q[node]
    if q is None:
        return [float(token == draft.tokens[node]) for token in range(num_ids)]
    return [q.probability(token) for token in range(num_ids)]


def residual(p: Sequence[float], q: Sequence[float], scale: float = 1.0) -> list[float]:
    """max(0, scale * p - q)."""
    return [max(0.0, scale * p_id - q_id) for p_id, q_id in zip(p, q, strict=True)]


def match(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Draw from p, follow the child that carries the token, stop where there is none."""
    node, text = -1, tokens
    while True:
        token = chance.choose(("match", len(text)), target(text))
        text = (*text, token)
        child = draft.child(node, token)
        if child is None:
            return text[len(tokens) :]
        node = child


def token(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Leviathan et al. 2023, algorithm 1."""
    base, text = len(tokens), tokens
    for node, drafted in enumerate(draft.tokens):
        p, q = target(text), dense(draft, node, len(target(text)))
        if not chance.below(base_keyed("accept", base, node), p[drafted] / q[drafted]):
            return (*text[base:], chance.choose(base_keyed("final", base, 0), residual(p, q)))
        text = (*text, drafted)
    return (*text[base:], chance.choose(base_keyed("final", base, 0), target(text)))


def block(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw, key_of: KeyOf = base_keyed) -> Tokens:
    """Sun et al. 2024, algorithm 2; all i are looked at, from the first to the last."""
    base, gamma, num_ids = len(tokens), len(draft), len(target(tokens))
    laws = [target((*tokens, *draft.tokens[:node])) for node in range(gamma + 1)]
    qs = [dense(draft, node, num_ids) for node in range(gamma)]
    survival, kept, scale = 1.0, 0, 1.0
    for i in range(1, gamma + 1):
        drafted = draft.tokens[i - 1]
        survival = min(1.0, survival * laws[i - 1][drafted] / qs[i - 1][drafted])
        threshold = survival
        if i < gamma:
            mass = sum(residual(laws[i], qs[i], survival))
            threshold = 1.0 if mass + 1.0 - survival == 0.0 else mass / (mass + 1.0 - survival)
        if chance.below(key_of("accept", base, i - 1), threshold):
            kept, scale = i, survival
    weights = laws[gamma] if kept == gamma else residual(laws[kept], qs[kept], scale)
    return (*draft.tokens[:kept], chance.choose(key_of("final", base, 0), weights))
