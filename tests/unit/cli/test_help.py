"""What `--help` promises is true: every command has an example, and every example runs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main
from joserfc.jwk import ECKey

from errands import __version__
from errands.cli.failures import EXIT_CODES
from errands.cli.main import app
from errands.engines.urls import engine_from_url
from errands.model.log import Change, PushConfig
from tests.unit.cli.conftest import Errands
from tests.unit.cli.processes import Served
from tests.unit.cli.processes import errands as run_errands
from tests.unit.reviews.support import BOB, suspend

ROOT = Path(__file__).parents[3]
_EXAMPLE = re.compile(r"^\s*(errands .*?)\s*$", re.MULTILINE)


def commands() -> Iterator[tuple[str, ...]]:
    """Every command, groups included."""

    def walk(command: object, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield path
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, (*path, name))

    yield from walk(typer.main.get_command(app), ())


def examples(errands: Errands, command: tuple[str, ...]) -> list[str]:
    help_text: str = errands(*command, "--help").stdout
    return _EXAMPLE.findall(help_text.partition("Options")[0])


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: " ".join(command) or "errands")
def test_the_examples_of_every_command_run(
    errands: Errands, url: str, command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = examples(errands, command)
    assert found, "no example in --help"
    if command[:1] == ("db",):
        # Where the file of the examples may be made, and is there to be checked.
        monkeypatch.chdir(tmp_path)
        errands("db", "upgrade", "--storage", "sqlite:///tasks.db")
    if command[:1] == ("card",):
        monkeypatch.chdir(tmp_path)
        key = ECKey.generate_key("P-256")
        Path("private.pem").write_bytes(key.as_pem(private=True))
        Path("public.pem").write_bytes(key.as_pem(private=False))
        Path("card.json").write_text(errands("card", url, "--json").stdout)
        errands("card", "sign", "card.json", "--key", "private.pem", "--output", "signed.json")
    # A task that can still be canceled, for the command that does so.
    task = json.loads(errands("send", url, "ask" if "cancel" in command else "hello", "--json").stdout)
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    asyncio.run(make(store, task["id"]))
    monkeypatch.setenv("ERRANDS_STORAGE", store)
    if command == ("init",):
        monkeypatch.chdir(tmp_path)
    if command in (("tasks", "export"), ("tasks", "import"), ("task", "export"), ("task", "import")):
        monkeypatch.chdir(tmp_path)
        if "import" in command:
            errands("tasks", "export", "tasks.jsonl")
    for example in found:
        example = example.replace("http://localhost:8000", url).replace("TASK_ID", task["id"])
        _, *arguments = shlex.split(example.replace("sqlite:///.errands/tasks.db", store))
        if arguments[0] == "serve":
            assert_serves(arguments, tmp_path)
        else:
            assert errands(*arguments).exit_code == 0, example


async def make(store: str, task_id: str) -> None:
    """A store with a task that waits for a review and has a webhook, for the commands that manage them."""
    async with engine_from_url(store) as engine:
        await suspend(engine, task_id, BOB)
        scope = (await engine.load(task_id, None)).scope
        push = PushConfig(id="hook", url="https://hooks.example/", host="hooks.example:443")
        await engine.commit(Change(task_id=task_id, scope=scope, at=engine.clock(), push=push))


def assert_serves(arguments: list[str], folder: Path) -> None:
    options = [option for option in arguments[2:] if option not in ("--port", "8000")]
    with Served(ROOT / arguments[1], *options, cwd=folder) as server:
        assert server.stop().returncode == 0


def test_help_lists_every_exit_code_and_what_it_means(errands: Errands) -> None:
    shown = " ".join(errands("--help").stdout.split())
    for code, meaning in EXIT_CODES.items():
        assert f"{code.value}: {meaning}" in shown


def test_no_command_is_an_invitation_to_read_the_help(errands: Errands) -> None:
    result = errands()
    assert result.exit_code == 2
    assert "Usage:" in result.output


def test_an_unknown_command_exits_with_2(errands: Errands) -> None:
    assert errands("sned").exit_code == 2


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_the_version_is_told(errands: Errands, arguments: tuple[str, ...]) -> None:
    result = errands(*arguments)
    assert result.exit_code == 0
    assert result.stdout.startswith(f"errands {__version__} ")


def test_python_m_errands_is_errands() -> None:
    assert run_errands("version").stdout.startswith(f"errands {__version__} ")
