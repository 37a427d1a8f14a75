"""What one pass carries, as the model and acceptance see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pilotfish.draft import Draft
from pilotfish.engine.batch import Item
from verifier.acceptance import Round
from verifier.sessions import Claim, Session


class Ride(NamedTuple):
    """One session's rows in a pass, and what it commits with them.

    rows   [num_context, num_computed) committed tokens · then the draft's nodes
    """

    session: Session
    num_context: int  # tokens in KV before the pass
    num_pending: int  # committed tokens that it computes
    claim: Claim | None  # None: no logits are wanted

    @property
    def num_computed(self) -> int:
        """Committed tokens in KV after the pass."""
        return self.num_context + self.num_pending

    @property
    def draft(self) -> Draft:
        return Draft.EMPTY if self.claim is None else self.claim.draft

    @property
    def num_logits(self) -> int:
        """The root's row and one for each node."""
        return 0 if self.claim is None else 1 + len(self.claim.draft)

    @property
    def num_prefill(self) -> int:
        """Rows whose logits nobody needs."""
        return self.num_pending - (self.claim is not None)

    def item(self, pages: Sequence[int]) -> Item:
        """Its rows for the model.

        Args:
            pages: the session's, with room for all rows.
        """
        draft = self.draft
        return Item(
            pending=self.session.tokens[self.num_context : self.num_computed],
            num_context=self.num_context,
            pages=pages,
            nodes=draft.tokens,
            parents=draft.parents,
            num_logits=self.num_logits,
            num_prompt=len(self.session.opened.prompt),
        )


def rounds(rides: Sequence[Ride]) -> list[Round]:
    """What acceptance is asked, of the rides that want logits; the logits lie one ride after the other."""
    asked: list[Round] = []
    first_row = 0
    for ride in rides:
        if ride.claim is None:
            continue
        opened, position = ride.session.opened, len(ride.session.tokens)
        asked.append(Round(first_row, ride.draft, opened.sampling, opened.rule, opened.seed, position))
        first_row += ride.num_logits
    return asked
