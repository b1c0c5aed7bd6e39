"""Everything errands raises.

    ErrandsError
    ├── A2AError                               has a reason; a binding turns the reason into its own code
    │   ├── TaskNotFoundError
    │   ├── TaskNotCancelableError
    │   ├── PushNotificationNotSupportedError
    │   ├── UnsupportedOperationError
    │   │   ├── ExtendedCardNotOfferedError    in A2A 0.3: ExtendedAgentCardNotConfiguredError
    │   │   └── TaskTerminalStateError         also raised by engines: the first writer won
    │   ├── ContentTypeNotSupportedError
    │   ├── InvalidAgentResponseError
    │   │   ├── IllegalTransitionError
    │   │   └── TurnError                      a second lifecycle call, or a call after the turn
    │   ├── ExtendedAgentCardNotConfiguredError
    │   ├── ExtensionSupportRequiredError
    │   ├── VersionNotSupportedError
    │   ├── ParseError
    │   ├── InvalidRequestError
    │   │   └── PayloadTooLargeError
    │   ├── MethodNotFoundError
    │   ├── InvalidParamsError
    │   │   └── ContextMismatchError
    │   ├── AuthenticationRequiredError
    │   ├── PermissionDeniedError
    │   ├── UnavailableError                   try again later
    │   │   └── OverloadedError                the queue is too long: no new task was created
    │   └── InternalError                      carries a reference to the log, never a cause
    ├── EngineError
    │   ├── ConcurrencyError                   another writer was first: load and try again
    │   ├── LeaseLostError                     another worker runs this task now
    │   ├── DuplicateMessageError              the same message was accepted before
    │   └── StorageError                       locked, read-only, corrupt, full, or of another schema
    │       └── DamagedTaskError               the stored data of one task cannot be read
    ├── PolicyError
    │   ├── CapabilityBlockedError             a capability may not be called, or its result may not be used
    │   └── TaskStoppedError                   the task was ended by its policy
    └── ConfigurationError                     a setting is wrong; the message says which and what is expected

The tables from a reason to the codes of JSON-RPC, HTTP and gRPC are in `errands.wire`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ErrandsError(Exception):
    """The base of every error that errands raises on purpose."""


class A2AError(ErrandsError):
    """An error of the protocol: it may be shown to a client, so it never carries a cause or a secret."""

    #: UPPER_SNAKE name of the error on the wire (`google.rpc.ErrorInfo.reason`).
    reason: ClassVar[str] = "INTERNAL"
    #: The message of an error that is raised without one.
    default_message: ClassVar[str] = "Internal error"

    def __init__(self, message: str | None = None, **metadata: Any) -> None:
        super().__init__(message or self.default_message)
        self.message = message or self.default_message
        #: Short facts for the client, such as the task's id; values are sent as strings.
        self.metadata = metadata

    @property
    def task_id(self) -> str | None:
        """The task that the error is about, if the agent names it."""
        return self.metadata.get("taskId")


class TaskNotFoundError(A2AError):
    """The task does not exist, or it belongs to another owner."""

    reason = "TASK_NOT_FOUND"
    default_message = "Task not found"


class TaskNotCancelableError(A2AError):
    """The task has ended, so it cannot be canceled."""

    reason = "TASK_NOT_CANCELABLE"
    default_message = "Task is not cancelable"


class PushNotificationNotSupportedError(A2AError):
    """The agent does not send push notifications."""

    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    default_message = "This agent does not support push notifications"


class UnsupportedOperationError(A2AError):
    """The agent, the binding or the protocol version does not have this operation, or not in this state."""

    reason = "UNSUPPORTED_OPERATION"
    default_message = "This operation is not supported"


class ExtendedCardNotOfferedError(UnsupportedOperationError):
    """The agent's card offers no extended card."""

    default_message = "This agent has no extended card"


class TaskTerminalStateError(UnsupportedOperationError):
    """The task has ended: no further transition and no further message is possible."""

    default_message = "Task is in a terminal state"


class ContentTypeNotSupportedError(A2AError):
    """The agent does not accept the media type of the body or of a part."""

    reason = "CONTENT_TYPE_NOT_SUPPORTED"
    default_message = "Content type not supported"


class InvalidAgentResponseError(A2AError):
    """The agent broke the protocol."""

    reason = "INVALID_AGENT_RESPONSE"
    default_message = "The agent gave an invalid response"


class IllegalTransitionError(InvalidAgentResponseError):
    """The lifecycle has no transition from the task's state to the new one."""


class TurnError(InvalidAgentResponseError):
    """A handler called a lifecycle method twice, or used its context after the turn had ended."""


class ExtendedAgentCardNotConfiguredError(A2AError):
    """The card offers an extended card, but the server has none."""

    reason = "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
    default_message = "No extended agent card is configured"


class ExtensionSupportRequiredError(A2AError):
    """The agent needs an extension that the client did not declare."""

    reason = "EXTENSION_SUPPORT_REQUIRED"
    default_message = "A required extension was not declared"


class VersionNotSupportedError(A2AError):
    """The server does not speak this version of the protocol."""

    reason = "VERSION_NOT_SUPPORTED"
    default_message = "Protocol version not supported"


class ParseError(A2AError):
    """The request body is not valid JSON."""

    reason = "INVALID_JSON"
    default_message = "Invalid JSON payload"


class InvalidRequestError(A2AError):
    """The request is not valid."""

    reason = "INVALID_REQUEST"
    default_message = "Request payload validation error"


class PayloadTooLargeError(InvalidRequestError):
    """The body is larger than the server accepts: see `Settings.max_body_bytes`."""

    reason = "PAYLOAD_TOO_LARGE"
    default_message = "Request body is too large"


class MethodNotFoundError(A2AError):
    """The method or path does not exist."""

    reason = "METHOD_NOT_FOUND"
    default_message = "Method not found"


class InvalidParamsError(A2AError):
    """Wrong parameters; `field` and `description` become a `google.rpc.BadRequest` field violation."""

    reason = "INVALID_PARAMS"
    default_message = "Invalid parameters"

    def __init__(self, message: str | None = None, *, field: str | None = None, **metadata: Any) -> None:
        super().__init__(message, **metadata)
        self.field = field


class ContextMismatchError(InvalidParamsError):
    """The message names a task and a context that do not belong together."""


class AuthenticationRequiredError(A2AError):
    """No valid credentials; `scheme` and `realm` go into `WWW-Authenticate`."""

    reason = "UNAUTHENTICATED"
    default_message = "Authentication required"

    def __init__(self, message: str | None = None, *, scheme: str = "Bearer", realm: str = "a2a") -> None:
        super().__init__(message)
        self.scheme = scheme
        self.realm = realm


class PermissionDeniedError(A2AError):
    """The caller is authenticated but not allowed to do this."""

    reason = "PERMISSION_DENIED"
    default_message = "Permission denied"


class UnavailableError(A2AError):
    """The server cannot take this request now; the same request may succeed later."""

    reason = "UNAVAILABLE"
    default_message = "The server cannot take this request now; try again later"

    def __init__(self, message: str | None = None, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(UnavailableError):
    """Queued tasks have waited too long, so no new one is accepted; nothing was stored."""

    reason = "OVERLOADED"
    default_message = "The agent is overloaded; try again later"


class InternalError(A2AError):
    """The server failed. The log has the cause under the same reference."""


class EngineError(ErrandsError):
    """A write was refused or the store failed; nothing was changed."""


class ConcurrencyError(EngineError):
    """The task is no longer at the expected version or state: load it and try again."""


class LeaseLostError(EngineError):
    """Another worker has taken over the lease, so writes of this one are refused."""


class DuplicateMessageError(EngineError):
    """The same message was accepted before; `task_id` is the task it created or continued."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"this message was already accepted by task {task_id}")
        self.task_id = task_id


class StorageError(EngineError):
    """The store cannot be used; the message says why and what to do."""


class DamagedTaskError(StorageError):
    """The stored data of a task cannot be read, so the task cannot continue."""


class PolicyError(ErrandsError):
    """A policy forbids what a handler was about to do."""


class CapabilityBlockedError(PolicyError):
    """A capability may not be called, or its result may not be used.

    The message is the policy's and is meant for a model. The handler may continue without the capability.
    """


class TaskStoppedError(PolicyError):
    """The policy has ended the task. Nothing more can be written; the handler should return."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: `limit_exceeded`, `restricted` or `errored`.
        self.reason = reason


class ConfigurationError(ErrandsError, ValueError):
    """A setting or an argument is wrong; the message names it and says what is expected."""
