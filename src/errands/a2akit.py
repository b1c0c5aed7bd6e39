"""Names for programs that were written for a2akit.

Change `from a2akit import …`, `from a2akit.hooks import …` and so on to `from errands.a2akit import …`. This module's
`A2AServer` takes a2akit's keyword arguments and refuses those for which errands has nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from errands.client import (
    A2AClient,
    AgentCapabilityError,
    AgentNotFoundError,
    ArtifactInfo,
    ClientResult,
    ListResult,
    NotConnectedError,
    ProtocolError,
    StreamEvent,
    TaskTerminalError,
)
from errands.engines.base import Engine
from errands.engines.connection import without_password
from errands.errors import (
    AuthenticationRequiredError,
    ConcurrencyError,
    ConfigurationError,
    ContentTypeNotSupportedError,
    ContextMismatchError,
    ErrandsError,
    InvalidAgentResponseError,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskTerminalStateError,
    UnsupportedOperationError,
)
from errands.model.card_config import (
    AgentCardConfig,
    CapabilitiesConfig,
    ExtensionConfig,
    ProviderConfig,
    SignatureConfig,
    SkillConfig,
)
from errands.runtime.context import TaskContext
from errands.runtime.dependencies import Dependency, DependencyContainer
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.middleware import A2AMiddleware, ApiKeyMiddleware, BearerTokenMiddleware, RequestEnvelope
from errands.runtime.settings import Settings
from errands.runtime.settings import get_settings as read_settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import FileInfo, HistoryMessage, PreviousArtifact, Worker
from errands.server.app import A2AServer as Server
from errands.server.cards import check_binding
from errands.server.configuration import is_setting, kind_of

__all__ = [
    "A2AClient",
    "A2AClientError",
    "A2AMiddleware",
    "A2AServer",
    "AgentCapabilityError",
    "AgentCardConfig",
    "AgentNotFoundError",
    "ApiKeyMiddleware",
    "ArtifactInfo",
    "AuthenticationRequiredError",
    "BearerTokenMiddleware",
    "CapabilitiesConfig",
    "ClientResult",
    "ClientStreamEvent",
    "ConcurrencyError",
    "ContentTypeNotSupportedError",
    "ContextMismatchError",
    "Dependency",
    "DependencyContainer",
    "ExtensionConfig",
    "FileInfo",
    "HistoryMessage",
    "InvalidAgentResponseError",
    "LifecycleHooks",
    "ListResult",
    "NotConnectedError",
    "PreviousArtifact",
    "ProtocolError",
    "ProviderConfig",
    "RequestEnvelope",
    "Settings",
    "SignatureConfig",
    "SkillConfig",
    "StreamEvent",
    "TaskContext",
    "TaskManager",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskTerminalError",
    "TaskTerminalStateError",
    "UnsupportedOperationError",
    "Worker",
    "get_settings",
]

ClientStreamEvent = StreamEvent
#: In a2akit, the base of everything that a client raises, errors of the agent included.
A2AClientError = ErrandsError
#: Reads the settings once, as in a2akit; `get_settings.cache_clear()` forgets them.
get_settings = functools.cache(read_settings)

#: Arguments of a2akit's server for which errands has nothing.
_MISSING = {"cancel_registry": "cancel registry: a cancel is in the task's log"}
_NO_PUSH = "such setting; docs/push.md has those of push notifications"


class A2AServer(Server):
    """`errands.A2AServer` with the arguments of a2akit's server.

    `protocol_version` is the only version to serve, such as "0.3" or "1.0.0"; without it, all are served. `broker` and
    `event_bus` must be the same as `storage`. `additional_protocols` only has its names checked, because all bindings
    are always served. `enable_telemetry` is the setting `otel`. Raises `ConfigurationError` for a `cancel_registry` and
    `push_*` arguments that errands does not have.
    """

    def __init__(
        self,
        *,
        protocol_version: str | None = None,
        broker: str | Engine | None = None,
        event_bus: str | Engine | None = None,
        additional_protocols: Sequence[str] | None = None,
        enable_telemetry: bool | None = None,
        **options: Any,
    ) -> None:
        for name in [name for name in options if name in _MISSING or name.startswith("push_")]:
            if is_setting(name):
                continue
            value = options.pop(name)
            if value is not None and value is not False:
                raise ConfigurationError(f"{name}={value!r}: errands has no {_MISSING.get(name, _NO_PUSH)}; omit it")
        if protocol_version is not None:
            if "protocol_versions" in options:
                raise ConfigurationError("pass protocol_version or protocol_versions, not both")
            options["protocol_versions"] = [".".join(str(protocol_version).split(".")[:2])]
        if enable_telemetry is not None:
            options.setdefault("otel", enable_telemetry)
        for protocol in additional_protocols or ():
            check_binding(protocol)
        super().__init__(**options)
        storage = options.get("storage") or self.settings.storage
        for name, other in (("broker", broker), ("event_bus", event_bus)):
            if other is not None and other != storage:
                raise ConfigurationError(
                    f"{name}={_named(other)}: tasks, queue and events are in one store; omit {name} or make it the "
                    f"same as storage={_named(storage)}"
                )


def _named(storage: object) -> str:
    return repr(without_password(storage)) if isinstance(storage, str) else kind_of(storage)
