"""The client of A2A agents. It knows the protocol and nothing of runtime, engines or server."""

from errands.client.client import A2AClient
from errands.client.conversation import Conversation, Turn
from errands.client.errors import (
    A2AClientError,
    AgentCapabilityError,
    AgentNotFoundError,
    AgentTimeoutError,
    AgentUnreachableError,
    AnswerLostError,
    NoCommonProtocolError,
    NotConnectedError,
    ProtocolError,
    StreamInterruptedError,
)
from errands.client.pages import TaskPages
from errands.client.result import ArtifactInfo, ClientResult, ListResult, StreamEvent
from errands.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

#: a2akit's name for what a message to an ended task runs into; the protocol calls it UNSUPPORTED_OPERATION.
TaskTerminalError = UnsupportedOperationError

__all__ = [
    "A2AClient",
    "A2AClientError",
    "AgentCapabilityError",
    "AgentNotFoundError",
    "AgentTimeoutError",
    "AgentUnreachableError",
    "AnswerLostError",
    "ArtifactInfo",
    "ClientResult",
    "Conversation",
    "ListResult",
    "NoCommonProtocolError",
    "NotConnectedError",
    "ProtocolError",
    "StreamEvent",
    "StreamInterruptedError",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskPages",
    "TaskTerminalError",
    "Turn",
]
