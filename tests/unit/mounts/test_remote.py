"""Buckets as mounts: a real server of the S3 protocol, and fsspec's own filesystem in memory for what others have."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import boto3
import msgspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from moto.server import ThreadedMotoServer

from errands.agents.manifests.documents import S3, Agent, Gcs, Mount
from errands.agents.mounts import Files, MountedFile, MountError, Mounts, RemoteFiles
from errands.errors import ConfigurationError

pytestmark = pytest.mark.anyio

AGENT = Agent(kind="", namespace="shop", name="support", description="", prompt="", mount="task")
OTHER = msgspec.structs.replace(AGENT, name="analyst")


@pytest.fixture(scope="module")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    name = f"bucket{abs(hash(request.node.name))}"
    boto3.client("s3", region_name="us-east-1").create_bucket(Bucket=name)
    return name


def on_s3(bucket: str) -> Mounts:
    return Mounts(Mount(name="files", s3=S3(bucket, region="us-east-1")), max_bytes=1000)


def in_memory() -> RemoteFiles:
    return RemoteFiles("gcs", "bucket", ("shop", "t1"), MemoryFileSystem(), max_bytes=1000)


@pytest.fixture(params=["s3", "memory"])
def files(request: pytest.FixtureRequest) -> Iterator[Files]:
    if request.param == "s3":
        found = on_s3(request.getfixturevalue("bucket")).files(AGENT, "t1")
        assert found is not None
        yield found
    else:
        MemoryFileSystem.store.clear()
        yield in_memory()
        MemoryFileSystem.store.clear()


async def test_what_was_written_is_read(files: Files) -> None:
    assert await files.write("notes/größe.txt", "Zeile\n") == "Zeile\n"
    assert await files.read("notes/größe.txt") == "Zeile\n"
    await files.write("notes/größe.txt", "kurz")
    assert await files.read("notes/größe.txt") == "kurz"
    await files.write("empty.txt", "")
    assert await files.read("empty.txt") == ""


async def test_a_file_is_described_by_its_name_and_size(files: Files) -> None:
    await files.write_bytes("out/report.pdf", b"\xff" * 900)
    assert await files.info("out/report.pdf") == MountedFile("out/report.pdf", "application/pdf", 900)
    with pytest.raises(MountError, match="it is a folder"):
        await files.info("out")
    with pytest.raises(MountError, match="is not text in UTF-8"):
        await files.read("out/report.pdf")


async def test_what_is_not_there_cannot_be_read(files: Files) -> None:
    with pytest.raises(MountError, match=r"a.txt: the file does not exist"):
        await files.read("a.txt")
    with pytest.raises(MountError, match=r"a.txt: the file does not exist"):
        await files.info("a.txt")


async def test_a_file_has_a_greatest_size(files: Files) -> None:
    with pytest.raises(MountError, match=r"files have at most 1.0 kB here"):
        await files.write("a.txt", "x" * 1001)
    with pytest.raises(MountError, match="the file does not exist"):
        await files.info("a.txt")


@pytest.mark.parametrize("path", ["../analyst/t1/a.txt", "/a.txt", "a/../../b", "s3://other/key", "a\\b", "a::b"])
async def test_a_path_cannot_leave_the_prefix(files: Files, path: str) -> None:
    with pytest.raises(MountError, match="path"):
        await files.read(path)
    with pytest.raises(MountError, match="path"):
        await files.write(path, "x")


async def test_an_object_that_is_too_large_is_not_read(bucket: str) -> None:
    files = on_s3(bucket).files(AGENT, "t1")
    assert files is not None
    client = boto3.client("s3", region_name="us-east-1")
    client.put_object(Bucket=bucket, Key="shop/support/t1/a.txt", Body=b"x" * 1001)
    with pytest.raises(MountError, match="at most"):
        await files.read("a.txt")


async def test_objects_have_the_keys_that_the_prefix_says(bucket: str) -> None:
    mounts = on_s3(bucket)
    for agent in (AGENT, OTHER):
        files = mounts.files(agent, "t1")
        assert files is not None
        assert (files.backend, files.bucket, files.prefix) == ("s3", bucket, f"/shop/{agent.name}/t1/")
        await files.write("a/b.txt", agent.name)
    listed = boto3.client("s3", region_name="us-east-1").list_objects_v2(Bucket=bucket)
    assert [entry["Key"] for entry in listed["Contents"]] == ["shop/analyst/t1/a/b.txt", "shop/support/t1/a/b.txt"]


async def test_trouble_with_a_bucket_has_a_reference_and_no_words_of_the_library(
    bucket: str, caplog: pytest.LogCaptureFixture
) -> None:
    files = on_s3(f"{bucket}-missing").files(AGENT, "t1")
    assert files is not None
    with pytest.raises(MountError, match=r"^a.txt: the bucket failed \(reference [0-9a-f]{8}\)$") as caught:
        await files.write("a.txt", "x")
    assert str(caught.value)[-9:-1] in caplog.text
    assert "bucket does not exist" in caplog.text


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[s3\]'"):
        on_s3("bucket")
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[gcs\]'"):
        Mounts(Mount(name="files", gcs=Gcs("bucket")))


def test_a_service_account_must_have_its_key_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"gcs.sa: the file .*key.json does not exist"):
        Mounts(Mount(name="files", gcs=Gcs("bucket", sa=str(tmp_path / "key.json"))))
    (tmp_path / "key.json").write_text("{}")
    with pytest.raises(ConfigurationError, match="the mount on gcs cannot be used"):
        Mounts(Mount(name="files", gcs=Gcs("bucket", sa=str(tmp_path / "key.json"))))
