"""Log lines as JSON: one object on each line, with the ids of its task and its trace, and its correlation id.

The runtime sets `current_task` while it works for one task, so lines that a handler logs have the id, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

from errands import tracing
from errands.clock import to_iso
from errands.model.base import encode

#: The id of the task that this code works for.
current_task: ContextVar[str] = ContextVar("errands_task", default="")


def _current_trace() -> str:
    ids = tracing.current_ids()
    return ids[0] if ids is not None else ""


#: Fields that a line has if they are known: from `extra=` of the call, or else from these functions.
_KNOWN: dict[str, Callable[[], str]] = {"task": current_task.get, "trace": _current_trace, "correlation": str}
#: Loggers whose handlers are set; "" is the root. uvicorn gives its own handlers to two.
_LOGGERS = ("", "errands", "uvicorn", "uvicorn.access")


class JsonLine(logging.Formatter):
    """Formats a record as `{"time": …, "level": …, "logger": …, "message": …}` with the `_KNOWN` fields."""

    def format(self, record: logging.LogRecord) -> str:
        # As other formatters set it: filters and handlers may read it.
        record.message = record.getMessage()
        line = {
            "time": to_iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.message,
        }
        for field, read in _KNOWN.items():
            if value := getattr(record, field, None) or read():
                line[field] = str(value)
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        try:
            return encode(line).decode()
        except UnicodeEncodeError:  # lone surrogates
            return encode({name: text.encode("utf-8", "replace").decode() for name, text in line.items()}).decode()


def write_json_lines() -> None:
    """Write everything that is logged as JSON: with the handlers that exist, or else with a new one for stderr."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.StreamHandler())
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(JsonLine())
