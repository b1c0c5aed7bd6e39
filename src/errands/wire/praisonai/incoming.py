"""Messages and parts as they come, from clients and from agents of PraisonAI: of any origin, and nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from errands.model.base import Metadata
from errands.model.core import Part


class _File(msgspec.Struct, rename="camel"):
    """The content of a 0.3 file part."""

    uri: str | None = None
    content: bytes | None = msgspec.field(default=None, name="bytes")
    mime_type: str | None = None
    name: str | None = None


class AnyPart(msgspec.Struct, rename="camel"):
    """A part of any origin: what it is, its keys say; `kind` and `type` are not looked at."""

    text: str | None = None
    url: str | None = None
    file_with_uri: str | None = None
    raw: bytes | None = None
    file_with_bytes: bytes | None = None
    file: _File | None = None
    data: Any | UnsetType = UNSET
    media_type: str | None = None
    snake_media_type: str | None = msgspec.field(default=None, name="media_type")
    mime_type: str | None = None
    filename: str | None = None
    name: str | None = None
    metadata: Metadata | None = None

    def parts(self) -> Iterator[Part]:
        """One part for each content it has: usually one."""
        file = self.file or _File()
        media_type = self.media_type or self.snake_media_type or self.mime_type or file.mime_type
        filename = self.filename or self.name or file.name
        for content in self._contents(file):
            yield Part(**content, media_type=media_type, filename=filename, metadata=self.metadata)

    def _contents(self, file: _File) -> Iterator[dict[str, Any]]:
        if self.text is not None:
            yield {"text": self.text}
        if url := self.url or self.file_with_uri or file.uri:
            yield {"url": url}
        raws = (self.raw, self.file_with_bytes, file.content)
        if (raw := next((raw for raw in raws if raw is not None), None)) is not None:
            yield {"raw": raw}
        if self.data is not UNSET:
            yield {"data": self.data}


class AnyMessage(msgspec.Struct, rename="camel"):
    parts: list[AnyPart] = []
    role: str = "user"
    message_id: str | None = None
    context_id: str | None = None
    task_id: str | None = None
    metadata: Metadata | None = None
    #: A list of URIs, or PraisonAI's own form, where they are keys.
    extensions: list[str] | dict[str, Any] | None = None
    reference_task_ids: list[str] | None = None
