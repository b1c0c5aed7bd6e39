"""Blobs: large files of messages and artifacts, kept beside the log in a directory or in a bucket.

A blob belongs to one task, or waits as an upload until a message of its owner uses it. In the log a part refers to it
by a URL such as `errands-blob:TASK/NAME`; the bindings write an address of the server instead.

A blob is durable before the commit whose event refers to it. If a crash comes in between, the blob is deleted with its
task or, if the task was never created, by `Blobs.sweep`. Content is stored with checksums of its pieces, and each piece
is compared with its checksum before it is passed on.
"""

from __future__ import annotations

import asyncio
import datetime
import hashlib
import importlib
import logging
import os
import re
import secrets
import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, Protocol, Self, TypeVar
from urllib.parse import quote, unquote, urlsplit
from urllib.request import url2pathname

import msgspec

from errands.clock import Clock
from errands.engines.base import Engine
from errands.errors import ConfigurationError, ErrandsError, PayloadTooLargeError, StorageError, TaskNotFoundError
from errands.model import core
from errands.model.base import encode
from errands.model.log import ListQuery, Reach, Scope

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")
Content = TypeVar("Content", core.Task, core.Message, core.Artifact, core.StreamResponse)

#: The scheme of the URL by which a part in the log refers to a blob.
SCHEME = "errands-blob:"
#: Bytes that are read, checked and written at a time.
PIECE = 512 * 1024
#: Seconds for which uploads that no message uses are kept.
UPLOADS_KEPT = 24 * 3600.0
#: Seconds for which a task must be missing before its blobs are deleted: the task may be about to be created, and a
#: process that was started with the wrong store should not delete the blobs of another one at once.
ORPHANS_KEPT = 3600.0
#: The number of groups of folders. One group is swept at a time.
GROUPS = 16
#: 192 random bits.
NAME = re.compile(r"[0-9a-f]{48}")

_THREADS = 8
#: The number of folders whose tasks are remembered between sweeps.
_MOST_OWNERS = 100_000
_ABOUT = ".json"
_PRIVATE_FILE = 0o600
_PRIVATE_FOLDER = 0o700
#: A version that no log reaches: reading after it only checks that the task exists.
NEVER = 2**53 - 1


class BlobNotFoundError(ErrandsError):
    """The blob does not exist, or it belongs to another owner."""


class DamagedBlobError(StorageError):
    """The content of a blob differs from what was written."""


class Blob(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The description of a blob, which is stored beside its content."""

    name: str
    scope: Scope
    #: "" for an upload that no message has used yet.
    task_id: str = ""
    size: int
    #: In hexadecimal, like all checksums.
    sha256: str
    #: The SHA-256 of each piece of `piece` bytes.
    pieces: list[str]
    piece: int = PIECE
    media_type: str | None = None
    filename: str | None = None
    created_at: int
    #: Whether a message has used the upload. It is still kept, in case the message is sent again.
    is_used: bool = False
    #: Whether the uploader chooses its tenant freely: its uploads for all tenants are in one folder, counted together.
    names_tenant: bool = False

    @property
    def reference(self) -> BlobReference:
        """Return the reference by which the log names it."""
        return BlobReference(self.task_id, self.name)


_decode_blob = msgspec.json.Decoder(Blob).decode


class BlobReference(msgspec.Struct, frozen=True):
    """The blob that a URL of the log means."""

    task_id: str
    name: str

    @property
    def url(self) -> str:
        """The URL of a part in the log."""
        return f"{SCHEME}{quote(self.task_id, safe='')}/{self.name}" if self.task_id else f"{SCHEME}{self.name}"

    @classmethod
    def of(cls, url: str | None) -> BlobReference | None:
        """Return the reference in a URL, or None if it is not the URL of a blob."""
        if url is None or not url.startswith(SCHEME):
            return None
        task_id, _, name = url.removeprefix(SCHEME).rpartition("/")
        return cls(unquote(task_id), name) if NAME.fullmatch(name) else None


# Buckets. All methods block, and are called in threads.


class Unfinished(Protocol):
    """A file that is being written. It is durable, and can be read, only after `commit`."""

    def write(self, piece: bytes) -> object: ...
    def commit(self) -> None: ...
    def discard(self) -> None: ...


class FileFacts(NamedTuple):
    """A file in a listing: its bytes, and the seconds since it was written."""

    size: int
    age: float


class Bucket(ABC):
    """Files in folders: `FOLDER/NAME`. Missing files raise `FileNotFoundError`; other failures raise anything."""

    def open(self) -> None:  # noqa: B027 - most need nothing
        """Prepare the place."""

    @abstractmethod
    def create(self, folder: str, name: str) -> Unfinished:
        """Begin to write a file."""

    @abstractmethod
    def read(self, folder: str, name: str, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of a file."""

    @abstractmethod
    def copy(self, folder: str, name: str, to_folder: str, to_name: str) -> None:
        """Copy a file. The copy is durable when this returns."""

    @abstractmethod
    def folders(self, group: int) -> list[str]:
        """Return the folders of a group: those whose names begin with its hexadecimal digit."""

    @abstractmethod
    def files(self, folder: str) -> dict[str, FileFacts]:
        """Return the files in a folder by name. A folder that does not exist has none."""

    @abstractmethod
    def delete(self, folder: str, names: Iterable[str] | None = None) -> None:
        """Delete these files, or all files of the folder. A folder that is then empty is deleted, too."""


class DirectoryBucket(Bucket):
    """Files below a directory of the server, readable only by its user."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()

    def open(self) -> None:
        self._root.mkdir(_PRIVATE_FOLDER, parents=True, exist_ok=True)
        for group in range(GROUPS):
            (self._root / f"{group:x}").mkdir(_PRIVATE_FOLDER, exist_ok=True)
        _sync(self._root)

    def _path(self, folder: str, name: str = "") -> Path:
        return self._root / folder[0] / folder / name

    def create(self, folder: str, name: str) -> Unfinished:
        path = self._path(folder)
        try:
            return _UnfinishedFile(path, name)
        except FileNotFoundError:
            path.mkdir(_PRIVATE_FOLDER, exist_ok=True)
            _sync(path.parent)
        return _UnfinishedFile(path, name)

    def read(self, folder: str, name: str, start: int = 0, end: int | None = None) -> bytes:
        with os.fdopen(os.open(self._path(folder, name), os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
            file.seek(start)
            return file.read() if end is None else file.read(end - start)

    def copy(self, folder: str, name: str, to_folder: str, to_name: str) -> None:
        target = self._path(to_folder)
        target.mkdir(_PRIVATE_FOLDER, exist_ok=True)
        _sync(target.parent)
        try:
            os.link(self._path(folder, name), target / to_name, follow_symlinks=False)
        except FileNotFoundError:
            raise
        except OSError:  # a file system without links
            unfinished = self.create(to_folder, to_name)
            try:
                with self._path(folder, name).open("rb") as file:
                    while piece := file.read(PIECE):
                        unfinished.write(piece)
                unfinished.commit()
            except BaseException:
                unfinished.discard()
                raise
        _sync(target)

    def folders(self, group: int) -> list[str]:
        return sorted(os.listdir(self._root / f"{group:x}"))

    def files(self, folder: str) -> dict[str, FileFacts]:
        now, found = time.time(), {}
        with suppress(FileNotFoundError), os.scandir(self._path(folder)) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    found[entry.name] = FileFacts(facts.st_size, now - facts.st_mtime)
        return found

    def delete(self, folder: str, names: Iterable[str] | None = None) -> None:
        if names is None:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._path(folder))
            return
        for name in names:
            self._path(folder, name).unlink(missing_ok=True)
        with suppress(OSError):  # it has other files
            self._path(folder).rmdir()


class _UnfinishedFile:
    def __init__(self, folder: Path, name: str) -> None:
        self._path, self._target = folder / f"{name}.{secrets.token_hex(4)}.part", folder / name
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
        self._file = os.fdopen(os.open(self._path, flags, _PRIVATE_FILE), "wb", buffering=0)

    def write(self, piece: bytes) -> None:
        rest = memoryview(piece)
        while rest:
            rest = rest[self._file.write(rest) :]

    def commit(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        self._path.rename(self._target)
        _sync(self._target.parent)

    def discard(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    """Make the entries of a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class FsspecBucket(Bucket):
    """Files in a bucket of an object store, through a filesystem of fsspec."""

    def __init__(self, filesystem: Any, root: str) -> None:
        self._filesystem = filesystem
        self._root = root.rstrip("/")

    def _key(self, folder: str, name: str = "") -> str:
        return f"{self._root}/{folder[0]}/{folder}" + (f"/{name}" if name else "")

    def create(self, folder: str, name: str) -> Unfinished:
        return _UnfinishedObject(self._filesystem.open(self._key(folder, name), "wb", autocommit=False))

    def read(self, folder: str, name: str, start: int = 0, end: int | None = None) -> bytes:
        key = self._key(folder, name)
        if end is not None and end <= start:
            return b""  # S3 refuses an empty range
        # In the filesystem of S3 the second argument is something else.
        content: bytes = self._filesystem.cat_file(key, start=start or None, end=end)
        return content

    def copy(self, folder: str, name: str, to_folder: str, to_name: str) -> None:
        self._filesystem.cp_file(self._key(folder, name), self._key(to_folder, to_name))

    def folders(self, group: int) -> list[str]:
        return sorted(self._names(f"{self._root}/{group:x}"))

    def files(self, folder: str) -> dict[str, FileFacts]:
        now, files = time.time(), {}
        for name, details in self._names(self._key(folder)).items():
            # Each filesystem has another name for the time of writing. A file without a time counts as new.
            times = (details.get(name) for name in ("LastModified", "mtime", "created"))
            written = next((at for at in times if isinstance(at, datetime.datetime)), None)
            age = 0.0 if written is None else now - written.timestamp()
            files[name] = FileFacts(int(details.get("size") or 0), age)
        return files

    def _names(self, prefix: str) -> dict[str, dict[str, Any]]:
        try:
            found = self._filesystem.ls(prefix, detail=True)
        except FileNotFoundError:
            return {}
        named = {details["name"].rstrip("/").rpartition("/")[2]: details for details in found}
        named.pop("", None)
        return named

    def delete(self, folder: str, names: Iterable[str] | None = None) -> None:
        for name in self._names(self._key(folder)) if names is None else names:
            with suppress(FileNotFoundError):
                self._filesystem.rm_file(self._key(folder, name))


class _UnfinishedObject:
    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, piece: bytes) -> None:
        self._file.write(piece)

    def commit(self) -> None:
        self._file.close()
        self._file.commit()

    def discard(self) -> None:
        with suppress(Exception):  # what it has written is not visible
            self._file.discard()
            self._file.closed = True  # otherwise it would still be written when it is garbage-collected


#: The filesystems of object stores by the scheme of the URL: module, class and extra.
_FILESYSTEMS = {"s3": ("s3fs", "S3FileSystem", "s3"), "gs": ("gcsfs", "GCSFileSystem", "gcs")}


def bucket_from_url(url: str) -> Bucket:
    """Return the bucket that the setting `blobs` names. Raises `ConfigurationError`."""
    parts = urlsplit(url)
    if parts.scheme in _FILESYSTEMS:
        if not parts.netloc or "@" in parts.netloc:
            expected = f"{parts.scheme}://BUCKET/FOLDER, with the credentials in the environment"
            raise ConfigurationError(f"invalid blobs: expected {expected}")
        module, name, extra = _FILESYSTEMS[parts.scheme]
        try:
            kind = getattr(importlib.import_module(module), name)
        except ImportError:
            raise ConfigurationError(f"blobs={url!r} needs an extra: pip install 'errands[{extra}]'") from None
        # Nothing is cached, so that files of other processes are seen.
        filesystem = kind(use_listings_cache=False, skip_instance_cache=True)
        return FsspecBucket(filesystem, f"{parts.netloc}{parts.path}")
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path:
        return DirectoryBucket(Path(url2pathname(parts.path)))
    if "://" in url or not url:
        raise ConfigurationError(
            f"invalid blobs={url!r}: expected a directory, file:///DIRECTORY, s3://BUCKET/FOLDER or gs://BUCKET/FOLDER"
        )
    return DirectoryBucket(Path(url))


# Blobs


class Blobs:
    """The blobs of a task store. Files of more than `above` bytes are kept here instead of in the log.

    Raises `StorageError` when the bucket fails.
    """

    def __init__(self, bucket: Bucket, clock: Clock, *, above: int, inline: int, orphans_kept: float = ORPHANS_KEPT):
        self.above = above
        #: Bytes of files that a handler gets together with its message.
        self.inline = inline
        self._bucket = bucket
        self._clock = clock
        self._orphans_kept = orphans_kept
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="errands-blobs")
        self._group = 0
        #: The task of each folder that has been looked at, by folder.
        self._owners: dict[str, Blob] = {}
        #: When the task of a folder was first missing, by folder.
        self._missing: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        await self._run(self._bucket.open)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _run(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: call(*args, **kwargs))
        except (FileNotFoundError, StorageError):
            raise
        except Exception as error:
            raise StorageError(f"the blob store failed: {type(error).__name__}: {error}") from error

    # Writing

    async def put(
        self,
        content: bytes | AsyncIterator[bytes],
        scope: Scope,
        *,
        task_id: str = "",
        media_type: str | None = None,
        filename: str | None = None,
        most: int | None = None,
        names_tenant: bool = False,
    ) -> Blob:
        """Store a file for a task, or as an upload without a task. It is durable when this returns.

        Raises `PayloadTooLargeError` as soon as there are more than `most` bytes.
        """
        name = secrets.token_hex(24)
        folder = _folder(task_id, scope, name, names_tenant=names_tenant)
        whole, sums, size = hashlib.sha256(), [], 0
        file = await self._run(self._bucket.create, folder, name)

        def write(piece: bytes) -> None:
            whole.update(piece)
            sums.append(hashlib.sha256(piece).hexdigest())
            file.write(piece)

        try:
            async for piece in _in_pieces(content):
                size += len(piece)
                if most is not None and size > most:
                    raise PayloadTooLargeError(f"The file may have {most} bytes (max_upload_bytes)")
                await self._run(write, piece)
            blob = Blob(
                name=name,
                scope=scope,
                task_id=task_id,
                size=size,
                sha256=whole.hexdigest(),
                pieces=sums,
                media_type=media_type,
                filename=filename,
                created_at=self._clock(),
                names_tenant=names_tenant,
            )
            await self._run(file.commit)
        except BaseException:
            # Not awaited, because this task may have been canceled.
            with suppress(RuntimeError):  # or the server has stopped
                self._threads.submit(file.discard)
            raise
        await self._run(self._describe, folder, blob)
        return blob

    def _describe(self, folder: str, blob: Blob) -> None:
        about = self._bucket.create(folder, blob.name + _ABOUT)
        about.write(encode(blob))
        about.commit()

    async def _copy(self, reference: BlobReference, task_id: str, scope: Scope) -> Blob:
        """Give a task its own copy of a blob. Raises `BlobNotFoundError`."""
        for _ in range(2):
            blob = await self.find(reference, scope)
            copied = msgspec.structs.replace(
                blob, name=secrets.token_hex(24), task_id=task_id, scope=scope, created_at=self._clock(), is_used=False
            )
            # Another message may use the upload at the same time, and move it.
            with suppress(FileNotFoundError):
                await self._run(self._copy_files, blob, copied)
                if not blob.task_id and not blob.is_used:
                    await self._run(self._copy_files, blob, msgspec.structs.replace(blob, is_used=True))
                    await self._run(self._bucket.delete, _place(blob), [blob.name, blob.name + _ABOUT])
                return copied
        raise BlobNotFoundError(reference.name)

    def _copy_files(self, blob: Blob, copied: Blob) -> None:
        self._bucket.copy(_place(blob), blob.name, _place(copied), copied.name)
        self._describe(_place(copied), copied)

    async def stow(self, content: Content, task_id: str, scope: Scope) -> Content:
        """Return a message or an event of a task with its large files moved into blobs.

        Blobs of other tasks of the same owner, and uploads, are copied. Raises `BlobNotFoundError` for a reference to
        any other blob.
        """
        stowed: dict[int, core.Part] = {}
        copies: dict[BlobReference, Blob] = {}
        for part in parts_of(content):
            if part.raw is not None and len(part.raw) > self.above:
                blob = await self.put(
                    part.raw, scope, task_id=task_id, media_type=part.media_type, filename=part.filename
                )
            elif (reference := BlobReference.of(part.url)) is not None and reference.task_id != task_id:
                if reference not in copies:
                    copies[reference] = await self._copy(reference, task_id, scope)
                blob = copies[reference]
            else:
                continue
            stowed[id(part)] = core.Part(
                url=blob.reference.url,
                metadata=part.metadata,
                filename=part.filename or blob.filename,
                media_type=part.media_type or blob.media_type,
            )
        return with_parts(content, lambda part: stowed.get(id(part), part)) if stowed else content

    async def added_bytes(self, message: core.Message, task_id: str, scope: Scope) -> int:
        """Return how many bytes `stow` would store for a message. Raises `BlobNotFoundError`."""
        size = 0
        for part in message.parts:
            if part.raw is not None and len(part.raw) > self.above:
                size += len(part.raw)
            elif (reference := BlobReference.of(part.url)) is not None and reference.task_id != task_id:
                size += (await self.find(reference, scope)).size
        return size

    async def stored_bytes(self, engine: Engine, scope: Scope, reach: Reach = "scope") -> int:
        """Return about how many bytes the files of the scope's tasks, or of those within the reach, take.

        Uploads are not counted; they have a bound of their own. The cost grows with the number of tasks, so this is
        only for callers that ask rarely.
        """
        token, size = "", 0
        while True:
            query = ListQuery(scope=scope, reach=reach, page_size=100, page_token=token, with_artifacts=False)
            page = await engine.list(query)
            for stored in page.tasks:
                files = await self._run(self._bucket.files, _folder(stored.task.id, scope, ""))
                size += sum(facts.size for facts in files.values())
            if not (token := page.next_page_token):
                return size

    async def discard(self, stowed: core.Message, original: core.Message, scope: Scope) -> None:
        """Delete what `stow` has stored for a message that was not accepted."""
        before = {part.url for part in original.parts}
        for part in stowed.parts:
            if part.url not in before and (reference := BlobReference.of(part.url)) is not None:
                names = [reference.name, reference.name + _ABOUT]
                await self._run(self._bucket.delete, _folder(reference.task_id, scope, reference.name), names)

    # Reading

    async def find(self, reference: BlobReference, scope: Scope) -> Blob:
        """Return the description of a blob. Raises `BlobNotFoundError`, also for one of another tenant or owner.

        Agents may differ, because agents pass files on to the agents that they delegate to.
        """
        folders = [_folder(reference.task_id, scope, reference.name)]
        if not reference.task_id:
            folders.append(_folder("", scope, reference.name, names_tenant=True))
            folders.append(_folder("", scope, reference.name, is_used=True))
        for folder in folders:
            try:
                blob = _decode_blob(await self._run(self._bucket.read, folder, reference.name + _ABOUT))
                break
            except FileNotFoundError:
                continue
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise DamagedBlobError(f"the description of blob {reference.name} cannot be read: {error}") from None
        else:
            raise BlobNotFoundError(reference.name)
        owned = blob.scope[:2] == scope[:2]
        if not owned or (blob.task_id, blob.name) != (reference.task_id, reference.name):
            raise BlobNotFoundError(reference.name)
        return blob

    async def read(self, blob: Blob, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        """Yield a range of a blob in pieces that are checked. Raises `BlobNotFoundError` and `DamagedBlobError`."""
        end = blob.size if end is None else min(end, blob.size)
        folder = _place(blob)
        for number in range(start // blob.piece, -(-end // blob.piece)):
            first = number * blob.piece
            # Not bound to a name, so that it is in memory only as long as the reader needs it.
            yield (await self._run(self._checked, folder, blob, number))[max(start - first, 0) : end - first]

    def _checked(self, folder: str, blob: Blob, number: int) -> bytes:
        first = number * blob.piece
        try:
            piece = self._bucket.read(folder, blob.name, first, min(first + blob.piece, blob.size))
        except FileNotFoundError:
            raise DamagedBlobError(f"the content of blob {blob.name} is gone") from None
        if hashlib.sha256(piece).hexdigest() != blob.pieces[number]:
            raise DamagedBlobError(f"piece {number} of blob {blob.name} differs from what was written")
        return piece

    async def read_all(self, blob: Blob, start: int = 0, end: int | None = None) -> bytes:
        """Return a range of a blob as a whole."""
        return b"".join([piece async for piece in self.read(blob, start, end)])

    async def fetch(self, messages: list[core.Message], scope: Scope, *, first: int) -> list[core.Message]:
        """Return the messages with the bytes of their files as they were sent, up to `inline` bytes in all.

        The message at `first` is filled first, then the newest. Files that cannot be read stay references.
        """
        left = self.inline
        found: dict[int, core.Part] = {}
        for message in [messages[first], *reversed([*messages[:first], *messages[first + 1 :]])]:
            for part in message.parts:
                if (reference := BlobReference.of(part.url)) is None:
                    continue
                try:
                    blob = await self.find(reference, scope)
                    if blob.size > left:
                        continue
                    content = await self.read_all(blob)
                except (BlobNotFoundError, DamagedBlobError) as error:
                    logger.error("a file of task %s cannot be read: %s", reference.task_id, error)
                    continue
                left -= blob.size
                found[id(part)] = core.Part(
                    raw=content, metadata=part.metadata, filename=part.filename, media_type=part.media_type
                )
        if not found:
            return messages
        return [with_parts(message, lambda part: found.get(id(part), part)) for message in messages]

    async def fingerprint(self, message: core.Message, scope: Scope) -> core.Message:
        """Return a message with checksums in place of blobs, so that a file that was uploaded again is recognised.

        Raises `BlobNotFoundError`.
        """
        sums: dict[int, core.Part] = {}
        for part in message.parts:
            if (reference := BlobReference.of(part.url)) is not None:
                blob = await self.find(reference, scope)
                sums[id(part)] = msgspec.structs.replace(part, url=f"sha256:{blob.sha256}")
        return with_parts(message, lambda part: sums.get(id(part), part)) if sums else message

    async def waiting(self, scope: Scope, *, names_tenant: bool = False) -> tuple[int, int]:
        """Return the number of uploads of this scope that no message has used, and their bytes.

        With `names_tenant`, those that its owner has uploaded for any tenant.
        """
        files = await self._run(self._bucket.files, _folder("", scope, "", names_tenant=names_tenant))
        sizes = [facts.size for name, facts in files.items() if name + _ABOUT in files]
        return len(sizes), sum(sizes)

    # Retention

    async def sweep(self, engine: Engine, groups: int = 1) -> None:
        """Delete the blobs of tasks that no longer exist, uploads that were not used, and what crashes have left.

        Looks at the next `groups` groups of folders, so that a sweep is short. Any number of processes may do it.
        """
        for _ in range(groups):
            self._group = (self._group + 1) % GROUPS
            for folder in await self._run(self._bucket.folders, self._group):
                with suppress(FileNotFoundError):  # another process deletes it, too
                    await self._sweep_folder(folder, engine)

    async def _sweep_folder(self, folder: str, engine: Engine) -> None:
        owner = self._owners.get(folder)
        if owner is None:
            files = await self._run(self._bucket.files, folder)
            blobs = await self._run(lambda: list(self._described(folder, files)))
            await self._clear(folder, files, blobs)
            owner = next((blob for blob in blobs if blob.task_id), None)
            if owner is None:
                return
            if len(self._owners) < _MOST_OWNERS:
                self._owners[folder] = owner
        now = self._clock()
        try:
            await engine.read(owner.task_id, owner.scope, NEVER, 1)
            self._missing.pop(folder, None)
        except TaskNotFoundError:
            if now - self._missing.setdefault(folder, now) >= self._orphans_kept * 1000:
                await self._run(self._bucket.delete, folder)
                del self._missing[folder]
                self._owners.pop(folder, None)

    async def _clear(self, folder: str, files: dict[str, FileFacts], blobs: list[Blob]) -> None:
        """Delete uploads that have expired, and files that do not belong to a blob."""
        now = self._clock()
        known = {blob.name for blob in blobs}
        expired = {blob.name for blob in blobs if not blob.task_id and now - blob.created_at > UPLOADS_KEPT * 1000}
        unwanted = [
            name
            for name, facts in files.items()
            if (blob := name.removesuffix(_ABOUT)) in expired or (blob not in known and facts.age > self._orphans_kept)
        ]
        if unwanted:
            await self._run(self._bucket.delete, folder, unwanted)

    def _described(self, folder: str, files: Iterable[str]) -> Iterator[Blob]:
        """Yield the descriptions of the blobs in a folder, without those that cannot be read."""
        for name in files:
            if name.endswith(_ABOUT):
                with suppress(FileNotFoundError, msgspec.DecodeError, UnicodeDecodeError):
                    yield _decode_blob(self._bucket.read(folder, name))


def _folder(task_id: str, scope: Scope, name: str, *, is_used: bool = False, names_tenant: bool = False) -> str:
    """Return the folder of a blob: that of its task, or that of the uploads of its scope.

    Used uploads are in folders of their own, so that unused ones can be counted.
    """
    if task_id:
        key = ["task", task_id]
    elif is_used:
        key = ["used", *scope, name[:2]]
    else:
        key = ["uploads in any tenant", *scope[1:]] if names_tenant else ["uploads", *scope]
    return hashlib.sha256(encode(key)).hexdigest()[:40]


def _place(blob: Blob) -> str:
    return _folder(blob.task_id, blob.scope, blob.name, is_used=blob.is_used, names_tenant=blob.names_tenant)


async def pieces_of(path: str | os.PathLike[str]) -> AsyncIterator[bytes]:
    """Yield the content of a file of the server, read in a thread."""
    with await asyncio.to_thread(open, path, "rb") as file:
        while piece := await asyncio.to_thread(file.read, PIECE):
            yield piece


async def _in_pieces(content: bytes | AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield content in pieces of `PIECE` bytes, the last one shorter."""
    if isinstance(content, bytes | bytearray | memoryview):
        for start in range(0, len(content), PIECE):
            yield bytes(content[start : start + PIECE])
        return
    waiting = bytearray()
    async for chunk in content:
        waiting += chunk
        while len(waiting) >= PIECE:
            yield bytes(waiting[:PIECE])
            del waiting[:PIECE]
    if waiting:
        yield bytes(waiting)


# Parts

#: A reference to a blob in an event of the log. In a text, the quotation marks would be escaped.
_IN_LOG = b'"url":"' + SCHEME.encode()


def blob_prefix(base_url: str, tenant: str) -> str:
    """Return the beginning of the addresses of a tenant's blobs at a server with this address."""
    base = base_url.rstrip("/")
    return f"{base}/{quote(tenant, safe='')}/blobs/" if tenant else f"{base}/blobs/"


def with_addresses(event: bytes, prefix: str) -> bytes:
    """Return an event of the log as clients see it: with the addresses of its blobs, which begin with `prefix`."""
    if _IN_LOG not in event:
        return event
    return event.replace(_IN_LOG, b'"url":"' + encode(prefix)[1:-1])


def parts_of(content: Any) -> Iterator[core.Part]:
    """Yield the parts of a message, an artifact, a task or an event."""
    if isinstance(content, core.Message | core.Artifact):
        yield from content.parts
    elif isinstance(content, core.Task):
        for inner in (content.status.message, *(content.history or ()), *(content.artifacts or ())):
            yield from parts_of(inner)
    elif isinstance(content, core.StreamResponse):
        status, artifact = content.status_update, content.artifact_update
        yield from parts_of(status and status.status.message)
        yield from parts_of(artifact and artifact.artifact)
        yield from parts_of(content.task)
        yield from parts_of(content.message)


def with_parts(content: Content, change: Callable[[core.Part], core.Part]) -> Content:
    """Return a copy with `change` applied to every part. Objects whose parts do not change are not copied."""
    if all(change(part) is part for part in parts_of(content)):
        return content
    replace = msgspec.structs.replace
    if isinstance(content, core.Message | core.Artifact):
        return replace(content, parts=[change(part) for part in content.parts])
    if isinstance(content, core.Task):
        said = content.status.message
        return replace(
            content,
            status=replace(content.status, message=said and with_parts(said, change)),
            history=content.history and [with_parts(message, change) for message in content.history],
            artifacts=content.artifacts and [with_parts(artifact, change) for artifact in content.artifacts],
        )
    status, artifact = content.status_update, content.artifact_update
    if status is not None and status.status.message is not None:
        message = with_parts(status.status.message, change)
        return replace(content, status_update=replace(status, status=replace(status.status, message=message)))
    if artifact is not None:
        return replace(content, artifact_update=replace(artifact, artifact=with_parts(artifact.artifact, change)))
    return replace(
        content,
        task=content.task and with_parts(content.task, change),
        message=content.message and with_parts(content.message, change),
    )
