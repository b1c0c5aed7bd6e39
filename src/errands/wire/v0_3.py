"""A2A 0.3 as JSON: its methods over JSON-RPC, its paths over HTTP+JSON, its errors.

The operations are those of 1.0. `v0_3_objects` knows how their objects are written; over JSON-RPC results are the
objects themselves, told apart by `kind`. Over HTTP+JSON the specification's text writes objects in the same way, but
the official SDKs send and serve the proto in JSON. `REST` is the latter and `REST_PLAIN` the former; `REST_ONCE` is the
latter with files as the JavaScript SDK writes them, and `REST_A2AKIT` is what a2akit speaks. `variant` returns the one
that a request is in. A request without a body is answered as the official SDKs expect it. A client writes as they do
and reads both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from errands import errors
from errands.errors import A2AError, InvalidParamsError
from errands.model import core, requests
from errands.model.base import A2AObject, encode
from errands.model.card import AgentCard
from errands.operations import OPERATIONS, Operation
from errands.wire import v0_3_objects as objects
from errands.wire import v1_0
from errands.wire.dialect import Dialect, Json, Located, MalformedAnswerError, Route, fill_path
from errands.wire.status import ERRORS, STATUS, details_of, from_http, from_jsonrpc, to_jsonrpc
from errands.wire.v0_3_card import VERSION, from_v0_3, to_v0_3

#: For each kind of event the field by which one without `kind` is recognised, the event's name, and its struct.
_KINDS: dict[str, tuple[str, str, type[A2AObject]]] = {
    "message": ("messageId", "message", objects.MessageV03),
    "artifact-update": ("artifact", "artifact_update", objects.ArtifactUpdateV03),
    "status-update": ("taskId", "status_update", objects.StatusUpdateV03),
    "task": ("id", "task", objects.TaskV03),
}


class V03Dialect(Dialect):
    """What the dialects of 0.3 have in common: the responses, and the errors."""

    version = VERSION
    media_type = "application/json"
    ends_at_pause = True
    #: The response of an operation that returns nothing.
    nothing = b"{}"

    def __init__(self, spelling: objects.Spelling) -> None:
        self.spelling = spelling

    # The server's side

    def write_response(self, operation: Operation, result: A2AObject) -> bytes:
        spelling = self.spelling
        match result:
            case requests.SendMessageResponse():
                return encode(self.wrap(spelling.write_event(msgspec.to_builtins(result))))
            case core.Task():
                return encode(spelling.write_task(msgspec.to_builtins(result)))
            case requests.ListTasksResponse():
                listed = msgspec.to_builtins(result)
                for task in listed["tasks"]:
                    spelling.write_task(task)
                return encode(listed)
            case requests.TaskPushNotificationConfig():
                return encode(spelling.write_push_config(result))
            case requests.ListTaskPushNotificationConfigsResponse():
                return encode(self.wrap_configs([spelling.write_push_config(config) for config in result.configs]))
            case AgentCard():
                return to_v0_3(result)
        return self.nothing

    def write_event(self, data: bytes) -> bytes:
        return encode(self.wrap(self.spelling.write_event(msgspec.json.decode(data))))

    def wrap(self, event: dict[str, Any]) -> Any:
        """Return an event or an answer, which is an object under its name, as the binding has it."""
        return event

    def wrap_configs(self, configs: list[dict[str, Any]]) -> Any:
        return configs

    def jsonrpc_error(self, error: A2AError) -> dict[str, Any]:
        return to_jsonrpc(in_0_3(error))

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        error = in_0_3(error)
        status = STATUS[error.reason]
        body: dict[str, Any] = {"code": status.jsonrpc, "message": error.message, "data": details_of(error)}
        if name := _TYPES.get(error.reason):
            body["type"] = name
        return _HTTP.get(error.reason, status.http), body

    # The client's side

    def read_response(self, operation: Operation, raw: Json) -> Any:
        response = operation.response
        if response is requests.SendMessageResponse:
            event = self.read_event(raw)
            if event.task is None and event.message is None:
                raise MalformedAnswerError("neither a task nor a message")
            return requests.SendMessageResponse(task=event.task, message=event.message)
        if response is core.Task:
            return self.read(objects.TaskV03, raw)
        if response is requests.ListTasksResponse:
            return self.read(objects.TaskListV03, raw)
        if response is requests.TaskPushNotificationConfig:
            return self.spelling.read_push_config(v1_0.read_answer(objects.TaskPushConfigV03, raw))
        if response is requests.ListTaskPushNotificationConfigsResponse:
            # A bare list as in the specification's text, or one under `configs` as in its proto.
            found = _decode(raw)
            configs = found.get("configs", []) if isinstance(found, dict) else found
            if not isinstance(configs, list):
                raise MalformedAnswerError("not a list of push notification configs")
            read = [v1_0.read_answer(objects.TaskPushConfigV03, encode(config)) for config in configs]
            return response(configs=[self.spelling.read_push_config(config) for config in read])
        return from_v0_3(raw) if response is AgentCard else requests.Empty()

    def read_event(self, raw: Json) -> core.StreamResponse:
        """Read an object that says by its kind what it is, as some agents write it over HTTP+JSON, too."""
        fields = _decode(raw)
        if not isinstance(fields, dict):
            raise MalformedAnswerError("an event that is not an object")
        kind = fields.get("kind") or next((kind for kind, (field, *_) in _KINDS.items() if field in fields), None)
        if not isinstance(kind, str) or kind not in _KINDS:
            raise MalformedAnswerError("neither a task nor a message nor an update")
        _, name, model = _KINDS[kind]
        return core.StreamResponse(**{name: self.read(model, raw)})

    def read(self, model: type[A2AObject], raw: Json) -> Any:
        """Return what an agent sent as the object of 1.0. Raises `MalformedAnswerError` when it is not a `model`."""
        read = v1_0.read_answer(model, raw)
        try:
            return self.spelling.read(read)
        except (A2AError, ValueError, TypeError) as error:
            raise MalformedAnswerError(f"not a valid {model.__name__.removesuffix('V03')} ({error})") from None

    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        read = from_jsonrpc(error)
        # In 0.3 `data` may be anything. It is kept in `metadata`, unless it has the details of 1.0.
        data = error.get("data")
        if isinstance(data, dict):
            read.metadata |= {str(key): value for key, value in data.items()}
        elif data is not None:
            details = data if isinstance(data, list) else []
            if not details or not all(isinstance(detail, dict) and "@type" in detail for detail in details):
                read.metadata["data"] = data
        return read

    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        """Read a JSON-RPC error (ours and the JavaScript SDK's), a message (a2a-sdk 0.3), or the form of 1.0 (1.x)."""
        if not isinstance(body, dict):
            return None
        if isinstance(body.get("error"), dict):
            return from_http(status, body)
        message = body.get("message")
        if not isinstance(message, str):
            return None
        if isinstance(body.get("code"), int) and body["code"] < 0:
            return self.read_jsonrpc_error(body)
        reason = _REASONS.get(str(body.get("type"))) or _REASON_OF_HTTP.get(status)
        details = None if reason is None else [{"reason": reason}]
        return from_http(status, {"error": {"message": message, "details": details}})


def _decode(raw: Json) -> Any:
    try:
        return msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not valid JSON ({error})") from None


def _with_blocking(operation: Operation, request: Any) -> Any:
    """Return a request that says whether to wait: agents differ in what a missing `blocking` means."""
    if operation.name == "SendMessage" and request.configuration is None:
        return msgspec.structs.replace(request, configuration=requests.SendMessageConfiguration())
    return request


def _parse_state(name: str) -> core.TaskState:
    """Return the state of any spelling, in 0.3 `unknown` too. Raises `InvalidParamsError`."""
    if name == "unknown":
        return core.UNSPECIFIED
    try:
        return core.TaskState.parse(name.upper().replace("CANCELLED", "CANCELED"))
    except ValueError:
        raise InvalidParamsError(f"invalid state {name[:100]!r}", field="status") from None


# JSON-RPC

_METHODS = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    # Over JSON-RPC 0.3 cannot list tasks; this is 1.0's operation in the spelling of 0.3.
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "tasks/resubscribe": "SubscribeToTask",
    "tasks/pushNotificationConfig/set": "CreateTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/get": "GetTaskPushNotificationConfig",
    "tasks/pushNotificationConfig/list": "ListTaskPushNotificationConfigs",
    "tasks/pushNotificationConfig/delete": "DeleteTaskPushNotificationConfig",
    "agent/getAuthenticatedExtendedCard": "GetExtendedAgentCard",
}


class JsonRpcV03(V03Dialect):
    methods = {method: OPERATIONS[name] for method, name in _METHODS.items()}
    nothing = b"null"

    def __init__(self, spelling: objects.Spelling, *, refuses_in_stream: bool) -> None:
        super().__init__(spelling)
        self.refuses_in_stream = refuses_in_stream

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        request = operation.request
        if request is requests.SendMessageRequest:
            return self.spelling.read_send(v1_0.read_body(objects.SendParamsV03, body, fields))
        if request is requests.TaskPushNotificationConfig:
            config = v1_0.read_body(objects.TaskPushConfigV03, body, fields)
            if not config.task_id or config.push_notification_config is None or not config.push_notification_config.url:
                raise InvalidParamsError(
                    "taskId and a pushNotificationConfig with a url are needed", field="pushNotificationConfig"
                )
            return self.spelling.read_push_config(config, with_id=True)
        if "task_id" in request.__struct_fields__:
            params = v1_0.read_body(objects.PushConfigParamsV03, body, fields)
            ids = {"task_id": params.id, "id": params.push_notification_config_id or params.id}
            return request(**{name: value for name, value in ids.items() if name in request.__struct_fields__})
        if request is requests.ListTasksRequest:
            values = v1_0.read_json(body)
            if isinstance(values, dict) and isinstance(values.get("status"), str):
                body = encode(values | {"status": _parse_state(values["status"])})
        return v1_0.read_body(request, body, fields)

    def wrap(self, event: dict[str, Any]) -> Any:
        (written,) = event.values()
        return written

    def write_request(self, operation: Operation, request: Any) -> bytes:
        if isinstance(request, requests.SendMessageRequest):
            return encode(self.spelling.write_send(_with_blocking(operation, request)))
        if isinstance(request, requests.TaskPushNotificationConfig):
            return encode(self.spelling.write_push_config(request))
        values = msgspec.to_builtins(request)
        if "taskId" in values:
            config_id = values.get("id")
            return encode(objects.PushConfigParamsV03(id=request.task_id, push_notification_config_id=config_id))
        if isinstance(request, requests.ListTasksRequest):
            values.pop("tenant", None)
            if request.status is not None:
                values["status"] = self.spelling.states[request.status]
        return encode(values)


# HTTP+JSON

_PATHS = {name: operation.path for name, operation in OPERATIONS.items()} | {"GetExtendedAgentCard": "/card"}
#: Invalid parameters and unsupported operations, for which a2akit has another status than the official SDKs.
_BAD_REQUESTS = (-32602, -32004)


def _routes(prefix: str) -> tuple[Route, ...]:
    # To subscribe, the specification's text says POST; its proto and a2a-sdk 0.3 say GET.
    methods = {"SubscribeToTask": frozenset({"GET", "POST"})}
    return tuple(
        Route(operation, methods.get(name, frozenset({operation.http_method})), prefix + _PATHS[name])
        for name, operation in OPERATIONS.items()
    )


class RestV03(V03Dialect):
    """As the specification's text says, under `/v1`."""

    routes = _routes("/v1")
    #: How a client asks for a stream: see `_routes`.
    subscribe_method = "POST"

    def read_request(self, operation: Operation, body: bytes, fields: Mapping[str, str] | None = None) -> Any:
        if operation.request is requests.SendMessageRequest:
            return self.spelling.read_send(v1_0.read_body(objects.SendParamsV03, body, fields))
        if operation.request is requests.TaskPushNotificationConfig:
            created = v1_0.read_body(objects.CreatePushConfigV03, body, fields)
            holder = created.config or created
            if holder.push_notification_config is None or not holder.push_notification_config.url:
                raise InvalidParamsError(
                    "a push notification config needs a url", field="config.pushNotificationConfig.url"
                )
            holder.task_id = created.task_id or holder.task_id
            return self.spelling.read_push_config(holder, with_id=True)
        return v1_0.read_body(operation.request, body, fields)

    def read_query(self, operation: Operation, values: Mapping[str, str]) -> Any:
        if operation.request is requests.ListTasksRequest and not values.get("status", "0").isdecimal():
            values = {**values, "status": _parse_state(values["status"])}
        return v1_0.JSON.read_query(operation, values)

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        try:
            values = msgspec.json.decode(body or b"{}")
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return REST
        message = _find(values, "message")
        if message is not None:
            is_plain = _find(message, "kind") is not None or _find(message, "role") in ("user", "agent")
        else:
            is_plain = bool(_find(values, "taskId") or _find(values, "config", "taskId"))
        if is_plain:
            return REST_PLAIN
        # a2a-sdk 1.x calls the message `request`.
        parts = _find(values, "request" if message is None else "message", "content")
        files = [_find(part, "file", "fileWithBytes") for part in parts] if isinstance(parts, list) else []
        return REST_ONCE if objects.is_once(software) or any(map(objects.is_encoded_once, files)) else REST

    def write_request(self, operation: Operation, request: A2AObject) -> bytes:
        return self.locate(operation, request).body or b"{}"

    def locate(self, operation: Operation, request: A2AObject) -> Located:
        values = {name: value for name in request.__struct_fields__ if (value := getattr(request, name)) is not None}
        values.pop("tenant", None)
        path = fill_path(f"/v1{_PATHS[operation.name]}", values)
        if isinstance(request, requests.SendMessageRequest):
            return Located("POST", path, {}, encode(self.spelling.write_send(_with_blocking(operation, request))))
        if isinstance(request, requests.TaskPushNotificationConfig):
            return Located("POST", path, {}, encode(self.spelling.write_create(request)))
        if isinstance(request, requests.CancelTaskRequest):
            return Located("POST", path, {}, encode({"name": f"tasks/{request.id}"}))
        if isinstance(request, requests.ListTasksRequest) and request.status is not None:
            values["status"] = self.spelling.states[request.status]
        names = dict(zip(request.__struct_fields__, request.__struct_encode_fields__, strict=True))
        query = {names[name]: v1_0.query_value(value) for name, value in values.items()}
        return Located(self.subscribe_method if operation.streams else operation.http_method, path, query, None)

    def read_event(self, raw: Json) -> core.StreamResponse:
        read: core.StreamResponse = self.read(objects.StreamResponseV03, raw)
        # Some agents answer with the object itself.
        return read if read != core.StreamResponse() else super().read_event(raw)


class A2akitRest(RestV03):
    """As a2akit does: paths without `/v1`, and answers and events that are the task or message itself."""

    routes = _routes("")

    def wrap(self, event: dict[str, Any]) -> Any:
        return JSONRPC.wrap(event)

    def http_error(self, error: A2AError) -> tuple[int, dict[str, Any]]:
        status, body = super().http_error(error)
        if isinstance(error, errors.TaskTerminalStateError):
            return 409, body
        return 400 if body["code"] in _BAD_REQUESTS else status, body

    def variant(self, body: bytes, software: bytes = b"") -> Dialect:
        return self


class SdkRest(RestV03):
    """As the official SDKs do."""

    subscribe_method = "GET"

    def wrap_configs(self, configs: list[dict[str, Any]]) -> Any:
        return {"configs": configs}


def _find(value: Any, *names: str) -> Any:
    """Return the value under these names in nested objects; None if it is missing."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


# Clients of 0.3 take any other answer to a request for a stream for a broken one, and never see the error in it.
JSONRPC = JsonRpcV03(objects.SCHEMA, refuses_in_stream=True)
#: As a2akit's client means and reads it.
JSONRPC_A2AKIT = JsonRpcV03(objects.A2AKIT, refuses_in_stream=False)
REST_PLAIN = RestV03(objects.SCHEMA)
REST_A2AKIT = A2akitRest(objects.A2AKIT)
REST = SdkRest(objects.PROTO)
REST_ONCE = SdkRest(objects.PROTO_ONCE)


# Errors: the codes of JSON-RPC are those of 1.0, HTTP+JSON has statuses and a body of its own. The specification leaves
# that body open. This one is read by the official SDKs: `message` for all, `type` for the Python one, `code` and `data`
# as over JSON-RPC for the JavaScript one.

#: Where the status is another one than in 1.0.
_HTTP = {
    "INVALID_PARAMS": 422,
    "TASK_NOT_CANCELABLE": 409,
    "PUSH_NOTIFICATION_NOT_SUPPORTED": 501,
    "UNSUPPORTED_OPERATION": 501,
    "CONTENT_TYPE_NOT_SUPPORTED": 415,
    "INVALID_AGENT_RESPONSE": 502,
    "EXTENDED_AGENT_CARD_NOT_CONFIGURED": 404,
}
#: The names of the errors that the specification has: those of our classes but for one.
_TYPES = {
    reason: cls.__name__
    for reason, cls in ERRORS.items()
    if STATUS[reason].jsonrpc not in range(-32099, -32090) and reason != "PAYLOAD_TOO_LARGE"
} | {"INVALID_JSON": "JSONParseError"}
_REASONS = {name: reason for reason, name in _TYPES.items()} | {
    "AuthenticatedExtendedCardNotConfiguredError": "EXTENDED_AGENT_CARD_NOT_CONFIGURED"
}
#: What a status means without a `type`, as from a2a-sdk 0.3.
_REASON_OF_HTTP = {
    404: "TASK_NOT_FOUND",
    409: "TASK_NOT_CANCELABLE",
    415: "CONTENT_TYPE_NOT_SUPPORTED",
    422: "INVALID_PARAMS",
    501: "UNSUPPORTED_OPERATION",
}


def in_0_3(error: A2AError) -> A2AError:
    """Return the error that 0.3 has for this one: the same for an extended card not offered and not configured."""
    if isinstance(error, errors.ExtendedCardNotOfferedError):
        return errors.ExtendedAgentCardNotConfiguredError(error.message)
    return error
