"""What holds for every test of this repository."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions() -> Iterator[tuple[Path, Function]]:
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, Function):
                yield path, node


def every_test() -> Iterator[tuple[Path, Function]]:
    for path, function in functions():
        is_property = any("given" in ast.unparse(decorator) for decorator in function.decorator_list)
        if path.name.startswith("test_") and (function.name.startswith("test_") or is_property):
            yield path, function


def test_every_test_states_its_behaviour() -> None:
    """Every test has a docstring whose first line is a sentence."""
    silent = []
    for path, function in every_test():
        first = (ast.get_docstring(function) or "").partition("\n")[0]
        if not first.endswith((".", ":")) or len(first.split()) < 3:
            silent.append(f"{path.relative_to(TESTS)}:{function.lineno} {function.name}")
    assert silent == []


def test_every_test_is_collected() -> None:
    """Test functions stand only in files that pytest collects, and no two of a class or file share a name."""
    lost = [
        f"{path.name}:{f.lineno}" for path, f in functions() if f.name.startswith("test_") and path.name[:5] != "test_"
    ]
    doubled = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef):
                names = [child.name for child in node.body if isinstance(child, Function)]
                doubled += [f"{path.name}:{name}" for name in sorted(set(names)) if names.count(name) > 1]
    assert (lost, doubled) == ([], [])


def test_no_test_sleeps() -> None:
    """No test waits by the clock: what it waits for is an event."""
    sleepy = [
        f"{path.relative_to(TESTS)}:{node.lineno}"
        for path in sorted(TESTS.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in {"time.sleep", "sleep"}
    ]
    assert sleepy == []
