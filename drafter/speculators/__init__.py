"""What proposes. A speculator observes what was committed and proposes what may come next; see docs/speculators.md.

    open(start) → observe(tokens)* ⇄ propose(asks)* → close(session)

One thread calls all of it, one call at a time, so a speculator needs no locks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, NamedTuple, Protocol

from drafter.stopping import Survival
from pilotfish.distribution import Distribution
from pilotfish.draft import Draft
from pilotfish.messages import Open, SessionId

if TYPE_CHECKING:
    from typing import Self

    from drafter.settings import DrafterSettings


@dataclass(frozen=True, slots=True)
class Facts:
    """What a speculator says of itself. The defaults are those of one without a model."""

    model: str = ""
    vocabulary_hash: str | None = None  # None: it only copies ids, so any vocabulary will do
    vocabulary_size: int = 0
    num_ids: int | None = None  # ids it can read, rows of padding counted; None: any
    context_length: int | None = None  # tokens it can read; None: no limit
    dtype: str = ""
    device: str = ""


class RunnerUp(NamedTuple):
    """The token that was nearest to being chosen in a node's place."""

    token: int
    share: float  # of the weight that both have, in [0, 1/2]: how likely it is to be right, where one of them is


@dataclass(frozen=True, slots=True)
class Ask:
    """A request for the next nodes of one session's draft."""

    session: SessionId
    position: int  # committed tokens: base of the round, and key of its draws
    draft: Draft  # the nodes so far, drawn by earlier steps of the same round and sent already
    num_levels: int  # how many levels the draft may still grow by, at least 1
    survival: Survival = field(default_factory=Survival)  # of the draft's path; asked through `draws`
    runners_up: list[RunnerUp] | None = None  # of the nodes of a chain so far; None: nobody wants to know

    def draws(self, probability: float) -> bool:
        """Whether the next node of a chain is worth drawing; a speculator that can tell asks before it draws it.

        A node that may be drawn must be, and be returned. Where one may not, the draft ends with the one before it.

        Args:
            probability: how surely the node will hold, given its parent: from the shape of its q, or from how it was
                looked up, never from the token drawn. It need not be right, only say more where more holds.
        """
        return self.survival.draws(probability)

    def tells(self, token: int, share: float) -> None:
        """Tell the runner-up of a node that was drawn; of all nodes or of none."""
        if self.runners_up is not None:
            self.runners_up.append(RunnerUp(token, share))

    def chain(self, tokens: Sequence[int], q: Sequence[Distribution | None] | None = None) -> Draft:
        """The answer that hangs `tokens` below the last node, one below the other; without `q` they are one-hot."""
        first = len(self.draft)
        parents = tuple(range(first - 1, first + len(tokens) - 1))
        return Draft(tuple(tokens), parents, (None,) * len(tokens) if q is None else tuple(q))


class Speculator(Protocol):
    """Proposes drafts for many sessions. Inherit from it: what most need not say has an answer here."""

    is_instant: ClassVar[bool] = False
    """Whether every call takes microseconds. Then the calls are made in the event loop; else in a thread of its own."""

    is_repeatable: ClassVar[bool] = False
    """Whether a one-hot node is a function of the tokens above it alone. Then nodes that were drawn and now hang below
    what was committed begin the next draft, and are not asked for again: `Ask.draft` holds them."""

    @classmethod
    def from_settings(cls, settings: DrafterSettings) -> Self:  # noqa: ARG003 - for those who override it
        """Make one from the drafter's settings; `settings.options` is for speculators of one's own.

        Raises:
            pilotfish.errors.ConfigurationError: a setting makes no sense, or what it names is not there.
        """
        return cls()

    @property
    def facts(self) -> Facts:
        return Facts()

    def open(self, start: Open) -> None:
        """A session starts with the committed tokens `start.tokens`. Sessions must not learn from one another."""
        ...

    def observe(self, session: SessionId, tokens: Sequence[int]) -> None:
        """These tokens were committed, after those known already. Whatever was drafted is over."""
        ...

    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft | None]:
        """Take one step for each of the asks, all of different sessions: the next nodes of its draft.

        Few nodes soon are better than many late: each step's nodes are sent at once, and whether there is a next
        step is decided (deadline, number of levels) before it begins. A speculator with nothing to gain from steps
        answers in one.

        Every node drawn must be returned, and whether to draw must not depend on what would be drawn: what is
        verified must not depend on what is dropped (docs/law.md). `Ask.draws` says whether a node is worth its price.

        Returns:
            For each ask, in order: at least one node, with parents counted in the whole draft (`Ask.chain` does it)
            and at most `num_levels` levels more; the empty draft when there is nothing to propose, which ends the
            draft; or None when it is still reading and wants to be asked again.
        """
        ...

    def close(self, session: SessionId) -> None:
        """The session is over."""
        ...

    def read_ahead(self) -> bool:
        """Called while no draft is due: do a little of the work that the next one would wait for.

        Returns:
            Whether there was something to do.
        """
        return False
