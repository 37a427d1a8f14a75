"""How a request keeps up with its targets: what they leave for the tokens to come, and whether they were met."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from pilotfish.messages import NO_TARGETS, Targets

HORIZON_TOKENS: Final = 128  # within so many tokens a request that is behind is to be on its target again


class Need(NamedTuple):
    """What a target leaves for a token; under 0 where no time is left."""

    soon_s: float  # so that the request is on its target again within the horizon
    rest_s: float  # so that it is when it ends; what is slower misses it


@dataclass(slots=True)
class Pace:
    """Times of one request beside its targets. What is committed while paused counts for neither side."""

    targets: Targets = NO_TARGETS
    is_paused: bool = False  # nobody reads along: the model reasons
    first_token_s: float | None = None  # None: no token has come
    num_tokens: int = 0  # after the first
    seconds: float = 0.0  # that they took

    def commit(self, num_tokens: int, seconds: float) -> None:
        """So many tokens came, so long after those before them, or after the request where they are the first."""
        if self.first_token_s is None:
            self.first_token_s = seconds
            num_tokens, seconds = num_tokens - 1, 0.0
        if not self.is_paused:
            self.num_tokens += num_tokens
            self.seconds += seconds

    def first_token_left_s(self, waited_s: float) -> float | None:
        """What the target leaves until the first token, 0 where it is missed; None: no target, or that token is out.

        Args:
            waited_s: since the request.
        """
        target_s = self.targets.first_token_s
        return None if target_s is None or self.first_token_s is not None else max(0.0, target_s - waited_s)

    def need(self, num_remaining: int) -> Need | None:
        """What the target leaves for the tokens to come, of which there may be so many; None: there is no target."""
        target_s = self.targets.token_s
        if target_s is None or self.is_paused or num_remaining < 1:
            return None
        ahead_s = target_s * self.num_tokens - self.seconds
        return Need(target_s + ahead_s / min(HORIZON_TOKENS, num_remaining), target_s + ahead_s / num_remaining)

    def met(self) -> dict[str, bool]:
        """Whether each target was met, by name, as far as there was anything to measure."""
        met = {}
        first_s, token_s = self.targets.first_token_s, self.targets.token_s
        if first_s is not None and self.first_token_s is not None:
            met["first_token"] = self.first_token_s <= first_s
        if token_s is not None and self.num_tokens > 0:
            met["token"] = self.seconds <= token_s * self.num_tokens
        return met
