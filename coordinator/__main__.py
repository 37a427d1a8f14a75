"""`python -m coordinator`: run a coordinator."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from coordinator.service import run
from coordinator.settings import CoordinatorSettings
from pilotfish import logs
from pilotfish.errors import PilotfishError
from pilotfish.server import run_process


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; the exit status: 0, or 2 where the settings make no sense."""
    try:
        settings = CoordinatorSettings.load(arguments, program="python -m coordinator")
        logs.start(settings.log_format)
        logging.getLogger("coordinator").info("settings:\n%s", settings.describe())
        run_process(run(settings))
    except PilotfishError as error:
        sys.stderr.write(f"coordinator: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
