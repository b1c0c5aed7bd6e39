"""Run an MCP server as a process: messages over its stdin and stdout, one per line, and its stderr into our log.

The official package does the same, but reads a line of any length, and copies what it has read for every piece of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import anyio
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp.types import jsonrpc_message_adapter

logger = logging.getLogger(__name__)

#: Seconds for the process to end by itself, and again after SIGTERM.
_GRACE = 2.0
#: Seconds for its last lines, if a process that it left behind holds a pipe open.
_LAST_LINES = 1.0
#: Characters of one line that a server writes to its stderr.
_MAX_LOG_LINE = 2_000
#: Shorter values of variables are not secrets, and hiding them would make a log unreadable.
_MIN_SECRET = 6

Incoming = MemoryObjectSendStream[SessionMessage | Exception]


class McpServer(msgspec.Struct, frozen=True, kw_only=True):
    """How a server is reached, with all templates filled in."""

    #: The name of the tool, for messages.
    tool: str
    #: `stdio`, `http` or `sse`.
    transport: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    url: str = ""
    headers: tuple[tuple[bytes, bytes], ...] = ()


@asynccontextmanager
async def process(
    server: McpServer, *, max_bytes: int, on_too_large: Callable[[], None]
) -> AsyncIterator[
    tuple[MemoryObjectReceiveStream[SessionMessage | Exception], MemoryObjectSendStream[SessionMessage]]
]:
    """Run the process until the end of the block; then it is ended, with all that it has started.

    `on_too_large` is called when one message has more than `max_bytes`; nothing more is read then.
    """
    environment = get_default_environment() | dict(server.env)
    child = await asyncio.create_subprocess_exec(
        shutil.which(server.command, path=environment.get("PATH")) or server.command,
        *server.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=max_bytes,
        env=environment,
        start_new_session=True,
    )
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    assert child.stderr is not None
    tasks = [
        asyncio.create_task(_read(child, received, on_too_large)),
        asyncio.create_task(_write(child, to_send, received)),
        asyncio.create_task(copy_log(child.stderr, server)),
    ]
    try:
        yield incoming, outgoing
    finally:
        for stream in (incoming, outgoing, received, to_send):
            stream.close()
        await asyncio.shield(_end(child, tasks))


async def _read(child: Process, received: Incoming, on_too_large: Callable[[], None]) -> None:
    assert child.stdout is not None
    with suppress(asyncio.IncompleteReadError, anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        async with received:
            while True:
                try:
                    line = await child.stdout.readuntil(b"\n")
                except asyncio.LimitOverrunError:
                    return on_too_large()
                message: SessionMessage | Exception
                try:
                    message = SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
                except ValueError as error:
                    message = error
                await received.send(message)


async def _write(child: Process, to_send: MemoryObjectReceiveStream[SessionMessage], received: Incoming) -> None:
    assert child.stdin is not None
    try:
        async with to_send:
            async for sent in to_send:
                child.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await child.stdin.drain()
    except (anyio.ClosedResourceError, OSError):
        # No caller may wait for an answer to what was not sent.
        received.close()


async def _end(child: Process, tasks: list[asyncio.Task[None]]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            _kill(child, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                # `wait` would also wait for its pipes, which other processes may have inherited.
                while child.returncode is None:  # noqa: ASYNC110 - there is no event for that alone
                    await asyncio.sleep(0.01)
                break
    # Processes that it has left behind must not outlive it.
    _kill(child, signal.SIGKILL)
    await asyncio.wait(tasks, timeout=_LAST_LINES)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    # There is no public way to close pipes that another process still has open.
    child._transport.close()  # type: ignore[attr-defined]


def _kill(child: Process, how: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, how)
        elif child.returncode is None:
            child.kill()


async def copy_log(stderr: asyncio.StreamReader, server: McpServer) -> None:
    # A secret of several lines comes line by line.
    parts = {part.strip() for _, value in server.env for part in (value, *value.splitlines())}
    secrets = sorted((part for part in parts if len(part) >= _MIN_SECRET), key=len, reverse=True)
    held, is_open = b"", True
    while is_open:
        piece = await stderr.read(65_536)
        is_open = bool(piece)
        *lines, held = (held + (piece or b"\n")).split(b"\n")
        held = held[: 16 * _MAX_LOG_LINE]
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            for secret in secrets:
                text = text.replace(secret, "***")
            if text := text[:_MAX_LOG_LINE]:
                # Control characters could change the terminal that shows the log.
                logger.info("%s: %s", server.tool, "".join(c if c.isprintable() else " " for c in text))
