"""The blob store: a directory, a real server of the S3 protocol, and fsspec's own filesystem in memory."""

from __future__ import annotations

import asyncio
import os
import secrets
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError, PayloadTooLargeError, StorageError
from errands.model.core import Message, Part, Role
from errands.model.log import Scope
from errands.runtime.blobs import (
    GROUPS,
    PIECE,
    UPLOADS_KEPT,
    BlobNotFoundError,
    BlobReference,
    Blobs,
    Bucket,
    DamagedBlobError,
    DirectoryBucket,
    FileFacts,
    FsspecBucket,
    bucket_from_url,
)
from errands.testing import ManualClock
from tests.cells import every_engine
from tests.contract.changes import Changes

pytestmark = pytest.mark.anyio

ALICE, BOB = Scope("", "alice", "agent"), Scope("", "bob", "agent")
CONTENT = os.urandom(2 * PIECE + 1000)


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def s3_bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"bucket{abs(hash(request.node.name))}"
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=name)
    return f"s3://{name}/agent/files"


class ObjectsInFiles(LocalFileSystem):  # type: ignore[misc]
    """Real files that are copied as objects of a remote store are: all at once."""

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        unfinished = f"{path2}.{secrets.token_hex(4)}"
        super().cp_file(path1, unfinished, **kwargs)
        os.replace(unfinished, path2)


@pytest.fixture(params=["directory", "s3", "memory", "files"])
def bucket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bucket]:
    if request.param == "directory":
        yield bucket_from_url(f"file://{tmp_path / 'blobs'}")
    elif request.param == "s3":
        yield bucket_from_url(request.getfixturevalue("s3_bucket"))
    elif request.param == "files":
        yield FsspecBucket(ObjectsInFiles(auto_mkdir=True), f"{tmp_path}/bucket")
    else:
        MemoryFileSystem.store.clear()
        yield FsspecBucket(MemoryFileSystem(), "/bucket")
        MemoryFileSystem.store.clear()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def blobs(bucket: Bucket, clock: ManualClock) -> AsyncIterator[Blobs]:
    async with Blobs(bucket, clock, above=1000, inline=10_000_000, orphans_kept=60) as blobs:
        yield blobs


async def pieces(content: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(content), size):
        yield content[start : start + size]


def message(*parts: Part) -> Message:
    return Message(message_id="m", role=Role.USER, parts=list(parts))


async def test_what_was_written_is_read_whole_and_in_ranges(blobs: Blobs) -> None:
    blob = await blobs.put(pieces(CONTENT, 70_001), ALICE, task_id="t/1", media_type="x/y", filename="größe.bin")
    assert BlobReference.of(blob.reference.url) == blob.reference
    found = await blobs.find(blob.reference, ALICE)
    assert found == blob
    assert (found.size, found.media_type, found.filename) == (len(CONTENT), "x/y", "größe.bin")
    assert await blobs.read_all(blob) == CONTENT
    for start, end in ((0, 1), (PIECE - 1, PIECE + 1), (PIECE, 2 * PIECE), (2 * PIECE + 999, None), (5, 5)):
        assert await blobs.read_all(blob, start, end) == CONTENT[start:end]
    empty = await blobs.put(b"", ALICE)
    assert await blobs.read_all(await blobs.find(empty.reference, ALICE)) == b""


async def test_a_file_that_becomes_too_large_is_not_kept(blobs: Blobs) -> None:
    with pytest.raises(PayloadTooLargeError, match="max_upload_bytes"):
        await blobs.put(pieces(CONTENT, 1000), ALICE, most=PIECE)
    assert await blobs.waiting(ALICE) == (0, 0)


async def test_blobs_of_others_are_not_found(blobs: Blobs) -> None:
    upload = await blobs.put(CONTENT, ALICE)
    kept = await blobs.put(CONTENT, ALICE, task_id="t")
    for blob in (upload, kept):
        with pytest.raises(BlobNotFoundError):
            await blobs.find(blob.reference, BOB)
        with pytest.raises(BlobNotFoundError):
            await blobs.stow(message(Part(url=blob.reference.url)), "bobs", BOB)
        with pytest.raises(BlobNotFoundError):
            await blobs.fingerprint(message(Part(url=blob.reference.url)), BOB)


@pytest.mark.parametrize(
    "url",
    [
        "errands-blob:../../../etc/passwd",
        "errands-blob:t/..%2f..%2fetc%2fpasswd",
        "errands-blob:t/" + "0" * 47,
        "errands-blob:t/" + "0" * 48 + ".json",
        "errands-blob:",
        "https://example.com/" + "0" * 48,
        None,
    ],
)
def test_only_names_that_were_drawn_are_names(url: str | None) -> None:
    assert BlobReference.of(url) is None


async def test_a_task_id_may_be_anything_and_does_not_become_a_path(blobs: Blobs, bucket: Bucket) -> None:
    blob = await blobs.put(CONTENT, ALICE, task_id="../../outside")
    assert await blobs.read_all(await blobs.find(blob.reference, ALICE)) == CONTENT
    (folder,) = (folder for group in range(GROUPS) for folder in bucket.folders(group))
    assert folder.isalnum()


async def test_large_files_of_a_message_become_references_and_come_back(blobs: Blobs) -> None:
    small, large = Part(raw=b"x" * 1000), Part(raw=CONTENT, filename="a.bin", media_type="x/y", metadata={"k": 1})
    sent = message(Part(text="t" * 5000), small, large)
    stowed = await blobs.stow(sent, "t", ALICE)
    assert stowed.parts[:2] == sent.parts[:2]
    kept = stowed.parts[2]
    assert (kept.raw, kept.filename, kept.media_type, kept.metadata) == (None, "a.bin", "x/y", {"k": 1})
    assert kept.url is not None
    assert kept.url.startswith("errands-blob:t/")
    assert await blobs.stow(stowed, "t", ALICE) is stowed
    assert await blobs.fetch([stowed], ALICE, first=0) == [sent]


async def test_an_upload_and_a_blob_of_another_task_are_copied_into_the_task(blobs: Blobs, clock: ManualClock) -> None:
    upload = await blobs.put(CONTENT, ALICE, media_type="x/y", filename="a.bin")
    other = await blobs.put(CONTENT, ALICE, task_id="other")
    assert await blobs.waiting(ALICE) == (1, len(CONTENT))
    stowed = await blobs.stow(message(Part(url=upload.reference.url), Part(url=other.reference.url)), "t", ALICE)
    assert all((part.url or "").startswith("errands-blob:t/") for part in stowed.parts)
    assert (stowed.parts[0].filename, stowed.parts[0].media_type) == ("a.bin", "x/y")
    assert await blobs.waiting(ALICE) == (0, 0)
    assert await blobs.read_all(await blobs.find(upload.reference, ALICE)) == CONTENT
    again = await blobs.fingerprint(message(Part(url=upload.reference.url)), ALICE)
    second = await blobs.put(CONTENT, ALICE)
    assert (await blobs.fingerprint(message(Part(url=second.reference.url)), ALICE)).parts[0].url == again.parts[0].url


async def test_messages_may_use_an_upload_at_the_same_time_and_several_times(blobs: Blobs) -> None:
    upload = await blobs.put(CONTENT, ALICE)
    sent = message(*(Part(url=upload.reference.url) for _ in range(5)))
    for number, stowed in enumerate(await asyncio.gather(*(blobs.stow(sent, f"t{n}", ALICE) for n in range(8)))):
        (url,) = {part.url for part in stowed.parts}
        reference = BlobReference.of(url)
        assert reference is not None
        assert reference.task_id == f"t{number}"
        assert await blobs.read_all(await blobs.find(reference, ALICE)) == CONTENT


async def test_content_that_has_changed_is_not_passed_on(blobs: Blobs, bucket: Bucket) -> None:
    blob = await blobs.put(CONTENT, ALICE, task_id="t")
    changed = bytearray(CONTENT)
    changed[PIECE + 5] ^= 1
    folder = next(folder for group in range(GROUPS) for folder in bucket.folders(group))
    file = bucket.create(folder, blob.name)
    file.write(bytes(changed))
    file.commit()
    assert await blobs.read_all(blob, 0, PIECE) == CONTENT[:PIECE]
    with pytest.raises(DamagedBlobError, match="piece 1"):
        await blobs.read_all(blob)
    told = message(Part(url=blob.reference.url))
    assert await blobs.fetch([told], ALICE, first=0) == [told]
    bucket.delete(folder, [blob.name])
    with pytest.raises(DamagedBlobError, match="is gone"):
        await blobs.read_all(blob)


async def test_files_are_readable_by_the_servers_user_only(tmp_path: Path) -> None:
    async with Blobs(DirectoryBucket(tmp_path / "blobs"), ManualClock(), above=1, inline=1) as blobs:
        await blobs.put(CONTENT, ALICE, task_id="t")
    for path in (tmp_path / "blobs").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)


async def test_a_directory_that_cannot_be_used_is_a_failure_of_the_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="the blob store failed"):
        async with Blobs(DirectoryBucket(tmp_path / "file" / "blobs"), ManualClock(), above=1, inline=1):
            pass


@pytest.mark.parametrize("url", ["ftp://host/x", "s3://", "s3://key:secret@bucket/x", "", "file://host/x"])
def test_a_wrong_url_is_refused_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid blobs") as refused:
        bucket_from_url(url)
    assert "secret" not in str(refused.value)


# Retention


async def ended(engine: Engine, task_id: str) -> None:
    changes = Changes(engine.clock)
    await engine.commit(changes.start(task_id, scope=ALICE))
    await engine.commit(changes.complete(task_id, scope=ALICE))


@every_engine
async def test_blobs_go_with_their_task_in_every_engine_and_from_any_replica(storage: str, tmp_path: Path) -> None:
    clock = ManualClock()
    async with (
        engine_from_url(storage) as engine,
        Blobs(DirectoryBucket(tmp_path / "b"), clock, above=1, inline=1, orphans_kept=60) as blobs,
        Blobs(DirectoryBucket(tmp_path / "b"), clock, above=1, inline=1, orphans_kept=60) as replica,
    ):
        await ended(engine, f"kept-{storage[-5:]}")
        await ended(engine, f"gone-{storage[-5:]}")
        kept = await blobs.put(CONTENT, ALICE, task_id=f"kept-{storage[-5:]}")
        gone = await blobs.put(CONTENT, ALICE, task_id=f"gone-{storage[-5:]}")
        await engine.delete(gone.task_id, ALICE)
        for sweeper in (replica, blobs):
            await sweeper.sweep(engine, GROUPS)
            assert await blobs.find(gone.reference, ALICE) == gone
        clock.advance(seconds=61)
        for sweeper in (replica, blobs):
            await sweeper.sweep(engine, GROUPS)
            with pytest.raises(BlobNotFoundError):
                await blobs.find(gone.reference, ALICE)
        assert await replica.read_all(await replica.find(kept.reference, ALICE)) == CONTENT


async def test_unused_uploads_and_what_crashes_leave_are_deleted(
    blobs: Blobs, bucket: Bucket, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = await blobs.put(CONTENT, ALICE)
    clock.advance(seconds=UPLOADS_KEPT + 1)
    new = await blobs.put(CONTENT, ALICE)
    orphan = await blobs.put(CONTENT, BOB, task_id="never created")
    folder = next(iter(sorted(folder for group in range(GROUPS) for folder in bucket.folders(group))))
    unfinished = bucket.create(folder, "0" * 48)
    unfinished.write(b"half")
    unfinished.commit()
    async with engine_from_url("memory") as engine:
        await blobs.sweep(engine, GROUPS)
        assert "0" * 48 in bucket.files(folder)
        clock.advance(seconds=61)
        files = bucket.files
        monkeypatch.setattr(
            bucket,
            "files",
            lambda folder: {name: FileFacts(facts.size, facts.age + 61) for name, facts in files(folder).items()},
        )
        await blobs.sweep(engine, GROUPS)
    for blob, scope in ((old, ALICE), (orphan, BOB)):
        with pytest.raises(BlobNotFoundError):
            await blobs.find(blob.reference, scope)
    assert await blobs.find(new.reference, ALICE) == new
    left = {name for group in range(GROUPS) for folder in bucket.folders(group) for name in bucket.files(folder)}
    assert left == {new.name, f"{new.name}.json"}
