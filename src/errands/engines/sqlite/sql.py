"""The statements of `queries.sql`, by name, and the migrations, by number: read once, when the module is loaded."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from errands.engines.statements import read_migrations, read_queries

_EACH = re.compile(r"/\*each\*/ (\([^)]*\)|\?)")

_PACKAGE = files(__package__)


QUERIES = read_queries(_PACKAGE)


@cache
def repeated(name: str, rows: int) -> str:
    """The query with its repeated piece written `rows` times: many rows in one step of SQLite.

    Every step gives up the interpreter's lock and has to win it back from a busy event loop.
    """
    return _EACH.sub(lambda match: ", ".join([match[1]] * rows), QUERIES[name])


def migrations() -> list[tuple[int, str]]:
    """The scripts in `migrations/` with their numbers, in order."""
    return read_migrations(_PACKAGE)


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would end the transaction around them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
