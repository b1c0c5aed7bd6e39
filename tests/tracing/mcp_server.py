"""An MCP server over stdio, whose tool says in which trace it was called."""

from __future__ import annotations

from mcp.server.mcpserver import MCPServer
from opentelemetry import trace

server = MCPServer("places")


@server.tool()
def place() -> str:
    """Says the trace and the span."""
    context = trace.get_current_span().get_span_context()
    return f"{context.trace_id:032x} {context.span_id:016x}"


if __name__ == "__main__":
    server.run("stdio")
