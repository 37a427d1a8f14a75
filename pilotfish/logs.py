"""The log of a service: lines for people, or JSON for machines, with what they are about as fields of their own."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pilotfish.messages import TraceContext
from pilotfish.settings import LogFormat
from pilotfish.tracing import trace_id_of

_FIELDS: Final = "pilotfish_fields"  # the record's attribute that holds them


def about(
    *,
    request: str | None = None,
    session: bytes | None = None,
    trace: TraceContext | str | None = None,
    more: Mapping[str, str | float | None] | None = None,
) -> dict[str, Any]:
    """What a line is about: `logger.info("…", extra=about(session=session))`. What is None is left out.

    Args:
        request: its name, 32 hex digits.
        session: its id.
        trace: the id of the request's trace, or a context of it.
        more: fields of this line alone.
    """
    trace_id = trace_id_of(trace) if isinstance(trace, TraceContext) else trace
    fields = {"request_id": request, "session": session and session.hex(), "trace_id": trace_id, **(more or {})}
    return {_FIELDS: {name: value for name, value in fields.items() if value is not None}}


class TextFormatter(logging.Formatter):
    """One line for people; the fields behind it in brackets."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        fields = getattr(record, _FIELDS, None)
        line = super().formatMessage(record)
        return f"{line} [{' '.join(f'{name}={value}' for name, value in fields.items())}]" if fields else line


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (RFC 3339, UTC), level, logger, message, the fields, exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def start(log_format: LogFormat) -> None:
    """Write the log of this process to stderr, from INFO on."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
