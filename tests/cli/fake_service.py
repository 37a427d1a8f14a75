"""Stands in for a service: says something, then does what its first argument names."""

# ruff: noqa: T201 - what it prints is what the test reads

from __future__ import annotations

import os
import signal
import sys


def main() -> int:
    """Do it."""
    how = sys.argv[1]
    print(f"I am {os.getpid()} and {how}", flush=True)
    if how == "fails":
        print("the reason of the failure", file=sys.stderr, flush=True)
        return 3
    if how == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ignoring SIGTERM", flush=True)
    while True:
        signal.pause()


if __name__ == "__main__":
    raise SystemExit(main())
