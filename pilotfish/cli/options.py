"""Options that several commands have, as the types of their parameters."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, TypeAlias

import typer

from pilotfish.errors import ConfigurationError
from pilotfish.messages import Rule, Speculation, Targets

SAMPLING, SPECULATION, TARGETS = "Sampling", "Speculation", "Times to keep"


class RuleName(Enum):
    """Acceptance rules, as they are typed."""

    MATCH = "match"
    TOKEN = "token"
    BLOCK = "block"


Host: TypeAlias = Annotated[str, typer.Option(metavar="HOST[:PORT]", help="The coordinator.", envvar="PILOTFISH_HOST")]
MaxTokens: TypeAlias = Annotated[
    int | None, typer.Option("--max-tokens", "-n", metavar="N", help="Most tokens of an answer; default: what fits.")
]
Temperature: TypeAlias = Annotated[
    float | None,
    typer.Option("--temperature", "-t", help="0: greedy. Default: 1.", rich_help_panel=SAMPLING),
]
TopK: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Draw from the N likeliest tokens.", rich_help_panel=SAMPLING)
]
TopP: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="P", help="Draw from the fewest tokens that hold probability P.", rich_help_panel=SAMPLING),
]
Seed: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Same seed, same answer, whatever drafts it.", rich_help_panel=SAMPLING)
]
Gamma: TypeAlias = Annotated[
    int | None, typer.Option(metavar="N", help="Draft exactly N tokens a round.", rich_help_panel=SPECULATION)
]
NoSpeculation: TypeAlias = Annotated[
    bool, typer.Option("--no-speculation", help="Plain decoding.", rich_help_panel=SPECULATION)
]
RuleOption: TypeAlias = Annotated[
    RuleName | None, typer.Option("--rule", help="Acceptance rule.", rich_help_panel=SPECULATION)
]
Speculator: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="One of the drafter's speculators.", rich_help_panel=SPECULATION)
]
FirstTokenMs: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="MS", help="Target for the time to the first token.", rich_help_panel=TARGETS),
]
TokenMs: TypeAlias = Annotated[
    float | None,
    typer.Option(metavar="MS", help="Target for the mean time of each later token.", rich_help_panel=TARGETS),
]
Tenant: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Whose request this is, for the coordinator.", envvar="PILOTFISH_TENANT"),
]
Marks: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--marks/--no-marks",
        help="Brackets around accepted, corrected and bonus tokens. Default: on a terminal without colour.",
        show_default=False,
    ),
]


def targets_of(first_token_ms: float | None, token_ms: float | None) -> Targets:
    """Times to keep, as they were typed."""
    first_token_s, token_s = (None if ms is None else ms / 1e3 for ms in (first_token_ms, token_ms))
    return Targets(first_token_s, token_s)


def speculation_of(gamma: int | None, rule: RuleName | None, speculator: str | None, *, is_off: bool) -> Speculation:
    """How to speculate.

    Raises:
        ConfigurationError: off and with a number of tokens at once.
    """
    if is_off and (gamma is not None or speculator is not None):
        raise ConfigurationError("--no-speculation and --gamma or --speculator contradict each other; give one of them")
    return Speculation(
        is_off=is_off, gamma=gamma, rule=None if rule is None else Rule(rule.value), speculator=speculator
    )
