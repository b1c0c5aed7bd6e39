"""What a caller gets: results and stream events with the useful facts at hand, the raw objects beside them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET

from errands.model.core import (
    SETTLED_STATES,
    TERMINAL_STATES,
    Artifact,
    Message,
    Part,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatusUpdateEvent,
    text_of,
)

_TERMINAL_NAMES = frozenset(state.short for state in TERMINAL_STATES)


def _text(parts: list[Part]) -> str | None:
    # Streamed text is cut anywhere, so its pieces are joined as they are.
    return text_of(parts, "") if any(part.text is not None for part in parts) else None


def _data(parts: list[Part]) -> Any:
    return next((part.data for part in parts if part.data is not UNSET), None)


@dataclass(frozen=True, slots=True)
class ArtifactInfo:
    """One artifact of a task: its text joined, its first data part, and all its parts."""

    artifact_id: str
    name: str | None
    description: str | None
    text: str | None
    data: Any
    parts: list[Part]
    metadata: dict[str, Any] | None

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> ArtifactInfo:
        """The artifact of a task, or of an event of one."""
        return cls(
            artifact_id=artifact.artifact_id,
            name=artifact.name,
            description=artifact.description,
            text=_text(artifact.parts),
            data=_data(artifact.parts),
            parts=artifact.parts,
            metadata=artifact.metadata,
        )


@dataclass(frozen=True, slots=True)
class ClientResult:
    """A task as it stands, or a direct message (then `state` is "completed" and `task_id` may be "").

    `text` is that of the first artifact with any, else of the status message; `data` is the first data part.
    """

    task_id: str
    context_id: str | None
    state: str
    text: str | None
    data: Any
    artifacts: list[ArtifactInfo]
    raw_task: Task | None
    raw_message: Message | None

    @property
    def completed(self) -> bool:
        """Whether the task has ended well."""
        return self.state == "completed"

    @property
    def failed(self) -> bool:
        """Whether the task has failed."""
        return self.state == "failed"

    @property
    def input_required(self) -> bool:
        """Whether the agent waits for a further message."""
        return self.state == "input-required"

    @property
    def auth_required(self) -> bool:
        """Whether the agent waits for credentials."""
        return self.state == "auth-required"

    @property
    def canceled(self) -> bool:
        """Whether the task was canceled."""
        return self.state == "canceled"

    @property
    def rejected(self) -> bool:
        """Whether the agent has declined the task."""
        return self.state == "rejected"

    @property
    def is_terminal(self) -> bool:
        """Whether the task has ended, in whichever way."""
        return self.state in _TERMINAL_NAMES

    @classmethod
    def from_task(cls, task: Task) -> ClientResult:
        """The task as it stands."""
        artifacts = [ArtifactInfo.from_artifact(artifact) for artifact in task.artifacts or ()]
        said = task.status.message.parts if task.status.message else []
        text = next((artifact.text for artifact in artifacts if artifact.text is not None), None)
        data = next((artifact.data for artifact in artifacts if artifact.data is not None), None)
        return cls(
            task_id=task.id,
            context_id=task.context_id,
            state=task.status.state.short,
            text=_text(said) if text is None else text,
            data=_data(said) if data is None else data,
            artifacts=artifacts,
            raw_task=task,
            raw_message=None,
        )

    @classmethod
    def from_message(cls, message: Message) -> ClientResult:
        """An answer that is a message and no task."""
        return cls(
            task_id=message.task_id or "",
            context_id=message.context_id,
            state=TaskState.COMPLETED.short,
            text=_text(message.parts),
            data=_data(message.parts),
            artifacts=[],
            raw_task=None,
            raw_message=message,
        )


@dataclass(frozen=True, slots=True)
class ListResult:
    """One page of tasks; `next_page_token` is None on the last one."""

    tasks: list[ClientResult] = field(default_factory=list)
    next_page_token: str | None = None
    total_size: int | None = None
    page_size: int = 50


EventKind = Literal["task", "status", "artifact", "message"]
RawEvent = Task | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a stream.

    `is_final` says that the turn is over: the task has ended or waits for an answer, or the event is a direct
    message. For an artifact it says that this was its last chunk.
    """

    kind: EventKind
    state: str | None
    text: str | None
    data: Any
    artifact_id: str | None
    is_final: bool
    raw: RawEvent
    task_id: str | None = None
    event_id: str | None = None
    context_id: str | None = None
    #: The artifact's parts continue those sent before; otherwise they replace them.
    append: bool = False
    last_chunk: bool = False
    #: Events between the last one and this are no longer kept by the agent; this says how the task stands now.
    gap: bool = False

    @property
    def response(self) -> StreamResponse:
        """The event as it is on the wire."""
        raw = self.raw
        if isinstance(raw, Task):
            return StreamResponse(task=raw)
        if isinstance(raw, Message):
            return StreamResponse(message=raw)
        if isinstance(raw, TaskStatusUpdateEvent):
            return StreamResponse(status_update=raw)
        return StreamResponse(artifact_update=raw)

    @classmethod
    def from_response(cls, response: StreamResponse, *, event_id: str | None = None, gap: bool = False) -> StreamEvent:
        """The event of a `StreamResponse`, which has exactly one field set."""
        raw = content_of(response)
        if raw is None:
            raise ValueError("an event needs one of task, message, statusUpdate and artifactUpdate")
        return cls.from_raw(raw, event_id=event_id, gap=gap)

    @classmethod
    def from_raw(cls, event: RawEvent, *, event_id: str | None = None, gap: bool = False) -> StreamEvent:
        """The event of a protocol object; `gap` is for one that stands for lost events."""
        if isinstance(event, TaskArtifactUpdateEvent):
            return _artifact_event(event, event_id, gap)
        if isinstance(event, TaskStatusUpdateEvent):
            return _status_event(event, event_id, gap)
        if isinstance(event, Task):
            return _task_event(event, event_id, gap)
        return _message_event(event, event_id)


def content_of(response: StreamResponse) -> RawEvent | None:
    """What is in the response; None when it is nothing that A2A 1.0 knows."""
    return response.artifact_update or response.status_update or response.task or response.message


def _task_event(task: Task, event_id: str | None, gap: bool) -> StreamEvent:
    result = ClientResult.from_task(task)
    return StreamEvent(
        kind="task",
        state=result.state,
        text=result.text,
        data=result.data,
        artifact_id=None,
        is_final=task.status.state in SETTLED_STATES,
        raw=task,
        task_id=task.id,
        event_id=event_id,
        context_id=task.context_id,
        gap=gap,
    )


def _status_event(update: TaskStatusUpdateEvent, event_id: str | None, gap: bool) -> StreamEvent:
    said = update.status.message.parts if update.status.message else []
    return StreamEvent(
        kind="status",
        state=update.status.state.short,
        text=_text(said),
        data=_data(said),
        artifact_id=None,
        is_final=update.status.state in SETTLED_STATES,
        raw=update,
        task_id=update.task_id,
        event_id=event_id,
        context_id=update.context_id,
        gap=gap,
    )


def _artifact_event(update: TaskArtifactUpdateEvent, event_id: str | None, gap: bool) -> StreamEvent:
    return StreamEvent(
        kind="artifact",
        state=None,
        text=_text(update.artifact.parts),
        data=_data(update.artifact.parts),
        artifact_id=update.artifact.artifact_id,
        is_final=update.last_chunk,
        raw=update,
        task_id=update.task_id,
        event_id=event_id,
        context_id=update.context_id,
        append=update.append,
        last_chunk=update.last_chunk,
        gap=gap,
    )


def _message_event(message: Message, event_id: str | None) -> StreamEvent:
    return StreamEvent(
        kind="message",
        state=None,
        text=_text(message.parts),
        data=_data(message.parts),
        artifact_id=None,
        is_final=True,
        raw=message,
        task_id=message.task_id,
        event_id=event_id,
        context_id=message.context_id,
    )
