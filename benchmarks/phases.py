"""Texts that change between copying and free prose while they are written; made for this project, nothing is tuned on.

A conversation asks for a sentence of one's own about each subject, and after each the same form again. Two subjects are
answered already, so that a small model goes on in the same way: prose, of which nothing stands in the text, then a form
that stands there twice.
"""

from __future__ import annotations

from typing import NamedTuple


class Begun(NamedTuple):
    """What a user asked for, and how its answer begins."""

    question: str
    answer: str


FORMS = (
    (
        "order: 48213\ncustomer: Ilse Varga, Ammerweg 12, Tarn\nparcel: 3 boxes, 17.4 kg, blue label\n"
        "deliver: Friday before 11:30, ring twice\npaid: yes, by transfer on 4 March"
    ),
    (
        "ticket: 9907-B\ndevice: water pump, model TK 55, cellar left\nfault: stops after 40 minutes, fuse is whole\n"
        "called: Jonna Aalto, extension 217\nnext visit: Tuesday 14:15, bring seal ring 8 mm"
    ),
    (
        "flight: QX 318, gate C7\nleaves: Belmar 06:55, arrives Orsova 09:20\nseat: 21F, window, no meal\n"
        "bag: one piece, 19.8 kg, tag 00417732\nname: Piet Doorne, born 1 June 1988"
    ),
    (
        "sample: K-1140\ntaken: river bed at Hollin, depth 2.6 m\nkept: at 4 degrees in a brown bottle\n"
        "lead: 0.07 mg/l, zinc: 1.31 mg/l, nitrate: 22 mg/l\nsigned: W. Doorne, laboratory 3"
    ),
)
SUBJECTS = (
    ("Rain", "Rain sounds different on every roof, and most people can tell their own by ear."),
    ("Bread", "A loaf that has cooled slowly keeps its crust until the evening of the next day."),
    ("Trains", "On a night train one sleeps badly and still arrives in better spirits than by car."),
    ("Chess", "Good players do not see further than others, they look at fewer moves."),
    ("Gardens", "A garden shows its owner's patience more honestly than any letter could."),
    ("Letters", "Whoever writes by hand thinks a sentence through before it stands there."),
    ("Winter", "In winter the harbour is so quiet that one hears the ropes of the boats."),
    ("Clocks", "A clock that is always five minutes fast is trusted by nobody and used by all."),
)


def begun(number: int) -> Begun:
    """A conversation; numbers that differ by less than 32 give different ones."""
    form = FORMS[number % len(FORMS)]
    first = number // len(FORMS)
    chosen = [SUBJECTS[(first + step) % len(SUBJECTS)] for step in range(6)]
    subjects = ", ".join(subject.lower() for subject, _ in chosen)
    question = (
        "For each subject write one or two sentences of your own under its name, and after each subject give the "
        f"whole form again, word by word.\n\nForm:\n{form}\n\nSubjects: {subjects}."
    )
    done = "".join(f"## {subject}\n{sentence}\n\nForm:\n{form}\n\n" for subject, sentence in chosen[:2])
    return Begun(question, f"{done}## {chosen[2][0]}\n")
