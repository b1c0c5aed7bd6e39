"""Events of a stream as protobuf, from the JSON in which the log has them.

Most events of a long stream are pieces of one text and differ in nothing else. Decoding each of them and filling a
message would take about a seventh of a stream's instructions, so what surrounds the text is converted once:

    {"artifactUpdate":{…,"artifact":{…,"parts":[{"text":"a piece of the text"}]},"append":true}}
    └────────────────────── prefix ─────────────────────┘                   └───── suffix ─────┘
"""

from __future__ import annotations

import msgspec

from errands.model.base import unchecked
from errands.model.core import StreamResponse
from errands.wire.proto.codec import Rpc, varint, write_response
from errands.wire.proto.conversion import Message

#: A prefix that no event has.
_NEVER = b"\0"
_BEFORE_TEXT = b'"parts":[{"text":"'
# Numbers: bytes look for one several times faster than for bytes.
_BACKSLASH, _QUOTE = b'\\"'
_LENGTH_DELIMITED = 2
#: Pieces shorter than this have heads that are kept, as longer ones are rarely of the same length; and how many heads
#: of at most how many bytes, as every open stream has its own.
_SHORT, _MOST_HEADS, _LONGEST_HEAD = 256, 64, 1024

_decode = msgspec.json.Decoder(unchecked(StreamResponse)).decode


class EventWriter:
    """Writes the events of one stream."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        #: What surrounds the text in the latest event that has one, and its heads once a second event has the same.
        self._prefix = self._suffix = _NEVER
        self._heads: _Heads | None = None

    def write(self, data: bytes) -> bytes:
        """Return the message of an event. Raises `InvalidAgentResponseError` when protobuf cannot carry it."""
        if data.startswith(self._prefix) and data.endswith(self._suffix):
            text = data[len(self._prefix) : -len(self._suffix)]
            # Without escapes, a text is the same bytes in JSON and in protobuf.
            if _BACKSLASH not in text and _QUOTE not in text:
                if self._heads is None:
                    self._heads = _heads_of(self._rpc, self._prefix, self._suffix)
                if self._heads is not None:
                    return self._heads[len(text)] + text
                self._prefix = _NEVER
        else:
            before, found, after = data.partition(_BEFORE_TEXT)
            if found:
                self._prefix, self._suffix, self._heads = before + found, after[after.find(b'"') :], None
        return write_response(self._rpc, _decode(data))


class _Heads(dict[int, bytes]):
    """What precedes a text in the message of its event, by the length of the text.

    Fields of a message may be in any order, so the text comes last, in the last field of every message around it.
    `levels` are these messages from the innermost: their other fields, and the tag of the field that comes last.
    """

    def __init__(self, levels: list[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._levels = levels

    def __missing__(self, length: int) -> bytes:
        head = b""
        for others, tag in self._levels:
            head = others + tag + varint(len(head) + length) + head
        if length < _SHORT and len(self) < _MOST_HEADS and len(head) <= _LONGEST_HEAD:
            self[length] = head
        return head


def _heads_of(rpc: Rpc, prefix: bytes, suffix: bytes) -> _Heads | None:
    """Return the heads of texts between `prefix` and `suffix`, or None if these are not around the text of a piece."""
    try:
        event, other = _decode(prefix + suffix), _decode(prefix + b"-" + suffix)
    except msgspec.DecodeError:
        return None
    if _text_of(event) != "" or _text_of(other) != "-":
        return None
    message = rpc.write(event)
    update = message.artifact_update
    artifact = update.artifact
    around = [(artifact.parts[0], "text"), (artifact, "parts"), (update, "artifact"), (message, "artifact_update")]
    return _Heads([_level(*one) for one in around])


def _text_of(event: StreamResponse) -> str | None:
    """Return the text of an artifact's piece that has one part."""
    parts = [] if event.artifact_update is None else event.artifact_update.artifact.parts
    return parts[0].text if len(parts) == 1 else None


def _level(message: Message, field: str) -> tuple[bytes, bytes]:
    """Return the other fields of a message, and the tag of `field`, which is cleared."""
    message.ClearField(field)
    number = message.DESCRIPTOR.fields_by_name[field].number
    return message.SerializeToString(), varint(number << 3 | _LENGTH_DELIMITED)
