"""Which class runs which backend, by its name in `execute`."""

from __future__ import annotations

from errands.agents.tools.base import Backend
from errands.agents.tools.cel import CelBackend
from errands.agents.tools.functions import PythonBackend
from errands.agents.tools.http import HttpBackend
from errands.agents.tools.mcp import McpBackend
from errands.agents.tools.openapi import OpenApiBackend
from errands.agents.tools.session import SessionBackend
from errands.errors import ConfigurationError

BACKENDS: dict[str, type[Backend]] = {
    "cel": CelBackend,
    "stateless_http": HttpBackend,
    "stateful_session": SessionBackend,
    "mcp": McpBackend,
    "python": PythonBackend,
    "openapi": OpenApiBackend,
}


def backend_class(name: str) -> type[Backend]:
    """Raises `ConfigurationError` for a backend that errands does not have."""
    try:
        return BACKENDS[name]
    except KeyError:
        raise ConfigurationError(
            f"the backend {name} is not in this version of errands; it has {', '.join(BACKENDS)}"
        ) from None


def keeps_state(kind: type[Backend]) -> bool:
    """Whether a backend has something to keep from its first invocation to the end of the task."""
    return kind.initialize is not Backend.initialize
