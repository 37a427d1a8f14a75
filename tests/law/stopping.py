"""The drafter's own rounds, enumerated: deadline, price and γ end a draft as they do in the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from drafter.drafter import stop_rule
from drafter.rounds import Rounds
from drafter.speculators import Ask, Facts, Speculator
from pilotfish.confidence import Calibration
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import DraftRequest, Open, SessionId
from tests.law.enumeration import Chance, Tokens
from tests.law.tables import DrawDraft, Pair

SESSION = b"s" * 16
STEP_S = 0.010


class Honest(Speculator):
    """Draws from a table, one node a step of 10 ms; tells how likely the likeliest token is before it draws."""

    def __init__(self, pair: Pair, chance: Chance, tokens: Tokens) -> None:
        self.now_s = 0.0
        self._pair = pair
        self._chance = chance
        self._tokens = tokens

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        (ask,) = asks
        self.now_s += STEP_S
        return [self.step(ask, self._pair.q(self._tokens + ask.draft.tokens))]

    def open(self, start: Open) -> None:
        """It is made for one round, of whose text it knows all."""

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        """Nothing is committed while it lives."""

    def close(self, session: SessionId) -> None:
        """Nothing is kept."""

    def step(self, ask: Ask, q: Distribution) -> Draft:
        return ask.chain([self.drawn(ask, q)], [q]) if ask.draws(max(q.weights) / q.total) else Draft.EMPTY

    def drawn(self, ask: Ask, q: Distribution) -> int:
        return q.ids[self._chance.choose(("draft", ask.position, len(ask.draft)), q.weights)]


class Peeking(Honest):
    """Draws first, and tells how likely the drawn token was: what is dropped then depends on what was drawn."""

    def step(self, ask: Ask, q: Distribution) -> Draft:
        token = self.drawn(ask, q)
        return ask.chain([token], [q]) if ask.draws(q.probability(token)) else Draft.EMPTY


@dataclass(frozen=True, slots=True)
class Limits:
    """What ends a draft besides the price. All of it may depend on what is committed."""

    gamma: int
    num_in_time: int  # draws that begin before the deadline
    calibration: Calibration
    prices: tuple[float, ...]  # one for each last token: as if learned from what was committed
    step_price: float = 0.0

    def price(self, tokens: Tokens) -> float:
        return self.prices[tokens[-1] % len(self.prices)] if tokens else self.prices[0]


def draw_stopped(pair: Pair, limits: Limits, speculator: type[Honest] = Honest) -> DrawDraft:
    """What the drafter sends of a round, from the first part to the complete one."""

    def draw(chance: Chance, tokens: Tokens) -> Draft:
        table = speculator(pair, chance, tokens)
        rounds = Rounds(table, lambda: table.now_s)
        request = DraftRequest(
            SESSION, 0, len(tokens), 0, 0, (), limits.gamma, round((limits.num_in_time - 0.5) * STEP_S * 1e6),
            price=limits.price(tokens), step_price=limits.step_price, calibration=limits.calibration,
        )  # fmt: skip
        rounds.start(request, 0.0, stop_rule(request, Facts()))
        draft = Draft.EMPTY
        while not rounds.is_idle:
            for _, part, _ in rounds.step():
                draft = draft.append(part.draft)
        return draft

    return draw
