"""`mcp`: actions that are tools of an MCP server, which runs as a process or is reached over HTTP.

    no such command, no answer, or not in time           `BrokenToolError`
    an error of the tool, a timeout, an invalid answer   `ToolError`

There is one connection per tool and turn; `close` ends it, and the process with it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import httpx
import msgspec

from errands.agents.manifests.documents import Mcp, Tool
from errands.agents.manifests.schemas import Schema, usable, written_out
from errands.agents.tools.base import Backend, Discovered, Equipment, Invocation, ToolError, configuration, optional
from errands.agents.tools.http_actions import filling, put_header
from errands.errors import ConfigurationError
from errands.policy.cel import Session
from errands.policy.cel.values import Json

if TYPE_CHECKING:
    from errands.agents.tools.mcp_connection import McpConnection

#: The arguments of a process may depend on those of a call, so one turn may need several connections.
_MAX_CONNECTIONS = 8
_MAX_ERROR = 2_000
#: Schemas of all tools of a server with references written out; what comes after them is not described.
_MAX_SCHEMAS = 100_000
_MAX_DESCRIPTION = 4_000


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


class McpBackend(Backend):
    def __init__(self, equipment: Equipment) -> None:
        super().__init__(equipment)
        self._connections: dict[McpServer, McpConnection] = {}
        #: Held while a connection is made: several first calls at the same time share one.
        self._lock = asyncio.Lock()

    @classmethod
    def check(cls, tool: Tool) -> None:
        _extra()

    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, Mcp)
        name = invocation.operation or document.tool_name or ""
        server = await self._server(document, invocation.arguments, invocation.context, invocation.session)
        connection = await self._connection(server)
        bounds, arguments = self.equipment.bounds, invocation.arguments
        if None in arguments.values():
            # Null means "not given", unless the tool says otherwise; see `optional`.
            schemas = {tool.name: tool.input_schema for tool in await connection.tools(bounds.timeout)}
            declared = schemas.get(name, {}).get("properties", {})
            kept = {key for key, one in declared.items() if isinstance(one, dict) and "default" in one}
            kept |= _required(schemas.get(name, {}))
            arguments = {key: value for key, value in arguments.items() if value is not None or key in kept}
        result = await connection.call(name, arguments, bounds.timeout)
        if result.is_error:
            texts = [block.text for block in result.content if block.type == "text"]
            raise ToolError("\n".join(texts)[:_MAX_ERROR] or f"{name} failed")
        # Structured content if there is some, a single text as it is, and anything else as a list.
        value: Json = result.structured_content
        if value is None and result.content:
            blocks = [
                block.text
                if block.type == "text"
                else block.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"annotations", "meta"})
                for block in result.content
            ]
            value = blocks[0] if len(blocks) == 1 else blocks
        if len(msgspec.json.encode(value)) > bounds.max_bytes:
            raise ToolError(f"{name} answered with more than {bounds.max_bytes:,} bytes")
        return value

    async def discover(self, action: str | None) -> list[Discovered]:
        document = configuration(self.equipment.tool, action, Mcp)
        # Without a task there is not yet a context.
        connection = await self._connection(await self._server(document, {}, {}, Session("")))
        tools = await connection.tools(self.equipment.bounds.timeout)
        max_schemas = _MAX_SCHEMAS // max(len(tools), 1)

        def discovered() -> list[Discovered]:
            return [
                Discovered(
                    name=tool.name,
                    description=(tool.description or tool.title or tool.name)[:_MAX_DESCRIPTION],
                    parameters=_parameters(tool.input_schema, max_schemas),
                )
                for tool in tools
            ]

        return await asyncio.to_thread(discovered)

    async def close(self) -> None:
        await asyncio.gather(*(connection.close() for connection in self._connections.values()))

    async def _server(
        self, document: Mcp, arguments: Mapping[str, Json], context: Mapping[str, Json], session: Session
    ) -> McpServer:
        filled = filling(self.equipment, arguments, context, session)
        headers = httpx.Headers()
        for name, text in (document.headers or {}).items():
            put_header(headers, name, await filled.text(text))
        return McpServer(
            tool=self.equipment.tool.name,
            transport=document.transport or "",
            command=document.command or "",
            args=tuple([await filled.text(text) for text in document.args or []]),
            env=tuple([(name, await filled.text(text)) for name, text in (document.env or {}).items()]),
            url=document.url or "",
            headers=tuple(headers.raw),
        )

    async def _connection(self, server: McpServer) -> McpConnection:
        async with self._lock:
            found = self._connections.get(server)
            if found is not None and found.is_open:
                return found
            if found is not None:
                await found.close()
            elif len(self._connections) >= _MAX_CONNECTIONS:
                raise ToolError(f"{server.tool} was called in more than {_MAX_CONNECTIONS} different ways in one turn")
            made: McpConnection = _extra().McpConnection(
                server, self.equipment.transport, self.equipment.bounds.most_read
            )
            self._connections[server] = made
            await made.open(self.equipment.bounds.start)
            return made


def _extra() -> Any:
    """Import the module that needs the extra. Raises `ConfigurationError` if it is not installed."""
    try:
        from errands.agents.tools import mcp_connection  # noqa: PLC0415 - mcp is an extra
    except ImportError as error:
        raise ConfigurationError(f"MCP tools need an extra ({error}): pip install 'errands[mcp]'") from None
    return mcp_connection


def _parameters(root: Schema, max_schemas: int) -> dict[str, Schema]:
    """Return the parameters of a tool. Patterns are left to the server, which checks what it is sent."""
    declared = written_out(root, root, patterns=False, max_schemas=max_schemas).get("properties", {})
    plain, required = {name: usable(schema) for name, schema in declared.items()}, _required(root)
    return {name: schema if name in required else optional(schema) for name, schema in plain.items()}


def _required(root: Schema) -> set[str]:
    names = root.get("required", [])
    return {name for name in names if isinstance(name, str)} if isinstance(names, list) else set()
