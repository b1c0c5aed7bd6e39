"""`ctx.metadata`: arbitrary metadata forwarded from the request, persisted from `message.metadata`."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.testing import http_client, serve
from tests.unit.support import Agent, run, running

pytestmark = pytest.mark.anyio


async def echo_metadata(ctx: TaskContext) -> None:
    await ctx.complete_json(ctx.metadata)


async def test_metadata_is_forwarded_from_the_message(storage: str) -> None:
    metadata = {"trace": "abc", "tags": ["a", "b"], "depth": {"n": 2**53 + 1}}
    assert (await run(echo_metadata, storage=storage, metadata=metadata)).data == metadata


async def test_metadata_is_an_empty_dict_when_the_message_has_none() -> None:
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.metadata)
        await ctx.complete()

    await run(handle)
    assert seen == [{}]


async def test_metadata_is_persisted_with_the_message(storage: str) -> None:
    async with running(echo_metadata, storage) as client:
        sent = await client.send("hi", metadata={"trace": "abc"})
        task = (await client.get_task(sent.task_id)).raw_task
    assert task is not None
    assert task.history is not None
    assert task.history[0].metadata == {"trace": "abc"}


async def test_metadata_of_a_later_turn_is_that_of_the_follow_up(storage: str) -> None:
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.metadata)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one", metadata={"turn": 1})
        await client.send("two", task_id=first.task_id, metadata={"turn": 2})
    assert seen == [{"turn": 1}, {"turn": 2}]


async def test_metadata_of_the_message_is_not_mixed_with_that_of_the_request(storage: str) -> None:
    seen: list[object] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend([ctx.metadata, ctx.request_metadata])
        await ctx.complete()

    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}], "metadata": {"of": "the message"}}
    server = serve(Agent(handle), storage=storage)
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json={"message": message, "metadata": {"of": "the request"}})
    assert answer.status_code == 200
    assert seen == [{"of": "the message"}, {"of": "the request"}]
