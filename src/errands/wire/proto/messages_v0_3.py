"""Tasks, messages, parts and events as protobuf, in version 0.3: what it names otherwise.

Where the schema leaves something open, this does what the SDKs of that version do: the bytes of a file travel as
base64, and data that is no object travels as the `value` of one.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2
from msgspec import UNSET

from errands.model.core import SETTLED_STATES, Message, Part, StreamResponse, TaskStatus, TaskStatusUpdateEvent
from errands.model.requests import SendMessageResponse
from errands.wire.proto.messages import ROLE_NUMBERS, ROLES, STATE_NUMBERS, Reader, Writer
from errands.wire.proto.values import fill_struct, read_struct, write_struct, write_time

#: Any: generated messages take numbers for enums, which their type stubs do not say.
pb: Any = a2a_v0_3_pb2

#: The note on a data part whose content is in `value`.
_WRAPPED = "data_part_compat"


class OldWriter(Writer):
    pb = pb

    def part(self, part: Part) -> Any:
        metadata = part.metadata
        if part.text is not None:
            return pb.Part(text=part.text, metadata=write_struct(metadata))
        if part.data is UNSET:
            file = pb.FilePart(
                file_with_uri=part.url,
                file_with_bytes=None if part.raw is None else base64.b64encode(part.raw),
                mime_type=part.media_type,
                name=part.filename,
            )
            return pb.Part(file=file, metadata=write_struct(metadata))
        data = part.data
        if not isinstance(data, dict):
            data, metadata = {"value": data}, {**(metadata or {}), _WRAPPED: True}
        written = pb.Part(metadata=write_struct(metadata))
        written.data.data.SetInParent()
        fill_struct(written.data.data, data)
        return written

    def message(self, message: Message | None) -> Any:
        if message is None:
            return None
        return pb.Message(
            message_id=message.message_id,
            context_id=message.context_id,
            task_id=message.task_id,
            role=ROLE_NUMBERS[message.role],
            content=[self.part(part) for part in message.parts],
            metadata=write_struct(message.metadata),
            extensions=message.extensions,
        )

    def status(self, status: TaskStatus) -> Any:
        return pb.TaskStatus(
            state=STATE_NUMBERS[status.state],
            update=self.message(status.message),
            timestamp=write_time(status.timestamp),
        )

    def status_update(self, update: TaskStatusUpdateEvent) -> Any:
        written = super().status_update(update)
        written.final = update.status.state in SETTLED_STATES
        return written

    def event(self, event: StreamResponse) -> Any:
        if event.message is not None:
            return pb.StreamResponse(msg=self.message(event.message))
        return super().event(event)

    def sent(self, response: SendMessageResponse) -> Any:
        if response.message is not None:
            return pb.SendMessageResponse(msg=self.message(response.message))
        return super().sent(response)


class OldReader(Reader):
    def part(self, part: Any) -> Part:
        kind = part.WhichOneof("part")
        metadata = self.metadata(part)
        if kind == "text":
            return Part(text=part.text, metadata=metadata)
        if kind == "file":
            return self._file(part.file, metadata)
        if kind is None:
            raise ValueError("a part has no content")
        data: Any = read_struct(part.data.data)
        if metadata and metadata.get(_WRAPPED) is True and data.keys() == {"value"}:
            data = data["value"]
            del metadata[_WRAPPED]
        return Part(data=data, metadata=metadata or None)

    def _file(self, file: Any, metadata: dict[str, Any] | None) -> Part:
        is_url = file.WhichOneof("file") == "file_with_uri"
        return Part(
            url=file.file_with_uri if is_url else None,
            raw=None if is_url else _bytes_of(file.file_with_bytes),
            metadata=metadata,
            filename=file.name or None,
            media_type=file.mime_type or None,
        )

    def message(self, message: Any) -> Message:
        return Message(
            message_id=message.message_id,
            role=ROLES[message.role] if message.role < len(ROLES) else ROLES[0],
            parts=[self.part(part) for part in message.content],
            context_id=message.context_id or None,
            task_id=message.task_id or None,
            metadata=self.metadata(message),
            extensions=list(message.extensions) or None,
        )

    def status(self, status: Any, message: str = "update") -> TaskStatus:
        return super().status(status, message)


def _bytes_of(content: bytes) -> bytes:
    """The file: base64 as the SDKs write it, or the bytes themselves as the schema has it."""
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error:
        return content
