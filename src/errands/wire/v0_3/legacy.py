"""What the dialects of A2A 0.3 have in common over JSON-RPC and HTTP+JSON: the answers, and the errors in them."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec

from errands.errors import A2AError, InvalidParamsError
from errands.model import core
from errands.model.base import Model, encode
from errands.model.card import AgentCard
from errands.model.requests import (
    Empty,
    ListTaskPushNotificationConfigsResponse,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageResponse,
    TaskPushNotificationConfig,
)
from errands.operations import Operation
from errands.wire.dialect import Dialect, Json, MalformedAnswerError
from errands.wire.status import to_jsonrpc
from errands.wire.v0_3.card import VERSION, from_v0_3, to_v0_3
from errands.wire.v0_3.errors import in_0_3, read_http, read_jsonrpc, to_http
from errands.wire.v0_3.spelling import Spelling
from errands.wire.v1_0 import read_answer

_decode_logged = msgspec.json.Decoder(core.StreamResponse).decode


class LegacyDialect(Dialect):
    version = VERSION
    media_type = "application/json"
    ends_at_pause = True

    def __init__(self, spelling: Spelling) -> None:
        self.spelling = spelling

    # What a server does

    def write_response(self, operation: Operation, result: Model) -> bytes:
        spelling = self.spelling
        if isinstance(result, SendMessageResponse):
            return encode(self.write_stream_response(core.StreamResponse(task=result.task, message=result.message)))
        if isinstance(result, core.Task):
            return encode(spelling.write_task(result))
        if isinstance(result, ListTasksResponse):
            return encode(spelling.write_list(result))
        if isinstance(result, TaskPushNotificationConfig):
            return encode(spelling.write_push_config(result))
        if isinstance(result, ListTaskPushNotificationConfigsResponse):
            return encode(self.write_push_configs(result))
        if isinstance(result, AgentCard):
            return to_v0_3(result)
        return self.write_nothing()

    def write_event(self, data: bytes) -> bytes:
        return encode(self.write_stream_response(_decode_logged(data)))

    @abstractmethod
    def write_stream_response(self, event: core.StreamResponse) -> Model: ...

    @abstractmethod
    def write_nothing(self) -> bytes: ...

    def write_push_configs(self, listed: ListTaskPushNotificationConfigsResponse) -> Any:
        return [self.spelling.write_push_config(config) for config in listed.configs]

    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        return to_jsonrpc(in_0_3(error))

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        return to_http(in_0_3(error))

    # What a client does

    def read_response(self, operation: Operation, raw: Json) -> Any:
        response, spelling, models = operation.response, self.spelling, self.spelling.models
        if response is SendMessageResponse:
            return _sent(self.read_event(raw))
        if response is core.Task:
            return spelling.read_task(read_answer(models.Task, raw))
        if response is ListTasksResponse:
            return spelling.read_list(read_answer(models.TaskList, raw))
        if response is TaskPushNotificationConfig:
            return spelling.read_push_config(read_answer(models.TaskPushNotificationConfig, raw))
        if response is ListTaskPushNotificationConfigsResponse:
            return self._read_push_configs(raw)
        if response is AgentCard:
            return from_v0_3(raw)
        return Empty()

    def _read_push_configs(self, raw: Json) -> ListTaskPushNotificationConfigsResponse:
        """A bare list as in the specification's text, or one under `configs` as in its proto."""
        try:
            found = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise MalformedAnswerError(f"no JSON ({error})") from None
        configs = found.get("configs", []) if isinstance(found, dict) else found
        if not isinstance(configs, list):
            raise MalformedAnswerError("no list of push notification configs")
        model = self.spelling.models.TaskPushNotificationConfig
        return ListTaskPushNotificationConfigsResponse(
            configs=[self.spelling.read_push_config(read_answer(model, encode(config))) for config in configs]
        )

    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        return read_jsonrpc(error)

    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        return read_http(status, body)


def _sent(event: core.StreamResponse) -> SendMessageResponse:
    if event.task is None and event.message is None:
        raise MalformedAnswerError("neither a task nor a message")
    return SendMessageResponse(task=event.task, message=event.message)


def with_blocking(operation: Operation, request: Any) -> Any:
    """Say whether a send should wait: what a missing `blocking` means differs from agent to agent."""
    if operation.name == "SendMessage" and request.configuration is None:
        return msgspec.structs.replace(request, configuration=SendMessageConfiguration())
    return request


def parse_state(name: str) -> core.TaskState:
    """The state of any spelling, in 0.3 `unknown` too. Raises `InvalidParamsError`."""
    if name == "unknown":
        return core.UNSPECIFIED
    try:
        return core.TaskState.parse(name.upper().replace("CANCELLED", "CANCELED"))
    except ValueError:
        raise InvalidParamsError(f"no such state: {name[:100]}", field="status") from None
