"""Names for programs that were written for a2akit.

Change `from a2akit import …`, `from a2akit.hooks import …` and so on to `from errands.a2akit import …`. `A2AServer`
takes a2akit's keyword arguments here; those for which errands has nothing are refused.
"""

from __future__ import annotations

import functools
from typing import Any

import errands
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
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import FileInfo, HistoryMessage, PreviousArtifact, Worker

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
#: In a2akit the root of all that a client raises, what the agent says included.
A2AClientError = ErrandsError
#: Read once, as in a2akit; `get_settings.cache_clear()` forgets them.
get_settings = functools.cache(errands.get_settings)

#: Arguments of a2akit's server for which errands has nothing.
_MISSING = {"enable_telemetry": "telemetry yet", "cancel_registry": "cancel registry: a cancel is in the task's log"}


class A2AServer(errands.A2AServer):
    """`errands.A2AServer` with the arguments of a2akit's.

    `protocol_version` is the only version that is served, such as "0.3" or "1.0.0"; without it, all are. Raises
    `ConfigurationError` for `enable_telemetry=True`, a `cancel_registry` and the `push_*` arguments.
    """

    def __init__(self, *, protocol_version: str | None = None, **options: Any) -> None:
        for name in [name for name in options if name in _MISSING or name.startswith("push_")]:
            value = options.pop(name)
            if value is not None and value is not False:
                raise ConfigurationError(
                    f"{name}={value!r}: errands has no {_MISSING.get(name, 'push notifications yet')}; leave it out"
                )
        if protocol_version is not None:
            if "protocol_versions" in options:
                raise ConfigurationError("pass protocol_version or protocol_versions, not both")
            options["protocol_versions"] = [".".join(str(protocol_version).split(".")[:2])]
        super().__init__(**options)
