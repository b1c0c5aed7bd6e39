"""PraisonAI's dialect: JSON-RPC like 0.3's, with spellings, error codes and streams of its own.

Reading is as lenient as PraisonAI's own server and drops nothing; writing is what its clients expect. An agent there
answers twice, with an artifact and with a message in the history, so what an agent of ours said in one of these forms
is shown in the other one too. Server side only: errands' client speaks to such an agent as to one of 0.3.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from errands.errors import A2AError, InvalidParamsError, MethodNotFoundError
from errands.model.base import Metadata, Model, encode
from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    SETTLED_STATES,
    SUBMITTED,
    UNSPECIFIED,
    WORKING,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.requests import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS, Operation
from errands.wire.status import STATUS

#: A listing is one array without pages, so it needs a bound: the newest so many tasks.
MOST_LISTED = 1000

#: PraisonAI has no word for a rejected task; its reason is in the status message.
STATES: dict[TaskState, str] = {
    UNSPECIFIED: "submitted",
    SUBMITTED: "submitted",
    WORKING: "working",
    COMPLETED: "completed",
    FAILED: "failed",
    CANCELED: "cancelled",
    REJECTED: "failed",
    INPUT_REQUIRED: "input_required",
    AUTH_REQUIRED: "auth_required",
}
_ROLES = {Role.UNSPECIFIED: "agent", Role.USER: "user", Role.AGENT: "agent"}
_USER_ROLES = frozenset({"user", Role.USER.value})

#: Where its codes are not those of the specification.
CODES = {"TASK_NOT_FOUND": -32000, "PUSH_NOTIFICATION_NOT_SUPPORTED": -32601}

_decode_event = msgspec.json.Decoder(StreamResponse).decode


# Reading


class _File(msgspec.Struct, rename="camel"):
    """The content of a 0.3 file part."""

    uri: str | None = None
    content: bytes | None = msgspec.field(default=None, name="bytes")
    mime_type: str | None = None
    name: str | None = None


class _Part(msgspec.Struct, rename="camel"):
    """A part of any origin: what it is, its keys say; `kind` and `type` are not looked at."""

    text: str | None = None
    url: str | None = None
    file_with_uri: str | None = None
    raw: bytes | None = None
    file_with_bytes: bytes | None = None
    file: _File | None = None
    data: Any | UnsetType = UNSET
    media_type: str | None = None
    snake_media_type: str | None = msgspec.field(default=None, name="media_type")
    mime_type: str | None = None
    filename: str | None = None
    name: str | None = None
    metadata: Metadata | None = None

    def parts(self) -> Iterator[Part]:
        """One part for each content it has: usually one."""
        file = self.file or _File()
        media_type = self.media_type or self.snake_media_type or self.mime_type or file.mime_type
        filename = self.filename or self.name or file.name
        for content in self._contents(file):
            yield Part(**content, media_type=media_type, filename=filename, metadata=self.metadata)

    def _contents(self, file: _File) -> Iterator[dict[str, Any]]:
        if self.text is not None:
            yield {"text": self.text}
        if url := self.url or self.file_with_uri or file.uri:
            yield {"url": url}
        raws = (self.raw, self.file_with_bytes, file.content)
        if (raw := next((raw for raw in raws if raw is not None), None)) is not None:
            yield {"raw": raw}
        if self.data is not UNSET:
            yield {"data": self.data}


class _Message(msgspec.Struct, rename="camel"):
    parts: list[_Part] = []
    role: str = "user"
    message_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    #: A list of URIs, or PraisonAI's own form, where they are keys.
    extensions: list[str] | dict[str, Any] | None = None
    reference_task_ids: list[str] | None = None


class _Configuration(msgspec.Struct, rename="camel"):
    return_immediately: bool = False
    snake_return_immediately: bool = msgspec.field(default=False, name="return_immediately")
    accepted_output_modes: list[str] | None = None
    accept_content_types: list[str] | None = None
    push_notification_config: TaskPushNotificationConfig | None = None


class _SendParams(msgspec.Struct):
    message: _Message | None = None
    configuration: _Configuration | None = None
    metadata: Metadata | None = None


class _IdParams(msgspec.Struct):
    id: str | None = None


class _ListParams(msgspec.Struct, rename="camel"):
    context_id: str | None = None
    snake_context_id: str | None = msgspec.field(default=None, name="context_id")


def read_request(method: str, params: bytes) -> tuple[Operation, Model]:
    """The operation behind a method and its request. Raises `MethodNotFoundError` and `InvalidParamsError`."""
    found = _METHODS.get(method)
    if found is None:
        if method.startswith("tasks/pushNotificationConfig/"):
            raise MethodNotFoundError(f"Push notifications not supported: {method[:100]}")
        raise MethodNotFoundError(f"Method not found: {method[:100]}")
    name, read = found
    try:
        return OPERATIONS[name], read(params)
    except msgspec.ValidationError as error:
        raise InvalidParamsError(f"Invalid params: {error}") from None
    except RecursionError:
        raise InvalidParamsError("Invalid params: nested too deeply") from None


def _read_send(params: bytes) -> SendMessageRequest:
    request = msgspec.json.decode(params, type=_SendParams)
    if request.message is None:
        raise InvalidParamsError("Invalid params: 'message' required", field="message")
    wishes = request.configuration or _Configuration()
    return SendMessageRequest(
        message=_read_message(request.message),
        configuration=SendMessageConfiguration(
            return_immediately=wishes.return_immediately or wishes.snake_return_immediately,
            accepted_output_modes=wishes.accepted_output_modes or wishes.accept_content_types,
            task_push_notification_config=wishes.push_notification_config,
        ),
        metadata=request.metadata,
    )


def _read_message(message: _Message) -> Message:
    if message.role not in _USER_ROLES:
        raise InvalidParamsError(f"Invalid params: role must be 'user', not {message.role[:40]!r}", field="role")
    parts: list[Part] = []
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
    return Message(
        # Not PraisonAI's constant: two messages with the same id and text would be one message sent twice.
        message_id=message.message_id or uuid.uuid4().hex,
        role=Role.USER,
        parts=parts,
        context_id=message.context_id or None,
        task_id=message.task_id or None,
        metadata=message.metadata,
        extensions=list(message.extensions) if message.extensions else None,
        reference_task_ids=message.reference_task_ids,
    )


def _read_id(params: bytes) -> str:
    request = msgspec.json.decode(params, type=_IdParams)
    if not request.id:
        raise InvalidParamsError("Invalid params: 'id' required", field="id")
    return request.id


def _read_get(params: bytes) -> GetTaskRequest:
    return GetTaskRequest(id=_read_id(params))


def _read_cancel(params: bytes) -> CancelTaskRequest:
    return CancelTaskRequest(id=_read_id(params))


def _read_list(params: bytes) -> ListTasksRequest:
    request = msgspec.json.decode(params, type=_ListParams)
    context_id = request.context_id or request.snake_context_id or None
    return ListTasksRequest(context_id=context_id, page_size=MOST_LISTED, include_artifacts=True)


def _read_extended_card(params: bytes) -> GetExtendedAgentCardRequest:
    return GetExtendedAgentCardRequest()


_METHODS: dict[str, tuple[str, Callable[[bytes], Model]]] = {
    "message/send": ("SendMessage", _read_send),
    "message/stream": ("SendStreamingMessage", _read_send),
    "tasks/get": ("GetTask", _read_get),
    "tasks/list": ("ListTasks", _read_list),
    "tasks/cancel": ("CancelTask", _read_cancel),
    "agent/getExtendedCard": ("GetExtendedAgentCard", _read_extended_card),
}
METHODS = tuple(_METHODS)


# Writing


def write_task(task: Task) -> bytes:
    return encode(_task(_answered_twice(task)))


def write_tasks(tasks: list[Task]) -> bytes:
    """A bare array, in the order in which PraisonAI lists: the oldest first."""
    return encode([_task(_answered_twice(task)) for task in reversed(tasks)])


def write_error(error: A2AError) -> dict[str, Any]:
    """The `error` member of an answer: a code and a message, nothing else."""
    message = error.message
    if error.reason == "TASK_NOT_FOUND":
        message = f"Task not found: {error.metadata.get('taskId', '')}"
    elif error.reason == "INVALID_JSON":
        message = "Parse error: invalid JSON"
    elif error.reason == "INVALID_REQUEST":
        message = f"Invalid Request: {message}".replace('"2.0"', "'2.0'")
    return {"code": CODES.get(error.reason, STATUS[error.reason].jsonrpc), "message": message}


def _answered(message: Message) -> TaskStatusUpdateEvent:
    """A message that is the whole answer, as the end of its task: here there are only tasks."""
    status = TaskStatus(state=COMPLETED, message=message)
    return TaskStatusUpdateEvent(task_id=message.task_id or "", context_id=message.context_id or "", status=status)


class StreamWriter:
    """One stream's events: named, without an envelope. It remembers whether the agent's answer was among them."""

    def __init__(self) -> None:
        self._has_artifact = False
        self._is_final = False

    def end(self) -> bytes:
        """The last frame; none when the server stops before the task does."""
        return _frame(b"done", {}) if self._is_final else b""

    def write(self, data: bytes) -> bytes:
        """The frames for one event of the log."""
        event = _decode_event(data)
        if event.artifact_update is not None:
            return self._artifact(event.artifact_update)
        if event.status_update is not None:
            return self._status(event.status_update)
        if event.message is not None:
            return self._status(_answered(event.message))
        assert event.task is not None
        return self._snapshot(event.task)

    def _snapshot(self, task: Task) -> bytes:
        context_id = task.context_id or ""
        artifacts = [
            TaskArtifactUpdateEvent(task_id=task.id, context_id=context_id, artifact=artifact, last_chunk=True)
            for artifact in task.artifacts or []
        ]
        status = TaskStatusUpdateEvent(task_id=task.id, context_id=context_id, status=task.status)
        return b"".join([*map(self._artifact, artifacts), self._status(status)])

    def _artifact(self, update: TaskArtifactUpdateEvent) -> bytes:
        self._has_artifact = True
        body = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "artifact": _artifact(update.artifact),
            "append": update.append,
            "lastChunk": update.last_chunk,
            "metadata": update.metadata,
        }
        return _frame(b"task.artifact", body)

    def _status(self, update: TaskStatusUpdateEvent) -> bytes:
        answer = b""
        status = update.status
        if status.state is COMPLETED and status.message is not None and not self._has_artifact:
            artifact = _artifact_of(update.task_id, status.message)
            answer = self._artifact(
                TaskArtifactUpdateEvent(
                    task_id=update.task_id, context_id=update.context_id, artifact=artifact, last_chunk=True
                )
            )
        self._is_final = status.state in SETTLED_STATES
        body = {
            "taskId": update.task_id,
            "contextId": update.context_id,
            "status": _status(status),
            "final": self._is_final,
            "metadata": update.metadata,
        }
        return answer + _frame(b"task.status", body)


def error_frame(error: A2AError) -> bytes:
    """What a stream that breaks says last."""
    return _frame(b"error", write_error(error))


def _frame(name: bytes, body: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name, encode(_present(body)))


def _answered_twice(task: Task) -> Task:
    """A completed task with its answer both as an artifact and in the history."""
    if task.status.state is not COMPLETED:
        return task
    history = task.history or []
    if not task.artifacts:
        message = task.status.message
        return task if message is None else _replace(task, artifacts=[_artifact_of(task.id, message)])
    if history and history[-1].role is Role.AGENT:
        return task
    answer = Message(
        message_id=_answer_id(task.id),
        role=Role.AGENT,
        parts=[part for artifact in task.artifacts for part in artifact.parts],
        task_id=task.id,
        context_id=task.context_id,
    )
    return _replace(task, history=[*history, answer])


def _artifact_of(task_id: str, message: Message) -> Artifact:
    return Artifact(artifact_id=_answer_id(task_id), parts=message.parts)


def _answer_id(task_id: str) -> str:
    """The same whenever the task is shown."""
    return f"{task_id}-answer"


_replace = msgspec.structs.replace


def _task(task: Task) -> dict[str, Any]:
    return _present(
        {
            "id": task.id,
            "contextId": task.context_id,
            "status": _status(task.status),
            "artifacts": [_artifact(artifact) for artifact in task.artifacts or []] or None,
            "history": [_message(message) for message in task.history or []],
            "metadata": task.metadata,
        }
    )


def _status(status: TaskStatus) -> dict[str, Any]:
    timestamp = status.timestamp
    return _present(
        {
            "state": STATES[status.state],
            "message": None if status.message is None else _message(status.message),
            "timestamp": f"{timestamp[:-1]}+00:00" if timestamp and timestamp.endswith("Z") else timestamp,
        }
    )


def _message(message: Message) -> dict[str, Any]:
    return _present(
        {
            "messageId": message.message_id,
            "role": _ROLES[message.role],
            "parts": [_part(part) for part in message.parts],
            "contextId": message.context_id,
            "taskId": message.task_id,
            "metadata": message.metadata,
            "extensions": _extensions(message.extensions),
            "referenceTaskIds": message.reference_task_ids,
        }
    )


def _artifact(artifact: Artifact) -> dict[str, Any]:
    return _present(
        {
            "artifactId": artifact.artifact_id,
            "name": artifact.name,
            "description": artifact.description,
            "parts": [_part(part) for part in artifact.parts],
            "metadata": artifact.metadata,
            "extensions": _extensions(artifact.extensions),
        }
    )


def _part(part: Part) -> dict[str, Any]:
    rest = _present({"mediaType": part.media_type, "name": part.filename, "metadata": part.metadata})
    if part.text is not None:
        return {"text": part.text, **rest}
    if part.url is not None:
        return {"fileWithUri": part.url, **rest}
    if part.raw is not None:
        return {"fileWithBytes": part.raw, **rest}
    return {"data": part.data, **rest}


def _extensions(uris: list[str] | None) -> dict[str, str] | None:
    """PraisonAI's types have a text for each extension; A2A has none."""
    return dict.fromkeys(uris, "") if uris else None


def _present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
