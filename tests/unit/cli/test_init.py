"""`errands init`: a project that is served by the next two commands, and whose test passes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from errands.agents import manifests
from errands.cli.init import Kind, project_files
from tests.terminal import Terminal
from tests.unit.cli.conftest import Errands
from tests.unit.cli.processes import Served

ANSWERS = dict.fromkeys(Kind, ("hello", "You said: hello")) | {
    Kind.MANIFEST: ("What is 2 plus 3?", "That is 5."),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("kind", Kind)
def test_the_next_two_commands_serve_an_agent_that_answers(errands: Errands, folder: Path, kind: Kind) -> None:
    created = errands("init", "demo", "--kind", kind)
    assert created.stdout.splitlines()[-2:] == ["  cd demo", "  errands serve"]
    with Served(None, cwd=folder / "demo") as server, Terminal("chat", server.url, cwd=folder) as terminal:
        said, answer = ANSWERS[kind]
        terminal.shows("you>")
        terminal.enter(said)
        terminal.shows(answer)


def test_the_extra_that_a_manifest_needs_is_named_where_it_is_missing(
    errands: Errands, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errands.cli.init.find_spec", lambda name: None)
    install = "  pip install 'errands[agents]'"
    assert install in errands("init", "demo", "--kind", "manifest").stdout.splitlines()
    assert install not in errands("init", "other", "--kind", "worker").stdout.splitlines()


@pytest.mark.parametrize("kind", Kind)
def test_the_test_of_a_new_project_passes(errands: Errands, folder: Path, kind: Kind) -> None:
    errands("init", "demo", "--kind", kind)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error"]
    source = str(Path(manifests.__file__).parents[3])
    environment = {**os.environ, "PYTHONPATH": source}
    done = subprocess.run(command, cwd=folder / "demo", capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout
    assert "1 passed" in done.stdout


def test_in_a_terminal_the_kind_is_asked_for(folder: Path) -> None:
    with Terminal("init", "demo", cwd=folder) as terminal:
        terminal.shows("1  worker", "2  function", "3  executor", "4  manifest", "[worker]:")
        terminal.enter("7")
        terminal.until(lambda: terminal.text.count("[worker]:") == 2)
        terminal.enter("4")
        terminal.shows("Created demo: an agent (manifest) and its test. Next:", "cd demo", "errands serve")
        assert terminal.exit_code() == 0
    assert (folder / "demo" / "agent.yaml").is_file()


def test_just_enter_in_the_terminal_is_a_worker(folder: Path) -> None:
    with Terminal("init", "demo", cwd=folder) as terminal:
        terminal.shows("[worker]:")
        terminal.enter("")
        terminal.shows("an agent (worker)")
        assert terminal.exit_code() == 0


def test_nothing_is_overwritten(errands: Errands, folder: Path) -> None:
    (folder / "demo").mkdir()
    (folder / "demo" / "mine.txt").write_text("mine")
    result = errands("init", "demo")
    assert result.exit_code == 2
    assert "demo exists and is not empty" in result.stderr
    assert [path.name for path in (folder / "demo").iterdir()] == ["mine.txt"]
    (folder / "file").write_text("mine")
    assert errands("init", "file").exit_code == 2


def test_an_empty_folder_can_be_filled(errands: Errands, folder: Path) -> None:
    (folder / "demo").mkdir()
    assert errands("init", "demo").exit_code == 0


@pytest.mark.parametrize("name", ["1st", "a b", "a.b", "ü", "-x"])
def test_a_name_that_no_agent_can_have_is_refused(errands: Errands, folder: Path, name: str) -> None:
    assert errands("init", "--kind", "worker", "--", name).exit_code == 2
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("name", ["demo", "My_Agent-2"])
def test_the_manifest_of_a_new_project_has_no_findings(tmp_path: Path, name: str) -> None:
    for path, content in project_files(name, Kind.MANIFEST).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(content)
    assert manifests.examine(tmp_path / "agent.yaml").findings == []


def test_the_schema_of_a_new_project_is_the_one_of_this_release(errands: Errands, folder: Path) -> None:
    errands("init", "demo", "--kind", "manifest")
    printed = errands("agents", "schema").stdout
    assert (folder / "demo" / "agent.schema.json").read_text() == printed
    assert msgspec.json.decode(printed)["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert (
        (folder / "demo" / "agent.yaml").read_text().startswith("# yaml-language-server: $schema=./agent.schema.json")
    )


def test_serve_without_a_target_needs_a_project(errands: Errands, folder: Path) -> None:
    result = errands("serve")
    assert result.exit_code == 2
    assert "errands init NAME" in result.stderr


def test_serve_does_not_choose_between_two_agents(errands: Errands, folder: Path) -> None:
    for name in ("agent.py", "agent.yaml"):
        (folder / name).touch()
    result = errands("serve")
    assert result.exit_code == 2
    assert "this folder has agent.py and agent.yaml" in result.stderr
