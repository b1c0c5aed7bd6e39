"""errands: a durable runtime for A2A agents."""

from errands.client import A2AClient, ClientResult, Conversation
from errands.client import StreamEvent as ClientStreamEvent
from errands.engines.base import Engine, Retention
from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    CapabilityBlockedError,
    ConcurrencyError,
    ConfigurationError,
    ContentTypeNotSupportedError,
    ContextMismatchError,
    ErrandsError,
    InvalidAgentResponseError,
    LeaseLostError,
    PermissionDeniedError,
    StorageError,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskStoppedError,
    TaskTerminalStateError,
    TurnError,
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
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.log import Scope
from errands.policy.document import Policy
from errands.runtime.context import InvalidAnswerError, TaskContext
from errands.runtime.dependencies import Dependency, DependencyContainer
from errands.runtime.executor.agent import AgentExecutor
from errands.runtime.executor.call import ServerCallContext, User
from errands.runtime.executor.ids import IDGenerator, IDGeneratorContext, UUIDGenerator
from errands.runtime.executor.queue import EventQueue
from errands.runtime.executor.request import RequestContext, RequestContextBuilder, SimpleRequestContextBuilder
from errands.runtime.executor.updater import TaskUpdater
from errands.runtime.executor.worker import ExecutorWorker
from errands.runtime.functions import agent
from errands.runtime.hooks import LifecycleHooks
from errands.runtime.leases import ActiveTask
from errands.runtime.middleware import (
    A2AMiddleware,
    ApiKeyMiddleware,
    BearerTokenMiddleware,
    RequestEnvelope,
    head_only,
)
from errands.runtime.settings import Settings, get_settings
from errands.runtime.task_manager import TaskManager
from errands.runtime.worker import FileInfo, HistoryMessage, PreviousArtifact, Worker
from errands.server.app import A2AServer
from errands.version import __version__

__all__ = [
    "A2AClient",
    "A2AError",
    "A2AMiddleware",
    "A2AServer",
    "ActiveTask",
    "AgentCardConfig",
    "AgentExecutor",
    "ApiKeyMiddleware",
    "Artifact",
    "AuthenticationRequiredError",
    "BearerTokenMiddleware",
    "CapabilitiesConfig",
    "CapabilityBlockedError",
    "ClientResult",
    "ClientStreamEvent",
    "ConcurrencyError",
    "ConfigurationError",
    "ContentTypeNotSupportedError",
    "ContextMismatchError",
    "Conversation",
    "Dependency",
    "DependencyContainer",
    "Engine",
    "ErrandsError",
    "EventQueue",
    "ExecutorWorker",
    "ExtensionConfig",
    "FileInfo",
    "HistoryMessage",
    "IDGenerator",
    "IDGeneratorContext",
    "InvalidAgentResponseError",
    "InvalidAnswerError",
    "LeaseLostError",
    "LifecycleHooks",
    "Message",
    "Part",
    "PermissionDeniedError",
    "Policy",
    "PreviousArtifact",
    "ProviderConfig",
    "RequestContext",
    "RequestContextBuilder",
    "RequestEnvelope",
    "Retention",
    "Role",
    "Scope",
    "ServerCallContext",
    "Settings",
    "SignatureConfig",
    "SimpleRequestContextBuilder",
    "SkillConfig",
    "StorageError",
    "Task",
    "TaskArtifactUpdateEvent",
    "TaskContext",
    "TaskManager",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskState",
    "TaskStatus",
    "TaskStatusUpdateEvent",
    "TaskStoppedError",
    "TaskTerminalStateError",
    "TaskUpdater",
    "TurnError",
    "UUIDGenerator",
    "UnsupportedOperationError",
    "User",
    "Worker",
    "__version__",
    "agent",
    "get_settings",
    "head_only",
]
