"""Errors of the client itself. Those of the agent arrive as the classes of `errands.errors`.

ErrandsError
└── A2AClientError
    ├── NotConnectedError          the client was used before `connect()` or after `close()`
    ├── AgentNotFoundError         there is no agent card at this address
    ├── CardSignatureError         the agent card is not signed with a key that the caller trusts
    ├── CredentialsError           the credentials cannot be used for this agent, or a token could not be fetched
    │   └── ForeignOriginError     the card leads to another origin, where the credentials must not go
    ├── PrivateAddressError        a card from a public address leads to one that is not public
    ├── AgentUnreachableError      no connection could be made: nothing was sent
    ├── AgentCapabilityError       the agent's card does not offer what the call needs
    │   └── NoCommonProtocolError  the agent speaks no binding and version that this client speaks
    ├── AnswerLostError            sent, but no answer came: the agent may or may not have acted on it
    │   └── AgentTimeoutError      no answer came in time
    ├── StreamInterruptedError     a stream broke and could not be resumed; says where to continue
    ├── ProtocolError              the answer is not A2A
    └── FileRefusedError           the address of a file is not one that this client may use
"""

from __future__ import annotations

from collections.abc import Sequence

from errands.errors import ErrandsError


class A2AClientError(ErrandsError):
    """The root of the client's own errors."""


class NotConnectedError(A2AClientError):
    """The client was used before `connect()` or after `close()`."""

    def __init__(self) -> None:
        super().__init__(
            "the client is not connected: use `async with A2AClient(url)` or call `await client.connect()` first"
        )


class AgentNotFoundError(A2AClientError):
    """No valid agent card was found at `url`; `reason` says what was found instead."""

    def __init__(self, url: str, reason: str) -> None:
        super().__init__(f"no agent found at {url}: {reason}")
        self.url = url
        self.reason = reason


class CardSignatureError(A2AClientError):
    """The card is not signed with a trusted key, so it is not used; `reason` says what is wrong with each signature."""

    def __init__(self, agent_name: str, reason: str) -> None:
        super().__init__(f"the agent card of {agent_name!r} is not trusted: {reason}")
        self.agent_name = agent_name
        self.reason = reason


class CredentialsError(A2AClientError):
    """The credentials do not fit what the card asks for, or no token could be fetched. No secret is part of it."""


class ForeignOriginError(CredentialsError):
    """The card names interfaces at another origin than its own, where the credentials are not sent."""

    def __init__(self, origin: str, foreign: Sequence[str]) -> None:
        super().__init__(
            f"the credentials are for {origin}, and the agent card leads to {', '.join(foreign)}; "
            f"if you trust it, pass allow_origins={list(foreign)!r}"
        )
        self.foreign = list(foreign)


class PrivateAddressError(A2AClientError):
    """A card from a public address names an interface at one that is not public. Nothing was sent there."""

    def __init__(self, origin: str, problem: str) -> None:
        super().__init__(
            f"the agent card, which came from a public address, leads to {origin}, but {problem}; "
            f"if you trust it, pass allow_origins={[origin]!r}"
        )


class AgentUnreachableError(A2AClientError):
    """No connection to the agent could be made. Nothing was sent, so it is safe to call again."""


class AgentCapabilityError(A2AClientError):
    """The agent's card does not offer `capability`, so the call was not made."""

    def __init__(self, agent_name: str, capability: str, message: str | None = None) -> None:
        super().__init__(message or f"agent {agent_name!r} does not offer {capability}")
        self.agent_name = agent_name
        self.capability = capability


class NoCommonProtocolError(AgentCapabilityError):
    """The agent offers no interface that this client can use; `offers` lists those it has."""

    def __init__(self, agent_name: str, wanted: str, offers: Sequence[str]) -> None:
        listed = "; ".join(offers) or "nothing"
        super().__init__(agent_name, wanted, f"agent {agent_name!r} does not offer {wanted}; it offers: {listed}")
        self.offers = list(offers)


class AnswerLostError(A2AClientError):
    """The request was sent and no answer came back: the agent may or may not have acted on it.

    After a send, `message_id` is the id of the message. Send the same content with `message_id=` set to it:
    an agent that recognises repeated messages, as errands does, will not do the work twice.
    """

    def __init__(self, message: str, *, message_id: str | None = None) -> None:
        if message_id is not None:
            message = f"{message}; to send the same message again, pass message_id={message_id!r}"
        super().__init__(message)
        self.message_id = message_id


class AgentTimeoutError(AnswerLostError):
    """The agent did not answer within the timeout; it may still be working."""


class StreamInterruptedError(A2AClientError):
    """A stream broke before the task had ended, and resuming it failed too often in a row.

    The task itself continues: `client.subscribe(task_id, last_event_id=...)` continues after the last event.
    """

    def __init__(self, task_id: str, last_event_id: str | None, why: str) -> None:
        super().__init__(
            f"the stream of task {task_id} was interrupted ({why}); the task may still be running: "
            f"go on with subscribe({task_id!r}, last_event_id={last_event_id!r})"
        )
        self.task_id = task_id
        self.last_event_id = last_event_id


class ProtocolError(A2AClientError):
    """The answer is not what A2A prescribes; `description` says what came."""

    def __init__(self, description: str) -> None:
        super().__init__(f"not an A2A answer: {description}")
        self.description = description


class FileRefusedError(A2AClientError):
    """A file was neither fetched nor sent: its address is not one that this client may use."""
