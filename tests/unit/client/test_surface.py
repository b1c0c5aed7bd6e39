"""The public names: a program written for a2akit finds everything it used."""

from __future__ import annotations

import inspect
import typing

import pytest

from errands import client as package
from errands.client import A2AClient, A2AClientError, ClientResult, ListResult, StreamEvent, errors
from errands.client.conversation import MessageOptions
from errands.errors import ErrandsError

A2AKIT_NAMES = {
    "A2AClient",
    "A2AClientError",
    "AgentCapabilityError",
    "AgentNotFoundError",
    "ArtifactInfo",
    "ClientResult",
    "ListResult",
    "NotConnectedError",
    "ProtocolError",
    "StreamEvent",
    "TaskNotCancelableError",
    "TaskNotFoundError",
    "TaskTerminalError",
}
_PLACE = {"task_id", "context_id", "metadata"}
A2AKIT_METHODS = {
    "__init__": {"url", "headers", "timeout", "protocol", "httpx_client", "card_validator"}
    | {"max_retries", "retry_delay", "retry_on"},
    "connect": set(),
    "close": set(),
    "send": {"text", *_PLACE, "blocking", "push_url", "push_token"},
    "send_parts": {"parts", *_PLACE, "blocking", "push_notification_config"},
    "stream": {"text", *_PLACE},
    "stream_text": {"text", *_PLACE},
    "get_task": {"task_id", "history_length"},
    "list_tasks": {"context_id", "status", "page_size", "page_token", "history_length"},
    "cancel": {"task_id"},
    "subscribe": {"task_id", "last_event_id"},
    "set_push_config": {"task_id", "url", "token", "config_id", "authentication"},
    "get_push_config": {"task_id", "config_id"},
    "list_push_configs": {"task_id"},
    "delete_push_config": {"task_id", "config_id"},
    "get_extended_card": set(),
}


def test_every_name_of_a2akits_client_is_here() -> None:
    assert set(package.__all__) >= A2AKIT_NAMES
    assert all(hasattr(package, name) for name in package.__all__)


@pytest.mark.parametrize("method", A2AKIT_METHODS)
def test_every_argument_of_a2akits_client_is_taken(method: str) -> None:
    parameters = inspect.signature(getattr(A2AClient, method)).parameters
    taken = set(parameters)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        taken |= set(typing.get_type_hints(MessageOptions))
    assert taken >= A2AKIT_METHODS[method]


def test_every_property_of_a2akits_client_is_here() -> None:
    for name in ("agent_card", "agent_name", "capabilities", "protocol", "is_connected"):
        assert isinstance(inspect.getattr_static(A2AClient, name), property)


def test_results_and_events_have_a2akits_attributes() -> None:
    result = {"task_id", "context_id", "state", "text", "data", "artifacts", "raw_task", "raw_message"}
    assert set(dir(ClientResult)) >= result | {"from_task", "from_message", "is_terminal"}
    event = {"kind", "state", "text", "data", "artifact_id", "is_final", "raw", "task_id", "event_id"}
    assert set(dir(StreamEvent)) >= event
    assert ListResult().tasks == []


def test_the_error_tree_in_the_docstring_is_the_error_tree() -> None:
    def tree(cls: type[Exception]) -> list[str]:
        return [name for sub in cls.__subclasses__() for name in (sub.__name__, *tree(sub))]

    drawn = [line.split("── ")[1].split()[0] for line in (errors.__doc__ or "").splitlines() if "── " in line]
    assert drawn == ["A2AClientError", *tree(A2AClientError)]
    assert issubclass(A2AClientError, ErrandsError)
