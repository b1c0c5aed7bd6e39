"""What the errors of Redis mean to the person who has to do something about them."""

from __future__ import annotations

import re

from redis import exceptions as redis_errors

from errands.errors import StorageError

_AWAY = "cannot be reached. Check that it runs, its address, its certificate if it has one, and the network"
_READ_ONLY = "is a read-only replica. Put the address of the primary into the URL, or one that follows it"
_FORBIDDEN = "does not allow this user a command that is needed. Give it the rights that docs/redis.md lists"
_FULL = (
    "is out of memory and takes no writes; nothing was changed. Raise its maxmemory, or keep less: see "
    "keep_ended_for and keep_events"
)

#: By exception: what happened and what to do, to be read after the server's name. The first that fits counts.
_SENTENCES: list[tuple[type[Exception], str]] = [
    (
        redis_errors.AuthenticationError,
        "refused the user or the password. Put the right ones into the URL: redis://user:password@host:6379",
    ),
    (redis_errors.NoPermissionError, _FORBIDDEN),
    (redis_errors.BusyLoadingError, "is still reading its data from the disk. Wait until it has started"),
    (redis_errors.ReadOnlyError, _READ_ONLY),
    # Valkey says it of a script as a whole, Redis in the middle of the text.
    (redis_errors.OutOfMemoryError, _FULL),
    (
        redis_errors.MovedError,
        "is a node of a cluster that does not agree on who holds these keys. Look at CLUSTER INFO",
    ),
    (redis_errors.ClusterDownError, "is part of a cluster that is down. Look at CLUSTER INFO"),
    (redis_errors.TimeoutError, "did not answer in time. Check its load and the network"),
    (redis_errors.ConnectionError, _AWAY),
    (OSError, _AWAY),
]

#: By the code that Redis begins an error with; in a script it stands in the middle of the text.
_CODES = {
    "OOM": _FULL,
    "READONLY": _READ_ONLY,
    "MISCONF": "cannot write to its disk and takes no writes; nothing was changed. Look into its log, free some space",
    "NOREPLICAS": "has too few replicas to take writes (min-replicas-to-write); nothing was changed. Start one",
    "NOPERM": _FORBIDDEN,
    "DB index is out of range": "has no database of this number. Name another one at the end of the URL",
    "NOAUTH": "wants a user and a password. Put them into the URL: redis://user:password@host:6379",
}
_CODE = re.compile(rf"\b({'|'.join(_CODES)})\b")

#: What may be over in a moment, so that the same is asked again. Nothing of it says whether a write was done.
_PASSING = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
    OSError,
)


def explain(error: Exception, server: str) -> StorageError:
    """The `StorageError` for whatever went wrong with the server of this name."""
    sentence = next((text for kind, text in _SENTENCES if isinstance(error, kind)), None)
    if sentence is None:
        code = _CODE.search(str(error))
        sentence = "refused an operation" if code is None else _CODES[code[1]]
    return StorageError(f"Redis at {server} {sentence} ({type(error).__name__}: {error})")


def is_passing(error: Exception) -> bool:
    return isinstance(error, _PASSING) and not isinstance(error, redis_errors.AuthenticationError)


def is_read_only(error: Exception) -> bool:
    return "READONLY" in str(error) or isinstance(error, redis_errors.ReadOnlyError)


def moved_to(error: Exception) -> tuple[str, int] | None:
    """Where a node of a cluster says that the keys are; the host may be left out."""
    # Older releases of the client library have no exception for it outside of their own cluster client.
    if not isinstance(error, redis_errors.MovedError) and not str(error).startswith("MOVED "):
        return None
    host, _, port = str(error).rpartition(" ")[2].rpartition(":")
    return host, int(port)
