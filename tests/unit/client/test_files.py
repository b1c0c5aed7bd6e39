"""AgentFiles at addresses that an agent names: the client fetches only what it may, and checks what it gets."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from errands.client import A2AClient, AgentCapabilityError, FileRefusedError, ProtocolError
from errands.client.agent_session import AgentSession, RetryPolicy
from errands.client.files import AgentFiles, allowed_origins
from errands.errors import ConfigurationError, PayloadTooLargeError, TaskNotFoundError
from errands.model.base import encode
from errands.model.card import BLOBS_EXTENSION, AgentCapabilities, AgentCard, AgentExtension
from errands.model.core import Part
from errands.outbound import Outbound
from tests.live import live
from tests.unit.client.agent import URL, Bytes, card

pytestmark = pytest.mark.anyio

CONTENT = bytes(range(256)) * 10
SECRET = {"Authorization": "Bearer secret"}


#: Nothing is called with it.
SESSION = AgentSession(card(), cast(Any, None), RetryPolicy(), "1.0", None, 5.0)


def digest_of(content: bytes) -> str:
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


class Agent:
    """Answers with the next of these, and notes what it was asked."""

    def __init__(self, *answers: httpx.Response, offer: dict[str, Any] | None = None) -> None:
        self._answers = list(answers)
        self.asked: list[httpx.Request] = []
        self.card: AgentCard = card()
        if offer is not None:
            extension = AgentExtension(uri=BLOBS_EXTENSION, params=offer)
            self.card = msgspec.structs.replace(self.card, capabilities=AgentCapabilities(extensions=[extension]))

    async def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path.startswith("/.well-known"):
            return httpx.Response(200, content=encode(self.card))
        await request.aread()
        self.asked.append(request)
        return self._answers.pop(0)


@asynccontextmanager
async def client_of(agent: Agent, **options: Any) -> AsyncIterator[A2AClient]:
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(agent.answer), follow_redirects=True) as http,
        A2AClient(URL, httpx_client=http, headers=SECRET, retry_delay=0, **options) as client,
    ):
        yield client


ELSEWHERE = [
    "http://127.0.0.1/x",
    "http://2130706433/x",
    "http://0177.0.0.1/x",
    "http://0x7f.1/x",
    "http://[::1]/x",
    "http://[::ffff:127.0.0.1]/x",
    "http://169.254.169.254/latest/meta-data",
    "http://agent.test.evil.example/x",
    "http://agent.test./x",
    "http://agent.test:81/x",
    "https://agent.test/x",
    "http://evil.example/http://agent.test/x",
    "//agent.test/x",
    "/x",
    "file:///etc/passwd",
    "ftp://agent.test/x",
    "errands-blob:x",
    "http://user:password@agent.test/x",
    "http://agent.test@evil.example/x",
    "http://agent.test\\@evil.example/x",
    "http://agent.test/x\r\nX-Evil: 1",
    "http://agent.test/x HTTP/1.1",
    "http://agent.test\t/x",
    "http://\uff41gent.test/x",
    "http:///x",
    "http://[agent.test/x",
    "",
]


@pytest.mark.parametrize("url", ELSEWHERE)
async def test_a_file_elsewhere_is_not_fetched(url: str) -> None:
    agent = Agent()
    async with client_of(agent) as client:
        with pytest.raises(FileRefusedError):
            await client.download(Part(url=url))
        with pytest.raises(FileRefusedError):
            await client.download(url)
    assert agent.asked == []


async def test_the_agents_own_file_is_fetched_with_the_credentials_and_checked(tmp_path: Path) -> None:
    headers = {"Repr-Digest": digest_of(CONTENT)}
    answers = [httpx.Response(200, content=CONTENT, headers=headers) for _ in range(2)]
    agent = Agent(*answers, httpx.Response(200, content=CONTENT[:-1], headers=headers))
    async with client_of(agent) as client:
        assert await client.download(Part(url="http://AGENT.test:80/x")) == CONTENT
        assert (await client.download_to(f"{URL}/x", tmp_path / "x")).read_bytes() == CONTENT
        with pytest.raises(ProtocolError, match="checksum"):
            await client.download(f"{URL}/x")
        assert await client.download(Part(raw=b"inside")) == b"inside"
        with pytest.raises(ValueError, match="not a file"):
            await client.download(Part(text="x"))
    assert all(request.headers["authorization"] == "Bearer secret" for request in agent.asked)


async def test_a_redirect_is_not_followed() -> None:
    agent = Agent(httpx.Response(302, headers={"Location": "http://169.254.169.254/"}))
    async with client_of(agent) as client:
        with pytest.raises(FileRefusedError, match="redirect"):
            await client.download(f"{URL}/x")
    assert len(agent.asked) == 1


async def test_a_download_is_bounded_and_leaves_no_half_file(tmp_path: Path) -> None:
    agent = Agent(httpx.Response(200, content=CONTENT), httpx.Response(404, content=b"<html>"))
    async with client_of(agent) as client:
        with pytest.raises(PayloadTooLargeError, match="more than 100 bytes"):
            await client.download_to(f"{URL}/x", tmp_path / "x", max_bytes=100)
        with pytest.raises(TaskNotFoundError):
            await client.download_to(f"{URL}/x", tmp_path / "x")
    assert os.listdir(tmp_path) == []


async def test_a_broken_download_goes_on_where_it_broke() -> None:
    headers = {"Repr-Digest": digest_of(CONTENT)}
    agent = Agent(
        httpx.Response(200, stream=Bytes([CONTENT[:700]], httpx.ReadError("broke")), headers=headers),
        httpx.Response(503),
        httpx.Response(206, content=CONTENT[700:], headers=headers),
    )
    async with client_of(agent) as client:
        assert await client.download(f"{URL}/x") == CONTENT
    assert [request.headers.get("range") for request in agent.asked] == [None, "bytes=700-", "bytes=700-"]


async def test_an_agent_that_knows_no_ranges_sends_it_all_again() -> None:
    agent = Agent(
        httpx.Response(200, stream=Bytes([CONTENT[:700]], httpx.ReadError("broke"))),
        httpx.Response(200, content=CONTENT),
    )
    async with client_of(agent) as client:
        assert await client.download(f"{URL}/x") == CONTENT


# Other origins


def files(allowed: str, outbound: Outbound | None = None) -> AgentFiles:
    return AgentFiles(
        httpx.AsyncClient(transport=httpx.MockTransport(Agent().answer)),
        [URL],
        headers=SECRET,
        retry=RetryPolicy(max_retries=0),
        timeout=5.0,
        allowed=allowed_origins([allowed]),
        outbound=outbound,
    )


@pytest.mark.parametrize(
    "origin",
    [
        *("http://127.0.0.1", "http://2130706433", "http://0x7f.1", "http://127.1"),
        *("http://[::1]", "http://[::ffff:127.0.0.1]", "http://[::ffff:7f00:1]", "http://169.254.169.254"),
    ],
)
async def test_an_allowed_origin_must_lead_to_a_public_address(origin: str) -> None:
    with pytest.raises(FileRefusedError, match="only public addresses may be reached"):
        await files(origin).download(f"{origin}/x", SESSION, max_bytes=100)


async def test_a_name_that_changes_its_address_gains_nothing() -> None:
    answers = [["93.184.215.14"], ["127.0.0.1"]]

    async def rebind(host: str, port: int) -> list[str]:
        return answers.pop()

    guarded = files("http://files.example", Outbound(resolve=rebind))
    with pytest.raises(FileRefusedError, match=r"leads to 127\.0\.0\.1"):
        await guarded.download("http://files.example/x", SESSION, max_bytes=9)
    assert len(answers) == 1


async def test_another_origin_is_not_shown_the_credentials() -> None:
    seen: list[Request] = []

    async def serve(request: Request) -> Response:
        seen.append(request)
        if request.url.path == "/away":
            return Response(status_code=302, headers={"Location": "/x"})
        return Response(CONTENT)

    with live(Starlette(routes=[Route("/{path:path}", serve)])) as url:
        allowed = files(url, Outbound(["127.0.0.1"]))
        assert await allowed.download(f"{url}/x", SESSION, max_bytes=10_000) == CONTENT
        with pytest.raises(FileRefusedError, match="redirect"):
            await allowed.download(f"{url}/away", SESSION, max_bytes=10_000)
    assert all("authorization" not in request.headers for request in seen)
    assert len(seen) == 2


@pytest.mark.parametrize(
    "origin", ["files.example", "http://user@files.example", "ftp://files.example", "http://0177.0.0.1"]
)
def test_a_wrong_origin_is_refused_when_the_client_is_made(origin: str) -> None:
    with pytest.raises(ConfigurationError, match="download_from"):
        A2AClient(URL, download_from=[origin])


# Uploads

OFFER = {"url": f"{URL}/blobs", "above": 100, "maxBytes": 5000}


async def test_an_upload_has_its_checksum_and_is_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "a b.bin"
    path.write_bytes(CONTENT)
    agent = Agent(httpx.Response(503), httpx.Response(201, json={"url": f"{URL}/blobs/1"}), offer=OFFER)
    async with client_of(agent) as client:
        part = await client.upload(path, media_type="x/y")
        assert part == Part(url=f"{URL}/blobs/1", filename="a b.bin", media_type="x/y")
        with pytest.raises(PayloadTooLargeError, match="files of 5000 bytes"):
            await client.upload(b"x" * 5001)
    for request in agent.asked:
        assert request.content == CONTENT
        assert request.url.query == b"filename=a+b.bin"
        assert request.headers["content-digest"] == digest_of(CONTENT)
        assert request.headers["authorization"] == "Bearer secret"


async def test_nothing_is_uploaded_to_an_address_that_is_not_the_agents() -> None:
    agent = Agent(httpx.Response(400), offer={**OFFER, "url": "http://evil.example/blobs"})
    async with client_of(agent, protocol="http+json") as client:
        with pytest.raises(FileRefusedError, match="not an address of the agent"):
            await client.upload(CONTENT)
        with pytest.raises(ProtocolError):
            await client.send([Part(raw=CONTENT)])
    (request,) = agent.asked
    assert request.url.host == "agent.test"
    assert b'"raw"' in request.content


@pytest.mark.parametrize("offer", [None, {}, {**OFFER, "above": "many"}])
async def test_an_agent_without_uploads_is_sent_files_inside_the_message(offer: dict[str, Any] | None) -> None:
    agent = Agent(httpx.Response(400), offer=offer)
    async with client_of(agent, protocol="http+json") as client:
        with pytest.raises(AgentCapabilityError, match="does not offer uploads"):
            await client.upload(CONTENT)
        with pytest.raises(ProtocolError):
            await client.send([Part(raw=CONTENT)])
    assert b'"raw"' in agent.asked[0].content
