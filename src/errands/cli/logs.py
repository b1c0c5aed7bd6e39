"""What a served agent logs, and where: to stderr, from one level on."""

from __future__ import annotations

import enum
import logging

_FORMAT = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"


class LogLevel(enum.StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


def configure_logging(level: LogLevel | None) -> None:
    logging.basicConfig(format=_FORMAT, level=(level or LogLevel.info).upper(), force=True)
    # What uvicorn says at the start and the end is said by `errands serve` already.
    logging.getLogger("uvicorn.error").setLevel(logging.DEBUG if level is LogLevel.debug else logging.WARNING)
    # They log the address of every request, and there may be a secret in one.
    for name in ("httpx", "httpx2", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
