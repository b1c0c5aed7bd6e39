"""Connections to the server: its address, what its errors mean, what it must be like, and calls of its scripts."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec
from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from errands.clock import Clock
from errands.engines.connection import StoreClock, StoreProbe, without_password
from errands.engines.redis.schema import PROGRAM, SCHEMA, Keys, Request, pack, request
from errands.errors import ConfigurationError, StorageError

logger = logging.getLogger(__name__)

DEFAULT_PREFIX = "errands"

_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_TLS_OPTIONS = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = ("prefix", *_TLS_OPTIONS)

#: The first release that has all that is used here.
OLDEST = (6, 2)
MAX_CONNECTIONS = 32
#: Seconds between two tries to reach a server that is away.
RETRY_AFTER = 0.05

#: What happened and what to do, to be read after the server's name, by words of an error's text or of the names of its
#: classes: the error of a script has its code in the middle of the text. The first that fits counts.
_EXPLANATIONS = {
    "AuthenticationError": (
        "refused the user or the password. Put the right ones into the URL: redis://user:password@host:6379"
    ),
    "NoPermissionError|NOPERM": (
        "does not allow this user a command that is needed. Give it the rights that docs/redis.md lists"
    ),
    "BusyLoadingError": "is still reading its data from the disk. Wait until it has started",
    "ReadOnlyError|READONLY": (
        "is a read-only replica. Put the address of the primary into the URL, or one that follows it"
    ),
    "OutOfMemoryError|OOM": (
        "is out of memory and takes no writes; nothing was changed. Raise its maxmemory, or keep less: see "
        "keep_ended_for and keep_events"
    ),
    "MovedError": "is a node of a cluster that does not agree on who holds these keys. Look at CLUSTER INFO",
    "ClusterDownError": "is part of a cluster that is down. Look at CLUSTER INFO",
    "TimeoutError": "did not answer in time. Check its load and the network",
    "ConnectionError|OSError": (
        "cannot be reached. Check that it runs, its address, its certificate if it has one, and the network"
    ),
    "MISCONF": "cannot write to its disk and takes no writes; nothing was changed. Look into its log, free some space",
    "NOREPLICAS": "has too few replicas to take writes (min-replicas-to-write); nothing was changed. Start one",
    "DB index is out of range": "has no database of this number. Name another one at the end of the URL",
    "NOAUTH": "wants a user and a password. Put them into the URL: redis://user:password@host:6379",
}

#: Errors that may be over in a moment, so that the same is tried again. None of them says whether a write was done.
_PASSING = (
    redis_errors.ConnectionError,
    redis_errors.TimeoutError,
    redis_errors.ClusterDownError,
    redis_errors.TryAgainError,
    OSError,
)


def explain(error: Exception, server: str) -> StorageError:
    """Return the `StorageError` for what went wrong with the server of this name."""
    if isinstance(error, StorageError):
        return error
    words = " ".join([*(kind.__name__ for kind in type(error).__mro__), str(error)])
    fitting = (text for pattern, text in _EXPLANATIONS.items() if re.search(rf"\b({pattern})\b", words))
    explanation = next(fitting, "refused an operation")
    failure = StorageError(f"Redis at {server} {explanation} ({type(error).__name__}: {error})")
    failure.__cause__ = error
    return failure


def is_passing(error: Exception) -> bool:
    """Return whether the same may succeed in a moment."""
    return isinstance(error, _PASSING) and not isinstance(error, redis_errors.AuthenticationError)


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where the store is."""

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = None
    tls: bool = False
    #: Files: the authorities that are trusted, and the certificate of this process, with its key.
    ssl_ca_certs: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    prefix: str = DEFAULT_PREFIX

    @property
    def server(self) -> str:
        """The server's name for messages, without the password."""
        return f"{self.host}:{self.port}/{self.db}"

    @classmethod
    def from_url(cls, url: str) -> RedisOptions:
        """Read a storage URL. Raises `ConfigurationError` for what is not understood: nothing is ever ignored."""
        parts = urlsplit(url)
        shown = without_password(url.partition("?")[0])
        try:
            port, db = parts.port or cls().port, int(parts.path.strip("/") or 0)
        except ValueError:
            raise ConfigurationError(
                f"storage {shown!r}: write redis://user:password@host:port/0, the last being a database's number"
            ) from None
        given = dict(parse_qsl(parts.query, keep_blank_values=True))
        if unknown := sorted(set(given) - set(_OPTIONS)):
            raise ConfigurationError(
                f"storage {shown!r}: unknown option {', '.join(unknown)}; possible are {', '.join(_OPTIONS)}"
            )
        prefix = given.pop("prefix", DEFAULT_PREFIX)
        if not _PREFIX.fullmatch(prefix):
            raise ConfigurationError(
                f"storage {shown!r}: a prefix has 1 to 64 letters, digits or any of _ . : -, not {prefix!r}"
            )
        tls = parts.scheme.lower().partition("+")[0] == "rediss"
        if given and not tls:
            raise ConfigurationError(f"storage {shown!r}: {', '.join(given)} goes with TLS: write rediss://")
        return cls(
            host=parts.hostname or "localhost",
            port=port,
            db=db,
            username=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            tls=tls,
            prefix=prefix,
            **given,
        )


class RedisServer:
    """Connections to the server. One that breaks is replaced by the next call that needs one."""

    def __init__(self, options: RedisOptions, keys: Keys, *, timeout: float, patience: float) -> None:
        self._options = options
        self._keys = keys
        #: The server's name for messages.
        self.name = options.server
        self._timeout = timeout
        self._patience = patience
        #: Since when the server has not answered, if it does not.
        self._away_since: float | None = None
        self._home = self._address = options.host, options.port
        self._sha = ""
        self._calls: set[asyncio.Future[Any]] = set()
        self.client = self._connect()
        #: Raises `StorageError` when the server does not answer right now, or can no longer be used.
        self.check = StoreProbe(f"Redis at {self.name}", self._check, self._try_to_write)

    def _connect(self) -> Redis:
        options: dict[str, Any] = {
            "host": self._address[0],
            "port": self._address[1],
            "db": self._options.db,
            "username": self._options.username,
            "password": self._options.password,
            "socket_timeout": self._timeout,
            "socket_connect_timeout": self._timeout,
            "protocol": 2,
            # Retries are decided here: not everything may be done twice.
            "retry": Retry(NoBackoff(), 0),
        }
        if self._options.tls:
            options |= {name: getattr(self._options, name) for name in _TLS_OPTIONS}
            options["connection_class"] = SSLConnection
        return Redis.from_pool(
            BlockingConnectionPool(max_connections=MAX_CONNECTIONS, timeout=self._timeout, **options)
        )

    async def close(self) -> None:
        await self._finish_calls()
        # The second call of a check that is under way would connect a closed client again.
        await self.check.stop()
        await self._finish_calls()
        with suppress(redis_errors.RedisError, OSError):
            await self.client.aclose()

    async def _finish_calls(self) -> None:
        while self._calls:
            await asyncio.wait(self._calls)

    # Calls

    async def call(self, requests: Sequence[bytes], *, answer: str = "", number: int | None = None) -> list[Any]:
        """Run packed requests in one script and return their answers, an exception for one that failed alone.

        `number` makes it a batch that is done only once. Raises the client library's errors.
        """
        key = answer or self._keys("schema")
        arguments: list[str | bytes] = [self._keys.base, "" if number is None else str(number), *requests]
        while True:
            try:
                answers: list[Any] = await self.client.evalsha(self._sha, 1, key, *arguments)
                return answers
            except redis_errors.NoScriptError:
                # A server that was restarted has lost the script.
                self._sha = await self.client.script_load(PROGRAM)
            except redis_errors.ResponseError as error:
                if not await self._follows(error):
                    raise

    async def ask(self, name: str, **arguments: object) -> Any:
        """Return the answer to one request that reads, or may be done twice. Raises `StorageError`."""
        (answer,) = await self.ask_all([request(name, **arguments)])
        return answer

    async def ask_all(self, requests: Sequence[Request]) -> list[Any]:
        packed = [pack(each) for each in requests]
        answers: list[Any] = await self.guard(lambda: self.call(packed))
        for answer in answers:
            if isinstance(answer, Exception):
                raise explain(answer, self.name)
        return answers

    async def do(self, command: str, *arguments: Any, patience: float | None = None, **options: Any) -> Any:
        """Run a command of the client library that reads, or may be done twice. Raises `StorageError`."""
        return await self.guard(lambda: getattr(self.client, command)(*arguments, **options), patience)

    async def guard(self, call: Callable[[], Awaitable[Any]], patience: float | None = None) -> Any:
        """Do what may be done twice, again when the connection was broken. Raises `StorageError`.

        It runs in a task of its own: a caller that is canceled returns at once, and the client library, which can
        swallow a cancellation on Python 3.11 (`asyncio.wait_for`), never sees one.
        """

        async def persist() -> Any:
            while True:
                try:
                    answer = await call()
                except (redis_errors.RedisError, OSError) as error:
                    if not await self.may_try_again(error, patience):
                        raise explain(error, self.name) from error
                else:
                    self.was_reached()
                    return answer

        task = asyncio.ensure_future(persist())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    # Trouble

    def was_reached(self) -> None:
        self._away_since = None

    async def may_try_again(self, error: Exception, patience: float | None = None) -> bool:
        """Return, after a failure and a pause, whether the same may be tried again on another connection.

        Patience counts once for the whole absence of a server, not for each call: later calls fail at once.
        """
        if await self._follows(error):
            return True
        if not is_passing(error):
            self.was_reached()
            if "READONLY" in str(error) or isinstance(error, redis_errors.ReadOnlyError):
                await self._recover()  # the name may lead to another server by now
            return False
        now = asyncio.get_running_loop().time()
        first = self._away_since is None
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        await self._recover()
        is_back = self._away_since is None  # another call has reached it
        if not first and not is_back and away >= (self._patience if patience is None else patience):
            return False
        await asyncio.sleep(RETRY_AFTER)
        return True

    async def _follows(self, error: Exception) -> bool:
        """Follow a redirect: all keys are in one slot, so a cluster is one server with a changing address."""
        # Older releases of the client library have no exception for it outside of their own cluster client.
        if not isinstance(error, redis_errors.MovedError) and not str(error).startswith("MOVED "):
            return False
        host, _, port = str(error).rpartition(" ")[2].rpartition(":")
        # A node may leave out the host.
        address = host or self._options.host, int(port)
        if self._address == address:
            return False
        logger.info("the keys of %s are at %s:%d", self._keys.base, *address)
        await self._turn_to(address)
        return True

    async def _turn_to(self, address: tuple[str, int]) -> None:
        former, self._address = self.client, address
        self.client = self._connect()
        await former.aclose()

    async def _recover(self) -> None:
        """Close connections that may be as broken as the last one."""
        with suppress(redis_errors.RedisError, OSError):
            if self._address == self._home:
                await self.client.connection_pool.disconnect(inuse_connections=False)
            else:
                # The node of a cluster that held the keys may be gone; the configured address knows which one does now.
                await self._turn_to(self._home)

    # What the server must be like

    async def examine(self) -> None:
        """Raises `StorageError` with what to do when the server cannot be used, and warns of what is risky."""
        try:
            await self.client.ping()
            try:
                info = await self.client.info("everything")
            except redis_errors.ResponseError as error:
                logger.warning(
                    "Redis at %s does not let this user see its setup (%s): make sure that maxmemory-policy is "
                    "noeviction and appendonly is yes, or tasks may be lost",
                    self.name,
                    error,
                )
            else:
                version = str(info.get("redis_version", ""))
                numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
                if numbers and numbers < OLDEST:
                    raise StorageError(
                        f"Redis at {self.name} is release {version}, and errands needs 6.2 or newer (or Valkey). "
                        "Upgrade it"
                    )
                self._examine_use(info)
                if not info.get("aof_enabled"):
                    logger.warning(
                        "Redis at %s writes no append-only file: what was accepted since its last snapshot is lost "
                        "when it stops. Set appendonly yes (CONFIG SET appendonly yes)",
                        self.name,
                    )
            await self.call([])  # loads the script and finds the node of a cluster
            await self.client.set(self._keys("schema"), SCHEMA, nx=True)
            found: Any = await self.client.get(self._keys("schema"))
        except (redis_errors.RedisError, OSError) as error:
            raise explain(error, self.name) from error
        if found.decode() != SCHEMA:
            raise StorageError(
                f"Redis at {self.name} holds tasks of schema {found.decode()!r} under {self._keys.base!r}, and this "
                f"release reads schema {SCHEMA}. Use the release that wrote them, or another prefix"
            )

    def _examine_use(self, info: dict[str, Any]) -> None:
        """Check what may change while the server runs."""
        if info.get("role") == "slave":
            raise StorageError(
                f"Redis at {self.name} is a read-only replica of {info.get('master_host')}:"
                f"{info.get('master_port')}. Put the address of the primary into the URL"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory") and policy != "noeviction":
            raise StorageError(
                f"Redis at {self.name} may evict tasks when its memory is full: maxmemory-policy is {policy}. "
                "Set it to noeviction (CONFIG SET maxmemory-policy noeviction), or use a server of its own for tasks"
            )

    async def _check(self) -> None:
        try:
            info = await self.do("info", patience=0)
        except StorageError as error:
            if not isinstance(error.__cause__, redis_errors.ResponseError):
                raise
            # It does not show its setup, but it may answer.
            await self.do("ping", patience=0)
            return
        if info.get("role") == "slave":
            await self._recover()  # the name may lead to another server by now
        self._examine_use(info)

    async def _try_to_write(self) -> None:
        """A server that is full, or cannot write to its disk, refuses this as it refuses a message."""
        await self.do("set", self._keys("probe"), "", px=1000, patience=0)

    async def compare_clock(self, clock: Clock) -> None:
        """Correct a `StoreClock` by the server's time, if it is available."""
        if isinstance(clock, StoreClock):
            asked = clock.own()
            with suppress(StorageError):
                theirs = (await self.do("info", "server")).get("server_time_usec")
                if theirs is not None:
                    clock.compare(asked, theirs // 1000, clock.own(), f"Redis at {self.name}")
