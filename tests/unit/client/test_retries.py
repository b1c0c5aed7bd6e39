"""What is tried again, how often, after how long, and what is said when it is not."""

from __future__ import annotations

import email.utils
import time

import httpx
import pytest

from errands.client import AgentTimeoutError, AgentUnreachableError, AnswerLostError
from errands.client.agent_session import LONGEST_WAIT, RetryPolicy, TransientError
from errands.errors import TaskNotFoundError, UnavailableError
from errands.model.core import TaskState
from errands.model.requests import SendMessageResponse
from errands.operations import OPERATIONS
from errands.outbound import retry_after
from tests.unit.client.agent import Bytes, ScriptedAgent, snapshot, streaming, task

pytestmark = pytest.mark.anyio

UNSENT = [httpx.ConnectError("refused"), httpx.ConnectTimeout(""), httpx.PoolTimeout(""), httpx.ProxyError("no tunnel")]
LOST = [httpx.ReadError("reset"), httpx.RemoteProtocolError("disconnected"), httpx.WriteError("broken pipe")]
DONE = SendMessageResponse(task=task(TaskState.COMPLETED))


@pytest.mark.parametrize("failure", [*UNSENT, *LOST], ids=lambda error: type(error).__name__)
async def test_a_call_that_changes_nothing_is_tried_again_after_any_broken_connection(
    agent: ScriptedAgent, failure: Exception
) -> None:
    agent.plays(failure, failure, failure, agent.result(task()))
    async with agent.client() as client:
        assert (await client.get_task("t1")).task_id == "t1"
    assert len(agent.calls) == 4


async def test_a_body_that_breaks_off_is_a_broken_connection(agent: ScriptedAgent) -> None:
    agent.plays(
        httpx.Response(200, stream=Bytes([b'{"jso'], httpx.RemoteProtocolError("incomplete"))), agent.result(task())
    )
    async with agent.client() as client:
        assert (await client.get_task("t1")).task_id == "t1"


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_call_that_changes_nothing_is_tried_again_after_not_now(agent: ScriptedAgent, status: int) -> None:
    agent.plays(httpx.Response(status, text="<html>later</html>"), agent.result(task()))
    async with agent.client() as client:
        assert (await client.get_task("t1")).task_id == "t1"


async def test_other_errors_are_not_tried_again(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(TaskNotFoundError()))
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError):
            await client.get_task("t1")
    assert len(agent.calls) == 1


async def test_waits_double_up_to_a_bound_and_are_jittered_from_zero() -> None:
    bounds: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        bounds.append((low, high))
        return high

    async def sleep(seconds: float) -> None:
        pass

    async def fail() -> str:
        raise TransientError(httpx.ReadError("reset"), reached=True)

    policy = RetryPolicy(max_retries=200, delay=0.2, sleep=sleep, uniform=uniform)
    with pytest.raises(TransientError):
        await policy.run(fail, idempotent=True)
    assert bounds[:4] == [(0, 0.2), (0, 0.4), (0, 0.8), (0, 1.6)]
    assert bounds[-1:] == [(0, LONGEST_WAIT)]
    assert len(bounds) == 200


async def test_after_the_last_retry_the_error_says_that_nothing_was_sent(agent: ScriptedAgent) -> None:
    agent.plays(*[httpx.ConnectError("refused")] * 3)
    async with agent.client(max_retries=2) as client:
        with pytest.raises(AgentUnreachableError, match="refused") as caught:
            await client.get_task("t1")
    assert isinstance(caught.value.__cause__, httpx.ConnectError)
    assert agent.waits == [0.2, 0.4]


async def test_an_answer_that_comes_too_late_is_a_timeout_and_not_tried_again(agent: ScriptedAgent) -> None:
    agent.plays(httpx.ReadTimeout(""))
    async with agent.client() as client:
        with pytest.raises(AgentTimeoutError):
            await client.get_task("t1")
    assert len(agent.calls) == 1


async def test_the_caller_may_say_which_failures_are_tried_again(agent: ScriptedAgent) -> None:
    agent.plays(httpx.ReadTimeout(""), httpx.ReadError("reset"))
    async with agent.client(retry_on=(httpx.ReadTimeout,)) as client:
        with pytest.raises(AnswerLostError) as caught:
            await client.get_task("t1")
    assert caught.value.message_id is None
    assert len(agent.calls) == 2


@pytest.mark.parametrize("failure", UNSENT, ids=lambda error: type(error).__name__)
async def test_a_message_that_certainly_was_not_sent_is_sent_again_with_the_same_id(
    agent: ScriptedAgent, failure: Exception
) -> None:
    agent.plays(failure, agent.result(DONE))
    async with agent.client() as client:
        assert (await client.send("x")).completed
    first, second = agent.calls
    assert first.params["message"] == second.params["message"]


@pytest.mark.parametrize("status", [429, 503])
async def test_a_message_that_the_agent_could_not_take_is_sent_again(agent: ScriptedAgent, status: int) -> None:
    agent.plays(httpx.Response(status), agent.result(DONE))
    async with agent.client() as client:
        assert (await client.send("x")).completed
    assert len({call.params["message"]["messageId"] for call in agent.calls}) == 1


@pytest.mark.parametrize(
    "failure", [*LOST, httpx.Response(502), httpx.Response(504)], ids=lambda it: str(getattr(it, "status_code", it))
)
async def test_a_message_that_may_have_arrived_is_not_sent_again_but_its_id_is_given_back(
    agent: ScriptedAgent, failure: Exception | httpx.Response
) -> None:
    agent.plays(failure)
    async with agent.client() as client:
        with pytest.raises(AnswerLostError) as caught:
            await client.send("x")
        assert len(agent.calls) == 1
        sent = agent.calls[0].params["message"]
        assert caught.value.message_id == sent["messageId"]
        assert sent["messageId"] in str(caught.value)

        agent.plays(agent.result(DONE))
        await client.send("x", message_id=caught.value.message_id)
        assert agent.calls[1].params["message"] == sent


async def test_a_send_that_times_out_gives_back_the_messages_id_too(agent: ScriptedAgent) -> None:
    agent.plays(httpx.ReadTimeout(""))
    async with agent.client() as client:
        with pytest.raises(AgentTimeoutError) as caught:
            await client.send("x", timeout=1, message_id="m1")
    assert caught.value.message_id == "m1"


async def test_only_what_the_table_calls_idempotent_is_repeated_when_it_may_have_arrived(agent: ScriptedAgent) -> None:
    assert {name for name, operation in OPERATIONS.items() if not operation.idempotent} == {
        "SendMessage",
        "SendStreamingMessage",
        "CreateTaskPushNotificationConfig",
    }
    agent.plays(httpx.ReadError("reset"))
    async with agent.client() as client:
        with pytest.raises(AnswerLostError):
            await client.set_push_config("t1", url="https://hook.test")
    assert len(agent.calls) == 1


async def test_the_wait_that_the_agent_asks_for_is_kept(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(UnavailableError("full"), **{"Retry-After": "5"}), agent.result(DONE))
    async with agent.client() as client:
        assert (await client.send("x")).completed
    assert agent.waits == [5.2]


async def test_an_agent_that_asks_for_more_patience_than_we_have_is_passed_on(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(UnavailableError("closed"), **{"Retry-After": "86400"}))
    async with agent.client() as client:
        with pytest.raises(UnavailableError) as caught:
            await client.get_task("t1")
    assert caught.value.retry_after == 86400
    assert agent.waits == []


async def test_a_stream_that_could_not_be_opened_is_opened_again(agent: ScriptedAgent) -> None:
    events = agent.frames(snapshot(TaskState.COMPLETED))
    agent.plays(httpx.ConnectError("refused"), httpx.Response(503, headers={"Retry-After": "1"}), streaming(events))
    async with agent.client() as client:
        assert [event.kind async for event in client.stream("x")] == ["task"]
    assert len({call.params["message"]["messageId"] for call in agent.calls}) == 1
    assert agent.waits == [0.2, 1.4]


async def test_retry_after_may_be_a_number_a_date_or_nonsense() -> None:
    assert retry_after({"retry-after": "3"}) == 3
    assert retry_after({}) is None
    assert retry_after({"retry-after": "soon"}) is None
    assert retry_after({"retry-after": "²"}) is None
    assert retry_after({"retry-after": "Fri, 31 Dec 9999 23:59:59 +99999999999999999999"}) is None
    assert int(retry_after({"retry-after": "9" * 5000}) or 0) > LONGEST_WAIT
    assert retry_after({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0
    later = email.utils.formatdate(time.time() + 10_000, usegmt=True)
    assert 9_000 < (retry_after({"retry-after": later}) or 0) <= 10_000
