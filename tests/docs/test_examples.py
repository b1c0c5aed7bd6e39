"""Every example does what its docstring promises. A new example needs a check here."""

from __future__ import annotations

import ast
import re
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest

from errands import A2AServer, AuthenticationRequiredError, Part
from errands.cli.target import load_server
from errands.client import A2AClient
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Scope
from errands.testing import BASE_URL, connect, http_client
from tests.unit.cli.modules import forgotten_imports
from tests.unit.cli.processes import Served, errands

EXAMPLES = Path(__file__).parents[2] / "examples"

Check = Callable[[A2AServer, A2AClient], Awaitable[None]]

CHECKS: dict[str, Check] = {}


def check(function: Check) -> Check:
    """Registers the check of the example it is named after."""
    CHECKS[function.__name__] = function
    return function


@check
async def echo(server: A2AServer, client: A2AClient) -> None:
    assert (await client.send("hello")).text == "Echo: hello"
    assert [task.state async for task in client.list_tasks()] == ["completed"]


@check
async def executor(server: A2AServer, client: A2AClient) -> None:
    assert (await client.send("ping")).raw_message is not None
    asked = await client.send("a table for two")
    assert (asked.state, asked.text) == ("input-required", "For which day?")
    assert (await client.send("friday", task_id=asked.task_id)).text == "Booked for friday."
    again = await client.send("a table for four")
    assert (await client.cancel(again.task_id)).text == "The table is free again."


@check
async def streaming(server: A2AServer, client: A2AClient) -> None:
    events = [event async for event in client.stream("the quick fox")]
    words = [event.text for event in events if event.kind == "artifact"]
    assert words == ["THE ", "QUICK ", "FOX ", ""]
    assert "Shouting 3 words" in [event.text for event in events]
    assert events[-1].state == "completed"


@check
async def multi_turn(server: A2AServer, client: A2AClient) -> None:
    talk = client.conversation()
    asked = await talk.send("Lisbon")
    assert (asked.state, asked.text) == ("input-required", "How many nights in Lisbon?")
    again = await talk.send("many")
    assert again.state == "input-required"
    assert again.text is not None
    assert again.text.endswith("How many nights in Lisbon?")
    booked = await talk.send("3")
    assert (booked.task_id, booked.text) == (asked.task_id, "Booked: Lisbon, 3 nights, your trip number 1")
    await talk.send("Porto")
    second = await talk.send("2")
    assert second.task_id != booked.task_id
    assert second.text == "Booked: Porto, 2 nights, your trip number 2"


@check
async def auth_required(server: A2AServer, client: A2AClient) -> None:
    asked = await client.send("my repositories")
    assert (asked.state, asked.data["authUrl"]) == ("auth-required", "https://github.com/settings/tokens")
    async with (
        http_client(server) as http,
        A2AClient(BASE_URL, httpx_client=http, headers={"Authorization": "Bearer secret"}) as authorized,
    ):
        done = await authorized.send("go on", task_id=asked.task_id)
        assert done.text == "Looked up 'my repositories' with a token of 6 characters"
        assert "secret" not in str((await authorized.get_task(asked.task_id)).raw_task)


@check
async def files(server: A2AServer, client: A2AClient) -> None:
    sent = [Part(raw=b"abc", filename="a.txt", media_type="text/plain"), Part(raw=b"", filename="b.bin")]
    done = await client.send(sent)
    [part] = done.artifacts[0].parts
    assert (part.filename, part.media_type) == ("report.csv", "text/csv")
    assert part.raw is not None
    header, first, second = part.raw.decode().splitlines()
    assert header == "name,bytes,sha256"
    assert first.startswith("a.txt,3,ba7816bf")
    assert second.startswith("b.bin,0,")
    assert (await client.send("nothing")).state == "rejected"


@check
async def json_negotiation(server: A2AServer, client: A2AClient) -> None:
    counted = {"words": 3, "different": 2}
    assert (await client.send("a b a")).data == counted
    assert (await client.send([Part(data={"text": "a b a"})])).data == counted
    sentence = await client.send("a b a", accepted_output_modes=["text/plain"])
    assert (sentence.data, sentence.text) == (None, "3 words, 2 of them different")


@check
async def cancellation(server: A2AServer, client: A2AClient) -> None:
    task_id = (await client.send("60", blocking=False)).task_id
    async with aclosing(client.subscribe(task_id)) as events:
        async for event in events:
            if (event.text or "").startswith("1 "):
                break
    canceled = await client.cancel(task_id)
    counted = (canceled.artifacts[0].text or "").split()
    assert (canceled.state, counted) == ("canceled", [str(number + 1) for number in range(len(counted))])
    assert canceled.raw_task is not None
    assert canceled.raw_task.status.message is not None
    assert canceled.raw_task.status.message.parts[0].text == f"Stopped after {len(counted)} seconds."


@check
async def dependency_injection(server: A2AServer, client: A2AClient) -> None:
    assert (await client.send("tea")).text == "tea costs 3.50 EUR"
    assert (await client.send("gold")).text == "We do not sell gold"


@check
async def middleware(server: A2AServer, client: A2AClient) -> None:
    with pytest.raises(AuthenticationRequiredError):
        await client.send("hello")
    async with http_client(server) as http:

        def caller(token: str) -> A2AClient:
            return A2AClient(BASE_URL, httpx_client=http, headers={"Authorization": f"Bearer {token}"})

        async with caller("ada") as ada, caller("alan") as alan:
            assert (await ada.send("hello")).text == "Hello, Ada. You said: hello (request 1)"
            assert len((await ada.list_tasks()).tasks) == 1
            assert (await alan.list_tasks()).tasks == []


@check
async def function_agent(server: A2AServer, client: A2AClient) -> None:
    pieces = [piece async for piece in client.stream_text("3")]
    assert pieces == ["3 ", "2 ", "1 ", "liftoff"]
    assert (await client.send("soon")).state == "input-required"
    countdown = sys.modules["function_agent"].countdown
    assert list(countdown(3)) == pieces


def names() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob("*.py"))


def test_every_example_has_a_check_and_every_check_an_example() -> None:
    assert names() == sorted(CHECKS)


@pytest.mark.anyio
@pytest.mark.parametrize("name", names())
async def test_an_example_does_what_it_promises(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ERRANDS_STORAGE", "memory")
    with forgotten_imports():
        server = load_server(str(EXAMPLES / f"{name}.py"))
        async with connect(server) as client:
            await CHECKS[name](server, client)


@pytest.mark.parametrize("name", names())
def test_an_example_says_how_to_run_it_and_what_to_try(name: str) -> None:
    words = ast.get_docstring(ast.parse((EXAMPLES / f"{name}.py").read_text())) or ""
    assert f"errands serve examples/{name}.py" in words
    assert re.search(r"errands send http://localhost:8000 \S", words)


def test_the_echo_example_is_served_sent_to_and_stopped(tmp_path: Path) -> None:
    with Served(EXAMPLES / "echo.py", cwd=tmp_path, python=sys.executable) as server:
        sent = errands("send", server.url, "hello")
        assert (sent.returncode, sent.stdout) == (0, "Echo: hello\n")
        stopped = server.stop(signal.SIGTERM)
    assert (stopped.returncode, stopped.stderr) == (0, "")
    with Served(EXAMPLES / "echo.py", cwd=tmp_path) as server:
        assert "hello" in errands("tasks", "list", server.url).stdout, "it is still there after a restart"


@pytest.mark.anyio
async def test_a_task_that_runs_when_its_server_is_stopped_is_given_back(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'kept.db'}"
    with Served(EXAMPLES / "cancellation.py", "--storage", storage, cwd=tmp_path, drain_timeout="0.1") as server:
        task_id = errands("send", server.url, "60", "--no-wait").stdout.strip()
        with httpx.stream(
            "POST", f"{server.url}/tasks/{task_id}:subscribe", headers={"A2A-Version": "1.0"}, timeout=None
        ) as stream:
            assert any("WORKING" in line for line in stream.iter_lines())
        assert server.stop(signal.SIGTERM).returncode == 0
    async with engine_from_url(storage) as engine:
        stored = await engine.load(task_id, Scope(agent="Counter"))
    assert (stored.state, stored.head.worker) == (TaskState.WORKING, "")
    assert stored.head.due_at is not None


def test_the_readme_agent_is_ten_lines() -> None:
    code = ast.parse((EXAMPLES / "echo.py").read_text()).body[1:]
    lines = (EXAMPLES / "echo.py").read_text().splitlines()[code[0].lineno - 1 :]
    assert len(lines) <= 10


@pytest.mark.anyio
async def test_the_policy_of_the_examples_guards_an_agent() -> None:
    server = load_server(str(EXAMPLES / "echo.py"), "memory")
    server.use_policy(EXAMPLES / "policy.yaml")
    async with connect(server) as client:
        assert (await client.send("hello")).text == "Echo: hello"
        assert (await client.send("my password: 1234")).text == "Please do not send passwords."
        assert (await client.send("4111111111111111")).state == "rejected"
