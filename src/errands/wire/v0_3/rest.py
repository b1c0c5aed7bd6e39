"""A2A 0.3 over HTTP+JSON, under `/v1`.

The specification's text writes objects as over JSON-RPC; the official SDKs send and serve the proto in JSON. `REST` is
the latter and `REST_PLAIN` the former; `REST_ONCE` is the latter with files as the JavaScript SDK writes them, and
`REST_A2AKIT` is what a2akit speaks. `variant` tells which of them a request is in. A request without a body is answered
as the official SDKs expect it. A client writes as they do and reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from errands.errors import A2AError, InvalidParamsError, TaskTerminalStateError, UnsupportedOperationError
from errands.model import core
from errands.model.base import Model, encode
from errands.model.requests import (
    CancelTaskRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS, Operation
from errands.wire import v1_0
from errands.wire.dialect import Dialect, Json, Located, MalformedAnswerError, Route, fill_path
from errands.wire.v0_3 import proto
from errands.wire.v0_3.file_bytes import decoded_again, is_once
from errands.wire.v0_3.jsonrpc import JSONRPC
from errands.wire.v0_3.legacy import LegacyDialect, parse_state, with_blocking
from errands.wire.v0_3.proto_spelling import PROTO, PROTO_ONCE
from errands.wire.v0_3.schema_spelling import A2AKIT, SCHEMA

_PATHS = {name: f"/v1{operation.path}" for name, operation in OPERATIONS.items()} | {"GetExtendedAgentCard": "/v1/card"}


#: Invalid parameters and unsupported operations, for which a2akit has another status than the official SDKs.
_BAD_REQUESTS = (-32602, -32004)


def _route(operation: Operation, prefix: str = "/v1") -> Route:
    # To subscribe, the specification's text says POST; its proto and a2a-sdk 0.3 say GET.
    methods = {"GET", "POST"} if operation.name == "SubscribeToTask" else {operation.http_method}
    return Route(operation, frozenset(methods), prefix + _PATHS[operation.name].removeprefix("/v1"))


class RestDialect(LegacyDialect):
    """As the specification's text says."""

    routes = tuple(_route(operation) for operation in OPERATIONS.values())
    #: How a client asks for a stream: see `_route`.
    subscribe_method = "POST"

    # What a server does

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        if operation.request is SendMessageRequest:
            return self.spelling.read_send(v1_0.read_body(self.spelling.send_params, body, fields))
        if operation.request is TaskPushNotificationConfig:
            return self._read_create(v1_0.read_body(self.spelling.create_params, body, fields))
        return v1_0.read_body(operation.request, body, fields)

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        if operation.request is ListTasksRequest and not values.get("status", "0").isdecimal():
            values = {**values, "status": parse_state(values["status"])}
        return v1_0.JSON.read_query(operation, values)

    def write_stream_response(self, event: core.StreamResponse) -> Model:
        spelling = self.spelling
        task, message, status, artifact = event.task, event.message, event.status_update, event.artifact_update
        written: Model = spelling.models.StreamResponse(
            task=None if task is None else spelling.write_task(task),
            message=None if message is None else spelling.write_message(message),
            status_update=None if status is None else spelling.write_status_update(status),
            artifact_update=None if artifact is None else spelling.write_artifact_update(artifact),
        )
        return written

    def write_nothing(self) -> bytes:
        return b"{}"

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        once = is_once(software)
        try:
            found = _PROBE.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = _Probe()
        if found.is_plain:
            return REST_PLAIN
        return REST_ONCE if once or found.has_bare_file else REST

    def _read_create(self, created: Any) -> TaskPushNotificationConfig:
        """The config is under `config` or is the body itself; the path's task wins."""
        holder = created.config or created
        if holder.push_notification_config is None or not holder.push_notification_config.url:
            raise InvalidParamsError(
                "a push notification config needs a url", field="config.pushNotificationConfig.url"
            )
        config = self.spelling.read_push_config(holder)
        config.task_id = created.task_id or config.task_id
        config.id = config.id or config.task_id
        return config

    # What a client does

    def method_of(self, operation: Operation) -> str:
        raise UnsupportedOperationError("HTTP+JSON has paths and no methods")

    def write_request(self, operation: Operation, request: Model) -> bytes:
        return self.locate(operation, request).body or b"{}"

    def locate(self, operation: Operation, request: Model) -> Located:
        values = {name: value for name in request.__struct_fields__ if (value := getattr(request, name)) is not None}
        values.pop("tenant", None)
        path = fill_path(_PATHS[operation.name], values)
        if isinstance(request, SendMessageRequest):
            return Located("POST", path, {}, encode(self.spelling.write_send(with_blocking(operation, request))))
        if isinstance(request, TaskPushNotificationConfig):
            return Located("POST", path, {}, encode(self.spelling.write_create(request)))
        if isinstance(request, CancelTaskRequest):
            return Located("POST", path, {}, encode({"name": f"tasks/{request.id}"}))
        if isinstance(request, ListTasksRequest) and request.status is not None:
            values["status"] = self.spelling.states[request.status]
        names = dict(zip(request.__struct_fields__, request.__struct_encode_fields__, strict=True))
        query = {names[name]: v1_0.query_value(value) for name, value in values.items()}
        return Located(self.subscribe_method if operation.streams else operation.http_method, path, query, None)

    def read_event(self, raw: Json) -> core.StreamResponse:
        spelling = self.spelling
        found = v1_0.read_answer(spelling.models.StreamResponse, raw)
        if found.status_update is not None:
            return core.StreamResponse(status_update=spelling.read_status_update(found.status_update))
        if found.artifact_update is not None:
            return core.StreamResponse(artifact_update=spelling.read_artifact_update(found.artifact_update))
        if found.task is not None:
            return core.StreamResponse(task=spelling.read_task(found.task))
        if found.message is not None:
            return core.StreamResponse(message=spelling.read_message(found.message))
        # Some agents answer with the object itself.
        return JSONRPC.read_event(raw)


class A2akitRestDialect(RestDialect):
    """As a2akit does: paths without `/v1`, and answers and events that are the task or message itself."""

    routes = tuple(_route(operation, "") for operation in OPERATIONS.values())

    def write_stream_response(self, event: core.StreamResponse) -> Model:
        return JSONRPC.write_stream_response(event)

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        status, body = super().http_error(error)
        if isinstance(error, TaskTerminalStateError):
            return 409, body
        return 400 if body["code"] in _BAD_REQUESTS else status, body

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        return self


class SdkRestDialect(RestDialect):
    """As the official SDKs do. Answers of agents that do as the text says are understood too."""

    subscribe_method = "GET"

    def write_push_configs(self, listed: ListTaskPushNotificationConfigsResponse) -> Model:
        return proto.TaskPushNotificationConfigList(configs=super().write_push_configs(listed))

    def read_response(self, operation: Operation, raw: Json) -> Any:
        try:
            return super().read_response(operation, raw)
        except MalformedAnswerError:
            return REST_PLAIN.read_response(operation, raw)

    def read_event(self, raw: Json) -> core.StreamResponse:
        try:
            return super().read_event(raw)
        except MalformedAnswerError:
            return REST_PLAIN.read_event(raw)


class _File(msgspec.Struct):
    fileWithBytes: bytes | None = None  # noqa: N815


class _Part(msgspec.Struct):
    file: _File | None = None


class _Message(msgspec.Struct):
    role: Any = None
    kind: Any = None
    content: list[_Part] = []


class _Config(msgspec.Struct):
    taskId: Any = None  # noqa: N815


class _Probe(msgspec.Struct):
    """As much of a body as tells how it is spelled."""

    message: _Message | None = None
    #: The message, as a2a-sdk 1.x names it.
    request: _Message | None = None
    config: _Config | None = None
    taskId: Any = None  # noqa: N815

    @property
    def is_plain(self) -> bool:
        if self.message is not None:
            return self.message.kind is not None or self.message.role in ("user", "agent")
        return bool(self.taskId or (self.config is not None and self.config.taskId))

    @property
    def has_bare_file(self) -> bool:
        message = self.message or self.request
        files = [part.file.fileWithBytes for part in message.content if part.file] if message else []
        return any(content is not None and decoded_again(content) is None for content in files)


_PROBE = msgspec.json.Decoder(_Probe)

REST_PLAIN = RestDialect(SCHEMA)
REST_A2AKIT = A2akitRestDialect(A2AKIT)
REST = SdkRestDialect(PROTO)
REST_ONCE = SdkRestDialect(PROTO_ONCE)
