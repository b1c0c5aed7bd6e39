"""PraisonAI's dialect: JSON-RPC like 0.3's, with spellings, error codes and streams of its own.

Reading is as lenient as PraisonAI's own server and drops nothing; writing is what its clients expect. A server uses the
functions and `PraisonStream`, a client speaks through `DIALECT`.

An agent of PraisonAI answers twice, with an artifact and with a message in the history. So what an agent of ours said
in one of these forms is shown in the other one, too.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from errands.errors import (
    A2AError,
    InvalidParamsError,
    MethodNotFoundError,
    ParseError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from errands.model import core, requests
from errands.model.base import A2AObject, Metadata, encode
from errands.model.card import AgentCard
from errands.operations import OPERATIONS, Operation
from errands.wire.bounds import check_outline
from errands.wire.dialect import ClientDialect, Json, MalformedAnswerError
from errands.wire.sse import named, plain_frame
from errands.wire.status import STATUS, from_jsonrpc
from errands.wire.v0_3_card import VERSION, from_v0_3

T = TypeVar("T")

#: The operation of each method. PraisonAI cannot subscribe, and has no push notifications.
METHODS = {
    "message/send": "SendMessage",
    "message/stream": "SendStreamingMessage",
    "tasks/get": "GetTask",
    "tasks/list": "ListTasks",
    "tasks/cancel": "CancelTask",
    "agent/getExtendedCard": "GetExtendedAgentCard",
}

#: PraisonAI has no word for a rejected task; its reason is in the status message.
STATES: dict[core.TaskState, str] = {
    core.UNSPECIFIED: "submitted",
    core.SUBMITTED: "submitted",
    core.WORKING: "working",
    core.COMPLETED: "completed",
    core.FAILED: "failed",
    core.CANCELED: "cancelled",
    core.REJECTED: "failed",
    core.INPUT_REQUIRED: "input_required",
    core.AUTH_REQUIRED: "auth_required",
}
#: Of two states that are spelled alike, the more general one.
_STATES_IN = {name: state for state, name in STATES.items()} | {"submitted": core.SUBMITTED, "failed": core.FAILED}
_ROLES = {"ROLE_UNSPECIFIED": "agent", "ROLE_USER": "user", "ROLE_AGENT": "agent"}
_PART_NAMES = {"url": "fileWithUri", "raw": "fileWithBytes", "filename": "name"}

#: Where its codes are not those of the specification.
CODES = {"TASK_NOT_FOUND": -32000, "PUSH_NOTIFICATION_NOT_SUPPORTED": -32601}
_NOT_FOUND = "Task not found"
_NO_PUSH = "Push notifications not supported"

STATUS_EVENT = "task.status"
ARTIFACT_EVENT = "task.artifact"
DONE_EVENT = "done"
ERROR_EVENT = "error"

#: The most tasks in a listing, which is one array without pages. Only those that fit on one page are listed.
MOST_LISTED = 1000


# What is read, from clients and from agents


class PraisonFile(msgspec.Struct, rename="camel"):
    """The content of a 0.3 file part."""

    uri: str | None = None
    content: bytes | None = msgspec.field(default=None, name="bytes")
    mime_type: str | None = None
    name: str | None = None


class PraisonPart(msgspec.Struct, rename="camel"):
    """A part of any origin: its keys say what it is; `kind` and `type` are not looked at."""

    text: str | None = None
    url: str | None = None
    file_with_uri: str | None = None
    raw: bytes | None = None
    file_with_bytes: bytes | None = None
    file: PraisonFile | None = None
    data: Any | UnsetType = UNSET
    media_type: str | None = None
    snake_media_type: str | None = msgspec.field(default=None, name="media_type")
    mime_type: str | None = None
    filename: str | None = None
    name: str | None = None
    metadata: Metadata | None = None

    def parts(self) -> Iterator[core.Part]:
        """Yield one part for each content that it has: usually one."""
        file = self.file or PraisonFile()
        raws = (self.raw, self.file_with_bytes, file.content)
        contents = {
            "text": self.text,
            "url": self.url or self.file_with_uri or file.uri or None,
            "raw": next((raw for raw in raws if raw is not None), None),
        }
        found: list[dict[str, Any]] = [{name: value} for name, value in contents.items() if value is not None]
        if self.data is not UNSET:
            found.append({"data": self.data})
        for content in found:
            yield core.Part(
                **content,
                media_type=self.media_type or self.snake_media_type or self.mime_type or file.mime_type,
                filename=self.filename or self.name or file.name,
                metadata=self.metadata,
            )


def _read_parts(parts: list[PraisonPart]) -> list[core.Part]:
    return [content for part in parts for content in part.parts()]


def _read(model: type[T], value: msgspec.Struct, **changed: Any) -> T:
    """Return the object of 1.0 with the fields of the same names, but for those that are given."""
    names = [name for name in model.__struct_fields__ if name in value.__struct_fields__]  # type: ignore[attr-defined]
    return model(**{name: getattr(value, name) for name in names} | changed)


class PraisonMessage(msgspec.Struct, rename="camel"):
    parts: list[PraisonPart] = []
    role: str = "user"
    message_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    #: A list of URIs, or PraisonAI's own form, where they are keys.
    extensions: list[str] | dict[str, Any] | None = None
    reference_task_ids: list[str] | None = None

    def read(self, **changed: Any) -> core.Message:
        """Return the message as an agent's answer has it, but for the fields that are given."""
        answer = {
            "message_id": self.message_id or "",
            "role": core.Role.USER if self.role == "user" else core.Role.AGENT,
            "context_id": self.context_id or None,
            "task_id": self.task_id or None,
            "extensions": list(self.extensions or ()) or None,
        }
        changed.setdefault("parts", _read_parts(self.parts))
        return _read(core.Message, self, **answer | changed)


class PraisonStatus(msgspec.Struct):
    state: str
    message: PraisonMessage | None = None
    timestamp: str | None = None

    def read(self) -> core.TaskStatus:
        state = _STATES_IN.get(self.state)
        if state is None:
            raise MalformedAnswerError(f"not the state of a task: {self.state[:100]}")
        message = None if self.message is None else self.message.read()
        timestamp = self.timestamp and self.timestamp.replace("+00:00", "Z")
        return core.TaskStatus(state=state, message=message, timestamp=timestamp)


class PraisonArtifact(msgspec.Struct, rename="camel"):
    artifact_id: str
    parts: list[PraisonPart] = []
    name: str | None = None
    description: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | dict[str, Any] | None = None

    def read(self) -> core.Artifact:
        parts, extensions = _read_parts(self.parts), list(self.extensions or ()) or None
        return _read(core.Artifact, self, parts=parts, extensions=extensions)


class PraisonTask(msgspec.Struct, rename="camel"):
    id: str
    status: PraisonStatus
    context_id: str | None = None
    artifacts: list[PraisonArtifact] | None = None
    history: list[PraisonMessage] | None = None
    metadata: Metadata | None = None

    def read(self) -> core.Task:
        artifacts = [artifact.read() for artifact in self.artifacts or ()] or None
        history = [message.read() for message in self.history or ()] or None
        return _read(core.Task, self, status=self.status.read(), artifacts=artifacts, history=history)


class PraisonEvent(msgspec.Struct, rename="camel"):
    """Either kind of event: its content says which one it is."""

    task_id: str
    context_id: str | None = None
    status: PraisonStatus | None = None
    artifact: PraisonArtifact | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None

    def read(self) -> core.StreamResponse:
        context_id = self.context_id or ""
        if (artifact := self.artifact) is not None:
            update = _read(core.TaskArtifactUpdateEvent, self, context_id=context_id, artifact=artifact.read())
            return core.StreamResponse(artifact_update=update)
        if (status := self.status) is None:
            raise MalformedAnswerError("an event with neither status nor artifact")
        change = _read(core.TaskStatusUpdateEvent, self, context_id=context_id, status=status.read())
        return core.StreamResponse(status_update=change)


# Requests, read as leniently as PraisonAI's own server does


class _PraisonConfiguration(msgspec.Struct, rename="camel"):
    return_immediately: bool = False
    snake_return_immediately: bool = msgspec.field(default=False, name="return_immediately")
    accepted_output_modes: list[str] | None = None
    accept_content_types: list[str] | None = None
    push_notification_config: requests.TaskPushNotificationConfig | None = None


class _SendParams(msgspec.Struct):
    message: PraisonMessage | None = None
    configuration: _PraisonConfiguration | None = None
    metadata: Metadata | None = None


class _TaskParams(msgspec.Struct):
    id: str | None = None


class _ListParams(msgspec.Struct, rename="camel"):
    context_id: str | None = None
    snake_context_id: str | None = msgspec.field(default=None, name="context_id")


def read_request(method: str, params: bytes, max_parts: int) -> tuple[Operation, A2AObject]:
    """Return the operation of a method and its request.

    Raises `MethodNotFoundError`, `InvalidParamsError` with the field, `ParseError`, and `PayloadTooLargeError` for more
    than `max_parts` parts.
    """
    name = METHODS.get(method)
    if name is None:
        is_push = method.startswith("tasks/pushNotificationConfig/")
        raise MethodNotFoundError(f"{_NO_PUSH if is_push else 'Method not found'}: {method[:100]}")
    try:
        if name == "GetExtendedAgentCard":
            return OPERATIONS[name], requests.GetExtendedAgentCardRequest()
        if name in ("SendMessage", "SendStreamingMessage"):
            check_outline(params, max_parts)
            return OPERATIONS[name], _read_send(msgspec.json.decode(params, type=_SendParams))
        if name == "ListTasks":
            listed = msgspec.json.decode(params, type=_ListParams)
            context_id = listed.context_id or listed.snake_context_id or None
            listing = requests.ListTasksRequest(context_id=context_id, page_size=MOST_LISTED, include_artifacts=True)
            return OPERATIONS[name], listing
        task_id = msgspec.json.decode(params, type=_TaskParams).id
    except msgspec.ValidationError as error:
        raise InvalidParamsError(f"Invalid params: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ParseError(f"Invalid JSON payload: {error}") from None
    except RecursionError:
        raise InvalidParamsError("Invalid params: nested too deeply") from None
    if not task_id:
        raise InvalidParamsError("Invalid params: 'id' required", field="id")
    return OPERATIONS[name], OPERATIONS[name].request(id=task_id)


def _read_send(params: _SendParams) -> requests.SendMessageRequest:
    message, wanted = params.message, params.configuration or _PraisonConfiguration()
    if message is None:
        raise InvalidParamsError("Invalid params: 'message' required", field="message")
    if message.role not in ("user", core.Role.USER):
        raise InvalidParamsError(f"Invalid params: role must be 'user', not {message.role[:40]!r}", field="role")
    parts: list[core.Part] = []
    for index, part in enumerate(message.parts):
        contents = list(part.parts())
        if not contents:
            raise InvalidParamsError(
                f"Invalid params: part {index} has no content; give it text, url, fileWithUri, fileWithBytes or data",
                field=f"message.parts[{index}]",
            )
        parts += contents
    if not parts:
        raise InvalidParamsError("Invalid params: Message must contain at least one part", field="message.parts")
    if wanted.push_notification_config is not None:
        raise PushNotificationNotSupportedError(f"{_NO_PUSH}: PraisonAI's dialect has no way to manage them")
    return requests.SendMessageRequest(
        # Not PraisonAI's constant id: two messages with the same id and text would be one message sent twice.
        message=message.read(message_id=message.message_id or uuid.uuid4().hex, role=core.Role.USER, parts=parts),
        configuration=requests.SendMessageConfiguration(
            return_immediately=wanted.return_immediately or wanted.snake_return_immediately,
            accepted_output_modes=wanted.accepted_output_modes or wanted.accept_content_types,
        ),
        metadata=params.metadata,
    )


# Answers. What is written starts from the JSON of 1.0, which may be changed


def write_task(task: core.Task) -> bytes:
    """Return a task as the result of a request."""
    return encode(_write_task(task))


def write_tasks(tasks: list[core.Task]) -> bytes:
    """Return a bare array in the order in which PraisonAI lists: the oldest first."""
    return encode([_write_task(task) for task in reversed(tasks)])


def write_error(error: A2AError) -> dict[str, Any]:
    """Return the `error` member of an answer: a code and a message, nothing else."""
    message = error.message
    if error.reason == "TASK_NOT_FOUND":
        message = f"{_NOT_FOUND}: {error.metadata.get('taskId', '')}"
    elif error.reason == "INVALID_JSON":
        message = "Parse error: invalid JSON"
    elif error.reason == "INVALID_REQUEST":
        message = f"Invalid Request: {message}".replace('"2.0"', "'2.0'")
    return {"code": CODES.get(error.reason, STATUS[error.reason].jsonrpc), "message": message}


def _write_task(task: core.Task) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(task)
    artifacts, history = values.pop("artifacts", []), values.setdefault("history", [])
    if task.status.state is core.COMPLETED:
        if not artifacts:
            artifacts = [_answer_of(task.id, task.status.message)] if task.status.message is not None else []
        elif not history or history[-1]["role"] != core.Role.AGENT:
            parts = [part for artifact in artifacts for part in artifact["parts"]]
            answer = {"messageId": f"{task.id}-answer", "role": "ROLE_AGENT", "parts": parts, "taskId": task.id}
            history.append(answer | ({"contextId": task.context_id} if task.context_id else {}))
    values["history"] = [_write_message(message) for message in history]
    if artifacts:
        values["artifacts"] = [_write_artifact(artifact) for artifact in artifacts]
    values["status"] = _write_status(values["status"])
    return values


def _answer_of(task_id: str, message: core.Message) -> dict[str, Any]:
    """Return what the agent said at the end as an artifact, which has the same id whenever the task is shown."""
    return {"artifactId": f"{task_id}-answer", "parts": msgspec.to_builtins(message.parts)}


def _write_status(status: dict[str, Any]) -> dict[str, Any]:
    status["state"] = STATES[status["state"]]
    if "message" in status:
        status["message"] = _write_message(status["message"])
    if status.get("timestamp", "").endswith("Z"):
        status["timestamp"] = f"{status['timestamp'][:-1]}+00:00"
    return status


def _write_message(message: dict[str, Any]) -> dict[str, Any]:
    return {**_write_artifact(message), "role": _ROLES[message["role"]]}


def _write_artifact(artifact: dict[str, Any]) -> dict[str, Any]:
    """Return an artifact, or a message: both have parts and extensions."""
    parts = [{_PART_NAMES.get(name, name): value for name, value in part.items()} for part in artifact["parts"]]
    written = {**artifact, "parts": parts}
    if uris := written.pop("extensions", None):
        # PraisonAI's types have a text for each extension; A2A has none.
        written["extensions"] = dict.fromkeys(uris, "")
    return written


# Streams: named events without an envelope, and `done` at the end

_decode_event = msgspec.json.Decoder(core.StreamResponse).decode


class PraisonStream:
    """Writes the events of one stream. It remembers whether the agent's answer was among them."""

    def __init__(self) -> None:
        self._has_artifact = False
        self._is_final = False

    def end(self) -> bytes:
        """Return the last frame, which is empty when the server stops before the task does."""
        return _frame(DONE_EVENT, {}) if self._is_final else b""

    def write(self, data: bytes) -> bytes:
        """Return the frames for one event of the log."""
        event = _decode_event(data)
        if event.artifact_update is not None:
            return self._artifact(msgspec.to_builtins(event.artifact_update))
        if event.status_update is not None:
            return self._status(event.status_update)
        if (message := event.message) is not None:
            # A message that is the whole answer, as the end of its task: here there are only tasks.
            status = core.TaskStatus(state=core.COMPLETED, message=message)
            return self._status(_update(message.task_id, message.context_id, status))
        task = event.task
        assert task is not None
        place = {"taskId": task.id, "contextId": task.context_id or ""}
        artifacts = msgspec.to_builtins(task.artifacts or [])
        frames = [self._artifact({**place, "artifact": artifact, "lastChunk": True}) for artifact in artifacts]
        return b"".join([*frames, self._status(_update(task.id, task.context_id, task.status))])

    def _artifact(self, update: dict[str, Any]) -> bytes:
        self._has_artifact = True
        update["artifact"] = _write_artifact(update["artifact"])
        return _frame(ARTIFACT_EVENT, {"append": False, "lastChunk": False, **update})

    def _status(self, update: core.TaskStatusUpdateEvent) -> bytes:
        answer, status = b"", update.status
        if status.state is core.COMPLETED and status.message is not None and not self._has_artifact:
            artifact = _answer_of(update.task_id, status.message)
            place = {"taskId": update.task_id, "contextId": update.context_id}
            answer = self._artifact({**place, "artifact": artifact, "lastChunk": True})
        self._is_final = status.state in core.SETTLED_STATES
        body = msgspec.to_builtins(update)
        body["status"] = _write_status(body["status"])
        return answer + _frame(STATUS_EVENT, {**body, "final": self._is_final})


def _update(task_id: str | None, context_id: str | None, status: core.TaskStatus) -> core.TaskStatusUpdateEvent:
    return core.TaskStatusUpdateEvent(task_id=task_id or "", context_id=context_id or "", status=status)


def error_frame(error: A2AError) -> bytes:
    """Return the last frame of a stream that breaks."""
    return _frame(ERROR_EVENT, write_error(error))


def _frame(name: str, body: dict[str, Any]) -> bytes:
    return named(name, plain_frame(encode(body)))


# The client's side


class PraisonAI(ClientDialect):
    version = VERSION
    media_type = "application/json"
    methods = {method: OPERATIONS[name] for method, name in METHODS.items()}
    lacks = frozenset(OPERATIONS) - frozenset(METHODS.values())

    def write_request(self, operation: Operation, request: A2AObject) -> bytes:
        values = msgspec.to_builtins(request)
        if isinstance(request, requests.SendMessageRequest):
            message, wanted = request.message, request.configuration
            if wanted is not None and wanted.task_push_notification_config is not None:
                raise UnsupportedOperationError("PraisonAI's dialect has no push notifications")
            values["message"] = _write_message(values["message"])
            if not message.context_id and not message.task_id:
                # PraisonAI makes no contexts of its own. The same for every try, so that it stays the same message.
                values["message"]["contextId"] = f"context-{message.message_id}"
            values.get("configuration", {}).pop("historyLength", None)
            return encode({name: values[name] for name in ("message", "configuration", "metadata") if name in values})
        if isinstance(request, requests.ListTasksRequest) and request.page_token:
            raise InvalidParamsError(
                "PraisonAI's dialect lists tasks in one page; leave page_token out", field="pageToken"
            )
        return encode({name: values[name] for name in ("id", "contextId") if name in values})

    def read_response(self, operation: Operation, raw: Json) -> Any:
        response = operation.response
        if response is AgentCard:
            return from_v0_3(raw)
        if response is requests.ListTasksResponse:
            tasks = [task.read() for task in reversed(_decode(list[PraisonTask], raw))]
            return requests.ListTasksResponse(
                tasks=tasks, next_page_token="", page_size=len(tasks), total_size=len(tasks)
            )
        task = _decode(PraisonTask, raw).read()
        return requests.SendMessageResponse(task=task) if response is requests.SendMessageResponse else task

    def read_event(self, raw: Json) -> core.StreamResponse:
        return _decode(PraisonEvent, raw).read()

    def read_jsonrpc_error(self, error: dict[str, Any]) -> A2AError:
        message = str(error.get("message") or "")
        if error.get("code") == CODES["TASK_NOT_FOUND"] and message.startswith(_NOT_FOUND):
            task_id = message.removeprefix(_NOT_FOUND).lstrip(": ")
            details = {"reason": "TASK_NOT_FOUND", "metadata": {"taskId": task_id}}
            return from_jsonrpc({**error, "data": [details]})
        if message.startswith(_NO_PUSH):
            return from_jsonrpc({**error, "data": [{"reason": "PUSH_NOTIFICATION_NOT_SUPPORTED"}]})
        return from_jsonrpc(error)

    def read_http_error(self, status: int, body: Any) -> A2AError | None:
        return None


#: The only instance: a dialect has no state.
DIALECT = PraisonAI()


def _decode(model: type[T], raw: Json) -> T:
    try:
        return msgspec.json.decode(raw, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not an answer of PraisonAI ({error})") from None
