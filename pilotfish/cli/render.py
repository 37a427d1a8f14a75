"""How an answer looks in a terminal: each token in the colour of how it came about, and rounds as a waterfall.

Everything here turns values into text or `rich` markup and prints nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from rich.console import Console
from rich.style import Style
from rich.text import Text

from pilotfish.messages import TokenKind

STYLES = {TokenKind.ACCEPTED: "green", TokenKind.CORRECTION: "red", TokenKind.BONUS: "cyan"}  # plain: as it is
MARKS = {TokenKind.ACCEPTED: ("⟦", "⟧"), TokenKind.CORRECTION: ("⟨", "⟩"), TokenKind.BONUS: ("«", "»")}
ASCII_MARKS = {TokenKind.ACCEPTED: ("[", "]"), TokenKind.CORRECTION: ("{", "}"), TokenKind.BONUS: ("<", ">")}
KINDS = (TokenKind.ACCEPTED, TokenKind.CORRECTION, TokenKind.BONUS, TokenKind.PLAIN)

# A model may write what moves a terminal's cursor or renames its window: such characters are shown, not obeyed.
_SHOWN = {code: chr(0x2400 + code) for code in range(0x20) if chr(code) not in "\n\t"} | {0x7F: "␡"}
_SHOWN |= dict.fromkeys(range(0x80, 0xA0), "\N{REPLACEMENT CHARACTER}")

Span: TypeAlias = tuple[str, TokenKind | None]


class Piece(Protocol):
    """A piece of an answer, as the client hands it out."""

    @property
    def text(self) -> str: ...
    @property
    def kinds(self) -> Sequence[TokenKind]: ...
    @property
    def num_characters(self) -> Sequence[int]: ...


def spans(piece: Piece) -> Iterator[Span]:
    """The text of a piece, cut where the way its tokens came about changes.

    Text that only became certain with the end of the answer (a stop string that did not complete) has no token in its
    piece and goes with the last one; where there is none its kind is None.
    """
    text, kinds = piece.text, piece.kinds
    begin = 0
    for index, (kind, length) in enumerate(zip(kinds, piece.num_characters, strict=False)):
        end = len(text) if index == len(kinds) - 1 else begin + length
        if end > begin:
            yield text[begin:end], kind
        begin = end
    if begin < len(text):
        yield text[begin:], kinds[-1] if kinds else None


def merged(parts: Iterable[Span]) -> list[Span]:
    """Neighbours of one kind as one."""
    result: list[Span] = []
    for text, kind in parts:
        if result and result[-1][1] is kind:
            result[-1] = (result[-1][0] + text, kind)
        else:
            result.append((text, kind))
    return result


@dataclass(frozen=True, slots=True)
class Look:
    """How token kinds are told apart on some output."""

    has_colour: bool
    has_marks: bool
    has_unicode: bool = True
    is_terminal: bool = True  # False: control characters are written as they are

    @staticmethod
    def of(console: Console, has_marks: bool | None = None) -> Look:
        """What suits a console: colour where it can; where it cannot, marks on a terminal, and in a file just text.

        Args:
            console: where the answer goes.
            has_marks: None decides as above.
        """
        has_colour = console.is_terminal and not console.no_color and console.color_system is not None
        return Look(
            has_colour=has_colour,
            has_marks=console.is_terminal and not has_colour if has_marks is None else has_marks,
            has_unicode=console.encoding.startswith("utf"),
            is_terminal=console.is_terminal,
        )

    def __call__(self, parts: Iterable[Span]) -> str:
        """The spans as they are to be written; with marks, runs of one kind stand between a pair of brackets."""
        return "".join(self._span(text, kind) for text, kind in merged(parts))

    def legend(self) -> str:
        """One line that names every colour and mark in use; empty where nothing is told apart."""
        if not (self.has_colour or self.has_marks):
            return ""
        return "  ".join(self._span(kind.value, kind) for kind in KINDS)

    def _span(self, text: str, kind: TokenKind | None) -> str:
        marks = (MARKS if self.has_unicode else ASCII_MARKS) if self.has_marks else {}
        before, after = marks.get(kind, ("", "")) if kind else ("", "")
        written = f"{before}{text.translate(_SHOWN) if self.is_terminal else text}{after}"
        # Straight to escape codes: a console would wrap lines and expand tabs in the middle of a stream.
        return Style.parse(STYLES[kind]).render(written) if self.has_colour and kind in STYLES else written


class Round(Protocol):
    """A round, as it went; times in microseconds since the request began."""

    @property
    def index(self) -> int: ...
    @property
    def gamma(self) -> int: ...
    @property
    def reason(self) -> str: ...
    @property
    def num_drafted(self) -> int: ...
    @property
    def num_accepted(self) -> int: ...
    @property
    def num_committed(self) -> int: ...
    @property
    def start_us(self) -> int: ...
    @property
    def draft_us(self) -> int: ...
    @property
    def verify_us(self) -> int: ...
    @property
    def queue_us(self) -> int: ...
    @property
    def pass_us(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Part:
    """One kind of time in a bar."""

    name: str
    character: str
    ascii: str
    style: str


DRAFT = Part("draft", "▒", "d", "yellow")
QUEUE = Part("queue", "░", "q", "magenta")
PASS = Part("pass", "█", "P", "blue")
REST = Part("rest (network, acceptance, text)", "·", ".", "default")
PARTS = (DRAFT, QUEUE, PASS, REST)


def bar(round_: Round, begin_us: int, end_us: int, width: int) -> list[tuple[Part | None, int]]:
    """Lengths of a round's parts on a line of `width` cells that spans [begin_us, end_us); None is empty space.

    Every border is rounded by itself, so that bars of neighbouring rounds meet; a part that took time but less than
    half a cell may vanish.
    """
    scale = width / max(1, end_us - begin_us)
    rest_us = max(0, round_.verify_us - round_.queue_us - round_.pass_us)
    lengths = ((DRAFT, round_.draft_us), (QUEUE, round_.queue_us), (PASS, round_.pass_us), (REST, rest_us))
    now_us = round_.start_us - begin_us
    cell = min(width, round(now_us * scale))
    cells: list[tuple[Part | None, int]] = [(None, cell)]
    for part, length_us in lengths:
        now_us += length_us
        border = min(width, round(now_us * scale))
        cells.append((part, border - cell))
        cell = border
    return [(part, length) for part, length in cells if length > 0]


def waterfall(rounds: Sequence[Round], width: int, has_unicode: bool = True, max_rows: int = 60) -> Text:
    """Rounds from top to bottom on one time axis: when each drafted, waited and was verified.

    Args:
        rounds: in order.
        width: cells of a line, figures included.
        has_unicode: whether the terminal can show shaded blocks.
        max_rows: rounds shown; the rest is counted in a last line.
    """
    shown = rounds[:max_rows]
    if not shown:
        return Text("no rounds")
    begin_us = shown[0].start_us
    end_us = max(round_.start_us + round_.draft_us + round_.verify_us for round_ in shown)
    head = f"{'round':>5} {'γ':>2} {'held':>5} {'ms':>7}  "
    bar_width = max(10, width - len(head))
    lines = [Text(f"{head}0{f'{(end_us - begin_us) / 1e3:.0f} ms':>{bar_width - 1}}", "bold")]
    for round_ in shown:
        held = f"{round_.num_accepted}/{round_.num_drafted}" if round_.num_drafted else "-"
        line = Text(f"{round_.index:>5} {round_.gamma:>2} {held:>5} {_length_ms(round_):>7.1f}  ")
        for part, length in bar(round_, begin_us, end_us, bar_width):
            if part is None:
                line.append(" " * length)
            else:
                line.append((part.character if has_unicode else part.ascii) * length, part.style)
        lines.append(line)
    if len(rounds) > len(shown):
        lines.append(Text(f"… and {len(rounds) - len(shown)} rounds more"))
    lines.append(_totals(rounds, has_unicode))
    return Text("\n").join(lines)


def _length_ms(round_: Round) -> float:
    return (round_.draft_us + round_.verify_us) / 1e3


def _totals(rounds: Sequence[Round], has_unicode: bool) -> Text:
    """What all rounds spent on each part, which is the legend too."""
    total_us = max(1, sum(round_.draft_us + round_.verify_us for round_ in rounds))
    spent_us = {
        DRAFT: sum(round_.draft_us for round_ in rounds),
        QUEUE: sum(round_.queue_us for round_ in rounds),
        PASS: sum(round_.pass_us for round_ in rounds),
    }
    spent_us[REST] = max(0, total_us - sum(spent_us.values()))
    entries = [
        Text.assemble(
            (part.character if has_unicode else part.ascii, part.style),
            f" {part.name} {spent_us[part] / 1e3:.1f} ms ({spent_us[part] / total_us:.0%})",
        )
        for part in PARTS
    ]
    return Text("   ").join(entries)
