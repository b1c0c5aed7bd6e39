"""On the wire: what a web page could make a browser send to an agent on its reader's machine."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from errands import Settings
from errands.testing import serve
from tests.interaction.agents import Echo
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
    server.listens_locally = True
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
    server.listens_locally = True
    async with http(server) as client:
        assert (await client.get("/tasks", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize("settings", [{"public_url": "https://agents.example/echo"}, {"trust_forwarded": True}])
async def test_a_local_server_answers_to_the_name_that_a_proxy_passes_on(settings: dict[str, Any]) -> None:
    server = serve(Echo(), settings=Settings(storage="memory", **settings))
    server.listens_locally = True
    async with http(server) as client:
        assert (await client.get("/tasks", headers={"Host": "agents.example"})).status_code == 200
