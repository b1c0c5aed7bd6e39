"""Metadata of what comes in: whatever an agent can read, guardrails can."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from errands import AgentExecutor, EventQueue, Message, Part, RequestContext, TaskContext
from errands.model.core import COMPLETED, Role
from errands.model.requests import SendMessageRequest
from errands.runtime.call import CallContext
from tests.unit.oversight.support import HANDLERS, after, before, echoes, reason, serving
from tests.unit.support import ANYBODY, Agent

pytestmark = pytest.mark.anyio


def a_message(metadata: Any = None, part: Any = None) -> Message:
    return Message(message_id="m-1", role=Role.USER, parts=[Part(text="hi", metadata=part)], metadata=metadata)


@pytest.mark.parametrize("kind", HANDLERS)
@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("!has(input.metadata) || input.metadata.level < 3", a_message({"level": 3})),
        ("input.message.all(p, !has(p.metadata) || p.metadata.from == 'us')", a_message(part={"from": "them"})),
    ],
)
async def test_guardrails_see_the_metadata_of_messages_and_parts(kind: str, rule: str, message: Message) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)[kind], policy=before({"assert": rule, "error_message": "No."})) as server:
        result = await server.client.send(message)
        assert (result.state, result.text, reason(result)) == ("rejected", "No.", "restricted")
        assert heard == []
        assert (await server.client.send("hi")).state == "completed"


async def test_guardrails_see_the_metadata_of_the_request() -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.request_metadata)
        await ctx.complete("ok")

    rule = before({"assert": "!has(input.request_metadata) || input.request_metadata.trace == 'a'"})
    async with serving(Agent(handle), policy=rule) as server:
        for trace in ("a", "b"):
            message = msgspec.structs.replace(a_message(), message_id=trace)
            request = SendMessageRequest(message=message, metadata={"trace": trace})
            await server._server.task_manager.send_message(request, CallContext(scope=ANYBODY))
        assert seen == [{"trace": "a"}]


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
@pytest.mark.parametrize(
    ("transform", "left"),
    [
        ("{'message': input.message, 'request_metadata': {'trace': 'b'}}", {"trace": "b"}),
        ("input.put('request_metadata', input.request_metadata.put('seen', true))", {"trace": "a", "seen": True}),
        ("{'message': input.message, 'request_metadata': {}}", {}),
        ("{'message': input.message, 'request_metadata': null}", {}),
        ("{'message': input.message}", {"trace": "a"}),
    ],
)
async def test_a_transform_may_change_the_metadata_of_the_request(
    tmp_path: Path, storage: str, transform: str, left: Any
) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.request_metadata)
        await ctx.complete("ok")

    url = "memory" if storage == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"
    async with serving(Agent(handle), policy=before({"transform": transform}), storage=url) as server:
        request = SendMessageRequest(message=a_message(), metadata={"trace": "a"})
        await server._server.task_manager.send_message(request, CallContext(scope=ANYBODY))
    assert seen == [left]


async def test_executors_are_given_the_metadata_of_the_request_as_a_transform_left_it() -> None:
    seen: list[Any] = []

    class Looking(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            seen.append(context.metadata)
            await event_queue.enqueue_event(Message(message_id="a", role=Role.AGENT, parts=[Part(text="ok")]))

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise AssertionError("nobody cancels")

    rule = before({"transform": "{'message': input.message, 'request_metadata': {'trace': 'b'}}"})
    async with serving(Looking(), policy=rule) as server:
        request = SendMessageRequest(message=a_message(), metadata={"trace": "a"})
        await server._server.task_manager.send_message(request, CallContext(scope=ANYBODY))
    assert seen == [{"trace": "b"}]


TRANSFORMS: list[tuple[str, tuple[Any, Any]]] = [
    ("{'message': [{'text': 'x'}]}", ({"a": 1}, None)),
    ("{'message': input.message}", ({"a": 1}, {"b": 2})),
    ("{'message': input.message, 'metadata': {'a': 2}}", ({"a": 2}, {"b": 2})),
    ("{'message': input.message, 'metadata': {}}", ({}, {"b": 2})),
    ("{'message': [input.message[0].put('metadata', {'b': 3})]}", ({"a": 1}, {"b": 3})),
]


@pytest.mark.parametrize(("transform", "left"), TRANSFORMS)
async def test_a_transform_may_change_metadata_and_leaves_what_it_does_not_name(
    transform: str, left: tuple[Any, Any]
) -> None:
    seen: list[tuple[Any, Any]] = []

    async def handle(ctx: TaskContext) -> None:
        assert (ctx.message.metadata or {}) == ctx.metadata
        seen.append((ctx.metadata, ctx.parts[0].metadata))
        await ctx.complete("ok")

    async with serving(Agent(handle), policy=before({"transform": transform})) as server:
        await server.client.send(a_message({"a": 1}, {"b": 2}))
    assert seen == [left]


async def test_metadata_of_a_request_that_is_no_map_ends_the_task() -> None:
    rule = before({"transform": "{'message': input.message, 'request_metadata': [1]}"})
    async with serving(Agent(lambda ctx: ctx.complete("ok")), policy=rule) as server:
        result = await server.client.send("hi")
        assert (result.state, reason(result)) == ("rejected", "restricted")


@pytest.mark.parametrize("made", ["'metadata': 7}", "'metadata': 'x'}"])
async def test_metadata_that_is_no_map_ends_the_task(made: str) -> None:
    for transform in (f"{{'message': input.message, {made}", f"{{'message': [{{'text': 'x', {made}]}}"):
        async with serving(Agent(lambda ctx: ctx.complete("ok")), policy=before({"transform": transform})) as server:
            result = await server.client.send("hi")
            assert (result.state, reason(result)) == ("rejected", "restricted")


async def test_guardrails_see_the_metadata_of_parts_that_go_out() -> None:
    async def handle(ctx: TaskContext) -> None:
        part = Part(text="here", metadata={"source": ctx.user_text})
        await ctx._turn.end(COMPLETED, message=Message(message_id="a-1", role=Role.AGENT, parts=[part]))

    rule = after({"assert": "output.message.all(p, !has(p.metadata) || p.metadata.source != 'secret')"})
    async with serving(Agent(handle), policy=rule) as server:
        assert (await server.client.send("secret")).state == "rejected"
        assert (await server.client.send("known")).state == "completed"
