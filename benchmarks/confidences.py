"""Drafts at every position of real answers, with the drafter's confidence in each node: for `benchmarks.stopping`.

A target answers the prompts, greedily or at a temperature; then a drafter drafts a chain at every position of every
answer. One row a position says how sure the drafter was of each node and how many of them the answer agrees with, so
that any choice of γ, and any rule of stopping, can be replayed on it exactly, since under `match` a draft never
changes the text.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from benchmarks import prompts
from drafter.rounds import Rounds
from drafter.settings import DrafterSettings
from drafter.speculators import Speculator
from drafter.speculators.model import ModelSpeculator
from drafter.speculators.model_load import load
from drafter.speculators.ngram import NgramSpeculator
from drafter.stopping import Gamma
from pilotfish.messages import DraftRequest, Open, Rule, Sampling, SessionId
from pilotfish.tokenizer import load_tokenizer

NUM_KV_PAGES = 4096
INCARNATION, LEASE_S = 1, 3600.0


class Position(NamedTuple):
    """A draft that was drawn at one position of one answer."""

    set: str
    prompt: str
    confidences: tuple[float, ...]  # of each node, before it was chosen
    num_kept: int  # nodes that the answer agrees with, from the first on


class Text(NamedTuple):
    """A prompt and its answer."""

    prompt: prompts.Prompt
    tokens: tuple[int, ...]
    answer: tuple[int, ...]


def answers(
    model: str, dtype: str, temperature: float, num_tokens: int, chosen: Sequence[prompts.Prompt]
) -> list[Text]:
    """What the target says. Coupled drafting at a temperature is sampling, so a drafter with the target writes it."""
    tokenizer = load_tokenizer(model)
    rounds = Rounds(_model(model, dtype), time.monotonic)
    texts = {
        _session(index): tuple(tokenizer.apply_chat_template([{"role": "user", "content": prompt.text}]))
        for index, prompt in enumerate(chosen)
    }
    for session, text in texts.items():
        rounds.open(_open(session, text, temperature))
        rounds.start(_request(session, len(text), num_tokens), 0.0, Gamma(num_tokens))
    found: dict[SessionId, list[int]] = {session: [] for session in texts}
    while not rounds.is_idle:
        for _, part, _ in rounds.step():
            found[part.session] += part.draft.tokens
    return [
        Text(prompt, text, _until_end(found[session], tokenizer.end_ids))
        for prompt, (session, text) in zip(chosen, texts.items(), strict=True)
    ]


def positions(speculator: Speculator, texts: Sequence[Text], temperature: float, gamma: int) -> Iterator[Position]:
    """A draft of γ nodes at every position of every answer; all answers together, a position after the other."""
    rounds = Rounds(speculator, time.monotonic)
    for index, text in enumerate(texts):
        rounds.open(_open(_session(index), text.tokens, temperature))
    for done in range(1, max(len(text.answer) for text in texts)):
        alive = [index for index, text in enumerate(texts) if done < len(text.answer)]
        drafts: dict[SessionId, tuple[list[int], list[float]]] = {_session(index): ([], []) for index in alive}
        for index in alive:
            rounds.observe(_session(index), texts[index].answer[done - 1 : done])
            rounds.start(_request(_session(index), len(texts[index].tokens) + done, gamma), 0.0, Gamma(gamma))
        while not rounds.is_idle:
            for _, part, _ in rounds.step():
                tokens, confidences = drafts[part.session]
                tokens += part.draft.tokens
                confidences += part.confidences
        for index in alive:
            tokens, confidences = drafts[_session(index)]
            text = texts[index]
            rest = text.answer[done : done + gamma]
            num_kept = next((i for i, pair in enumerate(zip(tokens, rest, strict=False)) if pair[0] != pair[1]), None)
            num_kept = min(len(tokens), len(rest)) if num_kept is None else num_kept
            yield Position(text.prompt.set, str(text.prompt), tuple(confidences), num_kept)


def record(
    path: Path, target: str, drafter: str, dtype: str, temperature: float, num_tokens: int, gamma: int,
    chosen: Sequence[prompts.Prompt],
) -> None:  # fmt: skip
    """Write the positions of the answers to the prompts to a file of JSON lines.

    Args:
        path: of the file.
        target: the model that answers.
        drafter: the model that drafts, or ngram.
        dtype: of both.
        temperature: of the requests; 0: greedy.
        num_tokens: most in an answer.
        gamma: nodes in a draft.
        chosen: the prompts.
    """
    texts = answers(target, dtype, temperature, num_tokens, chosen)
    speculator = NgramSpeculator() if drafter == "ngram" else _model(drafter, dtype)
    rows = sorted(positions(speculator, texts, temperature, gamma), key=lambda row: row.prompt)  # stable: by position
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def read(path: Path) -> list[list[Position]]:
    """The answers of a file, each as its positions."""
    rows = (json.loads(line) for line in path.read_text().splitlines())
    found = [Position(row[0], row[1], tuple(row[2]), row[3]) for row in rows]
    return [list(group) for _, group in groupby(found, key=lambda row: row.prompt)]


def _model(name: str, dtype: str) -> ModelSpeculator:
    backend, facts, _ = load(DrafterSettings(model=name, dtype=dtype))
    return ModelSpeculator(backend, facts, num_kv_pages=NUM_KV_PAGES, chunk_tokens=512)


def _session(index: int) -> SessionId:
    return index.to_bytes(16, "big")


def _open(session: SessionId, text: tuple[int, ...], temperature: float) -> Open:
    sampling = Sampling(temperature)
    return Open(
        session, INCARNATION, "", text, (), sampling, 0, Rule.MATCH, frozenset(), 1 << 20, LEASE_S, is_coupled=True
    )


def _request(session: SessionId, position: int, gamma: int) -> DraftRequest:
    return DraftRequest(session, INCARNATION, position, 0, 0, (), gamma, 0)


def _until_end(tokens: list[int], end_ids: frozenset[int]) -> tuple[int, ...]:
    end = next((index for index, token in enumerate(tokens) if token in end_ids), len(tokens))
    return tuple(tokens[:end])
