"""Which dialects a server speaks, as the two tables its bindings look into."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from errands.errors import ConfigurationError
from errands.operations import Operation
from errands.wire import v0_3, v1_0
from errands.wire.dialect import Dialect, Route

#: The dialects of each version, the newest first.
DIALECTS: dict[str, tuple[Dialect, ...]] = {"1.0": (v1_0.JSON,), "0.3": (v0_3.JSONRPC, v0_3.REST, v0_3.REST_A2AKIT)}


class Spoken(NamedTuple):
    """An operation as a client asked for it."""

    operation: Operation
    dialect: Dialect
    #: What the path said about the request.
    values: dict[str, str] = {}


class _Pattern(NamedTuple):
    route: Route
    dialect: Dialect
    regex: re.Pattern[str]


class Repertoire:
    def __init__(self, versions: Sequence[str]) -> None:
        """Raises `ConfigurationError` for a version that is not spoken here."""
        unknown = [version for version in versions if version not in DIALECTS]
        if unknown or not versions:
            raise ConfigurationError(
                f"unknown protocol version {', '.join(map(repr, unknown))}; possible are {', '.join(DIALECTS)}"
                if unknown
                else f"an agent speaks at least one protocol version; possible are {', '.join(DIALECTS)}"
            )
        #: Served, the newest first.
        self.versions = tuple(version for version in DIALECTS if version in versions)
        dialects = [dialect for version in self.versions for dialect in DIALECTS[version]]
        self.methods = {
            name: Spoken(operation, dialect) for dialect in dialects for name, operation in dialect.methods.items()
        }
        patterns = [
            _Pattern(route, dialect, _compile(route, dialect)) for dialect in dialects for route in dialect.routes
        ]
        # a2akit's clients of 0.3 use the paths of 1.0; only the version that they name tells them apart.
        self._patterns = [
            pattern for pattern in patterns if pattern.dialect is not v0_3.REST_A2AKIT or "1.0" not in self.versions
        ]
        self._oldest_first = patterns[::-1]

    def match(self, method: str, path: str, version: str = "") -> Spoken | frozenset[str] | None:
        """Return the operation at this path, or the methods that would have been right, or None.

        `version` is the one that the client names in its headers.
        """
        allowed: set[str] = set()
        patterns = self._oldest_first if version.startswith("0.3") else self._patterns
        if "%3" in path:
            # In `/tasks/1%3Asubscribe` the verb is read as one, and not as part of the id.
            patterns = sorted(patterns, key=lambda pattern: ":" not in pattern.route.path)
        for route, dialect, regex in patterns:
            found = regex.fullmatch(path)
            if found is None:
                continue
            if method in route.methods:
                values = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
                return Spoken(route.operation, dialect, values)
            allowed |= route.methods
        return frozenset(allowed) or None


def _compile(route: Route, dialect: Dialect) -> re.Pattern[str]:
    # A colon separates an id from the verb, so an id in the path has none. Some clients percent-encode it.
    literal = re.escape(route.path).replace(":", "(?::|%3[Aa])")
    path = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/:]+)", literal)
    # `/v1/…` are the paths of version 0.3, whatever a tenant may be called.
    tenant = r"(?:/(?P<tenant>(?!v1/)[^/:]+))?" if dialect.takes_tenant else ""
    return re.compile(rf"{tenant}{path}/?")
