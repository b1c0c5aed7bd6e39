"""The objects that a client returns: results, stream events and pieces of text, with the raw objects in them."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import UNSET

from errands.clock import from_iso
from errands.model import core
from errands.model.base import encode
from errands.model.core import Artifact, Message, Part, StreamResponse, Task

#: How many waiting tasks a client remembers the artifacts of.
_MOST_REMEMBERED = 1000
_TERMINAL_NAMES = frozenset(state.short for state in core.TERMINAL_STATES)


def _text(parts: list[Part]) -> str | None:
    # Streamed text is cut anywhere, so its pieces are joined as they are.
    return core.text_of(parts, "") if any(part.text is not None for part in parts) else None


def moment_of(timestamp: str | None) -> int | None:
    """Return the milliseconds of an agent's timestamp, or None when it cannot be read."""
    try:
        return from_iso(timestamp or "")
    except ValueError:
        return None


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
        """Return the artifact of a task, or of an event."""
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

    `text` and `data` are the answer of the last turn: those of its first artifact with any, else of the status message.
    Of a task that failed, was rejected or canceled they are those of the status message, else of the artifacts.
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
        """Return whether the task has completed."""
        return self.state == "completed"

    @property
    def failed(self) -> bool:
        """Return whether the task has failed."""
        return self.state == "failed"

    @property
    def input_required(self) -> bool:
        """Return whether the agent waits for another message."""
        return self.state == "input-required"

    @property
    def auth_required(self) -> bool:
        """Return whether the agent waits for credentials."""
        return self.state == "auth-required"

    @property
    def canceled(self) -> bool:
        """Return whether the task was canceled."""
        return self.state == "canceled"

    @property
    def rejected(self) -> bool:
        """Return whether the agent has rejected the task."""
        return self.state == "rejected"

    @property
    def is_terminal(self) -> bool:
        """Return whether the task has ended in any way."""
        return self.state in _TERMINAL_NAMES

    @classmethod
    def from_task(cls, task: Task, before: Mapping[str, bytes] | None = None) -> ClientResult:
        """Return the task as it stands. `before` are the artifacts from before its last turn, see `digests_of`.

        Where they are not known, the answer of a task of several turns is what the agent said last, or else its newest
        artifact.
        """
        words = [task.status.message.parts] if task.status.message else []
        artifacts = list(task.artifacts or ())
        if before:
            now = digests_of(task)
            artifacts = [one for one in artifacts if before.get(one.artifact_id) != now[one.artifact_id]]
        is_unsure = before is None and _is_continued(task)
        made = [artifact.parts for artifact in (reversed(artifacts) if is_unsure else artifacts)]
        is_failed = task.status.state in core.TERMINAL_STATES and task.status.state is not core.COMPLETED
        # Where the answer of the last turn may be found, the likeliest place first.
        sources = words + made if is_unsure or is_failed else made + words
        texts, data = map(_text, sources), map(_data, sources)
        return cls(
            task_id=task.id,
            context_id=task.context_id,
            state=task.status.state.short,
            text=next((text for text in texts if text is not None), None),
            data=next((value for value in data if value is not None), None),
            artifacts=[ArtifactInfo.from_artifact(artifact) for artifact in task.artifacts or ()],
            raw_task=task,
            raw_message=None,
        )

    @classmethod
    def from_message(cls, message: Message) -> ClientResult:
        """Return the result of an answer that is a message and not a task."""
        return cls(
            task_id=message.task_id or "",
            context_id=message.context_id,
            state=core.TaskState.COMPLETED.short,
            text=_text(message.parts),
            data=_data(message.parts),
            artifacts=[],
            raw_task=None,
            raw_message=message,
        )


def digests_of(task: Task) -> dict[str, bytes]:
    """Return a digest of each artifact, to find out later whether it has changed."""
    return {
        artifact.artifact_id: hashlib.blake2b(encode(artifact), digest_size=16).digest()
        for artifact in task.artifacts or ()
    }


def _is_continued(task: Task) -> bool:
    return sum(message.role is not core.Role.AGENT for message in task.history or ()) > 1


class ResultMemory:
    """Remembers the artifacts of waiting tasks, to recognise what the next turn adds."""

    def __init__(self) -> None:
        self._artifacts: dict[str, dict[str, bytes]] = {}

    def result(self, task: Task, *, is_new: bool) -> ClientResult:
        """Return the result of a turn. `is_new` says that the message named no task.

        The agent may have added it to a task nevertheless: the one of its context that waited.
        """
        before = self._artifacts.pop(task.id, {} if is_new and not _is_continued(task) else None)
        if task.status.state in core.PAUSED_STATES:
            self._artifacts[task.id] = digests_of(task)
            if len(self._artifacts) > _MOST_REMEMBERED:
                del self._artifacts[next(iter(self._artifacts))]
        return ClientResult.from_task(task, before)


@dataclass(frozen=True, slots=True)
class ListResult:
    """One page of tasks; The last one has no `next_page_token`."""

    #: The newest first.
    tasks: list[ClientResult] = field(default_factory=list)
    #: What to pass for the next page.
    next_page_token: str | None = None
    #: How many tasks there are on all pages, if the agent says so.
    total_size: int | None = None
    #: How many tasks a page has at most.
    page_size: int = 50


EventKind = Literal["task", "status", "artifact", "message"]
RawEvent = Task | Message | core.TaskStatusUpdateEvent | core.TaskArtifactUpdateEvent


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
        field = {"status": "status_update", "artifact": "artifact_update"}.get(self.kind, self.kind)
        content: dict[str, Any] = {field: self.raw}
        return StreamResponse(**content)

    @classmethod
    def from_response(cls, response: StreamResponse, *, event_id: str | None = None, gap: bool = False) -> StreamEvent:
        """Return the event of a `StreamResponse`, which has exactly one field set."""
        raw = content_of(response)
        if raw is None:
            raise ValueError("an event needs one of task, message, statusUpdate and artifactUpdate")
        return cls.from_raw(raw, event_id=event_id, gap=gap)

    @classmethod
    def from_raw(cls, event: RawEvent, *, event_id: str | None = None, gap: bool = False) -> StreamEvent:
        """Return the event of a protocol object; `gap` is for one that replaces lost events."""
        shared: dict[str, Any] = {"raw": event, "event_id": event_id, "context_id": event.context_id, "gap": gap}
        if isinstance(event, core.TaskArtifactUpdateEvent):
            parts = event.artifact.parts
            shared |= {"append": event.append, "last_chunk": event.last_chunk, "task_id": event.task_id}
            return cls(
                "artifact", None, _text(parts), _data(parts), event.artifact.artifact_id, event.last_chunk, **shared
            )
        if isinstance(event, core.TaskStatusUpdateEvent):
            parts, state = event.status.message.parts if event.status.message else [], event.status.state
            is_final = state in core.SETTLED_STATES
            return cls(
                "status", state.short, _text(parts), _data(parts), None, is_final, task_id=event.task_id, **shared
            )
        if isinstance(event, Task):
            result, is_final = ClientResult.from_task(event), event.status.state in core.SETTLED_STATES
            return cls("task", result.state, result.text, result.data, None, is_final, task_id=event.id, **shared)
        parts = event.parts
        return cls("message", None, _text(parts), _data(parts), None, True, task_id=event.task_id, **shared)


def content_of(response: StreamResponse) -> RawEvent | None:
    """Return what is in the response, or None when A2A 1.0 does not know it."""
    return response.artifact_update or response.status_update or response.task or response.message


async def text_pieces(events: AsyncGenerator[StreamEvent, None], *, continues: bool) -> AsyncGenerator[str, None]:
    """Yield artifact text as it comes, or the text of the last status or message when there was no artifact text.

    `continues` says that the stream continues a task, whose text from before is not repeated.
    """
    yielded: dict[str, list[str]] = {}
    has_text = False

    def rest(artifact_id: str, text: str) -> str:
        """Return what a whole artifact holds beyond what was yielded. One that was replaced is yielded again."""
        new = text.removeprefix("".join(yielded.get(artifact_id, ())))
        yielded[artifact_id] = [text]
        return new

    async with aclosing(events):
        async for event in events:
            is_repeated, continues = continues and not event.is_final, False
            pieces: list[str] = []
            if event.kind == "artifact" and event.text and event.artifact_id is not None:
                if event.gap:
                    pieces = [rest(event.artifact_id, event.text)]
                else:
                    known = yielded.setdefault(event.artifact_id, [])
                    if not event.append:
                        known.clear()
                    known.append(event.text)
                    pieces = [event.text]
            elif isinstance(event.raw, Task):
                artifacts = [(one.artifact_id, _text(one.parts) or "") for one in event.raw.artifacts or ()]
                whole = [rest(artifact_id, text) for artifact_id, text in artifacts]
                pieces = [] if is_repeated else whole
            for piece in filter(None, pieces):
                has_text = True
                yield piece
            if event.kind != "artifact" and event.is_final and not has_text:
                words = event.text
                if isinstance(event.raw, Task):
                    said = event.raw.status.message
                    words = None if said is None else core.text_of(said.parts, "")
                if words:
                    yield words
