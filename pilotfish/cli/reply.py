"""One answer as it comes in: written to the terminal piece by piece, and kept for what is said about it after."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pilotfish.cli.render import Look, spans
from pilotfish.messages import Chunk, Finished, Round, Started, Statistics, TokenKind


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whole or as far as it came."""

    text: str
    ids: tuple[int, ...]
    kinds: tuple[TokenKind, ...]
    rounds: tuple[Round, ...]  # where they were asked for
    started: Started | None
    finished: Finished | None  # None: it was cut off
    first_s: float | None  # from the request until the first token; None: none came
    num_first: int  # tokens in the first piece
    total_s: float

    @property
    def tokens_per_s(self) -> float | None:
        """Rate of decoding, after the first piece; None where nothing came after it."""
        num_decoded = len(self.ids) - self.num_first
        decode_s = self.total_s - (self.first_s or 0.0)
        return num_decoded / decode_s if num_decoded > 0 and decode_s > 0 else None

    @property
    def tokens_per_pass(self) -> float | None:
        """Committed tokens over passes of the target; None where the request did not finish."""
        if self.finished is None or not self.finished.statistics.num_verdicts:
            return None
        return len(self.ids) / self.finished.statistics.num_verdicts

    def summary(self) -> str:
        """How fast it was and how speculation went, as one line."""
        parts = [f"{len(self.ids)} tokens in {self.total_s:.2f} s"]
        if self.tokens_per_s is not None and self.first_s is not None:
            parts.append(f"{self.tokens_per_s:.1f} tokens/s after the first at {self.first_s:.2f} s")
        if self.finished is None:
            return "; ".join([*parts, "cut off"])
        statistics = self.finished.statistics
        if statistics.acceptance_rate is None:
            parts.append("nothing drafted")
        else:
            held = f"{statistics.num_accepted_tokens} of {statistics.num_drafted_tokens} draft tokens held"
            parts.append(f"{held} ({statistics.acceptance_rate:.0%})")
        if self.tokens_per_pass is not None:
            parts.append(f"{self.tokens_per_pass:.2f} tokens a pass")
        if self.started is not None and self.started.rule is not None:
            parts.append(f"rule {self.started.rule.value}")
        missed = [name.replace("_", " ") for name, is_met in statistics.targets_met.items() if not is_met]
        if missed:
            parts.append(f"target missed: {', '.join(missed)}")
        return "; ".join([*parts, f"ended by {self.finished.reason.value}"])

    def as_dict(self) -> dict[str, Any]:
        """The answer for a script."""
        finished, started = self.finished, self.started
        return {
            "text": self.text,
            "ids": list(self.ids),
            "kinds": [kind.value for kind in self.kinds],
            "finish_reason": finished and finished.reason.value,
            "model": started and started.model,
            "request_id": started and started.request_id,
            "rule": started.rule.value if started and started.rule else None,
            "trace_id": started and started.trace_id,
            "usage": {
                "prompt_tokens": started.num_prompt_tokens if started else None,
                "cached_tokens": started.num_cached_tokens if started else None,
                "output_tokens": len(self.ids),
            },
            "seconds": {"first_token": self.first_s, "total": self.total_s},
            "statistics": finished and _statistics(finished.statistics),
            "rounds": [dataclasses.asdict(round_) for round_ in self.rounds],
        }


def _statistics(statistics: Statistics) -> dict[str, Any]:
    """What was counted, and what load clients read that follows from it."""
    return dataclasses.asdict(statistics) | {
        "acceptance_rate": statistics.acceptance_rate,
        "mean_length": statistics.mean_length,
        "num_drafts_by_accepted": statistics.num_drafts_by_accepted,
    }


def receive(chunks: Iterable[Chunk], write: Callable[[str], None] | None = None, look: Look | None = None) -> Reply:
    """Take an answer to its end, or to where it is interrupted.

    Args:
        chunks: of the answer. KeyboardInterrupt while they come ends it; what has come is returned, not finished.
        write: gets the text as it comes; None: nobody watches.
        look: how its tokens are told apart; None: not at all.
    """
    begin = time.monotonic()
    first_s, num_first = None, 0
    texts: list[str] = []
    ids: list[int] = []
    kinds: list[TokenKind] = []
    rounds: list[Round] = []
    started, finished = None, None
    try:
        for chunk in chunks:
            if chunk.ids and first_s is None:
                first_s, num_first = time.monotonic() - begin, len(chunk.ids)
            started, finished = chunk.started or started, chunk.finished or finished
            texts.append(chunk.text)
            ids += chunk.ids
            kinds += chunk.kinds
            rounds += chunk.rounds
            if write is not None and chunk.text:
                write(look(spans(chunk)) if look else chunk.text)
    except KeyboardInterrupt:
        _close(chunks)
    total_s = time.monotonic() - begin
    return Reply(
        "".join(texts), tuple(ids), tuple(kinds), tuple(rounds), started, finished, first_s, num_first, total_s
    )


def _close(chunks: Iterable[Chunk]) -> None:
    """Tell the service that nobody waits any more, where the iterator can."""
    close = getattr(chunks, "close", None)
    if close is not None:
        close()
