"""The statements of `queries.sql`, by name, and the migrations, by number: read once, when the module is loaded."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import NamedTuple

from errands.engines.statements import read_migrations, read_queries

_PACKAGE = files(__package__)
_OLDEST = re.compile(r"^-- oldest: (\d+)$", re.MULTILINE)

QUERIES = read_queries(_PACKAGE)


class Migration(NamedTuple):
    version: int
    #: The oldest schema version whose code can still run on this one.
    oldest: int
    script: str


def migrations() -> list[Migration]:
    """The scripts in `migrations/`, in order."""
    found: list[Migration] = []
    for version, script in read_migrations(_PACKAGE):
        oldest = _OLDEST.search(script)
        assert oldest is not None, f"migration {version} does not name the oldest code that can run on it"
        found.append(Migration(version, int(oldest[1]), script))
    return found
