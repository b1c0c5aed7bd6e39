"""The pool of connections that read: nobody waits for the writer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from errands.engines.postgres import reading
from errands.engines.postgres.connection import Connection, Options, arguments, prepare
from errands.engines.postgres.failures import READ_ONLY, explain, is_crowded, is_in_the_way, is_lost
from errands.engines.probe import SOON, Probe
from errands.errors import ErrandsError, StorageError

_P = ParamSpec("_P")
_T = TypeVar("_T")

#: Seconds between two tries on broken connections.
_PAUSE = 0.05


class Readers:
    def __init__(self, options: Options) -> None:
        self._options = options
        self._closing = False
        #: Raises `StorageError` when the tables cannot be read right now, or not written to.
        self.check = Probe(f"The database {options.name}", self._check, self._try_to_write)
        self._pool: Any = asyncpg.create_pool(
            # None that must be there: while the server is away, the pool would try and complain without end.
            min_size=0,
            max_size=options.readers,
            init=partial(_prepare, options=options),
            **arguments(options),
        )

    async def start(self) -> None:
        await self._pool
        # Made now: the first readers would wait for them.
        async with AsyncExitStack() as stack:
            for _ in range(min(2, self._options.readers)):
                await stack.enter_async_context(self._pool.acquire())

    async def call(
        self, function: Callable[Concatenate[Connection, _P], Awaitable[_T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> _T:
        """Calls a function of `reading`, again when a connection breaks. Raises `StorageError` when none can be had."""
        return await self._call(self._options.patience, lambda connection: function(connection, *args, **kwargs))

    async def _check(self) -> None:
        patience = min(SOON, self._options.patience)
        if await self._call(patience, reading.is_read_only):
            await self.renew()
            if await self._call(patience, reading.is_read_only):
                raise StorageError(f"The database {self._options.name} {READ_ONLY}")

    async def _try_to_write(self) -> None:
        await self._call(min(SOON, self._options.patience), reading.try_to_write)

    async def renew(self) -> None:
        """Makes all connections again when they are next used: their address may lead to another server by now."""
        await self._pool.expire_connections()

    async def _call(self, patience: float, function: Callable[[Connection], Awaitable[_T]]) -> _T:
        deadline = asyncio.get_running_loop().time() + patience
        while True:
            try:
                async with self._pool.acquire() as connection:
                    return await function(connection)
            except ErrandsError:
                raise
            except Exception as error:
                may_pass = is_lost(error) or is_in_the_way(error) or is_crowded(error)
                if self._closing or not may_pass or asyncio.get_running_loop().time() > deadline:
                    raise explain(error, self._options.name) from error
            await asyncio.sleep(_PAUSE)

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """A connection for several steps. Raises `StorageError` when one of them fails."""
        try:
            async with self._pool.acquire() as connection:
                yield connection
        except ErrandsError:
            raise
        except Exception as error:
            raise explain(error, self._options.name) from error

    async def close(self) -> None:
        self._closing = True
        try:
            async with asyncio.timeout(5.0):
                await self._pool.close()
        except Exception:
            self._pool.terminate()
        await self.check.stop()


async def _prepare(connection: Connection, options: Options) -> None:
    await prepare(connection, options)
