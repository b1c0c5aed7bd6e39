"""PraisonAI's dialect: a stream has named events and ends with `done`."""

from __future__ import annotations

import asyncio
import json

import pytest

from errands import CapabilitiesConfig, Settings
from errands.testing import serve
from tests.interaction.agents import Asks, Direct, Echo, Gated, Patient, card
from tests.interaction.praisonai import praison, say, texts

pytestmark = pytest.mark.anyio


async def test_a_stream_has_named_events_without_envelope_and_ends_with_done(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        events = await client.stream("hi")
        assert [event.event for event in events] == ["task.status"] * 2 + ["task.artifact", "task.status", "done"]
        assert {event.id for event in events} == {None}
        bodies = [json.loads(event.data) for event in events]
        assert [body["status"]["state"] for body in bodies if "status" in body] == ["submitted", "working", "completed"]
        assert [body["final"] for body in bodies if "status" in body] == [False, False, True]
        task_id, context_id = bodies[0]["taskId"], bodies[0]["contextId"]
        assert all((body["taskId"], body["contextId"]) == (task_id, context_id) for body in bodies[:-1])
        assert bodies[2]["artifact"]["parts"] == [{"text": "Echo: hi"}]
        assert (bodies[2]["append"], bodies[2]["lastChunk"]) == (False, True)
        assert bodies[-1] == {}
        stored = await client.result("tasks/get", {"id": task_id})
        assert stored["status"] == bodies[-2]["status"]
        assert stored["artifacts"] == [bodies[2]["artifact"]]


async def test_a_streamed_message_is_an_artifact_too() -> None:
    async with praison(Direct()) as client:
        bodies = [json.loads(event.data) for event in await client.stream()]
        (artifact,) = [body["artifact"] for body in bodies if "artifact" in body]
        assert texts(artifact) == ["You said hi"]
        stored = await client.result("tasks/get", {"id": bodies[0]["taskId"]})
        assert stored["artifacts"] == [artifact]


async def test_a_stream_of_a_question_ends_when_it_is_asked() -> None:
    async with praison(Asks()) as client:
        *_, last, done = await client.stream()
        assert json.loads(last.data)["status"]["state"] == "input_required"
        assert json.loads(last.data)["final"] is True
        assert done.event == "done"


async def test_pieces_of_an_artifact_are_streamed_as_they_come() -> None:
    worker = Gated()
    worker.gate.set()
    async with praison(worker) as client:
        pieces = [json.loads(event.data) for event in await client.stream() if event.event == "task.artifact"]
        assert [(texts(p["artifact"]), p["append"], p["lastChunk"]) for p in pieces] == [
            (["first "], False, False),
            (["second"], True, True),
        ]


async def test_a_message_streamed_again_shows_its_task_as_it_is() -> None:
    async with praison(Echo()) as client:
        await client.stream(messageId="m-1", contextId="c")
        events = await client.stream(messageId="m-1", contextId="c")
        assert [event.event for event in events] == ["task.artifact", "task.status", "done"]


async def test_a_stream_that_the_server_ends_early_is_not_done() -> None:
    worker = Patient()
    server = serve(worker, settings=Settings(drain_timeout=0.01))
    async with praison(server) as client:
        streaming = asyncio.create_task(client.stream())
        await worker.started.wait()
        server.engine.disconnect()
        events = [event.event for event in await streaming]
    assert (events[-1], "done" in events) == ("error", False)


async def test_an_agent_that_does_not_stream_says_so() -> None:
    async with praison(Echo(), agent_card=card(capabilities=CapabilitiesConfig())) as client:
        code, message = await client.refused("message/stream", {"message": say()})
        assert (code, "does not stream" in message) == (-32004, True)
