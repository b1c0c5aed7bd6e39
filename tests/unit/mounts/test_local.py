"""A folder of the server as a mount."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands.agents.mounts import LocalFiles, MountedFile, MountError
from tests.soak import examples

pytestmark = pytest.mark.anyio

PREFIX = ("shop", "support", "t1")
SECRET = "not for agents"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The mount's folder, with something beside it that must not be reached."""
    (tmp_path / "secret.txt").write_text(SECRET)
    root = tmp_path / "files"
    (root / "shop" / "support" / "t2").mkdir(parents=True)
    (root / "shop" / "support" / "t2" / "other.txt").write_text(SECRET)
    return root


@pytest.fixture
def files(root: Path) -> LocalFiles:
    return LocalFiles(root, PREFIX, max_bytes=1000)


async def test_what_was_written_is_read(files: LocalFiles, root: Path) -> None:
    assert await files.write("notes/größe.txt", "Zeile\n") == "Zeile\n"
    assert await files.read("notes/größe.txt") == "Zeile\n"
    assert (root / "shop/support/t1/notes/größe.txt").read_text() == "Zeile\n"
    assert (files.backend, files.bucket, files.prefix) == ("local", str(root), "/shop/support/t1/")


async def test_what_is_written_is_for_the_servers_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        root = tmp_path / "new" / "files"
        files = LocalFiles(root, PREFIX, max_bytes=1000)
        await files.write("notes/a.txt", "first")
        await files.write("notes/a.txt", "again")
    finally:
        os.umask(umask)
    rights = {path.stat().st_mode & 0o777 for path in [root, *root.rglob("*")] if path.is_dir()}
    assert (rights, (root / "shop/support/t1/notes/a.txt").stat().st_mode & 0o777) == ({0o700}, 0o600)


async def test_a_file_is_written_again_as_a_whole(files: LocalFiles, root: Path) -> None:
    await files.write("a.txt", "a long first text")
    await files.write("a.txt", "short")
    assert await files.read("a.txt") == "short"
    assert [entry.name for entry in (root / "shop/support/t1").iterdir()] == ["a.txt"]


async def test_a_reader_never_finds_half_a_file(files: LocalFiles) -> None:
    texts = {letter * 1000 for letter in "abc"}
    await files.write("a.txt", "a" * 1000)

    async def write() -> None:
        for text in sorted(texts) * 5:
            await files.write("a.txt", text)

    async def read() -> None:
        for _ in range(30):
            assert await files.read("a.txt") in texts

    await asyncio.gather(write(), read(), read())


async def test_a_file_is_described_by_its_name_and_size(files: LocalFiles) -> None:
    await files.write_bytes("out/report.pdf", b"\xff" * 900)
    info = await files.info("out/report.pdf")
    assert info == MountedFile("out/report.pdf", "application/pdf", 900)
    assert str(info) == "out/report.pdf (application/pdf, 900 B)"
    await files.write("unknown.zzz", "x")
    assert (await files.info("unknown.zzz")).mime_type == "application/octet-stream"


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (999_999, "1.0 MB"), (1_234_567, "1.2 MB"), (2 * 10**9, "2.0 GB")],
)
def test_sizes_are_told_for_people(size: int, shown: str) -> None:
    assert str(MountedFile("a.txt", "text/plain", size)) == f"a.txt (text/plain, {shown})"


async def test_what_is_not_there_cannot_be_read(files: LocalFiles) -> None:
    for path in ("a.txt", "a/b/c.txt"):
        with pytest.raises(MountError, match=f"{path}: the file does not exist"):
            await files.read(path)
        with pytest.raises(MountError, match=f"{path}: the file does not exist"):
            await files.info(path)


async def test_before_the_first_write_there_is_nothing(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path / "none", PREFIX, max_bytes=10)
    with pytest.raises(MountError, match="does not exist"):
        await files.read("a.txt")
    assert not (tmp_path / "none").exists()


async def test_a_file_has_a_greatest_size(files: LocalFiles, root: Path) -> None:
    await files.write("a.txt", "x" * 1000)
    with pytest.raises(MountError, match=r"a.txt: files have at most 1.0 kB here"):
        await files.write("a.txt", "x" * 1001)
    assert await files.read("a.txt") == "x" * 1000
    (root / "shop/support/t1/a.txt").write_text("x" * 1001)
    with pytest.raises(MountError, match="at most"):
        await files.read("a.txt")
    with pytest.raises(MountError, match="at most"):
        await files.write("ü.txt", "ü" * 501)


async def test_what_is_no_text_is_told_apart(files: LocalFiles) -> None:
    await files.write_bytes("image.png", b"\x89PNG\xff")
    with pytest.raises(MountError, match="is not text in UTF-8"):
        await files.read("image.png")
    with pytest.raises(MountError, match="not valid Unicode, and was not written"):
        await files.write("a.txt", "\ud800")


async def test_folders_pipes_and_devices_are_no_files(files: LocalFiles, root: Path) -> None:
    await files.write("folder/a.txt", "x")
    with pytest.raises(MountError, match="it is a folder"):
        await files.read("folder")
    with pytest.raises(MountError, match="it is a folder"):
        await files.write("folder", "x")
    with pytest.raises(MountError, match="is a file or a link, not a folder"):
        await files.write("folder/a.txt/b.txt", "x")
    os.mkfifo(root / "shop/support/t1/pipe")
    with pytest.raises(MountError, match="does not exist"):
        await files.read("pipe")
    assert sorted(entry.name for entry in (root / "shop/support/t1").iterdir()) == ["folder", "pipe"]


async def test_links_are_not_followed(files: LocalFiles, root: Path, tmp_path: Path) -> None:
    await files.write("a.txt", "mine")
    home = root / "shop/support/t1"
    (home / "link.txt").symlink_to(tmp_path / "secret.txt")
    (home / "out").symlink_to(tmp_path)
    (home / "neighbour").symlink_to("../t2")
    for path in ("link.txt", "out/secret.txt", "neighbour/other.txt"):
        with pytest.raises(MountError, match="link"):
            await files.read(path)
        with pytest.raises(MountError, match="link"):
            await files.info(path)
    for path in ("out/new.txt", "out/secret.txt", "neighbour/other.txt"):
        with pytest.raises(MountError, match="link"):
            await files.write(path, "x")
    await files.write("link.txt", "replaces the link")
    assert (tmp_path / "secret.txt").read_text() == SECRET
    assert sorted(os.listdir(tmp_path)) == ["files", "secret.txt"]


async def test_a_prefix_that_became_a_link_is_not_followed(root: Path, tmp_path: Path) -> None:
    files = LocalFiles(root, ("shop", "moved", "t1"), max_bytes=10)
    (tmp_path / "elsewhere").mkdir()
    (root / "shop" / "moved").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(MountError, match="link"):
        await files.write("a.txt", "x")
    assert list((tmp_path / "elsewhere").iterdir()) == []


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    await LocalFiles(tmp_path / "linked", (), max_bytes=10).write("a.txt", "x")
    assert (tmp_path / "real" / "a.txt").read_text() == "x"


async def test_trouble_with_the_disk_says_nothing_about_the_server(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("a file where the folder should be")
    files = LocalFiles(tmp_path / "files", PREFIX, max_bytes=10)
    with pytest.raises(MountError) as caught:
        await files.write("a.txt", "x")
    assert str(caught.value) == "a.txt: the file system failed"


# Containment, whatever the path

_PIECES = st.sampled_from(
    [
        "..",
        ".",
        "",
        "/",
        "\\",
        "\0",
        "a",
        "out",
        "link.txt",
        "up",
        "t2",
        "other.txt",
        "secret.txt",
        "~",
        "C:",
        "%2e%2e",
        " ",
    ]
)
PATHS = st.one_of(
    st.lists(_PIECES, max_size=6).map("/".join),
    st.lists(_PIECES, max_size=6).map("".join),
    st.text(max_size=30),
)


@given(path=PATHS)
@settings(max_examples=examples(200), suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
async def test_no_path_leads_out_of_the_mount(path: str, root: Path, files: LocalFiles, tmp_path: Path) -> None:
    home = root / "shop/support/t1"
    home.mkdir(exist_ok=True)
    for link, target in {"link.txt": tmp_path / "secret.txt", "out": tmp_path, "up": Path("..")}.items():
        if not (home / link).is_symlink() and not (home / link).exists():
            (home / link).symlink_to(target)
    before = _outside(tmp_path, home)
    with contextlib.suppress(MountError):
        assert await files.read(path) != SECRET
    with contextlib.suppress(MountError):
        await files.write(path, "written")
    assert _outside(tmp_path, home) == before


def _outside(folder: Path, home: Path) -> dict[str, str]:
    """Everything that is not the mount's, with its content."""
    found = {}
    for parent, _, names in os.walk(folder):
        if not Path(parent).is_relative_to(home):
            found[parent] = ""
            found.update({f"{parent}/{name}": (Path(parent) / name).read_text() for name in names})
    return found
