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
    │   ├── TooManyPushConfigsError            also raised by engines: a task has as many as are allowed
    │   ├── AuthenticationRequiredError
    │   ├── PermissionDeniedError
    │   ├── UnavailableError                   try again later
    │   │   ├── OverloadedError                the queue is too long: no new task was created
    │   │   └── QuotaError                     this caller has used up what it may use; others have not
    │   │       ├── TooManyRequestsError
    │   │       ├── TooManyTasksError
    │   │       ├── TooManyStreamsError
    │   │       └── TooManyBytesError
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

from collections.abc import Sequence
from typing import Any, ClassVar


class ErrandsError(Exception):
    """The base of every error that errands raises on purpose."""


class A2AError(ErrandsError):
    """An error of the protocol: it may be shown to a client, so it never carries a cause or a secret."""

    #: UPPER_SNAKE name of the error on the wire (`google.rpc.ErrorInfo.reason`).
    reason: ClassVar[str] = "INTERNAL"
    #: The message of an error that is raised without one.
    default_message: ClassVar[str] = "Internal error"

    def __init_subclass__(cls, reason: str | None = None, message: str | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.reason = reason or cls.reason
        cls.default_message = message or cls.default_message

    def __init__(self, message: str | None = None, **metadata: Any) -> None:
        super().__init__(message or self.default_message)
        self.message = message or self.default_message
        #: Short facts for the client, such as the task's id; values are sent as strings.
        self.metadata = metadata

    @property
    def task_id(self) -> str | None:
        """The task that the error is about, if the agent names it."""
        return self.metadata.get("taskId")


class TaskNotFoundError(A2AError, reason="TASK_NOT_FOUND", message="Task not found"):
    """The task does not exist, or it belongs to another owner."""


class TaskNotCancelableError(A2AError, reason="TASK_NOT_CANCELABLE", message="Task is not cancelable"):
    """The task has ended, so it cannot be canceled."""


class PushNotificationNotSupportedError(
    A2AError, reason="PUSH_NOTIFICATION_NOT_SUPPORTED", message="This agent does not support push notifications"
):
    """The agent does not send push notifications."""


class UnsupportedOperationError(A2AError, reason="UNSUPPORTED_OPERATION", message="This operation is not supported"):
    """The agent, the binding or the protocol version does not have this operation, or not in this state."""


class ExtendedCardNotOfferedError(UnsupportedOperationError, message="This agent has no extended card"):
    """The agent's card offers no extended card."""


class TaskTerminalStateError(UnsupportedOperationError, message="Task is in a terminal state"):
    """The task has ended: no further transition and no further message is possible."""


class ContentTypeNotSupportedError(A2AError, reason="CONTENT_TYPE_NOT_SUPPORTED", message="Content type not supported"):
    """The agent does not accept the media type of the body or of a part."""


class InvalidAgentResponseError(
    A2AError, reason="INVALID_AGENT_RESPONSE", message="The agent gave an invalid response"
):
    """The agent broke the protocol."""


class IllegalTransitionError(InvalidAgentResponseError):
    """The lifecycle has no transition from the task's state to the new one."""


class TurnError(InvalidAgentResponseError):
    """A handler called a lifecycle method twice, or used its context after the turn had ended."""


class ExtendedAgentCardNotConfiguredError(
    A2AError, reason="EXTENDED_AGENT_CARD_NOT_CONFIGURED", message="No extended agent card is configured"
):
    """The card offers an extended card, but the server has none."""


class ExtensionSupportRequiredError(
    A2AError, reason="EXTENSION_SUPPORT_REQUIRED", message="A required extension was not declared"
):
    """The agent needs an extension that the client did not declare."""


class VersionNotSupportedError(A2AError, reason="VERSION_NOT_SUPPORTED", message="Protocol version not supported"):
    """The server does not speak this version of the protocol."""


class ParseError(A2AError, reason="INVALID_JSON", message="Invalid JSON payload"):
    """The request body is not valid JSON."""


class InvalidRequestError(A2AError, reason="INVALID_REQUEST", message="Request payload validation error"):
    """The request is not valid."""


class PayloadTooLargeError(InvalidRequestError, reason="PAYLOAD_TOO_LARGE", message="Request body is too large"):
    """The body is larger than the server accepts: see `Settings.max_body_bytes`."""


class MethodNotFoundError(A2AError, reason="METHOD_NOT_FOUND", message="Method not found"):
    """The method or path does not exist."""


class InvalidParamsError(A2AError, reason="INVALID_PARAMS", message="Invalid parameters"):
    """Wrong parameters; `field` and `description` become a `google.rpc.BadRequest` field violation."""

    def __init__(self, message: str | None = None, *, field: str | None = None, **metadata: Any) -> None:
        super().__init__(message, **metadata)
        self.field = field


class ContextMismatchError(InvalidParamsError):
    """The message names a task and a context that do not belong together."""


class TooManyPushConfigsError(
    A2AError, reason="TOO_MANY_PUSH_CONFIGS", message="The task has as many push notification configs as are allowed"
):
    """A task has as many push notification configs as are allowed."""


class AuthenticationRequiredError(A2AError, reason="UNAUTHENTICATED", message="Authentication required"):
    """No valid credentials; `scheme` and `realm`, or `challenges` of several schemes, go into `WWW-Authenticate`."""

    def __init__(
        self,
        message: str | None = None,
        *,
        scheme: str = "Bearer",
        realm: str = "a2a",
        challenges: Sequence[str] = (),
        **metadata: Any,
    ) -> None:
        super().__init__(message, **metadata)
        self.scheme = scheme
        self.realm = realm
        self.challenges = challenges or (f'{scheme} realm="{realm}"',)
        #: In the client: what the agent's card asks for, and the kinds of credentials that were sent.
        self.wanted = ""
        self.tried = ""


class PermissionDeniedError(A2AError, reason="PERMISSION_DENIED", message="Permission denied"):
    """The caller is authenticated but not allowed to do this."""

    #: What goes into `WWW-Authenticate`, if other credentials would help.
    challenges: Sequence[str] = ()


class UnavailableError(
    A2AError, reason="UNAVAILABLE", message="The server cannot take this request now; try again later"
):
    """The server cannot take this request now; the same request may succeed later."""

    def __init__(self, message: str | None = None, *, retry_after: int = 1) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class OverloadedError(UnavailableError, reason="OVERLOADED", message="The agent is overloaded; try again later"):
    """Queued tasks have waited too long, so no new one is accepted; nothing was stored."""


class QuotaError(UnavailableError):
    """This caller has used up what one caller may use; nothing was stored, and other callers are not affected."""


class TooManyRequestsError(QuotaError, reason="TOO_MANY_REQUESTS", message="Too many requests; send them more slowly"):
    """The caller sends requests faster than `Settings.caller_rate` allows."""


class TooManyTasksError(QuotaError, reason="TOO_MANY_TASKS", message="Too many tasks that have not ended"):
    """The caller has as many tasks that have not ended as `Settings.caller_max_tasks` allows."""


class TooManyStreamsError(QuotaError, reason="TOO_MANY_STREAMS", message="Too many open streams; close some"):
    """The caller has as many streams open as `Settings.caller_max_streams` allows."""


class TooManyBytesError(QuotaError, reason="TOO_MANY_BYTES", message="Too many bytes are stored for this caller"):
    """The tasks of the caller take as many bytes in the store as `Settings.caller_max_bytes` allows."""


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
