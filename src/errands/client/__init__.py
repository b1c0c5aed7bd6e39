"""The client of A2A agents. It knows the protocol, and neither runtime, engines nor server."""

from errands.client.client import A2AClient, TaskPages
from errands.client.conversation import Conversation, Turn
from errands.client.errors import (
    A2AClientError,
    AgentCapabilityError,
    AgentNotFoundError,
    AgentTimeoutError,
    AgentUnreachableError,
    AnswerLostError,
    FileRefusedError,
    NoCommonProtocolError,
    NotConnectedError,
    ProtocolError,
    StreamInterruptedError,
)
from errands.client.results import ArtifactInfo, ClientResult, ListResult, StreamEvent
from errands.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

#: a2akit's name for the error of a message to a task that has ended: UNSUPPORTED_OPERATION in the protocol.
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
    "FileRefusedError",
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
