"""Options that several commands of the bench have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RESULTS = Path("results")

Model = Annotated[str, typer.Option(metavar="MODEL", help="The target.")]
Drafter = Annotated[str, typer.Option(metavar="DRAFTER", help="ngram, or model:MODEL (ngram is an arm too then).")]
Dtype = Annotated[str, typer.Option(metavar="DTYPE", help="float32, bfloat16, int8, or auto: as the processor likes.")]
Threads = Annotated[int, typer.Option(min=1, metavar="N", help="Threads of each model.")]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", min=8, metavar="N", help="Most tokens of an answer.")]
Gammas = Annotated[str, typer.Option(metavar="N,…", help="Draft lengths.")]
Out = Annotated[Path, typer.Option(metavar="DIR", help="Where figures and raw data go.")]
Smoke = Annotated[bool, typer.Option("--smoke", help="Two prompts of each kind, short answers: does it run?")]
Workloads = Annotated[str, typer.Option(metavar="NAME,…", help="Default: all there are for the model.")]
PerSet = Annotated[int, typer.Option(min=1, metavar="N", help="Prompts of each sort.")]
Concurrency = Annotated[str, typer.Option(metavar="N,…", help="Requests at once.")]
Turns = Annotated[int, typer.Option(min=1, metavar="N", help="Blocks of each arm at each load; 6 or more for figures.")]
MinTokens = Annotated[
    int, typer.Option(min=8, metavar="N", help="Fewest tokens of a block; every session has room for an answer anyway.")
]
Labels = Annotated[bool, typer.Option("--labels/--no-labels", help="Requests say what kind of text they are.")]
