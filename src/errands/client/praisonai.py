"""PraisonAI's binding: JSON-RPC with streams of its own, and what its agents do not look at done here instead."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.client.bindings import JsonRpcBinding
from errands.client.errors import ProtocolError
from errands.clock import from_iso
from errands.errors import InvalidParamsError
from errands.lifecycle import trim
from errands.model.base import Model
from errands.model.core import StreamResponse, Task
from errands.model.requests import (
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageRequest,
    SendMessageResponse,
)
from errands.operations import Operation
from errands.wire.praisonai import ARTIFACT_EVENT, ERROR_EVENT, STATUS_EVENT
from errands.wire.sse import ServerSentEvent

_replace = msgspec.structs.replace


class PraisonAIBinding(JsonRpcBinding):
    name = "praisonai"

    def read_response(self, operation: Operation, request: Model, body: bytes) -> Any:
        response = super().read_response(operation, request, body)
        if isinstance(request, ListTasksRequest):
            return _shown(request, response)
        if isinstance(request, GetTaskRequest):
            return trim(response, request.history_length)
        if isinstance(request, SendMessageRequest) and request.configuration is not None:
            return SendMessageResponse(task=trim(response.task, request.configuration.history_length))
        return response

    def read_event(self, event: ServerSentEvent) -> StreamResponse | None:
        if event.event in (STATUS_EVENT, ARTIFACT_EVENT):
            return self.dialect.read_event(event.data.encode())
        if event.event == ERROR_EVENT:
            raise self.dialect.read_jsonrpc_error(_error_in(event.data))
        return None


def _error_in(data: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise ProtocolError(f"an error that cannot be read ({error})") from None


def _shown(request: ListTasksRequest, listed: ListTasksResponse) -> ListTasksResponse:
    """What the caller wants to see of all the agent's tasks."""
    after = _moment(request.status_timestamp_after)
    tasks = [
        trim(task if request.include_artifacts else _replace(task, artifacts=None), request.history_length)
        for task in listed.tasks
        if request.status in (None, task.status.state) and (after is None or _is_after(task, after))
    ]
    return ListTasksResponse(tasks=tasks, next_page_token="", page_size=len(tasks), total_size=len(tasks))


def _moment(timestamp: str | None) -> int | None:
    try:
        return None if timestamp is None else from_iso(timestamp)
    except ValueError:
        raise InvalidParamsError("not a timestamp of ISO 8601", field="statusTimestampAfter") from None


def _is_after(task: Task, moment: int) -> bool:
    try:
        return from_iso(task.status.timestamp or "") > moment
    except ValueError:
        return False
