"""`ctx.reply_directly(text)`: return a Message response instead of a Task response."""

from __future__ import annotations

from typing import Any

import pytest

from errands import TaskContext
from errands.testing import connect, http_client, serve
from tests.unit.support import Agent, Gate, reaches, run, running, signature, stream

pytestmark = pytest.mark.anyio

MESSAGE: dict[str, Any] = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "time?"}]}


async def tell_time(ctx: TaskContext) -> None:
    await ctx.reply_directly("Current time: 12:00")


def test_reply_directly_has_the_documented_signature() -> None:
    assert signature(TaskContext.reply_directly) == "(text)"


async def test_the_http_response_to_send_is_a_message_instead_of_a_task(storage: str) -> None:
    server = serve(Agent(tell_time), storage=storage)
    async with server, http_client(server) as http:
        answer = (await http.post("/message:send", json={"message": MESSAGE})).json()
    assert list(answer) == ["message"]
    assert answer["message"]["parts"] == [{"text": "Current time: 12:00"}]
    assert answer["message"]["role"] == "ROLE_AGENT"


async def test_the_json_rpc_response_to_send_is_a_message_instead_of_a_task(storage: str) -> None:
    server = serve(Agent(tell_time), storage=storage)
    body = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}
    async with server, http_client(server) as http:
        answer = (await http.post("/", json=body)).json()
    assert list(answer["result"]) == ["message"]
    assert answer["result"]["message"]["parts"] == [{"text": "Current time: 12:00"}]


async def test_the_client_receives_only_the_message(storage: str) -> None:
    result = await run(tell_time, storage=storage)
    assert result.raw_task is None
    assert result.raw_message is not None
    assert result.text == "Current time: 12:00"


async def test_the_task_is_still_created_internally_for_lifecycle_management(storage: str) -> None:
    async with running(tell_time, storage) as client:
        message = (await client.send("time?")).raw_message
        page = await client.list_tasks()
    assert message is not None
    assert [(task.task_id, task.state) for task in page.tasks] == [(message.task_id, "completed")]


async def test_over_stream_it_falls_back_to_the_standard_task_lifecycle(storage: str) -> None:
    events = await stream(tell_time, storage=storage)
    assert [(event.kind, event.state) for event in events] == [
        ("task", "submitted"),
        ("status", "working"),
        ("status", "completed"),
    ]
    assert events[-1].text == "Current time: 12:00"


async def test_a_caller_that_did_not_wait_gets_the_task(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await tell_time(ctx)

    async with running(handle, storage) as client:
        task = await client.send("time?", blocking=False)
        gate.open()
        later = await reaches(client, task.task_id, "completed")
    assert task.raw_task is not None
    assert later.text == "Current time: 12:00"


async def test_only_the_turn_that_replied_directly_is_answered_with_a_message(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await (ctx.reply_directly("aside") if ctx.user_text == "one" else ctx.complete("result"))

    server = serve(Agent(handle), storage=storage)
    async with connect(server) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False, message_id="m2")
        gate.open()
        await reaches(client, task_id, "completed")
        again = await client.send("two", task_id=task_id, message_id="m2")
    assert again.raw_task is not None
    assert again.text == "result"
