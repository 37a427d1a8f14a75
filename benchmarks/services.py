"""Arms that ask the running services, through the client."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.records import Answer, Question, RoundRecord
from pilotfish.cli.reply import receive
from pilotfish.client import Client
from pilotfish.errors import PilotfishError
from pilotfish.messages import Round, Speculation


@dataclass(frozen=True, slots=True)
class Services:
    """Requests that speculate in one way."""

    name: str
    client: Client
    speculation: Speculation

    def answer(self, question: Question) -> Answer:
        """Stream the answer and its rounds.

        Raises:
            PilotfishError: it did not come to its end.
        """
        reply = receive(
            self.client.generate(
                question.prompt,
                max_tokens=question.max_tokens,
                temperature=question.temperature,
                speculation=self.speculation,
                include_rounds=True,
            )
        )
        if reply.finished is None or reply.first_s is None:
            raise PilotfishError(f"{self.name}: the answer was cut off after {len(reply.ids)} tokens")
        rounds = tuple(record(round_) for round_ in reply.rounds)
        return Answer(reply.ids, reply.num_first, reply.first_s, reply.total_s, rounds)


def record(round_: Round) -> RoundRecord:
    """A round as the coordinator tells it."""
    return RoundRecord(
        num_committed=round_.num_committed,
        gamma=round_.gamma,
        num_drafted=round_.num_drafted,
        num_accepted=round_.num_accepted,
        start_us=round_.start_us,
        draft_us=round_.draft_us,
        verify_us=round_.verify_us,
        queue_us=round_.queue_us,
        pass_us=round_.pass_us,
        pass_positions=round_.pass_positions,
    )


def plain(client: Client) -> Services:
    """Speculation off: the verifier runs free. The baseline of every speedup."""
    return Services("plain", client, Speculation(is_off=True))


def speculative(client: Client, speculator: str, gamma: int) -> Services:
    """A fixed γ."""
    return Services(f"{speculator} γ={gamma}", client, Speculation(gamma=gamma, speculator=speculator))


def by_price(client: Client, speculator: str) -> Services:
    """γ anew each round, by acceptance and the verifier's price."""
    return Services(f"{speculator} auto", client, Speculation(speculator=speculator))
