"""Tables and comparisons of the bench, from measurements made up to have known figures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.identity import first_difference
from benchmarks.records import Answer, Measurement, RoundRecord
from benchmarks.report import acceptance_table, acceptances, cells, markdown, write
from benchmarks.split import cost, gaps_ms


def answer(seconds: float, rounds: tuple[RoundRecord, ...] = (), num_tokens: int = 11, first: int = 7) -> Answer:
    """An answer whose first token came at once and the others in so many seconds; ids count up from `first`."""
    return Answer(tuple(range(first, first + num_tokens)), 1, 0.0, seconds, rounds or (RoundRecord(1),) * num_tokens)


def measured(arm: str, prompt: str, given: Answer, set_: str = "json") -> Measurement:
    """A greedy measurement."""
    return Measurement(arm, set_, prompt, 0, 0.0, 5, given)


def test_ratios_are_of_the_same_prompt() -> None:
    """An arm that takes half the time on every prompt is 2 times the baseline, however the prompts differ."""
    measurements = [
        *(measured("plain", name, answer(seconds)) for name, seconds in (("a", 1.0), ("b", 10.0))),
        *(measured("fast", name, answer(seconds)) for name, seconds in (("a", 0.5), ("b", 5.0))),
    ]
    by_arm = {cell.arm: cell for cell in cells(measurements, ["plain", "fast"], "plain") if cell.set == "json"}
    fast = by_arm["fast"]
    assert fast.ratio is not None
    assert abs(fast.ratio.value - 2.0) < 1e-12
    assert fast.num_same == 2
    assert fast.tokens_per_pass == 1.0


def test_drafting_can_be_left_out() -> None:
    """An answer that spent half its time waiting for drafts would be twice as fast without them."""
    rounds = (RoundRecord(1, verify_us=0), RoundRecord(10, 9, 9, 9, draft_us=500_000, verify_us=500_000))
    measurements = [measured("plain", "a", answer(1.0)), measured("model", "a", answer(1.0, rounds))]
    cell = cells(measurements, ["plain", "model"], "plain")[1]
    assert cell.ratio is not None
    assert cell.ratio_beside_drafting is not None
    assert (cell.ratio.value, cell.ratio_beside_drafting.value) == (1.0, 2.0)


def test_short_answers_have_no_rate() -> None:
    """An answer of a few tokens says nothing of speed, and counts as an answer all the same."""
    measurements = [measured(arm, "a", answer(1.0, num_tokens=3)) for arm in ("plain", "fast")]
    cell = cells(measurements, ["plain", "fast"], "plain")[1]
    assert (cell.ratio, cell.tokens_per_s, cell.num_answers) == (None, None, 1)


def test_other_ids_are_counted() -> None:
    """An arm that gives other ids than the baseline is not the same."""
    measurements = [measured("plain", "a", answer(1.0)), measured("fast", "a", answer(1.0, first=8))]
    cell = cells(measurements, ["plain", "fast"], "plain")[1]
    assert cell.num_same == 0


def test_acceptance_is_pooled_over_rounds() -> None:
    """Acceptance is accepted over drafted of all rounds, not a mean of rates."""
    rounds = (RoundRecord(2, 1, 1, 1), RoundRecord(1, 9, 9, 0))
    cell = cells([measured("fast", "a", answer(1.0, rounds))], ["fast"], "fast")[0]
    assert cell.acceptance == 0.1
    table = acceptance_table(acceptances([measured("fast", "a", answer(1.0, rounds))]))
    assert "(0.50)" in table


def test_first_difference() -> None:
    """Answers part at the first other id, or where one of them ends."""
    assert first_difference("x", "p", (1, 2, 3), (1, 2, 3)) is None
    changed = first_difference("x", "p", (1, 2, 3), (1, 5, 3))
    assert changed is not None
    assert (changed.index, changed.expected, changed.found) == (1, 2, 5)
    shorter = first_difference("x", "p", (1, 2, 3), (1, 2))
    assert shorter is not None
    assert (shorter.index, shorter.expected, shorter.found) == (2, 3, None)


def drafted(start_ms: float, pass_ms: float) -> RoundRecord:
    """A round with a draft."""
    return RoundRecord(3, 4, 4, 2, start_us=round(start_ms * 1e3), pass_us=round(pass_ms * 1e3))


def test_a_gap_is_a_round_without_its_pass() -> None:
    """Rounds 12 ms apart with passes of 10 ms leave 2 ms; no round that rode free counts."""
    steady = [drafted(12.0 * index, 10.0) for index in range(5)]
    assert gaps_ms(steady, is_drafted=True) == [2.0, 2.0]
    free = RoundRecord(1, start_us=24_000, pass_us=10_000)
    assert gaps_ms([*steady[:2], free, *steady[3:]], is_drafted=True) == []


def test_split_cost_is_the_difference_of_medians() -> None:
    """2 ms through the services and 0.5 in one process make a split of 1.5 ms, 15% of a pass of 10."""
    ours = measured("ngram γ=4", "a", answer(2.0, tuple(drafted(12.0 * i, 10.0) for i in range(6))))
    theirs = measured("one process ngram γ=4", "a", answer(1.0, tuple(drafted(10.5 * i, 10.0) for i in range(6))))
    found = cost("ngram γ=4", [ours, theirs])
    assert abs(found.cost_ms - 1.5) < 1e-9
    assert abs(found.share - 0.15) < 1e-9
    assert abs(found.rate_ratio.value - 0.5) < 1e-9


def test_raw_data_has_every_round(tmp_path: Path) -> None:
    """The files hold every answer with its ids, and a line per round."""
    path = write(tmp_path, "run", {"note": 1}, [measured("plain", "a", answer(1.0))])
    content = json.loads(path.read_text())
    assert content["measurements"][0]["answer"]["ids"] == list(range(7, 18))
    assert content["environment"]["packages"]["pilotfish"]
    lines = (tmp_path / "run.rounds.jsonl").read_text().splitlines()
    assert len(lines) == 11
    assert json.loads(lines[3])["round"] == 3


def test_a_table_is_aligned() -> None:
    """Every line of a Markdown table is as long as the others; missing cells are empty."""
    lines = markdown(("a", "long heading"), [("1",), ("22", "3")]).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[2].count("|") == 3
