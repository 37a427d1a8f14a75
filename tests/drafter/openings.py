"""Openings as the tests of the drafter need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pilotfish.messages import Open, Rule, Sampling

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
        session=session, prompt=tuple(tokens[:num_prompt]), output_so_far=tuple(tokens[num_prompt:]), **(values | fields)
    )
