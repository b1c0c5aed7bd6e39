"""The client of A2A agents. It knows the protocol, and neither runtime, engines nor server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from errands.client.client import A2AClient, TaskPages
from errands.client.conversation import Conversation, ConversationTurn
from errands.client.credentials import (
    ApiKey,
    BasicAuth,
    BearerToken,
    ClientCertificate,
    ClientCredentials,
    Credential,
    TokenExchange,
)
from errands.client.errors import (
    A2AClientError,
    AgentCapabilityError,
    AgentNotFoundError,
    AgentTimeoutError,
    AgentUnreachableError,
    AnswerLostError,
    CardSignatureError,
    CredentialsError,
    FileRefusedError,
    ForeignOriginError,
    NoCommonProtocolError,
    NotConnectedError,
    ProtocolError,
    StreamInterruptedError,
)
from errands.client.results import ArtifactInfo, ClientResult, ListResult, StreamEvent
from errands.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError

if TYPE_CHECKING:
    from errands.client.card_verifier import CardVerifier

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
    "ApiKey",
    "ArtifactInfo",
    "BasicAuth",
    "BearerToken",
    "CardSignatureError",
    "CardVerifier",
    "ClientCertificate",
    "ClientCredentials",
    "ClientResult",
    "Conversation",
    "ConversationTurn",
    "Credential",
    "CredentialsError",
    "FileRefusedError",
    "ForeignOriginError",
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
    "TokenExchange",
]


def __getattr__(name: str) -> Any:
    if name == "CardVerifier":
        from errands.client.card_verifier import CardVerifier  # noqa: PLC0415 - an extra

        return CardVerifier
    raise AttributeError(f"module 'errands.client' has no attribute {name!r}")
