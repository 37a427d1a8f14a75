"""`pilotfish info HOST`: what a running service says of itself, whichever of the three it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from pilotfish.cli.terminal import Terminal
from pilotfish.errors import ConfigurationError, Unavailable, Unimplemented

TIMEOUT_S = 5.0


class Answer(NamedTuple):
    """What a service said."""

    role: str
    is_ready: bool
    facts: dict[str, Any]


def info(
    host: Annotated[str, typer.Argument(metavar="HOST[:PORT]", help="A coordinator, drafter or verifier.")] = (
        "localhost:50050"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Also draw a verifier's cost curve with its ridge.")
    ] = None,
) -> None:
    """Ask a running service what it is: role, model, peers, settings, and a verifier what its passes cost.

    Examples:
      pilotfish info                      the coordinator on this machine
      pilotfish info gpu-7:50052 --json   a verifier, for a script
    """
    terminal = Terminal.of_process()
    answer = ask(with_port(host))
    if plot is not None:
        _draw(plot, host, answer.facts.get("cost_curve"))
        terminal.say(f"drawn: {plot}")
    if as_json:
        terminal.write(json.dumps(answer._asdict(), indent=2) + "\n")
        return
    readiness = "ready" if answer.is_ready else "alive, not ready"
    terminal.write(f"{answer.role} at {host}: {readiness}\n")
    for name, value in answer.facts.items():
        for line in _curve_lines(value) if name == "cost_curve" else _lines(name, value):
            terminal.write(f"  {line}\n")


def with_port(host: str, port: int = 50050) -> str:
    """The address with a port, the coordinator's where there is none."""
    if host.startswith("[") or host.count(":") == 1:
        return host if not host.endswith("]") else f"{host}:{port}"
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@contextmanager
def reaching(address: str) -> Iterator[None]:
    """Where nobody answers at an address, say so and what to do about it."""
    try:
        yield
    except Unavailable as error:
        if not str(error).startswith("failed to connect"):
            raise
        raise Unavailable(f"nobody answers at {address}; start the services there with: pilotfish up") from error


def ask(address: str) -> Answer:
    """Ask the service at an address for its Info; it says which of the three it is by answering.

    Raises:
        Unavailable: nobody answers there.
        Unimplemented: somebody does, who is none of ours.
    """
    import grpc

    from pilotfish.status import from_rpc_error

    with grpc.insecure_channel(address) as channel:
        for role, call in _calls(channel).items():
            try:
                proto = call()
            except grpc.RpcError as error:
                found = from_rpc_error(error)
                if isinstance(found, Unimplemented):
                    continue
                with reaching(address):
                    raise found from error
            return Answer(role, _is_ready(channel, role), _facts(proto))
    raise Unimplemented(f"what answers at {address} is neither a coordinator nor a drafter nor a verifier")


def _calls(channel: Any) -> Mapping[str, Callable[[], Any]]:
    from pilotfish.v1 import (
        coordinator_pb2,
        coordinator_pb2_grpc,
        drafter_pb2,
        drafter_pb2_grpc,
        verifier_pb2,
        verifier_pb2_grpc,
    )

    coordinator: Any = coordinator_pb2_grpc.CoordinatorStub(channel)
    drafter: Any = drafter_pb2_grpc.DrafterStub(channel)
    verifier: Any = verifier_pb2_grpc.VerifierStub(channel)
    return {
        "coordinator": lambda: coordinator.Info(coordinator_pb2.CoordinatorInfoRequest(), timeout=TIMEOUT_S),
        "drafter": lambda: drafter.Info(drafter_pb2.DrafterInfoRequest(), timeout=TIMEOUT_S),
        "verifier": lambda: verifier.Info(verifier_pb2.VerifierInfoRequest(), timeout=TIMEOUT_S),
    }


def _is_ready(channel: Any, role: str) -> bool:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    request = health_pb2.HealthCheckRequest(service=f"pilotfish.v1.{role.capitalize()}")
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=TIMEOUT_S)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _facts(proto: Any) -> dict[str, Any]:
    """The message's fields by name, empty ones left out: false and 0 are said, for they are answers.

    What every peer says of itself stands beside what only this one does.
    """
    facts = {
        field.name: _plain(getattr(proto, field.name))
        for field in proto.DESCRIPTOR.fields
        if not field.has_presence or proto.HasField(field.name)
    }
    found = {name: value for name, value in facts.items() if value not in ("", [], {})}
    return {**found.pop("peer", {}), **found}


def _plain(value: Any) -> Any:
    """A field's value as JSON knows it."""
    from google.protobuf.message import Message

    if isinstance(value, Message):
        return _facts(value)
    if isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "items"):
        return {str(key): _plain(entry) for key, entry in value.items()}
    return [_plain(entry) for entry in value]


def _lines(name: str, value: Any) -> list[str]:
    """A fact as text: lists and tables on lines of their own, below its name."""
    if isinstance(value, dict):
        return [f"{name}:", *(f"  {line}" for key in sorted(value) for line in _lines(key, value[key]))]
    if isinstance(value, list) and value and isinstance(value[0], dict):
        described = (", ".join(f"{key} {_shown(entry[key])}" for key in entry) for entry in value)
        return [f"{name}:", *(f"  {line}" for line in described)]
    return [f"{name}: {_shown(value)}"]


def _curve_lines(curve: Mapping[str, Any]) -> list[str]:
    """A cost curve as text: the length of a pass by its positions, and what else counts."""
    points = ", ".join(f"{n}: {us / 1e3:.1f}" for n, us in zip(curve["positions"], curve["pass_us"], strict=True))
    ridge = f"{curve['ridge']} positions" if curve.get("ridge") else "none that was measured"
    sequence_ms, context_ms = curve.get("sequence_ns", 0) / 1e6, curve.get("context_ns", 0) / 1e6
    more = f"a further sequence adds {sequence_ms:.3f} ms, a thousand tokens of context {context_ms:.3f} ms"
    return [f"cost_curve: ms of a pass by positions: {points}", f"  ridge: {ridge}; {more}"]


def _draw(path: Path, host: str, curve: Mapping[str, Any] | None) -> None:
    if not curve:
        raise ConfigurationError(f"--plot {path}: what answers at {host} has measured no cost curve; ask a verifier")
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigurationError(f"--plot {path} needs matplotlib; install it with: pip install matplotlib") from error
    axes = (figure := Figure(figsize=(7, 4.5), layout="constrained")).subplots()
    axes.plot(curve["positions"], [us / 1e3 for us in curve["pass_us"]], marker="o", markersize=3)
    if ridge := curve.get("ridge"):
        axes.axvline(ridge, color="grey", linewidth=0.8)
        axes.annotate(f" ridge {ridge}", (ridge, 0), color="grey")
    axes.set(xscale="log", xlabel="positions in a pass", ylabel="length of the pass, ms", ylim=(0, None))
    axes.set_title(f"Cost curve of {host}")
    figure.savefig(path, dpi=150)


def _shown(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)
