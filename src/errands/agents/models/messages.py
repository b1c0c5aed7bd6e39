"""What a provider is sent: a `Question` in the form of OpenAI's chat completions, which any-llm translates further."""

from __future__ import annotations

import base64
import binascii
import re
import urllib.parse
from typing import Any

import msgspec

from errands.agents.models.base import FunctionCall, FunctionSaid, ModelSaid, Offer, Question, Said, UserSaid
from errands.policy.cel.values import Json

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
        return _text(as_text(part.get("text", part.get("data"))))
    kind = str(part.get("mimeType") or "application/octet-stream").partition(";")[0].strip().lower()
    address = str(part["file"])
    name = str(part.get("filename") or "file")
    if kind.startswith("image/") and _is_sendable(address):
        return {"type": "image_url", "image_url": {"url": address}}
    data = _data(address)
    if data is None:
        return _text(f"[the file {name} of type {kind}{f' at {address}' if ':' in address else ''}]")
    if kind.startswith("text/") or kind in _TEXTS:
        return _text(data.decode("utf-8", "replace"))
    if kind in _AUDIO:
        audio = base64.b64encode(data).decode()
        return {"type": "input_audio", "input_audio": {"data": audio, "format": _AUDIO[kind]}}
    return {"type": "file", "file": {"filename": name, "file_data": address}}


def _text(text: str) -> dict[str, Any]:
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
