"""The command line, `pilotfish`: everything a person starts from a terminal.

It is installed with every role and asks for the two packages it draws with only when it runs, so that a client-only
installation has a clear answer and not a traceback.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

MISSING = (
    "pilotfish: the command line needs {packages}, which a client-only installation does not bring; "
    "install it with: pip install 'pilotfish[all]'"
)


def main() -> None:
    """Run the command line with the arguments of this process, and exit."""
    missing = [package for package in ("typer", "rich") if find_spec(package) is None]
    if missing:
        print(MISSING.format(packages=" and ".join(missing)), file=sys.stderr)
        raise SystemExit(2)
    from pilotfish.cli.application import run

    raise SystemExit(run(sys.argv[1:]))
