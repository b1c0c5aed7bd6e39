"""The statements of `queries.sql`, by name, and the migrations, by number: read once, when the module is loaded."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from errands.engines.statements import read_migrations, read_queries

_PACKAGE = files(__package__)
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)
_INDEX = re.compile(r"CREATE (?:UNIQUE )?INDEX CONCURRENTLY (\w+) [^;]+")

QUERIES = read_queries(_PACKAGE)


class Migration(NamedTuple):
    version: int
    #: The oldest schema version whose code can still run on this one.
    oldest: int
    script: str

    @property
    def indexes(self) -> dict[str, str]:
        """The statements by the names of the indexes that they build, when it is a migration that builds them while
        others write: nothing else is in it then, and it is no transaction."""
        return {match[1]: match[0] for match in _INDEX.finditer(self.script)}

    @property
    def at_once(self) -> str:
        """The same for tables that nobody uses yet."""
        return self.script.replace("INDEX CONCURRENTLY", "INDEX")


def migrations() -> list[Migration]:
    """The scripts in `migrations/`, in order."""
    found: list[Migration] = []
    for version, script in read_migrations(_PACKAGE):
        oldest = _OLDEST.search(script)
        assert oldest is not None, f"migration {version} does not name the oldest code that can run on it"
        found.append(Migration(version, int(oldest[1]), script))
    return found
