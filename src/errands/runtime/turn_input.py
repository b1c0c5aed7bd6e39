"""What a turn was given, as its handler reads it: the message, what was said before, and the request."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from msgspec import UNSET

from errands.errors import ErrandsError
from errands.model.core import Message, Part, Role, text_of
from errands.model.log import RequestOptions, StoredTask
from errands.model.marks import is_review
from errands.runtime.dependencies import DependencyContainer
from errands.runtime.validation import own_message
from errands.runtime.worker import FileInfo, HistoryMessage, PreviousArtifact

T = TypeVar("T")


class InvalidAnswerError(ErrandsError):
    """The user's answer does not fit what was asked for. Let it pass and the question is asked again."""


class TurnInput:
    """The half of a `TaskContext` that is read; the context sets the attributes."""

    #: The task's identifier.
    task_id: str
    #: The conversation's identifier.
    context_id: str | None
    #: The identifier of the message this turn is about.
    message_id: str

    _stored: StoredTask
    _message: Message
    #: The handler's copy of the message, once it has asked for it.
    _shown: Message | None = None
    #: Where in the history the message stands.
    _position: int
    _options: RequestOptions
    _request_metadata: dict[str, Any] | None = None
    _request_context: dict[str, Any]
    _deps: DependencyContainer

    @property
    def user_text(self) -> str:
        """The message's text parts, joined by line breaks."""
        return text_of(self._message.parts)

    @property
    def files(self) -> list[FileInfo]:
        """The message's files, with their bytes or their address."""
        return [FileInfo.of(part) for part in self._message.parts if part.raw is not None or part.url is not None]

    @property
    def data_parts(self) -> list[dict[str, Any]]:
        """The message's JSON objects, each as a plain dict. Other JSON is in `json_values`."""
        return [value for value in self.json_values if isinstance(value, dict)]

    @property
    def json_values(self) -> list[Any]:
        """The value of each data part of the message, of any JSON type."""
        return [part.data for part in self.parts if part.data is not UNSET]

    @property
    def message(self) -> Message:
        """The message this turn is about; a copy, so that changing it does not change the task."""
        if self._shown is None:
            self._shown = own_message(self._message)
        return self._shown

    @property
    def parts(self) -> list[Part]:
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
        """What was said in this task before this turn, by both sides, without the current message and reviews."""
        messages = self._stored.task.history or []
        # While the current message waited the agent may have spoken; the user's later messages still wait.
        since = (message for message in messages[self._position + 1 :] if message.role is Role.AGENT)
        spoken = (*messages[: self._position], *since)
        return [HistoryMessage.of(message) for message in spoken if not is_review(message)]

    @property
    def previous_artifacts(self) -> list[PreviousArtifact]:
        """What this task had produced when the turn began."""
        return [PreviousArtifact.of(artifact) for artifact in self._stored.task.artifacts or []]

    @property
    def request_context(self) -> dict[str, Any]:
        """What middleware put aside for this request: never stored, empty after a restart."""
        return self._request_context

    @property
    def request_metadata(self) -> dict[str, Any]:
        """The metadata of the request, beside that of the message; a copy."""
        if self._request_metadata is None:
            # Requests without options share one object.
            self._request_metadata = msgspec.to_builtins(self._options.metadata)
        return self._request_metadata

    @property
    def requested_extensions(self) -> set[str]:
        """The extensions the client declared."""
        return set(self._options.extensions)

    @property
    def message_extensions(self) -> list[str]:
        """The extensions the message itself makes use of."""
        return list(self._message.extensions or [])

    @property
    def reference_task_ids(self) -> list[str]:
        """Other tasks the message refers to."""
        return list(self._message.reference_task_ids or [])

    @property
    def deps(self) -> DependencyContainer:
        """What was registered with the server: `ctx.deps[Database]`, `ctx.deps.get("key")`."""
        return self._deps

    @property
    def tenant(self) -> str:
        """The tenant the task belongs to; "" without one."""
        return self._stored.scope.tenant

    @property
    def owner(self) -> str:
        """Who the task belongs to; "" when callers are anonymous."""
        return self._stored.scope.owner

    @property
    def attempt(self) -> int:
        """Which try of this turn it is, from 1; more than 1 after a crash or a restart."""
        return self._stored.head.attempt - self._stored.head.attempt_base

    @property
    def _tries(self) -> int:
        """The same without those that were given back in good order."""
        return self.attempt - self._stored.head.given_back

    def accepts(self, mime_type: str) -> bool:
        """Whether the client takes this type of output; without a list of its own it takes everything."""
        return not self._options.accepted_output_modes or mime_type in self._options.accepted_output_modes

    def answer(self, shape: type[T]) -> T | None:
        """The user's answer to `request_input(..., schema=shape)`, or None when nothing was asked yet.

        A data part is taken first, then text as JSON, then, for simple types, the text itself. Raises
        `InvalidAnswerError`; when the handler lets it pass, the question is asked again with what was wrong.
        """
        if not any(message.role == "agent" for message in self.history):
            return None
        return self._read_as(shape)

    def _read_as(self, shape: type[T]) -> T:
        """The message as a value of that type. Raises `InvalidAnswerError`."""
        values = self.json_values
        value = values[0] if values else self.user_text
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
            # It was JSON: what is wrong inside says more than that text was not wanted.
            if isinstance(error, msgspec.ValidationError):
                raise error from None
            raise
