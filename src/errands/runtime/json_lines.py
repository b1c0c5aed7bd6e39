"""Log lines as JSON: one object on each line, with the task, the trace and the reference that it is about.

The context variable is set where the runtime works for one task, so lines that a handler logs have the task, too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextvars import ContextVar

from errands.clock import to_iso
from errands.model.base import encode

#: The id of the task that is worked on.
current_task: ContextVar[str] = ContextVar("errands_task", default="")

#: Fields that a line has if they are known: from `extra=` of the call, or else from these functions.
_known: dict[str, Callable[[], str]] = {"task": current_task.get, "trace": str, "correlation": str}
#: Loggers whose handlers are set; "" is the root. uvicorn gives its own handlers to two.
_LOGGERS = ("", "errands", "uvicorn", "uvicorn.access")


def know(field: str, read: Callable[[], str]) -> None:
    """Have `read` called for a field of each line; an empty text leaves it out."""
    _known[field] = read


class JsonLine(logging.Formatter):
    """Formats a record as `{"time": …, "level": …, "logger": …, "message": …}` and what is known beside it."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": to_iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for field, read in _known.items():
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
    """Have everything that is logged written as JSON: by the handlers that exist, or else by a new one to stderr."""
    if not logging.getLogger().handlers:
        logging.getLogger().addHandler(logging.StreamHandler())
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(JsonLine())
