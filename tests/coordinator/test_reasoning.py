"""What a model says between its think marks is told from its answer."""

from __future__ import annotations

import pytest

from coordinator.estimator import Phase
from coordinator.policy import Decision, Snapshot
from coordinator.reasoning import Reasoning, ThinkMarks
from coordinator.settings import CoordinatorSettings
from pilotfish.errors import ConfigurationError
from pilotfish.messages import Speculation, Targets
from tests.coordinator.conftest import VOCABULARY, Start, ids
from tests.coordinator.fakes import right_for, scripted

MARKS = ThinkMarks(1, 2)
PROMPT, THOUGHTS, REPLY = "ab", "x" * 20, "e" + "y" * 200  # "b" begins the reasoning, "e" ends it


def test_marks_are_found_by_their_strings() -> None:
    """The usual marks of a model that has them, or those that were named; none where it has none or none are wanted."""
    vocabulary = ["a", "<think>", "</think>", "[THINK]", "[/THINK]"]
    assert ThinkMarks.find(CoordinatorSettings().think_marks, vocabulary) == MARKS
    assert ThinkMarks.find(("[THINK]", "[/THINK]"), vocabulary) == ThinkMarks(3, 4)
    assert ThinkMarks.find(CoordinatorSettings().think_marks, VOCABULARY) is None
    assert ThinkMarks.find((), vocabulary) is None


def test_marks_that_the_model_lacks_are_refused() -> None:
    """Marks that were named and are no tokens, and marks that are not two, are refused with what to name."""
    with pytest.raises(ConfigurationError, match="think_marks is '<think>,<end>': '<end>' is no token"):
        ThinkMarks.find(("<think>", "<end>"), ["<think>", "</think>"])
    for marks in ("<think>", "a,b,c", "a,a"):
        with pytest.raises(ConfigurationError, match="name two different tokens"):
            CoordinatorSettings.load(["--think-marks", marks], {})
    assert CoordinatorSettings.load(["--think-marks", ""], {}).think_marks == ()


@pytest.mark.parametrize(
    ("tokens", "phase"),
    [
        ([], Phase.ANSWER),
        ([0, 0], Phase.ANSWER),
        ([0, 1], Phase.REASONING),
        ([1, 0, 0], Phase.REASONING),
        ([1, 0, 2], Phase.ANSWER),
        ([1, 2, 0, 1, 0], Phase.REASONING),
        ([2, 0], Phase.ANSWER),
    ],
)
def test_a_prompt_may_end_inside_the_reasoning(tokens: list[int], phase: Phase) -> None:
    """The last mark decides, whether it stands in the prompt or comes with the answer."""
    assert Reasoning(MARKS, tokens).phase is phase
    going = Reasoning(MARKS, [])
    assert going.follow(tokens) is (phase is Phase.REASONING)
    assert going.phase is phase
    assert Reasoning(None, tokens).phase is Phase.ANSWER


class Recording:
    """Always three tokens, and a memory of what was known before each round that is not the first."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []

    def may_draft(self, wishes: Speculation) -> bool:
        return True

    def heeds_price(self, _wishes: Speculation) -> bool:
        return True

    def decide(self, snapshot: Snapshot) -> Decision:
        self.snapshots.append(snapshot)
        return Decision(3, "fixed")


async def test_reasoning_is_counted_and_paced_by_itself(start: Start) -> None:
    """With the mark that ends the reasoning what is known of drafts is the answer's, and its target begins to count."""
    law, policy = scripted(ids(THOUGHTS + REPLY)), Recording()
    verifier, drafter = await start.verifier(law), await start.drafter(right_for(1000, law, len(VOCABULARY)))
    stack = await start.coordinator([verifier], [drafter], policy=policy, think_marks=("b", "e"))
    hopeless = Targets(token_s=1e-6)
    thinking = await stack.complete(PROMPT, max_tokens=len(THOUGHTS), targets=hopeless)
    assert thinking.statistics.targets_met == {}
    policy.snapshots.clear()
    answering = await stack.complete(PROMPT, max_tokens=len(THOUGHTS) + 20, targets=hopeless)
    assert answering.statistics.targets_met == {"token": False}
    end = len(PROMPT) + len(THOUGHTS) + 1
    reasoning = [known for known in policy.snapshots if known.position < end]
    reply = [known for known in policy.snapshots if known.position >= end]
    assert {known.need for known in reasoning} == {None}
    assert None not in {known.need for known in reply}
    assert reasoning[-1].outlook is not None
    assert reply[0].outlook is not None
    assert reply[0].outlook.survival[0] < reasoning[-1].outlook.survival[0]


async def test_reasoning_that_nobody_tells_apart_is_an_answer(start: Start) -> None:
    """Without marks every token counts for the target."""
    law = scripted(ids(THOUGHTS + REPLY))
    stack = await start.stack(law, think_marks=(), gamma=0)
    answer = await stack.complete(PROMPT, max_tokens=len(THOUGHTS), targets=Targets(token_s=1e-6))
    assert answer.statistics.targets_met == {"token": False}
