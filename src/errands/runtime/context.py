"""`TaskContext`: everything a handler is given."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from msgspec import UNSET

from errands.errors import ConfigurationError, ErrandsError
from errands.model import core
from errands.model.base import UNREADABLE, encode, shallow_copy
from errands.model.marks import is_review
from errands.runtime import validation
from errands.runtime.blobs import BlobNotFoundError, BlobReference, pieces_of
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.journal import status_update
from errands.runtime.oversight import CapabilityCall
from errands.runtime.turn import Turn
from errands.runtime.worker import FileInfo, HistoryMessage, PreviousArtifact

logger = logging.getLogger(__name__)

_JSON = "application/json"

T = TypeVar("T")
Emit = Callable[..., Awaitable[None]]


class InvalidAnswerError(ErrandsError):
    """The user's answer does not fit the type that was asked for.

    If the handler does not catch it, the question is asked again.
    """


class TaskContext:
    """One turn of one task, as its handler sees it.

    Read the input, emit results, and call exactly one lifecycle method: `complete`, `complete_json`, `respond`,
    `reply_directly`, `fail`, `reject`, `request_input` or `request_auth`. A second one, and whatever is emitted after
    it, raises `TurnError`. Writing raises `LeaseLostError` when another process has taken the task over, and
    `TaskTerminalStateError` when it was ended meanwhile.
    """

    #: The task's identifier.
    task_id: str
    #: The conversation's identifier.
    context_id: str | None
    #: The identifier of the message this turn is about.
    message_id: str

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.task_id = turn.task_id
        self.context_id = turn.stored.task.context_id
        self.message_id = turn.message.message_id
        #: The handler's copies, made when it asks for them.
        self._message: core.Message | None = None
        self._request_metadata: dict[str, Any] | None = None
        self._artifacts_opened = 0
        #: What the next piece of text is copied from.
        self._last_piece: core.TaskArtifactUpdateEvent | None = None

    # Input

    @property
    def user_text(self) -> str:
        """The message's text parts, joined by line breaks."""
        return core.text_of(self._turn.message.parts)

    @property
    def files(self) -> list[FileInfo]:
        """The message's files, with their bytes or their address."""
        return [FileInfo.of(part) for part in self._turn.message.parts if part.raw is not None or part.url is not None]

    async def read_file(self, file: FileInfo | core.Part, start: int = 0, length: int | None = None) -> bytes:
        """Return the bytes of a file of this task, or some of them; of a message, a former one or an artifact.

        Files up to `max_body_bytes` are in `content` already. A larger one is read by this method only, piece by piece
        if `length` is given. Raises `ValueError` for a file that is not kept by this server: it is not fetched.
        """
        if not isinstance(file, FileInfo | core.Part):
            raise TypeError(f"file must be one of `files` or a Part, not {type(file).__name__}")
        start = validation.count("start", start)
        length = None if length is None else validation.count("length", length)
        content = file.content if isinstance(file, FileInfo) else file.raw
        if content is not None:
            return content[start:] if length is None else content[start : start + length]
        blobs, reference = self._turn.journal.blobs, BlobReference.of(file.url)
        if blobs is None or reference is None or reference.task_id != self.task_id:
            raise ValueError(f"the file at {file.url} is not kept by this server")
        try:
            blob = await blobs.find(reference, self._turn.stored.scope)
            return await blobs.read_all(blob, start, None if length is None else start + length)
        except BlobNotFoundError:
            raise ValueError(f"the file {file.filename or reference.name} is gone") from None

    async def store_file(
        self,
        content: bytes | str | os.PathLike[str] | AsyncIterator[bytes],
        *,
        filename: str | None = None,
        media_type: str | None = None,
    ) -> str:
        """Keep a file of any size for this task, and return the address to pass on as `file_url`.

        `content` are bytes, the path of a file, or pieces as they come; a file is never in memory as a whole. Raises
        `ConfigurationError` without the setting `blobs`.
        """
        self._turn.check_open()
        if not isinstance(content, bytes | str | os.PathLike | AsyncIterator):
            raise TypeError(f"content must be bytes, a path or an async iterator, not {type(content).__name__}")
        filename = validation.optional_text("filename", filename)
        media_type = validation.optional_text("media_type", media_type)
        blobs = self._turn.journal.blobs
        if blobs is None:
            raise ConfigurationError("store_file needs a place for files: set ERRANDS_BLOBS")
        if isinstance(content, str | os.PathLike):
            filename = filename or os.path.basename(content)
            content = pieces_of(content)
        blob = await blobs.put(
            content,
            self._turn.stored.scope,
            task_id=self.task_id,
            filename=filename,
            media_type=media_type,
        )
        return blob.reference.url

    @property
    def data_parts(self) -> list[dict[str, Any]]:
        """The message's JSON objects, each as a plain dict. Other JSON is in `json_values`."""
        return [value for value in self.json_values if isinstance(value, dict)]

    @property
    def json_values(self) -> list[Any]:
        """The value of each data part of the message, of any JSON type."""
        return [part.data for part in self.parts if part.data is not UNSET]

    @property
    def message(self) -> core.Message:
        """The message this turn is about; a copy, so that changing it does not change the task."""
        if self._message is None:
            self._message = validation.own_message(self._turn.message)
        return self._message

    @property
    def parts(self) -> list[core.Part]:
        """The message's parts as they came."""
        return self.message.parts

    @property
    def metadata(self) -> dict[str, Any]:
        """The message's metadata; stored with it."""
        if self.message.metadata is None:
            self.message.metadata = {}
        return self.message.metadata

    @property
    def history(self) -> list[HistoryMessage]:
        """The messages of this task before this turn, of both sides, without the current one and reviews."""
        messages = self._turn.stored.task.history or []
        # The agent may have answered while the current message waited; later messages of the user still wait.
        since = (message for message in messages[self._turn.position + 1 :] if message.role is core.Role.AGENT)
        spoken = (*messages[: self._turn.position], *since)
        return [HistoryMessage.of(message) for message in spoken if not is_review(message)]

    @property
    def previous_artifacts(self) -> list[PreviousArtifact]:
        """The artifacts of this task when the turn began."""
        return [PreviousArtifact.of(artifact) for artifact in self._turn.stored.task.artifacts or []]

    @property
    def request_context(self) -> dict[str, Any]:
        """The values that middleware kept for this request: never stored, empty after a restart."""
        return self._turn.request_context

    @property
    def request_metadata(self) -> dict[str, Any]:
        """The metadata of the request, beside that of the message; a copy."""
        if self._request_metadata is None:
            # Requests without options share one object.
            self._request_metadata = msgspec.to_builtins(self._turn.options.metadata)
        return self._request_metadata

    @property
    def requested_extensions(self) -> set[str]:
        """The extensions the client declared."""
        return set(self._turn.options.extensions)

    @property
    def message_extensions(self) -> list[str]:
        """The extensions the message itself makes use of."""
        return list(self._turn.message.extensions or [])

    @property
    def reference_task_ids(self) -> list[str]:
        """Other tasks the message refers to."""
        return list(self._turn.message.reference_task_ids or [])

    @property
    def deps(self) -> DependencyContainer:
        """The dependencies of the server: `ctx.deps[Database]`, `ctx.deps.get("key")`."""
        if self._turn.deps is None:
            self._turn.deps = DependencyContainer()
        return self._turn.deps

    @property
    def tenant(self) -> str:
        """The tenant the task belongs to; "" without one."""
        return self._turn.stored.scope.tenant

    @property
    def owner(self) -> str:
        """The owner of the task; "" when callers are anonymous."""
        return self._turn.stored.scope.owner

    @property
    def attempt(self) -> int:
        """Which try of this turn it is, from 1; more than 1 after a crash or a restart."""
        return self._turn.attempt

    def accepts(self, mime_type: str) -> bool:
        """Return whether the client accepts this type of output; a client that lists none accepts every type."""
        return not self._turn.options.accepted_output_modes or mime_type in self._turn.options.accepted_output_modes

    def answer(self, shape: type[T]) -> T | None:
        """Return the user's answer to `request_input(..., schema=shape)`, or None if nothing was asked yet.

        A data part is read first, then text as JSON, then, for simple types, the text itself. Raise
        `InvalidAnswerError`; if the handler does not catch it, the question is asked again with what was wrong.
        """
        if not any(message.role == "agent" for message in self.history):
            return None
        return read_as(self, shape)

    # State

    @property
    def is_cancelled(self) -> bool:
        """Return whether the task is to be canceled. Check it in long loops; then `fail` or just return."""
        return self._turn.is_cancelled

    @property
    def turn_ended(self) -> bool:
        """Return whether a lifecycle method was called."""
        return self._turn.ended

    # Lifecycle

    async def complete(self, text: str | None = None, *, artifact_id: str = "final-answer") -> None:
        """Complete the task with `text` as an artifact or, without one, with what was emitted.

        `complete_json` takes any other value.
        """
        if text is None:
            await self._turn.end(core.COMPLETED)
        else:
            artifact = core.Artifact(artifact_id=artifact_id, parts=[core.Part(text=text)])
            await self._turn.end(core.COMPLETED, artifacts=[self._turn.artifact_update(artifact, last_chunk=True)])

    async def complete_json(self, data: Any, *, artifact_id: str = "final-answer") -> None:
        """Complete the task with a JSON artifact.

        `data` may be anything with a JSON form: dates, UUIDs, enums, sets, dataclasses and msgspec structs are
        converted, bytes become base64, NaN and infinities become null.
        """
        part = core.Part(data=validation.json_value("data", data), media_type=_JSON)
        artifact = core.Artifact(artifact_id=artifact_id, parts=[part], metadata={"media_type": _JSON})
        await self._turn.end(core.COMPLETED, artifacts=[self._turn.artifact_update(artifact, last_chunk=True)])

    async def respond(self, text: str | None = None) -> None:
        """Complete the task with a message and no artifact."""
        await self._turn.end(core.COMPLETED, message=self._said("text", text))

    async def reply_directly(self, text: str) -> None:
        """Answer a send with a plain message instead of a task; a stream sees the task all the same."""
        message = self._said("text", validation.text("text", text))
        await self._turn.end(core.COMPLETED, message=message, direct=True)

    async def fail(self, reason: str) -> None:
        """End the task as failed; after a cancel request, as canceled."""
        await self._turn.end(self._unless_cancelled(core.FAILED), message=self._said("reason", reason))

    async def reject(self, reason: str | None = None) -> None:
        """Decline the task; after a cancel request it ends as canceled."""
        await self._turn.end(self._unless_cancelled(core.REJECTED), message=self._said("reason", reason))

    async def request_input(self, question: str, *, schema: type | Mapping[str, Any] | None = None) -> None:
        """Pause until the user answers.

        With a `schema` (a type or a JSON Schema) the client gets the form of the answer, and `answer(...)` reads it in
        the next turn.
        """
        parts = [core.Part(text=validation.text("question", question))]
        if schema is not None:
            shape = validation.json_value("schema", schema if isinstance(schema, Mapping) else _schema_of(schema))
            parts.append(core.Part(data={"schema": shape}, media_type="application/schema+json"))
        await self._turn.end(core.INPUT_REQUIRED, message=self._turn.agent_message(parts))

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
        parts = [core.Part(text=validation.text("details", details))] if details is not None else []
        if wanted:
            parts.append(core.Part(data=wanted, media_type=_JSON))
        message = self._turn.agent_message(parts) if parts else None
        await self._turn.end(core.AUTH_REQUIRED, message=message)

    # Streaming

    async def send_status(self, message: str | None = None) -> None:
        """Report progress; the task stays at work.

        Without a message it only shows that the agent is alive: to readers in this process, without being stored.
        """
        update = status_update(
            self.task_id,
            self.context_id or "",
            core.WORKING,
            self._turn.journal.now(),
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
        part = _build_part(
            text=text,
            data=data,
            file_bytes=file_bytes,
            file_url=file_url,
            media_type=media_type,
            filename=filename,
        )
        artifact = core.Artifact(
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
        if self._turn.emit("artifact", core.StreamResponse(artifact_update=piece)):
            await self._turn.catch_up()

    def _next_piece(self, text: str, artifact_id: str, append: bool, last_chunk: bool) -> core.TaskArtifactUpdateEvent:
        """Return a piece of text, if possible as a copy of the last piece, which has been checked.

        Checking every piece of a stream anew would cost a tenth of its rate.
        """
        last = self._last_piece
        is_like_last = last is not None and artifact_id == last.artifact.artifact_id
        if last is None or not is_like_last or (type(text), type(append), type(last_chunk)) != (str, bool, bool):
            artifact = core.Artifact(artifact_id=artifact_id, parts=[core.Part(text=text)])
            piece = self._last_piece = self._turn.artifact_update(artifact, append, last_chunk)
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
        part = core.Part(data=validation.json_value("data", data), media_type=media_type)
        artifact = core.Artifact(artifact_id=artifact_id, parts=[part], metadata={"media_type": media_type})
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
        """Return a writer: `async with ctx.artifact(name="report") as a: await a.write(chunk)`.

        The id of the artifact is `artifact_id`, or else follows from its name and order, so a turn that is run again
        replaces what its first try had begun.
        """
        self._artifacts_opened += 1
        # Checks the arguments here, and not when the first piece is written.
        described = core.Artifact(
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
        await self._turn.overseen().record_llm(model, prompt=prompt, completion=completion, text=text)

    def capability(self, name: str, arguments: Mapping[str, Any] | None = None, /, **more: Any) -> CapabilityCall:
        """Call a capability: `async with ctx.capability("search", {"query": "tea"}) as call: call.output = ...`.

        Raises `CapabilityBlockedError` when the policy does not allow the call, before the block is run, or does not
        let its result through, after it; and `TaskStoppedError` when the policy ends the task.
        """
        return self._turn.overseen().capability(name, {**(arguments or {}), **more})

    async def policy_context(self) -> dict[str, Any]:
        """Return what expressions of policies see as `context`: a copy, as plain JSON."""
        return await self._turn.overseen().context()

    # Conversation

    async def load_context(self) -> Any:
        """Return what `update_context` kept for this conversation, or None; None as well if it cannot be read."""
        if self.context_id is None:
            return None
        raw = await self._turn.journal.engine.load_context(self._turn.stored.scope, self.context_id)
        try:
            return None if raw is None else msgspec.json.decode(raw)
        except UNREADABLE as error:
            logger.error("what is kept for context %s cannot be read and is ignored: %s", self.context_id, error)
            return None

    async def update_context(self, context: Any) -> None:
        """Keep any JSON value for this conversation: the next turns and tasks of it can load it."""
        value = encode(validation.json_value("context", context))
        if self.context_id is not None:
            await self._turn.remember(value)

    def _emit(self, artifact: core.Artifact, append: bool, last_chunk: bool) -> bool:
        """Emit a piece; return whether the caller should `catch_up`."""
        update = self._turn.artifact_update(artifact, append, last_chunk)
        return self._turn.emit("artifact", core.StreamResponse(artifact_update=update))

    def _unless_cancelled(self, state: core.TaskState) -> core.TaskState:
        return core.CANCELED if self._turn.is_cancelled else state

    def _said(self, name: str, text: str | None) -> core.Message | None:
        """Return the argument `name` as a message of the agent."""
        if text is None:
            return None
        return self._turn.agent_message(
            [core.Part(text=validation.text(name, text, "write JSON values as text first"))]
        )


def _schema_of(shape: type) -> dict[str, Any]:
    try:
        return msgspec.json.schema(shape)
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"schema must be a JSON Schema or a type that msgspec can describe: {error}") from None


def read_as(ctx: TaskContext, shape: type[T]) -> T:
    """Return the message as a value of this type. Raise `InvalidAnswerError`."""
    values = ctx.json_values
    value = values[0] if values else ctx.user_text
    try:
        if isinstance(value, str):
            return _from_text(value, shape)
        return msgspec.convert(value, shape, strict=False)
    except msgspec.MsgspecError as error:
        raise InvalidAnswerError(str(error)) from None


def _from_text(text: str, shape: type[T]) -> T:
    try:
        return msgspec.json.decode(text, type=shape, strict=False)
    except msgspec.MsgspecError as error:
        try:
            return msgspec.convert(text, shape, strict=False)
        except msgspec.MsgspecError:
            # It was JSON: what is wrong inside says more than that a text was not expected.
            if isinstance(error, msgspec.ValidationError):
                raise error from None
            raise


class ArtifactWriter:
    """Writes one artifact piece by piece: the first piece begins it, and leaving the block seals it.

    A block left by an exception does not seal it: what was written stays, and clients see that it is incomplete.
    """

    def __init__(self, emit: Emit, artifact_id: str, **described: Any) -> None:
        self._emit = emit
        self.artifact_id = artifact_id
        self._described = described
        self._begun = False

    async def write(
        self,
        text: str | None = None,
        *,
        data: Any = None,
        file_bytes: bytes | None = None,
        file_url: str | None = None,
        media_type: str | None = None,
        filename: str | None = None,
    ) -> None:
        """Add a piece: text, JSON data, bytes or a link."""
        await self._piece(
            text=text,
            data=data,
            file_bytes=file_bytes,
            file_url=file_url,
            media_type=media_type,
            filename=filename,
        )

    async def _piece(self, **content: Any) -> None:
        described = {} if self._begun else self._described
        append, self._begun = self._begun, True
        try:
            await self._emit(artifact_id=self.artifact_id, append=append, **described, **content)
        except (TypeError, ValueError):
            self._begun = append  # nothing was written
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.seal()

    async def seal(self) -> None:
        """Mark the artifact as complete; leaving the block does it."""
        await self._piece(text="", last_chunk=True)


def _build_part(
    *,
    text: str | None = None,
    data: Any = None,
    file_bytes: bytes | None = None,
    file_url: str | None = None,
    media_type: str | None = None,
    filename: str | None = None,
) -> core.Part:
    """Return the part that these arguments describe. Raise `ValueError` unless exactly one content is given."""
    given = [
        name
        for name, value in (
            ("text", text),
            ("data", data),
            ("file_bytes", file_bytes),
            ("file_url", file_url),
        )
        if value is not None
    ]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise ValueError(f"give exactly one of text, data, file_bytes and file_url, not {named}")
    if file_bytes is not None and not isinstance(file_bytes, bytes | bytearray | memoryview):
        raise TypeError(f"file_bytes must be bytes, not {type(file_bytes).__name__}; encode text, or pass it as text=")
    return core.Part(
        text=validation.optional_text("text", text),
        data=UNSET if data is None else validation.json_value("data", data),
        raw=file_bytes,
        url=validation.optional_text("file_url", file_url),
        media_type=validation.optional_text("media_type", media_type),
        filename=validation.optional_text("filename", filename),
    )
