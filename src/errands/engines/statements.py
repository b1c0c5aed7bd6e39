"""Reading SQL files: the named statements of an engine's `queries.sql`, and its numbered migrations."""

from __future__ import annotations

import re
from importlib.resources.abc import Traversable

#: The end of the message about a store with a schema from before the first migration.
UNRELEASED = (
    "which an earlier, unreleased version of errands wrote; it cannot be upgraded. Recreate it, name another one, or "
    "export its tasks with the version that wrote them"
)
_SECTION = re.compile(r"^-- (name|fragment): (\w+)\n((?:.+\n)+)", re.MULTILINE)
_COMMENT = re.compile(r"--.*\n")


def read_queries(package: Traversable) -> dict[str, str]:
    """The statements of `queries.sql` by name, with their fragments filled in."""
    fragments: dict[str, str] = {}
    queries: dict[str, str] = {}
    for kind, name, body in _SECTION.findall(package.joinpath("queries.sql").read_text("utf-8")):
        sql = re.sub(r"\{(\w+)\}", lambda match: fragments[match[1]], _COMMENT.sub("", body)).strip()
        (fragments if kind == "fragment" else queries)[name] = sql
    return queries


def read_migrations(package: Traversable) -> list[tuple[int, str]]:
    """The scripts in `migrations/` with their numbers, in order."""
    scripts = [entry for entry in package.joinpath("migrations").iterdir() if entry.name.endswith(".sql")]
    return sorted((int(script.name[:4]), script.read_text("utf-8")) for script in scripts)
