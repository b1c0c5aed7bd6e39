"""What `errands serve TARGET` finds, and what it says when it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from errands import A2AServer
from errands.cli.failures import CommandError, ExitCode
from errands.cli.target import ManifestOptions, load_server
from tests.unit.cli.modules import forgotten_imports

Write = Callable[..., str]

IMPORTS = "from errands import A2AServer, AgentCardConfig, AgentExecutor, TaskContext, Worker, agent\n"
WORKER = """
class Quiet(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete()
"""
WORKER_WITH_CARD = WORKER + "    agent_card = AgentCardConfig(name='Quiet', description='.')\n"
EXECUTOR = """
class Executes(AgentExecutor):
    async def execute(self, context, event_queue) -> None: ...
    async def cancel(self, context, event_queue) -> None: ...
"""
EXECUTOR_WITH_CARD = EXECUTOR + "    agent_card = AgentCardConfig(name='Executor', description='.')\n"
EXECUTOR_SERVER = (
    "server = A2AServer(executor=Executes(), agent_card=AgentCardConfig(name='Server', description='.'))\n"
)
SDK_EXECUTOR = "from a2a.types import AgentCard\nfrom a2a.server.agent_execution import AgentExecutor\n" + EXECUTOR
SDK_EXECUTOR_WITH_CARD = SDK_EXECUTOR + "    agent_card = AgentCard(name='Official', description='.')\n"
FUNCTION = """
@agent(name="Function")
def shout(text: str) -> str:
    return text.upper()
"""
SERVER = "server = A2AServer(worker=Quiet(), agent_card=AgentCardConfig(name='Server', description='.'))\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a program into the current folder: `write(SERVER)` is the target of a file with a server."""
    monkeypatch.chdir(tmp_path)

    def write(*code: str, name: str = "program.py") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(IMPORTS + "".join(code))
        return name

    with forgotten_imports():
        yield write


def name_of(server: A2AServer) -> str:
    return server.agent_card.name


def refusal(target: str, storage: str | None = None) -> CommandError:
    with pytest.raises(CommandError) as caught:
        load_server(target, storage)
    return caught.value


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (WORKER + SERVER, "Server"),
        (FUNCTION, "Function"),
        (WORKER_WITH_CARD, "Quiet"),
        (WORKER_WITH_CARD + "quiet = Quiet()\n", "Quiet"),
        (WORKER_WITH_CARD + FUNCTION + SERVER, "Server"),
        (WORKER_WITH_CARD + FUNCTION, "Function"),
        (WORKER + SERVER + "app = server.app\nalias = server\n", "Server"),
        (EXECUTOR + EXECUTOR_SERVER, "Server"),
        (EXECUTOR_WITH_CARD, "Executor"),
        (EXECUTOR_WITH_CARD + "executes = Executes()\n", "Executor"),
        (SDK_EXECUTOR_WITH_CARD, "Official"),
        (SDK_EXECUTOR_WITH_CARD + "executes = Executes()\n", "Official"),
        (FUNCTION + "_hidden = agent(lambda text: text, name='Hidden', description='.')\n", "Function"),
    ],
    ids=[
        "server",
        "function",
        "class",
        "instance",
        "server first",
        "instance first",
        "alias",
        "server of an executor",
        "executor class",
        "executor instance",
        "class of the SDK's executor",
        "instance of the SDK's executor",
        "private",
    ],
)
def test_a_file_with_one_agent_is_served_without_naming_it(write: Write, code: str, name: str) -> None:
    assert name_of(load_server(write(code))) == name


def test_a_name_chooses_among_several(write: Write) -> None:
    target = write(WORKER, SERVER, FUNCTION)
    assert name_of(load_server(f"{target}:shout")) == "Function"
    assert name_of(load_server(f"{target}:server")) == "Server"


def test_a_name_may_lead_into_an_object(write: Write) -> None:
    target = write(WORKER, "class Box:\n    ", SERVER)
    assert name_of(load_server(f"{target}:Box.server")) == "Server"


def test_a_module_is_found_in_the_current_folder(write: Write) -> None:
    write(WORKER, SERVER, name="a_module.py")
    assert name_of(load_server("a_module:server")) == "Server"
    assert name_of(load_server("a_module")) == "Server"


def test_a_file_in_a_package_finds_its_neighbours_by_their_own_names(write: Write) -> None:
    write(name="b_package/__init__.py")
    write(WORKER, SERVER, name="b_package/neighbour.py")
    assert name_of(load_server(write("from neighbour import server\n", name="b_package/main.py"))) == "Server"


def test_a_file_in_a_package_keeps_its_relative_imports(write: Write) -> None:
    write(name="a_package/__init__.py")
    write(WORKER, SERVER, name="a_package/inner.py")
    assert name_of(load_server(write("from .inner import server\n", name="a_package/outer.py"))) == "Server"


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write(WORKER, SERVER, name="folder/neighbour.py")
    assert name_of(load_server(write("from neighbour import server\n", name="folder/program.py"))) == "Server"


def test_a_file_may_be_called_like_a_module_of_the_standard_library(write: Write) -> None:
    assert name_of(load_server(write(WORKER, SERVER, name="json.py"))) == "Server"


def test_a_storage_on_the_command_line_wins(write: Write) -> None:
    target = write(WORKER, SERVER.replace("worker=", "storage='sqlite:///a.db', worker="))
    assert load_server(target).settings.storage == "sqlite:///a.db"
    assert load_server(target, "memory").settings.storage == "memory"
    assert load_server(write(FUNCTION, name="other.py"), "memory").settings.storage == "memory"


def test_a_storage_on_the_command_line_cannot_replace_an_engine(write: Write) -> None:
    engine = "from errands.engines.memory import MemoryEngine\n"
    error = refusal(write(engine, WORKER, SERVER.replace("worker=", "storage=MemoryEngine(), worker=")), "memory")
    assert "MemoryEngine" in str(error)
    assert "--storage" in str(error)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "has no agent; write `server = A2AServer("),
        (WORKER, "has the worker Quiet but no agent card"),
        (FUNCTION + FUNCTION.replace("shout", "whisper"), "2 agents (shout, whisper); choose one: `errands serve"),
    ],
    ids=["none", "no card", "several"],
)
def test_a_file_without_exactly_one_agent_says_what_it_has_and_what_to_write(
    write: Write, code: str, words: str
) -> None:
    error = refusal(write(code))
    assert error.code is ExitCode.USAGE
    assert words in str(error)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody", "has no nobody; it has server"),
        ("server.nothing", "has no server.nothing"),
        ("WORDS", "is of type str; errands serves an A2AServer"),
    ],
)
def test_a_name_that_is_no_agent_says_what_it_is(write: Write, name: str, words: str) -> None:
    target = write(WORKER, SERVER, "WORDS = 'words'\n")
    error = refusal(f"{target}:{name}")
    assert error.code is ExitCode.USAGE
    assert words in str(error)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("missing.py", "the file missing.py does not exist"),
        ("folder/", "the file folder does not exist"),
        ("no_such_module:server", "the module no_such_module is neither installed nor in"),
        ("no_such.module:server", "the module no_such.module is neither installed nor in"),
        ("agent.yaml:clerk", "choose an agent of the manifests with --agent clerk"),
        (":server", "expected FILE.py, FILE.py:NAME or MODULE:NAME"),
    ],
)
def test_a_target_that_does_not_exist_says_what_to_write_instead(write: Write, target: str, words: str) -> None:
    error = refusal(target)
    assert error.code is ExitCode.USAGE
    assert words in str(error)


MANIFEST = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: {name}
description: A clerk.
prompt: You are a clerk.
---
"""
SCRIPT = '{"agents": {"clerk": [{"say": "Hello!"}]}}'


@pytest.fixture
def manifests(tmp_path: Path, write: Write) -> Path:
    """A folder with two agents, beside the current one."""
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "agents.yaml").write_text(MANIFEST.format(name="clerk") + MANIFEST.format(name="boss"))
    (folder / "scripted.json").write_text(SCRIPT)
    return folder


@pytest.mark.parametrize("target", ["desk", "desk/", "desk/agents.yaml"])
def test_manifests_are_served_from_a_file_or_a_folder(manifests: Path, target: str) -> None:
    server = load_server(target, "memory", ManifestOptions(agent="clerk", model="scripted"))
    assert name_of(server) == "clerk"
    assert server.settings.storage == "memory"


def test_a_folder_that_is_a_package_is_python(manifests: Path) -> None:
    (manifests / "__init__.py").write_text(IMPORTS + FUNCTION)
    assert name_of(load_server("desk")) == "Function"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ManifestOptions(model="scripted"), "choose one with agent=... or --agent: clerk, boss"),
        (ManifestOptions(agent="nobody", model="scripted"), "desk: unknown agent 'nobody'; available: clerk, boss"),
        (ManifestOptions(agent="clerk"), "desk: clerk: the agent names no model"),
        (ManifestOptions("clerk", "scripted", Path("nowhere.yaml")), "the tool settings nowhere.yaml cannot be read"),
    ],
)
def test_manifests_that_cannot_be_served_so_say_why(manifests: Path, options: ManifestOptions, words: str) -> None:
    with pytest.raises(CommandError) as caught:
        load_server("desk", None, options)
    assert words in str(caught.value)


@pytest.mark.parametrize("target", ["nowhere.yaml", "nowhere.YML", "empty", "broken"])
def test_manifests_that_are_not_valid_are_told_with_everything(tmp_path: Path, write: Write, target: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.yaml").write_text(MANIFEST.format(name="clerk") + "kind: 1\n")
    error = refusal(target)
    assert f"{target} is not valid" in str(error)
    assert "error    " in error.details


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (ManifestOptions(agent="x"), "--agent: only manifests"),
        (ManifestOptions("x", "y", Path("z")), "--agent and --model and --tool-settings: only manifests"),
    ],
)
def test_what_is_said_about_manifests_cannot_be_said_about_a_program(
    write: Write, options: ManifestOptions, words: str
) -> None:
    with pytest.raises(CommandError) as caught:
        load_server(write(WORKER_WITH_CARD), None, options)
    assert caught.value.code is ExitCode.USAGE
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("def half():\n    return 1 / 0\n\nhalf()\n", "ZeroDivisionError"),
        ("import no_such_module_at_all\n", "ModuleNotFoundError"),
        ("def broken(:\n", "SyntaxError"),
        ("import sys\nsys.exit('no')\n", "SystemExit"),
        (WORKER_WITH_CARD + "    def __init__(self, needed: int) -> None: ...\n", "TypeError"),
    ],
)
def test_a_program_that_fails_shows_its_own_lines_and_none_of_ours(write: Write, code: str, name: str) -> None:
    error = refusal(write(code))
    assert error.code is ExitCode.FAILED
    assert f"program.py failed with {name}" in str(error)
    assert name in error.details
    assert "importlib" not in error.details
    assert "errands/cli" not in error.details


def test_a_setting_that_is_wrong_is_told_with_its_line(write: Write) -> None:
    error = refusal(write(WORKER, SERVER.replace("worker=", "role='broker', worker=")))
    assert error.code is ExitCode.FAILED
    assert str(error).startswith("program.py, line 6: invalid role 'broker'")


def test_a_program_that_failed_can_be_loaded_again(write: Write) -> None:
    refusal(write("1 / 0\n"))
    assert name_of(load_server(write(WORKER, SERVER))) == "Server"


@pytest.mark.parametrize("code", [EXECUTOR, SDK_EXECUTOR], ids=["ours", "the SDK's"])
def test_an_executor_without_a_card_is_told_how_to_be_served(write: Write, code: str) -> None:
    assert "A2AServer(executor=Executes(), agent_card=" in str(refusal(write(code)))
