"""The line of a drafter that goes on while its drafts are verified: one chain, cut into round after round."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from pilotfish.draft import Draft
from pilotfish.messages import DraftEnd, SideLines
from pilotfish.price import Profile
from pilotfish.wire.values import MAX_ROUNDS_AHEAD

SIDE_STEP: Final = 0.04  # of a pass: a verdict waits for the step that is under way, so slower ones cost what they gain
MAX_SIDE_NODES: Final = 4  # below a correction: then the next line is more likely to be wanted than further nodes
MAX_LEAD: Final = MAX_ROUNDS_AHEAD // 2  # rounds of a line at the verifier; the other places are for lines beside it


class Lead(NamedTuple):
    """How far a drafter may go on beyond the round that is next."""

    num_nodes: int  # of each further round; 0: it stops after the next
    num_rounds: int = 0  # further rounds that may lie at the verifier
    room: int = 0  # most nodes from the committed tokens on
    num_sides: int = 0  # lines that may be drawn beside it

    def num_levels(self, gamma: int) -> int:
        """Nodes to ask for where the next round has γ: before those of each further round comes a guessed bonus."""
        return max(gamma, min(gamma + self.num_rounds * (self.num_nodes + 1), self.room))

    @property
    def num_side_nodes(self) -> int:
        """Of a line beside it, its first token aside."""
        return min(self.num_nodes, MAX_SIDE_NODES)

    def side_lines(self, gamma: int, max_nodes: int) -> SideLines | None:
        """Lines to ask for beside it: below the nodes of the next round and the guess of its bonus.

        Args:
            gamma: of the next round.
            max_nodes: that the drafter draws for a request, the line's own included.
        """
        num_lines = min(self.num_sides, (max_nodes - self.num_levels(gamma)) // (self.num_side_nodes + 1))
        return SideLines(num_lines, gamma + 1, self.num_side_nodes) if num_lines > 0 else None


NO_LEAD = Lead(0)


def lead(num_nodes: int, profile: Profile, pass_s: float, room: int, num_sides: int = 0) -> Lead:
    """So many further rounds that the verifier never waits for one while they hold.

    Between the start of a pass and what its verdict asks for lie the round trip and the drawing of one round.

    Args:
        num_nodes: of a further round, its guess aside.
        profile: of the session.
        pass_s: length of a pass; 0: not known.
        room: most nodes that can be used.
        num_sides: lines that may be drawn beside it, where the drafter is fast enough.
    """
    if not num_nodes:
        return NO_LEAD
    away_s = profile.round_trip_s + (num_nodes + 1) * profile.token_s
    num_passes = math.ceil(away_s / pass_s) if pass_s > 0.0 else 1
    return Lead(
        num_nodes,
        max(1, min(num_passes, MAX_LEAD)),
        room,
        num_sides if profile.token_s < SIDE_STEP * pass_s else 0,
    )


@dataclass(slots=True)
class Line:
    """What the drafter has drawn below the tokens that were committed when it began.

        nodes    [position, end)
        rounds   [position, position + γ)   guess   [cut_until, cut_until + n)   guess   …

    Every round but the first hangs below a guess of the bonus that the one before it will be given.
    """

    position: int
    lead: Lead
    cut_until: int  # where the next round begins that is not cut yet
    asked_until: int  # the drafter draws so far
    tokens: list[int] = field(default_factory=list)
    is_ended: bool = False  # no more nodes come of what was asked for
    is_stopped: bool = False  # no more are wanted: what was cut is verified, then a new line begins
    drafter_end: DraftEnd | None = None  # why no more come

    @property
    def end(self) -> int:
        """Position of the next node."""
        return self.position + len(self.tokens)

    @property
    def is_asked(self) -> bool:
        """Whether some of it was asked for; else it is what was drawn beside another line."""
        return self.asked_until > self.position

    def between(self, start: int, end: int) -> tuple[int, ...]:
        """The nodes at these positions, as far as there are any."""
        return tuple(self.tokens[start - self.position : max(0, end - self.position)])

    def add(self, position: int, nodes: Draft, first_node: int) -> bool:
        """Take nodes of a draft; those that are here already are passed over.

        Args:
            position: of the first of them.
            nodes: whose parents are counted in their draft.
            first_node: index of the first of them in that draft.

        Returns:
            False: they are no chain, leave a gap, or are others than those here; none is taken.
        """
        num_known = self.end - position
        is_chain = nodes.parents == tuple(range(first_node - 1, first_node - 1 + len(nodes)))
        if num_known < 0 or position < self.position or not is_chain:
            return False
        if self.between(position, self.end)[: len(nodes)] != nodes.tokens[:num_known]:
            return False
        self.tokens += nodes.tokens[num_known:]
        return True

    def knows(self, position: int) -> bool:
        """Whether it has the nodes up to a position."""
        return position <= self.end

    def holds(self, position: int, tokens: Sequence[int]) -> bool:
        """Whether tokens that came to be committed are its nodes, as far as it has any there."""
        nodes = self.between(position, position + len(tokens))
        return nodes == tuple(tokens[: len(nodes)])
