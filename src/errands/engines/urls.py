"""Storage URLs: which engine each one names, and its options. The one place that knows all engines."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from errands.engines.base import DURABLE_RETENTION, Engine, Retention
from errands.engines.connection import without_password
from errands.engines.memory import DEFAULT_RETENTION, MemoryEngine
from errands.engines.sqlite import SQLiteEngine
from errands.errors import ConfigurationError

_KNOWN = "'memory', 'sqlite:///path/to/tasks.db', 'postgresql://user@host/database' or 'redis://host:6379/0'"


def engine_from_url(url: str, retention: Retention | None = None) -> Engine:
    """Return the engine that a URL names. What `retention` leaves out is as the engine has it by default.

    Raises `ConfigurationError` for an unknown URL or option: none is ever ignored.
    """
    scheme = url.partition(":")[0].partition("+")[0].lower()
    build = _ENGINES.get(scheme)
    if build is None:
        raise ConfigurationError(f"unknown storage {without_password(url)!r}; use one of {_KNOWN}")
    try:
        fragment = urlsplit(url).fragment
    except ValueError:
        raise ConfigurationError(
            f"storage {without_password(url)!r} is not a valid URL; possible are {_KNOWN}"
        ) from None
    if fragment or url.endswith("#"):
        raise ConfigurationError(f"storage {without_password(url)!r}: a # is written as %23, in a password, too")
    if retention is not None:
        # Infinity keeps what None would leave to the default.
        given = {name: value for name, value in msgspec.structs.asdict(retention).items() if value is not None}
        defaults = DEFAULT_RETENTION if scheme == "memory" else DURABLE_RETENTION
        retention = msgspec.structs.replace(defaults, **given)
    return build(url, retention)


def _memory(url: str, retention: Retention | None) -> Engine:
    if url.lower() not in ("memory", "memory:", "memory://"):
        raise ConfigurationError(f"storage {without_password(url)!r}: memory takes no address and no options")
    return MemoryEngine(retention=retention)


def _sqlite(url: str, retention: Retention | None) -> Engine:
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or not path.startswith("/") or len(path) < 2:
        raise ConfigurationError(
            f"storage {without_password(url)!r} needs three slashes before a path: sqlite:///tasks.db is relative, "
            "sqlite:////var/lib/tasks.db absolute"
        )
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    shown = url.partition("?")[0]
    synchronous = options.pop("synchronous", "NORMAL").upper()
    if synchronous not in ("NORMAL", "FULL"):
        raise ConfigurationError(f"storage {shown!r}: synchronous is NORMAL or FULL, not {synchronous}")
    if options:
        raise ConfigurationError(f"storage {shown!r}: unknown option {', '.join(options)}; possible is synchronous")
    return SQLiteEngine(path[1:], retention=retention, synchronous="FULL" if synchronous == "FULL" else "NORMAL")


def _postgres(url: str, retention: Retention | None) -> Engine:
    try:
        from errands.engines.postgres import PostgresEngine  # noqa: PLC0415 - asyncpg is an extra
    except ImportError as error:
        raise ConfigurationError(f"PostgreSQL needs an extra ({error}): pip install 'errands[postgres]'") from None
    if "://" not in url:
        raise ConfigurationError(
            f"storage {without_password(url)!r}: write postgresql://user:password@host:port/database, with two slashes"
        )
    return PostgresEngine(url, retention=retention)


def _redis(url: str, retention: Retention | None) -> Engine:
    try:
        from errands.engines.redis import RedisEngine  # noqa: PLC0415 - redis is an extra
    except ImportError as error:
        raise ConfigurationError(f"Redis needs an extra ({error}): pip install 'errands[redis]'") from None
    return RedisEngine(url, retention=retention)


_ENGINES: dict[str, Callable[[str, Retention | None], Engine]] = {
    "memory": _memory,
    "sqlite": _sqlite,
    "postgresql": _postgres,
    "postgres": _postgres,
    "redis": _redis,
    "rediss": _redis,
}
