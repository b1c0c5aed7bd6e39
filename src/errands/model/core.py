"""Tasks, messages, parts, artifacts and the events that change them (A2A 1.0, section 4.1 and 4.2)."""

from __future__ import annotations

import enum
from typing import Annotated, Any

from msgspec import UNSET, Meta, UnsetType

from errands.model.base import A2AObject, Metadata


class TaskState(enum.StrEnum):
    """The state of a task. Each state has three spellings in Python and one on the wire."""

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
        """Return the state of any spelling: `working`, `input-required`, `TASK_STATE_WORKING`. Raises `ValueError`."""
        upper = name.strip().upper().replace("-", "_")
        return cls(upper if upper.startswith("TASK_STATE_") else f"TASK_STATE_{upper}")


# As module constants: Python 3.11 takes five times as long to find them on the class, and one message needs about
# thirty of them.
UNSPECIFIED = TaskState.UNSPECIFIED
SUBMITTED = TaskState.SUBMITTED
WORKING = TaskState.WORKING
COMPLETED = TaskState.COMPLETED
FAILED = TaskState.FAILED
CANCELED = TaskState.CANCELED
INPUT_REQUIRED = TaskState.INPUT_REQUIRED
REJECTED = TaskState.REJECTED
AUTH_REQUIRED = TaskState.AUTH_REQUIRED

TERMINAL_STATES = frozenset({COMPLETED, FAILED, CANCELED, REJECTED})
PAUSED_STATES = frozenset({INPUT_REQUIRED, AUTH_REQUIRED})
#: The states in which a turn has ended: a blocking caller gets its answer.
SETTLED_STATES = TERMINAL_STATES | PAUSED_STATES


class Role(enum.StrEnum):
    """The author of a message."""

    UNSPECIFIED = "ROLE_UNSPECIFIED"
    USER = "ROLE_USER"
    AGENT = "ROLE_AGENT"

    user = USER
    agent = AGENT


USER = Role.USER

_OPTIONAL_TEXT = frozenset({str, type(None)})
_FLAG = frozenset({bool})


class Part(A2AObject):
    """One piece of content: exactly one of `text`, `raw`, `url` and `data` is set."""

    #: A text.
    text: str | None = None
    #: A file's bytes; base64 on the wire.
    raw: bytes | None = None
    #: The address of a file.
    url: str | None = None
    #: Any JSON value, `null` included, so absence is UNSET.
    data: Any | UnsetType = UNSET
    #: What the sender adds to this part.
    metadata: Metadata | None = None
    #: A file's name.
    filename: str | None = None
    #: Such as `image/png`.
    media_type: str | None = None

    def __post_init__(self) -> None:
        if (
            type(self.text) is str
            and self.raw is None
            and self.url is None
            and self.data is UNSET
            and self.metadata is None
            and self.filename is None
            and self.media_type is None
        ):
            return
        if self.text is not None and not isinstance(self.text, str):
            raise TypeError(
                f"text must be a str, not {type(self.text).__name__}; other values are JSON data, "
                "for example complete_json(...), emit_data_artifact(...) or Part(data=...)"
            )
        self.check_fields()
        contents = (self.text is not None) + (self.raw is not None) + (self.url is not None) + (self.data is not UNSET)
        if contents != 1:
            raise ValueError("a part needs exactly one of text, raw, url and data")


class Message(A2AObject):
    """A message of the user or the agent: one or more parts."""

    #: Made by the sender; a message that is sent again is recognised by it.
    message_id: Annotated[str, Meta(min_length=1)]
    #: Who has written it.
    role: Role
    #: Its content.
    parts: Annotated[list[Part], Meta(min_length=1)]
    #: The conversation that it belongs to.
    context_id: str | None = None
    #: The task that it continues. None: it begins a new one.
    task_id: str | None = None
    #: What the sender adds to this message.
    metadata: Metadata | None = None
    #: The extensions of the protocol that it makes use of.
    extensions: list[str] | None = None
    #: Other tasks that it refers to.
    reference_task_ids: list[str] | None = None

    def __post_init__(self) -> None:
        if not (
            type(self.message_id) is str
            and type(self.role) is Role
            and type(parts := self.parts) is list
            and len(parts) == 1
            and type(parts[0]) is Part
            and type(self.context_id) in _OPTIONAL_TEXT
            and type(self.task_id) in _OPTIONAL_TEXT
            and self.metadata is None
            and self.extensions is None
            and self.reference_task_ids is None
        ):
            self.check_fields()


class TaskStatus(A2AObject):
    """The state of a task, since when, and the agent's message about it."""

    #: The state.
    state: TaskState
    #: The agent's words about it, such as a question.
    message: Message | None = None
    #: Since when, in ISO 8601.
    timestamp: str | None = None

    def __post_init__(self) -> None:
        if type(self.state) is not TaskState or self.message is not None or type(self.timestamp) is not str:
            self.check_fields()


class Artifact(A2AObject):
    """Something that a task has produced: one or more parts under a name."""

    #: Unique in its task.
    artifact_id: Annotated[str, Meta(min_length=1)]
    #: Its content.
    parts: list[Part]
    #: For people.
    name: str | None = None
    #: For people.
    description: str | None = None
    #: What the agent adds to it.
    metadata: Metadata | None = None
    #: The extensions of the protocol that it makes use of.
    extensions: list[str] | None = None

    def __post_init__(self) -> None:
        artifact_id, parts = self.artifact_id, self.parts
        if not (
            type(artifact_id) is str
            and type(parts) is list
            and len(parts) == 1
            and type(parts[0]) is Part
            and self.name is None
            and self.description is None
            and self.metadata is None
            and self.extensions is None
        ):
            self.check_fields()
        if not artifact_id:
            raise ValueError("Artifact: artifact_id must not be empty: its pieces are put together by it")


class Task(A2AObject):
    """A piece of work: its status, its messages, and what it has produced."""

    #: Made by the server.
    id: str
    #: Its current status.
    status: TaskStatus
    #: The conversation that it belongs to.
    context_id: str | None = None
    #: What it has produced so far.
    artifacts: list[Artifact] | None = None
    #: Its messages, the oldest first, as far as the request asks for them.
    history: list[Message] | None = None
    #: What the agent adds to it.
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if not (
            type(self.id) is str
            and type(self.status) is TaskStatus
            and type(self.context_id) in _OPTIONAL_TEXT
            and self.metadata is None
            and (history := self.history) is not None
            and len(history) == 1
            and type(history[0]) is Message
            and ((artifacts := self.artifacts) is None or (len(artifacts) == 1 and type(artifacts[0]) is Artifact))
        ):
            self.check_fields()


class TaskStatusUpdateEvent(A2AObject):
    """The status of a task has changed."""

    #: The task.
    task_id: str
    #: Its conversation.
    context_id: str
    #: The new status.
    status: TaskStatus
    #: What the agent adds to this event.
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if (
            type(self.status) is not TaskStatus
            or type(self.task_id) is not str
            or type(self.context_id) is not str
            or self.metadata is not None
        ):
            self.check_fields()


class TaskArtifactUpdateEvent(A2AObject):
    """An artifact, or with `append` another chunk of one; `last_chunk` marks the last."""

    #: The task.
    task_id: str
    #: Its conversation.
    context_id: str
    #: The artifact, or the chunk of it.
    artifact: Artifact
    #: Whether the parts continue an artifact with the same id.
    append: bool = False
    #: Whether the artifact is complete.
    last_chunk: bool = False
    #: What the agent adds to this event.
    metadata: Metadata | None = None

    def __post_init__(self) -> None:
        if (
            type(self.artifact) is not Artifact
            or type(self.task_id) is not str
            or type(self.context_id) is not str
            or (self.append is not False and type(self.append) not in _FLAG)
            or (self.last_chunk is not False and type(self.last_chunk) not in _FLAG)
            or self.metadata is not None
        ):
            self.check_fields()


class StreamResponse(A2AObject):
    """One event of a stream; exactly one field is set. The log stores events in this form."""

    task: Task | None = None
    message: Message | None = None
    status_update: TaskStatusUpdateEvent | None = None
    artifact_update: TaskArtifactUpdateEvent | None = None


def text_of(parts: list[Part], delimiter: str = "\n") -> str:
    """Return the text parts of a message, joined; other parts are ignored."""
    if len(parts) == 1:
        return parts[0].text or ""
    return delimiter.join(part.text for part in parts if part.text is not None)
