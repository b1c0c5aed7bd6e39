"""A connection that is made when it is needed, made again when it broke, and that can say what became of a commit."""

from __future__ import annotations

import asyncio

from errands.engines.postgres.connection import Connection, Options, connect
from errands.engines.postgres.failures import is_lost
from errands.engines.postgres.sql import QUERIES
from errands.errors import StorageError

#: Seconds before a broken connection is made again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


class Link:
    def __init__(self, options: Options, lane: int, connection: Connection | None = None) -> None:
        self._options = options
        #: Counts the links of a process.
        self.lane = lane
        self._connection = connection

    async def get(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._options)
        return self._connection

    def drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.is_in_transaction():
                await self._connection.execute("ROLLBACK")
        except Exception:
            self.drop()

    async def close(self) -> None:
        """Says goodbye when the server still listens."""
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await connection.close(timeout=1.0)
            except Exception:
                connection.terminate()

    async def commit(self, transaction: str | None) -> None:
        """Commits. When the connection breaks meanwhile, PostgreSQL is asked what became of the transaction: this
        returns if it was committed and raises the connection's error if it was not."""
        assert self._connection is not None
        try:
            await self._connection.execute("COMMIT")
        except Exception as error:
            if transaction is None or not is_lost(error):
                raise
            self.drop()
            if not await self._was_committed(transaction, error):
                raise

    async def _was_committed(self, transaction: str, error: Exception) -> bool:
        """Raises `StorageError` when it cannot be learned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 3 * self._options.patience
        pause = FIRST_PAUSE
        while loop.time() < deadline:
            try:
                fate = await (await self.get()).fetchval(QUERIES["fate"], transaction)
            except Exception as trouble:
                if not is_lost(trouble):
                    break
                self.drop()
            else:
                if fate in ("committed", "aborted"):
                    return bool(fate == "committed")
            # Not reachable, or the server itself has not noticed yet.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise StorageError(
            f"The connection to the database {self._options.name} broke during a commit, and it could not be learned "
            "whether that was written. Look before sending it again"
        ) from error
