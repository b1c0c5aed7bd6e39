"""An MCP server without the official package: of an old version, with schemas that nobody checked, in two pages."""

from __future__ import annotations

import json
import sys
from typing import Any

ECHO = {
    "name": "echo",
    "inputSchema": {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "lines": {"type": "integer"},
            "mode": {"enum": ["a", "b"]},
            "nullable": {"type": ["string", "null"], "default": "x"},
            "must": {"type": ["string", "null"]},
        },
        "required": ["text", "must"],
    },
}
ODD = {
    "name": "odd.name/here",
    "title": "Odd",
    "inputSchema": {
        "type": "object",
        "properties": {
            "kind": {"type": "no type", "description": "What kind."},
            "pattern": {"type": "string", "pattern": "("},
            "anything": True,
            "gone": {"$ref": "#/$defs/Gone"},
        },
    },
}
CODE = {
    "name": "code",
    "inputSchema": {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]},
    # Takes a backtracking engine a time that doubles with each letter.
    "outputSchema": {"type": "object", "properties": {"code": {"pattern": "^([a-zA-Z0-9]+[._-]?)+@example$"}}},
}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "initialize":
        return {
            "protocolVersion": "2024-11-05",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "plain", "version": "1"},
        }
    if method == "tools/list":
        return {"tools": [ODD]} if params.get("cursor") == "2" else {"tools": [ECHO, CODE], "nextCursor": "2"}
    if method == "tools/call" and params["name"] == "echo":
        return {"content": [{"type": "text", "text": json.dumps(params["arguments"])}]}
    if method == "tools/call" and params["name"] == "code":
        return {"content": [], "structuredContent": params["arguments"]}
    if method == "tools/call":
        return {"content": "no list"}
    return None


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        error = {"code": -32601, "message": "Method not found"}
        found = {"result": result} if result is not None else {"error": error}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **found}), flush=True)
