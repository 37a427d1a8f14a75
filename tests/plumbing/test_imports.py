from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r} or any(name == n or name.startswith(n + ".") for n in {blocked!r}):
            raise ModuleNotFoundError("blocked: " + name, name=name)

sys.meta_path.insert(0, Blocked())
"""
SERVICES_ONLY = {
    "torch", "transformers", "tokenizers", "numpy", "opentelemetry", "prometheus_client", "pydantic",
    "pydantic_settings", "rich", "typer", "grpc_health", "grpc_reflection", "grpc_status", "google.rpc", "jinja2",
}  # fmt: skip


def run(code: str, blocked: set[str]) -> None:
    """Run code in a new process that cannot import what is blocked."""
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED.format(blocked=blocked) + code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_block_blocks() -> None:
    """The test's own tool works: a blocked import fails."""
    run(
        "try:\n    import google.rpc.status_pb2\nexcept ModuleNotFoundError: pass\nelse: raise SystemExit(1)",
        SERVICES_ONLY,
    )
    run("try:\n    import torch\nexcept ModuleNotFoundError: pass\nelse: raise SystemExit(1)", SERVICES_ONLY)


def test_the_client_needs_grpcio_and_protobuf_only() -> None:
    """Client, AsyncClient, the errors and the messages are there without anything that services install."""
    run(
        "from pilotfish import Client, AsyncClient, PilotfishError\n"
        "from pilotfish.client import Completion, Speculation\n"
        "from pilotfish.errors import Unavailable\n"
        "with Client('localhost:1', attempts=1) as client:\n"
        "    try:\n"
        "        client.complete('Hi')\n"
        "    except Unavailable:\n"
        "        pass\n"
        "    else:\n"
        "        raise SystemExit('no error')\n",
        SERVICES_ONLY,
    )


def test_the_package_alone_needs_nothing() -> None:
    """`import pilotfish` loads neither gRPC nor protobuf until a client is named."""
    run("import pilotfish, pilotfish.errors, pilotfish.messages", SERVICES_ONLY | {"grpc", "google.protobuf"})


@pytest.mark.parametrize(
    "module", ["wire.verifier", "wire.drafter", "rpc", "server", "peer", "settings", "telemetry", "tracing"]
)
def test_the_plumbing_needs_no_torch(module: str) -> None:
    """What every service shares starts without torch, transformers and numpy."""
    run(f"import pilotfish.{module}", {"torch", "transformers", "tokenizers", "numpy"})


def test_telemetry_can_be_off_without_its_libraries() -> None:
    """Where nothing is traced and no metrics are wanted, neither library has to be there."""
    run(
        "from pilotfish.telemetry import Metric, Telemetry\n"
        "telemetry = Telemetry.off()\n"
        "telemetry.add(Metric.DRAFTS)\n"
        "telemetry.tracer.begin('round').end()\n"
        "telemetry.shutdown()\n",
        {"opentelemetry", "prometheus_client"},
    )


def test_an_unknown_name_of_the_package_is_an_attribute_error() -> None:
    """Lazy loading does not hide a misspelt name."""
    import pilotfish

    with pytest.raises(AttributeError, match="Clinet"):
        _ = pilotfish.Clinet
