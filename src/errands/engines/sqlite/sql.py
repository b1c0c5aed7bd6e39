"""The statements of `queries.sql`, by name, and the migrations, by number: read once, when the module is loaded."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

_SECTION = re.compile(r"^-- (name|fragment): (\w+)\n((?:.+\n)+)", re.MULTILINE)
_COMMENT = re.compile(r"--.*\n")
_EACH = re.compile(r"/\*each\*/ (\([^)]*\)|\?)")

_PACKAGE = files(__package__)


def _read_queries() -> dict[str, str]:
    fragments: dict[str, str] = {}
    queries: dict[str, str] = {}
    for kind, name, body in _SECTION.findall(_PACKAGE.joinpath("queries.sql").read_text("utf-8")):
        sql = re.sub(r"\{(\w+)\}", lambda match: fragments[match[1]], _COMMENT.sub("", body)).strip()
        (fragments if kind == "fragment" else queries)[name] = sql
    return queries


QUERIES = _read_queries()


@cache
def repeated(name: str, rows: int) -> str:
    """The query with its repeated piece written `rows` times: many rows in one step of SQLite.

    Every step gives up the interpreter's lock and has to win it back from a busy event loop.
    """
    return _EACH.sub(lambda match: ", ".join([match[1]] * rows), QUERIES[name])


def migrations() -> list[tuple[int, str]]:
    """The scripts in `migrations/` with their numbers, in order."""
    scripts = [entry for entry in _PACKAGE.joinpath("migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name[:4]), script.read_text("utf-8")) for script in scripts)


def statements(script: str) -> Iterator[str]:
    """The statements of a script one by one: `executescript` would end the transaction around them."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
