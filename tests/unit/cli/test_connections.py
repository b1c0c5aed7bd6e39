"""The connections of `errands serve`: what clients can draw out, and for how long."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from starlette.types import Receive, Scope, Send

from errands.cli import connections
from errands.cli.connections import MAX_HEAD, Connection
from tests.live import live
from tests.unit.cli.processes import Served
from tests.unit.cli.programs import ECHO, write

PATIENCE = 0.2


class Impatient(Connection):
    patience = stall = PATIENCE


class Agent:
    """Reads the whole body and says how long it was; from `/slow` after some time, from `/much` with a lot of bytes."""

    def __init__(self) -> None:
        self.gone = threading.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size, message = 0, await receive()
        while message["type"] == "http.request":
            size += len(message["body"])
            if not message["more_body"]:
                break
            message = await receive()
        else:
            self.gone.set()
            return
        if scope["path"] == "/slow":
            await asyncio.sleep(3 * PATIENCE)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/much":
            for _ in range(1000):
                await send({"type": "http.response.body", "body": bytes(64 * 1024), "more_body": True})
        if scope["query_string"] == b"until-gone" and (await receive())["type"] == "http.disconnect":
            self.gone.set()
        await send({"type": "http.response.body", "body": b"%d bytes" % size})


@pytest.fixture
def agent() -> Agent:
    return Agent()


@pytest.fixture
def url(agent: Agent) -> Iterator[str]:
    with live(agent, http=Connection) as url:
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


def test_a_body_does_not_count_as_the_head_of_the_next_request(url: str) -> None:
    first = request(head=b"", length=3 * MAX_HEAD, body=bytes(3 * MAX_HEAD))
    assert b"5 bytes" in exchange(url, first + request(length=5, body=b"hello"))


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


def test_a_client_that_does_not_read_is_let_go(impatient: str, agent: Agent) -> None:
    with ExitStack() as stack:
        while not agent.gone.is_set():
            client = stack.enter_context(connected(impatient))
            with suppress(ConnectionError):
                client.sendall(request("/much?until-gone"))
            agent.gone.wait(10 * PATIENCE)


def test_a_client_that_reads_gets_everything(url: str) -> None:
    assert len(exchange(url, request("/much"))) > 1000 * 64 * 1024


def test_connections_leave_files_for_the_agent(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "most_connections", lambda: 2)
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(url))
        assert exchange(url, b"").startswith(b"HTTP/1.1 503 ")
    while b"0 bytes" not in exchange(url, request()):
        pass  # the server has yet to notice that the others have gone


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
        assert "there is no middleware" in server.greeting
        sent = b"GET /tasks HTTP/1.1\r\nHost: agent.example\r\nConnection: close\r\n\r\n"
        assert exchange(server.url, sent).startswith(b"HTTP/1.1 200 ")
