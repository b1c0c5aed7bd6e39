"""On the wire: what a2akit's client sends, which has paths of 1.0 and objects of 0.3, and what it reads."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import httpx
import pytest

from errands import CapabilitiesConfig
from errands.client.discovery import DIALECTS
from errands.client.http_transport import RestBinding
from errands.model.requests import GetTaskRequest
from errands.operations import OPERATIONS
from errands.testing import serve
from tests.interaction.agents import Asks, Direct, Echo, Patient, card
from tests.interaction.wire import CARD, http, message, rpc

pytestmark = pytest.mark.anyio

HEADERS = {"A2A-Version": "0.3.0"}
VERSIONS = pytest.mark.parametrize("versions", [["1.0", "0.3"], ["0.3"]], ids=str)


def said(text: str = "hi", **fields: Any) -> dict[str, Any]:
    parts = [{"kind": "text", "text": text}]
    return {"kind": "message", "messageId": str(uuid4()), "role": "user", "parts": parts, **fields}


def asked(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"message": said(text, **fields), "configuration": {"blocking": True}}


@VERSIONS
async def test_the_answer_is_the_task_itself(versions: list[str]) -> None:
    async with http(serve(Echo(), protocol_versions=versions), headers=HEADERS) as client:
        task = (await client.post("/message:send", json=asked())).json()
        assert (task["kind"], task["status"]["state"]) == ("task", "completed")
        again = (await client.get(f"/tasks/{task['id']}")).json()
        assert again["artifacts"][0]["parts"] == [{"kind": "text", "text": "Echo: hi"}]
        listed = (await client.get("/tasks", params={"status": "completed"})).json()["tasks"]
        assert [each["status"]["state"] for each in listed] == ["completed"]


async def test_the_answer_may_be_the_message_itself() -> None:
    async with http(serve(Direct()), headers=HEADERS) as client:
        answer = (await client.post("/message:send", json=asked())).json()
        assert (answer["kind"], answer["role"]) == ("message", "agent")


async def test_events_are_the_objects_themselves() -> None:
    async with http(serve(Echo(), agent_card=card()), headers=HEADERS) as client:
        answer = await client.post("/message:stream", json=asked())
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.splitlines() if line.startswith("data:")]
    assert all('"kind":"' in line and '"statusUpdate"' not in line for line in lines)
    assert '"completed"' in lines[-1]


@VERSIONS
async def test_the_extended_card_is_where_a2akit_looks_for_it(versions: list[str]) -> None:
    async def extended(_: object) -> Any:
        return card(version="2")

    server = serve(Echo(), agent_card=card(), protocol_versions=versions, extended_card_provider=extended)
    async with http(server, headers=HEADERS) as client:
        answer = await client.get("/card")
    assert (answer.status_code, answer.json()["version"]) == (200, "2")


async def test_without_the_header_these_paths_are_those_of_1_0() -> None:
    async with http(serve(Echo())) as client:
        task = (await client.post("/message:send", json={"message": message()})).json()["task"]
        assert task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert (await client.get("/card")).status_code == 404


async def test_where_0_3_is_not_served_the_version_is_refused() -> None:
    async with http(serve(Echo(), protocol_versions=["1.0"]), headers=HEADERS) as client:
        answer = await client.post("/message:send", json=asked())
        assert (answer.status_code, "0.3.0 is not supported" in answer.text) == (400, True)


async def test_statuses_are_those_for_which_a2akit_has_errors() -> None:
    async with http(serve(Echo()), headers=HEADERS) as client:
        task = (await client.post("/message:send", json=asked())).json()
        ended = await client.post("/message:send", json=asked(taskId=task["id"]))
        assert (ended.status_code, ended.json()["code"]) == (409, -32004)
        canceled = await client.post(f"/tasks/{task['id']}:cancel")
        assert (canceled.status_code, canceled.json()["code"]) == (409, -32002)
        no_message = await client.post("/message:send", json={})
        assert (no_message.status_code, no_message.json()["code"]) == (400, -32602)
        assert (await client.get("/tasks/no-such-task")).status_code == 404
        no_card = await client.get("/card")
        assert (no_card.status_code, no_card.json()["code"]) == (404, -32007)


async def test_a_message_for_another_context_and_a_stream_that_is_not_offered_are_bad_requests() -> None:
    async with http(serve(Asks(), agent_card=card(capabilities=CapabilitiesConfig())), headers=HEADERS) as client:
        task = (await client.post("/message:send", json=asked())).json()
        elsewhere = await client.post("/message:send", json=asked(taskId=task["id"], contextId="other"))
        assert (elsewhere.status_code, elsewhere.json()["code"]) == (400, -32602)
        stream = await client.post("/message:stream", json=asked())
        assert (stream.status_code, stream.json()["code"]) == (400, -32004)


@pytest.mark.parametrize("headers", [{}, {"A2A-Version": "0.3"}], ids=str)
async def test_other_clients_of_0_3_leave_blocking_out_to_wait(headers: dict[str, str]) -> None:
    async with http(serve(Asks()), headers=headers) as client:
        answer = await client.post("/", json=rpc("message/send", {"message": said()}))
    assert answer.json()["result"]["status"]["state"] == "input-required"


@pytest.mark.parametrize("configuration", [{}, {"configuration": {"historyLength": 1}}], ids=str)
async def test_a2akits_client_leaves_blocking_out_to_go_on_at_once(configuration: dict[str, Any]) -> None:
    worker = Patient()
    async with http(serve(worker), headers=HEADERS) as client:
        for answer in (
            await client.post("/message:send", json={"message": said(), **configuration}),
            await client.post("/", json=rpc("message/send", {"message": said(), **configuration})),
        ):
            task = answer.json().get("result", answer.json())
            assert task["status"]["state"] in ("submitted", "working")
            canceled = await client.post(f"/tasks/{task['id']}:cancel")
            assert canceled.json()["status"]["state"] == "canceled"


@pytest.mark.parametrize(("version", "kind"), [("0.3.0", "application/json"), ("0.3", "text/event-stream")])
async def test_a_stream_that_is_refused_over_jsonrpc_is_refused_as_the_client_reads_it(version: str, kind: str) -> None:
    async with http(serve(Echo(), agent_card=card()), headers={"A2A-Version": version}) as client:
        answer: httpx.Response = await client.post("/", json=rpc("tasks/resubscribe", {"id": "no-such-task"}))
    assert answer.headers["content-type"].startswith(kind)
    assert "-32001" in answer.text


async def test_health_is_also_where_a2akit_has_it() -> None:
    async with http(serve(Echo())) as client:
        assert (await client.get("/v1/health")).json() == {"status": "ok"}
        assert (await client.get("/v1/health/ready")).status_code == 200
        assert (await client.get(CARD)).status_code == 200


@pytest.mark.parametrize(
    ("address", "asks"),
    [
        ("http://agent.test/v1", "http://agent.test/v1/tasks/t"),
        ("http://agent.test/v1/", "http://agent.test/v1/tasks/t"),
        ("http://agent.test", "http://agent.test/v1/tasks/t"),
        # Mounted there, as the specification means it.
        ("http://agent.test/agents/v1", "http://agent.test/agents/v1/v1/tasks/t"),
    ],
)
def test_our_client_does_not_double_the_v1_of_a2akits_cards(address: str, asks: str) -> None:
    dialect = DIALECTS["0.3", "http+json"]
    assert dialect != "grpc"
    binding = RestBinding(address, dialect)
    assert binding.wrap(OPERATIONS["GetTask"], GetTaskRequest(id="t")).url == asks
