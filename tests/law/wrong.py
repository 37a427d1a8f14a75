"""Wrong rules and wrong drafters: each has been somebody's, each must fail the test that the right ones pass."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from tests.law import reference
from tests.law.enumeration import Chance, TargetLaw, Tokens
from tests.law.reference import Decide, base_keyed, dense, residual
from tests.law.tables import DrawDraft, Pair, draw_chain, weighted

# Rules -------------------------------------------------------------------------------------------------------------


def argmax_veto(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Keeps a draft token that is the target's likeliest, whatever its probability."""

    def keeps(p: Sequence[float], drafted: int) -> bool:
        return drafted == max(range(len(p)), key=p.__getitem__)

    return _token_rule(chance, tokens, draft, target, keeps=keeps)


def agreement(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Takes the draft where it is the target's likeliest token and draws where it is not."""
    text = tokens
    for node, drafted in enumerate(draft.tokens):
        p = target(text)
        if drafted != max(range(len(p)), key=p.__getitem__):
            return (*text[len(tokens) :], chance.choose(base_keyed("final", len(tokens), node), p))
        text = (*text, drafted)
    return (*text[len(tokens) :], chance.choose(base_keyed("final", len(tokens), len(draft)), target(text)))


def correction_from_p(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Draws from p, not from the residual, after a rejection."""
    return _token_rule(chance, tokens, draft, target, last=lambda p, q: list(p))


def residual_not_renormalised(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Inverts the residual as if it summed to 1: what is missing falls to the last id."""

    def last(p: Sequence[float], q: Sequence[float]) -> list[float]:
        weights = residual(p, q)
        return [*weights[:-1], weights[-1] + 1.0 - sum(weights)]

    return _token_rule(chance, tokens, draft, target, last=last)


def position_keyed(purpose: str, base: int, node: int) -> Hashable:
    """The wrong key for block: the position of the node, which the next round meets again."""
    return (purpose, base + node)


def block_keyed_by_position(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Block whose uniforms belong to positions: those it looked at and did not use come back in the next round."""
    return reference.block(chance, tokens, draft, target, position_keyed)


def longest_path(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """Decides on every path of a tree by itself and keeps the longest that is accepted."""
    base, best = len(tokens), tokens[:0]
    rejected: list[float] | None = None
    for number, path in enumerate(draft.paths):
        text = tokens
        rejected_here: list[float] | None = None
        for node in path:
            p, q = target(text), dense(draft, node, len(target(text)))
            drafted = draft.tokens[node]
            if not chance.below(("accept", base, number, node), p[drafted] / q[drafted]):
                rejected_here = q
                break
            text = (*text, drafted)
        if number == 0 or len(text) - base > len(best):
            best, rejected = text[base:], rejected_here
    p = target(tokens + best)
    return (*best, chance.choose(("final", base, 0), p if rejected is None else residual(p, rejected)))


def _token_rule(
    chance: Chance,
    tokens: Tokens,
    draft: Draft,
    target: TargetLaw,
    keeps: Callable[[Sequence[float], int], bool] = lambda p, drafted: False,
    last: Callable[[Sequence[float], Sequence[float]], list[float]] = residual,
) -> Tokens:
    base, text = len(tokens), tokens
    for node, drafted in enumerate(draft.tokens):
        p, q = target(text), dense(draft, node, len(target(text)))
        kept = keeps(p, drafted)
        if not kept and not chance.below(
            base_keyed("accept", base, node), p[drafted] / q[drafted] if q[drafted] else 1.0
        ):
            return (*text[base:], chance.choose(base_keyed("final", base, 0), last(p, q)))
        text = (*text, drafted)
    return (*text[base:], chance.choose(base_keyed("final", base, 0), target(text)))


def forgiving_token(chance: Chance, tokens: Tokens, draft: Draft, target: TargetLaw) -> Tokens:
    """The rule `token` for drafters that may send a token whose q says 0: p/q is then infinite."""
    return _token_rule(chance, tokens, draft, target)


# Drafters whose q is not what they drew from -----------------------------------------------------------------------


def says_otherwise(pair: Pair, gamma: int, said: Callable[[Distribution], Distribution]) -> DrawDraft:
    """A drafter that sends another q than the one it drew from."""
    drawn = draw_chain(pair, gamma)

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        draft = drawn(chance, tokens)
        return Draft.chain(draft.tokens, [said(q) for q in draft.q if q is not None])

    return draw


def at_temperature(temperature: float) -> Callable[[Distribution], Distribution]:
    """The q as it would be at another temperature."""

    def said(q: Distribution) -> Distribution:
        weights = [(weight / q.total) ** (1.0 / temperature) for weight in q.weights]
        return Distribution(q.ids, tuple(round(weight * (1 << 20)) for weight in weights))

    return said


def truncated(num_ids: int) -> Callable[[Distribution], Distribution]:
    """The likeliest ids of q, though others may have been drawn."""

    def said(q: Distribution) -> Distribution:
        best = sorted(zip(q.weights, q.ids, strict=True), reverse=True)[:num_ids]
        return Distribution(tuple(token for _, token in best), tuple(weight for weight, _ in best))

    return said


def rounded(num_bits: int) -> Callable[[Distribution], Distribution]:
    """The q in fewer bits than it was drawn from."""

    def said(q: Distribution) -> Distribution:
        dense_q = [q.probability(token) for token in range(max(q.ids) + 1)]
        return weighted(dense_q, num_bits)

    return said


def always(token: int, claimed: float) -> DrawDraft:
    """A liar: always sends one token and claims that it was unlikely."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        other = 1 - token
        return Draft.chain(
            [token], [Distribution((token, other), (round(claimed * 1000), round(1000 - claimed * 1000)))]
        )

    return draw


# Sessions whose drafter goes on: two rounds of a line, the node between them guesses the bonus ----------------------


def taking_what_failed(
    chance: Chance, line: DrawDraft, decide: Decide, target: TargetLaw, gammas: tuple[int, int]
) -> Tokens:
    """Takes the round that lies ahead as it was decided below what it assumes, whatever was committed instead."""
    draft, (num_first, _) = line(chance, ()), gammas
    text = decide(chance, (), draft.truncate(num_first), target)
    return text + decide(chance, draft.tokens[: num_first + 1], _ahead(draft, gammas), target)


def keeping_the_guess(
    chance: Chance, line: DrawDraft, decide: Decide, target: TargetLaw, gammas: tuple[int, int]
) -> Tokens:
    """Counts the guess as accepted with the nodes before it: it is committed in place of the bonus."""
    draft, (num_first, _) = line(chance, ()), gammas
    text = decide(chance, (), draft.truncate(num_first), target)
    if text[:num_first] != draft.tokens[:num_first]:
        return text
    text = draft.tokens[: num_first + 1]
    return text + decide(chance, text, _ahead(draft, gammas), target)


def _ahead(draft: Draft, gammas: tuple[int, int]) -> Draft:
    first, end = gammas[0] + 1, sum(gammas) + 1
    return Draft.chain(draft.tokens[first:end], draft.q[first:end])


# Trimmers: what is verified depends on what is dropped -------------------------------------------------------------


def dropping_unlikely(drawn: DrawDraft, least: float) -> DrawDraft:
    """Stops before sending a token whose own probability was low."""
    return lambda chance, tokens: _before(drawn(chance, tokens), lambda draft, node: _confidence(draft, node) < least)


def trimming_a_batch(mine: DrawDraft, theirs: DrawDraft, budget: int) -> DrawDraft:
    """Two sessions share a budget of nodes; the drafted tokens with the highest confidence get it."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        draft = mine(chance, tokens)
        # The other session is at the end of another text, so its chance is its own.
        neighbour = theirs(chance, (0,) * (100 + len(tokens)))
        confidences = sorted(_path_confidences(draft) + _path_confidences(neighbour), reverse=True)
        if len(confidences) <= budget:
            return draft
        least = confidences[budget - 1]
        return _before(draft, lambda draft, node: _path_confidences(draft)[node] < least)

    return draw


def dropping_forbidden(drawn: DrawDraft, forbidden: int) -> DrawDraft:
    """Draws without the grammar's mask and drops a token that the grammar forbids."""
    return lambda chance, tokens: _before(drawn(chance, tokens), lambda draft, node: draft.tokens[node] == forbidden)


def dropping_late(drawn: DrawDraft, least: float, num_in_time: int) -> DrawDraft:
    """Stops after an unlikely token, which is allowed; but a longer draft comes late and is dropped as a whole."""
    drawn = stopping_after_unlikely(drawn, least)

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        draft = drawn(chance, tokens)
        return draft if len(draft) <= num_in_time else Draft.EMPTY

    return draw


# What is allowed ---------------------------------------------------------------------------------------------------


def stopping_by_shape(drawn: DrawDraft, least: float) -> DrawDraft:
    """Stops before a draw whose distribution has no likely token."""

    def is_flat(draft: Draft, node: int) -> bool:
        q = draft.q[node]
        return q is not None and max(q.weights) / q.total < least

    return lambda chance, tokens: _before(drawn(chance, tokens), is_flat)


def stopping_after_unlikely(drawn: DrawDraft, least: float) -> DrawDraft:
    """Stops after a token whose probability was low, and sends it."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        draft = drawn(chance, tokens)
        unlikely = [node for node in range(len(draft)) if _confidence(draft, node) < least]
        return draft.truncate(unlikely[0] + 1) if unlikely else draft

    return draw


def in_time(draw: DrawDraft, num_in_time: int) -> DrawDraft:
    """The nodes that have come when patience ends, of however many there are."""
    return lambda chance, tokens: draw(chance, tokens).truncate(num_in_time)


def cut(target: TargetLaw, top_k: int) -> TargetLaw:
    """The target after top_k."""

    def law(tokens: Tokens) -> list[float]:
        p = target(tokens)
        last = sorted(p)[-top_k]
        weights = [value if value >= last else 0.0 for value in p]
        return [weight / sum(weights) for weight in weights]

    return law


def masked(target: TargetLaw, forbidden: int) -> TargetLaw:
    """The target under a grammar that forbids an id."""

    def law(tokens: Tokens) -> list[float]:
        weights = [0.0 if token == forbidden else p for token, p in enumerate(target(tokens))]
        return [weight / sum(weights) for weight in weights]

    return law


def masked_before_drawing(pair: Pair, gamma: int, forbidden: int) -> DrawDraft:
    """Draws from q under the grammar's mask."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        draft = Draft.EMPTY
        for node in range(gamma):
            whole = pair.q((*tokens, *draft.tokens))
            kept = [
                (token, weight) for token, weight in zip(whole.ids, whole.weights, strict=True) if token != forbidden
            ]
            q = Distribution(tuple(token for token, _ in kept), tuple(weight for _, weight in kept))
            drafted = q.ids[chance.choose(("draft", len(tokens), node), q.weights)]
            draft = draft.append(Draft((drafted,), (node - 1,), (q,)))
        return draft

    return draw


def _confidence(draft: Draft, node: int) -> float:
    q = draft.q[node]
    return 1.0 if q is None else q.probability(draft.tokens[node])


def _path_confidences(draft: Draft) -> list[float]:
    confidences = [1.0]
    for node in range(len(draft)):
        confidences.append(confidences[-1] * _confidence(draft, node))
    return confidences[1:]


def _before(draft: Draft, is_last: Callable[[Draft, int], bool]) -> Draft:
    """The draft up to, and without, the first node of which something holds."""
    return draft.truncate(next((node for node in range(len(draft)) if is_last(draft, node)), len(draft)))
