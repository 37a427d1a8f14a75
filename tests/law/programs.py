"""What a session does over several rounds, as programs to enumerate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from pilotfish.draft import Draft
from tests.law.enumeration import Chance, Law, TargetLaw, Tokens, enumerate_law, extend
from tests.law.reference import Decide
from tests.law.tables import DrawDraft


def play(
    chance: Chance, draw: DrawDraft, decide: Decide, target: TargetLaw, num_free: Sequence[int] = (0, 0)
) -> Tokens:
    """Rounds of one session, with the keys that the services use.

    Args:
        num_free: for each round, how many tokens the session commits by itself between the drawing of the draft and
            its arrival; what is left of the draft is then verified, and where nothing is, one token is drawn.
    """
    text: Tokens = ()
    for count in num_free:
        draft, base = draw(chance, text), len(text)
        for _ in range(count):
            text += decide(chance, text, Draft.EMPTY, target)
        tail = draft.after(text[base:])
        text += decide(chance, text, tail[0] if tail else Draft.EMPTY, target)
    return text


def keyed_law(
    draw: DrawDraft, decide: Decide, target: TargetLaw, num_tokens: int, num_free: Sequence[int] = (0, 0)
) -> Law:
    """The law of the first tokens of `play`, one enumeration over all rounds together."""
    return extend(enumerate_law(lambda chance: play(chance, draw, decide, target, num_free)), target, num_tokens)


def independent_law(
    draw: DrawDraft, decide: Decide, target: TargetLaw, num_tokens: int, num_free: Sequence[int] = (0, 0)
) -> Law:
    """The same where rounds share no chance: round by round, so that larger tables are feasible."""

    @cache
    def round_law(context: Tokens, count: int) -> Law:
        def program(chance: Chance) -> Tokens:
            free: Tokens = ()
            draft = draw(chance, context)
            for _ in range(count):
                free += decide(chance, context + free, Draft.EMPTY, target)
            tail = draft.after(free)
            return free + decide(chance, context + free, tail[0] if tail else Draft.EMPTY, target)

        return enumerate_law(program)

    law: Law = {(): 1.0}
    for count in num_free:
        longer: Law = {}
        for text, probability in law.items():
            for tokens, weight in round_law(text[-2:], count).items():
                longer[text + tokens] = longer.get(text + tokens, 0.0) + probability * weight
        law = longer
    return extend(law, target, num_tokens)
