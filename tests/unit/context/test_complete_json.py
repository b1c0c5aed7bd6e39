"""`ctx.complete_json(data, *, artifact_id="final-answer")`: complete the task with a structured JSON artifact."""

from __future__ import annotations

from typing import Any

import pytest

from errands import TaskContext
from tests.unit.support import run, running, signature, stream

pytestmark = pytest.mark.anyio


def test_complete_json_has_the_documented_signature() -> None:
    assert signature(TaskContext.complete_json) == "(data, *, artifact_id='final-answer')"


async def test_complete_json_finishes_the_task_with_a_json_artifact(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete_json({"revenue": 42000, "currency": "EUR"}), storage=storage)
    assert result.completed
    assert result.data == {"revenue": 42000, "currency": "EUR"}
    assert [artifact.artifact_id for artifact in result.artifacts] == ["final-answer"]


async def test_the_artifact_has_media_type_application_json_in_its_metadata(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete_json({}), storage=storage)
    (artifact,) = result.artifacts
    assert artifact.metadata == {"media_type": "application/json"}
    assert artifact.parts[0].media_type == "application/json"


async def test_the_json_is_persisted_for_later(storage: str) -> None:
    async with running(lambda ctx: ctx.complete_json({"kept": True}), storage) as client:
        task_id = (await client.send("hi")).task_id
        assert (await client.get_task(task_id)).data == {"kept": True}


async def test_complete_json_takes_a_custom_artifact_id() -> None:
    result = await run(lambda ctx: ctx.complete_json([1], artifact_id="rows"))
    assert [artifact.artifact_id for artifact in result.artifacts] == ["rows"]


@pytest.mark.parametrize("value", [{}, [], {"n": 2**53 + 1}, [1, 1.5, None, "x"], "text", 0, False, None], ids=repr)
async def test_any_json_value_comes_back_as_it_was(value: Any, storage: str) -> None:
    result = await run(lambda ctx: ctx.complete_json(value), storage=storage)
    (artifact,) = result.artifacts
    assert artifact.parts[0].data == value
    assert type(artifact.parts[0].data) is type(value)


async def test_complete_json_sends_the_artifact_as_its_last_chunk_and_then_the_state(storage: str) -> None:
    events = await stream(lambda ctx: ctx.complete_json({"n": 1}), storage=storage)
    artifact, ending = events[-2:]
    assert (artifact.kind, artifact.data, artifact.last_chunk) == ("artifact", {"n": 1}, True)
    assert (ending.kind, ending.state) == ("status", "completed")


async def test_what_is_no_json_fails_the_task_unless_the_handler_deals_with_it(storage: str) -> None:
    result = await run(lambda ctx: ctx.complete_json({"no": object()}), storage=storage)
    assert result.failed
    assert result.artifacts == []
