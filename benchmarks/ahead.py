"""Drafting ahead through the running services, for one session: `python -m benchmarks.ahead`.

A table model whose passes take as long as they are told to, a drafter behind a slow wire, and seeded requests (coupled
drafting). Beside one another: plain decoding, every fixed γ, which waits for each of its drafts, and γ by the price,
whose drafts lie ahead. The best fixed γ is chosen on other texts than it is compared on. Every text is compared with
the plain one.

With `--side-lines`: γ by the price with and without the lines beside the likeliest, on the same texts.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np

from benchmarks.far import models, services
from benchmarks.price_cells import ratio
from coordinator.line import MAX_LEAD
from pilotfish import AsyncClient
from pilotfish.client import Completion
from pilotfish.messages import Speculation

CHOOSING, COMPARING = (1,), (11, 12, 13)
PLAIN, BY_PRICE = Speculation(is_off=True), Speculation()


async def answer(client: AsyncClient, speculation: Speculation, seed: int, num_tokens: int) -> Completion:
    """A seeded answer at temperature 1."""
    return await client.complete(
        "abc", temperature=1.0, seed=seed, max_tokens=num_tokens, ignore_eos=True, speculation=speculation
    )


def rate(done: Completion, pass_s: float) -> float:
    """Tokens a pass length, after the first verdict."""
    statistics = done.statistics
    return (done.num_output_tokens - 1) / ((statistics.total_us - statistics.first_token_us) / 1e6 / pass_s)


async def compare(arguments: argparse.Namespace, token: float, round_trip: float) -> bool:
    """Print a line for a drafter and a distance, both in passes; whether ours reached what is asked."""
    pass_s = arguments.pass_ms / 1e3
    with tempfile.TemporaryDirectory() as folder:
        pair = models(Path(folder), arguments.apart, pass_s * 1e6, token * pass_s * 1e6)
        async with services(pair, round_trip * pass_s) as client:

            async def rates(speculation: Speculation, seeds: Sequence[int]) -> np.ndarray:
                found = [await answer(client, speculation, seed, arguments.tokens) for seed in seeds]
                if [done.ids for done in found] != [plain[seed].ids for seed in seeds]:
                    raise AssertionError(f"{speculation}: the text is not the plain one")
                kept.extend(found)
                return np.array([rate(done, pass_s) for done in found])

            kept: list[Completion] = []
            plain = {seed: await answer(client, PLAIN, seed, arguments.tokens) for seed in (*CHOOSING, *COMPARING)}
            plainly = np.array([rate(plain[seed], pass_s) for seed in COMPARING])
            chosen = {gamma: (await rates(Speculation(gamma=gamma), CHOOSING)).mean() for gamma in arguments.gammas}
            best = max(chosen, key=lambda gamma: float(chosen[gamma]))
            kept.clear()
            waiting = await rates(Speculation(gamma=best), COMPARING)
            held, drafted = (sum(getattr(done.statistics, name) for done in kept) for name in FIELDS)
            ahead = await rates(BY_PRICE, COMPARING)
    gain = ratio(ahead / waiting)
    print(
        f"td {token:g}, round trip {round_trip:g}: plain {plainly.mean():.2f}, best waiting γ {best} "
        f"{waiting.mean():.2f} (accepted {held / drafted:.2f}), ahead {ahead.mean():.2f} tokens a pass length; "
        f"ahead over waiting {gain}, over plain {ratio(ahead / plainly)}",
        flush=True,
    )
    return bool(gain.high >= arguments.least)


async def compare_side_lines(arguments: argparse.Namespace, token: float, round_trip: float) -> bool:
    """Print what the lines beside the likeliest gain for a drafter and a distance; whether they are no loss.

    Raises:
        AssertionError: a text is another with them.
    """
    pass_s = arguments.pass_ms / 1e3
    rates: dict[int, list[float]] = {0: [], MAX_LEAD: []}
    with tempfile.TemporaryDirectory() as folder:
        pair = models(Path(folder), arguments.apart, pass_s * 1e6, token * pass_s * 1e6)
        async with AsyncExitStack() as stack:
            clients = {
                num: await stack.enter_async_context(services(pair, round_trip * pass_s, side_lines=num))
                for num in rates
            }
            for seed in range(arguments.texts):
                ids = []
                for num, client in clients.items():
                    done = await answer(client, BY_PRICE, seed, arguments.tokens)
                    ids.append(done.ids)
                    rates[num].append(rate(done, pass_s))
                if ids[0] != ids[1]:
                    raise AssertionError(f"seed {seed}: another text with side lines")
    without, beside = (np.array(values) for values in rates.values())
    gain = ratio(beside / without)
    print(
        f"td {token:g}, round trip {round_trip:g}: without {without.mean():.2f}, with side lines {beside.mean():.2f} "
        f"tokens a pass length; gain {gain}",
        flush=True,
    )
    return bool(gain.high >= 1.0)


FIELDS = ("num_accepted_tokens", "num_drafted_tokens")


async def run(arguments: argparse.Namespace) -> int:
    """Print every cell; how many stay below."""
    cell, least = (compare_side_lines, 1.0) if arguments.side_lines else (compare, arguments.least)
    results = [
        await cell(arguments, token, round_trip) for token in arguments.token for round_trip in arguments.round_trip
    ]
    print(f"below {least} as a whole: {results.count(False)} of {len(results)}")
    return 0


def main(arguments: Sequence[str]) -> int:
    """Print a line for each drafter and round trip."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--apart", type=float, default=0.05, help="how far the drafter's law lies from the target's")
    parser.add_argument("--token", type=float, nargs="+", default=[0.1, 0.2], help="a draft step, in passes")
    parser.add_argument("--round-trip", type=float, nargs="+", default=[0.3, 1.0, 2.0], help="in passes")
    parser.add_argument("--gammas", type=int, nargs="+", default=[3, 5, 8, 12, 16], help="that wait")
    parser.add_argument("--pass-ms", type=float, default=30.0)
    parser.add_argument("--tokens", type=int, default=300, help="of an answer")
    parser.add_argument("--side-lines", action="store_true", help="what the lines beside the likeliest gain")
    parser.add_argument("--texts", type=int, default=8, help="to compare them on")
    parser.add_argument("--least", type=float, default=1.15, help="gain that is asked for")
    return asyncio.run(run(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
