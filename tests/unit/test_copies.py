"""What programs around an agent are handed is theirs, and what they change is checked: middleware, `server.tasks`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from errands import A2AMiddleware, Message, Part, RequestEnvelope, Task, TaskStatus
from errands.errors import InternalError
from errands.model.core import Role, TaskState
from errands.runtime.validation import own_task
from errands.testing import connect, serve
from tests.unit.support import Agent, running

pytestmark = pytest.mark.anyio


async def test_request_metadata_that_a_handler_changes_is_not_that_of_the_next_request(storage: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handle(ctx: Any) -> None:
        seen.append(dict(ctx.request_metadata))
        ctx.request_metadata["secret"] = ctx.user_text
        seen.append(dict(ctx.request_metadata))
        await ctx.complete()

    async with running(handle, storage) as client:
        await client.send("one")
        await client.send("two")
    assert seen == [{}, {"secret": "one"}, {}, {"secret": "two"}]


def spoil(task: Task) -> None:
    assert task.status.message is not None
    assert task.history is not None
    task.status.message.parts[0].text = "spoiled"
    task.history.clear()


async def test_tasks_that_a_program_changes_are_not_changed_in_the_store(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.request_input("Which?")), storage=storage)
    async with connect(server) as client:
        asked = await client.send("begin")
        spoil(await server.tasks.get(asked.task_id))
        spoil((await server.tasks.list())[0])
        kept = (await client.get_task(asked.task_id)).raw_task
        assert kept is not None
        assert [message.parts[0].text for message in kept.history or ()] == ["begin", "Which?"]


async def test_an_answer_that_middleware_changes_is_not_changed_in_the_store(storage: str) -> None:
    class Spoils(A2AMiddleware):
        async def after_dispatch(self, envelope: RequestEnvelope, result: Task | Message | None = None) -> None:
            assert isinstance(result, Task)
            spoil(result)
            assert envelope.params is not None
            envelope.params.message.parts.clear()

    server = serve(Agent(lambda ctx: ctx.request_input("Which?")), storage=storage, middlewares=[Spoils()])
    async with connect(server) as client:
        asked = await client.send("begin")
        assert asked.text == "spoiled"
        kept = await server.tasks.get(asked.task_id)
        assert [message.parts[0].text for message in kept.history or ()] == ["begin", "Which?"]


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


CHANGES: dict[str, Callable[[Any], object]] = {
    "a number as text": lambda envelope: setattr(envelope.params.message.parts[0], "text", 5),
    "no part": lambda envelope: envelope.params.message.parts.append("x"),
    "metadata of a message": lambda envelope: setattr(envelope.params.message, "metadata", [1]),
    "deep metadata": lambda envelope: setattr(envelope.params.message, "metadata", {"deep": nested(200)}),
    "metadata of the request": lambda envelope: setattr(envelope.params, "metadata", "x"),
    "configuration": lambda envelope: setattr(envelope.params, "configuration", 5),
    "the request": lambda envelope: setattr(envelope, "params", {"message": "x"}),
    "owner": lambda envelope: setattr(envelope, "owner", 5),
    "an owner that is not text": lambda envelope: setattr(envelope, "owner", "\ud800"),
    "tenant": lambda envelope: setattr(envelope, "tenant", None),
    "email": lambda envelope: setattr(envelope, "email", "\ud800"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_what_middleware_puts_into_a_request_and_cannot_be_stored_is_refused(change: str, storage: str) -> None:
    class Changes(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            if envelope.params is not None:
                CHANGES[change](envelope)

    server = serve(Agent(lambda ctx: ctx.complete()), storage=storage, middlewares=[Changes()])
    async with connect(server) as client:
        with pytest.raises(InternalError):
            await client.send("hi")
        assert await server.tasks.list() == []


async def test_middleware_does_not_lower_the_depth_that_requests_may_have(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.complete()), storage=storage, middlewares=[A2AMiddleware()])
    async with connect(server) as client:
        assert (await client.send("hi", metadata={"deep": nested(90)})).state == "completed"


def test_copies_share_nothing_that_can_change() -> None:
    part = Part(data={"list": []}, metadata={"a": {}})
    message = Message(message_id="m", role=Role.AGENT, parts=[part, Part(text="x"), Part(raw=b"x")], metadata={"a": {}})
    status = TaskStatus(state=TaskState.WORKING, message=message)
    task = Task(id="t", status=status, history=[message], metadata={"deep": {}})
    copied, before = own_task(task), msgspec.json.encode(task)
    assert copied == task
    assert copied.status.message is not None
    assert copied.history is not None
    assert copied.metadata is not None
    for own in (copied.status.message, *copied.history):
        assert isinstance(own.parts[0].data, dict)
        assert own.parts[0].metadata is not None
        assert own.metadata is not None
        own.parts[0].data["list"].append("more")
        own.parts[0].metadata["a"]["more"] = 1
        own.metadata["a"]["more"] = 1
        own.parts.clear()
    copied.history.clear()
    copied.metadata["deep"]["more"] = 1
    assert msgspec.json.encode(task) == before
