"""An MCP server without the official package, whose one tool answers with a line that has no end."""

from __future__ import annotations

import json
import sys
from typing import Any


def answer(method: str) -> dict[str, Any]:
    if method == "initialize":
        about = {"name": "endless", "version": "1"}
        return {"result": {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": about}}
    if method == "tools/list":
        return {"result": {"tools": [{"name": "go", "inputSchema": {"type": "object"}}]}}
    return {"error": {"code": -32601, "message": "Method not found"}}


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        while request["method"] == "tools/call":
            sys.stdout.write("x" * 65_536)
        if "id" in request:
            found = answer(request["method"])
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **found}), flush=True)
