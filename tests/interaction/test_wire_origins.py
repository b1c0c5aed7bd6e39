"""On the wire: what a web page could make a browser send to an agent on its reader's machine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from errands import Settings
from errands.operations import OPERATIONS, Operation
from errands.testing import serve
from tests.interaction.agents import Echo, Patient
from tests.interaction.wire import CARD, http, message, rpc

pytestmark = pytest.mark.anyio

ORIGIN = {"Origin": "https://page.example"}


async def posted(client: httpx.AsyncClient, path: str, **headers: str) -> httpx.Response:
    body: dict[str, Any] = {"message": message()}
    if path == "/":
        body = rpc("SendMessage", body)
    elif path == "/a2a":
        spoken = {"messageId": "m", "role": "user", "parts": [{"text": "hi"}]}
        body = rpc("message/send", {"message": spoken})
    return await client.post(path, content=json.dumps(body), headers=headers)


@pytest.mark.parametrize("path", ["/", "/a2a", "/message:send", "/v1/message:send"])
async def test_a_page_cannot_send_a_message_without_saying_what_it_is(path: str) -> None:
    """A browser does not ask beforehand when a body has no type."""
    async with http(serve(Echo())) as client:
        assert "Content-Type must be" in (await posted(client, path, **ORIGIN)).text
        assert (await client.get("/tasks")).json()["totalSize"] == 0


@pytest.mark.parametrize("headers", [{}, {**ORIGIN, "Content-Type": "application/json"}])
async def test_programs_and_pages_of_allowed_origins_can(headers: dict[str, str]) -> None:
    async with http(serve(Echo())) as client:
        assert "result" in (await posted(client, "/", **headers)).json()
        assert "task" in (await posted(client, "/message:send", **headers)).json()


#: What a page can send to another origin without a preflight.
SIMPLE = [
    {},
    ORIGIN,
    {**ORIGIN, "Content-Type": "text/plain"},
    {**ORIGIN, "Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Origin": "null", "Accept": "application/json", "Accept-Language": "en", "Content-Language": "en"},
]
ASKED = [
    {**ORIGIN, "Content-Type": "application/json"},
    {"Content-Type": "application/a2a+json"},
    {"A2A-Version": "1.0"},
    {**ORIGIN, "X-API-Key": "secret"},
]


async def started(client: httpx.AsyncClient, worker: Patient) -> str:
    body = {"message": message(), "configuration": {"returnImmediately": True}}
    task_id: str = (await client.post("/message:send", json=body)).json()["task"]["id"]
    await worker.started.wait()
    return task_id


@pytest.mark.parametrize("headers", SIMPLE, ids=str)
@pytest.mark.parametrize("path", ["/tasks/{}:cancel", "/v1/tasks/{}:cancel", "/tenant/tasks/{}:cancel"])
async def test_a_page_cannot_cancel_a_task_whose_id_it_knows(path: str, headers: dict[str, str]) -> None:
    """A browser does not ask beforehand when there is no body, either."""
    worker = Patient()
    async with http(serve(worker, settings=Settings(drain_timeout=0))) as client:
        task_id = await started(client, worker)
        for body in (b"", b"{}"):
            if body and headers == {}:
                continue  # from a program
            refused = await client.post(path.format(task_id), headers=headers, content=body)
            assert refused.status_code in (400, 415)
            assert "Content-Type must be application/json" in refused.text
        assert (await client.get(f"/tasks/{task_id}")).json()["status"]["state"] == "TASK_STATE_WORKING"


@pytest.mark.parametrize("headers", ASKED, ids=str)
async def test_what_a_browser_asks_for_beforehand_can_cancel_without_a_body(headers: dict[str, str]) -> None:
    worker = Patient()
    async with http(serve(worker, settings=Settings(drain_timeout=0))) as client:
        task_id = await started(client, worker)
        canceled = await client.post(f"/tasks/{task_id}:cancel", headers=headers)
        assert canceled.json()["status"]["state"] == "TASK_STATE_CANCELED"


@pytest.mark.parametrize("operation", [each for each in OPERATIONS.values() if each.http_method == "POST"])
async def test_every_operation_that_changes_something_is_asked_for(operation: Operation) -> None:
    async with http(serve(Echo())) as client:
        path = operation.path.format(id="t", task_id="t")
        answer = await client.post(path, headers=ORIGIN)
        assert ("Content-Type must be" in answer.text) is (operation.name != "SubscribeToTask")


@pytest.mark.parametrize("path", ["/health", CARD, "/tasks", "/nothing"])
async def test_a_request_has_one_host(path: str) -> None:
    async with http(serve(Echo())) as client:
        for headers in ([], [(b"host", b"a"), (b"x", b"y"), (b"host", b"a")]):
            request = client.build_request("GET", path)
            request.headers = httpx.Headers(headers)
            refused = await client.send(request)
            assert refused.status_code == 400
            assert "Host" in refused.json()["error"]["message"]


@pytest.mark.parametrize("host", ["[", "[::1", "[::::]", "a b", "a/b", "a?b", "a#b", "a@b", 'a"b', "a" * 300, "ä"])
async def test_a_card_is_not_made_for_what_is_no_host(host: str) -> None:
    async with http(serve(Echo())) as client:
        answer = await client.get(CARD, headers=[(b"Host", host.encode())])
        assert answer.status_code == 400
        assert "Host" in answer.json()["error"]["message"]


@pytest.mark.parametrize("host", ["a.example", "a.example:8000", "[::1]:8000", "10.0.0.1", "my_agent", "A.example."])
async def test_a_card_is_made_for_whatever_is_one(host: str) -> None:
    async with http(serve(Echo())) as client:
        card = (await client.get(CARD, headers={"Host": host})).json()
        assert card["supportedInterfaces"][0]["url"] == f"http://{host}/"


@pytest.mark.parametrize("path", ["/health", CARD, "/tasks"])
async def test_a_local_server_does_not_answer_to_the_names_of_pages(path: str) -> None:
    server = serve(Echo())
    server.listen_at("127.0.0.1", 8000)
    async with http(server) as client:
        answer = await client.get(path, headers={"Host": "page.example:8000"})
        assert answer.status_code == 403
        assert "page.example" in answer.json()["error"]["message"]
        assert "ERRANDS_PUBLIC_URL" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "host",
    ["localhost:8000", "LOCALHOST", "127.0.0.1:8000", "[::1]:8000", "a.localhost", "host.docker.internal", "box", ""],
)
async def test_a_local_server_answers_to_its_own_names(host: str) -> None:
    server = serve(Echo())
    server.listen_at("127.0.0.1", 8000)
    async with http(server) as client:
        assert (await client.get("/tasks", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("settings", [{"public_url": "https://agents.example/echo"}, {"trust_forwarded": True}])
async def test_a_local_server_answers_to_the_name_that_a_proxy_passes_on(settings: dict[str, Any]) -> None:
    server = serve(Echo(), settings=Settings(storage="memory", **settings))
    server.listen_at("127.0.0.1", 8000)
    async with http(server) as client:
        assert (await client.get("/tasks", headers={"Host": "agents.example"})).status_code == 200
