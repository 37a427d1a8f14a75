"""Starts a fleet of one that waits, says its process id, and waits to be killed."""

# ruff: noqa: T201 - what it prints is what the test reads

from __future__ import annotations

from pilotfish.cli.processes import Fleet, Service


def main() -> None:
    """Start, say, wait."""
    service = Service("tests.cli.fake_service", ("waits",), "", "")
    fleet = Fleet([service], show=lambda _name, line: print(line, flush=True), check=lambda _service: True)
    fleet.start()
    fleet.wait_until_ready(60)
    print(f"child {fleet.processes[service.module].pid}", flush=True)
    fleet.wait()


if __name__ == "__main__":
    main()
