"""`TaskContext`: everything a handler is given."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from errands.errors import ConfigurationError, DamagedTaskError
from errands.model.base import UNREADABLE, encode, shallow_copy
from errands.model.core import (
    AUTH_REQUIRED,
    CANCELED,
    COMPLETED,
    FAILED,
    INPUT_REQUIRED,
    REJECTED,
    WORKING,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
)
from errands.model.log import PLAIN, RequestOptions, StoredTask
from errands.model.marks import is_review
from errands.runtime import validation
from errands.runtime.artifacts import ArtifactWriter, build_part
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.journal import Journal, new_id, status_update
from errands.runtime.oversight import CapabilityCall, Overseer, Oversight
from errands.runtime.turn import Turn
from errands.runtime.turn_input import TurnInput

logger = logging.getLogger(__name__)

_JSON = "application/json"


class TaskContext(TurnInput):
    """One turn of one task, as its handler sees it.

    Read the input, emit results, and call exactly one lifecycle method: `complete`, `complete_json`, `respond`,
    `reply_directly`, `fail`, `reject`, `request_input` or `request_auth`. A second one, and whatever is emitted after
    it, raises `TurnError`. Writing raises `LeaseLostError` when another process has taken the task over, and
    `TaskTerminalStateError` when it was ended meanwhile.
    """

    # What begins with an underscore is for the rest of the runtime, not for handlers: the adapter, executors and agents
    # of manifests use it.

    #: Of a turn that is held to a policy or that records something.
    _overseer: Overseer | None = None
    #: What the next piece of text is copied from.
    _last_piece: TaskArtifactUpdateEvent | None = None

    def __init__(
        self,
        journal: Journal,
        stored: StoredTask,
        *,
        deps: DependencyContainer,
        options: RequestOptions | None = None,
        request_context: dict[str, Any] | None = None,
        oversight: Oversight | None = None,
    ) -> None:
        self._journal = journal
        self._stored = stored
        self._turn = Turn(journal, stored)
        self._options = options or PLAIN
        self._request_context = request_context if request_context is not None else {}
        self._deps = deps
        self._cancelled = False
        #: For a handler that wants to be interrupted by a cancel.
        self._on_cancel: Callable[[], object] | None = None
        self._position = current_position(stored)
        self._artifacts_opened = 0
        message = (stored.task.history or [])[self._position]
        self._message = message
        self._oversight = oversight
        if oversight is not None and oversight.is_required:
            self._overseer = oversight.oversee(self._turn, journal, stored, message, self._options)
        self.task_id = stored.task.id
        self.context_id = stored.task.context_id
        self.message_id = message.message_id

    # State

    @property
    def is_cancelled(self) -> bool:
        """Whether a cancel is wanted. Look at it in long loops; then `fail` or just return."""
        return self._cancelled

    @property
    def turn_ended(self) -> bool:
        """Whether a lifecycle method was called."""
        return self._turn.ended

    # Lifecycle

    async def complete(self, text: str | None = None, *, artifact_id: str = "final-answer") -> None:
        """Complete the task with `text` as an artifact or, without one, with what was emitted.

        `complete_json` takes any other value.
        """
        if text is None:
            await self._turn.end(COMPLETED)
        else:
            artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
            await self._turn.end(COMPLETED, artifacts=[self._update(artifact, last_chunk=True)])

    async def complete_json(self, data: Any, *, artifact_id: str = "final-answer") -> None:
        """Complete the task with a JSON artifact.

        `data` may be anything with a JSON form: dates, UUIDs, enums, sets, dataclasses and msgspec structs are
        converted, bytes become base64, NaN and infinities become null.
        """
        part = Part(data=validation.json_value("data", data), media_type=_JSON)
        artifact = Artifact(artifact_id=artifact_id, parts=[part], metadata={"media_type": _JSON})
        await self._turn.end(COMPLETED, artifacts=[self._update(artifact, last_chunk=True)])

    async def respond(self, text: str | None = None) -> None:
        """Complete the task with a message and no artifact."""
        await self._turn.end(COMPLETED, message=self._said("text", text))

    async def reply_directly(self, text: str) -> None:
        """Answer a send with a plain message instead of a task; a stream sees the task all the same."""
        message = self._said("text", validation.text("text", text))
        await self._turn.end(COMPLETED, message=message, direct=True)

    async def fail(self, reason: str) -> None:
        """End the task as failed; after a cancel request, as canceled."""
        await self._turn.end(self._unless_cancelled(FAILED), message=self._said("reason", reason))

    async def reject(self, reason: str | None = None) -> None:
        """Decline the task; after a cancel request it ends as canceled."""
        await self._turn.end(self._unless_cancelled(REJECTED), message=self._said("reason", reason))

    async def request_input(self, question: str, *, schema: type | Mapping[str, Any] | None = None) -> None:
        """Pause until the user answers. With a `schema` (a type or a JSON Schema) the client is told the shape
        of the answer, and `answer(...)` reads it in the next turn."""
        parts = [Part(text=validation.text("question", question))]
        if schema is not None:
            shape = validation.json_value("schema", schema if isinstance(schema, Mapping) else _schema_of(schema))
            parts.append(Part(data={"schema": shape}, media_type="application/schema+json"))
        await self._turn.end(INPUT_REQUIRED, message=self._agent_message(parts))

    async def request_auth(
        self,
        details: str | None = None,
        *,
        schemes: list[str] | None = None,
        credentials_hint: str | None = None,
        auth_url: str | None = None,
    ) -> None:
        """Pause until the client sends credentials."""
        wanted = {
            "schemes": validation.text_list("schemes", schemes),
            "credentialsHint": validation.optional_text("credentials_hint", credentials_hint),
            "authUrl": validation.optional_text("auth_url", auth_url),
        }
        wanted = {key: value for key, value in wanted.items() if value}
        parts = [Part(text=validation.text("details", details))] if details is not None else []
        if wanted:
            parts.append(Part(data=wanted, media_type=_JSON))
        message = self._agent_message(parts) if parts else None
        await self._turn.end(AUTH_REQUIRED, message=message)

    # Streaming

    async def send_status(self, message: str | None = None) -> None:
        """Report progress; the task stays at work. Without a message it is a mere sign of life: those who follow the
        task in this process see it, and nothing is stored."""
        update = status_update(
            self.task_id,
            self.context_id or "",
            WORKING,
            self._journal.now(),
            self._said("message", message),
        )
        if message is None:
            self._turn.tell(update)
        elif self._turn.emit("status", update):
            await self._turn.catch_up()

    async def emit_artifact(
        self,
        *,
        artifact_id: str,
        text: str | None = None,
        data: Any = None,
        file_bytes: bytes | None = None,
        file_url: str | None = None,
        media_type: str | None = None,
        filename: str | None = None,
        name: str | None = None,
        description: str | None = None,
        append: bool = False,
        last_chunk: bool = False,
        metadata: dict[str, Any] | None = None,
        extensions: list[str] | None = None,
    ) -> None:
        """Send an artifact, or a piece of one.

        Raises `ValueError` unless exactly one of text, data, file_bytes and file_url is given. `data` is converted as
        by `complete_json`.
        """
        part = build_part(
            text=text,
            data=data,
            file_bytes=file_bytes,
            file_url=file_url,
            media_type=media_type,
            filename=filename,
        )
        artifact = Artifact(
            artifact_id=artifact_id,
            parts=[part],
            name=name,
            description=description,
            metadata=validation.json_object("metadata", metadata),
            extensions=validation.text_list("extensions", extensions),
        )
        if self._emit(artifact, append, last_chunk):
            await self._turn.catch_up()

    async def emit_text_artifact(
        self, text: str, *, artifact_id: str = "answer", append: bool = False, last_chunk: bool = False
    ) -> None:
        """Send a piece of text; `append=True` for every piece after the first."""
        piece = self._next_piece(text, artifact_id, append, last_chunk)
        if self._turn.emit("artifact", StreamResponse(artifact_update=piece)):
            await self._turn.catch_up()

    def _next_piece(self, text: str, artifact_id: str, append: bool, last_chunk: bool) -> TaskArtifactUpdateEvent:
        """Return a piece of text, if possible as a copy of the last piece, which has been checked.

        Checking every piece of a stream anew would cost a tenth of its rate.
        """
        last = self._last_piece
        is_like_last = last is not None and artifact_id == last.artifact.artifact_id
        if last is None or not is_like_last or (type(text), type(append), type(last_chunk)) != (str, bool, bool):
            artifact = Artifact(artifact_id=artifact_id, parts=[Part(text=text)])
            piece = self._last_piece = self._update(artifact, append, last_chunk)
            return piece
        part, artifact, piece = shallow_copy(last.artifact.parts[0]), shallow_copy(last.artifact), shallow_copy(last)
        part.text, artifact.parts, piece.artifact = text, [part], artifact
        piece.append, piece.last_chunk = append, last_chunk
        return piece

    async def emit_data_artifact(
        self,
        data: Any,
        *,
        artifact_id: str = "answer",
        media_type: str = _JSON,
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Send a piece of JSON; `data` is converted as by `complete_json`."""
        part = Part(data=validation.json_value("data", data), media_type=media_type)
        artifact = Artifact(artifact_id=artifact_id, parts=[part], metadata={"media_type": media_type})
        if self._emit(artifact, append, last_chunk):
            await self._turn.catch_up()

    def artifact(
        self,
        name: str | None = None,
        *,
        artifact_id: str | None = None,
        description: str | None = None,
        metadata: dict[str, Any] | None = None,
        extensions: list[str] | None = None,
    ) -> ArtifactWriter:
        """`async with ctx.artifact(name="report") as a: await a.write(chunk)`: begun, continued and sealed for you.

        Its id is `artifact_id`, or else follows from the name and the order, so a turn that is run again
        replaces what its first try had begun.
        """
        self._artifacts_opened += 1
        # Checks the arguments here, and not when the first piece is written.
        described = Artifact(
            artifact_id=artifact_id or name or f"artifact-{self._artifacts_opened}",
            parts=[],
            name=name,
            description=description,
            metadata=validation.json_object("metadata", metadata),
            extensions=validation.text_list("extensions", extensions),
        )
        encode(described)
        return ArtifactWriter(
            self.emit_artifact,
            described.artifact_id,
            name=described.name,
            description=described.description,
            metadata=described.metadata,
            extensions=described.extensions,
        )

    # Records

    async def record_llm(self, model: str, *, prompt: int = 0, completion: int = 0, text: str = "") -> None:
        """Record that a model was called, and how many tokens that took; durable when this returns.

        Raises `TaskStoppedError` when a limit of the policy is exceeded by it.
        """
        await self._overseen().record_llm(model, prompt=prompt, completion=completion, text=text)

    def capability(self, name: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> CapabilityCall:
        """`async with ctx.capability("search", {"query": "tea"}) as call: call.output = await search("tea")`.

        Raises `CapabilityBlockedError` when the policy does not allow the call, before the block is run, or does not
        let its result through, after it; and `TaskStoppedError` when the policy ends the task.
        """
        return self._overseen().capability(name, {**(arguments or {}), **more})

    async def policy_context(self) -> dict[str, Any]:
        """What expressions of policies see as `context`: a copy, as plain JSON."""
        return await self._overseen().context()

    def _overseen(self) -> Overseer:
        """Return the overseer of the turn, which begins with the first record when there is no policy."""
        if self._overseer is None:
            if self._oversight is None:
                raise ConfigurationError("a context without a server keeps no records; test with errands.testing")
            self._overseer = self._oversight.oversee(
                self._turn, self._journal, self._stored, self._message, self._options
            )
        return self._overseer

    async def _admit(self) -> bool:
        """Return whether the policy lets the agent see the message, which it may change."""
        if self._overseer is None:
            return True
        admitted = await self._overseer.admit(is_cancelled=self._cancelled)
        if admitted is None:
            return False
        self._options = admitted.options
        if admitted.task is not self._stored.task:
            self._stored = msgspec.structs.replace(self._stored, task=admitted.task)
            self._message = (admitted.task.history or [])[self._position]
            self._shown = None
        return True

    async def _give_up(self, reason: str) -> None:
        """End the task as failed in the runtime's own words; nothing that was held back is shown."""
        self._turn.overseer = None
        await self._turn.recover()
        await self.fail(reason)

    # Conversation

    async def load_context(self) -> Any:
        """What `update_context` kept for this conversation, or None; None as well when it cannot be read."""
        if self.context_id is None:
            return None
        raw = await self._journal.engine.load_context(self._stored.scope, self.context_id)
        try:
            return None if raw is None else msgspec.json.decode(raw)
        except UNREADABLE as error:
            logger.error(
                "what is kept for context %s cannot be read, and counts as nothing: %s", self.context_id, error
            )
            return None

    async def update_context(self, context: Any) -> None:
        """Keep any JSON value for this conversation: the next turns and tasks of it can load it."""
        value = encode(validation.json_value("context", context))
        if self.context_id is not None:
            await self._turn.remember(value)

    def _emit(self, artifact: Artifact, append: bool, last_chunk: bool) -> bool:
        """Emit a piece; return whether the caller should `catch_up`."""
        update = self._update(artifact, append, last_chunk)
        return self._turn.emit("artifact", StreamResponse(artifact_update=update))

    def _update(self, artifact: Artifact, append: bool = False, last_chunk: bool = False) -> TaskArtifactUpdateEvent:
        return TaskArtifactUpdateEvent(
            task_id=self.task_id,
            context_id=self.context_id or "",
            artifact=artifact,
            append=append,
            last_chunk=last_chunk,
        )

    def _unless_cancelled(self, state: TaskState) -> TaskState:
        return CANCELED if self._cancelled else state

    def _said(self, name: str, text: str | None) -> Message | None:
        """Return the argument `name` as a message of the agent."""
        if text is None:
            return None
        return self._agent_message([Part(text=validation.text(name, text, "write JSON values as text first"))])

    def _agent_message(self, parts: list[Part]) -> Message:
        return Message(
            message_id=new_id(),
            role=Role.AGENT,
            parts=parts,
            task_id=self.task_id,
            context_id=self.context_id,
        )


def _schema_of(shape: type) -> dict[str, Any]:
    try:
        return msgspec.json.schema(shape)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"schema must be a JSON Schema or a type that msgspec can describe: {error}") from None


def current_position(stored: StoredTask) -> int:
    """Return where in the history the message of this turn stands: the oldest one that no turn has dealt with.

    Raise `DamagedTaskError` when there is none.
    """
    history = stored.task.history or []
    if len(history) == 1:
        return 0
    if stored.head.unread <= 1 and history and history[-1].role is Role.USER and not is_review(history[-1]):
        return len(history) - 1
    positions = [i for i, m in enumerate(history) if m.role is not Role.AGENT and not is_review(m)]
    unread = max(stored.head.unread, 1)
    if unread > len(positions):
        raise DamagedTaskError(f"{unread} messages wait for a turn, and its history has {len(positions)}")
    return positions[-unread]
