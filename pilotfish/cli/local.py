"""The three services on this machine: which processes they are, and what each is told."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pilotfish import models
from pilotfish.cli.processes import Service, claim_port, free_port
from pilotfish.errors import ConfigurationError
from pilotfish.gammas import GammaTable

ROLES = ("coordinator", "drafter", "verifier")  # in the order they are ended: no new work, then no more drafts
COORDINATOR_PORT = 50050
NO_DRAFTER = "none"
NGRAM = "ngram"


@dataclass(frozen=True, slots=True)
class Local:
    """What `up` is to start."""

    model: str = models.DEFAULT_PRESET
    drafter: str = NGRAM  # "ngram", "model:NAME", "none"
    gamma: str | None = None  # a number, or a table by batch size; None: as the coordinator is set
    dtype: str | None = None  # None: as verifier and drafter are set
    device: str | None = None
    host: str = "127.0.0.1"
    port: int = COORDINATOR_PORT  # 0: any that is free
    threads: int | None = None  # of each model; None: what the machine has, shared out
    settings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # by role: further flags

    @property
    def drafter_model(self) -> str | None:
        """The model that drafts, where one does."""
        return self.drafter.removeprefix("model:") if self.drafter.startswith("model:") else None

    @property
    def has_drafter(self) -> bool:
        return self.drafter != NO_DRAFTER

    def check(self) -> None:
        """Find out before anything is started what cannot be.

        Raises:
            PilotfishError: a model that is not there, a drafter nobody knows, a port that is taken.
        """
        models.resolve(self.model)
        if self.drafter_model is not None:
            models.resolve(self.drafter_model)
        elif self.drafter not in {NGRAM, NO_DRAFTER}:
            raise ConfigurationError.of("--drafter", self.drafter, "say ngram, model:NAME (any --model) or none")
        if self.gamma is not None:
            read_gammas("--gamma", self.gamma)
        if self.port:
            claim_port(self.host, self.port)


def read_gammas(field: str, text: str) -> GammaTable:
    """A number of tokens, or a table of them by batch size.

    Raises:
        ConfigurationError: it is neither.
    """
    try:
        return GammaTable.parse(text)
    except ValueError as error:
        raise ConfigurationError.of(field, text, str(error)) from error


def fetch(local: Local) -> None:
    """Have every model here before the services ask for it, with progress on stderr."""
    from pilotfish.progress import terminal_progress

    with terminal_progress() as progress:
        for name in (local.model, local.drafter_model):
            if name is not None:
                models.provide(name, progress)


def services(local: Local) -> list[Service]:
    """The processes, in the order they are to be ended. Ports of drafter and verifier are any that are free."""
    port = local.port or free_port(local.host)
    verifier, drafter = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    threads = str(local.threads or _share_of_cores(local))
    model_flags = {"dtype": local.dtype, "device": local.device, "threads": threads}
    flags: dict[str, dict[str, str | None]] = {
        "coordinator": {
            "host": local.host,
            "port": str(port),
            "model": local.model,
            "verifiers": verifier,
            "drafters": drafter if local.has_drafter else "",
            "gamma": local.gamma,
        },
        "drafter": {
            "port": drafter.rpartition(":")[2],
            "model": local.drafter_model,
            # A request may ask for the other one by name.
            **({"speculators": f"model,{NGRAM}", **model_flags} if local.drafter_model is not None else {}),
        },
        "verifier": {"port": verifier.rpartition(":")[2], "model": local.model, **model_flags},
    }
    addresses = {"coordinator": f"{_reachable(local.host)}:{port}", "drafter": drafter, "verifier": verifier}
    # A thread that spins while it waits takes the time of the other two services.
    environment = {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": threads,
        "TOKENIZERS_PARALLELISM": "false",
        "TQDM_DISABLE": "1",  # a bar that is drawn into a log is a line for every step
    }
    return [
        Service(
            module=role,
            arguments=_arguments({**flags[role], **local.settings.get(role, {})}),
            address=addresses[role],
            health=f"pilotfish.v1.{role.capitalize()}",
            environment=environment,
        )
        for role in ROLES
        if role != "drafter" or local.has_drafter
    ]


def read_config(path: Path) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """The options of a config file, and by role the flags of the services.

    Raises:
        ConfigurationError: it cannot be read, or has a table that is no service. An unknown key in a service's table
            is refused by the service, which knows its own.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"--config {path}: {error.strerror}; check the path") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--config {path} is not TOML: {error}") from error
    settings = {}
    for role in ROLES:
        table = content.pop(role, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"--config {path}: {role} must be a table, [{role}]")
        settings[role] = {key: _text(value) for key, value in table.items()}
    for key, value in content.items():
        if isinstance(value, dict):
            raise ConfigurationError(f"--config {path}: no service {key!r}; there are {', '.join(ROLES)}")
    return content, settings


def _arguments(flags: Mapping[str, str | None]) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in flags.items() if value is not None)


def _text(value: Any) -> str:
    """A TOML value as a flag has it."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(_text, value)) if isinstance(value, list) else str(value)


def _share_of_cores(local: Local) -> int:
    """Threads of a model: the cores, less one for the services around it, shared with a drafter's model.

    Two models never compute for the same session at once, but sessions overlap.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (cores - 1) // (2 if local.drafter_model is not None else 1))


def _reachable(host: str) -> str:
    """Where to reach what listens on `host`."""
    loopback = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host)  # noqa: S104 - it is listened on, not by us
    return loopback or (f"[{host}]" if ":" in host else host)
