"""The tables of a file, for whoever looks after them. Opening the engine brings them forward by itself."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from errands.engines.base import Schema
from errands.engines.sqlite import sql
from errands.engines.sqlite.connection import APPLICATION_ID, Options, check_ownership, make_directory, open_writer
from errands.engines.sqlite.failures import explain
from errands.errors import StorageError


class SQLiteSchema(Schema):
    def __init__(self, options: Options) -> None:
        self._options = options

    async def upgrade(self) -> tuple[int, int]:
        return await asyncio.to_thread(self._upgrade)

    async def check(self) -> int:
        version = await asyncio.to_thread(self._version)
        if not version:
            raise StorageError(
                f"The database {self._options.path} has no tables of errands yet. They are made when an agent is "
                "served on it, or by `errands db upgrade --storage URL`"
            )
        return version

    async def sql(self) -> str:
        version = await asyncio.to_thread(self._version)
        scripts = [script for number, script in sql.migrations() if number > version]
        if not scripts:
            return ""
        newest = sql.migrations()[-1][0]
        marks = f"PRAGMA user_version = {newest};\nPRAGMA application_id = {APPLICATION_ID};\n"
        return "BEGIN;\n" + "\n".join(scripts) + marks + "COMMIT;\n"

    def _upgrade(self) -> tuple[int, int]:
        before = self._version()
        make_directory(Path(self._options.path).parent)
        open_writer(self._options).close()
        return before, self._version()

    def _version(self) -> int:
        """0 when there is no file, or nothing in it. Raises `StorageError` for what this release must not touch."""
        path = self._options.path
        if not Path(path).exists():
            return 0
        try:
            with closing(sqlite3.connect(path, timeout=self._options.busy_timeout)) as connection:
                connection.execute("PRAGMA query_only = ON")
                return check_ownership(connection, path)
        except sqlite3.Error as error:
            raise explain(error, path) from error
