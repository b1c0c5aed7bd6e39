"""The connections of `errands serve`: what clients can draw out, and for how long."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from errands.cli import http_connections
from errands.cli.http_connections import MAX_HEAD, HttpConnection
from errands.runtime.settings import Settings
from errands.server.asgi import HttpExchange
from errands.server.large_work import Budget, Pace
from tests.live import live
from tests.unit.cli.processes import Served
from tests.unit.cli.programs import ECHO, write

PATIENCE = 0.2


class Impatient(HttpConnection):
    request_timeout = write_timeout = PATIENCE


class Agent:
    """Reads the whole body and says how long it was; from `/slow` after some time, from `/much` with a lot of bytes.

    From `/much-at-once` it gives as many without waiting for the client to take them. `/unread` answers before it
    reads, `/refused` once more of the body has arrived than a connection holds.
    """

    def __init__(self) -> None:
        self.began = False
        self.gone = threading.Event()
        #: Those of the last request, once it was read.
        self.headers: dict[bytes, bytes] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.began = True
        if scope["path"] == "/unread":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"unread", "more_body": scope["query_string"] == b"more"})
            while (await receive())["type"] == "http.request":
                pass
            return
        if scope["path"] == "/refused":
            while HttpConnection.budget.total < 100_000:
                await asyncio.sleep(0)
            await send({"type": "http.response.start", "status": 413, "headers": []})
            await send({"type": "http.response.body"})
            return
        size, message = 0, await receive()
        while message["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
            message = await receive()
        else:
            self.gone.set()
            return
        self.headers = dict(scope["headers"])
        if scope["path"] == "/slow":
            await asyncio.sleep(3 * PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/much":
            for _ in range(1000):
                await send({"type": "http.response.body", "body": bytes(64 * 1024), "more_body": True})
        if scope["path"] == "/much-at-once":
            await send({"type": "http.response.body", "body": bytes(64_000 * 1024)})
            return
        if scope["query_string"] == b"until-gone" and (await receive())["type"] == "http.disconnect":
            self.gone.set()
        await send({"type": "http.response.body", "body": b"%d bytes" % size})


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def url(agent: Agent) -> Iterator[str]:
    with live(agent, http=HttpConnection, timeout_keep_alive=3600) as url:
        yield url


@pytest.fixture
def impatient(agent: Agent) -> Iterator[str]:
    """Where a client that stands still for a moment has to begin anew, as on a busy machine every one may."""
    with live(agent, http=Impatient) as url:
        yield url


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80))


LAST = b"Connection: close\r\n"


def request(path: str = "/", head: bytes = LAST, length: int = 0, body: bytes = b"") -> bytes:
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bContent-Length: %d\r\n\r\n%b" % (path.encode(), head, length, body)


def heard(client: socket.socket) -> bytes:
    """All that comes until the server closes the connection."""
    said = bytearray()
    with suppress(ConnectionError):
        while piece := client.recv(65536):
            said += piece
    return bytes(said)


def heard_up_to(end: bytes, client: socket.socket) -> bytes:
    said = b""
    while not said.endswith(end):
        piece = client.recv(65536)
        assert piece, f"the connection was closed after {said!r}"
        said += piece
    return said


def exchange(url: str, sent: bytes) -> bytes:
    with connected(url) as client:
        with suppress(ConnectionError):
            client.sendall(sent)
        return heard(client)


def header(size: int) -> bytes:
    return b"X: %b\r\n" % (b"a" * size)


def test_a_head_up_to_the_bound_is_taken(url: str) -> None:
    assert b"0 bytes" in exchange(url, request(head=header(MAX_HEAD - 500) + LAST))
    assert b"5 bytes" in exchange(url, request(f"/?{'a' * (MAX_HEAD - 500)}", length=5, body=b"hello"))


@pytest.mark.parametrize(
    "sent",
    [
        request(head=header(MAX_HEAD)),
        request(head=header(100) * 1000),
        request(f"/{'a' * MAX_HEAD}"),
        b"POST / HTTP/1.1\r\n" + header(20_000_000),
    ],
    ids=["one header", "many headers", "the path", "never ending"],
)
def test_a_larger_head_is_refused(url: str, sent: bytes) -> None:
    said = exchange(url, sent)
    # What was not read when the connection is closed may keep the client from hearing why.
    assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
    assert b"0 bytes" in exchange(url, request())


def in_pieces(url: str, sent: bytes, size: int) -> bytes:
    """What is said to a request that comes in pieces of this size."""
    with connected(url) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(ConnectionError):
            for start in range(0, len(sent), size):
                client.sendall(sent[start : start + size])
                time.sleep(0.005)  # so that they are read one by one; if they are not, nothing else is expected
        return heard(client)


@pytest.mark.parametrize("size", [20_000, 40_000, 65_000, 1_000_000])
@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_the_bound_of_a_head_is_the_same_however_it_comes(url: str, size: int, beyond: int) -> None:
    others = len("/") + len("Host: x\r\n") + len(LAST) + len("Content-Length: 0\r\n")
    head = header(MAX_HEAD - others - len("X: \r\n") + beyond) + LAST
    said = in_pieces(url, request(head=head), size)
    if beyond <= 0:
        assert b"0 bytes" in said
    else:
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")


@pytest.mark.parametrize("size", [20_000, 65_000, 1_000_000])
@pytest.mark.parametrize("beyond", [0, 1])
def test_so_is_that_of_trailers(url: str, size: int, beyond: int) -> None:
    trailers = header(MAX_HEAD - len("X: \r\n") + beyond)
    said = in_pieces(url, chunked(body=b"hello") + trailers + b"\r\n", size)
    if beyond:
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
    else:
        assert b"5 bytes" in said


def test_a_body_does_not_count_as_the_head_of_the_next_request(url: str) -> None:
    first = request(head=b"", length=3 * MAX_HEAD, body=bytes(3 * MAX_HEAD))
    assert b"5 bytes" in exchange(url, first + request(length=5, body=b"hello"))


def chunked(path: str = "/", body: bytes = b"") -> bytes:
    """A request whose body comes in chunks of one byte, up to where its trailers may be."""
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in body)
    return b"POST %b HTTP/1.1\r\nHost: x\r\n%bTransfer-Encoding: chunked\r\n\r\n%b0\r\n" % (path.encode(), LAST, chunks)


@pytest.mark.parametrize("size", [0, 3 * MAX_HEAD])
def test_a_body_may_come_in_chunks_of_one_byte_and_with_trailers(url: str, size: int) -> None:
    assert b"%d bytes" % size in exchange(url, chunked(body=bytes(size)) + header(1000) + b"\r\n")


def test_trailers_are_not_taken_for_headers(url: str, agent: Agent) -> None:
    assert b"5 bytes" in exchange(url, chunked(body=b"hello") + b"Host: y\r\nX-Late: z\r\n\r\n")
    assert agent.headers == {b"host": b"x", b"connection": b"close", b"transfer-encoding": b"chunked"}


@pytest.mark.parametrize("trailers", [header(100) * 100_000, header(20_000_000)], ids=["many", "never ending"])
def test_larger_trailers_are_refused(url: str, agent: Agent, trailers: bytes) -> None:
    said = exchange(url, chunked(body=b"hello") + trailers)
    assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
    agent.gone.wait()


def test_trailers_of_a_request_that_was_answered_have_the_same_bound(url: str) -> None:
    with connected(url) as client:
        client.sendall(chunked("/unread").replace(LAST, b""))
        heard_up_to(b"unread\r\n0\r\n\r\n", client)
        with suppress(ConnectionError):
            client.sendall(header(20_000_000))
        assert heard(client) == b""


@pytest.mark.parametrize(
    ("address", "path", "raw_path", "query"),
    [
        ("/", "/", b"/", b""),
        ("/a%2Fb%C3%A9?c=%41#d", "/a/b\u00e9", b"/a%2Fb%C3%A9", b"c=%41"),
        ("//a", "//a", b"//a", b""),
        ("http://y/a?b", "/a", b"/a", b"b"),
        ("http://y", "/", b"/", b""),
        ("http://y?b", "/", b"/", b"b"),
    ],
)
def test_addresses_may_be_complete_and_encoded(address: str, path: str, raw_path: bytes, query: bytes) -> None:
    seen: list[tuple[str, bytes, bytes]] = []

    async def look(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append((scope["path"], scope["raw_path"], scope["query_string"]))

    with live(look, http=HttpConnection) as url:
        exchange(url, request(address))
    assert seen == [(path, raw_path, query)]


async def mirror(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with what it sees of the request, and changes what it was given."""
    body = (await receive()).get("body", b"")
    seen = [scope[name] for name in ("method", "path", "raw_path", "query_string", "headers", "http_version")]
    # As frameworks do, and as nothing may for another request.
    scope["headers"].append((b"x-added", b"1"))
    scope["path"] = "/changed"
    scope["state"]["seen"] = scope["state"].get("seen", 0) + 1
    text = repr([*seen, scope["state"], body]).encode()
    length = [(b"content-length", b"%d" % len(text))]
    await send({"type": "http.response.start", "status": 200, "headers": length})
    await send({"type": "http.response.body", "body": text})


PLAIN = b"POST /a?b HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nX-Y: 5\r\n\r\nhello"
#: What may follow `PLAIN` on the same connection, each in one or more pieces.
FOLLOWERS: dict[str, list[bytes]] = {
    "the same": [PLAIN],
    "another length": [PLAIN.replace(b"th: 5", b"th: 12").replace(b"hello", b"hello, world")],
    "no body": [PLAIN.replace(b"th: 5", b"th: 0").replace(b"hello", b"")],
    "zeros before the length": [PLAIN.replace(b"th: 5", b"th: 0005")],
    "a longer number": [PLAIN.replace(b"th: 5", b"th: 000000000005")],
    "another path": [PLAIN.replace(b"/a?b", b"/c?d")],
    "another header": [PLAIN.replace(b"X-Y: 5", b"X-Y: 6")],
    "one header more": [PLAIN.replace(b"X-Y", b"X-Z: 1\r\nX-Y")],
    "a second length": [PLAIN.replace(b"X-Y: 5", b"Content-Length: 5")],
    "chunks as well": [PLAIN.replace(b"X-Y: 5", b"Transfer-Encoding: chunked")],
    "a length with a sign": [PLAIN.replace(b"th: 5", b"th: +5")],
    "a length in other digits": [PLAIN.replace(b"th: 5", "th: \u0665".encode())],
    "no length": [PLAIN.replace(b"th: 5", b"th: ")],
    "a length that is no number": [PLAIN.replace(b"th: 5", b"th: 5a")],
    "a body in two pieces": [PLAIN[:-2], PLAIN[-2:]],
    "a head in two pieces": [PLAIN[:40], PLAIN[40:]],
    "two requests": [PLAIN + PLAIN.replace(b"hello", b"again")],
    "a request and a half": [PLAIN + PLAIN[:30], PLAIN[30:]],
    "an end of line before": [b"\r\n" + PLAIN],
    "a body that looks like a head": [PLAIN.replace(b"th: 5", b"th: %d" % len(PLAIN)).replace(b"hello", PLAIN)],
    "only the rest of a head": [b" 5\r\nX-Y: 5\r\n\r\nhello"],
}


@pytest.mark.parametrize("sent", FOLLOWERS.values(), ids=FOLLOWERS.keys())
@pytest.mark.parametrize("before", [[PLAIN], [PLAIN[:45], PLAIN[45:]]], ids=["whole", "in pieces"])
def test_a_head_is_read_the_same_whether_or_not_one_like_it_was_read_before(
    before: list[bytes], sent: list[bytes]
) -> None:
    def send(client: socket.socket, pieces: list[bytes]) -> None:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.002)  # so that they are read one by one; if they are not, nothing else is expected

    def said(url: str, *requests: list[bytes]) -> bytes:
        with connected(url) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            heard_before = b""
            for pieces in requests[:-1]:
                send(client, pieces)
                heard_before += heard_up_to(b"b'hello']", client)
            send(client, requests[-1])
            client.shutdown(socket.SHUT_WR)
            return re.sub(rb"date: [^\r]*\r\n", b"", heard_before + heard(client))

    with live(mirror, http=HttpConnection, timeout_keep_alive=3600) as url:
        assert said(url, before, sent) == said(url, before) + said(url, sent)


#: What Java's client says with its first request to a server.
OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"


def test_requests_that_offer_http2_are_answered_as_they_are(url: str) -> None:
    offered = request(head=OFFER, length=5, body=b"hello")
    in_chunks = chunked(body=b"hello!").replace(LAST, OFFER) + b"\r\n"
    said = exchange(url, offered + offered + in_chunks + offered + request())
    assert [said.count(b"%d bytes" % size) for size in (5, 6, 0)] == [3, 1, 1]


def test_the_body_may_come_after_a_head_that_offers_http2(url: str) -> None:
    with connected(url) as client:
        client.sendall(request(head=OFFER + b"Expect: 100-continue\r\n", length=5))
        heard_up_to(b"100 Continue\r\n\r\n", client)
        client.sendall(b"hello" + request())
        said = heard(client)
    assert b"5 bytes" in said
    assert b"0 bytes" in said


def test_an_offer_of_http2_may_come_in_pieces(url: str) -> None:
    with connected(url) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request(head=OFFER.replace(b"Connection:", b"Connection: close,"), length=5, body=b"hello"):
            client.sendall(bytes([byte]))
        assert b"5 bytes" in heard_up_to(b"0\r\n\r\n", client)


@pytest.mark.parametrize("target", [b"x:1", b"/", b"http://x/"])
@pytest.mark.parametrize("head", [b"", OFFER])
def test_a_tunnel_is_refused(url: str, head: bytes, target: bytes) -> None:
    assert exchange(url, b"CONNECT %b HTTP/1.1\r\n%b\r\n" % (target, head)).startswith(b"HTTP/1.1 400 ")
    assert b"0 bytes" in exchange(url, request())


def test_what_is_no_address_is_refused_with_an_offer_too(url: str) -> None:
    assert exchange(url, request("http://x:y/", head=OFFER)).startswith(b"HTTP/1.1 400 ")


async def answer(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the status in the path, with an announced length if there is a query, and always with a body."""
    length = [[b"Content-Length", b"5"]] if scope["query_string"] else []
    await receive()
    await send({"type": "http.response.start", "status": int(scope["path"][1:]), "headers": length})
    await send({"type": "http.response.body", "body": b"hello"})


@pytest.fixture(scope="module")
def answering() -> Iterator[str]:
    with live(answer, http=HttpConnection, timeout_keep_alive=3600) as url:
        yield url


@pytest.mark.parametrize("query", ["", "?length"])
@pytest.mark.parametrize("line", ["GET /204", "GET /304", "HEAD /200"])
def test_answers_that_have_no_body_are_sent_without_it(answering: str, line: str, query: str) -> None:
    """Clients would take it for the next answer."""
    said = exchange(answering, f"{line}{query} HTTP/1.1\r\n\r\n".encode() + request("/200?length"))
    assert said.count(b"HTTP/1.1") == 2
    assert b"\r\n\r\nHTTP/1.1 200 OK\r\n" in said
    assert (b"content-length: 5" in said.lower().split(b"\r\n\r\n")[0]) == bool(query)
    assert said.count(b"hello") == 1


@pytest.mark.parametrize("version", ["0.9", "1.0", "2.0"])
def test_answers_to_other_versions_of_http_end_with_the_connection(answering: str, version: str) -> None:
    sent = f"GET /200 HTTP/{version}\r\nConnection: keep-alive\r\nExpect: 100-continue\r\n\r\n".encode()
    head, body = exchange(answering, sent).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"\r\nconnection: close" in head
    assert body == b"hello"


class Wrapper:
    """Passes for the function that it wraps, as those of some packages for tracing do."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    async def __call__(self, *arguments: Any) -> Any:
        self.calls += 1
        return await self._function(*arguments)


def test_middleware_that_wraps_receive_or_send_is_not_passed_by() -> None:
    made: list[Wrapper] = []

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        made.extend([Wrapper(receive), Wrapper(send)])
        request = HttpExchange(scope, made[0], made[1], Settings())
        await request.respond(200, await request.body())

    with live(wrapped, http=HttpConnection) as url:
        assert exchange(url, request(length=5, body=b"hello")).endswith(b"\r\n\r\nhello")
    assert [each.calls for each in made] == [1, 2]


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    """Fails before the answer, in it, or after it while the next request is answered."""
    if scope["path"] == "/next":
        await asyncio.sleep(3 * PATIENCE)
    elif scope["path"] == "/exit":
        sys.exit("no")
    elif scope["path"] != "/after":
        assert scope["path"] == "/in", "before"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello", "more_body": scope["path"] == "/in"})
    if scope["path"] == "/after":
        await asyncio.sleep(PATIENCE)
    assert scope["path"] == "/next", "in or after"


@pytest.mark.parametrize("path", ["/exit", "/in", "/after", "/before", "/%0Aforged"])
def test_an_application_that_fails_is_logged_and_its_client_told(path: str, caplog: pytest.LogCaptureFixture) -> None:
    with live(failing, http=HttpConnection, access_log=False) as url:
        said = exchange(url, request(path, head=b"") + request("/next"))
    if path == "/after":
        assert said.endswith(b"hello\r\n0\r\n\r\n")
        assert said.count(b"HTTP/1.1 200 ") == 2
    elif path == "/in":
        assert said.endswith(b"\r\n\r\n5\r\nhello\r\n")
    else:
        assert said.startswith(b"HTTP/1.1 500 ")
    assert [record.getMessage() for record in caplog.records if record.name == http_connections.__name__] == [
        f"POST {path}: the application failed"
    ]


def test_a_request_that_a_stopping_server_does_not_wait_for_may_be_sent_again(agent: Agent) -> None:
    with ExitStack() as stack:
        with live(agent, http=HttpConnection) as url:
            client = stack.enter_context(connected(url))
            client.sendall(request(head=b"", length=5, body=b"he"))
            while not agent.began:
                pass
        said = heard(client)
    assert said.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1\r\n" in said


@pytest.mark.parametrize("sent", [b"POST / HT", b"POST / HTTP/1.1\r\nHost: x\r\nX: ", request(length=5, body=b"he")])
def test_a_request_that_does_not_come_to_its_end_is_given_up(impatient: str, agent: Agent, sent: bytes) -> None:
    while not (said := exchange(impatient, sent)):
        pass
    assert said.startswith(b"HTTP/1.1 408 ")
    if b"Content-Length" in sent:
        agent.gone.wait()


def test_a_connection_on_which_nothing_comes_is_closed(impatient: str) -> None:
    assert exchange(impatient, b"") == b""


def test_blank_lines_do_not_keep_a_connection_open(impatient: str) -> None:
    said = b""
    while b"0 bytes" not in said:
        with connected(impatient) as client, suppress(ConnectionError):
            client.sendall(request(head=b""))
            said = client.recv(65536)
            client.sendall(b"\r\n")
            said += heard(client)


def test_an_answer_may_take_as_long_as_it_takes(impatient: str) -> None:
    while b"5 bytes" not in exchange(impatient, request("/slow", length=5, body=b"hello")):
        pass


def test_requests_that_come_one_upon_the_other_are_all_answered(impatient: str) -> None:
    first, second = (request("/slow", head=b"", length=size, body=bytes(size)) for size in (1, 2))
    said = b""
    while not all(b"%d bytes" % size in said for size in range(3)):
        said = exchange(impatient, first + second + request())


@pytest.mark.parametrize("second", [b"\x00\r\n\r\n", request(head=header(MAX_HEAD)), request("http://x:y/")])
def test_what_is_wrong_with_a_request_is_not_the_answer_to_the_one_before_it(url: str, second: bytes) -> None:
    assert exchange(url, request("/slow", head=b"") + second) == b""


def test_a_client_that_leaves_while_requests_wait_is_no_error(url: str, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        with connected(url) as client:
            client.sendall(request("/slow", head=b"") * 5)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    for _ in range(7):  # longer than all of those would have taken
        assert b"0 bytes" in exchange(url, request("/slow"))
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_no_request_is_read_while_many_wait(url: str, agent: Agent) -> None:
    """Those that are read are answered in their order, each once."""
    bodies = [bytes(size) for size in range(2000)]
    sent = b"".join(request(head=b"", length=len(body), body=body) for body in bodies) + request()
    with connected(url) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        said = heard(client)
        sender.join()
    assert [int(size) for size in re.findall(rb"(\d+) bytes", said)] == [*range(2000), 0]


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> Budget:
    """Room for one upload of these tests."""
    budget = Budget(200_000)
    monkeypatch.setattr(HttpConnection, "budget", budget)
    return budget


def test_of_uploads_that_are_too_many_the_one_that_stood_still_for_longest_is_refused(url: str, budget: Budget) -> None:
    with connected(url) as first, connected(url) as second:
        for client in (first, second):
            client.sendall(request(length=190_000, body=bytes(150_000)))
            while client is first and budget.total < 130_000:
                pass
        said = heard(first)
        assert said.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 1\r\n" in said
        second.sendall(bytes(40_000))
        assert b"190000 bytes" in heard(second)
    while budget.total:
        pass


@pytest.mark.parametrize("path", ["/unread", "/unread?more"])
def test_what_is_thrown_away_after_an_answer_costs_no_other_client_its_place(
    url: str, budget: Budget, path: str
) -> None:
    with connected(url) as first, connected(url) as second:
        first.sendall(request(length=190_000, body=bytes(150_000)))
        while budget.total < 130_000:
            pass
        second.sendall(request(path, head=b"", length=20_000_000))
        heard_up_to(b"unread\r\n" if "more" in path else b"unread\r\n0\r\n\r\n", second)
        second.sendall(bytes(20_000_000))
        first.sendall(bytes(40_000))
        assert b"190000 bytes" in heard(first)


def test_the_rest_of_a_request_that_was_answered_early_is_thrown_away(url: str, budget: Budget) -> None:
    """Many clients send all of it before they look at the answer."""
    size = 20_000_000
    said = exchange(url, request("/refused", head=b"", length=size, body=bytes(size)) + request())
    assert said.startswith(b"HTTP/1.1 413 ")
    assert b"0 bytes" in said
    assert not budget.total


def test_what_is_thrown_away_is_read_by_one_connection_at_a_time(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that send on after their answers must not keep the event loop from the others."""
    interval, size, clients = 0.02, 1_000_000, 4
    read_at: list[float] = []

    class Noting(HttpConnection):
        def data_received(self, data: bytes) -> None:
            if len(data) > 8 * 1024:  # it hands itself smaller pieces
                read_at.append(self._loop.time())
            super().data_received(data)

    def send(client: socket.socket) -> None:
        client.sendall(bytes(size) + request())
        assert b"0 bytes" in heard(client)

    monkeypatch.setattr(HttpConnection, "discards", Pace(interval, most=60))
    with live(agent, http=Noting) as url, ExitStack() as stack, ThreadPoolExecutor(clients) as threads:
        connections = [stack.enter_context(connected(url)) for _ in range(clients)]
        for client in connections:
            client.sendall(request("/unread", head=b"", length=size))
            heard_up_to(b"unread\r\n0\r\n\r\n", client)
        list(threads.map(send, connections))
    # Each connection reads a first piece at once.
    assert len(read_at) >= 3 * clients
    assert (len(read_at) - clients - 1) * interval < read_at[-1] - read_at[0]


def test_moments_that_are_over_at_once_are_used_one_by_one() -> None:
    pace = Pace(0.01, most=0.025)
    assert [pace.next(5.0), pace.next(5.0), pace.next(5.0)] == [pytest.approx(5.01), pytest.approx(5.02), None]
    assert [pace.use(6.0), pace.use(6.0), pace.next(6.0), pace.use(6.01)] == [True, False, pytest.approx(6.01), True]


def test_a_client_is_let_go_when_too_many_send_on_after_their_answers(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HttpConnection, "discards", Pace(1.0, most=0.5))
    with connected(url) as client:
        client.sendall(request("/unread", head=b"", length=100_000_000))
        heard_up_to(b"unread\r\n0\r\n\r\n", client)
        with pytest.raises(ConnectionError):
            client.sendall(bytes(100_000_000))


def test_of_answers_that_are_not_read_the_one_that_stood_still_for_longest_is_cut_off(url: str, budget: Budget) -> None:
    with connected(url) as first, connected(url) as second:
        first.sendall(request("/much-at-once"))
        while not budget.total:
            pass
        second.sendall(request("/much-at-once"))
        assert len(heard(second)) > 64_000 * 1024
        assert len(heard(first)) < 64_000 * 1024
    while budget.total:
        pass


@pytest.mark.parametrize("size", [5, 150_000])
def test_an_answer_that_is_not_read_is_counted_while_the_client_sends_more(
    url: str, agent: Agent, budget: Budget, size: int
) -> None:
    with connected(url) as client:
        client.sendall(request("/much-at-once", head=b""))
        while budget.total < 20_000_000:
            pass
        agent.headers = {}
        next_request = request(head=b"X: next\r\n", length=size, body=bytes(size))
        client.sendall(next_request[:-2])
        time.sleep(0.05)  # so that the rest is read on its own
        client.sendall(next_request[-2:])
        while b"x" not in agent.headers:
            pass
        assert budget.total > 20_000_000
    while budget.total:
        pass


def test_a_client_that_does_not_read_is_let_go(impatient: str, agent: Agent) -> None:
    with ExitStack() as stack:
        while not agent.gone.is_set():
            client = stack.enter_context(connected(impatient))
            with suppress(ConnectionError):
                client.sendall(request("/much?until-gone"))
            agent.gone.wait(10 * PATIENCE)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("way", [b"Connection: close\r\n", b"", "half-closed"])
def test_a_closed_connection_does_not_wait_forever_for_its_client(way: bytes | str, loop: str) -> None:
    """Whether it was closed with the answer, because it was idle or because the client has ended its side."""
    made: list[HttpConnection] = []
    lost = threading.Event()

    class Watched(Impatient):
        request_timeout = 60.0

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            made.append(self)

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    async def fill(scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with so much that some of it stays here, but less than what makes the application wait."""
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not made[0].transport.get_write_buffer_size():
            await send({"type": "http.response.body", "body": bytes(10_000), "more_body": True})
            await asyncio.sleep(0)
        await send({"type": "http.response.body", "body": b"end"})

    options = {"loop": loop, "timeout_keep_alive": PATIENCE if way == b"" else 3600}
    with live(fill, http=Watched, **options) as url, connected(url) as client:
        client.sendall(request(head=way if isinstance(way, bytes) else b""))
        if way == "half-closed":
            while not (made and made[0].idle_since):
                pass
            client.shutdown(socket.SHUT_WR)
        assert lost.wait(10)


def test_a_client_that_reads_gets_everything(url: str) -> None:
    assert len(exchange(url, request("/much"))) > 1000 * 64 * 1024


def test_connections_leave_files_for_the_agent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "max_connections", lambda: 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(url))
        assert exchange(url, b"").startswith(b"HTTP/1.1 503 ")
    while b"0 bytes" not in exchange(url, request()):
        pass  # the server has yet to notice that the others have gone


def ask(client: socket.socket) -> None:
    """Sends a request and hears its answer, on a connection that stays open."""
    client.sendall(request(head=b""))
    heard_up_to(b"0 bytes\r\n0\r\n\r\n", client)


def test_connections_that_wait_for_a_next_request_make_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "max_connections", lambda: 2)
    with connected(url) as first, connected(url) as second:
        ask(first)
        answered = time.monotonic()
        while time.monotonic() < answered + 0.05:  # the server counts in milliseconds
            ask(second)
        assert b"0 bytes" in exchange(url, request())
        assert heard(first) == b""
        ask(second)


def test_a_client_that_has_yet_to_take_its_answer_keeps_its_place(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "max_connections", lambda: 1)
    with connected(url) as first:
        first.sendall(request("/much-at-once", head=b""))
        first.recv(1)
        assert exchange(url, b"").startswith(b"HTTP/1.1 503 ")


def test_what_is_served_has_these_bounds(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), cwd=tmp_path) as server:
        said = exchange(server.url, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + header(MAX_HEAD) + b"\r\n")
        assert said == b"" or said.startswith(b"HTTP/1.1 431 ")
        assert b"ok" in exchange(server.url, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")


def test_a_server_on_this_machine_does_not_answer_to_the_name_of_a_page(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), cwd=tmp_path) as server:
        sent = b"GET /tasks HTTP/1.1\r\nHost: page.example\r\nConnection: close\r\n\r\n"
        assert "middleware" not in server.greeting
        assert exchange(server.url, sent).startswith(b"HTTP/1.1 403 ")
        assert exchange(server.url, sent.replace(b"page.example", b"localhost")).startswith(b"HTTP/1.1 200 ")


def test_a_server_for_every_machine_answers_to_any_name(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), "--host", "0.0.0.0", cwd=tmp_path) as server:
        assert "because --auth is not set" in server.greeting
        sent = b"GET /tasks HTTP/1.1\r\nHost: agent.example\r\nConnection: close\r\n\r\n"
        assert exchange(server.url, sent).startswith(b"HTTP/1.1 200 ")
