"""`A2AClient` over gRPC: found by the card, used like over every other binding."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from errands import A2AClient, Worker
from errands.errors import TaskNotFoundError, UnsupportedOperationError
from errands.testing import connect, serve
from tests.interaction.agents import Asks, Echo, Gated

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def connected(agent: Worker, version: str, **options: Any) -> AsyncIterator[A2AClient]:
    server = serve(agent, grpc_port=0, **options)
    async with connect(server, client={"protocol": "grpc", "version": version}) as client:
        assert client.protocol == "grpc"
        yield client


async def test_a_client_finds_grpc_on_the_card(version: str) -> None:
    async with connected(Echo(), version) as client:
        result = await client.send("hi")
        assert result.text == "Echo: hi"
        assert (await client.get_task(result.task_id)).completed
        with pytest.raises(TaskNotFoundError):
            await client.get_task("nobody")


async def test_a_client_streams_and_subscribes(version: str) -> None:
    worker = Gated()
    async with connected(worker, version) as client:
        sent = await client.send("hi", blocking=False)
        await worker.started.wait()
        texts = []
        async for event in client.subscribe(sent.task_id):
            texts.append(event.text)
            worker.gate.set()
        assert texts[:2] == ["first ", "second"]
        assert "".join([piece async for piece in client.stream_text("again")]) == "first second"


async def test_a_conversation_goes_on(version: str) -> None:
    async with connected(Asks(), version) as client:
        conversation = client.conversation()
        assert (await conversation.send("hello")).input_required
        assert (await conversation.send("French")).text == "hello in French"


async def test_tasks_are_listed_where_the_version_can(version: str) -> None:
    async with connected(Echo(), version) as client:
        await client.send("hi")
        if version == "1.0":
            assert (await client.list_tasks()).total_size == 1
        else:
            with pytest.raises(UnsupportedOperationError):
                await client.list_tasks()
