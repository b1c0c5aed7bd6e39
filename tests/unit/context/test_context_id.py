"""`ctx.context_id`: optional conversation / context identifier."""

from __future__ import annotations

import pytest

from errands import TaskContext
from errands.errors import InvalidParamsError
from tests.unit.support import lone_context, run, running

pytestmark = pytest.mark.anyio


async def answer_with_context_id(ctx: TaskContext) -> None:
    await ctx.complete(ctx.context_id)


async def test_context_id_is_the_conversation_the_message_names(storage: str) -> None:
    result = await run(answer_with_context_id, storage=storage, context_id="our conversation")
    assert result.text == result.context_id == "our conversation"


async def test_context_id_is_made_for_a_message_that_names_no_conversation(storage: str) -> None:
    result = await run(answer_with_context_id, storage=storage)
    assert result.text
    assert result.text == result.context_id


async def test_tasks_without_a_conversation_in_common_have_different_context_ids() -> None:
    async with running(answer_with_context_id) as client:
        assert (await client.send("one")).text != (await client.send("two")).text


async def test_context_id_stays_the_same_when_a_follow_up_names_only_the_task(storage: str) -> None:
    seen: list[str | None] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.context_id)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage) as client:
        first = await client.send("one", context_id="c")
        await client.send("two", task_id=first.task_id)
    assert seen == ["c", "c"]


async def test_a_message_that_names_a_task_of_another_conversation_is_refused(storage: str) -> None:
    async with running(lambda ctx: ctx.request_input("more?"), storage) as client:
        first = await client.send("one", context_id="ours")
        with pytest.raises(InvalidParamsError) as refused:
            await client.send("two", task_id=first.task_id, context_id="theirs")
        assert refused.value.field == "message.contextId"
        assert (await client.get_task(first.task_id)).input_required


async def test_context_id_may_be_none() -> None:
    assert lone_context(context_id=None).context_id is None
