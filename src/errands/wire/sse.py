"""Server-sent events: writing them, and reading them from a byte stream in pieces of any size."""

from __future__ import annotations

import codecs
from typing import NamedTuple

#: A comment without the empty line that ends an event. httpx-sse, with which a2a-sdk 0.3 reads streams, would turn that
#: line into an event without data.
KEEP_ALIVE = b": keep-alive\n"
#: The name of an event with the task as it is now, sent when some of the events asked for are no longer kept.
GAP_EVENT = "gap"
#: The name of the event with which a stream ends early.
ERROR_EVENT = "error"
#: Line breaks of Unicode that JSON need not escape. Clients that split lines as Python does, such as those of a2a-sdk
#: 1.x, would cut an event in two there.
_LINE_BREAKS = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\x85\u2028\u2029")


class ServerSentEvent(NamedTuple):
    data: str
    #: None when the event came without an id.
    id: str | None = None
    event: str = "message"


def frame(version: int, data: bytes) -> bytes:
    """Return one event. `data` is one line of JSON; `version` becomes the event's id, 0 for none."""
    if not version:
        return plain_frame(data)
    return b"id: %d\ndata: %b\n\n" % (version, data if data.isascii() else _on_one_line(data))


def plain_frame(data: bytes) -> bytes:
    """Return one event without an id."""
    return b"data: %b\n\n" % (data if data.isascii() else _on_one_line(data))


def _on_one_line(data: bytes) -> bytes:
    for mark, escaped in _LINE_BREAKS:
        data = data.replace(mark, escaped)
    return data


def named(name: str, event: bytes) -> bytes:
    """Return the event with a name."""
    return b"event: %b\n%b" % (name.encode(), event)


class SSEParser:
    """Reads events from bytes as they come."""

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")(errors="replace").decode
        #: The pieces of a line whose end has not arrived.
        self._rest: list[str] = []
        self._data: list[str] = []
        self._id: str | None = None
        self._event = ""

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that are complete with these bytes."""
        text = self._decode(chunk)
        if self._rest and self._rest[-1] == "\r":
            text = self._rest.pop() + text
        # A carriage return at the very end may be half of a line break.
        held = ["\r"] if text.endswith("\r") else []
        first, *lines = (text[:-1] if held else text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest.append(first)
        if lines:
            lines.insert(0, "".join(self._rest))
            self._rest = [lines.pop()]
        self._rest += held
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: str) -> ServerSentEvent | None:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "id" and "\0" not in value:
            self._id = value
        elif field == "event":
            self._event = value
        if line:
            return None
        data, event_id, event = self._data, self._id, self._event or "message"
        self._data, self._id, self._event = [], None, ""
        return ServerSentEvent("\n".join(data), event_id, event) if any(data) else None
