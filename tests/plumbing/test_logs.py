"""Lines of the log: for people and for machines."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from pilotfish.logs import JsonFormatter, TextFormatter, about
from pilotfish.messages import TraceContext

TRACE = TraceContext("00-" + "ab" * 16 + "-" + "cd" * 8 + "-01")


def record(
    message: str, *values: object, extra: dict[str, Any] | None = None, error: bool = False
) -> logging.LogRecord:
    logger = logging.getLogger("coordinator.record")
    exc_info = sys.exc_info() if error else None
    return logger.makeRecord(logger.name, logging.WARNING, __file__, 1, message, values, exc_info, extra=extra)


def test_a_json_line_names_what_it_is_about() -> None:
    """Request, session and trace are keys of their own, absent where there is none; one line whatever the text has."""
    extra = about(request="ef" * 16, session=b"\x01" * 16, trace=TRACE, more={"tokens": 7, "nothing": None})
    line = JsonFormatter().format(record("two\nlines of %s", "γ", extra=extra))
    assert "\n" not in line
    content = json.loads(line)
    assert content.pop("time").endswith("+00:00")
    assert content == {
        "level": "warning",
        "logger": "coordinator.record",
        "message": "two\nlines of γ",
        "request_id": "ef" * 16,
        "session": "01" * 16,
        "trace_id": "ab" * 16,
        "tokens": 7,
    }


def test_a_json_line_has_the_exception() -> None:
    """The traceback is a field, so that the line stays one."""
    try:
        raise ValueError("broken")
    except ValueError:
        line = JsonFormatter().format(record("it failed", error=True))
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: broken")


def test_a_line_for_people_has_the_fields_behind_it() -> None:
    """What a line is about stands in brackets; without any there are none."""
    formatter = TextFormatter()
    extra = about(trace="ab" * 16)
    assert formatter.format(record("it ended", extra=extra)).endswith(f": it ended [trace_id={'ab' * 16}]")
    assert formatter.format(record("it ended")).endswith(": it ended")
