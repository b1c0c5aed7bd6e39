"""The founding page on tasks: its client and each of its snippets against a running server, and each of its promises.

Only whitespace and the port differ from the page. What it shows with PraisonAI's own classes is shown on the wire and
with ours.
"""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import subprocess
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from errands import A2AServer, TaskContext, TaskState, Worker
from errands.testing import serve
from errands.wire.praisonai import STATES
from tests.unit.client.serving import serving

pytestmark = pytest.mark.anyio


class Analyst(Worker):
    """Answers, unless it is told to ask, to fail or to work until it is cancelled."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.stopped = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("Which data?")
        elif ctx.user_text == "fail":
            raise RuntimeError("no data")
        elif ctx.user_text == "work":
            self.started.set()
            while not ctx.is_cancelled:
                await asyncio.sleep(0.001)
            self.stopped.set()
        else:
            await ctx.complete(f"Response to: {ctx.user_text}")


@pytest.fixture
def worker() -> Analyst:
    return Analyst()


@pytest.fixture
def server(worker: Analyst, storage: str) -> A2AServer:
    return serve(worker, storage=storage)


@pytest.fixture
async def url(server: A2AServer) -> AsyncIterator[str]:
    async with serving(server.app) as address:
        yield address


# Quick Start


async def send_message(url: str) -> str:
    payload = {
        "jsonrpc": "2.0",
        "method": "message/send",
        "id": "1",
        "params": {"message": {"role": "user", "parts": [{"text": "Analyze this data"}]}},
    }
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/a2a", json=payload) as response:
            result = await response.json()
            task_id: str = result["result"]["id"]
            print(f"Task created: {task_id}")
            return task_id


async def get_task_status(url: str, task_id: str) -> None:
    payload = {"jsonrpc": "2.0", "method": "tasks/get", "id": "2", "params": {"id": task_id}}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/a2a", json=payload) as response:
            result = await response.json()
            state = result["result"]["status"]["state"]
            print(f"Task state: {state}")


async def cancel_task(url: str, task_id: str) -> None:
    payload = {"jsonrpc": "2.0", "method": "tasks/cancel", "id": "3", "params": {"id": task_id}}
    async with aiohttp.ClientSession() as session:
        async with session.post(f"{url}/a2a", json=payload) as response:
            result = await response.json()
            print(f"Cancelled: {result['result']['status']['state']}")


async def test_the_quick_start_tells_how_each_step_went(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    task_id = await send_message(url)
    await get_task_status(url, task_id)
    await cancel_task(url, task_id)
    # The task had completed before the cancel came, and a finished task is not overwritten.
    assert capsys.readouterr().out.splitlines() == [
        f"Task created: {task_id}",
        "Task state: completed",
        "Cancelled: completed",
    ]


async def test_the_quick_start_cancels_a_task_that_is_at_work(
    url: str, worker: Analyst, capsys: pytest.CaptureFixture[str]
) -> None:
    working = asyncio.create_task(SimpleA2AClient(url).send_message("work"))
    await worker.started.wait()
    task_id = (await call(url, "tasks/list"))["result"][0]["id"]
    await get_task_status(url, task_id)
    await cancel_task(url, task_id)
    await get_task_status(url, task_id)
    assert capsys.readouterr().out.splitlines() == [
        "Task state: working",
        "Cancelled: cancelled",
        "Task state: cancelled",
    ]
    assert worker.stopped.is_set()
    assert (await working)["result"]["status"]["state"] == "cancelled"


# Task States


async def test_the_states_are_spelled_as_on_the_page() -> None:
    assert {
        TaskState.SUBMITTED: "submitted",
        TaskState.WORKING: "working",
        TaskState.COMPLETED: "completed",
        TaskState.FAILED: "failed",
        TaskState.CANCELED: "cancelled",
        TaskState.INPUT_REQUIRED: "input_required",
        TaskState.AUTH_REQUIRED: "auth_required",
    }.items() <= STATES.items()


async def test_every_interaction_creates_a_task_that_progresses_through_states(url: str) -> None:
    client = SimpleA2AClient(url)
    for text, state in [("data", "completed"), ("fail", "failed"), ("ask", "input_required")]:
        assert (await client.send_message(text))["result"]["status"]["state"] == state


# Task Structure and JSON-RPC Methods


async def call(url: str, method: str, params: Any = None) -> Any:
    payload = {"jsonrpc": "2.0", "method": method, "id": "1", "params": params or {}}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/a2a", json=payload) as response:
        assert response.status == 200
        return await response.json()


needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


async def curl(command: str, url: str) -> Any:
    """What the page's command prints, with the address of this server."""
    words = shlex.split(command.replace("http://localhost:8000", url))
    process = await asyncio.create_subprocess_exec(*words, "--silent", stdout=subprocess.PIPE)
    printed, _ = await process.communicate()
    return json.loads(printed)


GET = """curl -X POST http://localhost:8000/a2a \
-H "Content-Type: application/json" \
-d '{"jsonrpc": "2.0", "method": "tasks/get", "id": "1", "params": {"id": "task-uuid-123"}}'"""
LIST = """curl -X POST http://localhost:8000/a2a \
-H "Content-Type: application/json" \
-d '{"jsonrpc": "2.0", "method": "tasks/list", "id": "1", "params": {"contextId": "ctx-uuid-456"}}'"""
CANCEL = """curl -X POST http://localhost:8000/a2a \
-H "Content-Type: application/json" \
-d '{"jsonrpc": "2.0", "method": "tasks/cancel", "id": "1", "params": {"id": "task-uuid-123"}}'"""


@needs_curl
async def test_a_task_is_retrieved_as_the_page_shows_it(url: str) -> None:
    sent = await SimpleA2AClient(url).send_message("Hello", context_id="ctx-uuid-456")
    answer = await curl(GET.replace("task-uuid-123", sent["result"]["id"]), url)
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "1")
    task = answer["result"]
    assert (task["id"], task["contextId"]) == (sent["result"]["id"], "ctx-uuid-456")
    assert task["status"]["state"] == "completed"
    assert [(message["role"], message["parts"]) for message in task["history"]] == [
        ("user", [{"text": "Hello"}]),
        ("agent", [{"text": "Response to: Hello"}]),
    ]
    (artifact,) = task["artifacts"]
    assert artifact["artifactId"]
    assert artifact["parts"] == [{"text": "Response to: Hello"}]


@needs_curl
async def test_a_task_that_is_not_there_is_told_as_the_page_shows_it(url: str) -> None:
    assert await curl(GET, url) == {
        "jsonrpc": "2.0",
        "id": "1",
        "error": {"code": -32000, "message": "Task not found: task-uuid-123"},
    }


@needs_curl
async def test_the_interface_that_the_page_plans_lists_a_context(url: str) -> None:
    client = SimpleA2AClient(url)
    first = await client.send_message("one", context_id="ctx-uuid-456")
    second = await client.send_message("two", context_id="ctx-uuid-456")
    await client.send_message("elsewhere")
    listed = (await curl(LIST, url))["result"]
    assert {task["id"] for task in listed} == {first["result"]["id"], second["result"]["id"]}


async def test_the_server_lists_tasks_in_python_too(url: str, server: A2AServer) -> None:
    client = SimpleA2AClient(url)
    await client.send_message("one", context_id="ctx-uuid-456")
    await client.send_message("elsewhere")
    store = server.tasks
    # List all tasks
    all_tasks = await store.list()
    # Filter by context
    context_tasks = await store.list(context_id="ctx-uuid-456")
    assert (len(all_tasks), len(context_tasks)) == (2, 1)
    assert context_tasks[0].context_id == "ctx-uuid-456"


@needs_curl
async def test_a_task_is_cancelled_as_the_page_shows_it(url: str) -> None:
    sent = await SimpleA2AClient(url).send_message("ask")
    answer = await curl(CANCEL.replace("task-uuid-123", sent["result"]["id"]), url)
    assert (answer["jsonrpc"], answer["id"]) == ("2.0", "1")
    assert answer["result"]["id"] == sent["result"]["id"]
    assert answer["result"]["status"]["state"] == "cancelled"


# Python Client Implementation


class SimpleA2AClient:
    def __init__(self, base_url: str) -> None:
        self.base_url = base_url.rstrip("/") + "/a2a"

    async def send_message(self, text: str, context_id: str | None = None) -> Any:
        payload = {
            "jsonrpc": "2.0",
            "method": "message/send",
            "id": "1",
            "params": {"message": {"role": "user", "parts": [{"text": text}], "contextId": context_id}},
        }
        async with aiohttp.ClientSession() as session:
            async with session.post(self.base_url, json=payload) as response:
                return await response.json()

    async def get_task(self, task_id: str) -> Any:
        payload = {"jsonrpc": "2.0", "method": "tasks/get", "id": "2", "params": {"id": task_id}}
        async with aiohttp.ClientSession() as session:
            async with session.post(self.base_url, json=payload) as response:
                return await response.json()

    async def cancel_task(self, task_id: str) -> Any:
        payload = {"jsonrpc": "2.0", "method": "tasks/cancel", "id": "3", "params": {"id": task_id}}
        async with aiohttp.ClientSession() as session:
            async with session.post(self.base_url, json=payload) as response:
                return await response.json()


async def test_the_client_is_used_as_the_page_shows(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = SimpleA2AClient(url)
    # Send a message (creates a task)
    result = await client.send_message("Analyze this data")
    task_id = result["result"]["id"]
    context_id = result["result"]["contextId"]
    # Get task status
    task = await client.get_task(task_id)
    print(f"State: {task['result']['status']['state']}")
    # Cancel a task
    cancelled = await client.cancel_task(task_id)
    print(f"Cancelled: {cancelled['result']['status']['state']}")
    assert context_id
    assert capsys.readouterr().out.splitlines() == ["State: completed", "Cancelled: completed"]


# Task Store


@pytest.mark.parametrize("method", ["message/send", "message/stream"])
async def test_tasks_are_created_by_sends_and_streams(url: str, method: str) -> None:
    payload = {
        "jsonrpc": "2.0",
        "method": method,
        "id": "1",
        "params": {"message": {"role": "user", "parts": [{"text": "data"}]}},
    }
    async with aiohttp.ClientSession() as session, session.post(f"{url}/a2a", json=payload) as response:
        await response.read()
    (task,) = (await call(url, "tasks/list"))["result"]
    assert task["status"]["state"] == "completed"


async def test_each_task_gets_an_id_of_its_own(url: str) -> None:
    client = SimpleA2AClient(url)
    results = [await client.send_message("the same", context_id="c") for _ in range(3)]
    assert len({result["result"]["id"] for result in results}) == 3


async def test_the_history_has_both_sides_and_the_artifacts_the_output(url: str) -> None:
    task = (await SimpleA2AClient(url).send_message("data"))["result"]
    assert [message["role"] for message in task["history"]] == ["user", "agent"]
    assert task["artifacts"][0]["parts"] == task["history"][-1]["parts"] == [{"text": "Response to: data"}]


async def test_tasks_outlive_the_server_where_the_page_says_they_do_not(worker: Analyst, tmp_path: Any) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with serving(serve(worker, storage=storage).app) as url:
        sent = (await SimpleA2AClient(url).send_message("data"))["result"]
    async with serving(serve(worker, storage=storage).app) as url:
        assert (await SimpleA2AClient(url).get_task(sent["id"]))["result"] == sent


# Context-Based Conversations


async def test_a_conversation_shares_its_context(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    client = SimpleA2AClient(url)
    # First message: new context created
    r1 = await client.send_message("What is Python?")
    ctx = r1["result"]["contextId"]
    # Follow-up: same context
    r2 = await client.send_message("What about its GIL?", context_id=ctx)
    # Both tasks now share the same contextId for conversation tracking
    print(f"Context ID: {ctx}")
    print(f"First task: {r1['result']['id']}")
    print(f"Second task: {r2['result']['id']}")
    assert r2["result"]["contextId"] == ctx
    assert r2["result"]["id"] != r1["result"]["id"]
    assert len(capsys.readouterr().out.splitlines()) == 3


# Error Handling


@pytest.mark.parametrize(
    ("method", "params", "code", "message"),
    [
        ("tasks/get", {}, -32602, "Invalid params: 'id' required"),
        ("tasks/cancel", {}, -32602, "Invalid params: 'id' required"),
        ("tasks/get", {"id": "task-uuid-123"}, -32000, "Task not found: task-uuid-123"),
        ("tasks/cancel", {"id": "task-uuid-123"}, -32000, "Task not found: task-uuid-123"),
        ("tasks/unknown", {}, -32601, "Method not found: tasks/unknown"),
    ],
)
async def test_errors_have_the_codes_and_the_form_of_the_page(
    url: str, method: str, params: Any, code: int, message: str
) -> None:
    assert await call(url, method, params) == {
        "jsonrpc": "2.0",
        "id": "1",
        "error": {"code": code, "message": message},
    }


# Best Practices


async def test_the_state_tells_what_to_do(url: str) -> None:
    client = SimpleA2AClient(url)
    handled = []
    for text in ("data", "fail", "ask"):
        task_id = (await client.send_message(text))["result"]["id"]
        task = await client.get_task(task_id)
        state = task["result"]["status"]["state"]
        if state == "completed":
            handled.append("process results")
        elif state == "failed":
            handled.append("handle error")
        elif state == "input_required":
            handled.append("provide additional input")
    assert handled == ["process results", "handle error", "provide additional input"]


async def test_a_follow_up_stays_in_the_conversation(url: str) -> None:
    client = SimpleA2AClient(url)
    # Keep context for follow-up questions
    result = await client.send_message("Initial question")
    context_id = result["result"]["contextId"]
    follow_up = await client.send_message("Follow-up question", context_id=context_id)
    assert follow_up["result"]["contextId"] == context_id


async def safe_send_message(client: SimpleA2AClient, text: str) -> Any:
    try:
        response = await client.send_message(text)
        if "error" in response:
            print(f"A2A Error: {response['error']['message']}")
        return response
    except aiohttp.ClientError as e:
        print(f"HTTP Error: {e}")
        return None


async def test_errors_are_handled_gracefully(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (await safe_send_message(SimpleA2AClient(url), "data"))["result"]["status"]["state"] == "completed"
    unsayable: Any = None
    assert (await safe_send_message(SimpleA2AClient(url), unsayable))["error"]["code"] == -32602
    assert await safe_send_message(SimpleA2AClient("http://127.0.0.1:1"), "data") is None
    a2a_error, http_error = capsys.readouterr().out.splitlines()
    assert a2a_error.startswith("A2A Error: Invalid params: ")
    assert http_error.startswith("HTTP Error: ")
