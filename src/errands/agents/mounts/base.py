"""The mount port: the files of one task, agent or workspace."""

from __future__ import annotations

import mimetypes
from abc import ABC, abstractmethod

import msgspec

from errands.errors import ErrandsError

#: A table that is the same on every machine.
_TYPES = mimetypes.MimeTypes()


class MountError(ErrandsError):
    """The file cannot be read or written; the message may be shown to the model."""


class FileInfo(msgspec.Struct, frozen=True):
    """A file as a script passes it on. `str()` is what the model sees: `report.pdf (application/pdf, 1.2 MB)`."""

    path: str
    mime_type: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.mime_type}, {readable(self.size)})"


class Files(ABC):
    """What `mount.read`, `mount.write` and `file` reach. A path is relative to `prefix` and cannot leave it."""

    #: `local`, `gcs` or `s3`.
    backend: str
    #: The bucket, or the folder.
    bucket: str
    #: Such as `/shop/support/TASK/`.
    prefix: str

    def __init__(self, bucket: str, prefix: tuple[str, ...], *, max_bytes: int) -> None:
        self.bucket = bucket
        self.prefix = "/".join(["", *prefix, ""])
        self._max_bytes = max_bytes

    @property
    def described(self) -> dict[str, str]:
        """The `mount` that expressions and templates see."""
        return {"bucket": self.bucket, "prefix": self.prefix, "backend": self.backend}

    @abstractmethod
    async def read(self, path: str) -> str:
        """The file's text. Raises `MountError`."""

    async def write(self, path: str, content: str) -> str:
        """Writes the whole file, all or nothing, and gives what was written. Raises `MountError`."""
        await self.write_bytes(path, encoded(content, path))
        return content

    async def write_bytes(self, path: str, content: bytes) -> None:
        """The same for what is no text. Raises `MountError`."""
        if len(content) > self._max_bytes:
            raise too_large(path, self._max_bytes)
        await self._put(path, content)

    @abstractmethod
    async def _put(self, path: str, content: bytes) -> None:
        """Writes a file that is not too large."""

    @abstractmethod
    async def info(self, path: str) -> FileInfo:
        """Raises `MountError` when there is no such file."""


# What all backends do alike


def readable(size: int) -> str:
    """A number of bytes for people."""
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} GB"


def guess_type(path: str) -> str:
    """The MIME type that the name of a file tells."""
    return _TYPES.guess_type(path.rpartition("/")[2], strict=False)[0] or "application/octet-stream"


def encoded(content: str, path: str) -> bytes:
    """The text as bytes. Raises `MountError`."""
    try:
        return content.encode()
    except UnicodeEncodeError:
        raise MountError(f"{path}: the text is no valid Unicode, and was not written") from None


def decoded(content: bytes, path: str) -> str:
    """The bytes as text. Raises `MountError`."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise MountError(f"{path}: the file is no text in UTF-8") from None


def too_large(path: str, most: int) -> MountError:
    """What is said of a file with more bytes than a mount takes."""
    return MountError(f"{path}: files have at most {readable(most)} here")
