"""A request from round to round: whatever is drafted, the text is the target's, and the figures are right."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from coordinator.policy import Decision, Snapshot
from pilotfish.errors import InvalidArgument
from pilotfish.messages import FinishReason, Rule, Speculation, TokenKind
from tests.coordinator.conftest import END, VOCABULARY, Start, ids
from tests.coordinator.fakes import FakeDrafter, chaotic, right_for, scripted

NUM_IDS = len(VOCABULARY)


class ScriptedPolicy:
    """Takes γ from a list, over and over."""

    def __init__(self, gammas: Sequence[int]) -> None:
        self.gammas = gammas
        self.num_decisions = 0

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off

    def heeds_price(self, _wishes: Speculation) -> bool:
        return False

    def decide(self, snapshot: Snapshot) -> Decision:
        gamma = self.gammas[self.num_decisions % len(self.gammas)]
        self.num_decisions += 1
        return Decision(gamma if snapshot.is_drafter_up else 0, "fixed")


class RandomPolicy:
    """Any γ from 0 to 8, every round."""

    def __init__(self, seed: int) -> None:
        self.source = random.Random(seed)

    def may_draft(self, wishes: Speculation) -> bool:
        return not wishes.is_off

    def heeds_price(self, _wishes: Speculation) -> bool:
        return False

    def decide(self, snapshot: Snapshot) -> Decision:
        gamma = min(self.source.randrange(9), max(snapshot.num_remaining - 1, 0))
        return Decision(gamma if snapshot.is_drafter_up else 0, "fixed")


async def test_plain(start: Start) -> None:
    """Without a drafter the verifier runs free, every token is plain and nothing counts as drafted."""
    stack = await start.coordinator([await start.verifier()])
    done = await stack.complete(max_tokens=11)
    assert done.text == "hello world"
    assert set(done.kinds) == {TokenKind.PLAIN}
    assert done.statistics.num_drafts == done.statistics.num_drafted_tokens == 0
    assert done.statistics.num_plain_tokens == 11
    assert done.statistics.acceptance_rate is None


@pytest.mark.parametrize("is_by_node", [False, True])
@pytest.mark.parametrize("gamma", [1, 2, 3, 5, 8])
async def test_partly_right(start: Start, gamma: int, is_by_node: bool) -> None:
    """However many tokens of a draft are right, in one part or node by node, no token is missing and none doubled."""
    law = chaotic(26)
    verifier = await start.verifier(law)
    drafters = [await start.drafter(right_for(num_right, law, 26)) for num_right in (0, 1, 2, 3, 8)]
    for drafter in drafters:
        drafter.is_by_node = is_by_node
        stack = await start.coordinator([verifier], [drafter])
        plain = await stack.complete(max_tokens=40, gamma=0)
        done = await stack.complete(max_tokens=40, gamma=gamma)
        assert done.ids == plain.ids
        assert done.text == plain.text


@pytest.mark.parametrize("gamma", [0, 1, 4])
async def test_counts_and_limit(start: Start, gamma: int) -> None:
    """An answer has exactly max_tokens tokens, and the usage says so."""
    stack = await start.stack()
    for max_tokens in range(1, gamma + 3):
        done = await stack.complete(max_tokens=max_tokens, gamma=gamma)
        assert len(done.ids) == done.num_output_tokens == max_tokens
        assert done.num_prompt_tokens == 3
        assert done.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("room", [1, 2, 4])
async def test_context_end(start: Start, gamma: int, room: int) -> None:
    """A prompt that leaves little room ends at the context, whatever γ is."""
    verifier = await start.verifier(context_length=64)
    stack = await start.coordinator([verifier], [await start.drafter()])
    done = await stack.complete([0] * (64 - room), max_tokens=None, gamma=gamma)
    assert len(done.ids) == room
    assert done.finish_reason is FinishReason.LENGTH


async def test_half_right(start: Start) -> None:
    """Four drafted and two held in every round: a rate of exactly one half, a length of exactly three."""
    law = scripted([*ids("abcdefghijk"), END])
    stack = await start.stack(law, right_for(2, law, NUM_IDS))
    done = await stack.complete(max_tokens=50, gamma=4)
    assert done.finish_reason is FinishReason.STOP
    assert done.statistics.num_drafts == 4
    assert done.statistics.acceptance_rate == 0.5
    assert done.statistics.mean_length == 3.0
    assert done.statistics.num_accepted_by_depth == (4, 4)


async def test_changing_gamma(start: Start) -> None:
    """With γ of 1, 3, 0, 5 nine tokens are drafted; the round without a draft counts as none."""
    law = scripted([*ids("abcdefghijkl"), END])
    verifier, drafter = await start.verifier(law), await start.drafter(right_for(8, law, NUM_IDS))
    verifier.is_lockstep = True
    stack = await start.coordinator([verifier], [drafter], policy=ScriptedPolicy([1, 3, 0, 5]))
    done = await stack.complete(max_tokens=50, include_rounds=True)
    assert [entry.gamma for entry in done.rounds] == [1, 3, 0, 5]
    assert done.statistics.num_drafts == 3
    assert done.statistics.num_drafted_tokens == 9


async def test_all_right(start: Start) -> None:
    """Where all of a draft holds, one more token than was accepted is committed."""
    stack = await start.stack()
    done = await stack.complete(max_tokens=10, gamma=4)
    assert done.statistics.num_accepted_tokens == 8
    assert done.kinds == (*[TokenKind.ACCEPTED] * 4, TokenKind.BONUS) * 2


async def test_two_requests_pooled(start: Start) -> None:
    """Rounds say of themselves what the statistics count."""
    law = chaotic(26)
    stack = await start.stack(law, right_for(2, law, 26))
    done = await stack.complete(max_tokens=60, gamma=3, include_rounds=True)
    assert [entry.index for entry in done.rounds] == list(range(done.statistics.num_verdicts))
    assert sum(entry.num_drafted for entry in done.rounds) == done.statistics.num_drafted_tokens
    assert sum(entry.num_accepted for entry in done.rounds) == done.statistics.num_accepted_tokens
    assert sum(entry.num_committed for entry in done.rounds) == len(done.ids) == 60
    assert all(entry.num_accepted <= entry.num_drafted <= entry.gamma for entry in done.rounds)


async def test_random_gamma(start: Start) -> None:
    """A random γ in every round leaves the text as it is."""
    law = chaotic(26)
    stack = await start.stack(law, right_for(3, law, 26), policy=RandomPolicy(1))
    plain = await stack.complete(max_tokens=200, gamma=0)
    for _ in range(5):
        done = await stack.complete(max_tokens=200)
        assert done.ids == plain.ids


async def test_wishes(start: Start) -> None:
    """A request may turn speculation off, fix γ or bound it; over the cap it is refused with the cap named."""
    stack = await start.stack(gamma=4, max_gamma=6)
    off = await stack.complete(gamma=0, include_rounds=True)
    assert {(entry.gamma, entry.reason) for entry in off.rounds} == {(0, "request")}
    fixed = await stack.complete(gamma=6, include_rounds=True)
    assert (fixed.rounds[0].gamma, fixed.rounds[0].reason) == (6, "request")
    bounded = await stack.complete(speculation=Speculation(max_gamma=2), include_rounds=True)
    assert max(entry.gamma for entry in bounded.rounds) == 2
    default = await stack.complete(include_rounds=True)
    assert (default.rounds[0].gamma, default.rounds[0].reason) == (4, "fixed")
    with pytest.raises(InvalidArgument, match=r"speculation.gamma is 7: .* 6"):
        await stack.complete(gamma=7)


async def test_draft_context(start: Start) -> None:
    """Where the drafter's context is full the session goes on without drafts, and says why."""
    stack = await start.coordinator([await start.verifier()], [await start.drafter(context_length=10)])
    done = await stack.complete(max_tokens=20, gamma=4, include_rounds=True)
    assert len(done.ids) == 20
    assert done.rounds[0].gamma == 4
    assert done.rounds[-1].reason == "draft_context"


async def test_one_message_a_verdict(start: Start) -> None:
    """Every verdict is one message to the client; the first says what serves it and the last how it went."""
    stack = await start.stack()
    chunks = await stack.chunks(max_tokens=20, gamma=4)
    assert len(chunks) == 4
    assert [chunk.started is not None for chunk in chunks] == [True, False, False, False]
    assert [chunk.finished is not None for chunk in chunks] == [False, False, False, True]
    started = chunks[0].started
    assert started is not None
    assert started.rule is Rule.MATCH
    assert started.model == "letters"
    assert len(started.request_id) == 32


async def test_copying_drafter_that_has_nothing(start: Start) -> None:
    """A drafter that has nothing is asked again at every verdict, while the verifier runs free."""
    law = scripted(ids("hello world "))

    def propose(tokens: Sequence[int], num_prompt: int, gamma: int) -> list[int]:
        return [] if len(tokens) < 13 else list(right_for(8, law, NUM_IDS)(tokens, num_prompt, gamma))

    verifier, drafter = await start.verifier(law), await start.drafter(propose, speculators=("ngram",))
    verifier.pass_s = 0.01
    stack = await start.coordinator([verifier], [drafter])
    done = await stack.complete(max_tokens=40, gamma=4)
    plain = await stack.complete(max_tokens=40, gamma=0)
    assert done.ids == plain.ids
    assert done.statistics.num_dropped_by_cause["no_match"] >= 5
    assert done.statistics.num_drafts >= 4
    assert done.statistics.num_accepted_tokens > 10


async def test_drafter_is_told_what_was_committed(start: Start) -> None:
    """A drafter knows every committed token when it drafts, free-running spells included."""
    stack = await start.stack(policy=ScriptedPolicy([2, 0, 0, 0, 0, 3]))
    done = await stack.complete(max_tokens=60)
    assert done.statistics.num_accepted_tokens == done.statistics.num_drafted_tokens > 0


async def test_long_prompt(start: Start) -> None:
    """A prompt of many frames arrives whole at both peers."""
    verifier, drafter = await start.verifier(context_length=100_000), await start.drafter(context_length=0)
    stack = await start.coordinator([verifier], [drafter])
    prompt = [index % 26 for index in range(50_000)]
    await stack.complete(prompt, max_tokens=5)
    assert list(verifier.opens[0].prompt) == prompt
    assert list(drafter.opens[0].prompt) == prompt


@pytest.mark.parametrize(
    ("options", "speculator", "rule"),
    [
        ({"temperature": 0.0}, "model", Rule.MATCH),
        ({"temperature": 1.0}, "model", Rule.BLOCK),
        ({"temperature": 1.0}, "ngram", Rule.MATCH),
        ({"temperature": 1.0, "seed": 1}, "model", Rule.MATCH),
        ({"temperature": 1.0, "speculation": Speculation(rule=Rule.TOKEN)}, "model", Rule.TOKEN),
        ({"temperature": 1.0, "speculation": Speculation(rule=Rule.MATCH)}, "model", Rule.MATCH),
        ({"temperature": 0.0, "speculation": Speculation(rule=Rule.BLOCK)}, "model", Rule.MATCH),
        ({"temperature": 1.0, "speculation": Speculation(is_off=True)}, "model", Rule.MATCH),
    ],
)
async def test_rule(start: Start, options: dict[str, object], speculator: str, rule: Rule) -> None:
    """The rule is match where nothing is drawn by chance, where a seed promises the text or where drafts have no q."""
    verifier, drafter = await start.verifier(), await start.drafter(speculators=(speculator,))
    stack = await start.coordinator([verifier], [drafter])
    done = await stack.complete(max_tokens=5, **options)
    assert done.started.rule is rule
    assert verifier.opens[0].rule is rule
    if drafter.opens:
        assert drafter.opens[0].is_coupled == (rule is Rule.MATCH and options["temperature"] == 1.0)


async def test_seeds(start: Start) -> None:
    """A seed reaches both peers as it is; without one every request has its own."""
    verifier, drafter = await start.verifier(), await start.drafter()
    stack = await start.coordinator([verifier], [drafter])
    await stack.complete(seed=7, temperature=1.0)
    for _ in range(2):
        await stack.complete(temperature=1.0)
    seeds = [opened.seed for opened in verifier.opens]
    assert seeds == [opened.seed for opened in drafter.opens]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3


async def test_many_at_once(start: Start) -> None:
    """Requests that run at once do not touch one another's text."""
    import asyncio

    law = chaotic(26)
    stack = await start.stack(law, right_for(2, law, 26))
    prompts = [[index, index + 1] for index in range(24)]
    alone = [await stack.complete(prompt, max_tokens=30, gamma=0) for prompt in prompts]
    together = await asyncio.gather(
        *(stack.complete(prompt, max_tokens=30, gamma=index % 5) for index, prompt in enumerate(prompts))
    )
    assert [done.ids for done in together] == [done.ids for done in alone]


async def test_late_drafter(start: Start) -> None:
    """A draft that comes after the patience is used by its tail or dropped; the text is the same."""
    law = chaotic(26)
    verifier = await start.verifier(law)
    verifier.pass_s = 0.002
    drafter: FakeDrafter = await start.drafter(right_for(8, law, 26))
    stack = await start.coordinator([verifier], [drafter], draft_deadline_ms=1.0, patience_ms=1.0)
    plain = await stack.complete(max_tokens=60, gamma=8)
    drafter.delay_s = 0.4  # many times longer than before
    done = await stack.complete(max_tokens=20, gamma=8, include_rounds=True)
    assert done.ids == plain.ids[:20]
    assert "draft_late" in {entry.reason for entry in done.rounds}


@pytest.mark.parametrize(("lost_after_s", "least_us", "most_us"), [(2.0, 190_000, 900_000), (0.12, 120_000, 120_000)])
async def test_drafts_that_are_known_to_be_far_away_are_waited_for(
    start: Start, lost_after_s: float, least_us: int, most_us: int
) -> None:
    """Patience is a first guess; later on it is twice what drafts take, within what ends a stream."""
    law = chaotic(26)
    verifier = await start.verifier(law)
    verifier.pass_s = 0.002
    drafter: FakeDrafter = await start.drafter(right_for(8, law, 26))
    drafter.delay_s = 0.1
    tempo: dict[str, Any] = {"draft_deadline_ms": 10.0, "patience_ms": 40.0, "lost_after_s": lost_after_s}
    stack = await start.coordinator([verifier], [drafter], **tempo)
    plain = await stack.complete(max_tokens=60, gamma=0)
    done = await stack.complete(max_tokens=60, gamma=8, include_rounds=True)
    assert done.ids == plain.ids
    assert done.rounds[0].reason == "draft_late"
    patience = [work.patience_us for work in verifier.works if work.patience_us]
    assert patience[0] <= 90_000
    assert least_us <= patience[-1] <= most_us
    assert lost_after_s < 0.1 or done.statistics.num_accepted_tokens > 8


@pytest.mark.parametrize("gamma", [None, 2])
async def test_only_who_heeds_the_price_is_planned_with(start: Start, gamma: int | None) -> None:
    """A request by the price opens with its profile; one that fixes γ would not do as the plan expects of it."""
    verifier, drafter = await start.verifier(), await start.drafter()
    stack = await start.coordinator([verifier], [drafter])
    done = await stack.complete(max_tokens=20, speculation=Speculation(gamma=gamma))
    told = [opened.profile for opened in verifier.opens] + [work.profile for work in verifier.works]
    assert (gamma is None) == any(told)
    assert (gamma is None) == (verifier.opens[0].profile is not None)
    assert gamma is None or done.statistics.num_drafts > 0
