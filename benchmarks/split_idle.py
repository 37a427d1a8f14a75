"""What the split costs by how long the services stand still during a pass: a table model whose passes only take time.

    python -m benchmarks.split_idle --pass-ms 0.5,2,10,40

Nothing is computed in such a pass, so only the path of a round is left: drafter, coordinator, verifier and the calls
between them. Beside it stands what two empty calls between two processes take after standing still for as long: under
that no round with a draft can come, whatever its services do.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks import report, services
from benchmarks.calls import round_trip_ms
from benchmarks.oneprocess import LocalEngine, OneProcess
from benchmarks.prompts import Prompt
from benchmarks.run import Plan, interleaved
from benchmarks.split import ONE_PROCESS, SplitCost, cost
from drafter.settings import DrafterSettings
from drafter.speculators.ngram import NgramSpeculator
from pilotfish.cli.local import Local
from pilotfish.cli.up import running, unseen
from pilotfish.client import Client
from verifier.settings import VerifierSettings

GAMMA = 4
TEXT = "abcdefgh"


def table(directory: Path, pass_ms: float) -> str:
    """A target that goes round in a text of eight letters, each pass of the same length; the model that names it."""
    content = {
        "vocabulary": list(TEXT),
        "script": {"ids": list(range(len(TEXT)))},
        "pass_us": [[1, round(1e3 * pass_ms)], [64, round(1e3 * pass_ms)]],
    }
    path = directory / f"table-{pass_ms:g}ms.json"
    path.write_text(json.dumps(content))
    return f"table:{path}"


def measure(model: str, num_tokens: int, repeats: int) -> list[SplitCost]:
    """The cost of a plain round and of one with a draft, through the services against one process."""
    settings = VerifierSettings(model=model)
    speculator = NgramSpeculator.from_settings(DrafterSettings())
    plan = Plan([Prompt("loop", "", TEXT * 4, is_held_out=False)], num_tokens, repeats)
    with running(Local(model, port=0), unseen) as fleet, Client(fleet.address("coordinator")) as client:
        ours = [services.plain(client), services.speculative(client, "ngram", GAMMA)]
        local = LocalEngine(settings)
        alone = [
            OneProcess(ONE_PROCESS + ours[0].name, local),
            OneProcess(ONE_PROCESS + ours[1].name, local, speculator, GAMMA),
        ]
        measurements = list(interleaved([*ours, *alone], plan, lambda prompt: tuple(map(TEXT.index, prompt.text))))
    return [cost(arm.name, measurements) for arm in ours]


def _rows(pass_ms: Sequence[float], num_tokens: int, repeats: int) -> Iterator[tuple[str, ...]]:
    with tempfile.TemporaryDirectory() as directory:
        for length_ms in pass_ms:
            empty_ms = 2 * round_trip_ms(length_ms)
            for one in measure(table(Path(directory), length_ms), num_tokens, repeats):
                yield (
                    one.arm,
                    f"{one.pass_ms:.1f}",
                    str(one.through_services_ms),
                    str(one.in_one_process_ms),
                    f"{one.cost_ms:.2f}",
                    f"{one.share:.1%}",
                    f"{empty_ms:.2f}",
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pass-ms", default="0.5,2,10,40", help="lengths of a pass, in milliseconds")
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    parser.add_argument("--repeats", type=int, default=4)
    given = parser.parse_args()
    lengths = [float(text) for text in given.pass_ms.split(",")]
    head = ("arm", "pass, ms", "services, ms", "one process, ms", "split, ms", "split/pass", "two empty calls, ms")
    print(report.markdown(head, list(_rows(lengths, given.tokens, given.repeats))))


if __name__ == "__main__":
    main()
