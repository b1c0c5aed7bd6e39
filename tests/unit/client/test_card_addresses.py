"""A card from a public address cannot lead the client to private ones; a local one may lead anywhere."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from errands import A2AServer
from errands import outbound as outbound_module
from errands.client import A2AClient, AgentNotFoundError, FileRefusedError, PrivateAddressError
from errands.errors import ErrandsError
from errands.model.base import encode
from errands.testing import serve
from tests.interaction.agents import Echo
from tests.unit.client.serving import serving

pytestmark = pytest.mark.anyio

#: Addresses of this machine that count as public here.
PUBLIC, ALSO_PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.3", "127.0.0.1"
CARD: dict[str, Any] = {
    "name": "Outside",
    "description": "",
    "version": "1",
    "capabilities": {"streaming": True},
    "defaultInputModes": [],
    "defaultOutputModes": [],
    "skills": [],
}


@pytest.fixture(autouse=True)
def public_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    real = outbound_module.refusal

    def refusal(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str | None:
        return None if str(address) in (PUBLIC, ALSO_PUBLIC) else real(address)

    monkeypatch.setattr(outbound_module, "refusal", refusal)


@asynccontextmanager
async def card_at(host: str, *urls: str, binding: str = "JSONRPC") -> AsyncIterator[str]:
    """The address of a server that has a card which names these interfaces."""
    faces = [{"url": url, "protocolBinding": binding, "protocolVersion": "1.0"} for url in urls]

    async def card(_: Request) -> JSONResponse:
        return JSONResponse({**CARD, "supportedInterfaces": faces}, headers={"Connection": "close"})

    app = Starlette(routes=[Route("/.well-known/agent-card.json", card)])
    async with serving(app, host=host) as url:
        yield url


@asynccontextmanager
async def agent_at(host: str, **options: Any) -> AsyncIterator[tuple[A2AServer, str]]:
    server = serve(Echo(), **options)
    async with server, serving(server.app, host=host) as url:
        yield server, url


async def count(server: A2AServer) -> int:
    return len(await server.tasks.list())


async def test_a_public_card_does_not_lead_to_a_private_address() -> None:
    async with agent_at(PRIVATE) as (server, inside), card_at(PUBLIC, inside) as url, A2AClient(url) as client:
        with pytest.raises(PrivateAddressError, match=r"127\.0\.0\.1.* is this machine; .*allow_origins") as refused:
            await client.send("hi")
        assert inside in str(refused.value)
        with pytest.raises(PrivateAddressError):
            await anext(client.stream("hi"))
        with pytest.raises((PrivateAddressError, FileRefusedError)):
            await client.download(f"{inside}/blobs/x")
        assert await count(server) == 0


async def test_a_server_that_breaks_the_connection_does_not_hide_its_address() -> None:
    async with agent_at(PRIVATE) as (server, inside):
        face = {"url": inside, "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
        card = encode({**CARD, "supportedInterfaces": [face]})

        async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(card), card))
            connection = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

        async with await asyncio.start_server(break_off, PUBLIC, 0) as outside:
            port = outside.sockets[0].getsockname()[1]
            with pytest.raises((PrivateAddressError, AgentNotFoundError)):
                async with A2AClient(f"http://{PUBLIC}:{port}", max_retries=0) as client:
                    await client.send("hi")
        assert await count(server) == 0


@pytest.mark.parametrize("host", [PRIVATE, PUBLIC])
@pytest.mark.parametrize("binding", ["GRPC", "JSONRPC"])
@pytest.mark.parametrize("address", ["http://a..b:1", "http://[::1", "http://:1", "http://x:99999", "x", "", "//"])
async def test_an_address_that_leads_nowhere_is_an_error_of_the_client(host: str, binding: str, address: str) -> None:
    async with card_at(host, address, binding=binding) as url:
        with pytest.raises(ErrandsError):
            async with A2AClient(url, max_retries=0, timeout=0.2) as client:
                await client.send("hi")


async def test_a_name_that_leads_inside_is_refused() -> None:
    async with agent_at(PRIVATE) as (server, inside):
        named = inside.replace(PRIVATE, "localhost")
        async with card_at(PUBLIC, named) as url, A2AClient(url) as client:
            with pytest.raises(PrivateAddressError, match="localhost leads to 127"):
                await client.send("hi")
        assert await count(server) == 0


async def test_a_public_card_leads_to_other_public_addresses() -> None:
    async with agent_at(ALSO_PUBLIC) as (_, there), card_at(PUBLIC, there) as url, A2AClient(url) as client:
        assert (await client.send("hi")).state == "completed"
        assert [event.kind async for event in client.stream("hi")][-1] == "status"
        await client.refresh_card()
        assert (await client.send("hi")).state == "completed"


async def test_an_agent_at_its_own_host_is_not_checked() -> None:
    async with agent_at(PUBLIC) as (_, there), card_at(PUBLIC, there) as url, A2AClient(url) as client:
        assert (await client.send("hi")).state == "completed"


@pytest.mark.parametrize("there", [PRIVATE, PUBLIC])
async def test_a_local_card_leads_anywhere(there: str) -> None:
    async with agent_at(there) as (_, inside), card_at(PRIVATE, inside) as url, A2AClient(url) as client:
        assert (await client.send("hi")).state == "completed"


async def test_an_origin_that_the_user_allows_is_not_checked() -> None:
    async with agent_at(PRIVATE) as (_, inside), card_at(PUBLIC, inside) as url:
        async with A2AClient(url, allow_origins=[inside]) as client:
            assert (await client.send("hi")).state == "completed"
        async with httpx.AsyncClient() as own, A2AClient(url, httpx_client=own) as client:
            assert (await client.send("hi")).state == "completed"
            card = client.agent_card
        async with A2AClient(url, card=card) as client:
            assert (await client.send("hi")).state == "completed"


async def test_a_proxy_decides_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_at(PRIVATE) as (_, inside), card_at(PUBLIC, "http://agent.internal") as url:
        monkeypatch.setenv("http_proxy", inside)  # the agent answers as if it were the proxy
        monkeypatch.setenv("no_proxy", PUBLIC)
        async with A2AClient(url) as client:
            assert (await client.send("hi")).state == "completed"


async def test_hosts_without_a_proxy_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_at(PRIVATE) as (server, inside), card_at(PUBLIC, inside) as url:
        monkeypatch.setenv("all_proxy", "http://192.0.2.1:3128")
        monkeypatch.setenv("no_proxy", f"{PRIVATE},{PUBLIC}")
        async with A2AClient(url) as client:
            with pytest.raises(PrivateAddressError):
                await client.send("hi")
        assert await count(server) == 0


async def test_a_card_that_came_through_a_proxy_counts_as_public(monkeypatch: pytest.MonkeyPatch) -> None:
    async with agent_at(PRIVATE) as (server, inside), card_at(PRIVATE, inside) as proxy:
        monkeypatch.setenv("http_proxy", proxy)
        monkeypatch.setenv("no_proxy", PRIVATE)
        async with A2AClient("http://agent.example") as client:
            with pytest.raises(PrivateAddressError):
                await client.send("hi")
        assert await count(server) == 0


async def test_grpc_is_checked_as_well(tmp_path: Path) -> None:
    async with agent_at(PRIVATE, grpc_port=0) as (server, _):
        inside = server.cards.grpc_address
        assert inside is not None
        for address in (
            inside,
            inside.replace("127.0.0.1", "localhost"),
            f"unix:{tmp_path}/x",
            "ipv4:127.0.0.1:1",
            # The host of the card's own address is only mentioned.
            f"//{inside}/://{PUBLIC}",
            f"dns://{PUBLIC}/{inside}",
        ):
            async with card_at(PUBLIC, address, binding="GRPC") as url:
                with pytest.raises(PrivateAddressError):
                    await A2AClient(url).connect()
        async with card_at(PRIVATE, inside, binding="GRPC") as url, A2AClient(url) as client:
            assert (await client.send("hi")).state == "completed"


async def test_grpc_at_another_public_host_is_used() -> None:
    async with agent_at(PRIVATE, grpc_port=0, grpc_host=ALSO_PUBLIC) as (server, _):
        there = server.cards.grpc_address
        assert there is not None
        assert ALSO_PUBLIC in there
        async with card_at(PUBLIC, there, binding="GRPC") as url, A2AClient(url) as client:
            assert client.protocol == "grpc"
            assert (await client.send("hi")).state == "completed"
