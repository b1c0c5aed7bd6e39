"""The answers of an MCP server without the official package."""

from __future__ import annotations

from typing import Any


def answer(method: str) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "endless", "version": "1"}
        return {"result": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": about}}
    if method == "tools/list":
        return {"result": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}
