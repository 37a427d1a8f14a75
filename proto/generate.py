"""Make the stubs in pilotfish/v1 from proto/, or with --check only say whether they are fresh.

One version of grpcio-tools makes them, so that a stub changes only when its proto does.
"""

from __future__ import annotations

import argparse
import filecmp
import importlib.metadata
import shutil
import sys
import tempfile
from pathlib import Path

TOOLS_VERSION = "1.85.1"
ROOT = Path(__file__).resolve().parent.parent
PROTO = ROOT / "proto"
STUBS = ROOT / "pilotfish" / "v1"


def generate(destination: Path) -> list[Path]:
    """Write the stubs of every proto of ours below `destination`; return them, relative to it."""
    from grpc_tools import protoc

    included = Path(protoc.__file__).parent / "_proto"
    sources = sorted((PROTO / "pilotfish" / "v1").glob("*.proto"))
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{PROTO / 'third_party'}",
        f"-I{included}",
        f"--python_out={destination}",
        f"--pyi_out={destination}",
        f"--grpc_python_out={destination}",
        *map(str, sources),
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its message stands above")
    for stub in destination.rglob("*_pb2_grpc.py"):
        if "add_" not in stub.read_text():  # a proto without a service
            stub.unlink()
    return sorted(path.relative_to(destination) for path in destination.rglob("*_pb2*"))


def check_tools() -> None:
    """Refuse another version of grpcio-tools than the one the stubs are made with."""
    found = importlib.metadata.version("grpcio-tools")
    if found != TOOLS_VERSION:
        raise SystemExit(
            f"grpcio-tools {found} is installed, the stubs are made with {TOOLS_VERSION}: "
            f"pip install grpcio-tools=={TOOLS_VERSION}, or raise TOOLS_VERSION in {Path(__file__).name} and regenerate"
        )


def main() -> int:
    """Run the script; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a stub is stale")
    arguments = parser.parse_args()
    check_tools()
    with tempfile.TemporaryDirectory() as folder:
        fresh = Path(folder)
        names = generate(fresh)
        present = sorted(path.relative_to(ROOT) for path in STUBS.glob("*_pb2*"))
        stale = [
            name
            for name in names
            if not (ROOT / name).exists() or not filecmp.cmp(fresh / name, ROOT / name, shallow=False)
        ]
        orphans = [name for name in present if name not in names]
        if arguments.check:
            for name in stale + orphans:
                print(f"stale: {name} (run `make proto`)")
            return 1 if stale or orphans else 0
        for name in orphans:
            (ROOT / name).unlink()
        for name in names:
            shutil.copyfile(fresh / name, ROOT / name)
        print(f"{len(names)} stubs in {STUBS.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
