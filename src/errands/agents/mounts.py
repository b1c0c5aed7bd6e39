"""Mounts: the files of a task, an agent or a workspace, in a folder of the server or in a bucket."""

from __future__ import annotations

import asyncio
import errno
import importlib
import logging
import mimetypes
import os
import re
import secrets
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from errands.agents.manifests.documents import Agent, Mount, PathPrefixes
from errands.errors import ConfigurationError, ErrandsError

logger = logging.getLogger(__name__)

T = TypeVar("T")

DEFAULT_FOLDER = Path(".errands/files")
#: Bytes of one file, read or written.
MAX_BYTES = 10 * 1000 * 1000
#: UTF-8 bytes. Object stores accept keys of 1,024 bytes, file systems names of 255; prefix and suffix need some of
#: them.
MAX_PATH = 700
MAX_NAME = 200

#: The same table on every machine.
_TYPES = mimetypes.MimeTypes()
_FORBIDDEN = re.compile(r"""[\x00-\x1f\x7f\\:*?"<>|]""")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?:\..*)?", re.IGNORECASE)
#: Characters of a path that a message repeats.
_MAX_SHOWN = 80
#: Values with which prefixes are checked at the start.
_EXAMPLES = {"namespace": "n", "agent": "a", "task": "t"}
#: Files are for the server's user alone: they contain what clients and agents have said.
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
#: The messages for the model about errors of the system, without anything about the server's own folders.
_PROBLEMS = {
    errno.ENOENT: "the file does not exist",
    errno.ENOTDIR: "a part of the path is a file or a link, not a folder",
    errno.ELOOP: "a part of the path is a link, and links are not followed",
    errno.EISDIR: "it is a folder",
    errno.ENAMETOOLONG: "the path is too long",
}
#: The same for errors that the operator must see.
_LOGGED_PROBLEMS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk is full",
    errno.EROFS: "files cannot be written here",
    errno.EACCES: "the server may not do that",
    errno.EPERM: "the server may not do that",
}


class MountError(ErrandsError):
    """The file cannot be read or written; the message may be shown to the model."""


class MountedFile(msgspec.Struct, frozen=True):
    """A file as a script passes it on. `str()` is what the model sees: `report.pdf (application/pdf, 1.2 MB)`."""

    path: str
    mime_type: str
    size: int

    def __str__(self) -> str:
        return f"{self.path} ({self.mime_type}, {_readable(self.size)})"


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
        """The variable `mount` of expressions and templates."""
        return {"bucket": self.bucket, "prefix": self.prefix, "backend": self.backend}

    async def read(self, path: str) -> str:
        """Return the file's text. Raises `MountError`."""
        try:
            return (await self._run(self._get, path)).decode()
        except UnicodeDecodeError:
            raise MountError(f"{path}: the file is not text in UTF-8") from None

    async def write(self, path: str, content: str) -> str:
        """Write the whole file, all or nothing, and return the content. Raises `MountError`."""
        try:
            encoded = content.encode()
        except UnicodeEncodeError:
            raise MountError(f"{path}: the text is not valid Unicode, and was not written") from None
        await self.write_bytes(path, encoded)
        return content

    async def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file that need not be text. Raises `MountError`."""
        if len(content) > self._max_bytes:
            raise self._too_large(path)
        await self._run(self._put, path, content)

    async def info(self, path: str) -> MountedFile:
        """Raises `MountError` if the file does not exist."""
        kind = _TYPES.guess_type(path.rpartition("/")[2], strict=False)[0]
        return MountedFile(path, kind or "application/octet-stream", await self._run(self._size, path))

    def _too_large(self, path: str) -> MountError:
        return MountError(f"{path}: files have at most {_readable(self._max_bytes)} here")

    async def _run(self, action: Callable[..., T], path: str, *args: Any) -> T:
        try:
            return await asyncio.to_thread(action, path, *args)
        except MountError:
            raise
        except Exception as error:
            raise MountError(f"{path}: {self._problem(error, path, is_read=action != self._put)}") from None

    # In a thread

    @abstractmethod
    def _get(self, path: str) -> bytes:
        """Return the content of a file. Raises `MountError` if it is too large."""

    @abstractmethod
    def _put(self, path: str, content: bytes) -> None:
        """Write a file that is not too large."""

    @abstractmethod
    def _size(self, path: str) -> int:
        """Return the size of a file."""

    @abstractmethod
    def _problem(self, error: Exception, path: str, *, is_read: bool) -> str:
        """Return what the model may know of an error, and log the rest."""


def _readable(size: int) -> str:
    if size < 1000:
        return f"{size} B"
    amount = float(size)
    for unit in ("kB", "MB"):
        amount /= 1000
        if amount < 999.95:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1000:.1f} GB"


class Mounts:
    """The files of all agents. Made once; a bucket is reached when it is first used."""

    def __init__(
        self, mount: Mount | None = None, default_folder: Path = DEFAULT_FOLDER, *, max_bytes: int = MAX_BYTES
    ) -> None:
        """Raises `ConfigurationError`."""
        self._max_bytes = max_bytes
        self._prefixes = mount.path_prefixes if mount else PathPrefixes()
        for scope in self._prefixes.__struct_fields__:
            try:
                _prefix(getattr(self._prefixes, scope), _EXAMPLES)
            except MountError as error:
                raise ConfigurationError(f"path_prefixes.{scope}: {error}") from None
        self._remote: tuple[str, str, Any] | None = None
        if mount is not None and mount.s3 is not None:
            client = {"region_name": mount.s3.region} if mount.s3.region else {}
            # Credentials come from where the AWS tools look for them.
            files = _filesystem("s3fs", "S3FileSystem", "s3", profile=mount.s3.profile, client_kwargs=client)
            self._remote = ("s3", mount.s3.bucket, files)
        elif mount is not None and mount.gcs is not None:
            key = mount.gcs.sa
            if key is not None and not os.path.isfile(key):
                raise ConfigurationError(f"gcs.sa: the file {key} does not exist; name the key of a service account")
            # Without a key file, the machine's own credentials are used.
            self._remote = ("gcs", mount.gcs.bucket, _filesystem("gcsfs", "GCSFileSystem", "gcs", token=key))
        folder = Path(mount.local.path).expanduser() if mount and mount.local else default_folder
        # A later change of the working directory must not move the files.
        self._root = folder.absolute()

    def files(self, agent: Agent, task_id: str) -> Files | None:
        """Return None for an agent without a mount. Raises `MountError` for a task id that cannot be part of a path."""
        if agent.mount == "none":
            return None
        values = {"namespace": agent.namespace, "agent": agent.name, "task": task_id}
        prefix = _prefix(getattr(self._prefixes, agent.mount), values)
        if self._remote is not None:
            backend, bucket, filesystem = self._remote
            return RemoteFiles(backend, bucket, prefix, filesystem, max_bytes=self._max_bytes)
        return LocalFiles(self._root, prefix, max_bytes=self._max_bytes)


def _prefix(template: str, values: dict[str, str]) -> tuple[str, ...]:
    """Return the names of a prefix. A value is one name or a part of one, whatever it contains."""
    found: list[str] = []
    for name in filter(None, template.split("/")):
        for token, value in values.items():
            # `one_name` leaves no braces, so no value is taken for another token.
            name = name.replace(f"{{{token}}}", one_name(value))
        if problem := wrong(name):
            raise MountError(f"the prefix {template!r} {problem}")
        found.append(name)
    return tuple(found)


# Paths: rows of names that mean the same on every backend and operating system
#
# None of the names can be a way up, a root, a drive or a device, or contain a character that some file system reads
# as more than a part of a name.


def names(path: str) -> tuple[str, ...]:
    """Return the names that lead from the mount to a file. Raises `MountError`."""
    found = tuple(name for name in path.split("/") if name != ".")
    if not path:
        raise MountError("the path is empty; write one such as notes/today.txt")
    if path.startswith("/"):
        problem = "is absolute; write it without the first /, it is below the mount anyway"
    elif path.endswith("/"):
        problem = "is that of a folder; name a file in it"
    elif len(path.encode("utf-8", "replace")) > MAX_PATH:
        problem = f"has more than {MAX_PATH} bytes"
    elif not found:
        problem = "names no file"
    else:
        problem = next(filter(None, map(wrong, found)), "")
    if problem:
        shown = path if len(path) <= _MAX_SHOWN else f"{path[:_MAX_SHOWN]}…"
        raise MountError(f"the path {shown!r} {problem}")
    return found


def wrong(name: str) -> str:
    """Return why this cannot be one name in a path; empty if it can."""
    if name == "..":
        return "leads out of the mount with .."
    if not name:
        return "has two / in a row"
    if found := _FORBIDDEN.search(name):
        return f"has the character {found[0]!r}, which is not allowed in paths"
    if name[-1] in ". ":
        return "has a name that ends with a dot or a space"
    if _DEVICE.fullmatch(name):
        return f"has the name {name[:_MAX_SHOWN]}, which is that of a device"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is not valid Unicode"
    return f"has a name of more than {MAX_NAME} bytes" if size > MAX_NAME else ""


def one_name(value: str) -> str:
    """Return any text as exactly one name, and different texts as different names. Raises `MountError` if too long."""
    name = quote(value, safe=" ", errors="surrogatepass")
    if wrong(name):
        # Quoting leaves dots, spaces at the end and the names of devices alone.
        name = "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass")) or "%"
    if problem := wrong(name):
        raise MountError(f"the name {value[:_MAX_SHOWN]!r} {problem}")
    return name


# Folders


class LocalFiles(Files):
    """Files in a folder of the server.

    Every name of a path is opened by itself, below the folder before it and never through a link. So a path cannot
    leave the mount, even if a folder is replaced by a link meanwhile.
    """

    backend = "local"

    def __init__(self, root: Path, prefix: tuple[str, ...], *, max_bytes: int) -> None:
        super().__init__(str(root), prefix, max_bytes=max_bytes)
        if not (hasattr(os, "O_NOFOLLOW") and os.open in os.supports_dir_fd):
            raise ConfigurationError("this system cannot keep paths inside a folder safely; use a mount on s3 or gcs")
        self._root = root
        self._names = prefix

    def _get(self, path: str) -> bytes:
        content = bytearray()
        with self._opened(path) as file:
            # It may grow while it is read.
            while len(content) <= self._max_bytes and (piece := os.read(file, self._max_bytes + 1 - len(content))):
                content += piece
        if len(content) > self._max_bytes:
            raise self._too_large(path)
        return bytes(content)

    def _size(self, path: str) -> int:
        with self._opened(path) as file:
            return os.fstat(file).st_size

    def _put(self, path: str, content: bytes) -> None:
        """Write under another name first, so that readers never find half a file."""
        with self._parent(path, create=True) as (parent, name):
            unfinished = f".{secrets.token_hex(8)}.part"
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            try:
                with os.fdopen(os.open(unfinished, flags, _PRIVATE_FILE, dir_fd=parent), "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.rename(unfinished, name, src_dir_fd=parent, dst_dir_fd=parent)
            except BaseException:
                with suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=parent)
                raise
            os.fsync(parent)

    def _problem(self, error: Exception, path: str, *, is_read: bool) -> str:
        if not isinstance(error, OSError):
            raise error
        number = error.errno or 0
        if number not in _PROBLEMS:
            logger.error("the mount %s: %s: %s", self.bucket, path, error)
        return {**_PROBLEMS, **_LOGGED_PROBLEMS}.get(number, "the file system failed")

    @contextmanager
    def _parent(self, path: str, *, create: bool = False) -> Iterator[tuple[int, str]]:
        """Open the folder that contains the last name of a path, and return both."""
        *folders, last = names(path)
        if create:
            self._root.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
        # The operator chose the root; it may be a link.
        folder = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY)
        try:
            for name in (*self._names, *folders):
                if create:
                    with suppress(FileExistsError):
                        os.mkdir(name, _PRIVATE_FOLDER, dir_fd=folder)
                inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=folder)
                os.close(folder)
                folder = inner
            yield folder, last
        finally:
            os.close(folder)

    @contextmanager
    def _opened(self, path: str) -> Iterator[int]:
        """Open a regular file to read it."""
        with self._parent(path) as (parent, name):
            # Without O_NONBLOCK, opening a pipe would wait for its other end.
            file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=parent)
            try:
                mode = os.fstat(file).st_mode
                if not stat.S_ISREG(mode):
                    raise OSError(errno.EISDIR if stat.S_ISDIR(mode) else errno.ENOENT, "is not a regular file")
                yield file
            finally:
                os.close(file)


# Buckets


class RemoteFiles(Files):
    """Files in a bucket, through a filesystem of fsspec, which writes objects as a whole."""

    def __init__(self, backend: str, bucket: str, prefix: tuple[str, ...], filesystem: Any, *, max_bytes: int) -> None:
        super().__init__(bucket, prefix, max_bytes=max_bytes)
        self.backend = backend
        self._filesystem = filesystem

    def _key(self, path: str) -> str:
        return f"{self.bucket}{self.prefix}{'/'.join(names(path))}"

    def _get(self, path: str) -> bytes:
        size = self._size(path)
        if size > self._max_bytes:
            raise self._too_large(path)
        # S3 refuses an empty range.
        content: bytes = self._filesystem.cat_file(self._key(path), start=0, end=size) if size else b""
        return content

    def _put(self, path: str, content: bytes) -> None:
        self._filesystem.pipe_file(self._key(path), content)

    def _size(self, path: str) -> int:
        found = self._filesystem.info(self._key(path))
        if found["type"] != "file":
            raise MountError(f"{path}: it is a folder")
        return int(found["size"])

    def _problem(self, error: Exception, path: str, *, is_read: bool) -> str:
        if isinstance(error, FileNotFoundError) and is_read:
            return "the file does not exist"
        # The messages of a client library may contain addresses and identities.
        reference = secrets.token_hex(4)
        logger.error("the mount %s://%s: %s [%s]", self.backend, self.bucket, path, reference, exc_info=error)
        return f"the bucket failed (reference {reference})"


def _filesystem(module: str, name: str, extra: str, **options: Any) -> Any:
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        raise ConfigurationError(f"a mount on {extra} needs an extra: pip install 'errands[{extra}]'") from None
    try:
        # Nothing is cached, so that what other processes write is seen.
        return kind(use_listings_cache=False, skip_instance_cache=True, **options)
    except Exception as error:
        raise ConfigurationError(f"the mount on {extra} cannot be used: {error}") from error
