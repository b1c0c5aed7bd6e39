"""Writing artifacts: building their parts, and the writer behind `ctx.artifact(...)`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, Self

from msgspec import UNSET

from errands.model.core import Part
from errands.runtime.validation import json_value, optional_text


def build_part(
    *,
    text: str | None = None,
    data: Any = None,
    file_bytes: bytes | None = None,
    file_url: str | None = None,
    media_type: str | None = None,
    filename: str | None = None,
) -> Part:
    """The one part these arguments describe. Raises ValueError unless exactly one content is given."""
    given = [
        name
        for name, value in (
            ("text", text),
            ("data", data),
            ("file_bytes", file_bytes),
            ("file_url", file_url),
        )
        if value is not None
    ]
    if len(given) != 1:
        named = " and ".join(given) or "none"
        raise ValueError(f"give exactly one of text, data, file_bytes and file_url, not {named}")
    if file_bytes is not None and not isinstance(file_bytes, bytes | bytearray | memoryview):
        raise TypeError(f"file_bytes must be bytes, not {type(file_bytes).__name__}; encode text, or pass it as text=")
    return Part(
        text=optional_text("text", text),
        data=UNSET if data is None else json_value("data", data),
        raw=file_bytes,
        url=optional_text("file_url", file_url),
        media_type=optional_text("media_type", media_type),
        filename=optional_text("filename", filename),
    )


Emit = Callable[..., Awaitable[None]]


class ArtifactWriter:
    """One artifact, written piece by piece: the first piece begins it, leaving the block seals it.

    A block left by an exception is not sealed: what was written stays, and clients see that more was to come.
    """

    def __init__(self, emit: Emit, artifact_id: str, **described: Any) -> None:
        self._emit = emit
        self.artifact_id = artifact_id
        self._described = described
        self._begun = False

    async def write(
        self,
        text: str | None = None,
        *,
        data: Any = None,
        file_bytes: bytes | None = None,
        file_url: str | None = None,
        media_type: str | None = None,
        filename: str | None = None,
    ) -> None:
        """Adds a piece: text, JSON data, bytes or a link."""
        await self._piece(
            text=text,
            data=data,
            file_bytes=file_bytes,
            file_url=file_url,
            media_type=media_type,
            filename=filename,
        )

    async def _piece(self, **content: Any) -> None:
        described = {} if self._begun else self._described
        append, self._begun = self._begun, True
        try:
            await self._emit(artifact_id=self.artifact_id, append=append, **described, **content)
        except (TypeError, ValueError):
            self._begun = append  # nothing was written
            raise

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.seal()

    async def seal(self) -> None:
        """Says that nothing more comes; leaving the block does it."""
        await self._piece(text="", last_chunk=True)
