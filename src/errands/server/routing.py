"""Which operation and dialect a request means: a table of JSON-RPC methods and a list of HTTP paths."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import unquote

from errands.errors import ConfigurationError
from errands.operations import Operation
from errands.wire import v0_3, v1_0
from errands.wire.dialect import Dialect, Route

#: The dialects of each protocol version, the newest first.
DIALECTS: dict[str, tuple[Dialect, ...]] = {"1.0": (v1_0.JSON,), "0.3": (v0_3.JSONRPC, v0_3.REST, v0_3.REST_A2AKIT)}


class RoutedOperation(NamedTuple):
    """The operation that a request means and the dialect it is written in."""

    operation: Operation
    dialect: Dialect
    #: The parameters in the path.
    values: dict[str, str] = {}


class _PathPattern(NamedTuple):
    route: Route
    dialect: Dialect
    regex: re.Pattern[str]

    @classmethod
    def of(cls, route: Route, dialect: Dialect) -> _PathPattern:
        # A colon separates an id from the verb, so an id in the path has none. Some clients percent-encode it.
        literal = re.escape(route.path).replace(":", "(?::|%3[Aa])")
        path = re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/:]+)", literal)
        # `/v1/…` are the paths of version 0.3, the others those of operators: a tenant cannot have these names.
        tenant = r"(?:/(?P<tenant>(?!(?:v1|admin|console|chat)/)[^/:]+))?" if dialect.takes_tenant else ""
        return cls(route, dialect, re.compile(rf"{tenant}{path}/?"))


class Routes:
    """The methods and paths of the protocol versions that a server speaks."""

    def __init__(self, versions: Sequence[str]) -> None:
        """Raises `ConfigurationError` for an unknown version, and without any."""
        known = ", ".join(DIALECTS)
        if unknown := [version for version in versions if version not in DIALECTS]:
            raise ConfigurationError(
                f"unknown protocol version {', '.join(map(repr, unknown))}: expected one of {known}"
            )
        if not versions:
            raise ConfigurationError(f"no protocol version to serve: expected at least one of {known}")
        #: The versions that are served, the newest first.
        self.versions = tuple(version for version in DIALECTS if version in versions)
        dialects = [dialect for version in self.versions for dialect in DIALECTS[version]]
        self.methods = {
            name: RoutedOperation(operation, dialect)
            for dialect in dialects
            for name, operation in dialect.methods.items()
        }
        patterns = [_PathPattern.of(route, dialect) for dialect in dialects for route in dialect.routes]
        # a2akit's clients of 0.3 use the paths of 1.0; only the version header distinguishes them.
        self._patterns = [
            pattern for pattern in patterns if pattern.dialect is not v0_3.REST_A2AKIT or "1.0" not in self.versions
        ]
        self._oldest_first = patterns[::-1]

    def match(self, method: str, path: str, version: str = "") -> RoutedOperation | frozenset[str] | None:
        """Return the operation at this path, the HTTP methods that the path allows, or None for an unknown path.

        `version` is the protocol version in the client's headers.
        """
        allowed: set[str] = set()
        patterns = self._oldest_first if version.startswith("0.3") else self._patterns
        if "%3" in path:
            # In `/tasks/1%3Asubscribe` the verb is read as a verb, and not as part of the id.
            patterns = sorted(patterns, key=lambda pattern: ":" not in pattern.route.path)
        for route, dialect, regex in patterns:
            found = regex.fullmatch(path)
            if found is None:
                continue
            if method in route.methods:
                values = {key: unquote(value) for key, value in found.groupdict().items() if value is not None}
                return RoutedOperation(route.operation, dialect, values)
            allowed |= route.methods
        return frozenset(allowed) or None
