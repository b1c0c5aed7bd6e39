"""Events of a stream as protobuf, from the JSON in which the log has them.

Most events of a long stream are pieces of one text and differ in nothing else. Decoding each of them and filling a
message would take a fifth of the stream's time, so what surrounds the text is converted once:

    {"artifactUpdate":{…,"artifact":{…,"parts":[{"text":"  a piece of the text  "}]},"append":true}}
    └────────────────────── prefix ──────────────────────┘                       └───── suffix ─────┘
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from errands.model.base import unchecked
from errands.model.core import StreamResponse
from errands.wire.proto.codec import Rpc, varint, write_response
from errands.wire.proto.conversion import Message

_LENGTH_DELIMITED = 2
_BEFORE_TEXT = b'"parts":[{"text":"'
#: The lengths of pieces whose heads are kept. Longer ones are rare, and take longer anyway.
_SHORT = 256

_decode = msgspec.json.Decoder(unchecked(StreamResponse)).decode


class EventWriter:
    """Writes the events of one stream."""

    def __init__(self, rpc: Rpc) -> None:
        self._rpc = rpc
        self._shape: _Shape | None = None

    def write(self, data: bytes) -> bytes:
        """Return the message of an event. Raises `InvalidAgentResponseError` when protobuf cannot carry it."""
        if (shape := self._shape) is not None and data.startswith(shape.prefix) and data.endswith(shape.suffix):
            text = data[len(shape.prefix) : -len(shape.suffix)]
            # Without escapes, the text in JSON is the text.
            if b"\\" not in text and b'"' not in text:
                return shape.heads[len(text)] + text
        event = _decode(data)
        raw = write_response(self._rpc, event)
        update = event.artifact_update
        # The first piece and the last one are unlike the others.
        if update is not None and update.append and not update.last_chunk:
            self._shape = _shape_of(self._rpc, data, event)
        return raw


class _Shape(NamedTuple):
    """What the pieces of one text have in common."""

    prefix: bytes
    suffix: bytes
    heads: _Heads


class _Heads(dict[int, bytes]):
    """What precedes a text in the message of its event, by the length of the text.

    Fields of a message may be in any order, so the text is the last one, and in the last field of every message around
    it. `levels` are these messages from the innermost: their other fields, and the tag of the field that comes last.
    """

    def __init__(self, levels: list[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._levels = levels

    def __missing__(self, length: int) -> bytes:
        head, size = b"", length
        for others, tag in self._levels:
            head = others + tag + varint(size) + head
            size = len(head) + length
        if length < _SHORT:
            self[length] = head
        return head


def _shape_of(rpc: Rpc, data: bytes, event: StreamResponse) -> _Shape | None:
    """Return the shape of an event that is a piece of text, else None. The event loses its text."""
    assert event.artifact_update is not None
    parts = event.artifact_update.artifact.parts
    before, found, after = data.partition(_BEFORE_TEXT)
    text = after[: after.find(b'"')]
    if len(parts) != 1 or parts[0].text != text.decode():
        return None
    prefix, suffix = before + found, after[len(text) :]
    parts[0].text = ""
    # The text that was found may be another one, for example in metadata.
    if _decode(prefix + suffix) != event:
        return None
    message = rpc.write(event)
    update = message.artifact_update
    artifact = update.artifact
    messages = [(artifact.parts[0], "text"), (artifact, "parts"), (update, "artifact"), (message, "artifact_update")]
    return _Shape(prefix, suffix, _Heads([_level(*one) for one in messages]))


def _level(message: Message, field: str) -> tuple[bytes, bytes]:
    """Return the other fields of a message, and the tag of `field`, which is cleared."""
    message.ClearField(field)
    number = message.DESCRIPTOR.fields_by_name[field].number
    return message.SerializeToString(), varint(number << 3 | _LENGTH_DELIMITED)
