"""Tasks, messages and errors in PraisonAI's spelling.

An agent there answers twice, with an artifact and with a message in the history, so what an agent of ours said in one
of these forms is shown in the other one too.
"""

from __future__ import annotations

from typing import Any

import msgspec

from errands.errors import A2AError
from errands.model.base import encode
from errands.model.core import COMPLETED, Artifact, Message, Part, Role, Task, TaskStatus
from errands.wire.praisonai.names import CODES, STATES
from errands.wire.status import STATUS

_ROLES = {Role.UNSPECIFIED: "agent", Role.USER: "user", Role.AGENT: "agent"}


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


def _answered_twice(task: Task) -> Task:
    """A completed task with its answer both as an artifact and in the history."""
    if task.status.state is not COMPLETED:
        return task
    history = task.history or []
    if not task.artifacts:
        message = task.status.message
        return task if message is None else _replace(task, artifacts=[artifact_of(task.id, message)])
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


def artifact_of(task_id: str, message: Message) -> Artifact:
    return Artifact(artifact_id=_answer_id(task_id), parts=message.parts)


def _answer_id(task_id: str) -> str:
    """The same whenever the task is shown."""
    return f"{task_id}-answer"


_replace = msgspec.structs.replace


def _task(task: Task) -> dict[str, Any]:
    return present(
        {
            "id": task.id,
            "contextId": task.context_id,
            "status": status_fields(task.status),
            "artifacts": [artifact_fields(artifact) for artifact in task.artifacts or []] or None,
            "history": [message_fields(message) for message in task.history or []],
            "metadata": task.metadata,
        }
    )


def status_fields(status: TaskStatus) -> dict[str, Any]:
    timestamp = status.timestamp
    return present(
        {
            "state": STATES[status.state],
            "message": None if status.message is None else message_fields(status.message),
            "timestamp": f"{timestamp[:-1]}+00:00" if timestamp and timestamp.endswith("Z") else timestamp,
        }
    )


def message_fields(message: Message) -> dict[str, Any]:
    return present(
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


def artifact_fields(artifact: Artifact) -> dict[str, Any]:
    return present(
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
    rest = present({"mediaType": part.media_type, "name": part.filename, "metadata": part.metadata})
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


def present(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
