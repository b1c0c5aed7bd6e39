"""The client that posts notifications, against hosts that answer in every way."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from email.utils import formatdate
from pathlib import Path
from typing import Any

import httpx
import pytest
import trustme

from errands.model.log import OutboxEntry, PushConfig, Scope
from errands.outbound import Outbound
from errands.runtime import webhooks
from errands.runtime.webhooks import DeliveryError, PushNotification, WebhookClient
from tests.waiting import until

pytestmark = pytest.mark.anyio

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
NOTIFICATION = PushNotification(3, b'{"a": 1}')

Respond = Callable[[asyncio.StreamWriter], Awaitable[object]]


class Host:
    """A host of webhooks: what it received, and over how many connections."""

    def __init__(self) -> None:
        self.port = 0
        self.requests: list[bytes] = []
        self.connections = 0
        #: The connection that came last.
        self.writer: asyncio.StreamWriter


@asynccontextmanager
async def answering(*responses: bytes | Respond, tls: ssl.SSLContext | None = None) -> AsyncIterator[Host]:
    """Answer one request after the other with these responses, the last of them repeatedly."""
    host = Host()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host.connections += 1
        host.writer = writer
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                host.requests.append(head + await reader.readexactly(length))
                response = responses[min(len(host.requests), len(responses)) - 1]
                if isinstance(response, bytes):
                    writer.write(response)
                else:
                    await response(writer)
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()


@contextmanager
def client(timeout: float = 5.0, guard: Outbound | None = None) -> Iterator[WebhookClient]:
    client = WebhookClient(guard or Outbound(["127.0.0.1", "hooks.example"]), timeout, None)
    try:
        yield client
    finally:
        client.close()


def entry(url: str, **fields: str) -> OutboxEntry:
    config = PushConfig(id="c", url=url, host="hooks.example:80", **fields)
    return OutboxEntry(task_id="t", scope=Scope(), config=config, delivered=0)


async def post(client: WebhookClient, host: Host, **fields: str) -> None:
    await client.post(entry(f"http://127.0.0.1:{host.port}/hook?a=1", **fields), NOTIFICATION, 1_000)


def in_pieces(*pieces: bytes) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0.01)

    return respond


def and_close(response: bytes) -> Respond:
    async def respond(writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        writer.close()

    return respond


async def hang(writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def test_a_request_has_the_path_the_host_and_the_body() -> None:
    async with answering(OK) as host:
        with client() as sender:
            await post(sender, host, token="t-1", scheme="Bearer", credentials="c-1")
    head, _, body = host.requests[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /hook?a=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % host.port)
    assert b"\r\nAuthorization: Bearer c-1\r\nX-A2A-Notification-Token: t-1" in head
    assert body == NOTIFICATION.body


@pytest.mark.parametrize(
    "response",
    [
        OK,
        in_pieces(OK[:10], OK[10:30], OK[30:]),
        b"HTTP/1.1 204 No Content\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\nContent-Length: 2\n\nok",
        b"HTTP/1.1 200 OK\r\nX-Long: a\r\n b\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
    ids=["whole", "pieces", "no content", "chunked", "continue", "hints", "bare LF", "folded", "length and chunks"],
)
async def test_a_connection_is_used_for_the_next_request(response: bytes | Respond) -> None:
    async with answering(response) as host:
        with client() as sender:
            for _ in range(3):
                await post(sender, host)
    assert (len(host.requests), host.connections) == (3, 1)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        and_close(b"HTTP/1.1 200 OK\r\n\r\nuntil the end"),
        and_close(b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"),
        b"HTTP/1.1 200 OK\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 100_000,
        OK + b"HTTP/1.1 500 Unasked\r\nContent-Length: 0\r\n\r\n",
        OK + b"HTTP/1.1 202 Unasked\r\nX-Fill: ",
    ],
    ids=["close", "until the end", "1.0", "endless", "second response", "begin of a second response"],
)
async def test_an_answer_after_which_the_connection_is_not_used_again(response: bytes | Respond) -> None:
    async with answering(response) as host:
        with client() as sender:
            await post(sender, host)
            await post(sender, host)
    assert (len(host.requests), host.connections) == (2, 2)


async def test_a_host_that_closes_an_idle_connection_gets_the_request_over_a_new_one() -> None:
    async def promise_and_leave(writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        await writer.drain()
        writer.close()

    async with answering(promise_and_leave, OK) as host:
        with client() as sender:
            await post(sender, host)
            await post(sender, host)
    assert host.connections == 2


async def test_a_request_on_a_used_connection_that_is_not_answered_is_sent_again() -> None:
    async def leave(writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with answering(OK, leave, OK) as host:
        with client() as sender:
            await post(sender, host)
            await post(sender, host)
    assert len(host.requests) == 3
    assert host.requests[1] == host.requests[2]


async def test_a_request_is_sent_again_only_once_however_many_connections_are_idle() -> None:
    came = asyncio.Event()

    async def wait_for_all(writer: asyncio.StreamWriter) -> None:
        if len(host.requests) == 3:
            came.set()
        await came.wait()
        writer.write(OK)

    async with answering(wait_for_all, wait_for_all, wait_for_all, and_close(b"")) as host:
        with client() as sender:
            await asyncio.gather(*(post(sender, host) for _ in range(3)))
            with pytest.raises(DeliveryError, match="closed the connection"):
                await post(sender, host)
    assert len(host.requests) == 3 + 2


async def test_a_request_on_a_used_connection_is_not_sent_again_if_the_answer_has_begun() -> None:
    async with answering(OK, and_close(b"HTTP/1.1 200"), OK) as host:
        with client() as sender:
            await post(sender, host)
            with pytest.raises(DeliveryError, match="closed the connection"):
                await post(sender, host)
    assert len(host.requests) == 2


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
@pytest.mark.parametrize("unasked", [OK, b"HTTP/1.1 202 Unasked\r\nX-Fill: ", b"H"], ids=["whole", "begin", "byte"])
async def test_what_a_host_sends_without_a_request_does_not_answer_the_next_one(unasked: bytes, is_read: bool) -> None:
    async with answering(OK) as host, answering(OK) as other:
        with client() as sender:
            await post(sender, host)
            host.writer.write(unasked)
            if is_read:
                await post(sender, other)  # the event loop reads in the meantime
            await post(sender, host)
    assert (len(host.requests), host.connections) == (2, 2)


@pytest.mark.parametrize("greeting", [OK, b"HTTP/1.1 202 Unasked\r\nX-Fill: ", b""], ids=["whole", "begin", "leaves"])
async def test_a_host_that_does_not_wait_for_the_request_fails_at_once(greeting: bytes) -> None:
    greeted = asyncio.Event()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        greeted.set()
        with suppress(ConnectionError):
            await reader.read(1 if greeting else 0)
        writer.close()

    class Patient(Outbound):
        async def connect(self, *args: Any, **options: Any) -> Any:
            connection = await super().connect(*args, **options)
            await greeted.wait()
            await until(connection.transport.is_closing)
            return connection

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        with client(guard=Patient(["127.0.0.1"])) as sender, pytest.raises(DeliveryError, match="did not wait"):
            await sender.post(entry(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), NOTIFICATION, 0)


@pytest.mark.parametrize("connection", ["close", "keep-alive"])
async def test_a_host_that_answers_before_it_has_read_the_request_gets_no_more_of_it(connection: str) -> None:
    answered, rest = asyncio.Event(), asyncio.get_running_loop().create_future()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 No\r\nConnection: %b\r\nContent-Length: 0\r\n\r\n" % connection.encode())
        await answered.wait()
        read = 0
        with suppress(ConnectionError):
            while piece := await reader.read(100_000):
                read += len(piece)
        rest.set_result(read)
        writer.close()

    large = PushNotification(3, b"x" * 30_000_000)
    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with server:
        with client() as sender:
            with pytest.raises(DeliveryError, match="HTTP 413"):
                await sender.post(entry(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"), large, 0)
            answered.set()
            async with asyncio.timeout(webhooks.KEEP_IDLE):
                assert await rest < len(large.body)


@pytest.mark.parametrize(
    ("response", "message"),
    [
        (b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n", "HTTP 500"),
        (b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n", "HTTP 302"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "HttpParser"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: h2c\r\nConnection: upgrade\r\n\r\n", "another protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"X-Fill: %b\r\n" % (b"x" * 100) * 1000, "more than"),
        (and_close(b""), "closed the connection"),
        (and_close(b"HTTP/1.1 200"), "closed the connection"),
    ],
    ids=["error", "redirect", "garbage", "upgrade", "large head", "nothing", "half"],
)
async def test_an_answer_that_is_a_failure(response: bytes | Respond, message: str) -> None:
    async with answering(response) as host:
        with client() as sender, pytest.raises(DeliveryError, match=message):
            await post(sender, host)


async def test_a_host_can_ask_for_a_pause_and_end_deliveries() -> None:
    wait = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nContent-Length: 0\r\n\r\n"
    gone = b"HTTP/1.1 410 Gone\r\nRetry-After: soon\r\nContent-Length: 0\r\n\r\n"
    async with answering(wait, gone) as host:
        with client() as sender:
            with pytest.raises(DeliveryError) as paused:
                await post(sender, host)
            with pytest.raises(DeliveryError) as ended:
                await post(sender, host)
    assert (paused.value.retry_after, paused.value.is_final) == (7.0, False)
    assert (ended.value.retry_after, ended.value.is_final) == (0.0, True)


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        (b" 7 \t", 7, 7),
        (formatdate(time.time() + 10_000, usegmt=True).encode(), 9_000, 10_000),
        (b"Thu, 01 Jan 1970 00:00:00 GMT", 0, 0),
        (b"86400000", 86_400_000, 86_400_000),
        (b"9" * 5000, 86_400_000, 1e12),
        (b"-7", 0, 0),
        (b"\xff\xfe", 0, 0),
        (b"Fri, 31 Dec 9999 23:59:59 +99999999999999999999", 0, 0),
    ],
    ids=["spaces", "date", "past", "long", "endless", "negative", "bytes", "zone"],
)
async def test_a_pause_is_a_number_of_seconds_or_a_date(value: bytes, least: float, most: float) -> None:
    response = b"HTTP/1.1 429 Slow\r\nRetry-After: %b\r\nContent-Length: 0\r\n\r\n" % value
    async with answering(response) as host:
        with client() as sender, pytest.raises(DeliveryError) as paused:
            await post(sender, host)
    assert least <= paused.value.retry_after <= most


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 103 Hints\r\nRetry-After: 800\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nRetry-After: 800\r\n\r\n",
    ],
    ids=["interim response", "trailer"],
)
async def test_a_pause_counts_only_in_the_head_of_the_answer(response: bytes) -> None:
    async with answering(response) as host:
        with client() as sender, pytest.raises(DeliveryError) as failure:
            await post(sender, host)
    assert failure.value.retry_after == 0.0


@pytest.mark.parametrize("response", [hang, in_pieces(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n")])
async def test_a_host_that_does_not_finish_its_answer_is_left(response: Respond) -> None:
    async with answering(response) as host:
        with client(timeout=0.1) as sender, pytest.raises(DeliveryError, match=r"no answer within 0\.1 s"):
            await post(sender, host)


@pytest.mark.parametrize("fields", [{"token": "a\r\nX-Evil: 1"}, {"scheme": "Bearer", "credentials": "é"}])
async def test_a_stored_secret_that_no_header_can_have_is_neither_sent_nor_shown(fields: dict[str, str]) -> None:
    async with answering(OK) as host:
        with client() as sender, pytest.raises(DeliveryError) as failure:
            await post(sender, host, **fields)
    assert str(failure.value) == "a header of the request is not valid"
    assert host.connections == 0


async def test_each_new_connection_is_checked_again() -> None:
    answers = iter([["127.0.0.1"], ["169.254.169.254"]])

    async def rebinding(_host: str, _port: int) -> list[str]:
        return next(answers)

    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with answering(closing) as host:
        with client(guard=Outbound(["127.0.0.1"], resolve=rebinding)) as sender:
            hook = entry(f"http://hooks.example:{host.port}/")
            await sender.post(hook, NOTIFICATION, 0)
            with pytest.raises(DeliveryError, match="link-local"):
                await sender.post(hook, NOTIFICATION, 0)


async def test_idle_connections_are_closed_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webhooks, "KEEP_IDLE", 0.05)
    monkeypatch.setattr(webhooks, "MAX_IDLE", 1)
    async with answering(OK) as host, answering(OK) as other:
        with client() as sender:
            await post(sender, host)
            await post(sender, other)  # the connection to the first host is closed: there is no room for both
            await post(sender, other)
            assert other.connections == 1
            await until(lambda: not sender._idle and not sender._idle_at)
            await post(sender, host)
    assert host.connections == 2


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The certificate of hooks.example, which is trusted."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("hooks.example").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    return context


async def here(_host: str, _port: int) -> list[str]:
    return ["127.0.0.1"]


async def test_the_certificate_must_be_that_of_the_host(certificate: ssl.SSLContext) -> None:
    async with answering(OK, tls=certificate) as host:
        with client(guard=Outbound(["127.0.0.1"], resolve=here)) as sender:
            await sender.post(entry(f"https://hooks.example:{host.port}/"), NOTIFICATION, 0)
            with pytest.raises(DeliveryError, match="CERTIFICATE_VERIFY_FAILED"):
                await sender.post(entry(f"https://other.example:{host.port}/"), NOTIFICATION, 0)
    assert len(host.requests) == 1


async def test_a_connection_with_tls_is_used_again_and_says_that_it_is_http_1(certificate: ssl.SSLContext) -> None:
    certificate.set_alpn_protocols(["h2", "http/1.1"])
    async with answering(OK, tls=certificate) as host:
        with client(guard=Outbound(["127.0.0.1"], resolve=here)) as sender:
            for _ in range(2):
                await sender.post(entry(f"https://hooks.example:{host.port}/"), NOTIFICATION, 0)
            assert host.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
    assert (len(host.requests), host.connections) == (2, 1)


async def test_certificates_are_read_once_however_many_connections_begin(
    certificate: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[ssl.SSLContext] = []
    read_certificates = httpx.create_ssl_context

    def count() -> ssl.SSLContext:
        read.append(read_certificates())
        return read[-1]

    monkeypatch.setattr(httpx, "create_ssl_context", count)
    async with answering(OK, tls=certificate) as host:
        with client(guard=Outbound(["127.0.0.1"], resolve=here)) as sender:
            hook = entry(f"https://hooks.example:{host.port}/")
            await asyncio.gather(*(sender.post(hook, NOTIFICATION, 0) for _ in range(4)))
    assert len(read) == 1


async def test_a_host_that_refuses_a_request_gets_the_next_one_over_a_new_connection() -> None:
    async with answering(b"HTTP/1.1 413 No\r\nContent-Length: 0\r\n\r\n", OK) as host:
        with client() as sender:
            with pytest.raises(DeliveryError, match="HTTP 413"):
                await post(sender, host)
            await post(sender, host)
    assert (len(host.requests), host.connections) == (2, 2)
