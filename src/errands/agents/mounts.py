"""The mount port: the files of one task, agent or workspace."""

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
from typing import Any, ParamSpec, TypeVar
from urllib.parse import quote

import msgspec

from errands.agents.manifests.documents import S3, Agent, Gcs, Mount, PathPrefixes
from errands.errors import ConfigurationError, ErrandsError

# base

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
        """The same for what is not a string. Raises `MountError`."""
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
        raise MountError(f"{path}: the file is not a string in UTF-8") from None


def too_large(path: str, most: int) -> MountError:
    """What is said of a file with more bytes than a mount takes."""
    return MountError(f"{path}: files have at most {readable(most)} here")


# paths

#: UTF-8 bytes. Object stores take keys of 1,024 bytes, file systems names of 255; both keep room for what is added.
MAX_PATH = 700
MAX_NAME = 200

_FORBIDDEN = re.compile(r"""[\x00-\x1f\x7f\\:*?"<>|]""")
_DEVICE = re.compile(r"(?:con|prn|aux|nul|com[0-9¹²³]|lpt[0-9¹²³]|conin\$|conout\$)(?:\..*)?", re.IGNORECASE)
_SHOWN = 80


def names(path: str) -> tuple[str, ...]:
    """The names that lead from the mount to a file. Raises `MountError`; its message may be shown to the model."""
    if not path:
        raise MountError("the path is empty; write one such as notes/today.txt")
    if path.startswith("/"):
        raise _refused(path, "is absolute; write it without the first /, it is below the mount anyway")
    if path.endswith("/"):
        raise _refused(path, "is that of a folder; name a file in it")
    if len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise _refused(path, f"has more than {MAX_PATH} bytes")
    found = tuple(name for name in path.split("/") if name != ".")
    if not found:
        raise _refused(path, "names no file")
    for name in found:
        if problem := wrong(name):
            raise _refused(path, problem)
    return found


def wrong(name: str) -> str:
    """Why this cannot be one name in a path; empty if it can."""
    if name == "..":
        return "leads out of the mount with .."
    if not name:
        return "has two / in a row"
    if found := _FORBIDDEN.search(name):
        return f"has the character {found[0]!r}, which paths cannot have"
    if name[-1] in ". ":
        return "has a name that ends with a dot or a space"
    if _DEVICE.fullmatch(name):
        return f"has the name {name[:_SHOWN]}, which is that of a device"
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "is no valid Unicode"
    return f"has a name of more than {MAX_NAME} bytes" if size > MAX_NAME else ""


def one_name(value: str) -> str:
    """Any text as exactly one name, and different texts as different names. Raises `MountError` if it is too long."""
    name = quote(value, safe=" ", errors="surrogatepass")
    if wrong(name):
        # What quoting leaves alone: dots, spaces at the end, and the names of devices.
        name = "".join(f"%{byte:02X}" for byte in value.encode("utf-8", "surrogatepass")) or "%"
    if problem := wrong(name):
        raise MountError(f"the name {value[:_SHOWN]!r} {problem}")
    return name


def _refused(path: str, problem: str) -> MountError:
    shown = path if len(path) <= _SHOWN else f"{path[:_SHOWN]}…"
    return MountError(f"the path {shown!r} {problem}")


# local

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
            raise ConfigurationError("this system cannot keep paths inside a folder safely; use a mount on s3 or gcs")
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


# remote


class RemoteFiles(Files):
    """`filesystem` is one of fsspec's. Objects are written whole: a reader finds the old one or the new one."""

    def __init__(self, backend: str, bucket: str, prefix: tuple[str, ...], filesystem: Any, *, max_bytes: int) -> None:
        super().__init__(bucket, prefix, max_bytes=max_bytes)
        self.backend = backend
        self._filesystem = filesystem

    async def read(self, path: str) -> str:
        size = (await self.info(path)).size
        if size > self._max_bytes:
            raise too_large(path, self._max_bytes)
        if size == 0:
            # A range of nothing is an error to S3.
            return ""
        return decoded(await self._do(path, self._filesystem.cat_file, self._key(path), start=0, end=size), path)

    async def _put(self, path: str, content: bytes) -> None:
        await self._do(path, self._filesystem.pipe_file, self._key(path), content)

    async def info(self, path: str) -> FileInfo:
        found = await self._do(path, self._filesystem.info, self._key(path))
        if found["type"] != "file":
            raise MountError(f"{path}: it is a folder")
        return FileInfo(path, guess_type(path), int(found["size"]))

    def _key(self, path: str) -> str:
        return f"{self.bucket}{self.prefix}{'/'.join(names(path))}"

    async def _do(self, path: str, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return await asyncio.to_thread(action, *args, **kwargs)
        except Exception as error:
            if isinstance(error, FileNotFoundError) and action != self._filesystem.pipe_file:
                raise MountError(f"{path}: there is no such file") from None
            # The words of a client library may have addresses and identities in them.
            reference = secrets.token_hex(4)
            logger.error("the mount %s://%s: %s [%s]", self.backend, self.bucket, path, reference, exc_info=error)
            raise MountError(f"{path}: the bucket did not do it (reference {reference})") from None


def s3(config: S3) -> Any:
    """Credentials come from where the AWS tools look for them."""
    client = {"region_name": config.region} if config.region else {}
    return _filesystem("s3fs", "S3FileSystem", "s3", profile=config.profile, client_kwargs=client)


def gcs(config: Gcs) -> Any:
    """`sa` is the key file of a service account; without it the machine's own credentials are used."""
    if config.sa is not None and not os.path.isfile(config.sa):
        raise ConfigurationError(f"gcs.sa: there is no file {config.sa}; name the key file of a service account")
    return _filesystem("gcsfs", "GCSFileSystem", "gcs", token=config.sa)


def _filesystem(module: str, name: str, extra: str, **options: Any) -> Any:
    try:
        kind = getattr(importlib.import_module(module), name)
    except ImportError:
        raise ConfigurationError(f"a mount on {extra} needs an extra: pip install 'errands[{extra}]'") from None
    try:
        # What other processes write must be seen, so nothing is remembered.
        return kind(use_listings_cache=False, skip_instance_cache=True, **options)
    except Exception as error:
        raise ConfigurationError(f"the mount on {extra} cannot be used: {error}") from error


# mounts

DEFAULT_FOLDER = Path(".errands/files")
#: Bytes of one file, read or written.
MAX_BYTES = 10 * 1000 * 1000

_EXAMPLES = {"namespace": "n", "agent": "a", "task": "t"}


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
        self._open = self._opener(mount, default_folder)

    def files(self, agent: Agent, task_id: str) -> Files | None:
        """None for an agent without a mount. Raises `MountError` for a task whose id cannot be part of a path."""
        if agent.mount == "none":
            return None
        values = {"namespace": agent.namespace, "agent": agent.name, "task": task_id}
        return self._open(_prefix(getattr(self._prefixes, agent.mount), values))

    def _opener(self, mount: Mount | None, default_folder: Path) -> Callable[[tuple[str, ...]], Files]:
        if mount is not None and mount.s3 is not None:
            return self._remote("s3", mount.s3.bucket, s3(mount.s3))
        if mount is not None and mount.gcs is not None:
            return self._remote("gcs", mount.gcs.bucket, gcs(mount.gcs))
        folder = Path(mount.local.path).expanduser() if mount and mount.local else default_folder
        # A later change of the working folder must not move the files.
        root = folder.absolute()
        return lambda prefix: LocalFiles(root, prefix, max_bytes=self._max_bytes)

    def _remote(self, backend: str, bucket: str, filesystem: object) -> Callable[[tuple[str, ...]], Files]:
        return lambda prefix: RemoteFiles(backend, bucket, prefix, filesystem, max_bytes=self._max_bytes)


def _prefix(template: str, values: dict[str, str]) -> tuple[str, ...]:
    """The names of a prefix. A value is one name or a part of one, whatever is in it."""
    found: list[str] = []
    for name in filter(None, template.split("/")):
        for token, value in values.items():
            # A name has no braces after `one_name`, so no value is taken for another token.
            name = name.replace(f"{{{token}}}", one_name(value))
        if problem := wrong(name):
            raise MountError(f"the prefix {template!r} {problem}")
        found.append(name)
    return tuple(found)
