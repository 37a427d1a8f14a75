from __future__ import annotations

import pickle
import re

import grpc
import pytest

from pilotfish import errors
from pilotfish.errors import PilotfishError, restore, tree

OURS = [error for error in tree() if error.__module__ == "pilotfish.errors"]


def test_the_tree_in_the_docstring_is_the_tree() -> None:
    """Every class stands in the docstring, below its base, with the statuses that it has."""
    drawn = re.findall(r"^    ([│├└─ ]*)(\w+) +([A-Z_]+) +(\d+)$", errors.__doc__ or "", re.MULTILINE)
    expected = []
    for error in OURS:
        depth = len(error.__mro__) - len(PilotfishError.__mro__)
        expected.append((depth, error.__name__, error.code, str(error.http_status)))
    found = [(len(lines) // 4, name, code, status) for lines, name, code, status in drawn]
    assert sorted(found) == sorted(expected)
    for index, (depth, name, _, _) in enumerate(found[1:], 1):
        parent = next(other for other_depth, other, _, _ in reversed(found[:index]) if other_depth == depth - 1)
        assert getattr(errors, name).__base__ is getattr(errors, parent)


@pytest.mark.parametrize("error", OURS, ids=lambda error: error.__name__)
def test_an_error_is_restored_from_what_travels(error: type[PilotfishError]) -> None:
    """Code and reason are enough to find the class again, so reasons are unique within a code."""
    restored = restore(error.code, "text", reason=error.reason, field="top_p", retry_after_s=2.0, position=3)
    assert type(restored) is error
    assert (restored.message, restored.field, restored.retry_after_s, restored.position) == ("text", "top_p", 2.0, 3)
    assert error.code in grpc.StatusCode.__members__


def test_an_unknown_reason_or_code_still_makes_an_error() -> None:
    """A status of a newer version, or of something in between, becomes the nearest class there is."""
    assert type(restore("UNAVAILABLE", "x", reason="new")) is errors.Unavailable
    assert type(restore("RESOURCE_EXHAUSTED", "x")) is errors.Overloaded
    assert type(restore("ABORTED", "x")) is PilotfishError


def test_a_message_names_field_value_and_remedy_and_no_more_of_a_long_value() -> None:
    """An error of a field shows the value, cut where it is long."""
    error = errors.InvalidArgument.of("top_p", 1.5, "must be in (0, 1]")
    assert (str(error), error.field) == ("top_p is 1.5: must be in (0, 1]", "top_p")
    assert len(str(errors.InvalidArgument.of("text", "x" * 10_000, "too long"))) < 120


def test_errors_can_cross_a_process() -> None:
    """An error keeps its message and details when it is pickled."""
    error = errors.PoolFull("no pages", retry_after_s=1.5)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.PoolFull
    assert (str(copy), copy.retry_after_s) == ("no pages", 1.5)
