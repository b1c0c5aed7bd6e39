"""Agents that answer a send or a cancel before the task has ended are asked until it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import httpx
import pytest

from errands.client import AnswerLostError
from errands.errors import TaskNotFoundError, UnavailableError
from errands.model.base import A2AObject
from errands.model.core import PAUSED_STATES, SETTLED_STATES, TaskState
from errands.model.requests import SendMessageResponse
from tests.clock import let_pass
from tests.unit.client.agent import Call, ScriptedAgent, message, task

pytestmark = pytest.mark.anyio

WORKING, COMPLETED = TaskState.WORKING, TaskState.COMPLETED
#: Seconds that pass after each answer: more than the client leaves between two questions.
STEP_S = 5.0


def settled(states: frozenset[TaskState]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("state", sorted(states), ids=lambda state: state.short)


def then(agent: ScriptedAgent, answer: A2AObject | Exception) -> Callable[[Call], httpx.Response]:
    """Answer, and let time pass while the client waits to ask again."""

    def answered(_: Call) -> httpx.Response:
        asyncio.get_running_loop().call_soon(let_pass, STEP_S)
        if isinstance(answer, Exception):
            raise answer
        return agent.result(answer)

    return answered


def sent(agent: ScriptedAgent, state: TaskState = WORKING) -> Callable[[Call], httpx.Response]:
    return then(agent, SendMessageResponse(task=task(state)))


@settled(SETTLED_STATES)
async def test_a_send_asks_for_the_task_until_it_ends_or_pauses(agent: ScriptedAgent, state: TaskState) -> None:
    agent.plays(
        sent(agent, TaskState.SUBMITTED),
        then(agent, task(WORKING)),
        then(agent, task(WORKING)),
        agent.result(task(state, text="the answer")),
    )
    async with agent.client() as client:
        result = await client.send("x")
    assert (result.state, result.text) == (state.short, "the answer")
    assert agent.operations == ["SendMessage", "GetTask", "GetTask", "GetTask"]


@settled(SETTLED_STATES | {TaskState.UNSPECIFIED})
async def test_a_send_that_is_answered_at_the_end_asks_nothing(agent: ScriptedAgent, state: TaskState) -> None:
    agent.plays(agent.result(SendMessageResponse(task=task(state))))
    async with agent.client() as client:
        assert (await client.send("x")).state == state.short
    assert agent.operations == ["SendMessage"]


async def test_a_message_is_an_answer_to_wait_no_longer(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(SendMessageResponse(message=message("directly"))))
    async with agent.client() as client:
        assert (await client.send("x")).text == "directly"


async def test_a_send_that_should_not_wait_does_not(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(SendMessageResponse(task=task(WORKING))))
    async with agent.client() as client:
        assert (await client.send("x", blocking=False)).state == "working"
    assert agent.operations == ["SendMessage"]


async def test_a_send_waits_longer_than_the_clients_timeout(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), *[then(agent, task(WORKING))] * 20, agent.result(task(COMPLETED)))
    async with agent.client(timeout=STEP_S) as client:
        assert (await client.send("x")).completed


async def test_after_its_timeout_a_send_returns_the_task_as_it_is(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), *[then(agent, task(WORKING))] * 20)
    async with agent.client() as client:
        assert (await client.send("x", timeout=4 * STEP_S)).state == "working"
    assert 1 < len(agent.calls) <= 5


async def test_the_timeout_is_for_sending_and_waiting_together(agent: ScriptedAgent) -> None:
    def slowly(_: Call) -> httpx.Response:
        let_pass(3 * STEP_S)
        return agent.result(SendMessageResponse(task=task(WORKING)))

    agent.plays(slowly)
    async with agent.client() as client:
        assert (await client.send("x", timeout=2 * STEP_S)).state == "working"
    assert agent.operations == ["SendMessage"]


async def test_the_task_is_asked_for_with_as_much_history_as_was_wanted(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), agent.result(task(COMPLETED)))
    async with agent.client() as client:
        await client.send("x", history_length=2)
    assert int(agent.calls[-1].params["historyLength"]) == 2


async def test_a_broken_connection_while_waiting_is_tried_again(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), httpx.ReadError("reset"), then(agent, task(WORKING)), agent.result(task(COMPLETED)))
    async with agent.client() as client:
        assert (await client.send("x")).completed


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.ReadError("reset"), httpx.ReadTimeout("")], ids=type
)
async def test_an_agent_that_cannot_be_asked_any_more_has_the_message_all_the_same(
    agent: ScriptedAgent, failure: Exception
) -> None:
    agent.plays(sent(agent), *[failure] * 4)
    async with agent.client() as client:
        with pytest.raises(AnswerLostError, match="works on task t1") as caught:
            await client.send("x", message_id="m1")
    assert caught.value.message_id == "m1"
    assert agent.operations.count("SendMessage") == 1


async def test_an_agent_that_is_busy_for_too_long_has_the_message_all_the_same(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), *[agent.refusal(UnavailableError("later"))] * 4)
    async with agent.client() as client:
        with pytest.raises(AnswerLostError, match="later"):
            await client.send("x")


async def test_a_task_that_cannot_be_seen_any_more_is_returned_as_it_was(agent: ScriptedAgent) -> None:
    agent.plays(sent(agent), agent.refusal(TaskNotFoundError(taskId="t1")))
    async with agent.client() as client:
        assert (await client.send("hi")).state == "working"


@settled(PAUSED_STATES | {WORKING})
async def test_a_cancel_asks_for_the_task_until_it_has_ended(agent: ScriptedAgent, state: TaskState) -> None:
    agent.plays(then(agent, task(state)), then(agent, task(state)), agent.result(task(TaskState.CANCELED)))
    async with agent.client() as client:
        assert (await client.cancel("t1")).canceled
    assert agent.operations == ["CancelTask", "GetTask", "GetTask"]


async def test_after_the_clients_timeout_a_cancel_returns_the_task_as_it_is(agent: ScriptedAgent) -> None:
    agent.plays(*[then(agent, task(WORKING))] * 20)
    async with agent.client(timeout=3 * STEP_S) as client:
        assert (await client.cancel("t1")).state == "working"
    assert agent.operations[:2] == ["CancelTask", "GetTask"]
