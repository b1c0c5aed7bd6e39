"""What `--help` promises is true: every command has an example, and every example runs."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer.main
from joserfc.jwk import ECKey

from errands import A2AServer, AgentCardConfig, TaskContext, Worker, __version__
from errands.cli.failures import EXIT_CODES
from errands.cli.main import app
from errands.engines.urls import engine_from_url
from errands.model.log import Change, PushConfig
from tests.unit.cli.conftest import Errands, live
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


@pytest.fixture(scope="module")
def operated_url() -> Iterator[str]:
    """An agent whose operator API is on for everyone."""
    card = AgentCardConfig(name="Test agent", description="Says nothing.")
    with live(A2AServer(worker=Silent(), agent_card=card, storage="memory", console="on")) as url:
        yield url


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete()


Prepare = Callable[[tuple[str, ...]], Callable[[str], list[str]]]


@pytest.fixture
def prepare(errands: Errands, url: str, operated_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Prepare:
    """Makes what the examples of a command are about; returns a function that makes the arguments of an example."""

    def prepared(command: tuple[str, ...]) -> Callable[[str], list[str]]:
        if command[:1] in (("db",), ("card",), ("init",)) or command[1:] in (("export",), ("import",)):
            # Where the files of the examples may be made.
            monkeypatch.chdir(tmp_path)
        if command[:1] == ("db",):
            errands("db", "upgrade", "--storage", "sqlite:///tasks.db")
        if command[:1] == ("card",):
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
        if "import" in command:
            errands("tasks", "export", "tasks.jsonl")
        agent = operated_url if command == ("top",) else url

        def arguments(example: str) -> list[str]:
            example = example.replace("http://localhost:8000", agent).replace("TASK_ID", task["id"])
            return shlex.split(example.replace("sqlite:///.errands/tasks.db", store))[1:]

        return arguments

    return prepared


@pytest.mark.parametrize("command", list(commands()), ids=lambda command: " ".join(command) or "errands")
def test_the_examples_of_every_command_run(
    errands: Errands, prepare: Prepare, command: tuple[str, ...], tmp_path: Path
) -> None:
    found = examples(errands, command)
    assert found, "no example in --help"
    arguments_of = prepare(command)
    for example in found:
        arguments = arguments_of(example)
        if arguments[0] == "serve":
            assert_serves(arguments, tmp_path)
        else:
            assert errands(*arguments).exit_code == 0, example


#: Commands without --json, and why.
WITHOUT_JSON = {
    ("serve",): "it runs until it is stopped",
    ("init",): "it creates files",
    ("chat",): "it is for people",
    ("tasks", "export"): "its file is JSON lines",
    ("audit",): "it prints JSON lines",
    ("db", "sql"): "it prints SQL",
    ("agents", "schema"): "it prints JSON",
    ("card", "sign"): "it prints JSON",
}
LEAVES = [
    command
    for command in commands()
    if command[:1] != ("task",) and not any(other[: len(command)] == command != other for other in commands())
]


@pytest.mark.parametrize("command", LEAVES, ids=" ".join)
def test_every_command_prints_json_if_that_makes_sense(
    errands: Errands, prepare: Prepare, command: tuple[str, ...]
) -> None:
    has_json = "--json" in errands(*command, "--help").stdout
    assert has_json is (command not in WITHOUT_JSON)
    if has_json:
        # Without the options that choose another form.
        arguments = [word for word in prepare(command)(examples(errands, command)[0]) if word != "--once"]
        result = errands(*arguments, *([] if "--json" in arguments else ["--json"]))
        assert result.exit_code == 0, result.stderr
        documents = result.stdout.splitlines() if command == ("tasks", "watch") else [result.stdout]
        assert all(json.loads(document) is not None for document in documents)


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
