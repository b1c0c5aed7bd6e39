"""The client's side of PraisonAI's dialect: its requests written, its answers and events read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from errands.errors import A2AError, InvalidParamsError, UnsupportedOperationError
from errands.model import core
from errands.model.base import Metadata, Model, encode
from errands.model.card import AgentCard
from errands.model.requests import (
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
)
from errands.operations import OPERATIONS, Operation
from errands.wire.dialect import ClientDialect, Json, Located, MalformedAnswerError
from errands.wire.praisonai.incoming import AnyMessage, AnyPart
from errands.wire.praisonai.names import CODES, METHODS, STATES
from errands.wire.praisonai.writing import message_fields, present
from errands.wire.status import from_jsonrpc
from errands.wire.v0_3_card import VERSION, from_v0_3

T = TypeVar("T")

_METHOD_OF = {name: method for method, name in METHODS.items()}
#: Of two states that are spelled alike, the more general one.
_STATES_IN = {name: state for state, name in STATES.items()} | {"submitted": core.SUBMITTED, "failed": core.FAILED}
_NOT_FOUND = "Task not found"
_NO_PUSH = "Push notifications not supported"


class _Status(msgspec.Struct):
    state: str
    message: AnyMessage | None = None
    timestamp: str | None = None

    def read(self) -> core.TaskStatus:
        state = _STATES_IN.get(self.state)
        if state is None:
            raise MalformedAnswerError(f"no state of a task: {self.state[:100]}")
        message = None if self.message is None else _read_message(self.message)
        timestamp = self.timestamp and self.timestamp.replace("+00:00", "Z")
        return core.TaskStatus(state=state, message=message, timestamp=timestamp)


class _Artifact(msgspec.Struct, rename="camel"):
    artifact_id: str
    parts: list[AnyPart] = []
    name: str | None = None
    description: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | dict[str, Any] | None = None

    def read(self) -> core.Artifact:
        return core.Artifact(
            artifact_id=self.artifact_id,
            parts=_read_parts(self.parts),
            name=self.name,
            description=self.description,
            metadata=self.metadata,
            extensions=list(self.extensions) if self.extensions else None,
        )


class _Task(msgspec.Struct, rename="camel"):
    id: str
    status: _Status
    context_id: str | None = None
    artifacts: list[_Artifact] | None = None
    history: list[AnyMessage] | None = None
    metadata: Metadata | None = None

    def read(self) -> core.Task:
        return core.Task(
            id=self.id,
            context_id=self.context_id,
            status=self.status.read(),
            artifacts=[artifact.read() for artifact in self.artifacts or ()] or None,
            history=[_read_message(message) for message in self.history or ()] or None,
            metadata=self.metadata,
        )


class _Event(msgspec.Struct, rename="camel"):
    """Either kind of event: which one it is, its content says."""

    task_id: str
    context_id: str | None = None
    status: _Status | None = None
    artifact: _Artifact | None = None
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None

    def read(self) -> core.StreamResponse:
        context_id = self.context_id or ""
        if self.artifact is not None:
            update = core.TaskArtifactUpdateEvent(
                task_id=self.task_id,
                context_id=context_id,
                artifact=self.artifact.read(),
                append=self.append,
                last_chunk=self.last_chunk,
                metadata=self.metadata,
            )
            return core.StreamResponse(artifact_update=update)
        if self.status is not None:
            status = self.status.read()
            return core.StreamResponse(
                status_update=core.TaskStatusUpdateEvent(
                    task_id=self.task_id, context_id=context_id, status=status, metadata=self.metadata
                )
            )
        raise MalformedAnswerError("an event with neither status nor artifact")


class PraisonAI(ClientDialect):
    version = VERSION
    media_type = "application/json"
    lacks = frozenset(OPERATIONS) - _METHOD_OF.keys()

    def method_of(self, operation: Operation) -> str:
        if operation.name in self.lacks:
            raise UnsupportedOperationError(f"PraisonAI's dialect has no {operation.name}")
        return _METHOD_OF[operation.name]

    def write_request(self, operation: Operation, request: Model) -> bytes:
        return encode(present(_WRITERS[type(request)](request)))

    def locate(self, operation: Operation, request: Model) -> Located:
        raise UnsupportedOperationError("PraisonAI's dialect has one address for all operations")

    def read_response(self, operation: Operation, raw: Json) -> Any:
        response = operation.response
        if response is AgentCard:
            return from_v0_3(raw)
        if response is ListTasksResponse:
            tasks = [task.read() for task in reversed(_read(list[_Task], raw))]
            return ListTasksResponse(tasks=tasks, next_page_token="", page_size=len(tasks), total_size=len(tasks))
        task = _read(_Task, raw).read()
        return SendMessageResponse(task=task) if response is SendMessageResponse else task

    def read_event(self, raw: Json) -> core.StreamResponse:
        return _read(_Event, raw).read()

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


#: The one and only: a dialect holds no state.
DIALECT = PraisonAI()


def _read(model: type[T], raw: Json) -> T:
    try:
        return msgspec.json.decode(raw, type=model)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedAnswerError(f"not an answer of PraisonAI's ({error})") from None


def _read_parts(parts: list[AnyPart]) -> list[core.Part]:
    return [content for part in parts for content in part.parts()]


def _read_message(message: AnyMessage) -> core.Message:
    return core.Message(
        message_id=message.message_id or "",
        role=core.Role.USER if message.role == "user" else core.Role.AGENT,
        parts=_read_parts(message.parts),
        context_id=message.context_id,
        task_id=message.task_id,
        metadata=message.metadata,
        extensions=list(message.extensions) if message.extensions else None,
        reference_task_ids=message.reference_task_ids,
    )


def _write_send(request: SendMessageRequest) -> dict[str, Any]:
    message, wishes = request.message, request.configuration or SendMessageConfiguration()
    if wishes.task_push_notification_config is not None:
        raise UnsupportedOperationError("PraisonAI's dialect has no push notifications")
    fields = message_fields(message)
    if not message.context_id and not message.task_id:
        # PraisonAI makes no contexts of its own. The same for every try, so that it stays the same message.
        fields["contextId"] = f"context-{message.message_id}"
    configuration = {
        "returnImmediately": wishes.return_immediately or None,
        "acceptedOutputModes": wishes.accepted_output_modes,
    }
    return {"message": fields, "configuration": present(configuration) or None, "metadata": request.metadata}


def _write_list(request: ListTasksRequest) -> dict[str, Any]:
    if request.page_token:
        raise InvalidParamsError("PraisonAI's dialect lists tasks in one page; leave page_token out", field="pageToken")
    return {"contextId": request.context_id}


def _write_id(request: GetTaskRequest | CancelTaskRequest) -> dict[str, Any]:
    return {"id": request.id}


_WRITERS: dict[type[Model], Callable[[Any], dict[str, Any]]] = {
    SendMessageRequest: _write_send,
    GetTaskRequest: _write_id,
    CancelTaskRequest: _write_id,
    ListTasksRequest: _write_list,
    GetExtendedAgentCardRequest: lambda request: {},
}
