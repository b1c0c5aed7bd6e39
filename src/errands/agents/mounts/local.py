"""A folder of the server as a mount.

Every name of a path is opened by itself, below the folder before it and never through a link. So a path cannot leave
the mount, also when somebody exchanges a folder for a link meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

from errands.agents.mounts.base import FileInfo, Files, MountError, decoded, guess_type, too_large
from errands.agents.mounts.paths import names
from errands.errors import ConfigurationError

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: What is written is for the server's user alone: it holds what clients and agents have said.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
#: What an error of the system means to the model; it is told nothing about the server's own folders.
_PROBLEMS = {
    errno.ENOENT: "there is no such file",
    errno.ENOTDIR: "a part of the path is a file or a link, no folder",
    errno.ELOOP: "a part of the path is a link, and links are not followed",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "the path is too long",
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "files cannot be written here",
    errno.EACCES: "the server may not do that",
    errno.EPERM: "the server may not do that",
}


class LocalFiles(Files):
    backend = "local"

    def __init__(self, root: Path, prefix: tuple[str, ...], *, max_bytes: int) -> None:
        super().__init__(str(root), prefix, max_bytes=max_bytes)
        self._folder = _Folder(root, prefix)

    async def read(self, path: str) -> str:
        return decoded(await self._do(path, self._folder.read, names(path), self._max_bytes), path)

    async def _put(self, path: str, content: bytes) -> None:
        await self._do(path, self._folder.write, names(path), content)

    async def info(self, path: str) -> FileInfo:
        size = await self._do(path, self._folder.size, names(path))
        return FileInfo(path, guess_type(path), size)

    async def _do(self, path: str, action: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.to_thread(action, *args, **kwargs)
        except _TooLarge:
            raise too_large(path, self._max_bytes) from None
        except OSError as error:
            problem = _PROBLEMS.get(error.errno or 0)
            if problem is None or error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM):
                logger.error("the mount %s: %s: %s", self.bucket, path, error)
            raise MountError(f"{path}: {problem or 'the file system failed'}") from None


class _TooLarge(Exception):
    pass


class _Folder:
    """The blocking half: what is done with files once their paths are known to be good."""

    def __init__(self, root: Path, prefix: tuple[str, ...]) -> None:
        if not (hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd):
            raise ConfigurationError(
                "this system cannot keep paths inside of a folder safely; use a mount on s3 or gcs"
            )
        self._root = root
        self._prefix = prefix

    def read(self, path: tuple[str, ...], most: int) -> bytes:
        with self._parent(path) as parent, _regular(path[-1], parent) as file:
            if os.fstat(file).st_size > most:
                raise _TooLarge
            content = bytearray()
            # It may grow while it is read.
            while len(content) <= most and (piece := os.read(file, most + 1 - len(content))):
                content += piece
            if len(content) > most:
                raise _TooLarge
            return bytes(content)

    def size(self, path: tuple[str, ...]) -> int:
        with self._parent(path) as parent, _regular(path[-1], parent) as file:
            return os.fstat(file).st_size

    def write(self, path: tuple[str, ...], content: bytes) -> None:
        """Under another name first, so that nobody ever finds half a file."""
        with self._parent(path, create=True) as parent:
            unfinished = f".{secrets.token_hex(8)}.part"
            try:
                _create(unfinished, parent, content)
                os.rename(unfinished, path[-1], src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                _remove(unfinished, parent)
                raise
            os.fsync(parent)

    @contextmanager
    def _parent(self, path: tuple[str, ...], *, create: bool = False) -> Iterator[int]:
        """The folder that the last name of a path is in."""
        if create:
            self._root.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
        # The operator chose the root; it may be a link.
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in (*self._prefix, *path[:-1]):
                inner = _open_folder(name, folder, create)
                os.close(folder)
                folder = inner
            yield folder
        finally:
            os.close(folder)


def _open_folder(name: str, parent: int, create: bool) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    if not create:
        return os.open(name, flags, dir_fd=parent)
    try:
        return os.open(name, flags, dir_fd=parent)
    except FileNotFoundError:
        # Somebody else may be faster.
        with suppress(FileExistsError):
            os.mkdir(name, _PRIVATE_FOLDER, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)


@contextmanager
def _regular(name: str, parent: int) -> Iterator[int]:
    # Opening a pipe would wait for its other end.
    file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
    try:
        mode = os.fstat(file).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, "is a folder")
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENOENT, "is no regular file")
        yield file
    finally:
        os.close(file)


def _create(name: str, parent: int, content: bytes) -> None:
    file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, _PRIVATE_FILE, dir_fd=parent)
    with os.fdopen(file, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())


def _remove(name: str, parent: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)
