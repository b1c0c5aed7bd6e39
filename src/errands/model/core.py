"""Tasks, messages, parts, artifacts and the events that change them (A2A 1.0, section 4.1 and 4.2)."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from errands.model.base import Metadata, Model


class TaskState(enum.StrEnum):
    """Where a task stands. Each state has three spellings in Python and one on the wire."""

    UNSPECIFIED = "TASK_STATE_UNSPECIFIED"
    SUBMITTED = "TASK_STATE_SUBMITTED"
    WORKING = "TASK_STATE_WORKING"
    COMPLETED = "TASK_STATE_COMPLETED"
    FAILED = "TASK_STATE_FAILED"
    CANCELED = "TASK_STATE_CANCELED"
    INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
    REJECTED = "TASK_STATE_REJECTED"
    AUTH_REQUIRED = "TASK_STATE_AUTH_REQUIRED"

    submitted = SUBMITTED
    working = WORKING
    completed = COMPLETED
    failed = FAILED
    canceled = CANCELED
    input_required = INPUT_REQUIRED
    rejected = REJECTED
    auth_required = AUTH_REQUIRED

    @property
    def short(self) -> str:
        """The name people read, such as `input-required`."""
        return self.value.removeprefix("TASK_STATE_").lower().replace("_", "-")

    @classmethod
    def parse(cls, name: str) -> TaskState:
        """The state of any spelling (`working`, `input-required`, `TASK_STATE_WORKING`), or ValueError."""
        upper = name.strip().upper().replace("-", "_")
        return cls(upper if upper.startswith("TASK_STATE_") else f"TASK_STATE_{upper}")


# Under names of their own: Python 3.11 takes five times as long to find them on the class, and the way of one message
# asks for some thirty of them.
UNSPECIFIED = TaskState.UNSPECIFIED
SUBMITTED = TaskState.SUBMITTED
WORKING = TaskState.WORKING
COMPLETED = TaskState.COMPLETED
FAILED = TaskState.FAILED
CANCELED = TaskState.CANCELED
INPUT_REQUIRED = TaskState.INPUT_REQUIRED
REJECTED = TaskState.REJECTED
AUTH_REQUIRED = TaskState.AUTH_REQUIRED

TERMINAL_STATES = frozenset(
    {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED},
)
PAUSED_STATES = frozenset({TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED})
#: Where a turn has ended: a blocking caller gets its answer here.
SETTLED_STATES = TERMINAL_STATES | PAUSED_STATES


class Role(enum.StrEnum):
    """Who speaks."""

    UNSPECIFIED = "ROLE_UNSPECIFIED"
    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"

    user = USER
    agent = AGENT


USER = Role.USER


class Part(Model):
    """One piece of content: exactly one of `text`, `raw`, `url` and `data` is set."""

    text: str | None = None
    #: A file's bytes; base64 on the wire.
    raw: bytes | None = None
    url: str | None = None
    #: Any JSON value, `null` included, so absence is UNSET.
    data: Any | UnsetType = UNSET
    metadata: Metadata | None = None
    filename: str | None = None
    media_type: str | None = None

    def __post_init__(self) -> None:
        contents = (self.text is not None) + (self.raw is not None) + (self.url is not None) + (self.data is not UNSET)
        if contents != 1:
            raise ValueError("a part needs exactly one of text, raw, url and data")


class Message(Model):
    """What the user or the agent says: one or more parts."""

    message_id: Annotated[str, Meta(min_length=1)]
    role: Role
    parts: Annotated[list[Part], Meta(min_length=1)]
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None
    reference_task_ids: list[str] | None = None


class TaskStatus(Model):
    """Where a task stands, since when, and what the agent says about it."""

    state: TaskState
    message: Message | None = None
    timestamp: str | None = None


class Artifact(Model):
    """Something that a task has produced: one or more parts under a name."""

    artifact_id: Annotated[str, Meta(min_length=1)]
    parts: list[Part]
    name: str | None = None
    description: str | None = None
    metadata: Metadata | None = None
    extensions: list[str] | None = None


class Task(Model):
    """A piece of work: its status, what was said, and what it has produced."""

    id: str
    status: TaskStatus
    context_id: str | None = None
    artifacts: list[Artifact] | None = None
    history: list[Message] | None = None
    metadata: Metadata | None = None


class TaskStatusUpdateEvent(Model):
    """The status of a task has changed."""

    task_id: str
    context_id: str
    status: TaskStatus
    metadata: Metadata | None = None


class TaskArtifactUpdateEvent(Model):
    """An artifact, or with `append` a further piece of one; `last_chunk` says that it is whole."""

    task_id: str
    context_id: str
    artifact: Artifact
    append: bool = False
    last_chunk: bool = False
    metadata: Metadata | None = None


class StreamResponse(Model):
    """One event of a stream; exactly one field is set. The log stores events in this very form."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None


def text_of(parts: list[Part], delimiter: str = "\n") -> str:
    """The text parts of a message joined; other parts are passed over."""
    if len(parts) == 1:
        return parts[0].text or ""
    return delimiter.join(part.text for part in parts if part.text is not None)
