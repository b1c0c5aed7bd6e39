"""The way to the server: connections, what it must be like, and one call that runs jobs there."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import BlockingConnectionPool, Connection, Redis, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from errands.clock import Clock
from errands.engines.probe import Probe
from errands.engines.redis.failures import explain, is_passing, is_read_only, moved_to
from errands.engines.redis.jobs import PROGRAM, Job, pack
from errands.engines.redis.keys import Keys
from errands.engines.redis.options import Options
from errands.engines.store_clock import StoreClock
from errands.errors import StorageError

logger = logging.getLogger(__name__)

#: The arrangement of keys that this code reads and writes.
SCHEMA = "1"
#: The first release that has all that is used here.
OLDEST = (6, 2)
MAX_CONNECTIONS = 32
#: Seconds between two tries to reach a server that is away.
RETRY_AFTER = 0.05


class Link:
    """Connections to the server. One that breaks is replaced by the next call that needs one."""

    def __init__(self, options: Options, keys: Keys, *, timeout: float, patience: float) -> None:
        self._options = options
        self._keys = keys
        self._timeout = timeout
        self._patience = patience
        #: Since when the server has not answered, if it does not.
        self._away_since: float | None = None
        self._address = options.host, options.port
        self._sha = ""
        self._calls: set[asyncio.Future[Any]] = set()
        self.client = self._connect()
        #: Raises `StorageError` when the server does not answer right now, or can no longer be used.
        self.check = Probe(f"Redis at {options.server}", self._check, self._try_to_write)

    @property
    def server(self) -> str:
        return self._options.server

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
            # Who asks again and when is decided here: not everything may be done twice.
            "retry": Retry(NoBackoff(), 0),
        }
        if self._options.tls:
            options |= {
                "connection_class": SSLConnection,
                "ssl_ca_certs": self._options.ssl_ca_certs,
                "ssl_certfile": self._options.ssl_certfile,
                "ssl_keyfile": self._options.ssl_keyfile,
            }
        pool = BlockingConnectionPool(max_connections=MAX_CONNECTIONS, timeout=self._timeout, **options)
        return Redis.from_pool(pool)

    def own_connection(self) -> Connection:
        """A connection beside the others, for somebody who keeps it. Not yet connected."""
        pool: Any = self.client.connection_pool
        connection: Connection = pool.make_connection()
        return connection

    async def _check(self) -> None:
        try:
            info = await self.guard(lambda: self.client.info(), patience=0)
        except StorageError as error:
            if not isinstance(error.__cause__, redis_errors.ResponseError):
                raise
            # It does not say what it is like, but it may answer.
            await self.guard(lambda: self.client.ping(), patience=0)
            return
        if is_replica(info):
            await self._recover()  # the name may lead to another server by now
        self._examine_use(info)

    async def _try_to_write(self) -> None:
        """A server that is full, or cannot write to its disk, refuses this as it refuses a message."""
        await self.guard(lambda: self.client.set(self._keys.probe, "", px=1000), patience=0)

    async def close(self) -> None:
        if self._calls:
            await asyncio.wait(self._calls)
        with suppress(redis_errors.RedisError, OSError):
            await self.client.aclose()
        await self.check.stop()

    async def call(self, jobs: Sequence[bytes], *, answer: str = "", number: int | None = None) -> list[Any]:
        """Runs packed jobs in one go and returns their answers, an exception for a job that failed alone.

        `number` makes it a batch that is done only once. Raises the client library's errors.
        """
        key = answer or self._keys.schema
        arguments: list[str | bytes] = [self._keys.base, "" if number is None else str(number), *jobs]
        while True:
            try:
                answers: list[Any] = await self.client.evalsha(self._sha, 1, key, *arguments)
                return answers
            except redis_errors.NoScriptError:
                # A server that was restarted has forgotten the program.
                self._sha = await self.client.script_load(PROGRAM)
            except redis_errors.ResponseError as error:
                if not await self._follows(error):
                    raise

    async def _follows(self, error: Exception) -> bool:
        """All keys of the store are in one slot, so a cluster is one server whose address may change."""
        moved = moved_to(error)
        if moved is None:
            return False
        address = moved[0] or self._options.host, moved[1]
        if self._address == address:
            return False
        logger.info("the keys of %s are at %s:%d", self._keys.base, *address)
        await self._turn_to(address)
        return True

    async def ask(self, job: Job) -> Any:
        """The answer to one job that reads, or may be done twice. Raises `StorageError`."""
        (answer,) = await self.ask_all([job])
        return answer

    async def ask_all(self, jobs: Sequence[Job]) -> list[Any]:
        packed = [pack(job) for job in jobs]
        answers: list[Any] = await self.guard(lambda: self.call(packed))
        for answer in answers:
            if isinstance(answer, Exception):
                raise explain(answer, self.server)
        return answers

    async def do(self, command: str, *arguments: Any, **options: Any) -> Any:
        """A plain command of the client library that reads, or may be done twice. Raises `StorageError`."""
        return await self.guard(lambda: getattr(self.client, command)(*arguments, **options))

    async def guard(self, call: Callable[[], Awaitable[Any]], *, patience: float | None = None) -> Any:
        """Does what may be done twice: again when the connection was broken. Raises `StorageError`.

        In a task of its own: a caller that is canceled goes away at once, and the client library, which can swallow a
        cancellation on Python 3.11 (`asyncio.wait_for`), never sees one.
        """
        task = asyncio.ensure_future(self._persist(call, self._patience if patience is None else patience))
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        return await asyncio.shield(task)

    async def _persist(self, call: Callable[[], Awaitable[Any]], patience: float) -> Any:
        while True:
            try:
                answer = await call()
            except (redis_errors.RedisError, OSError) as error:
                if not await self.may_try_again(error, patience):
                    raise explain(error, self.server) from error
            else:
                self.was_reached()
                return answer

    def was_reached(self) -> None:
        self._away_since = None

    async def may_try_again(self, error: Exception, patience: float | None = None) -> bool:
        """After a failure: whether the same may be asked again now, on another connection.

        Patience counts once for the whole absence of a server, not for each call: what comes later fails at once.
        """
        if await self._follows(error):
            return True
        if not is_passing(error):
            self.was_reached()
            if is_read_only(error):
                await self._recover()  # the name may lead to another server by now
            return False
        now = asyncio.get_running_loop().time()
        first = self._away_since is None
        if self._away_since is None:
            self._away_since = now
        away = now - self._away_since
        await self._recover()
        is_back = self._away_since is None  # somebody else has reached it meanwhile
        if not first and not is_back and away >= (self._patience if patience is None else patience):
            return False
        await asyncio.sleep(RETRY_AFTER)
        return True

    async def compare_clock(self, clock: Clock) -> None:
        """Puts a clock right that goes by the server's, when that says what time it is."""
        if isinstance(clock, StoreClock):
            asked = clock.own()
            with suppress(StorageError):
                theirs = (await self.do("info", "server")).get("server_time_usec")
                if theirs is not None:
                    clock.compare(asked, theirs // 1000, clock.own(), f"Redis at {self.server}")

    async def _turn_to(self, address: tuple[str, int]) -> None:
        former, self._address = self.client, address
        self.client = self._connect()
        await former.aclose()

    async def _recover(self) -> None:
        """Lets go of connections that may be as broken as the last one."""
        home = self._options.host, self._options.port
        with suppress(redis_errors.RedisError, OSError):
            if self._address == home:
                await self.client.connection_pool.disconnect(inuse_connections=False)
            else:
                # The node of a cluster that held the keys may be gone; the address that was given knows who does now.
                await self._turn_to(home)

    # Opening

    async def examine(self) -> None:
        """Raises `StorageError` with what to do when the server cannot be used, and warns of what is risky."""
        try:
            await self.client.ping()
            await self._examine_setup()
            await self.call([])  # loads the program and finds the node of a cluster
            await self.client.set(self._keys.schema, SCHEMA, nx=True)
            found: Any = await self.client.get(self._keys.schema)
            schema = found.decode()
        except (redis_errors.RedisError, OSError) as error:
            raise explain(error, self.server) from error
        if schema != SCHEMA:
            raise StorageError(
                f"Redis at {self.server} holds tasks of schema {schema!r} under {self._keys.base!r}, and this release "
                f"reads schema {SCHEMA}. Use the release that wrote them, or another prefix"
            )

    async def _examine_setup(self) -> None:
        try:
            info = await self.client.info("everything")
        except redis_errors.ResponseError as error:
            logger.warning(
                "Redis at %s does not let this user see its setup (%s): make sure that maxmemory-policy is noeviction "
                "and appendonly is yes, or tasks may be lost",
                self.server,
                error,
            )
            return
        self._examine_version(str(info.get("redis_version", "")))
        self._examine_use(info)
        if not info.get("aof_enabled"):
            logger.warning(
                "Redis at %s writes no append-only file: what was accepted since its last snapshot is lost when it "
                "stops. Set appendonly yes (CONFIG SET appendonly yes)",
                self.server,
            )

    def _examine_use(self, info: dict[str, Any]) -> None:
        """What may change while it runs."""
        if is_replica(info):
            raise StorageError(
                f"Redis at {self.server} is a read-only replica of {info.get('master_host')}:"
                f"{info.get('master_port')}. Put the address of the primary into the URL"
            )
        policy = info.get("maxmemory_policy", "noeviction")
        if info.get("maxmemory") and policy != "noeviction":
            raise StorageError(
                f"Redis at {self.server} may evict tasks when its memory is full: maxmemory-policy is {policy}. "
                "Set it to noeviction (CONFIG SET maxmemory-policy noeviction), or use a server of its own for tasks"
            )

    def _examine_version(self, version: str) -> None:
        numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
        if numbers and numbers < OLDEST:
            raise StorageError(
                f"Redis at {self.server} is release {version}, and errands needs 6.2 or newer (or Valkey). Upgrade it"
            )


def is_replica(info: dict[str, Any]) -> bool:
    return info.get("role") == "slave"
