"""The two outputs of a command: answers on stdout, everything said about them on stderr."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from rich.console import Console

from pilotfish.cli.render import Look


@dataclass(frozen=True, slots=True)
class Terminal:
    """Where a command writes."""

    out: Console
    error: Console

    @staticmethod
    def of_process() -> Terminal:
        """The terminal of this process; NO_COLOR and FORCE_COLOR are honoured."""
        return Terminal(Console(highlight=False), Console(stderr=True, highlight=False))

    def write(self, text: str) -> None:
        """Write to stdout as it is, at once."""
        self.out.file.write(text)
        self.out.file.flush()

    def say(self, text: str, style: str = "") -> None:
        """One message on stderr, as it is and never wrapped."""
        self.error.print(text, style=style, markup=False, soft_wrap=True)

    def say_legend(self, look: Look) -> None:
        """What the colours and marks of an answer mean, where stderr can show them too."""
        legend = look.legend()
        if legend and (self.error.is_terminal or not look.has_colour):
            self.error.file.write(f"{legend}\n")


def complain(message: str) -> None:
    """One line on stderr, without anything that could fail."""
    print(f"pilotfish: {message}", file=sys.stderr)
