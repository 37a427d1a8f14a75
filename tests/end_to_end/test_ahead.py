"""The services together, with drafts that lie ahead of the verdict: the text stays what plain decoding writes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from coordinator.line import Line
from coordinator.sides import SideLine, Sides
from pilotfish.messages import Speculation, Verdict
from tests.coordinator.test_ahead import AheadPolicy, MoodyPolicy
from tests.end_to_end.stack import RealStack
from tests.end_to_end.test_table import drafter, num_asked, target

WAYS: dict[str, dict[str, Any]] = {"greedy": {"temperature": 0.0}, "coupled": {"temperature": 1.0, "seed": 3}}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["perfect", "noise"])
@pytest.mark.parametrize(("gamma", "ahead", "passes"), [(1, 1, 1), (3, 2, 1), (2, 4, 1), (4, 3, 2)])
async def test_text_is_plain(tmp_path: Path, way: str, kind: str, gamma: int, ahead: int, passes: int) -> None:
    """Whatever lies ahead, right or wrong, held or not, the ids are those of plain decoding."""
    policy = AheadPolicy(gamma, ahead, passes=passes)
    async with RealStack(target(tmp_path), drafter(tmp_path, kind), speculators=["model"], policy=policy) as stack:
        plain = await stack.complete("abc", max_tokens=120, gamma=0, **WAYS[way])
        done = await stack.complete("abc", max_tokens=120, include_rounds=True, **WAYS[way])
        assert done.ids == plain.ids
        statistics = done.statistics
        assert num_asked(done) > 0
        assert statistics.num_drafted_tokens == sum(entry.num_drafted for entry in done.rounds)
        assert statistics.num_accepted_tokens == sum(entry.num_accepted for entry in done.rounds)
        assert sum(entry.num_committed for entry in done.rounds) == 120
        if kind == "perfect" and way == "greedy":
            assert statistics.num_accepted_tokens == statistics.num_drafted_tokens


@pytest.mark.parametrize("num_sides", [0, 4])
async def test_what_follows_a_correction_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_sides: int
) -> None:
    """A drafter that is often wrong and has time foresees some corrections; the ids are those of plain decoding."""
    taken: list[bool] = []
    turn = Sides.turn

    def counted(self: Sides, verdict: Verdict, line: Line) -> SideLine | None:
        side = turn(self, verdict, line)
        taken.append(side is not None)
        return side

    monkeypatch.setattr(Sides, "turn", counted)
    slow = target(tmp_path, pass_us=[[1, 100_000], [64, 100_000]])
    options: dict[str, Any] = {"speculators": ["model"], "policy": AheadPolicy(3, 3)}
    async with RealStack(slow, drafter(tmp_path, "noise"), coordinator={"side_lines": num_sides}, **options) as stack:
        plain = await stack.complete("abc", max_tokens=40, gamma=0, **WAYS["coupled"])
        done = await stack.complete("abc", max_tokens=40, **WAYS["coupled"])
        assert done.ids == plain.ids
        assert num_asked(done) > 0
        assert any(taken) == (num_sides > 0)
        assert not all(taken)


async def test_copies_lie_ahead_too(tmp_path: Path) -> None:
    """A drafter that only looks tokens up, and thinks again at every request, does no harm."""
    policy = AheadPolicy(3, 2)
    async with RealStack(target(tmp_path), None, speculators=["ngram"], policy=policy) as stack:
        plain = await stack.complete("abcabcabc", max_tokens=120, gamma=0, **WAYS["greedy"])
        done = await stack.complete("abcabcabc", max_tokens=120, **WAYS["greedy"])
        assert done.ids == plain.ids


async def test_many_moods_at_once(tmp_path: Path) -> None:
    """Sessions that change their way every round, all at once, over wires that break: every text is plain."""
    policy = MoodyPolicy(7)
    async with RealStack(target(tmp_path), drafter(tmp_path, "perfect"), speculators=["model"], policy=policy) as stack:
        seeds = range(6)
        off = Speculation(is_off=True)
        plain = [
            await stack.complete("abc", seed=seed, max_tokens=100, speculation=off, temperature=1.0) for seed in seeds
        ]

        async def cut() -> None:
            for _ in range(4):
                await asyncio.sleep(0)
                stack.to_drafter.cut()
                await stack.complete("abc", seed=1, max_tokens=30, temperature=1.0)
                stack.to_verifier.cut()
                await stack.complete("abc", seed=1, max_tokens=30, temperature=1.0)

        cutting = asyncio.create_task(cut())
        done = await asyncio.gather(
            *(stack.complete("abc", seed=seed, max_tokens=100, temperature=1.0) for seed in seeds)
        )
        await cutting
        assert [answer.ids for answer in done] == [answer.ids for answer in plain]
