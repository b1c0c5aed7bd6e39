"""`errands serve --role`: one process takes requests, another runs the tasks, and they meet in the store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from errands import A2AClient
from tests.unit.cli.processes import LongServed, Served, errands
from tests.unit.cli.programs import ECHO, write

pytestmark = pytest.mark.anyio

#: Says which process runs the turn, and how it was told to stop.
TELLING = """
import asyncio
import os
from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

class Telling(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(f"{os.getpid()}")
        while ctx.user_text == "hold" and not ctx.is_cancelled:
            await asyncio.sleep(0.01)
        if ctx.is_cancelled:
            await ctx.fail("told to stop")
        elif ctx.user_text == "ask":
            await ctx.request_input("Which?")
        else:
            await ctx.complete()

card = AgentCardConfig(name="Telling", description="Tells.", capabilities=CapabilitiesConfig(streaming=True))
server = A2AServer(worker=Telling(), agent_card=card)
"""


class Split(NamedTuple):
    api: Served
    worker: Served


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Split]:
    folder = tmp_path_factory.mktemp("split")
    program = write(folder, TELLING)
    with (
        LongServed(program, "--role", "api", cwd=folder) as api,
        LongServed(program, cwd=folder, role="worker") as worker,
    ):
        yield Split(api, worker)


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json"])
async def test_what_is_sent_to_the_api_is_run_by_the_worker(split: Split, protocol: str) -> None:
    async with A2AClient(split.api.url, protocol=protocol) as client:
        answer = await client.send("who")
        assert (answer.state, answer.text) == ("completed", str(split.worker.pid))


async def test_a_stream_through_the_api_shows_what_the_worker_does(split: Split) -> None:
    async with A2AClient(split.api.url) as client:
        events = [event.text or event.state async for event in client.stream("who")]
        assert events == ["submitted", "working", str(split.worker.pid), "completed"]


async def test_a_subscriber_of_the_api_sees_a_task_that_another_sent(split: Split) -> None:
    async with A2AClient(split.api.url) as client:
        task = await client.send("hold", blocking=False)
        events = client.subscribe(task.task_id, last_event_id="1")
        assert (await anext(events)).state == "working"
        assert (await anext(events)).text == str(split.worker.pid)
        await client.cancel(task.task_id)
        assert [event.state async for event in events] == ["canceled"]


async def test_a_cancel_asked_of_the_api_reaches_the_worker(split: Split) -> None:
    async with A2AClient(split.api.url) as client:
        stream = client.stream("hold")
        task_id = ""
        async for event in stream:
            task_id = event.task_id or task_id
            if event.text == str(split.worker.pid):
                break
        canceled = await client.cancel(task_id)
        assert canceled.raw_task is not None
        message = canceled.raw_task.status.message
        # By force there would be no message: the worker itself has ended its turn.
        assert (canceled.state, message and message.parts[0].text) == ("canceled", "told to stop")
        await stream.aclose()


async def test_a_question_is_answered_through_the_api(split: Split) -> None:
    async with A2AClient(split.api.url) as client:
        asked = await client.send("ask")
        assert asked.state == "input-required"
        answered = await client.send("this one", task_id=asked.task_id)
        assert answered.state == "completed"
        tasks = await client.list_tasks(context_id=asked.context_id)
        assert [task.task_id for task in tasks.tasks] == [asked.task_id]


async def test_the_api_never_runs_a_turn(tmp_path: Path) -> None:
    program = write(tmp_path, TELLING)
    with Served(program, "--role", "api", cwd=tmp_path, poll_interval="0.05") as api:
        async with A2AClient(api.url) as client:
            task = await client.send("who", blocking=False)
            assert task.state == "submitted"
            canceled = await client.send("who else", blocking=False)
            assert (await client.cancel(canceled.task_id)).state == "canceled"
            with Served(program, "--role", "worker", cwd=tmp_path) as worker:
                ended = [event async for event in client.subscribe(task.task_id)][-1]
                assert ended.state == "completed"
                assert (await client.get_task(task.task_id)).text == str(worker.pid)


def test_a_worker_answers_for_its_health_and_for_nothing_else(split: Split) -> None:
    assert "role     worker" in split.worker.greeting
    assert "Try:" not in split.worker.greeting
    url = split.worker.url
    assert httpx.get(f"{url}/health", timeout=None).status_code == 200
    assert httpx.get(f"{url}/health/ready", timeout=None).json() == {"status": "ready"}
    assert httpx.get(f"{url}/.well-known/agent-card.json", timeout=None).status_code == 404
    assert httpx.get(f"{url}/tasks", headers={"A2A-Version": "1.0"}, timeout=None).status_code == 404
    call = {"jsonrpc": "2.0", "id": 1, "method": "ListTasks", "params": {}}
    error = httpx.post(url, json=call, headers={"A2A-Version": "1.0"}, timeout=None).json()["error"]
    assert error["code"] == -32601
    assert "role worker" in error["message"]


@pytest.mark.parametrize("role", ["api", "worker"])
def test_a_store_that_nobody_else_can_see_is_refused(tmp_path: Path, role: str) -> None:
    options = ("--port", "0", "--role", role, "--storage", "memory")
    result = errands("serve", str(write(tmp_path, ECHO)), *options, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert f"storage 'memory' is private to one process, and a process with the role {role}" in result.stderr


def test_several_workers_run_beside_several_apis(tmp_path: Path) -> None:
    program = write(tmp_path, TELLING)
    with (
        Served(program, "--role", "api", "--workers", "2", cwd=tmp_path) as api,
        Served(program, "--role", "worker", "--workers", "2", cwd=tmp_path) as worker,
    ):
        for _ in range(4):
            assert errands("send", api.url, "who").returncode == 0
        assert (worker.stop().returncode, api.stop().returncode) == (0, 0)
