"""One execution per request; what becomes of exceptions, of returning without an end, and of the queue afterwards."""

from __future__ import annotations

import pytest

from errands import EventQueue, InvalidAgentResponseError, RequestContext, TaskState, TurnError
from tests.unit.executor.agents import executing, updater_of, words
from tests.unit.support import Gate, reaches, said
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_the_framework_guarantees_single_execution_per_request(storage: str) -> None:
    executed: list[str] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        executed.append(context.get_user_input())
        await updater_of(context, queue).complete(words("done"))

    async with executing(execute, storage) as client:
        for text in ("one", "two"):
            await client.send(text, message_id=text)
        await client.send("two", message_id="two")  # sent again
    assert executed == ["one", "two"]


async def test_execute_is_not_called_concurrently_for_the_same_task(storage: str) -> None:
    gate = Gate()
    running: list[str] = []
    seen: list[list[str]] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        running.append(context.get_user_input())
        seen.append(list(running))
        await updater_of(context, queue).requires_input(words("more?"))
        await gate()  # the caller has its answer already, and may send on
        running.remove(context.get_user_input())

    async with executing(execute, storage) as client:
        asked = await client.send("one")
        assert asked.state == "input-required"
        await client.send("two", task_id=asked.task_id, blocking=False)
        gate.open()
        await client.send("three", task_id=asked.task_id)
    assert seen == [["one"], ["two"], ["three"]]


async def test_an_unhandled_exception_fails_the_task(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).start_work()
        raise RuntimeError("a secret")

    async with executing(execute, storage) as client:
        failed = await client.send("hi")
    assert failed.state == "failed"
    assert (said(failed) or "").startswith("The agent failed unexpectedly (reference ")


async def test_an_exception_before_anything_was_published_fails_the_task(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        raise RuntimeError

    async with executing(execute, storage) as client:
        assert (await client.send("hi")).state == "failed"
        assert (await client.send("hi", blocking=False)).state == "failed"


async def test_once_execute_returned_the_queue_refuses_events(storage: str) -> None:
    kept: list[EventQueue] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert not queue.is_closed()
        kept.append(queue)
        await updater_of(context, queue).complete()

    async with executing(execute, storage) as client:
        task_id = (await client.send("hi")).task_id
        before = await client.get_task(task_id)
        # The answer comes when the end is durable, and execute hears of that at the same time.
        await until(kept[0].is_closed)
        with pytest.raises(TurnError, match="queue is closed"):
            await kept[0].enqueue_event(words("late"))
        assert await client.get_task(task_id) == before


async def test_once_execute_raised_the_queue_refuses_events(storage: str) -> None:
    kept: list[EventQueue] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        kept.append(queue)
        raise RuntimeError

    async with executing(execute, storage) as client:
        await client.send("hi")
        with pytest.raises(TurnError, match="queue is closed"):
            await kept[0].enqueue_event(words("late"))


async def test_an_executor_may_close_its_queue_itself(storage: str) -> None:
    refused: list[Exception] = []

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).complete()
        await queue.close()
        try:
            await queue.enqueue_event(words("late"))
        except InvalidAgentResponseError as error:
            refused.append(error)

    async with executing(execute, storage) as client:
        assert (await client.send("hi")).state == "completed"
    assert len(refused) == 1


@pytest.mark.parametrize("state", [None, TaskState.SUBMITTED, TaskState.WORKING])
async def test_returning_without_a_terminal_or_interrupted_state_fails_the_task(
    storage: str, state: TaskState | None
) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if state is not None:
            await updater_of(context, queue).update_status(state)

    async with executing(execute, storage) as client:
        failed = await client.send("hi")
    assert failed.state == "failed"
    assert (said(failed) or "").startswith("The agent returned without finishing the task")


async def test_what_runs_after_a_terminal_state_does_not_hold_up_the_answer(storage: str) -> None:
    gate = Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await updater_of(context, queue).complete(words("done"))
        await gate()

    async with executing(execute, storage) as client:
        done = await client.send("hi")
        await gate.reached.wait()
        gate.open()
        assert (done.state, done.text) == ("completed", "done")
        await reaches(client, done.task_id, "completed")
