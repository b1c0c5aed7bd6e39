"""errands: a durable runtime for A2A agents.

`__all__` has what authors of agents need. `errands.sdk` has the names of executors, and `errands.a2akit` those of
programs written for a2akit; the root has most of these names, too. A name or submodule is loaded when it is first used,
so that `import errands` loads neither the server nor the client.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from errands.version import __version__

if TYPE_CHECKING:
    from errands.a2akit import ClientStreamEvent as ClientStreamEvent
    from errands.client import A2AClient
    from errands.client import ClientResult as ClientResult
    from errands.client import Conversation as Conversation
    from errands.engines.base import Engine as Engine
    from errands.engines.base import Retention as Retention
    from errands.errors import A2AError, ConfigurationError, ErrandsError
    from errands.errors import AuthenticationRequiredError as AuthenticationRequiredError
    from errands.errors import CapabilityBlockedError as CapabilityBlockedError
    from errands.errors import ConcurrencyError as ConcurrencyError
    from errands.errors import ContentTypeNotSupportedError as ContentTypeNotSupportedError
    from errands.errors import ContextMismatchError as ContextMismatchError
    from errands.errors import InvalidAgentResponseError as InvalidAgentResponseError
    from errands.errors import LeaseLostError as LeaseLostError
    from errands.errors import PermissionDeniedError as PermissionDeniedError
    from errands.errors import StorageError as StorageError
    from errands.errors import TaskNotCancelableError as TaskNotCancelableError
    from errands.errors import TaskNotFoundError as TaskNotFoundError
    from errands.errors import TaskStoppedError as TaskStoppedError
    from errands.errors import TaskTerminalStateError as TaskTerminalStateError
    from errands.errors import TurnError as TurnError
    from errands.errors import UnsupportedOperationError as UnsupportedOperationError
    from errands.model.card_config import AgentCardConfig, CapabilitiesConfig, SkillConfig
    from errands.model.card_config import ExtensionConfig as ExtensionConfig
    from errands.model.card_config import ProviderConfig as ProviderConfig
    from errands.model.card_config import SignatureConfig as SignatureConfig
    from errands.model.core import Artifact, Message, Part, Role, Task, TaskState
    from errands.model.core import TaskArtifactUpdateEvent as TaskArtifactUpdateEvent
    from errands.model.core import TaskStatus as TaskStatus
    from errands.model.core import TaskStatusUpdateEvent as TaskStatusUpdateEvent
    from errands.model.log import Scope as Scope
    from errands.policy.document import Policy
    from errands.runtime.context import InvalidAnswerError as InvalidAnswerError
    from errands.runtime.context import TaskContext
    from errands.runtime.dependencies import Dependency
    from errands.runtime.dependencies import DependencyContainer as DependencyContainer
    from errands.runtime.function_worker import agent
    from errands.runtime.hooks import LifecycleHooks
    from errands.runtime.leases import ActiveTask as ActiveTask
    from errands.runtime.middleware import A2AMiddleware, ApiKeyMiddleware, BearerTokenMiddleware, RequestEnvelope
    from errands.runtime.middleware import Caller as Caller
    from errands.runtime.middleware import head_only as head_only
    from errands.runtime.settings import Settings
    from errands.runtime.settings import get_settings as get_settings
    from errands.runtime.task_manager import TaskManager as TaskManager
    from errands.runtime.worker import FileInfo as FileInfo
    from errands.runtime.worker import HistoryMessage as HistoryMessage
    from errands.runtime.worker import PreviousArtifact as PreviousArtifact
    from errands.runtime.worker import Worker
    from errands.sdk import AgentExecutor
    from errands.sdk import EventQueue as EventQueue
    from errands.sdk import ExecutorWorker as ExecutorWorker
    from errands.sdk import IDGenerator as IDGenerator
    from errands.sdk import IDGeneratorContext as IDGeneratorContext
    from errands.sdk import RequestContext as RequestContext
    from errands.sdk import RequestContextBuilder as RequestContextBuilder
    from errands.sdk import ServerCallContext as ServerCallContext
    from errands.sdk import SimpleRequestContextBuilder as SimpleRequestContextBuilder
    from errands.sdk import TaskUpdater as TaskUpdater
    from errands.sdk import User as User
    from errands.sdk import UUIDGenerator as UUIDGenerator
    from errands.server.app import A2AServer
    from errands.server.auth import ApiKeyAuth as ApiKeyAuth
    from errands.server.auth import CallableAuth as CallableAuth
    from errands.server.auth import MutualTLSAuth as MutualTLSAuth
    from errands.server.authorization import AccessRule as AccessRule
    from errands.server.tokens import IntrospectionAuth as IntrospectionAuth
    from errands.server.tokens import JWTAuth as JWTAuth
    from errands.server.tokens import OIDCAuth as OIDCAuth
    from errands.wire.card_signing import SigningKey as SigningKey
    from errands.wire.card_signing import TrustedKeys as TrustedKeys

__all__ = [
    "A2AClient",
    "A2AError",
    "A2AMiddleware",
    "A2AServer",
    "AgentCardConfig",
    "AgentExecutor",
    "ApiKeyMiddleware",
    "Artifact",
    "BearerTokenMiddleware",
    "CapabilitiesConfig",
    "ConfigurationError",
    "Dependency",
    "ErrandsError",
    "LifecycleHooks",
    "Message",
    "Part",
    "Policy",
    "RequestEnvelope",
    "Role",
    "Settings",
    "SkillConfig",
    "Task",
    "TaskContext",
    "TaskState",
    "Worker",
    "__version__",
    "agent",
]

#: The names that each module defines. `tests/unit/test_packaging.py` compares them with the imports above.
_NAMES = {
    "a2akit": "ClientStreamEvent",
    "client": "A2AClient ClientResult Conversation",
    "engines.base": "Engine Retention",
    "errors": """
        A2AError AuthenticationRequiredError CapabilityBlockedError ConcurrencyError ConfigurationError
        ContentTypeNotSupportedError ContextMismatchError ErrandsError InvalidAgentResponseError LeaseLostError
        PermissionDeniedError StorageError TaskNotCancelableError TaskNotFoundError TaskStoppedError
        TaskTerminalStateError TurnError UnsupportedOperationError
    """,
    "model.card_config": """
        AgentCardConfig CapabilitiesConfig ExtensionConfig ProviderConfig SignatureConfig SkillConfig
    """,
    "model.core": """
        Artifact Message Part Role Task TaskArtifactUpdateEvent TaskState TaskStatus TaskStatusUpdateEvent
    """,
    "model.log": "Scope",
    "policy.document": "Policy",
    "runtime.context": "InvalidAnswerError TaskContext",
    "runtime.dependencies": "Dependency DependencyContainer",
    "runtime.function_worker": "agent",
    "runtime.hooks": "LifecycleHooks",
    "runtime.leases": "ActiveTask",
    "runtime.middleware": "A2AMiddleware ApiKeyMiddleware BearerTokenMiddleware Caller RequestEnvelope head_only",
    "runtime.settings": "Settings get_settings",
    "runtime.task_manager": "TaskManager",
    "runtime.worker": "FileInfo HistoryMessage PreviousArtifact Worker",
    "sdk": """
        AgentExecutor EventQueue ExecutorWorker IDGenerator IDGeneratorContext RequestContext RequestContextBuilder
        ServerCallContext SimpleRequestContextBuilder TaskUpdater User UUIDGenerator
    """,
    "server.app": "A2AServer",
    "server.auth": "ApiKeyAuth CallableAuth MutualTLSAuth",
    "server.authorization": "AccessRule",
    "server.tokens": "IntrospectionAuth JWTAuth OIDCAuth",
    "wire.card_signing": "SigningKey TrustedKeys",
}
_MODULES = {name: f"errands.{module}" for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        value = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return value
    if not name.startswith("_"):
        try:
            return import_module(f"errands.{name}")
        except ModuleNotFoundError as error:
            if error.name != f"errands.{name}":
                raise
    raise AttributeError(f"module 'errands' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
