"""A connection that is made when it is needed, made again when it broke, and that can say what became of a commit."""

from __future__ import annotations

import asyncio

from errands.engines.postgres.connection import Connection, Options, connect
from errands.engines.postgres.failures import is_crowded, is_in_the_way, is_lost
from errands.engines.postgres.sql import QUERIES
from errands.errors import StorageError

#: Seconds before a broken connection is made again: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 1.0


class Link:
    def __init__(self, options: Options, process: str, lane: int, connection: Connection | None = None) -> None:
        self._options = options
        self._process = process
        #: Counts the links of a process.
        self.lane = lane
        self._connection = connection
        self._is_known = False
        #: The number of the batch that is written, or was last.
        self.batch = 0

    async def get(self) -> Connection:
        if self._connection is None or self._connection.is_closed():
            self._connection = await connect(self._options)
        if not self._is_known:
            await self._connection.execute(QUERIES["begin_writing"], self._process, self.lane)
            self._is_known = True
        return self._connection

    async def begin(self) -> Connection:
        """Begins the transaction of the next batch."""
        connection = await self.get()
        await connection.execute("BEGIN")
        self.batch += 1
        return connection

    async def note(self, connection: Connection) -> bool:
        """Leaves the batch's number behind with what this transaction has written; whether it has written at all."""
        noted = await connection.fetchval(QUERIES["note_batch"], self._process, self.lane, self.batch)
        return noted is not None

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
                await connection.execute(QUERIES["end_writing"], self._process, self.lane, timeout=1.0)
                await connection.close(timeout=1.0)
            except Exception:
                connection.terminate()

    async def commit(self, *, is_noted: bool) -> None:
        """Commits. When the connection breaks meanwhile, the batch's number tells what became of it: this returns if it
        was committed and raises the connection's error if it was not.

        PostgreSQL itself could be asked (`pg_xact_status`), but after a crash or a failover it may have given the
        transaction's number to another one.
        """
        assert self._connection is not None
        try:
            await self._connection.execute("COMMIT")
        except Exception as error:
            if not is_noted or not is_lost(error):
                raise
            self.drop()
            if not await self._was_committed(error):
                raise

    async def _was_committed(self, error: Exception) -> bool:
        """Raises `StorageError` when it cannot be learned."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 3 * self._options.patience
        pause = FIRST_PAUSE
        while loop.time() < deadline:
            try:
                last = await (await self.get()).fetchval(QUERIES["last_batch"], self._process, self.lane)
                return bool(last == self.batch)
            except Exception as trouble:
                if is_lost(trouble):
                    self.drop()
                elif not (is_in_the_way(trouble) or is_crowded(trouble)):
                    break
            # Not reachable, or the server itself has not noticed yet.
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
        raise StorageError(
            f"The connection to the database {self._options.name} broke during a commit, and it could not be learned "
            "whether that was written. Look before sending it again"
        ) from error
