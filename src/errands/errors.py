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
    │   │   └── OverloadedError                more is waiting than can be done: no new task was made
    │   └── InternalError                      carries a correlation id, never a cause
    ├── EngineError
    │   ├── ConcurrencyError                   somebody else wrote first: load and try again
    │   ├── LeaseLostError                     somebody else runs this task now
    │   ├── DuplicateMessageError              this very message was accepted before
    │   └── StorageError                       locked, read-only, corrupt, full, or of another schema
    │       └── DamagedTaskError               what is stored of one task cannot be read
    ├── PolicyError
    │   ├── CapabilityBlockedError             a capability may not be called now, or its result not be used
    │   └── TaskStoppedError                   the task was ended by its policy
    └── ConfigurationError                     a setting is wrong; the message says which and what to do

Nothing here knows JSON-RPC, HTTP or gRPC: the tables from reason to code are in `errands.wire.status`.
"""

from __future__ import annotations

from typing import Any, ClassVar


class ErrandsError(Exception):
    """The root of every error that errands raises on purpose."""


class A2AError(ErrandsError):
    """An error of the protocol: it may be shown to a client, so it never carries a cause or a secret."""

    #: UPPER_SNAKE name of the error on the wire (`google.rpc.ErrorInfo.reason`).
    reason: ClassVar[str] = "INTERNAL"
    #: What the error says when nothing better is known.
    default_message: ClassVar[str] = "Internal error"

    def __init__(self, message: str | None = None, **metadata: Any) -> None:
        super().__init__(message or self.default_message)
        self.message = message or self.default_message
        #: Short facts for the client, such as the task's id; values are sent as strings.
        self.metadata = metadata

    @property
    def task_id(self) -> str | None:
        """The task that the error is about, as far as the agent says so."""
        return self.metadata.get("taskId")


class TaskNotFoundError(A2AError):
    """There is no such task, or it is somebody else's."""

    reason = "TASK_NOT_FOUND"
    default_message = "Task not found"


class TaskNotCancelableError(A2AError):
    """The task has ended, so that there is nothing to cancel."""

    reason = "TASK_NOT_CANCELABLE"
    default_message = "Task is not cancelable"


class PushNotificationNotSupportedError(A2AError):
    """The agent does not send updates by itself."""

    reason = "PUSH_NOTIFICATION_NOT_SUPPORTED"
    default_message = "This agent does not support push notifications"


class UnsupportedOperationError(A2AError):
    """The agent, its binding or the version of the protocol does not have this, or not in this state."""

    reason = "UNSUPPORTED_OPERATION"
    default_message = "This operation is not supported"


class ExtendedCardNotOfferedError(UnsupportedOperationError):
    """The agent's card offers no extended card."""

    default_message = "This agent has no extended card"


class TaskTerminalStateError(UnsupportedOperationError):
    """The task has ended: no further transition and no further message is possible."""

    default_message = "Task is in a terminal state"


class ContentTypeNotSupportedError(A2AError):
    """The body, or a part of the message, is of a type that the agent does not take."""

    reason = "CONTENT_TYPE_NOT_SUPPORTED"
    default_message = "Content type not supported"


class InvalidAgentResponseError(A2AError):
    """What the agent did does not fit the protocol."""

    reason = "INVALID_AGENT_RESPONSE"
    default_message = "The agent gave an invalid response"


class IllegalTransitionError(InvalidAgentResponseError):
    """The lifecycle has no way from the task's state to the wanted one."""


class TurnError(InvalidAgentResponseError):
    """A handler called a lifecycle method twice, or used its context after the turn had ended."""


class ExtendedAgentCardNotConfiguredError(A2AError):
    """The card promises an extended card, and the server has none."""

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
    """The body is no JSON."""

    reason = "INVALID_JSON"
    default_message = "Invalid JSON payload"


class InvalidRequestError(A2AError):
    """It cannot be understood as a request."""

    reason = "INVALID_REQUEST"
    default_message = "Request payload validation error"


class PayloadTooLargeError(InvalidRequestError):
    """The body is larger than the server takes: see `Settings.max_body_bytes`."""

    reason = "PAYLOAD_TOO_LARGE"
    default_message = "Request body is too large"


class MethodNotFoundError(A2AError):
    """There is no such method or path."""

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
    """The caller is known and may not do this."""

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
    """Tasks wait too long already, so that no new one is taken; nothing was stored."""

    reason = "OVERLOADED"
    default_message = "More is waiting than can be done; try again later"


class InternalError(A2AError):
    """Something went wrong inside; the log has the cause under the same correlation id."""


class EngineError(ErrandsError):
    """A write was refused or the store failed; nothing was changed."""


class ConcurrencyError(EngineError):
    """The task is no longer at the expected version or state: load it and try again."""


class LeaseLostError(EngineError):
    """The lease was taken over by another worker: this one's writes are refused."""


class DuplicateMessageError(EngineError):
    """The same message was accepted before; `task_id` is the task it created or continued."""

    def __init__(self, task_id: str) -> None:
        super().__init__(f"this message was already accepted by task {task_id}")
        self.task_id = task_id


class StorageError(EngineError):
    """The store cannot be used as it is; the message says why and what to do."""


class DamagedTaskError(StorageError):
    """Something that is stored of a task cannot be read, so the task cannot go on."""


class PolicyError(ErrandsError):
    """A policy does not let a handler do what it was about to do."""


class CapabilityBlockedError(PolicyError):
    """A capability may not be called, or its result not be used. The message is the policy's, made to be told to a
    model; the handler may go on without the capability."""


class TaskStoppedError(PolicyError):
    """The policy has ended the task: nothing more can be written, and there is nothing left to do but to let go."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        #: `limit_exceeded`, `restricted` or `errored`.
        self.reason = reason


class ConfigurationError(ErrandsError, ValueError):
    """A setting or an argument is wrong; the message names it and says what is possible."""
