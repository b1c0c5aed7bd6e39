"""`ctx.send_status(message=None)`: emit an intermediate progress update while the task keeps working."""

from __future__ import annotations

import pytest

from errands import TaskContext, TaskStatus, TurnError
from errands.model.log import Change, Head
from errands.testing import connect, serve
from tests.unit.support import Agent, Gate, first, log_of, reaches, run, running, said, signature, spoken, stream

pytestmark = pytest.mark.anyio


class Tells:
    """A handler that tells this, and is then held at a gate."""

    def __init__(self, text: str) -> None:
        self.gate = Gate()
        self._text = text

    async def __call__(self, ctx: TaskContext) -> None:
        await ctx.send_status(self._text)
        await self.gate()
        await ctx.complete()


def test_send_status_has_the_documented_signature() -> None:
    assert signature(TaskContext.send_status) == "(message=None)"


async def test_the_task_stays_in_working_state(storage: str) -> None:
    handle = Tells("Downloading dataset...")
    async with running(handle, storage) as client:
        task = await client.send("hi", blocking=False)
        await handle.gate.reached.wait()
        assert (await client.get_task(task.task_id)).state == "working"
        handle.gate.open()


async def test_subscribers_see_the_update_immediately(storage: str) -> None:
    handle = Tells("Downloading dataset...")
    async with running(handle, storage) as client:
        async for event in client.stream("hi"):
            if event.text == "Downloading dataset...":
                assert (event.kind, event.state, event.is_final) == ("status", "working", False)
                handle.gate.open()
    assert event.state == "completed"


async def test_a_message_is_persisted_so_that_polling_clients_can_see_progress(storage: str) -> None:
    handle = Tells("Analyzing 10,000 rows...")
    async with running(handle, storage) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await first(client.subscribe(task_id), lambda event: event.text == "Analyzing 10,000 rows...")
        assert said(await client.get_task(task_id)) == "Analyzing 10,000 rows..."
        handle.gate.open()
        await reaches(client, task_id, "completed")


async def test_without_a_message_only_a_bare_working_event_is_broadcast(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status()
        await ctx.complete()

    events = await stream(handle, storage=storage)
    assert [(event.kind, event.state, event.text) for event in events] == [
        ("task", "submitted", None),
        ("status", "working", None),
        ("status", "working", None),
        ("status", "completed", None),
    ]


async def test_without_a_message_nothing_is_stored(storage: str) -> None:
    server = serve(Agent(bare := Bare()), storage=storage)
    async with connect(server) as client:
        task_id = (await client.send("hi", blocking=False)).task_id
        await bare.begun.reached.wait()
        written: list[Change] = []
        commit = server.engine.commit

        async def noted(change: Change) -> Head:
            written.append(change)
            return await commit(change)

        server.engine.commit = noted  # type: ignore[method-assign]
        shown = client.subscribe(task_id)
        await anext(shown)
        bare.begun.open()
        event = await anext(shown)
        assert (event.kind, event.state, event.text, event.event_id) == ("status", "working", None, None)
        assert written == []
        bare.end.open()
        assert [event.state async for event in shown] == ["completed"]
        kinds = [event.kind for event in await log_of(server.engine, task_id)]
    assert kinds == ["task", "status", "status"]


class Bare:
    """A handler that gives ten signs of life between two gates."""

    def __init__(self) -> None:
        self.begun, self.end = Gate(), Gate()

    async def __call__(self, ctx: TaskContext) -> None:
        await self.begun()
        for _ in range(10):
            await ctx.send_status()
        await self.end()
        await ctx.complete()


async def test_a_stream_that_is_resumed_after_a_sign_of_life_misses_nothing(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("one")
        await ctx.send_status()
        await ctx.emit_text_artifact("two", append=True)
        await ctx.complete()

    async with running(handle, storage) as client:
        events = [event async for event in client.stream("hi")]
        ids = [event.event_id for event in events if event.event_id is not None]
        again = [event async for event in client.subscribe(events[0].task_id or "", last_event_id=ids[1])]
    assert [event.event_id for event in again] == ids[2:]


async def test_without_a_message_the_stored_status_stays_as_it_is(storage: str) -> None:
    middle, end = Gate(), Gate()
    stored: list[TaskStatus] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("half way")
        await middle()
        await ctx.send_status()
        await ctx.emit_text_artifact("after both")
        await end()
        await ctx.complete()

    async with running(handle, storage) as client:
        async for event in client.stream("hi"):
            if event.text in ("half way", "after both"):
                task = (await client.get_task(event.task_id or "")).raw_task
                assert task is not None
                stored.append(task.status)
                (middle if len(stored) == 1 else end).open()
    assert stored[0].message is not None
    assert stored[0] == stored[1]


async def test_updates_arrive_in_the_order_they_were_sent_and_between_the_artifacts(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("one")
        await ctx.emit_text_artifact("two")
        await ctx.send_status("three")
        await ctx.complete("four")

    events = await stream(handle, storage=storage)
    assert [event.text for event in events if event.text] == ["one", "two", "three", "four"]


async def test_progress_is_not_part_of_the_conversation(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("half way")
        await ctx.respond("done")

    assert spoken(await run(handle, storage=storage)) == ["hi", "done"]


async def test_the_last_progress_does_not_outlive_the_turn(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("half way")
        await ctx.complete()

    result = await run(handle, storage=storage)
    assert result.completed
    assert said(result) is None


async def test_after_the_turn_has_ended_there_is_no_more_progress_to_send() -> None:
    errors: list[TurnError] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete("done")
        try:
            await ctx.send_status("too late")
        except TurnError as error:
            errors.append(error)
        try:
            await ctx.send_status()
        except TurnError as error:
            errors.append(error)

    assert (await run(handle)).completed
    assert len(errors) == 2
