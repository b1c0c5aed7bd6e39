"""`ctx.respond(text=None)`: complete the task with a status message, without creating an artifact."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import run, running, said, signature, spoken, stream

pytestmark = pytest.mark.anyio


def test_respond_has_the_documented_signature() -> None:
    assert signature(TaskContext.respond) == "(text=None)"


async def test_respond_completes_the_task_with_a_status_message_and_no_artifact(storage: str) -> None:
    result = await run(lambda ctx: ctx.respond("Email sent successfully."), storage=storage)
    assert result.completed
    assert said(result) == "Email sent successfully."
    assert result.artifacts == []


async def test_the_client_gets_a_task_and_not_a_bare_message() -> None:
    result = await run(lambda ctx: ctx.respond("done"))
    assert result.raw_task is not None
    assert result.raw_message is None


async def test_respond_without_text_only_completes(storage: str) -> None:
    result = await run(lambda ctx: ctx.respond(), storage=storage)
    assert result.completed
    assert said(result) is None
    assert result.artifacts == []


async def test_the_reply_is_part_of_the_conversation(storage: str) -> None:
    async with running(lambda ctx: ctx.respond("you are welcome"), storage) as client:
        sent = await client.send("thank you")
        assert spoken(await client.get_task(sent.task_id)) == ["thank you", "you are welcome"]


async def test_a_stream_ends_with_the_reply_and_shows_no_artifact(storage: str) -> None:
    events = await stream(lambda ctx: ctx.respond("done"), storage=storage)
    assert (events[-1].kind, events[-1].state, events[-1].text) == ("status", "completed", "done")
    assert "artifact" not in [event.kind for event in events]


async def test_respond_keeps_artifacts_that_were_emitted_before(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("the draft")
        await ctx.respond("there it is")

    result = await run(handle, storage=storage)
    assert [artifact.text for artifact in result.artifacts] == ["the draft"]
    assert said(result) == "there it is"
