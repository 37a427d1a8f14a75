"""Become a service that does not outlive its parent: python -m pilotfish.cli.child PARENT_PID MODULE [ARGUMENT ...].

A parent that is killed outright (SIGKILL, the out-of-memory killer) cannot stop its children, so the kernel is asked
to. Linux can; elsewhere the service starts all the same, and a parent that is killed outright leaves it behind.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends.

    The setting survives `exec`. The parent may be gone already when it is made, hence the look afterwards.
    """
    if not sys.platform.startswith("linux"):
        return
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    if os.getppid() != parent:
        raise SystemExit(f"the process {parent} that started this one is gone")


def main(arguments: list[str]) -> None:
    """Tie this process to its parent and turn it into `python -m MODULE`."""
    parent, module, *rest = arguments
    die_with(int(parent))
    os.execv(sys.executable, [sys.executable, "-m", module, *rest])  # noqa: S606 - becoming it is the point


if __name__ == "__main__":
    main(sys.argv[1:])
