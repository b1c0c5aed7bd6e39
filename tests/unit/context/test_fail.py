"""`ctx.fail(reason)`: mark the task as failed with an error message."""

from __future__ import annotations

import pytest

from errands import TaskContext
from tests.unit.support import run, running, said, signature, spoken, stream

pytestmark = pytest.mark.anyio


def test_fail_has_the_documented_signature() -> None:
    assert signature(TaskContext.fail) == "(reason)"


async def test_fail_marks_the_task_as_failed(storage: str) -> None:
    assert (await run(lambda ctx: ctx.fail("API call failed: timeout"), storage=storage)).failed


async def test_the_reason_is_sent_to_the_client_as_a_status_message(storage: str) -> None:
    async with running(lambda ctx: ctx.fail("API call failed: timeout"), storage) as client:
        sent = await client.send("hi")
        later = await client.get_task(sent.task_id)
    assert said(sent) == said(later) == "API call failed: timeout"
    assert sent.raw_task is not None
    assert sent.raw_task.status.message is not None
    assert sent.raw_task.status.message.role == "ROLE_AGENT"


async def test_a_stream_shows_the_reason(storage: str) -> None:
    ending = (await stream(lambda ctx: ctx.fail("broken"), storage=storage))[-1]
    assert (ending.kind, ending.state, ending.text, ending.is_final) == ("status", "failed", "broken", True)


async def test_the_reason_joins_the_history(storage: str) -> None:
    assert spoken(await run(lambda ctx: ctx.fail("broken"), storage=storage)) == ["hi", "broken"]


async def test_fail_keeps_the_artifacts_emitted_so_far(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("the first half")
        await ctx.fail("out of paper")

    result = await run(handle, storage=storage)
    assert result.failed
    assert [artifact.text for artifact in result.artifacts] == ["the first half"]


async def test_the_error_example_of_the_reference_works(storage: str) -> None:
    class APIError(Exception):
        pass

    async def call_external_api() -> str:
        raise APIError("503")

    async def handle(ctx: TaskContext) -> None:
        try:
            result = await call_external_api()
        except APIError as e:
            await ctx.fail(f"API call failed: {e}")
            return
        await ctx.complete(result)

    result = await run(handle, storage=storage)
    assert result.failed
    assert said(result) == "API call failed: 503"
