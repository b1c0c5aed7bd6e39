"""The capability script: what a model may write, and that nothing it writes can do harm."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen
from typing import Any

import msgspec
import pytest

from errands.agents.manifests.functions import Function
from errands.agents.mounts import LocalFiles
from errands.agents.script import find_file, offer, run_script
from errands.errors import ConfigurationError
from errands.policy.cel import Call, CallFailed, CelError, Session, Suspended
from errands.policy.cel.evaluators import Evaluators, _Evaluator
from tests.clock import let_pass
from tests.unit.agents.support import assert_told, loaded, put

pytestmark = pytest.mark.anyio

NOW = "2026-05-20T03:45:00Z"
#: Enough to evaluate anything honest on a busy machine.
SECONDS = 60.0

#: Counts the characters of a text ten thousand times, without taking memory.
HOSTILE = f"[text({{}})].all(t, {list(range(100))}.all(a, {list(range(100))}.all(b, size(t) > a + b)))"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def evaluators(anyio_backend: str) -> AsyncIterator[Evaluators]:
    made = Evaluators(timeout=SECONDS, most=1)
    yield made
    await made.close()


class World:
    """Makes calls by a table, and keeps a list of them."""

    def __init__(self, **results: Any) -> None:
        self.results = results
        self.made: list[str] = []
        self.session = Session(NOW)

    async def perform(self, call: Call) -> Any:
        self.made.append(str(call))
        result = self.results[call.function]
        if isinstance(result, Exception):
            raise result
        return result(*call.arguments) if callable(result) else result

    async def run(self, source: str, evaluators: Evaluators, *, mount: bool = False) -> Any:
        names = self.results.keys() - {"file"}
        return await run_script(source, names, self.session, self.perform, mount=mount, evaluators=evaluators)


async def test_a_script_puts_results_together(evaluators: Evaluators) -> None:
    world = World(find=lambda a: {"name": f"order {a['n']}"}, note=True)
    value = await world.run("[1, 2].map(n, find({'n': n}).name) + (note({}) ? ['noted'] : [])", evaluators)
    assert value == ["order 1", "order 2", "noted"]
    assert world.made == ['find({"n":1})', 'find({"n":2})', "note({})"]


async def test_only_what_is_needed_is_called(evaluators: Evaluators) -> None:
    world = World(find=True, note=True)
    assert await world.run("find({}) || note({})", evaluators) is True
    assert world.made == ["find({})"]


async def test_a_call_that_failed_is_an_error_of_the_script(evaluators: Evaluators) -> None:
    world = World(find=CallFailed("the shop is closed"), note=True)
    with pytest.raises(CelError, match="find: the shop is closed"):
        await world.run("find({}) == 1", evaluators)
    assert await World(find=CallFailed("closed"), note=True).run("find({}) || note({})", evaluators) is True


async def test_a_script_that_waits_goes_on_from_there(evaluators: Evaluators) -> None:
    world = World(first=1, second=Suspended(Call("review", ("boss",))))
    with pytest.raises(Suspended, match="review"):
        await world.run("first({}) + second({})", evaluators)
    world.session = msgspec.json.decode(msgspec.json.encode(world.session), type=Session)
    world.results["second"] = 2
    assert await world.run("first({}) + second({})", evaluators) == 3
    assert world.made == ["first({})", "second({})", "second({})"]


async def test_what_a_script_must_not_do_to_the_caller_of_its_calls_is_left_alone(evaluators: Evaluators) -> None:
    with pytest.raises(ZeroDivisionError):
        await World(find=ZeroDivisionError()).run("find({})", evaluators)
    assert await World(find=1).run("find({})", evaluators) == 1


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("context.user.id", "'context' is not available in a capability script"),
        ("c.user", "'c' is not available in a capability script"),
        ("settings.token", "'settings' is not available"),
        ("auth.github()", "'auth' is not available"),
        ("input", "'input' is not available"),
        ("now", "'now' is not available"),
        ("session.id", "'session' is not available"),
        ("runtime.version", "'runtime' is not available"),
        ("review('boss')", "'review' is not available"),
        ("mount.read('a')", "'mount' is not available"),
        ("file('a')", "'file' is not available"),
        ("other({})", "'other' is not available"),
        ("run_script({'expression': '1'})", "'run_script' is not available"),
        ("find('x')", r"find\(\) takes one map of arguments"),
        ("find(", "Syntax error"),
        ("'x' * 2", "no matching overload"),
        ("'" + "x" * 5000 + "'", "characters are too many"),
    ],
)
async def test_a_script_has_its_capabilities_and_nothing_else(
    source: str, problem: str, evaluators: Evaluators
) -> None:
    world = World(find=1)
    with pytest.raises(CelError, match=problem):
        await world.run(source, evaluators)
    assert world.made == []


@pytest.mark.skipif(not os.path.exists("/proc/self/environ"), reason="only Linux tells")
async def test_the_process_of_a_script_has_nothing_of_the_environment(evaluators: Evaluators) -> None:
    assert await World(find=1).run("find({})", evaluators) == 1
    environment = await asyncio.to_thread(Path(f"/proc/{_pid(evaluators)}/environ").read_bytes)
    assert [entry.partition(b"=")[0] for entry in environment.split(b"\0") if entry] == [b"PYTHONPATH"]


# Files


async def test_a_file_is_passed_on_as_a_map_and_shown_as_a_line(evaluators: Evaluators, tmp_path: Path) -> None:
    files = LocalFiles(tmp_path, (), max_bytes=10_000)
    await files.write("report.pdf", "x" * 1234)
    passed: list[Any] = []

    async def perform(call: Call) -> Any:
        if call.function == "file":
            return await find_file(files, call)
        passed.append(call.arguments[0])
        return "sent"

    async def run(source: str) -> Any:
        return await run_script(source, ["send"], Session(NOW), perform, mount=True, evaluators=evaluators)

    assert await run("send({'file': file('report.pdf')})") == "sent"
    assert passed == [{"file": {"path": "report.pdf", "mimeType": "application/pdf", "size": 1234}}]
    assert await run("[file('report.pdf')]") == ["report.pdf (application/pdf, 1.2 kB)"]
    with pytest.raises(CelError, match=r"the path '../x' leads out of the mount"):
        await run("file('../x')")
    with pytest.raises(CelError, match=r"none.txt: the file does not exist"):
        await run("file('none.txt')")


# Hostile scripts


async def begun(evaluators: Evaluators) -> tuple[_Evaluator, asyncio.Task[Any]]:
    """A process that works on a hostile script, and somebody who waits for it."""
    assert await World(text="a").run("text({})", evaluators) == "a"
    [warm] = evaluators._idle
    asked = warm.asked
    running = asyncio.create_task(World(text="x" * 5_000_000).run(HOSTILE, evaluators))
    # First for what the script calls, then with the result.
    while warm.asked < asked + 2:
        await asyncio.sleep(0)
    return warm, running


async def test_a_script_that_takes_too_long_is_killed_and_others_go_on() -> None:
    evaluators = Evaluators(timeout=SECONDS, most=1)
    try:
        first, running = await begun(evaluators)
        let_pass(SECONDS)
        with pytest.raises(CelError, match=r"it took longer than 60 s .*: do less in one script"):
            await running
        assert first.process.returncode == -signal.SIGKILL
        assert await World(text="b").run("text({})", evaluators) == "b"
        assert _pid(evaluators) != first.process.pid
    finally:
        await evaluators.close()


async def test_the_server_lives_on_while_a_hostile_script_is_killed() -> None:
    evaluators = Evaluators(timeout=SECONDS, most=2)
    try:
        _, running = await begun(evaluators)
        assert await World(text="b").run("text({})", evaluators) == "b"
        assert not running.done()
        let_pass(SECONDS)
        with pytest.raises(CelError, match="it took longer"):
            await running
    finally:
        await evaluators.close()


async def test_a_script_that_wants_all_memory_dies_alone(evaluators: Evaluators) -> None:
    greedy = Evaluators(timeout=SECONDS, memory=200 * 1024 * 1024, most=1)
    text = "x" * 5_000_000
    try:
        with pytest.raises(CelError, match=r"it needs too much memory .*: do less in one"):
            await World(text=text).run("[" + "text({})," * 100 + "''].map(t, t + t).size()", greedy)
        assert await World(text="a").run("text({})", greedy) == "a"
    finally:
        await greedy.close()


async def test_a_process_that_died_in_the_meantime_is_replaced(evaluators: Evaluators) -> None:
    assert await World(find=1).run("find({})", evaluators) == 1
    os.kill(_pid(evaluators), signal.SIGKILL)
    assert await World(find=2).run("find({})", evaluators) == 2


async def test_a_process_is_warm_and_used_again(evaluators: Evaluators) -> None:
    assert await World(find=1).run("find({})", evaluators) == 1
    warm = _pid(evaluators)
    assert await World(other=2).run("other({}) + other({'a': 1})", evaluators) == 4
    assert _pid(evaluators) == warm


async def test_scripts_beyond_the_number_of_processes_wait(evaluators: Evaluators) -> None:
    values = await asyncio.gather(*(World(find=n).run("find({})", evaluators) for n in range(5)))
    assert values == [0, 1, 2, 3, 4]
    assert len(evaluators._idle) == 1


async def test_a_script_whose_caller_goes_away_leaves_nothing_behind() -> None:
    evaluators = Evaluators(timeout=SECONDS, most=1)
    try:
        warm, running = await begun(evaluators)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert warm.process.returncode == -signal.SIGKILL
        assert await World(text="b").run("text({})", evaluators) == "b"
    finally:
        await evaluators.close()


async def test_a_script_whose_caller_goes_away_while_its_process_starts_leaves_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[Popen[bytes]] = []

    def start(*args: Any, **options: Any) -> Popen[bytes]:
        started.append(Popen(*args, **options))
        return started[-1]

    monkeypatch.setattr("errands.policy.cel.evaluators.Popen", start)
    for moments in range(8):
        evaluators = Evaluators(timeout=SECONDS)
        running = asyncio.create_task(World(find=1).run("find({})", evaluators))
        for _ in range(moments):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert started
    assert None not in [process.returncode for process in started]


async def test_a_script_is_killed_even_if_tools_have_taken_all_threads() -> None:
    evaluators, over = Evaluators(timeout=SECONDS, most=1), threading.Event()
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    blocked = asyncio.create_task(asyncio.to_thread(over.wait))
    try:
        warm, running = await begun(evaluators)
        running.cancel()
        async with asyncio.timeout(10):
            with pytest.raises(asyncio.CancelledError):
                await running
        assert warm.process.returncode == -signal.SIGKILL
    finally:
        over.set()
        await blocked
        await evaluators.close()


async def test_a_process_whose_parent_is_gone_ends_by_itself() -> None:
    evaluators = Evaluators(timeout=SECONDS)
    assert await World(find=1).run("find({})", evaluators) == 1
    [left] = evaluators._idle
    left.writer.close()
    assert await asyncio.to_thread(left.process.wait) == 0
    await evaluators.close()


def _pid(evaluators: Evaluators) -> int:
    [idle] = evaluators._idle
    return idle.process.pid


# In manifests


def test_the_model_is_told_what_it_may_call(tmp_path: Path) -> None:
    manifests = loaded(tmp_path, put("agent", "script", value=True))
    agent = next(agent for agent in manifests.agents if agent.name == "support")
    assert agent.script
    made = offer([function for function in manifests.functions(agent) if function.offered], mount=True)
    assert made.name == "run_script"
    assert made.parameters["required"] == ["expression"]
    assert made.description.splitlines()[-5:] == [
        "What may be called:",
        "- github_file_read_chunk({'path': string, 'lines'?: integer}): Reads a part of a file.",
        "- github_file_write({'path': string}): Writes a file.",
        "- analyst({'message': string}): Thinks.",
        "- file(path): a file of yours, to be passed on as an argument",
    ]
    assert "file(path)" not in offer([], mount=False).description


def test_a_long_description_is_shortened() -> None:
    function = Function(
        name="f", target="tool", ref="f", action="f", description="x" * 200 + "\nmore", declared={"a": {}}, bindings={}
    )
    assert offer([function], mount=False).description.endswith("- f({'a': any}): " + "x" * 80 + "…")


@pytest.mark.parametrize("name", ["run-script", "size", "filter"])
def test_an_agent_with_scripts_cannot_have_a_capability_of_a_name_that_scripts_need(name: str, tmp_path: Path) -> None:
    def spoil(documents: Any) -> None:
        documents["agent"]["script"] = True
        documents["agent"]["capabilities"][name] = "*"
        documents["audit"]["name"] = name
        documents["agent"]["capabilities"]["github-file"]["before"] = []

    function = name.replace("-", "_")
    assert_told(
        tmp_path,
        spoil,
        f"capabilities.{name}: becomes the function {function}, which a script cannot call, and script is true; "
        "rename it, or remove script",
    )


def test_an_agent_without_scripts_may_have_such_a_capability(tmp_path: Path) -> None:
    def spoil(documents: Any) -> None:
        documents["agent"]["capabilities"]["run-script"] = "*"
        documents["audit"]["name"] = "run-script"
        documents["agent"]["capabilities"]["github-file"]["before"] = []

    assert loaded(tmp_path, spoil).agents[0].script is False


async def test_a_name_that_no_script_can_write_is_a_mistake_of_the_program(evaluators: Evaluators) -> None:
    with pytest.raises(ConfigurationError, match="a script cannot call the capability 'a-b'"):
        await run_script("1", ["a-b"], Session(NOW), World().perform, mount=False, evaluators=evaluators)
