"""Which files an agent has."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from errands.agents.manifests.documents import Agent, Local, Mount, MountScope, PathPrefixes
from errands.agents.mounts import MountError, Mounts
from errands.errors import ConfigurationError

AGENT = Agent(kind="", namespace="shop", name="support", description="", prompt="", mount="task")


def mounted(scope: MountScope) -> Agent:
    return msgspec.structs.replace(AGENT, mount=scope)


@pytest.mark.parametrize(
    ("scope", "prefix"), [("task", "/shop/support/t1/"), ("agent", "/shop/support/"), ("workspace", "/shop/")]
)
def test_a_mount_belongs_to_a_task_an_agent_or_a_workspace(scope: MountScope, prefix: str, tmp_path: Path) -> None:
    files = Mounts(None, tmp_path).files(mounted(scope), "t1")
    assert files is not None
    assert (files.backend, files.bucket, files.prefix) == ("local", str(tmp_path), prefix)


def test_an_agent_without_a_mount_has_no_files(tmp_path: Path) -> None:
    assert Mounts(None, tmp_path).files(mounted("none"), "t1") is None


@pytest.mark.anyio
async def test_without_a_document_files_are_in_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mounts = Mounts()
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path / "later")
    files = mounts.files(AGENT, "t1")
    assert files is not None
    await files.write("a.txt", "x")
    assert (tmp_path / ".errands/files/shop/support/t1/a.txt").read_text() == "x"


@pytest.mark.anyio
async def test_a_document_says_where_files_are_and_how_paths_begin(tmp_path: Path) -> None:
    prefixes = PathPrefixes(task="/tasks/of-{agent}/{task}")
    mount = Mount(name="files", local=Local(str(tmp_path / "x")), path_prefixes=prefixes)
    files = Mounts(mount, tmp_path / "unused").files(AGENT, "t1")
    assert files is not None
    assert files.prefix == "/tasks/of-support/t1/"
    await files.write("a.txt", "x")
    assert (tmp_path / "x/tasks/of-support/t1/a.txt").exists()


@pytest.mark.parametrize("task", ["../other", "a/b", "..", "{agent}", ""])
def test_a_token_is_never_more_than_one_name(task: str, tmp_path: Path) -> None:
    files = Mounts(None, tmp_path).files(AGENT, task)
    assert files is not None
    assert files.prefix.startswith("/shop/support/")
    assert files.prefix.count("/") == 4
    assert ".." not in files.prefix.split("/")
    assert "{" not in files.prefix


def test_a_task_id_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MountError, match="more than 200 bytes"):
        Mounts(None, tmp_path).files(AGENT, "x" * 300)


@pytest.mark.parametrize("prefix", ["/a/../b/", "/nul/", "/a\\b/{task}"])
def test_a_prefix_that_is_no_path_is_refused_at_once(prefix: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"path_prefixes.task: the prefix"):
        Mounts(Mount(name="files", local=Local("x"), path_prefixes=PathPrefixes(task=prefix)), tmp_path)
