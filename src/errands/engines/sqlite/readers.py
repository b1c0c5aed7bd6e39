"""A few threads that read, each with its own connection: nobody waits for the writer, or for a slow reader."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Concatenate, ParamSpec, TypeVar

from errands.engines.sqlite.connection import Options, ServedFile, open_reader
from errands.engines.sqlite.failures import explain

READERS = 4

_P = ParamSpec("_P")
_T = TypeVar("_T")


class Readers:
    def __init__(self, options: Options, file: ServedFile) -> None:
        self._options = options
        self._file = file
        self._executor = ThreadPoolExecutor(READERS, thread_name_prefix="errands-sqlite-reader")
        self._local = threading.local()
        self._connections: list[sqlite3.Connection] = []

    def submit(
        self,
        function: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> asyncio.Future[_T]:
        """Calls a function of `reading` in one of the threads; `StorageError` when the file cannot be read."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._executor, lambda: self._call(function, *args, **kwargs))

    def _call(
        self,
        function: Callable[Concatenate[sqlite3.Connection, _P], _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        try:
            return function(self._connection(), *args, **kwargs)
        except sqlite3.Error as error:
            self._file.check()
            raise explain(error, self._options.path) from error

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            try:
                connection = open_reader(self._options)
                self._connections.append(connection)
            finally:
                # It must not read from another file than the one that is written.
                self._file.check()
            self._local.connection = connection
        return connection

    async def close(self) -> None:
        await asyncio.get_running_loop().run_in_executor(None, self._executor.shutdown)
        for connection in self._connections:
            connection.close()
