"""`python -m drafter`: run a drafter."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence

from drafter.service import run
from drafter.settings import DrafterSettings
from pilotfish import logs
from pilotfish.errors import PilotfishError
from pilotfish.server import run_process


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; the exit status: 0, or 2 where the settings make no sense."""
    try:
        settings = DrafterSettings.load(arguments, program="python -m drafter")
        logs.start(settings.log_format)
        logging.getLogger("drafter").info("settings:\n%s", settings.describe())
        run_process(run(settings))
    except PilotfishError as error:
        sys.stderr.write(f"drafter: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
