"""Whichever way a turn ends, its policy looks at what it shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from errands import (
    AgentExecutor,
    Artifact,
    EventQueue,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskContext,
    TaskState,
    TaskStatus,
    TaskUpdater,
    Worker,
)
from errands.policy.records import InputArrived, OutputGiven
from tests.unit.oversight.support import after, before, policy, reason, serving
from tests.unit.support import LIFECYCLE, Agent, Gate, heard, open_card, said, until_cancelled

pytestmark = pytest.mark.anyio

Execute = Callable[[RequestContext, EventQueue], Awaitable[None]]
REFUSE = after({"assert": "false", "error_message": "Refused."})
PASS = after({"assert": "true"})
SHOUT = after({"transform": "{'message': [output.message[0].text + '!']}"})


class Executor(AgentExecutor):
    def __init__(self, execute: Execute) -> None:
        self._execute = execute

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await self._execute(context, event_queue)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.cancel(updater.new_agent_message([Part(text="secret last words")]))


def updater_of(context: RequestContext, queue: EventQueue) -> TaskUpdater:
    return TaskUpdater(queue, context.task_id, context.context_id)


def words(updater: TaskUpdater, text: str) -> Message:
    return updater.new_agent_message([Part(text=text)])


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_every_end_of_a_worker_can_be_refused(method: str) -> None:
    async with serving(Agent(LIFECYCLE[method][0]), policy=REFUSE) as server:
        result = await server.client.send("hi")
        assert (result.state, said(result), reason(result)) == ("rejected", "Refused.", "restricted")


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_every_end_of_a_worker_is_as_it_was_when_it_passes(method: str) -> None:
    handle, state = LIFECYCLE[method]
    async with serving(Agent(handle)) as server:
        free = await server.client.send("hi")
    async with serving(Agent(handle), policy=PASS) as server:
        guarded = await server.client.send("hi")
        assert (guarded.state, guarded.text, guarded.data) == (free.state, free.text, free.data)
        assert (guarded.raw_task is None) == (free.raw_task is None)
        assert guarded.state == state


async def answers(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(Message(message_id="m", role=Role.AGENT, parts=[Part(text="hello")]))


async def pauses(context: RequestContext, queue: EventQueue) -> None:
    updater = updater_of(context, queue)
    await updater.start_work(words(updater, "secret thoughts"))
    await updater.requires_input(words(updater, "hello"))


async def wants_authentication(context: RequestContext, queue: EventQueue) -> None:
    updater = updater_of(context, queue)
    await updater.requires_auth(words(updater, "hello"))


async def publishes_a_task(context: RequestContext, queue: EventQueue) -> None:
    await queue.enqueue_event(
        Task(
            id=context.task_id or "",
            context_id=context.context_id,
            status=TaskStatus(state=TaskState.COMPLETED),
            artifacts=[Artifact(artifact_id="a", parts=[Part(text="hello")])],
        )
    )


async def speaks_with_an_id_that_is_known(context: RequestContext, queue: EventQueue) -> None:
    updater = updater_of(context, queue)
    known = context.message.message_id if context.message is not None else ""
    await updater.requires_auth(Message(message_id=known, role=Role.AGENT, parts=[Part(text="hello")]))
    await updater.complete()


async def fails(context: RequestContext, queue: EventQueue) -> None:
    updater = updater_of(context, queue)
    await updater.failed(words(updater, "hello"))


ENDS: dict[str, tuple[Execute, str]] = {
    "message": (answers, "completed"),
    "input": (pauses, "input-required"),
    "auth": (wants_authentication, "auth-required"),
    "task": (publishes_a_task, "completed"),
    "failure": (fails, "failed"),
}


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_an_executor_can_be_refused(end: str) -> None:
    async with serving(Executor(ENDS[end][0]), policy=REFUSE) as server:
        result = await server.client.send("hi")
        assert (result.state, said(result)) == ("rejected", "Refused.")
        assert "hello" not in str(result.raw_task)
        assert "secret" not in str(result.raw_task)


async def test_words_by_an_id_that_is_known_are_looked_at() -> None:
    rules = after({"assert": "!output.message.exists(part, part.text == 'hello')", "error_message": "Refused."})
    async with serving(Executor(speaks_with_an_id_that_is_known), policy=rules) as server:
        result = await server.client.send("hi")
        assert (result.state, said(result)) == ("rejected", "Refused.")
        assert "hello" not in str(result.raw_task)


@pytest.mark.parametrize("end", ENDS)
async def test_every_end_of_an_executor_passes_and_can_be_changed(end: str) -> None:
    for rules, text in ((PASS, "hello"), (SHOUT, "hello!")):
        async with serving(Executor(ENDS[end][0]), policy=rules) as server:
            result = await server.client.send("hi")
            assert (result.state, result.text) == (ENDS[end][1], text)
            assert (result.raw_task is None) == (end == "message")


async def test_the_last_words_of_a_canceled_executor_are_not_shown() -> None:
    gate = Gate()

    async def waits(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        await gate()

    async with serving(Executor(waits), policy=PASS) as server:
        sent = await server.client.send("hi", blocking=False)
        await gate.reached.wait()
        result = await server.client.cancel(sent.task_id or "")
        assert (result.state, said(result)) == ("canceled", None)


async def test_a_worker_that_is_canceled_shows_nothing_that_was_held_back() -> None:
    begun = asyncio.Event()

    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("half of it")
        begun.set()
        await until_cancelled(ctx)

    async with serving(Agent(handle), policy=PASS) as server:
        sent = await server.client.send("hi", blocking=False)
        await begun.wait()
        result = await server.client.cancel(sent.task_id or "")
        assert (result.state, result.artifacts) == ("canceled", [])


async def test_files_go_through_a_transform_as_they_are() -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append([file.content for file in ctx.files])
        await ctx.emit_artifact(artifact_id="copy", file_bytes=ctx.files[0].content, filename="copy.bin")
        await ctx.complete("and some words")

    rules = policy(
        guardrails={
            "before": [{"transform": "{'message': input.message.filter(part, has(part.file))}"}],
            "after": [{"transform": "{'message': [output.message[0]]}"}],
        }
    )
    async with serving(Agent(handle), policy=rules, agent_card=open_card()) as server:
        result = await server.client.send([Part(text="look"), Part(raw=b"abc", filename="a.bin")])
        assert seen == [[b"abc"]]
        assert result.raw_task is not None
        [artifact] = result.raw_task.artifacts or []
        assert [(part.raw, part.filename) for part in artifact.parts] == [(b"abc", "copy.bin")]


async def test_a_message_that_waited_has_its_own_input_and_answer() -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        if ctx.user_text == "one":
            await gate()
        await ctx.request_input(f"{ctx.user_text}?")

    async with serving(Agent(handle), policy=PASS) as server:
        sent = await server.client.send("one", blocking=False)
        task_id = sent.task_id or ""
        await gate.reached.wait()
        waiting = asyncio.create_task(server.client.send("two", task_id=task_id))
        await heard(server.client, task_id, "two")
        gate.open()
        assert said(await waiting) == "two?"
        records = await server.records(sent)
        values = [record.values for record in records if isinstance(record, InputArrived | OutputGiven)]
        assert [value["message"][0]["text"] for value in values] == ["one", "one?", "two", "two?"]


class Listener(Worker):
    """Wants to be told when a task that waits is canceled."""

    hears_cancel = True

    def __init__(self) -> None:
        self.heard: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.heard.append("cancel" if ctx.is_cancelled else ctx.user_text)
        if not ctx.is_cancelled:
            await ctx.request_input("And?")


async def test_a_worker_hears_that_a_task_is_canceled_which_it_was_allowed_to_see() -> None:
    listener = Listener()
    async with serving(listener, policy=PASS) as server:
        asked = await server.client.send("hi")
        assert (await server.client.cancel(asked.task_id or "")).state == "canceled"
        assert listener.heard == ["hi", "cancel"]
    listener = Listener()
    async with serving(listener, policy=before({"assert": "review('bob')"})) as server:
        waiting = await server.client.send("hi")
        assert (await server.client.cancel(waiting.task_id or "")).state == "canceled"
        assert listener.heard == []
