"""A head that was parsed before is not parsed again, which no client and no application may notice."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.server import ServerState

from errands.cli import http_connections
from errands.cli.http_connections import HeadForm, HttpConnection


class Recorder(asyncio.Transport):
    """Keeps what a connection writes."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self._is_closing = False

    def write(self, data: Any) -> None:
        self.written += data

    def close(self) -> None:
        self._is_closing = True

    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


async def mirror(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the request, and change the scope as frameworks do."""
    body, more = b"", True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        body, more = body + message["body"], message["more_body"]
    seen = [scope[name] for name in ("method", "raw_path", "query_string", "http_version", "headers", "state")]
    text = repr([*seen, body]).encode()
    scope["headers"].append((b"x-added", b"1"))
    scope["state"]["seen"] = True
    scope["method"] = "POST"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(text))]})
    await send({"type": "http.response.body", "body": text})


async def said(pieces: Sequence[bytes], *, app: ASGIApp = mirror) -> list[bytes]:
    """Return what a connection has written after each piece."""
    config = uvicorn.Config(app, log_config=None)
    config.loaded_app = app
    connection, transport = HttpConnection(config, ServerState(), {}), Recorder()
    connection.connection_made(transport)
    written = []
    for piece in pieces:
        if not transport.is_closing():
            connection.data_received(piece)
        for _ in range(100):
            await asyncio.sleep(0)
        written.append(transport.written)
    connection.connection_lost(None)
    return written


HEADERS = [
    *(b"Host: x\r\n", b"Accept: */*\r\n", b"X-A: content-length: 7\r\n", b"X-Content-Length: 3\r\n", b"X:\r\n"),
    *(b"Connection: keep-alive\r\n", b"Connection: close\r\n", b"Connection: upgrade\r\nUpgrade: h2c\r\n"),
    *(b"Expect: 100-continue\r\n", b"Expect: x\r\n", b"Transfer-Encoding: chunked\r\n", b"Content-Length: 3\r\n"),
]
LENGTHS = [b"Content-Length: %d\r\n", b"content-length:%d\r\n", b"Content-Length: 0%d\r\n", b"Content-Length: %d \r\n"]
LENGTHS += [b"Content-Length: \t%d\r\n", b"Content-Length: " + b"0" * 5000 + b"%d\r\n"]
BODIES = [
    b"",
    b"hello",
    b"\r\n\r\n",
    b"\r\nContent-Length: 2\r\n\r\nab",
    b"POST / HTTP/1.1\r\nContent-Length: 1\r\n\r\na",
]
LINES = [b"POST / HTTP/1.1\r\n"] * 12 + [
    b"POST / HTTP/1.0\r\n",
    b"HEAD /a?b HTTP/1.1\r\n",
    b"GET http://y/c HTTP/1.1\r\n",
]
INSERTED = [b"\r", b"\n", b"\r\n", b" ", b"0", b"9", b":", b"\0", b"\x80", b"\r\n\r\n", b"\r\nContent-Length: 3"]


def conversation(chance: random.Random) -> list[bytes]:
    """Return pieces of requests that are alike: with other bodies, with mistakes, and cut anywhere."""
    headers = chance.choices(HEADERS, weights=[6] * 6 + [1] * 6, k=chance.randrange(4))
    length = chance.choices(LENGTHS, weights=[6, 6, 1, 1, 1, 1])[0]
    line, before = chance.choice(LINES), chance.randrange(len(headers) + 1)
    pieces = []
    for _ in range(chance.randrange(2, 6)):
        body = chance.choice(BODIES)
        request = b"".join([line, *headers[:before], length % len(body), *headers[before:], b"\r\n", body])
        kind, place = chance.randrange(8), chance.randrange(len(request))
        if kind == 0:
            request = request[:place] + chance.choice(INSERTED) + request[place:]
        elif kind == 1:
            request = request[:place] + request[place + chance.randrange(1, 4) :]
        elif kind == 2:
            request += request
        pieces += [request[:place], request[place:]] if kind == 3 and place else [request]
    return pieces


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.anyio
async def test_a_known_head_is_answered_as_a_new_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_connections, "_PAUSE", 0)
    chance = random.Random(seed)
    conversations = [conversation(chance) for _ in range(40)]
    with_forms = [await said(pieces) for pieces in conversations]
    monkeypatch.setattr(http_connections, "_MOST_FORMS", 0)
    assert with_forms == [await said(pieces) for pieces in conversations]


def form_of(head: bytes) -> HeadForm | None:
    names = re.findall(rb"^([^\r]*):", head.lower(), re.MULTILINE)
    return HeadForm.of(
        b"POST / HTTP/1.1\r\n%bContent-Length: 0\r\n\r\n" % head,
        {"headers": [*((name, b"") for name in names), (b"content-length", b"0")]},
    )


def test_only_small_heads_are_kept_for_the_next_request() -> None:
    assert form_of(b"Host: x\r\n")
    assert not form_of(b"X: %b\r\n" % (b"a" * 5000))
    assert not form_of(b"X: a\r\n" * 100)
