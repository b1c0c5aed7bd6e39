"""What a turn wants to show: gathered, looked at as the context has it, stored while a policy waits, and replaced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from errands import lifecycle
from errands.model.base import encode
from errands.model.core import (
    PAUSED_STATES,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
)
from errands.model.log import EventKind
from errands.policy.cel.values import normalise
from errands.policy.run import content_part, whole_part
from errands.runtime.journal import new_id
from errands.runtime.turn import Ending

_ENCODER = msgspec.json.Encoder(order="sorted")


class Output(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The events of a turn that nobody has seen yet, and its end."""

    ending: Ending
    events: list[tuple[EventKind, StreamResponse]] = []

    @classmethod
    def of(cls, ending: Ending, held: Iterable[tuple[EventKind, StreamResponse]] = ()) -> Output:
        events = list(held)
        events += [("artifact", StreamResponse(artifact_update=update)) for update in ending.artifacts]
        shown = _without_replaced(_without_repeated(events))
        return cls(ending=msgspec.structs.replace(ending, artifacts=()), events=shown)

    @classmethod
    def gathered(cls, held: Iterable[tuple[EventKind, StreamResponse]], ending: Ending) -> Output:
        """The same; a pause that an executor has published becomes the end that it stands for."""
        output = cls.of(ending, held)
        if ending.announced:
            output.ending = Ending(state=ending.state)
            for position, (_, update) in reversed(list(enumerate(output.events))):
                pause = update.status_update
                if pause is not None and pause.status.state in PAUSED_STATES:
                    output.ending.message, output.ending.metadata = pause.status.message, pause.metadata
                    del output.events[position]
                    break
        return output

    def stored(self) -> dict[str, Any]:
        """As a record has it."""
        plain: dict[str, Any] = msgspec.json.decode(encode(self))
        return plain

    @classmethod
    def restored(cls, stored: dict[str, Any]) -> Output:
        output = msgspec.json.decode(msgspec.json.encode(stored), type=cls)
        # Whoever had sent the message was answered with a task that waits.
        output.ending.direct = False
        return output

    def shown_in(self, task: Task) -> Task:
        """The task with these events."""
        return lifecycle.fold_updates(task, [update for _, update in self.events])

    def replaced(self, parts: list[Part], before: Task, task: Task) -> Output:
        """The same end with these parts instead: as its message, or else as its first artifact."""
        message, artifacts = self.ending.message, new_artifacts(before, self.shown_in(task))
        if message is not None:
            said = msgspec.structs.replace(message, parts=parts) if parts else None
            return Output(ending=msgspec.structs.replace(self.ending, message=said))
        if artifacts:
            artifact = msgspec.structs.replace(artifacts[0], parts=parts or [Part(text="")])
            update = TaskArtifactUpdateEvent(
                task_id=task.id, context_id=task.context_id or "", artifact=artifact, last_chunk=True
            )
            return Output(ending=self.ending, events=[("artifact", StreamResponse(artifact_update=update))])
        return Output(ending=msgspec.structs.replace(self.ending, message=_said(parts, task)))


def _without_repeated(events: list[tuple[EventKind, StreamResponse]]) -> list[tuple[EventKind, StreamResponse]]:
    """The events without messages of a published task that never join the history: there is one of that id already."""
    kept: list[tuple[EventKind, StreamResponse]] = []
    known: set[str] = set()
    for kind, update in events:
        told, task = update.status_update, update.task
        if told is not None and told.status.message is not None:
            known.add(told.status.message.message_id)
        elif task is not None and task.history:
            new = [message for message in task.history if message.message_id not in known]
            known.update(message.message_id for message in new)
            update = StreamResponse(task=msgspec.structs.replace(task, history=new or None))
        kept.append((kind, update))
    return kept


def _without_replaced(events: list[tuple[EventKind, StreamResponse]]) -> list[tuple[EventKind, StreamResponse]]:
    """The events without artifacts that a later one replaces: guardrails look at what there is in the end."""
    kept: list[tuple[EventKind, StreamResponse]] = []
    replaced: set[str] = set()
    for kind, update in reversed(events):
        piece, task = update.artifact_update, update.task
        if piece is not None:
            if piece.artifact.artifact_id in replaced:
                continue
            if not piece.append:
                replaced.add(piece.artifact.artifact_id)
        elif task is not None and task.artifacts:
            left = [artifact for artifact in task.artifacts if artifact.artifact_id not in replaced]
            replaced.update(artifact.artifact_id for artifact in task.artifacts)
            update = StreamResponse(task=msgspec.structs.replace(task, artifacts=left or None))
        kept.append((kind, update))
    return kept[::-1]


def without_words(update: StreamResponse) -> StreamResponse:
    """The state that an event tells, without what it says."""
    if update.status_update is not None:
        status = msgspec.structs.replace(update.status_update.status, message=None)
        return StreamResponse(status_update=msgspec.structs.replace(update.status_update, status=status))
    if update.task is not None:
        status = msgspec.structs.replace(update.task.status, message=None)
        return StreamResponse(task=msgspec.structs.replace(update.task, status=status))
    return update


def new_artifacts(before: Task, after: Task) -> list[Artifact]:
    known = {artifact.artifact_id: artifact for artifact in before.artifacts or ()}
    return [artifact for artifact in after.artifacts or () if known.get(artifact.artifact_id) != artifact]


def new_parts(before: Task, after: Task, message: Message | None = None) -> list[Part]:
    """What the agent has given between two states of a task: artifacts first, then words."""
    # Not by their ids: an agent may give one twice.
    since = (after.history or [])[len(before.history or ()) :]
    words = [said for said in since if said.role is Role.AGENT]
    if message is not None:
        words.append(message)
    artifacts = new_artifacts(before, after)
    return [*(part for given in artifacts for part in given.parts), *(part for said in words for part in said.parts)]


def as_values(parts: list[Part]) -> dict[str, Any]:
    """Parts as the context has them."""
    return {"message": [whole_part(part) for part in parts]}


def as_parts(value: dict[str, Any], originals: list[Part]) -> list[Part]:
    """Return the parts of what a transform has made; those that it left alone are the originals, files and all."""
    known: dict[bytes, Part] = {}
    for part in originals:
        known.setdefault(_key(whole_part(part)), part)
    for part in originals:
        # Without its metadata it is known as well: dropped by the transform, or recorded before there was any.
        if part.metadata:
            known.setdefault(_key(content_part(part)), msgspec.structs.replace(part, metadata=None))
    return [known.get(_key(part)) or _as_part(part) for part in value["message"]]


def _key(shown: dict[str, Any]) -> bytes:
    """Return a part as expressions see it, to find it again: comparing each with each would take too long."""
    return _ENCODER.encode(normalise(shown))


def _as_part(shown: dict[str, Any]) -> Part:
    metadata, media_type = shown.get("metadata"), shown["mimeType"]
    if isinstance(shown.get("text"), str):
        return Part(
            text=shown["text"], media_type=None if media_type == "text/plain" else media_type, metadata=metadata
        )
    return Part(data=shown["data"], media_type=media_type, metadata=metadata)


def _said(parts: list[Part], task: Task) -> Message | None:
    if not parts:
        return None
    return Message(message_id=new_id(), role=Role.AGENT, parts=parts, task_id=task.id, context_id=task.context_id)
