"""What a provider is sent: a `Question` in the form of OpenAI's chat completions, which any-llm translates further."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from collections.abc import Iterable
from typing import Any

import msgspec

from errands.agents.models.base import Answer, FunctionCall, FunctionSaid, ModelSaid, Offer, Question, Said, UserSaid
from errands.policy.cel.values import Json

# messages

_AUDIO = {"audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3"}
_NO_NAME = re.compile(r"[^A-Za-z0-9_-]")
_TEXTS = ("application/json", "application/xml", "application/yaml")


def messages(question: Question) -> list[dict[str, Any]]:
    system = [{"role": "system", "content": question.system}] if question.system else []
    return [*system, *map(_message, question.said)]


def tools(offers: tuple[Offer, ...]) -> list[dict[str, Any]]:
    return [
        {
            "type": "function",
            "function": {"name": offer.name, "description": offer.description, "parameters": offer.parameters},
        }
        for offer in offers
    ]


def _message(said: Said) -> dict[str, Any]:
    match said:
        case UserSaid(parts):
            return {"role": "user", "content": _content(parts)}
        case ModelSaid(text, calls):
            called = {"tool_calls": [_tool_call(call) for call in calls]} if calls else {}
            return {"role": "assistant", "content": text or None, **called}
        case FunctionSaid(call, _, content):
            return {"role": "tool", "tool_call_id": call, "content": as_text(content)}


def _tool_call(call: FunctionCall) -> dict[str, Any]:
    # Some servers read the arguments of old calls and fail at what is no JSON object.
    arguments = {"unreadable": call.raw} if call.arguments is None else call.arguments
    sent = {
        "id": call.id,
        "type": "function",
        "function": {"name": _name(call.name), "arguments": msgspec.json.encode(arguments).decode()},
    }
    return {**sent, "extra_content": call.extra} if call.extra else sent


def _name(called: str) -> str:
    """The name of a function that was called. Servers refuse a whole conversation for one that nobody could have."""
    return _NO_NAME.sub("_", called)[:64] or "_"


def as_text(content: Json) -> str:
    """A text as it is, anything else as JSON."""
    return content if isinstance(content, str) else msgspec.json.encode(content).decode()


# Content parts


def _content(parts: list[dict[str, Json]]) -> str | list[dict[str, Any]]:
    content = [_part(part) for part in parts]
    if all(part["type"] == "text" for part in content):
        # Every server takes a plain text; not every one takes a list.
        return "\n".join(part["text"] for part in content)
    return content


def _part(part: dict[str, Json]) -> dict[str, Any]:
    if "file" not in part:
        return _text_part(as_text(part.get("text", part.get("data"))))
    kind = str(part.get("mimeType") or "application/octet-stream").partition(";")[0].strip().lower()
    address = str(part["file"])
    name = str(part.get("filename") or "file")
    if kind.startswith("image/") and _is_sendable(address):
        return {"type": "image_url", "image_url": {"url": address}}
    data = _data(address)
    if data is None:
        return _text_part(f"[the file {name} of type {kind}{f' at {address}' if ':' in address else ''}]")
    if kind.startswith("text/") or kind in _TEXTS:
        return _text_part(data.decode("utf-8", "replace"))
    if kind in _AUDIO:
        audio = base64.b64encode(data).decode()
        return {"type": "input_audio", "input_audio": {"data": audio, "format": _AUDIO[kind]}}
    return {"type": "file", "file": {"filename": name, "file_data": address}}


def _text_part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _is_sendable(address: str) -> bool:
    return address.startswith(("https://", "http://", "data:"))


def _data(address: str) -> bytes | None:
    """The content of a `data:` address; None for any other."""
    head, comma, body = address.partition(",")
    if not head.startswith("data:") or not comma:
        return None
    if not head.endswith(";base64"):
        return urllib.parse.unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except binascii.Error:
        return None


# assembling

#: Bytes of an answer, texts and arguments together.
MAX_BYTES = 5 * 1024 * 1024
#: Why a provider ends an answer before the model is done, in the words of OpenAI, which any-llm keeps to.
_CUT = ("length", "content_filter")
#: What a token is taken for when a provider does not count them.
CHARACTERS_PER_TOKEN = 4


class AnswerTooLongError(Exception):
    """The provider goes on and on."""


class _Call(msgspec.Struct):
    id: str = ""
    name: str = ""
    arguments: str = ""
    extra: dict[str, Any] | None = None

    def add(self, piece: Any) -> None:
        function = piece.function
        self.id = self.id or piece.id or ""
        if function is not None:
            # Some providers repeat the name with every piece.
            self.name = self.name or _text(function.name)
            self.arguments += _text(function.arguments)
        self.extra = getattr(piece, "extra_content", None) or self.extra


class Assembly:
    """One answer on its way. `piece` and `whole` take what any-llm gives, in the form of OpenAI's completions."""

    def __init__(self, question: Question, provider: str, max_bytes: int = MAX_BYTES) -> None:
        self._left = max_bytes
        self._question = question
        self._provider = provider
        self._model = ""
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        #: The call that is being written at each index.
        self._open: dict[int, _Call] = {}
        self._prompt_tokens = 0
        self._completion_tokens = 0
        #: Whether anything has come, and whether the provider has said that this is all.
        self.is_begun = False
        self.is_finished = False
        #: Why the provider has ended it before the model was done.
        self.incomplete: str | None = None

    def piece(self, chunk: Any) -> str:
        """Takes one piece of a stream; the text in it. Raises `AnswerTooLongError`."""
        self._told_by(chunk)
        texts = [self._delta(choice) for choice in chunk.choices[:1]]
        return "".join(texts)

    def whole(self, completion: Any) -> str:
        """Takes an answer that came at once; its text. Raises `AnswerTooLongError`."""
        self._told_by(completion)
        for choice in completion.choices[:1]:
            for call in choice.message.tool_calls or []:
                self._calls.append(_Call())
                self._add(self._calls[-1], call)
            self._texts.append(self._counted(choice.message.content or getattr(choice.message, "refusal", None)))
            self._finished(choice.finish_reason)
        return "".join(self._texts)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said, and nothing called."""
        return not self._calls and not "".join(self._texts).strip()

    def answer(self) -> Answer:
        text = "".join(self._texts)
        estimated = not (self._prompt_tokens or self._completion_tokens)
        return Answer(
            text=text,
            calls=tuple(_with_ids(self._calls, self._question, is_cut=self.incomplete is not None)),
            incomplete=self.incomplete,
            model=f"{self._provider}/{self._model}" if self._model else self._question.model,
            prompt_tokens=_estimate(_sent(self._question)) if estimated else self._prompt_tokens,
            completion_tokens=_estimate([text, *_written(self._calls)]) if estimated else self._completion_tokens,
            estimated=estimated,
        )

    def _told_by(self, chunk: Any) -> None:
        self.is_begun = True
        self._model = chunk.model or self._model
        if chunk.usage is not None:
            # Some providers tell the two at different times, some tell more with every piece.
            self._prompt_tokens = max(self._prompt_tokens, chunk.usage.prompt_tokens or 0)
            self._completion_tokens = max(self._completion_tokens, chunk.usage.completion_tokens or 0)

    def _delta(self, choice: Any) -> str:
        delta = choice.delta
        for piece in delta.tool_calls or []:
            self._add(self._call_at(piece), piece)
        text = self._counted(delta.content or getattr(delta, "refusal", None))
        self._texts.append(text)
        if choice.finish_reason is not None:
            self._finished(choice.finish_reason)
        return text

    def _finished(self, reason: str | None) -> None:
        self.is_finished = True
        self.incomplete = reason if reason in _CUT else None

    def _add(self, call: _Call, piece: Any) -> None:
        # A call without a word is something, too.
        self._counted("{}")
        self._counted(piece.function.arguments if piece.function is not None else None)
        call.add(piece)

    def _counted(self, given: str | None) -> str:
        text = _text(given)
        self._left -= len(text.encode())
        if self._left < 0:
            raise AnswerTooLongError
        return text

    def _call_at(self, piece: Any) -> _Call:
        """The call that a piece belongs to. Another id at the same index is another call: not all providers count."""
        call = self._open.get(piece.index)
        if call is None or (piece.id and call.id and piece.id != call.id):
            call = self._open[piece.index] = _Call()
            self._calls.append(call)
        return call


def _with_ids(calls: list[_Call], question: Question, *, is_cut: bool) -> Iterable[FunctionCall]:
    used = {call.id for said in question.said if isinstance(said, ModelSaid) for call in said.calls}
    for call in calls:
        if not call.id or call.id in used:
            call.id = unused_id(used)
        used.add(call.id)
        # Without a word it may be a call without arguments, or one of which they are missing.
        is_broken = is_cut and call is calls[-1] and not call.arguments.strip()
        arguments = None if is_broken else _object(call.arguments)
        raw = call.arguments if arguments is None else ""
        yield FunctionCall(id=call.id, name=call.name, arguments=arguments, raw=raw, extra=call.extra)


def _text(given: str | None) -> str:
    """What was given without halves of characters, which nothing can store: some providers cut an emoji in two."""
    return (given or "").encode("utf-8", "replace").decode()


def unused_id(used: set[str]) -> str:
    number = len(used) + 1
    while f"call_{number}" in used:
        number += 1
    return f"call_{number}"


def _object(text: str) -> dict[str, Any] | None:
    if not text.strip():
        # What several providers write for a function without parameters.
        return {}
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _written(calls: list[_Call]) -> list[str]:
    return [text for call in calls for text in (call.name, call.arguments)]


def _sent(question: Question) -> list[str]:
    return [msgspec.json.encode(sent).decode() for sent in (*messages(question), *tools(question.offers))]


def _estimate(texts: list[str]) -> int:
    return -(-sum(map(len, texts)) // CHARACTERS_PER_TOKEN)
