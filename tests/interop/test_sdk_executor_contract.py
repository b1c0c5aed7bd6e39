"""What an executor of the official SDK may rely on under `errands serve`, in both generations of the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest

from errands import A2AClient, Message, Part, Role
from tests.interop.sdks import SDKS, Sdk, interpreter, serving_executor

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first test of all makes the environments


@pytest.fixture(scope="module", params=list(SDKS.values()), ids=list(SDKS))
def sdk(request: pytest.FixtureRequest) -> Sdk:
    chosen: Sdk = request.param
    return chosen


@pytest.fixture(scope="module")
def url(sdk: Sdk) -> Iterator[str]:
    interpreter(sdk)
    with serving_executor(sdk, sdk.contract, cancel_force_timeout="5") as agent:
        yield agent.url


@pytest.fixture
async def client(url: str) -> AsyncIterator[A2AClient]:
    async with A2AClient(url) as connected:
        yield connected


def said(result: Any) -> str:
    """What the agent said in the task's status."""
    return "".join(part.text for part in result.raw_task.status.message.parts)


async def test_a_single_message_is_the_answer(client: A2AClient) -> None:
    answer = await client.send("message hello")
    assert answer.raw_message is not None
    assert answer.text == "Echo: hello"


async def test_a_task_is_updated_to_its_end(client: A2AClient) -> None:
    answer = await client.send("task hello")
    assert (answer.state, answer.text, said(answer)) == ("completed", "Echo: hello", "Done")
    assert answer.artifacts[0].name == "echo"


async def test_a_task_may_come_finished(client: A2AClient) -> None:
    answer = await client.send("whole hello")
    assert (answer.state, answer.text) == ("completed", "Echo: hello")


async def test_a_stream_shows_the_executors_events_and_no_others(client: A2AClient) -> None:
    events = [event async for event in client.stream("stream a b c")]
    assert [(event.kind, event.state or event.text) for event in events] == [
        ("task", "submitted"),
        ("artifact", "a"),
        ("artifact", "b"),
        ("artifact", "c"),
        ("status", "completed"),
    ]
    assert (await client.get_task(events[0].task_id or "")).text == "abc"


async def test_after_a_question_execute_is_called_with_the_answer(client: A2AClient) -> None:
    asked = await client.send("ask me")
    assert (asked.state, said(asked)) == ("input-required", "Which city?")
    answered = await client.send("Lisbon", task_id=asked.task_id)
    assert (answered.state, answered.text) == ("completed", "ask me: Lisbon")


async def test_after_an_authentication_in_band_execute_is_called_again(client: A2AClient) -> None:
    asked = await client.send("auth first")
    assert (asked.state, said(asked)) == ("auth-required", "Who are you?")
    answered = await client.send("it is me", task_id=asked.task_id)
    assert (answered.state, answered.text) == ("completed", "auth first: it is me")


async def test_an_authentication_out_of_band_is_shown_while_execute_waits(client: A2AClient) -> None:
    asked = await client.send("outside")
    assert (asked.state, said(asked)) == ("auth-required", "Sign in over there")
    following = asyncio.ensure_future(_last(client.subscribe(asked.task_id)))
    await client.send("grant")
    await following
    ended = await client.get_task(asked.task_id)
    assert (ended.state, ended.text) == ("completed", "in")


async def _last(events: Any) -> Any:
    last = None
    async for event in events:
        last = event
    return last


async def test_a_cancel_stops_execute_and_calls_cancel(client: A2AClient) -> None:
    held = await client.send("hold", blocking=False)
    assert held.state in ("submitted", "working")
    canceled = await client.cancel(held.task_id)
    assert (canceled.state, said(canceled)) == ("canceled", "Stopped")


async def test_an_executor_that_cannot_cancel_is_stopped_all_the_same(client: A2AClient) -> None:
    held = await client.send("hold stubbornly", blocking=False)
    assert (await client.cancel(held.task_id)).state == "canceled"


@pytest.mark.parametrize("state", ["failed", "reject"])
async def test_a_failure_that_is_published_has_its_words(client: A2AClient, state: str) -> None:
    answer = await client.send(f"{state} no such city")
    assert (answer.state.startswith(state), said(answer)) == (True, "no such city")


async def test_an_exception_fails_the_task_and_keeps_its_text_from_the_client(client: A2AClient) -> None:
    answer = await client.send("explode secret")
    assert answer.state == "failed"
    assert "secret" not in said(answer)


async def test_an_error_of_the_protocol_fails_the_task_with_its_words(client: A2AClient) -> None:
    answer = await client.send("refuse no such city")
    assert (answer.state, said(answer)) == ("failed", "no such city")


async def test_an_executor_that_returns_in_the_middle_fails_the_task(client: A2AClient) -> None:
    assert (await client.send("nothing")).state == "failed"


async def test_status_events_without_a_task_before_them_are_taken(client: A2AClient) -> None:
    answer = await client.send("statuses fine")
    assert (answer.state, said(answer)) == ("completed", "fine")


@pytest.mark.parametrize("what", ["text", "message", "stranger", "part", "empty"])
async def test_what_may_not_be_published_fails_the_task_and_says_why(client: A2AClient, what: str) -> None:
    answer = await client.send(f"wrong {what}")
    assert answer.state == "failed"
    assert said(answer).startswith("The agent gave an invalid response")


async def test_a_message_without_an_id_or_parts_does_no_harm(client: A2AClient) -> None:
    answer = await client.send("wordless fine")
    assert (answer.state, said(answer)) == ("completed", "fine")
    assert (await client.get_task(answer.task_id)).state == "completed"


async def test_mixed_up_identifiers_in_a_message_do_no_harm(client: A2AClient) -> None:
    answer = await client.send("mixed fine")
    assert (answer.state, said(answer)) == ("completed", "fine")
    assert answer.raw_task is not None
    assert answer.raw_task.status.message is not None
    assert answer.raw_task.status.message.task_id == answer.task_id


async def test_once_execute_has_returned_the_queue_takes_nothing_more(client: A2AClient) -> None:
    paused = await client.send("linger")
    answered = await client.send("go on", task_id=paused.task_id)
    assert [artifact.text for artifact in answered.artifacts] == ["linger: go on"]


async def test_an_executor_may_close_its_queue(client: A2AClient) -> None:
    assert (await client.send("close now")).text == "now"


def shown_request(referred: str) -> dict[str, Any]:
    message = {
        "messageId": "shown",
        "role": "ROLE_USER",
        "parts": [{"text": "shown"}],
        "metadata": {"of": "the message"},
        "referenceTaskIds": [referred],
    }
    return {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "SendMessage",
        "params": {
            "message": message,
            "tenant": "acme",
            "metadata": {"count": 3, "nested": {"list": [1, "two"]}},
            "configuration": {"historyLength": 5},
        },
    }


async def test_the_executor_is_shown_who_asks_and_what_for(url: str, sdk: Sdk) -> None:
    headers = {"A2A-Version": "1.0", "A2A-Extensions": "https://example.com/one", "X-User": "ana", "X-Note": "kept"}
    async with (
        A2AClient(url, tenant="acme", headers={"X-User": "ana"}) as client,
        httpx.AsyncClient(base_url=url, headers=headers, timeout=None) as http,
    ):
        referred = await client.send("task before")
        answer = (await http.post("/", json=shown_request(referred.task_id))).json()
    task = answer["result"]["task"]
    assert task["artifacts"][0]["parts"][0]["data"] == {
        "types": [True, True, True, True],
        "ids": [True, True],
        "metadata": {"count": 3, "nested": {"list": [1, "two"]}},
        "message metadata": {"of": "the message"},
        "extensions": ["https://example.com/one"],
        "user": [True, "ana"],
        "tenant": "acme" if sdk.protocol == "1.0" else "",
        "state": {"note": "kept"},
        "history length": 5,
        "related": ["Echo: before"],
    }
    assert task["artifacts"][0]["metadata"] == {"kind": "seen"}


async def test_there_is_a_configuration_also_when_nothing_is_asked_for(client: A2AClient) -> None:
    assert (await client.send("configured")).text == "True"


async def test_integers_in_data_come_back_as_integers(client: A2AClient) -> None:
    sent = Message(message_id="data", role=Role.USER, parts=[Part(text="data"), Part(data={"whole": 7, "half": 0.5})])
    answer = await client.send(sent)
    assert (answer.data, type(answer.data["whole"])) == ({"whole": 7, "half": 0.5}, int)


async def test_files_come_back_as_they_were_sent(client: A2AClient) -> None:
    files = [
        Part(raw=b"\x00\xff", filename="raw.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/a.pdf", filename="a.pdf", media_type="application/pdf"),
    ]
    answer = await client.send(Message(message_id="files", role=Role.USER, parts=[Part(text="data"), *files]))
    assert answer.artifacts[0].parts == files


async def test_data_deeper_than_the_sdk_can_hold_is_refused_with_words(client: A2AClient, sdk: Sdk) -> None:
    deep: Any = "the bottom"
    for _ in range(40):
        deep = {"deeper": deep}
    answer = await client.send(Message(message_id="deep", role=Role.USER, parts=[Part(text="data"), Part(data=deep)]))
    if sdk.protocol == "1.0":
        assert (answer.state, said(answer)) == ("failed", "This agent accepts JSON nested at most 30 levels deep")
    else:
        assert (answer.state, answer.data) == ("completed", deep)
