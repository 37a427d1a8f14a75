"""`python -m verifier`: run a verifier."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from pilotfish import logs
from pilotfish.errors import PilotfishError
from pilotfish.server import run_process
from verifier.settings import VerifierSettings

SWITCH_S = 0.0005


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; the exit status: 0, or 2 where the settings or the model make no sense."""
    try:
        settings = VerifierSettings.load(arguments, program="python -m verifier")
        logs.start(settings.log_format)
        logging.getLogger("verifier").info("settings:\n%s", settings.describe())
        # Threads that spin while they wait take the cores from the processes beside this one; read when torch loads.
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")
        # The engine's thread and the event loop share the interpreter: neither may keep the other waiting for 5 ms.
        sys.setswitchinterval(SWITCH_S)
        from verifier.service import run

        run_process(run(settings))
    except PilotfishError as error:
        sys.stderr.write(f"verifier: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
