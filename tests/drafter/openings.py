"""Openings as the tests of the drafter need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish import prefix
from pilotfish.messages import DraftRequest, Open, Rule, Sampling

INCARNATION = 77


def opening(session: bytes, tokens: Sequence[int], *, num_prompt: int | None = None, **fields: Any) -> Open:
    """A session that starts with these tokens; greedy unless said otherwise."""
    num_prompt = len(tokens) if num_prompt is None else num_prompt
    values: dict[str, Any] = {
        "incarnation": INCARNATION,
        "vocabulary_hash": "",
        "sampling": Sampling(temperature=0.0),
        "seed": 1,
        "rule": Rule.MATCH,
        "end_ids": frozenset(),
        "max_tokens": 1000,
        "lease_s": 30.0,
    }
    return Open(
        session=session,
        prompt=tuple(tokens[:num_prompt]),
        output_so_far=tuple(tokens[num_prompt:]),
        **(values | fields),
    )


def request(
    session: bytes, tokens: Sequence[int], gamma: int, *, told: int = 0, round_: int = 0, **fields: Any
) -> DraftRequest:
    """Ask for a draft after `tokens`, all committed, of which the drafter is told those from `told` on."""
    values: dict[str, Any] = {"incarnation": INCARNATION, "deadline_us": 10_000_000}
    return DraftRequest(
        session=session,
        position=len(tokens),
        prefix_hash=prefix.extend(prefix.EMPTY, tokens),
        round=round_,
        tokens=tuple(tokens[told:]),
        gamma=gamma,
        **(values | fields),
    )
