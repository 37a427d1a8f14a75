"""What a session does over several rounds, as programs to enumerate."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial

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


def play_ahead(
    chance: Chance,
    line: DrawDraft,
    decide: Decide,
    target: TargetLaw,
    gammas: Sequence[int],
    num_free: Sequence[int] = (),
) -> Tokens:
    """Rounds of one session whose drafter goes on, cut out of its line, with the keys that the services use.

    The line is drawn whole where it begins. A round takes γ nodes of it; the node after them guesses the bonus, and
    where all of that came to be committed the next round takes the nodes below. Otherwise what lies ahead is dropped,
    and a new line begins.

    Args:
        line: draws all that a line may ever have.
        gammas: nodes of each round, whether its line begins with it or goes on.
        num_free: for each round, how many tokens the session commits by itself before its draft arrives.
    """
    text: Tokens = ()
    draft, base = Draft.EMPTY, 0
    for number, gamma in enumerate(gammas):
        if not draft.tokens or draft.tokens[: len(text) - base] != text[base:]:
            draft, base = line(chance, text), len(text)
        start = len(text) - base
        for _ in range(num_free[number] if num_free else 0):
            text += decide(chance, text, Draft.EMPTY, target)
        tail = Draft.chain(draft.tokens[start : start + gamma], draft.q[start : start + gamma]).after(
            text[base + start :]
        )
        text += decide(chance, text, tail[0] if tail else Draft.EMPTY, target)
    return text


def ahead_law(
    line: DrawDraft,
    decide: Decide,
    target: TargetLaw,
    num_tokens: int,
    gammas: Sequence[int],
    num_free: Sequence[int] = (),
) -> Law:
    """The law of the first tokens of `play_ahead`, one enumeration over all rounds together."""
    program = partial(play_ahead, line=line, decide=decide, target=target, gammas=gammas, num_free=num_free)
    return extend(enumerate_law(program), target, num_tokens)


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
