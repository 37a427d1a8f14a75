"""`python -m drafter` as a process: without torch, with a clean end, and with errors that say what to do."""

from __future__ import annotations

import asyncio
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from drafter.__main__ import main
from pilotfish.rpc import channel
from pilotfish.v1 import drafter_pb2, drafter_pb2_grpc
from tests.drafter.openings import opening, request
from tests.drafter.stream import Stream

A = b"a" * 16
WITHOUT_TORCH = """
import sys
for name in ("torch", "transformers", "numpy"):
    sys.modules[name] = None
from drafter.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@asynccontextmanager
async def process(*arguments: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """A drafter that cannot import torch, and its address."""
    started = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WITHOUT_TORCH, "--port", "0", *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert started.stderr is not None
    try:
        async for line in started.stderr:
            if found := re.search(r"is ready on (\S+)", line.decode()):
                yield started, found[1]
                break
        else:
            raise AssertionError("it never said that it is ready")
    finally:
        if started.returncode is None:
            started.kill()
        await started.communicate()


async def test_ngram_drafts_in_a_process_without_torch() -> None:
    """Where torch, transformers and numpy cannot be imported, ngram drafts, and SIGTERM ends the process with 0."""
    async with process() as (started, address):
        async with channel(address) as to:
            stub = drafter_pb2_grpc.DrafterStub(to)
            info = await stub.Info(drafter_pb2.DrafterInfoRequest())
            stream = Stream(stub, info.peer.incarnation)
            await stream.open(opening(A, [1, 2, 3, 1, 2], incarnation=stream.incarnation))
            draft, _ = await stream.propose(request(A, [1, 2, 3, 1, 2], 2, incarnation=stream.incarnation))
            await stream.close()
            assert draft.tokens == (3, 1)
        started.send_signal(signal.SIGTERM)
        assert started.stderr is not None
        await started.stderr.read()
        assert await started.wait() == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--speculators", "telepathy"], ["telepathy", "ngram", "model"]),
        (["--speculators", "nowhere.at.all:Speculator"], ["nowhere.at.all:Speculator", "cannot be imported"]),
        (["--speculators", "drafter.rounds:Rounds"], ["no speculator class"]),
        (["--speculators", "model"], ["--model"]),
        (["--speculators", "ngram,ngram"], ["named twice"]),
        (["--model", "table:/no/such/table.json"], ["/no/such/table.json"]),
        (["--model", "/no/such/directory"], ["/no/such/directory"]),
        (["--min-n", "5", "--max-n", "3"], ["min_n is 5", "max_n 3"]),
        (["--min-n", "0"], ["--min-n", "0"]),
        (["--num-bits", "33"], ["--num-bits", "33"]),
        (["--port", "99999"], ["--port", "99999"]),
        (["--speculator", "ngram"], ["--speculator", "--speculators"]),
        (["--options", "table"], ["table", "name=value"]),
        (["--grace-s", "-1"], ["--grace-s", "-1"]),
    ],
)
def test_impossible_settings_end_the_start_with_the_key_and_the_remedy(
    arguments: list[str], words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A setting that cannot be is refused at start: exit status 2, the key and what to do about it on stderr."""
    assert main(["--port", "0", *arguments]) == 2
    text = capsys.readouterr().err.splitlines()[-1]
    assert all(word in text for word in words), text


def test_help_lists_every_setting_with_its_variable(capsys: pytest.CaptureFixture[str]) -> None:
    """--help names flag, environment variable and default of every setting."""
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out

    assert ended.value.code == 0
    for name in ("speculators", "model", "num_bits", "max_gamma", "metrics_port"):
        assert "--" + name.replace("_", "-") in text
        assert "PILOTFISH_DRAFTER_" + name.upper() in text
