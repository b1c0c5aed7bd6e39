"""Executors over every version, binding and engine: the same agent, the same answers."""

from __future__ import annotations

import pytest

from errands.model.core import Task
from tests.cells import one_engine
from tests.interaction.agents import Executes, Replies
from tests.interaction.conftest import Connect

pytestmark = pytest.mark.anyio


@one_engine
async def test_a_message_is_the_whole_answer(connected: Connect) -> None:
    async with connected(Replies()) as client:
        result = await client.send("hi")
        assert (result.raw_task, result.text) == (None, "You said hi")
        assert (await client.send("hi again", blocking=False)).text == "You said hi again"
        assert [(event.kind, event.text) async for event in client.stream("hi")] == [("message", "You said hi")]


async def test_a_task_is_asked_about_continued_and_completed(connected: Connect) -> None:
    async with connected(Executes()) as client:
        events = [event async for event in client.stream("hello")]
        assert [(event.kind, event.state) for event in events] == [
            ("task", "submitted"),
            ("status", "working"),
            ("status", "input-required"),
        ]
        assert isinstance(events[0].raw, Task)
        assert events[0].raw.metadata == {"made": "here"}
        answered = await client.send("French", task_id=events[0].task_id)
        assert (answered.state, answered.text) == ("completed", "In French")


@one_engine
async def test_a_paused_task_is_canceled_with_the_executors_words(connected: Connect) -> None:
    async with connected(Executes()) as client:
        asked = await client.send("hello")
        canceled = await client.cancel(asked.task_id)
        assert (canceled.state, canceled.text) == ("canceled", "Gone")
