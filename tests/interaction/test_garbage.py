"""A request that was answered leaves nothing behind.

Exceptions refer to the frames that they passed through, and a frame refers to the request's body. If one of these
frames refers to the exception in turn, all of it stays in memory until the next full garbage collection: a hundred
refused uploads are a gigabyte then.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from errands import A2AServer, TaskContext, Worker
from errands.testing import serve
from tests.interaction.conftest import cells

pytestmark = pytest.mark.anyio

#: What is around the fields of a message, at each path.
AROUND = {
    "/": (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"role":"ROLE_USER",', b"}}}"),
    "/a2a": (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user",', b"}}}"),
    "/message:send": (b'{"message":{"role":"ROLE_USER",', b"}}"),
    "/v1/message:send": (b'{"message":{"role":"user",', b"}}"),
}


class Agent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "fail":
            raise RuntimeError("as it should")
        if ctx.user_text == "ask":
            await ctx.request_input("What?")
        else:
            await ctx.complete(ctx.user_text)


async def ask(server: A2AServer, path: str, body: bytes) -> int:
    """Send a request straight to the ASGI application and return the status of the answer."""
    messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
    answers: list[Any] = []

    async def send(answer: Any) -> None:
        answers.append(answer)

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "headers": [
            (b"host", b"localhost"),
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
        ],
        "client": ("127.0.0.1", 1),
    }
    await server.app(scope, messages.get, send)
    status: int = answers[0]["status"]
    return status


def message(path: str, message_id: bytes, text: bytes, more: bytes = b"") -> bytes:
    before, after = AROUND[path]
    return before + more + b'"messageId":"%b","parts":[{"text":"%b"}]' % (message_id, text) + after


def requests(path: str) -> Iterator[tuple[str, bytes]]:
    """Requests of every outcome. Each is made twice, because the first of its kind may fill caches."""
    for number in (b"1", b"2"):
        yield "a message", message(path, b"new" + number, b"hello")
        yield "the same message again", message(path, b"new1", b"hello")
        yield "another message of the same id", message(path, b"new1", b"bye")
        yield "a handler that fails", message(path, b"fail" + number, b"fail")
        yield "a handler that asks", message(path, b"ask" + number, b"ask")
        yield "an unknown task", message(path, b"none" + number, b"hello", b'"taskId":"none",')
        yield "a body that is not JSON", b"{nope"
        yield "a body that is not UTF-8", b'{"\xff"}'
        yield "an empty object", b"{}"
        yield "a message without parts", message(path, b"x", b"").replace(b'"parts"', b'"pieces"')
        yield "nested too deeply", b"[" * 1000 + b"]" * 1000


def garbage() -> list[str]:
    """Return the functions of errands whose frames only the garbage collector can free."""
    gc.collect()
    frames = [one for one in gc.garbage if isinstance(one, FrameType)]
    gc.garbage.clear()
    return [frame.f_code.co_qualname for frame in frames if "errands" in frame.f_code.co_filename]


@pytest.mark.parametrize(("path", "storage"), cells(list(AROUND)), indirect=["storage"])
async def test_a_request_leaves_no_reference_cycle_behind(storage: str, path: str) -> None:
    async with serve(Agent(), storage=storage) as server:
        gc.collect()
        # What earlier tests have left is not looked through again after every request.
        gc.freeze()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for what, body in requests(path):
                await ask(server, path, body)
                # The next request, so that no thread or loop refers to anything of this one any more.
                await ask(server, path, message(path, b"new2", b"hello") if what == "a message" else b"[]")
                assert not garbage(), what
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
