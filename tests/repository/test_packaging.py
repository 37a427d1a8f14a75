"""What is installed where, and what each role can do without."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, packages_distributions, version
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
# What a client may import of what is installed from elsewhere.
CLIENT_MODULES = {"grpc", "google", "typing_extensions"}
# grpcio imports these by itself where they are installed.
GRPC_EXTRAS = ["grpc_health", "grpc_reflection", "grpc_status", "grpc_tools"]


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def canonical(name: str) -> str:
    """A package's name as registries compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def named_packages() -> set[str]:
    """Every package that pyproject.toml names, in whatever role."""
    content = project()
    groups = [content["project"]["dependencies"], content["dependency-groups"]["dev"]]
    groups += content["project"]["optional-dependencies"].values()
    return {canonical(re.split(r"[\[><=]", requirement)[0]) for group in groups for requirement in group}


def run_without(modules: list[str], program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where importing any of `modules` fails as if it were not installed."""
    block = f"import sys\nfor name in {modules!r}: sys.modules[name] = None\n"
    return subprocess.run(
        [sys.executable, "-c", block + program], cwd=ROOT, capture_output=True, text=True, check=False
    )


def test_the_version_is_the_projects() -> None:
    """What is installed calls itself by the version of pyproject.toml."""
    assert version("pilotfish") == project()["project"]["version"]


def test_every_dependency_gives_its_reason() -> None:
    """Every dependency in pyproject.toml has a reason beside it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    silent = [
        line for line in text.splitlines() if re.match(r'\s+"[a-z0-9-]+(\[.*\])?[><=]', line) and "# " not in line
    ]
    assert silent == []


def test_what_is_installed_is_pinned() -> None:
    """constraints.txt pins every package that pyproject.toml names."""
    pins = {
        canonical(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
        if "==" in line
    }
    named = named_packages()
    assert named - pins - {"pilotfish"} == set()


def test_what_is_imported_is_named() -> None:
    """Every package that the code imports is named in pyproject.toml, and not only brought by another one."""
    named = named_packages()
    ours = {"pilotfish", "drafter", "verifier", "coordinator", "benchmarks", "tests"}
    distributions = packages_distributions()
    missing = set()
    for folder in (*sorted(ours), "proto", "helm"):
        for path in (ROOT / folder).rglob("*.py"):
            for module in imported(path) - ours - sys.stdlib_module_names:
                if not {canonical(name) for name in distributions.get(module, [module])} & named:
                    missing.add(f"{path.relative_to(ROOT)}: {module}")
    assert missing == set()


def imported(path: Path) -> set[str]:
    """The top-level names of what a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_a_client_needs_grpc_and_protobuf_only() -> None:
    """Importing the client brings in no package but grpcio, protobuf and what they need themselves."""
    program = (
        "import sys, sysconfig\n"
        "from pathlib import Path\n"
        "import pilotfish; pilotfish.Client, pilotfish.AsyncClient\n"
        "site = Path(sysconfig.get_paths()['purelib'])\n"
        "for name, module in list(sys.modules.items()):\n"
        "    file = getattr(module, '__file__', None)\n"
        "    if file and site in Path(file).parents: print(name.partition('.')[0])\n"
    )
    done = run_without(GRPC_EXTRAS, program)
    assert done.returncode == 0, done.stderr
    found = {name for name in done.stdout.split() if not name.startswith(("_", "sitecustomize"))}
    assert found - CLIENT_MODULES == set()


@pytest.mark.parametrize(
    "module", ["coordinator.__main__", "drafter.__main__", "pilotfish.cli.application", "pilotfish.models"]
)
def test_no_torch_is_needed_by(module: str) -> None:
    """A coordinator, an n-gram drafter and the command line start where torch is not installed."""
    done = run_without(["torch"], f"import {module}")
    assert done.returncode == 0, done.stderr


def test_speculators_are_found_by_name() -> None:
    """The speculators ngram and model are registered, and can be loaded."""
    found = {entry.name: entry for entry in entry_points(group="pilotfish.speculators")}
    assert {"ngram", "model"} <= set(found)
    for entry in found.values():
        assert isinstance(entry.load(), type)
