"""Connections to MCP servers, with the official package (extra `mcp`). `mcp` imports this module when it is needed.

The package works with scopes that must be left by the task that entered them, so each connection has a task of its own;
its calls may come from any other task. Servers are run as processes here and not by the package, which reads a line of
any length and copies what it has read for every piece of it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
from asyncio.subprocess import PIPE, Process, SubprocessStreamProtocol
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from typing import Any

import anyio
import httpx
import httpx2
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp import Client, MCPError
from mcp.client import Transport
from mcp.client.sse import sse_client
from mcp.client.stdio import get_default_environment
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.message import SessionMessage
from mcp.types import CONNECTION_CLOSED as _CLOSED
from mcp.types import CallToolResult, Implementation, Tool, jsonrpc_message_adapter

from errands.agents.manifests.schemas import Parameters, Schema, usable, written_out
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.agents.tools.mcp import McpServer
from errands.errors import ErrandsError
from errands.outbound import AnswerTooLargeError

logger = logging.getLogger(__name__)

#: Pages of a list of tools.
_MAX_PAGES = 50
_MAX_TOOLS = 1_000
_CLIENT_INFO = Implementation(name="errands", version="")
#: Seconds for the process to end by itself, and again after SIGTERM.
_GRACE = 2.0
#: Seconds for its last lines, if a process that it left behind holds a pipe open.
_LAST_LINES = 1.0
#: Characters of one line that a server writes to its stderr.
_MAX_LOG_LINE = 2_000
#: Shorter values of variables are not secrets, and hiding them would make a log unreadable.
_MIN_SECRET = 6

Incoming = MemoryObjectSendStream[SessionMessage | Exception]


class McpConnection:
    """One session with one server; for `stdio`, its process. `close` ends both."""

    def __init__(self, server: McpServer, http: httpx.AsyncBaseTransport, max_bytes: int) -> None:
        """`http` sends the requests of `http` and `sse` and guards where they go. It is not closed here.

        A message of more than `max_bytes` ends the connection; for HTTP, `http` checks it.
        """
        self._server = server
        self._name = f"the MCP server of {server.tool}"
        self._max_bytes = max_bytes
        self._bridge = _HttpBridge(http, self._end_too_large)
        self._is_too_large = False
        #: The schemas of results by tool; None until they are known.
        self._result_schemas: dict[str, Schema] | None = None
        self._opened: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
        # The caller may have stopped waiting for it.
        self._opened.add_done_callback(lambda opened: opened.cancelled() or opened.exception())
        self._closing = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    async def open(self, seconds: float) -> None:
        """Raises `BrokenToolError` if the server cannot be reached or does not answer in time."""
        try:
            async with asyncio.timeout(seconds):
                await asyncio.shield(self._opened)
        except TimeoutError:
            await self.close()
            raise BrokenToolError(f"{self._name} did not answer within {seconds:g} s") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        except Exception as error:
            if self._bridge.refused is not None:
                problem = f"{self._name} cannot be reached: {self._bridge.refused}"
            elif self._bridge.unreadable is not None:
                problem = f"the answer of {self._name} cannot be read: {self._bridge.unreadable}"
            elif isinstance(error, FileNotFoundError | PermissionError | NotADirectoryError):
                problem = f"{self._name} cannot be started: {self._server.command}: {error.strerror}"
            elif self._server.transport == "stdio":
                before = f"{self._name} ended or gave an invalid answer before it was ready"
                problem = f"{before} ({_short(error)}); see the log"
            else:
                problem = f"{self._name} does not answer at its address ({_short(error)})"
            raise BrokenToolError(problem) from None

    @property
    def is_open(self) -> bool:
        return self._opened.done() and not self._task.done() and not self._closing.is_set()

    async def tools(self, seconds: float) -> list[Tool]:
        """Return everything the server offers. Raises `BrokenToolError`."""
        found: list[Tool] = []
        cursor: str | None = None
        try:
            async with asyncio.timeout(seconds):
                for _ in range(_MAX_PAGES):
                    page = await self._client.list_tools(cursor=cursor)
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(found) > _MAX_TOOLS:
                        break
        except TimeoutError:
            raise BrokenToolError(f"{self._name} did not list its tools within {seconds:g} s") from None
        except (MCPError, ToolError) as error:
            why = f"the list has more than {self._max_bytes:,} bytes" if self._is_too_large else _short(error)
            raise BrokenToolError(f"{self._name} did not list its tools: {why}") from None
        except Exception as error:
            raise BrokenToolError(self._unusable("tools/list", error)) from None
        if len(found) > _MAX_TOOLS:
            raise BrokenToolError(f"{self._name} has more than {_MAX_TOOLS:,} tools, and cannot be used")
        self._result_schemas = {tool.name: tool.output_schema for tool in found if tool.output_schema is not None}
        return found

    async def call(self, name: str, arguments: dict[str, Any], seconds: float) -> CallToolResult:
        """Raises `ToolError` without a result; an error that the tool itself reports is a result."""
        try:
            async with asyncio.timeout(seconds):
                result = await self._client.call_tool(name, arguments)
                if not result.is_error:
                    await self._check(name, result, seconds)
                return result
        except TimeoutError:
            raise ToolError(f"{name} did not answer within {seconds:g} s") from None
        except MCPError as error:
            if self._is_too_large:
                raise ToolError(f"{name} answered with more than {self._max_bytes:,} bytes") from None
            if error.code == _CLOSED:
                self._closing.set()
                if (unreadable := self._bridge.unreadable) is not None:
                    problem = f"{self._name} carried out the call of {name}, but its answer cannot be read"
                    raise ToolError(f"{problem}: {unreadable}") from None
                raise ToolError(f"{self._name} ended before it answered") from None
            raise ToolError(f"{name}: {_short(error)}") from None
        except ToolError:
            raise
        except Exception as error:
            raise ToolError(f"{name}: {self._unusable(name, error)}") from None

    async def close(self) -> None:
        """End the session. A process that does not end by itself is killed, with all that it has started."""
        self._closing.set()
        if not self._opened.done():
            self._task.cancel()
        await asyncio.shield(asyncio.wait([self._task]))

    @property
    def _client(self) -> Client:
        if not self.is_open:
            raise ToolError(f"{self._name} is gone")
        return self._opened.result()

    async def _check(self, name: str, result: CallToolResult, seconds: float) -> None:
        """Raises `ValueError` if a result violates the schema that its tool gives for it."""
        if self._result_schemas is None:
            await self.tools(seconds)
        schema = (self._result_schemas or {}).get(name)
        if schema is not None:
            parameters = Parameters({"result": usable(written_out(schema, schema))})
            if problems := await parameters.problems({"result": result.structured_content}):
                raise ValueError(problems[0][1].message)

    def _end_too_large(self) -> None:
        self._is_too_large = True
        self._closing.set()

    def _unusable(self, request: str, error: Exception) -> str:
        """Return the message for an answer that violates the protocol, or the tool's own schema of its results."""
        # Without the text of the error, which repeats the answer and so may contain anything.
        logger.warning("%s gave an invalid answer to %s (%s)", self._name, request, type(error).__name__)
        return f"{self._name} gave an invalid answer"

    # The connection's own task

    async def _live(self) -> None:
        try:
            async with AsyncExitStack() as stack:
                server = self._server
                transport: Transport
                if server.transport == "stdio":
                    transport = process(server, max_bytes=self._max_bytes, on_too_large=self._end_too_large)
                elif server.transport == "sse":
                    transport = sse_client(server.url, httpx_client_factory=self._http_client)
                else:
                    http = await stack.enter_async_context(self._http_client())
                    transport = streamable_http_client(server.url, http_client=http)
                client = Client(transport, client_info=_CLIENT_INFO, cache=None)
                await stack.enter_async_context(client)
                # The package would match patterns of the server on results in exponential time; see `_check`.
                client.session.validate_tool_result = _unchecked  # type: ignore[method-assign]
                self._opened.set_result(client)
                await self._closing.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if self._opened.done():
                logger.warning("%s: the connection broke: %s", self._name, _short(error))
            else:
                self._opened.set_exception(_first(error))
        finally:
            self._opened.cancel()

    def _http_client(
        self, headers: dict[str, str] | None = None, timeout: httpx2.Timeout | None = None, auth: Any = None
    ) -> httpx2.AsyncClient:
        # A stream may be silent for long; the time of a call is bounded elsewhere.
        limit = timeout or httpx2.Timeout(30, read=300)
        own = httpx2.Headers(list(self._server.headers))
        own.update(headers)
        return httpx2.AsyncClient(transport=self._bridge, headers=own, timeout=limit, auth=auth, trust_env=False)


async def _unchecked(name: str, result: CallToolResult) -> None:
    pass


def _first(error: BaseException) -> Exception:
    """Return the first error of a group: task groups wrap errors in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)


def _short(error: BaseException) -> str:
    first = _first(error)
    return (str(first).strip().partition("\n")[0] or type(first).__name__)[:500]


# HTTP


class _HttpBridge(httpx2.AsyncBaseTransport):
    """The package has its own HTTP library; this sends its requests with ours, through the outbound guard."""

    def __init__(self, inner: httpx.AsyncBaseTransport, on_too_large: Callable[[], None]) -> None:
        self._inner = inner
        self._on_too_large = on_too_large
        #: Why nothing was sent.
        self.refused: ErrandsError | None = None
        #: Why an answer cannot be read. The package ends the connection then.
        self.unreadable: httpx2.DecodingError | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        sent = httpx.Request(
            request.method,
            str(request.url),
            headers=request.headers.raw,
            content=await request.aread(),
            extensions={"timeout": request.extensions["timeout"]},
        )
        try:
            with _translated_errors(request):
                answer = await self._inner.handle_async_request(sent)
        except ErrandsError as error:
            self.refused = error
            raise httpx2.ConnectError(str(error), request=request) from None
        except httpx2.DecodingError as error:
            self.unreadable = error
            raise
        stream = _BridgedBody(answer, request, self._on_too_large)
        return httpx2.Response(answer.status_code, headers=answer.headers.raw, stream=stream, request=request)


class _BridgedBody(httpx2.AsyncByteStream):
    def __init__(self, answer: httpx.Response, request: httpx2.Request, on_too_large: Callable[[], None]) -> None:
        self._answer = answer
        self._request = request
        self._on_too_large = on_too_large

    async def __aiter__(self) -> AsyncIterator[bytes]:
        assert isinstance(self._answer.stream, httpx.AsyncByteStream)
        try:
            with _translated_errors(self._request):
                async for piece in self._answer.stream:
                    yield piece
        except AnswerTooLargeError as error:
            self._on_too_large()
            raise httpx2.ReadError(str(error), request=self._request) from None

    async def aclose(self) -> None:
        await self._answer.aclose()


@contextmanager
def _translated_errors(request: httpx2.Request) -> Iterator[None]:
    """Raise the errors of our HTTP library as those of the other."""
    try:
        yield
    except httpx.RequestError as error:
        same = getattr(httpx2, type(error).__name__, httpx2.RequestError)
        raise same(str(error), request=request) from error


# Processes: messages over stdin and stdout, one per line, and stderr into our log


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
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.subprocess_exec(
        lambda: SubprocessStreamProtocol(limit=max_bytes, loop=loop),
        shutil.which(server.command, path=environment.get("PATH")) or server.command,
        *server.args,
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
        env=environment,
        start_new_session=True,
    )
    child = Process(transport, protocol, loop)
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
        await asyncio.shield(_end(child, transport, tasks))


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


async def _end(child: Process, transport: asyncio.BaseTransport, tasks: list[asyncio.Task[None]]) -> None:
    assert child.stdin is not None
    child.stdin.close()
    for how in (None, signal.SIGTERM, signal.SIGKILL):
        if how is not None:
            _kill(child, how)
        with suppress(TimeoutError):
            async with asyncio.timeout(_GRACE):
                # `wait` would also wait for its pipes, which other processes may have inherited.
                while child.returncode is None:  # noqa: ASYNC110 - asyncio has no event for that alone
                    await asyncio.sleep(0.01)
                break
    # Processes that it has left behind must not outlive it.
    _kill(child, signal.SIGKILL)
    await asyncio.wait(tasks, timeout=_LAST_LINES)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    # Another process may still have its pipes open.
    transport.close()


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
