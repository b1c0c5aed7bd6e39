"""One call and its answer, on both bindings."""

from __future__ import annotations

import datetime
from typing import Any

import httpx
import pytest

from errands.client import ProtocolError, TaskTerminalError
from errands.errors import ConfigurationError, InvalidParamsError, TaskNotFoundError, UnavailableError
from errands.model.card import AgentInterface
from errands.model.core import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from errands.model.requests import (
    ListTasksResponse,
    SendMessageResponse,
)
from errands.wire.status import ERRORS, STATUS
from tests.unit.client.agent import URL, ScriptedAgent, card, message, task

pytestmark = pytest.mark.anyio

DONE = SendMessageResponse(task=task(TaskState.COMPLETED, text="done"))


async def sent(agent: ScriptedAgent, content: Any = "hello", **options: Any) -> dict[str, Any]:
    """The parameters of one send."""
    agent.plays(agent.result(DONE))
    async with agent.client() as client:
        await client.send(content, **options)
    return agent.calls[-1].params


async def test_a_text_becomes_a_user_message_with_an_id(agent: ScriptedAgent) -> None:
    params = await sent(agent)
    assert params["message"].pop("messageId")
    assert params == {"message": {"role": "ROLE_USER", "parts": [{"text": "hello"}]}}


async def test_every_option_of_send_reaches_the_agent(agent: ScriptedAgent) -> None:
    params = await sent(
        agent,
        [Part(data={"n": 2**53 + 1}), Part(raw=b"\xff", filename="f")],
        task_id="t",
        context_id="c",
        blocking=False,
        metadata={"k": 1},
        history_length=0,
        accepted_output_modes=["text/plain"],
        message_id="m1",
        push_url="https://hook.test",
        push_token="tok",
    )
    assert params["message"] == {
        "messageId": "m1",
        "role": "ROLE_USER",
        "parts": [{"data": {"n": 2**53 + 1}}, {"raw": "/w==", "filename": "f"}],
        "contextId": "c",
        "taskId": "t",
        "metadata": {"k": 1},
    }
    assert params["configuration"] == {
        "acceptedOutputModes": ["text/plain"],
        "taskPushNotificationConfig": {"url": "https://hook.test", "token": "tok"},
        "historyLength": 0,
        "returnImmediately": True,
    }


async def test_a_message_is_sent_as_it_is_and_options_override_it(agent: ScriptedAgent) -> None:
    given = Message(message_id="mine", role=Role.USER, parts=[Part(text="x")], context_id="c", extensions=["e"])
    assert (await sent(agent, given))["message"]["messageId"] == "mine"
    assert (await sent(agent, given, context_id="d"))["message"] == {
        "messageId": "mine",
        "role": "ROLE_USER",
        "parts": [{"text": "x"}],
        "contextId": "d",
        "extensions": ["e"],
    }
    assert given.context_id == "c"


async def test_send_parts_is_send(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(DONE))
    async with agent.client() as client:
        assert (await client.send_parts([Part(text="x")], context_id="c")).completed
    assert agent.calls[0].params["message"]["parts"] == [{"text": "x"}]


async def test_nothing_and_unknown_options_are_refused_before_sending(agent: ScriptedAgent) -> None:
    async with agent.client() as client:
        with pytest.raises(ValueError, match="at least one part"):
            await client.send([])
        with pytest.raises(TypeError):
            await client.send("x", colour="red")  # type: ignore[call-arg]
    assert not agent.calls


async def test_a_result_has_the_useful_facts_at_hand(agent: ScriptedAgent) -> None:
    parts = [Part(text="Hel"), Part(data=[1]), Part(text="lo")]
    done = Task(
        id="t1",
        context_id="c1",
        status=TaskStatus(state=TaskState.COMPLETED, message=message("bye")),
        artifacts=[Artifact(artifact_id="a", parts=parts, name="n"), Artifact(artifact_id="b", parts=[Part(url="u")])],
    )
    agent.plays(agent.result(SendMessageResponse(task=done)))
    async with agent.client() as client:
        result = await client.send("x")
    assert (result.task_id, result.context_id, result.state) == ("t1", "c1", "completed")
    assert (result.text, result.data) == ("Hello", [1])
    assert [(artifact.artifact_id, artifact.name, artifact.text) for artifact in result.artifacts] == [
        ("a", "n", "Hello"),
        ("b", None, None),
    ]
    assert result.raw_task == done
    assert result.is_terminal


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (TaskState.COMPLETED, "completed"),
        (TaskState.FAILED, "failed"),
        (TaskState.CANCELED, "canceled"),
        (TaskState.REJECTED, "rejected"),
        (TaskState.INPUT_REQUIRED, "input_required"),
        (TaskState.AUTH_REQUIRED, "auth_required"),
    ],
)
async def test_a_result_says_where_the_task_stands(agent: ScriptedAgent, state: TaskState, name: str) -> None:
    agent.plays(agent.result(task(state, said="because")))
    async with agent.client() as client:
        result = await client.get_task("t1")
    said = {n: getattr(result, n) for n in ("completed", "failed", "canceled", "rejected")}
    said |= {n: getattr(result, n) for n in ("input_required", "auth_required")}
    assert [n for n, is_so in said.items() if is_so] == [name]
    assert result.is_terminal == (not name.endswith("_required"))
    assert result.text == "because"


async def test_a_direct_message_is_a_completed_result(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(SendMessageResponse(message=message("hi"))))
    async with agent.client() as client:
        result = await client.send("x")
    assert (result.text, result.completed, result.task_id) == ("hi", True, "")
    assert result.raw_message == message("hi")


async def test_a_blocking_send_waits_as_long_as_it_takes_and_others_do_not(agent: ScriptedAgent) -> None:
    agent.plays(*[agent.result(DONE)] * 4, agent.result(task()))
    async with agent.client(timeout=7) as client:
        await client.send("x")
        await client.send("x", blocking=False)
        await client.send("x", timeout=2)
        await client.send("x", blocking=False, timeout=None)
        await client.get_task("t1")
    assert [call.read_timeout for call in agent.calls] == [None, 7, 2, None, 7]
    assert {call.request.extensions["timeout"]["connect"] for call in agent.calls} == {7}


async def test_the_version_is_always_sent_and_extensions_when_given(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(task()))
    async with agent.client(extensions=["https://e.test"], headers={"a2a-version": "9", "X-Mine": "1"}) as client:
        await client.get_task("t1")
    headers = agent.calls[0].headers
    assert headers.get_list("A2A-Version") == ["1.0"]
    assert (headers["A2A-Version"], headers["A2A-Extensions"], headers["X-Mine"]) == ("1.0", "https://e.test", "1")


async def test_get_task_asks_for_a_task_and_its_history(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(task()))
    async with agent.client() as client:
        assert (await client.get_task("t1", 3)).state == "working"
    if agent.binding == "jsonrpc":
        assert agent.calls[0].params == {"id": "t1", "historyLength": 3}
    else:
        assert agent.calls[0].path == "/rest/tasks/t1?historyLength=3"


@pytest.mark.parametrize("task_id", ["..", "a/b", "x?y=1", "a b", "t:cancel", "é", "%2F"])
async def test_an_id_stays_one_segment_of_the_path(task_id: str) -> None:
    agent = ScriptedAgent("http+json")
    seen: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.raw_path.decode())
        return agent.result(task())

    agent._answer = answer  # type: ignore[method-assign]
    async with agent.client() as client:
        await client.get_task(task_id)
    path = seen[0].removeprefix("/rest/tasks/")
    assert httpx.URL(f"http://x/{path}").path == f"/{task_id}"
    assert not {"/", "?", ":", " "} & set(path)


async def test_cancel_takes_metadata(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(task(TaskState.CANCELED)))
    async with agent.client() as client:
        assert (await client.cancel("t1", {"why": "bored"})).canceled
    assert agent.operations == ["CancelTask"]
    assert agent.calls[0].params["metadata"] == {"why": "bored"}


async def test_the_tenant_of_the_interface_is_in_every_request(agent: ScriptedAgent) -> None:
    agent.card = card(
        *(
            AgentInterface(url=URL + path, protocol_binding=binding, protocol_version="1.0", tenant="acme/1")
            for binding, path in (("JSONRPC", "/rpc"), ("HTTP+JSON", "/rest"))
        )
    )
    agent.plays(agent.result(DONE), agent.result(task()))
    async with agent.client() as client:
        await client.send("x")
        await client.get_task("t1")
    if agent.binding == "jsonrpc":
        assert [call.params["tenant"] for call in agent.calls] == ["acme/1", "acme/1"]
    else:
        assert [call.path for call in agent.calls] == ["/rest/acme%2F1/message:send", "/rest/acme%2F1/tasks/t1"]


async def test_the_callers_tenant_is_used_where_the_interface_has_none(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(task()))
    async with agent.client(tenant="acme") as client:
        await client.get_task("t1")
    call = agent.calls[0]
    assert call.params.get("tenant") == "acme" or call.path == "/rest/acme/tasks/t1"


async def test_a_query_in_the_interface_url_is_kept() -> None:
    agent = ScriptedAgent("http+json")
    agent.card = card(AgentInterface(url=f"{URL}/r?key=1", protocol_binding="HTTP+JSON", protocol_version="1.0"))
    agent.plays(agent.result(task()))
    async with agent.client() as client:
        await client.get_task("t1", 2)
    assert agent.calls[0].path == "/r/tasks/t1?key=1&historyLength=2"


def tasks_page(*ids: str, token: str = "") -> ListTasksResponse:
    tasks = [Task(id=task_id, status=TaskStatus(state=TaskState.WORKING)) for task_id in ids]
    return ListTasksResponse(tasks=tasks, next_page_token=token, page_size=2, total_size=3)


async def test_awaiting_list_tasks_gives_one_page(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(tasks_page("a", "b", token="next")))
    async with agent.client() as client:
        page = await client.list_tasks()
    assert [result.task_id for result in page.tasks] == ["a", "b"]
    assert (page.next_page_token, page.total_size, page.page_size) == ("next", 3, 2)
    assert int(agent.calls[0].params["pageSize"]) == 50


async def test_iterating_over_list_tasks_gives_the_tasks_of_all_pages(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(tasks_page("a", "b", token="next")), agent.result(tasks_page("c")))
    async with agent.client() as client:
        assert [result.task_id async for result in client.list_tasks(page_size=2)] == ["a", "b", "c"]
    assert [call.params.get("pageToken") for call in agent.calls] == [None, "next"]


async def test_every_filter_of_list_tasks_reaches_the_agent(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(tasks_page()))
    moment = datetime.datetime(2026, 1, 2, tzinfo=datetime.UTC)
    async with agent.client() as client:
        await client.list_tasks(
            context_id="c",
            status="input-required",
            page_size=7,
            page_token="p",
            history_length=1,
            include_artifacts=True,
            status_timestamp_after=moment,
        )
    expected: dict[str, Any] = {
        "contextId": "c",
        "status": "TASK_STATE_INPUT_REQUIRED",
        "pageSize": 7,
        "pageToken": "p",
        "historyLength": 1,
        "includeArtifacts": True,
        "statusTimestampAfter": "2026-01-02T00:00:00Z",
    }
    if agent.binding == "http+json":
        expected = {key: str(value).lower() if value is True else str(value) for key, value in expected.items()}
    assert agent.calls[0].params == expected


async def test_an_unknown_status_is_refused_with_the_possible_ones(agent: ScriptedAgent) -> None:
    async with agent.client() as client:
        with pytest.raises(ConfigurationError, match="input-required"):
            client.list_tasks(status="sleeping")


@pytest.mark.parametrize("reason", sorted(name for name in STATUS if not issubclass(ERRORS[name], UnavailableError)))
async def test_an_error_of_the_protocol_arrives_as_its_class(agent: ScriptedAgent, reason: str) -> None:
    kind = ERRORS[reason]
    agent.plays(agent.refusal(kind("what happened")))
    async with agent.client() as client:
        with pytest.raises(kind) as caught:
            await client.get_task("t1")
    assert type(caught.value) is kind
    assert caught.value.message == "what happened"
    assert len(agent.calls) == 1


async def test_an_operation_without_a_result_takes_an_answer_without_one() -> None:
    # As a2a-sdk 1.3.0 answers a deleted push config in 0.3.
    agent = ScriptedAgent("jsonrpc")
    agent.plays(httpx.Response(200, json={"jsonrpc": "2.0", "id": "1"}), httpx.Response(200))
    async with agent.client() as client:
        await client.delete_push_config("t1", "p1")
        await client.delete_push_config("t1", "p1")
    agent.plays(
        httpx.Response(200, json={"jsonrpc": "2.0", "id": "1"}),
        httpx.Response(200, json={"detail": "Where am I?"}),
        agent.refusal(TaskNotFoundError("gone")),
    )
    async with agent.client() as client:
        with pytest.raises(ProtocolError, match="neither result nor error"):
            await client.get_task("t1")
        with pytest.raises(ProtocolError, match="neither result nor error"):
            await client.delete_push_config("t1", "p1")
        with pytest.raises(TaskNotFoundError):
            await client.delete_push_config("t1", "p1")


async def test_an_error_brings_its_facts_along(agent: ScriptedAgent) -> None:
    agent.plays(
        agent.refusal(TaskNotFoundError("gone", taskId="t1")),
        agent.refusal(InvalidParamsError("bad", field="message.parts")),
    )
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError) as missing:
            await client.get_task("t1")
        with pytest.raises(InvalidParamsError) as invalid:
            await client.get_task("t1")
    assert missing.value.metadata == {"taskId": "t1"}
    assert invalid.value.field == "message.parts"


async def test_a_message_to_an_ended_task_is_the_error_that_a2akit_calls_terminal(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(ERRORS["UNSUPPORTED_OPERATION"]("the task has ended")))
    async with agent.client() as client:
        with pytest.raises(TaskTerminalError):
            await client.send("x", task_id="t1")


async def test_an_unavailable_agent_says_when_to_come_back(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(UnavailableError("full"), **{"Retry-After": "7"}))
    async with agent.client(max_retries=0) as client:
        with pytest.raises(UnavailableError) as caught:
            await client.get_task("t1")
    assert caught.value.retry_after == 7
