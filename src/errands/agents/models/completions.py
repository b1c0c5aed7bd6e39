"""Translate a `Question` into OpenAI's chat completions, and these into an `Answer`. any-llm translates further."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import msgspec

from errands.agents.models.base import Answer, FunctionCall, FunctionSaid, ModelSaid, Offer, Question, Said, UserSaid
from errands.policy.cel.values import Json, as_text

#: Bytes of an answer, text and arguments together.
MAX_BYTES = 5 * 1024 * 1024
#: Characters per token, for providers that do not count tokens.
CHARACTERS_PER_TOKEN = 4

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_TEXT_TYPES = ("application/json", "application/xml", "application/yaml")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
#: The finish reasons of OpenAI for an answer that ended before the model was done.
_CUT = ("length", "content_filter")


# Questions


def messages(question: Question) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": question.system}] if question.system else []
    return [*system, *map(_message, question.said)]


def tools(offers: tuple[Offer, ...]) -> list[dict[str, Any]]:
    return [{"type": "function", "function": msgspec.structs.asdict(offer)} for offer in offers]


def _message(said: Said) -> dict[str, Any]:
    match said:
        case UserSaid(parts):
            content = [_part(part) for part in parts]
            if all(part["type"] == "text" for part in content):
                # Every server accepts a plain string; some do not accept a list.
                return {"role": "user", "content": "\n".join(part["text"] for part in content)}
            return {"role": "user", "content": content}
        case ModelSaid(text, calls):
            called: list[dict[str, Any]] = []
            for call in calls:
                # Some servers parse the arguments of earlier calls and fail on anything but a JSON object.
                arguments = {"unreadable": call.raw} if call.arguments is None else call.arguments
                # Servers refuse a whole conversation for an invalid name, which a model can make up.
                name = _NOT_IN_NAMES.sub("_", call.name)[:64] or "_"
                function = {"name": name, "arguments": msgspec.json.encode(arguments).decode()}
                extra = {"extra_content": call.extra} if call.extra else {}
                called.append({"id": call.id, "type": "function", "function": function, **extra})
            return {"role": "assistant", "content": text or None, **({"tool_calls": called} if called else {})}
        case FunctionSaid(answered, _, result):
            return {"role": "tool", "tool_call_id": answered, "content": as_text(result)}


def _part(part: dict[str, Json]) -> dict[str, Any]:
    if "file" not in part:
        return {"type": "text", "text": as_text(part.get("text", part.get("data")))}
    kind = str(part.get("mimeType") or "application/octet-stream").partition(";")[0].strip().lower()
    address = str(part["file"])
    name = str(part.get("filename") or "file")
    if kind.startswith("image/") and address.startswith(("https://", "http://", "data:")):
        return {"type": "image_url", "image_url": {"url": address}}
    data = _data(address)
    if data is None:
        where = f" at {address}" if ":" in address else ""
        return {"type": "text", "text": f"[the file {name} of type {kind}{where}]"}
    if kind.startswith("text/") or kind in _TEXT_TYPES:
        return {"type": "text", "text": data.decode("utf-8", "replace")}
    if kind in _AUDIO:
        audio = base64.b64encode(data).decode()
        return {"type": "input_audio", "input_audio": {"data": audio, "format": _AUDIO[kind]}}
    return {"type": "file", "file": {"filename": name, "file_data": address}}


def _data(address: str) -> bytes | None:
    """Return the content of a `data:` URL; None for any other URL."""
    head, comma, body = address.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    if not head.endswith(";base64"):
        return urllib.parse.unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        return None


# Answers


class AnswerTooLongError(Exception):
    """The answer has more bytes than allowed."""


class _PartialCall(msgspec.Struct):
    """A function call that is still being received."""

    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] | None = None


class Assembly:
    """Builds one answer from completions, whole or streamed in pieces."""

    def __init__(self, question: Question, provider: str, max_bytes: int = MAX_BYTES) -> None:
        self._bytes_left = max_bytes
        self._question = question
        self._provider = provider
        self._model = ""
        self._texts: list[str] = []
        self._calls: list[_PartialCall] = []
        #: By index: the call that the next piece with this index belongs to.
        self._open: dict[int, _PartialCall] = {}
        self._prompt_tokens = self._completion_tokens = 0
        #: Whether anything has arrived.
        self.is_begun = False
        #: Whether the provider has said that the answer is complete.
        self.is_finished = False
        #: Why the provider ended the answer before the model was done.
        self.incomplete: str | None = None

    def add(self, completion: Any, *, is_whole: bool) -> str:
        """Add a completion, or a piece of a streamed one, and return its text. Raises `AnswerTooLongError`."""
        self.is_begun = True
        self._model = completion.model or self._model
        if completion.usage is not None:
            # Some providers send the two numbers at different times, some send growing ones.
            self._prompt_tokens = max(self._prompt_tokens, completion.usage.prompt_tokens or 0)
            self._completion_tokens = max(self._completion_tokens, completion.usage.completion_tokens or 0)
        text = ""
        for choice in completion.choices[:1]:
            message = choice.message if is_whole else choice.delta
            for piece in message.tool_calls or []:
                # An empty piece counts, too, so that a stream of them comes to an end.
                self._counted("{}")
                call = None if is_whole else self._open.get(piece.index)
                # Another id at the same index is another call: some providers do not count.
                if call is None or (piece.id and call.id and piece.id != call.id):
                    call = _PartialCall()
                    self._calls.append(call)
                    if not is_whole:
                        self._open[piece.index] = call
                call.id = call.id or piece.id or ""
                if piece.function is not None:
                    # Some providers repeat the name with every piece.
                    call.name = call.name or _clean(piece.function.name)
                    call.arguments += self._counted(piece.function.arguments)
                call.extra = getattr(piece, "extra_content", None) or call.extra
            text = self._counted(message.content or getattr(message, "refusal", None))
            if is_whole or choice.finish_reason is not None:
                self.is_finished = True
                self.incomplete = choice.finish_reason if choice.finish_reason in _CUT else None
        self._texts.append(text)
        return text

    def _counted(self, given: str | None) -> str:
        text = _clean(given)
        self._bytes_left -= len(text.encode())
        if self._bytes_left < 0:
            raise AnswerTooLongError
        return text

    @property
    def is_empty(self) -> bool:
        """Return whether the answer has neither text nor calls."""
        return not self._calls and not "".join(self._texts).strip()

    def answer(self) -> Answer:
        text = "".join(self._texts)
        estimated = not (self._prompt_tokens or self._completion_tokens)
        if estimated:
            sent = (*messages(self._question), *tools(self._question.offers))
            self._prompt_tokens = _estimate(msgspec.json.encode(one).decode() for one in sent)
            called = (one for call in self._calls for one in (call.name, call.arguments))
            self._completion_tokens = _estimate([text, *called])
        # The ids must be unique in the conversation.
        used = {call.id for said in self._question.said if isinstance(said, ModelSaid) for call in said.calls}
        calls: list[FunctionCall] = []
        for call in self._calls:
            if not call.id or call.id in used:
                call.id = unused_id(used)
            used.add(call.id)
            written, arguments = call.arguments.strip(), None
            with suppress(msgspec.DecodeError, UnicodeError, RecursionError):
                # Several providers write nothing for a function without parameters.
                arguments = msgspec.json.decode(written) if written else {}
            # The last call of an answer that was cut may have lost its arguments.
            is_lost = self.incomplete is not None and call is self._calls[-1] and not written
            if is_lost or not isinstance(arguments, dict):
                arguments = None
            raw = call.arguments if arguments is None else ""
            calls.append(FunctionCall(id=call.id, name=call.name, arguments=arguments, raw=raw, extra=call.extra))
        return Answer(
            text=text,
            calls=tuple(calls),
            incomplete=self.incomplete,
            model=f"{self._provider}/{self._model}" if self._model else self._question.model,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            estimated=estimated,
        )


def unused_id(used: set[str]) -> str:
    number = len(used) + 1
    while f"call_{number}" in used:
        number += 1
    return f"call_{number}"


def _clean(given: str | None) -> str:
    """Replace lone surrogates, which cannot be stored: some providers cut an emoji in two."""
    return (given or "").encode("utf-8", "replace").decode()


def _estimate(texts: Iterable[str]) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_PER_TOKEN)
