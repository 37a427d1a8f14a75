"""The rule `match`: draw from p at the node; where a child carries that token go there, else commit it and stop.

What is committed is what would have been drawn without any draft, so the rule is exact for every tree and every way
of drafting. T = 0 is the same with the largest logit for the draw.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from pilotfish import noise, sampling
from pilotfish.noise import Purpose
from verifier.acceptance.draw import draw_by_noise
from verifier.acceptance.rounds import Outcome, Round, node_bytes

DrawRows = Callable[[Tensor, Sequence[int]], list[int]]


class Walk:
    """Where the walk down one draft stands."""

    __slots__ = ("node", "path", "round", "token")

    def __init__(self, round_: Round) -> None:
        self.round = round_
        self.node = -1  # the last node kept
        self.path: list[int] = []
        self.token: int | None = None  # the last one, once it is known

    @property
    def row(self) -> int:
        """Row to draw from next."""
        return self.round.row(self.node)

    @property
    def key(self) -> int:
        """Key of the noise to draw with next: that of the token's own position."""
        return noise.key(self.round.seed, Purpose.COUPLED, self.round.position + len(self.path))

    def step(self, token: int) -> bool:
        """Go to the child that carries `token`; False: there is none, the walk is over."""
        child = self.round.draft.child(self.node, token)
        if child is None:
            self.token = token
            return False
        self.node = child
        self.path.append(child)
        return True

    def outcome(self, probabilities: Sequence[float]) -> Outcome:
        assert self.token is not None
        is_bonus = not self.round.draft.children(self.node)
        return Outcome(tuple(self.path), self.token, is_bonus, node_bytes(probabilities))


def accept(rounds: Sequence[Round], law: Tensor, draw: DrawRows = draw_by_noise) -> list[Outcome]:
    """Decide on the rounds, level by level, all of them at once; noise only at nodes that are walked.

    Args:
        law: [R, V], p of the rows of all rounds.
        draw: an id for each of the given rows of p, from the noise with the given keys.
    """
    walks = [Walk(round_) for round_ in rounds]
    active = walks
    while active:
        tokens = draw(law[[walk.row for walk in active]], [walk.key for walk in active])
        active = [walk for walk, token in zip(active, tokens, strict=True) if walk.step(token)]
    survivals = _survivals(rounds, law)
    return [walk.outcome(probabilities) for walk, probabilities in zip(walks, survivals, strict=True)]


def accept_greedy(rounds: Sequence[Round], logits: Tensor) -> list[Outcome]:
    """Decide on rounds of T = 0, without probabilities.

    Args:
        logits: [R, V]; the rows of `rounds` among others.
    """
    rows = [row for round_ in rounds for row in round_.rows]
    likeliest = sampling.greedy(logits if rows == list(range(len(logits))) else logits[rows])
    tokens = dict(zip(rows, likeliest.tokens.tolist(), strict=True))
    is_sound = dict(zip(rows, likeliest.is_sound.tolist(), strict=True))
    return [_accept_known(round_, tokens).checked(round_, is_sound) for round_ in rounds]


def _accept_known(round_: Round, tokens: Mapping[int, int]) -> Outcome:
    walk = Walk(round_)
    while walk.step(tokens[walk.row]):
        pass
    survivals: list[float] = []
    for node, parent in enumerate(round_.draft.parents):
        is_match = round_.draft.tokens[node] == tokens[round_.row(parent)]
        survivals.append(is_match * (survivals[parent] if parent >= 0 else 1.0))
    return walk.outcome(survivals)


def _survivals(rounds: Sequence[Round], law: Tensor) -> list[list[float]]:
    """Product of p along the path to each node, for each round."""
    rows = [round_.row(parent) for round_ in rounds for parent in round_.draft.parents]
    tokens = [token for round_ in rounds for token in round_.draft.tokens]
    p = iter(law[rows, tokens].tolist() if rows else ())
    products: list[list[float]] = []
    for round_ in rounds:
        survivals: list[float] = []
        for parent in round_.draft.parents:
            survivals.append(next(p) * (survivals[parent] if parent >= 0 else 1.0))
        products.append(survivals)
    return products
