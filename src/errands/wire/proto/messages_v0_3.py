"""Tasks, messages, parts and events as protobuf, in version 0.3: what it names otherwise.

Where the schema leaves something open, this does what the SDKs of that version do: the bytes of a file are written as
`errands.wire.v0_3.file_bytes` says, and data that is no object travels as the `value` of one.
"""

from __future__ import annotations

from typing import Any

from a2a.compat.v0_3 import a2a_v0_3_pb2
from msgspec import UNSET

from errands.model.core import SETTLED_STATES, Message, Part, StreamResponse, TaskStatus, TaskStatusUpdateEvent
from errands.model.requests import SendMessageResponse
from errands.wire.proto.messages import ROLES, Reader, Writer
from errands.wire.proto.values import fill_struct, read_struct
from errands.wire.v0_3.file_bytes import FileBytes

#: Any: generated messages take numbers for enums, which their type stubs do not say.
pb: Any = a2a_v0_3_pb2

#: The note on a data part whose content is in `value`.
_WRAPPED = "data_part_compat"


class OldWriter(Writer):
    pb = pb

    def __init__(self, file_bytes: FileBytes) -> None:
        self._file_bytes = file_bytes

    def fill_part(self, written: Any, part: Part) -> None:
        data, metadata = part.data, part.metadata
        if part.text is not None:
            written.text = part.text
        elif data is UNSET:
            self._fill_file(written.file, part)
        else:
            if not isinstance(data, dict):
                data, metadata = {"value": data}, {**(metadata or {}), _WRAPPED: True}
            fill_struct(written.data.data, data)
        if metadata is not None:
            fill_struct(written.metadata, metadata)

    def fill_message(self, written: Any, message: Message) -> None:
        self._fill_message(written, written.content, message)

    def fill_status(self, written: Any, status: TaskStatus, message: str = "update") -> None:
        super().fill_status(written, status, message)

    def fill_status_update(self, written: Any, update: TaskStatusUpdateEvent) -> None:
        super().fill_status_update(written, update)
        written.final = update.status.state in SETTLED_STATES

    def event(self, event: StreamResponse, message: str = "msg") -> Any:
        return super().event(event, message)

    def sent(self, response: SendMessageResponse, message: str = "msg") -> Any:
        return super().sent(response, message)

    def _fill_file(self, written: Any, part: Part) -> None:
        if part.url is not None:
            written.file_with_uri = part.url
        elif part.raw is not None:
            written.file_with_bytes = self._file_bytes.write(part.raw)
        if part.media_type is not None:
            written.mime_type = part.media_type
        if part.filename is not None:
            written.name = part.filename


class OldReader(Reader):
    def __init__(self, file_bytes: FileBytes) -> None:
        self._file_bytes = file_bytes

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
            raw=None if is_url else self._file_bytes.read(file.file_with_bytes),
            metadata=metadata,
            filename=file.name or None,
            media_type=file.mime_type or None,
        )

    def message(self, message: Any) -> Message:
        return Message(
            message_id=message.message_id,
            role=ROLES[message.role] if message.role < len(ROLES) else ROLES[0],
            parts=[self.part(part) for part in message.content[:]],
            context_id=message.context_id or None,
            task_id=message.task_id or None,
            metadata=self.metadata(message),
            extensions=message.extensions[:] or None,
        )

    def status(self, status: Any, message: str = "update") -> TaskStatus:
        return super().status(status, message)
