"""A2A 0.3 over JSON-RPC, spelled as its JSON schema says. Results are the objects themselves, told apart by `kind`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from errands.errors import InvalidParamsError, UnsupportedOperationError
from errands.model import core
from errands.model.base import Model, encode
from errands.model.requests import (
    DeleteTaskPushNotificationConfigRequest,
    GetTaskPushNotificationConfigRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS, Operation
from errands.wire import v1_0
from errands.wire.dialect import Json, Located, MalformedAnswerError
from errands.wire.v0_3 import models
from errands.wire.v0_3.legacy import LegacyDialect, parse_state, with_blocking
from errands.wire.v0_3.schema_spelling import A2AKIT, SCHEMA

_METHODS = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    # Over JSON-RPC 0.3 has no way to list tasks; this is 1.0's in the spelling of 0.3.
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}
_METHOD_OF = {name: method for method, name in _METHODS.items()}

_EVENTS: msgspec.json.Decoder[Any] = msgspec.json.Decoder(models.Event)
#: How an object without `kind` is recognised: the first of these fields that it has.
_TELLING_FIELDS: tuple[tuple[str, type[Model]], ...] = (
    ("messageId", models.Message),
    ("artifact", models.TaskArtifactUpdateEvent),
    ("taskId", models.TaskStatusUpdateEvent),
    ("id", models.Task),
)


class JsonRpcDialect(LegacyDialect):
    methods = {method: OPERATIONS[name] for method, name in _METHODS.items()}
    # Clients of 0.3 take any other answer for a broken stream, and never see the error in it.
    refuses_in_stream = True

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        if operation.request is SendMessageRequest:
            return self.spelling.read_send(v1_0.read_body(models.MessageSendParams, body, fields))
        known = _PARAMS.get(operation.request)
        if known is None:
            return v1_0.read_body(operation.request, body, fields)
        model, convert = known
        return convert(v1_0.read_body(model, body, fields))

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        raise UnsupportedOperationError("JSON-RPC takes its parameters from the body")

    def write_stream_response(self, event: core.StreamResponse) -> Model:
        spelling, written = self.spelling, None
        if event.status_update is not None:
            written = spelling.write_status_update(event.status_update)
        elif event.artifact_update is not None:
            written = spelling.write_artifact_update(event.artifact_update)
        elif event.task is not None:
            written = spelling.write_task(event.task)
        elif event.message is not None:
            written = spelling.write_message(event.message)
        assert isinstance(written, Model)
        return written

    def write_nothing(self) -> bytes:
        return b"null"

    def method_of(self, operation: Operation) -> str:
        return _METHOD_OF[operation.name]

    def write_request(self, operation: Operation, request: Model) -> bytes:
        request = with_blocking(operation, request)
        write = _WRITERS.get(type(request))
        return encode(request if write is None else write(request))

    def locate(self, operation: Operation, request: Model) -> Located:
        raise UnsupportedOperationError("JSON-RPC has one address for all operations")

    def read_event(self, raw: Json) -> core.StreamResponse:
        try:
            event = _EVENTS.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            event = _read_without_kind(raw)
        spelling = self.spelling
        if isinstance(event, models.TaskStatusUpdateEvent):
            return core.StreamResponse(status_update=spelling.read_status_update(event))
        if isinstance(event, models.TaskArtifactUpdateEvent):
            return core.StreamResponse(artifact_update=spelling.read_artifact_update(event))
        if isinstance(event, models.Task):
            return core.StreamResponse(task=spelling.read_task(event))
        return core.StreamResponse(message=spelling.read_message(event))


class A2akitJsonRpcDialect(JsonRpcDialect):
    """As a2akit's client means and reads it."""

    refuses_in_stream = False


def _read_without_kind(raw: Json) -> Model:
    try:
        fields = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"no JSON ({error})") from None
    for name, model in _TELLING_FIELDS if isinstance(fields, dict) else ():
        if name in fields:
            return v1_0.read_answer(model, raw)
    raise MalformedAnswerError("neither a task nor a message nor an update")


def _read_list(params: models.TaskListParams) -> ListTasksRequest:
    return ListTasksRequest(
        context_id=params.context_id,
        status=None if params.status is None else parse_state(params.status),
        page_size=params.page_size,
        page_token=params.page_token,
        history_length=params.history_length,
        status_timestamp_after=params.status_timestamp_after,
        include_artifacts=params.include_artifacts,
    )


def _write_list(request: ListTasksRequest) -> models.TaskListParams:
    return models.TaskListParams(
        context_id=request.context_id,
        status=None if request.status is None else SCHEMA.states[request.status],
        page_size=request.page_size,
        page_token=request.page_token,
        history_length=request.history_length,
        status_timestamp_after=request.status_timestamp_after,
        include_artifacts=request.include_artifacts,
    )


def _read_set(params: models.TaskPushNotificationConfig) -> TaskPushNotificationConfig:
    if not params.task_id or params.push_notification_config is None:
        raise InvalidParamsError("taskId and pushNotificationConfig are needed", field="pushNotificationConfig")
    config = SCHEMA.read_push_config(params)
    # In 0.3 a config without an id is the task's only one, and goes by the task's id.
    config.id = config.id or config.task_id
    return config


def _read_get(params: models.PushNotificationConfigParams) -> GetTaskPushNotificationConfigRequest:
    return GetTaskPushNotificationConfigRequest(task_id=params.id, id=params.push_notification_config_id or params.id)


def _read_delete(params: models.PushNotificationConfigParams) -> DeleteTaskPushNotificationConfigRequest:
    return DeleteTaskPushNotificationConfigRequest(
        task_id=params.id, id=params.push_notification_config_id or params.id
    )


def _write_named(
    request: GetTaskPushNotificationConfigRequest | DeleteTaskPushNotificationConfigRequest,
) -> models.PushNotificationConfigParams:
    return models.PushNotificationConfigParams(id=request.task_id, push_notification_config_id=request.id)


#: Requests that 0.3 spells in another way: the struct they are read as, and how that becomes ours.
_PARAMS: dict[type[Model], tuple[type[Model], Callable[[Any], Model]]] = {
    ListTasksRequest: (models.TaskListParams, _read_list),
    TaskPushNotificationConfig: (models.TaskPushNotificationConfig, _read_set),
    GetTaskPushNotificationConfigRequest: (models.PushNotificationConfigParams, _read_get),
    DeleteTaskPushNotificationConfigRequest: (models.PushNotificationConfigParams, _read_delete),
    ListTaskPushNotificationConfigsRequest: (
        models.PushNotificationConfigParams,
        lambda params: ListTaskPushNotificationConfigsRequest(task_id=params.id),
    ),
}
_WRITERS: dict[type[Model], Callable[[Any], Model]] = {
    SendMessageRequest: SCHEMA.write_send,
    ListTasksRequest: _write_list,
    TaskPushNotificationConfig: SCHEMA.write_push_config,
    GetTaskPushNotificationConfigRequest: _write_named,
    DeleteTaskPushNotificationConfigRequest: _write_named,
    ListTaskPushNotificationConfigsRequest: lambda request: models.PushNotificationConfigParams(id=request.task_id),
}

#: 0.3 over JSON-RPC.
JSONRPC = JsonRpcDialect(SCHEMA)
JSONRPC_A2AKIT = A2akitJsonRpcDialect(A2AKIT)
