"""An MCP server as a process: messages over its stdin and stdout, a line each, and its stderr into our log.

The official package has this, too, but reads a line of any length.
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

#: Seconds to end by itself, and once more after it was told to.
_GRACE = 2.0
#: Seconds for its last words, when something that it left behind holds the pipe open.
_LAST_WORDS = 1.0
#: Characters of one line that a server writes into its log.
_MAX_LINE = 2_000
#: Shorter values of variables are no secrets, and hiding them would make a log unreadable.
_MIN_SECRET = 6

Incoming = MemoryObjectReceiveStream[SessionMessage | Exception]
Outgoing = MemoryObjectSendStream[SessionMessage]


class Command(msgspec.Struct, frozen=True, kw_only=True):
    #: For messages.
    tool: str
    command: str
    args: tuple[str, ...] = ()
    env: tuple[tuple[str, str], ...] = ()


@asynccontextmanager
async def process(
    command: Command, *, max_bytes: int, on_too_much: Callable[[], None]
) -> AsyncIterator[tuple[Incoming, Outgoing]]:
    """The process, until the end of the block; then it is ended, with all that it has started.

    `on_too_much` is called when one message has more than `max_bytes`; then nothing more comes.
    """
    environment = get_default_environment() | dict(command.env)
    child = await asyncio.create_subprocess_exec(
        shutil.which(command.command, path=environment.get("PATH")) or command.command,
        *command.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        limit=max_bytes,
        env=environment,
        start_new_session=True,
    )
    received, incoming = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    outgoing, to_send = anyio.create_memory_object_stream[SessionMessage](0)
    reading = asyncio.create_task(_read(child, received, on_too_much))
    writing = asyncio.create_task(_write(child, to_send, received))
    copying = asyncio.create_task(_copy(child, command))
    try:
        yield incoming, outgoing
    finally:
        for stream in (incoming, outgoing, received, to_send):
            stream.close()
        await asyncio.shield(_ended(child, reading, writing, copying))


async def _read(
    child: Process, received: MemoryObjectSendStream[SessionMessage | Exception], on_too_much: Callable[[], None]
) -> None:
    assert child.stdout is not None
    with suppress(asyncio.IncompleteReadError, anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
        async with received:
            while True:
                try:
                    line = await child.stdout.readuntil(b"\n")
                except asyncio.LimitOverrunError:
                    return on_too_much()
                await received.send(_message(line))


def _message(line: bytes) -> SessionMessage | Exception:
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValueError as error:
        return error


async def _write(
    child: Process,
    to_send: MemoryObjectReceiveStream[SessionMessage],
    received: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    assert child.stdin is not None
    try:
        async with to_send:
            async for sent in to_send:
                child.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await child.stdin.drain()
    except (anyio.ClosedResourceError, OSError):
        # Nobody must wait for an answer to what was not sent.
        received.close()


async def _ended(child: Process, *tasks: asyncio.Task[None]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            _kill(child, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                await _exited(child)
                break
    # What it has left behind must not outlive it.
    _kill(child, signal.SIGKILL)
    await asyncio.wait(tasks, timeout=_LAST_WORDS)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    # There is no other way to let go of pipes that somebody else still has open.
    child._transport.close()  # type: ignore[attr-defined]


async def _exited(child: Process) -> None:
    # `wait` would wait for its pipes as well, which others may have inherited.
    while child.returncode is None:  # noqa: ASYNC110 - there is no event for that alone
        await asyncio.sleep(0.01)


def _kill(child: Process, how: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, how)
        elif child.returncode is None:
            child.kill()


# What it writes into its log


async def _copy(child: Process, command: Command) -> None:
    assert child.stderr is not None
    # A secret of several lines comes line by line.
    parts = {part.strip() for _, value in command.env for part in (value, *value.splitlines())}
    secrets = sorted((part for part in parts if len(part) >= _MIN_SECRET), key=len, reverse=True)
    held = b""
    while piece := await child.stderr.read(65_536):
        *lines, held = (held + piece).split(b"\n")
        for line in lines:
            _log(line, command, secrets)
        held = held[: 16 * _MAX_LINE]
    _log(held, command, secrets)


def _log(line: bytes, command: Command, secrets: list[str]) -> None:
    text = line.decode(errors="replace").rstrip()
    for secret in secrets:
        text = text.replace(secret, "***")
    if text := text[:_MAX_LINE]:
        # A terminal that shows the log must not be told what to do.
        logger.info("%s: %s", command.tool, "".join(c if c.isprintable() else " " for c in text))
