"""What acceptance is asked and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotfish.draft import Draft
from pilotfish.messages import Rule, Sampling


@dataclass(frozen=True, slots=True)
class Round:
    """One draft to decide on, and where its logits are: the root's row first, then one for each node, in order.

    An empty draft is a round too: its one token is drawn from p.
    """

    first_row: int
    draft: Draft
    sampling: Sampling
    rule: Rule
    seed: int
    position: int  # the base position: committed tokens before the round

    @property
    def rows(self) -> range:
        return range(self.first_row, self.first_row + len(self.draft) + 1)

    def row(self, node: int) -> int:
        """The row that says what follows `node`; -1 is the root."""
        return self.first_row + 1 + node


@dataclass(frozen=True, slots=True)
class Outcome:
    """What of a draft is kept, and the one more token; with `error` set, nothing is and the rest means nothing."""

    path: tuple[int, ...]  # accepted nodes from the first level down
    token: int  # the correction or bonus
    is_bonus: bool  # nothing of the draft was left below the path; so it is after an empty draft
    node_probabilities: bytes  # see `node_bytes`
    error: str | None = None

    def checked(self, round_: Round, is_sound: Sequence[bool] | Mapping[int, bool]) -> Outcome:
        """The outcome, or an error where a row that was drawn from has no law.

        Args:
            is_sound: by row.
        """
        if all(is_sound[round_.row(node)] for node in (-1, *self.path)):
            return self
        return Outcome((), 0, False, b"", "the target's logits are not numbers")


def node_bytes(probabilities: Sequence[float]) -> bytes:
    """floor(255 * P) of each node: evidence of how good the draft was, free of the luck of the round.

    P is the probability, given the draft, that node and ancestors are kept: under match the product of p along the
    path, under token that of min(1, p/q). Under block it is P_i = min(1, P_{i-1} * p/q): the probability that all would
    be kept if the draft ended here.
    """
    return bytes(int(255.0 * min(max(probability, 0.0), 1.0)) for probability in probabilities)
