"""Turn after turn in one context."""

from __future__ import annotations

from typing import Any

import pytest

from errands.client import Conversation, StreamInterruptedError
from errands.errors import UnsupportedOperationError
from errands.model.core import StreamResponse, Task, TaskState, TaskStatus
from errands.model.requests import SendMessageResponse
from tests.unit.client.agent import ScriptedAgent, chunk, cut, message, snapshot, status, streaming, task

pytestmark = pytest.mark.anyio


def answer(state: TaskState, task_id: str = "t1") -> SendMessageResponse:
    return SendMessageResponse(task=Task(id=task_id, context_id="c1", status=TaskStatus(state=state)))


def places(agent: ScriptedAgent) -> list[tuple[Any, Any]]:
    """To which context and task each message was sent."""
    return [
        (call.params["message"].get("contextId"), call.params["message"].get("taskId"))
        for call in agent.calls
        if "message" in call.params
    ]


async def test_a_waiting_task_is_continued_and_an_ended_one_followed_by_another(agent: ScriptedAgent) -> None:
    agent.plays(
        agent.result(answer(TaskState.INPUT_REQUIRED)),
        agent.result(answer(TaskState.AUTH_REQUIRED)),
        agent.result(answer(TaskState.COMPLETED)),
        agent.result(answer(TaskState.FAILED, "t2")),
        agent.result(answer(TaskState.COMPLETED, "t3")),
    )
    async with agent.client() as client:
        conversation = client.conversation()
        assert (conversation.context_id, conversation.task_id, conversation.state) == (None, None, None)
        for word in "abcde":
            await conversation.send(word)
    assert places(agent) == [(None, None), ("c1", "t1"), ("c1", "t1"), ("c1", None), ("c1", None)]
    assert (conversation.context_id, conversation.task_id, conversation.state) == ("c1", "t3", "completed")
    assert [turn.message.parts[0].text for turn in conversation.history] == list("abcde")
    assert [turn.result.state for turn in conversation.history][:3] == ["input-required", "auth-required", "completed"]


async def test_the_history_holds_the_messages_as_they_were_sent(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(answer(TaskState.COMPLETED)))
    async with agent.client() as client:
        conversation = client.conversation(context_id="c1")
        await conversation.send("hi", metadata={"k": 1}, message_id="m1", blocking=False, timeout=3)
    said = conversation.history[0].message
    assert (said.message_id, said.context_id, said.metadata) == ("m1", "c1", {"k": 1})
    sent = agent.calls[0].params
    assert (sent["message"]["messageId"], sent["message"]["metadata"]) == ("m1", {"k": 1})
    assert sent["configuration"] == {"returnImmediately": True}
    assert agent.calls[0].read_timeout == 3


async def test_an_earlier_conversation_can_be_taken_up(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(answer(TaskState.COMPLETED)))
    async with agent.client() as client:
        await client.conversation(context_id="c1", task_id="t1").send("yes")
    assert places(agent) == [("c1", "t1")]


async def test_a_streamed_turn_counts_like_any_other(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(
            agent.frames(snapshot(), chunk("Hel", append=False), chunk("lo"), status(TaskState.INPUT_REQUIRED, "ok?"))
        ),
        streaming(agent.frames(snapshot(text="Hello"), chunk("!"), status(TaskState.COMPLETED))),
        streaming(agent.frames(StreamResponse(message=message("bye")))),
    )
    async with agent.client() as client:
        conversation = client.conversation()
        assert len([event async for event in conversation.stream("a")]) == 4
        assert (conversation.state, conversation.history[0].result.text) == ("input-required", "Hello")
        assert [piece async for piece in conversation.stream_text("yes")] == ["!"]
        assert conversation.history[1].result.text == "Hello!"
        assert [piece async for piece in conversation.stream_text("bye")] == ["bye"]
    assert places(agent) == [(None, None), ("c1", "t1"), ("c1", None)]
    assert (conversation.state, conversation.task_id, conversation.context_id) == ("completed", None, "c1")
    assert conversation.history[2].result.raw_message == message("bye")


async def test_a_stream_left_early_leaves_the_conversation_where_it_was_seen_last(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(), chunk("a", append=False), status(TaskState.COMPLETED))))
    async with agent.client() as client:
        conversation = client.conversation()
        stream = conversation.stream("x")
        await anext(stream)
        await stream.aclose()
    assert (conversation.task_id, conversation.state, len(conversation.history)) == ("t1", "working", 1)


async def test_a_turn_that_failed_to_happen_is_not_in_the_history(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(UnsupportedOperationError("no")))
    async with agent.client() as client:
        conversation = client.conversation()
        with pytest.raises(UnsupportedOperationError):
            await conversation.send("x")
    assert conversation.history == []


async def test_an_interrupted_turn_is_in_the_history_as_far_as_it_went(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(), chunk("a", append=False)), cut()))
    async with agent.client(max_retries=0) as client:
        conversation: Conversation = client.conversation()
        with pytest.raises(StreamInterruptedError):
            async for _ in conversation.stream("x"):
                pass
    assert [turn.result.text for turn in conversation.history] == ["a"]
    assert task().id == conversation.task_id
