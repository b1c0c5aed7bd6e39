"""Redis with TLS. The server of the tests' wheel knows none, so something that does stands before it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme

from errands.engines.redis import RedisEngine
from errands.errors import StorageError
from tests.contract.changes import ME, Changes, ManualClock, collect
from tests.contract.health import trouble_of
from tests.redis_server import Server

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def trusted(authority: trustme.CA) -> Iterator[str]:
    with authority.cert_pem.tempfile() as path:
        yield path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@asynccontextmanager
async def encrypted(server: Server, authority: trustme.CA, *, wants_certificate: bool = False) -> AsyncIterator[int]:
    """The port at which the server is reached with TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    if wants_certificate:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED

    async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", server.port)
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer))

    front = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield front.sockets[0].getsockname()[1]
    finally:
        front.close()


async def test_everything_goes_over_tls(
    server: Server, authority: trustme.CA, trusted: str, changes: Changes, clock: ManualClock
) -> None:
    async with encrypted(server, authority) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={trusted}"
        async with RedisEngine(url, clock=clock) as engine, RedisEngine(url, clock=clock) as other:
            await engine.commit(changes.start())
            subscription = other.subscribe("t", ME, 0)
            await engine.commit(changes.chunk())
            assert await collect(subscription, 3) == [1, 2, 3]
            subscription.close()


async def test_a_certificate_that_nobody_vouches_for_is_refused(server: Server, authority: trustme.CA) -> None:
    async with encrypted(server, authority) as port:
        with pytest.raises(StorageError, match=r"its certificate if it has one.*CERTIFICATE_VERIFY_FAILED"):
            await RedisEngine(f"rediss://localhost:{port}/0").open()


async def test_a_certificate_for_another_name_is_refused(server: Server, authority: trustme.CA, trusted: str) -> None:
    async with encrypted(server, authority) as port:
        with pytest.raises(StorageError, match="CERTIFICATE_VERIFY_FAILED"):
            await RedisEngine(f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={trusted}").open()


async def test_a_server_that_wants_a_certificate_is_shown_one(
    server: Server, authority: trustme.CA, trusted: str
) -> None:
    own = authority.issue_cert("agent@example.org")
    async with encrypted(server, authority, wants_certificate=True) as port:
        url = f"rediss://localhost:{port}/0?ssl_ca_certs={trusted}"
        with pytest.raises(StorageError, match="its certificate if it has one"):
            await RedisEngine(url).open()
        with own.cert_chain_pems[0].tempfile() as certificate, own.private_key_pem.tempfile() as key:
            async with RedisEngine(f"{url}&ssl_certfile={certificate}&ssl_keyfile={key}") as engine:
                assert await trouble_of(engine) == ""
