"""The mount port: the files of one task, agent or workspace."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from errands.errors import ErrandsError


class MountError(ErrandsError):
    """The file cannot be read or written; the message may be shown to the model."""


class FileInfo(msgspec.Struct, frozen=True):
    """A file as a script passes it on. `str()` is what the model sees: `report.pdf (application/pdf, 1.2 MB)`."""

    path: str
    mime_type: str
    size: int


class Files(ABC):
    """What `mount.read`, `mount.write` and `file` reach. A path is relative to `prefix` and cannot leave it."""

    #: `local`, `gcs` or `s3`.
    backend: str
    #: The bucket, or the folder.
    bucket: str
    #: Such as `/shop/support/TASK/`.
    prefix: str

    @abstractmethod
    async def read(self, path: str) -> str:
        """The file's text. Raises `MountError`."""

    @abstractmethod
    async def write(self, path: str, content: str) -> str:
        """Writes the whole file, all or nothing, and gives what was written. Raises `MountError`."""

    @abstractmethod
    async def write_bytes(self, path: str, content: bytes) -> None:
        """The same for what is no text. Raises `MountError`."""

    @abstractmethod
    async def info(self, path: str) -> FileInfo:
        """Raises `MountError` when there is no such file."""
