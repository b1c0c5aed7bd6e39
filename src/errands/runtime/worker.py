"""`Worker`, the class that agents are subclasses of, and the read-only values that its handler is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from errands.model.core import Artifact, Message, Part, Role, text_of
from errands.runtime.validation import own_part

if TYPE_CHECKING:
    from errands.runtime.context import TaskContext
    from errands.runtime.turn import Turn


class Worker(ABC):
    """An agent. `handle` is called once per turn and must call exactly one lifecycle method of the context.

    `handle` may also be a plain `def`: it then runs in a thread with a context whose methods block.
    """

    #: What happens to a turn whose process died: run it again, or fail the task.
    on_interrupted: Literal["redeliver", "fail"] = "redeliver"
    #: Whether the worker publishes every state of the task itself, and with its first event decides whether a send is
    #: answered with a task or with a message, so that answers wait for it. See `ExecutorWorker`.
    chooses_reply: ClassVar[bool] = False
    #: Whether a task that is canceled while it waits is run once more, so that the worker can release what it holds
    #: for the task elsewhere.
    hears_cancel: bool = False

    @abstractmethod
    async def handle(self, ctx: TaskContext) -> None:
        """Work on one message."""


class TurnWorker(Worker):
    """A worker of ours that works with the turn itself: executors, and agents from manifests."""

    @abstractmethod
    async def handle_turn(self, turn: Turn) -> None:
        """Work on one message."""

    async def handle(self, ctx: TaskContext) -> None:
        raise NotImplementedError("the runtime calls handle_turn")


@dataclass(frozen=True)
class FileInfo:
    """A file of a message: its bytes, or where to get them."""

    #: Its bytes, if the message has them.
    content: bytes | None
    #: Its address, if the message has only that.
    url: str | None
    #: Its name, as the sender gives it.
    filename: str | None
    #: Such as `image/png`, as the sender gives it.
    media_type: str | None

    @classmethod
    def of(cls, part: Part) -> FileInfo:
        """Return the file in a part."""
        return cls(part.raw, part.url, part.filename, part.media_type)


@dataclass(frozen=True)
class HistoryMessage:
    """A message of this task before this turn."""

    #: "user" or "agent".
    role: str
    #: Its text parts, joined by line breaks.
    text: str
    #: All of its parts.
    parts: list[Any]
    #: Its identifier.
    message_id: str

    @classmethod
    def of(cls, message: Message) -> HistoryMessage:
        """Return the message as a handler reads it."""
        role = "agent" if message.role is Role.AGENT else "user"
        return cls(role, text_of(message.parts), [own_part(part) for part in message.parts], message.message_id)


@dataclass(frozen=True)
class PreviousArtifact:
    """An artifact that the task had when the turn began."""

    #: Its identifier.
    artifact_id: str
    #: The name that it was given.
    name: str | None
    #: What it consists of.
    parts: list[Any]

    @classmethod
    def of(cls, artifact: Artifact) -> PreviousArtifact:
        """Return the artifact as a handler reads it."""
        return cls(artifact.artifact_id, artifact.name, [own_part(part) for part in artifact.parts])
