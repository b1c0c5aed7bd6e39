"""A real MCP server. As a program it speaks over stdio; its argument says how it misbehaves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

server = MCPServer("shop")


class Item(BaseModel):
    """What is ordered."""

    name: str
    amount: int = 1
    extras: list[Item] = []


@server.tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def order(item: Item, note: str | None = None) -> dict[str, Any]:
    """Orders something."""
    return {"name": item.name, "amount": item.amount, "note": note}


@server.tool()
def out_of_stock() -> str:
    """Never works."""
    raise ToolError("There is none left.")


@server.tool()
def crash(message: str) -> str:
    """Ends the server."""
    print(message, file=sys.stderr, flush=True)
    os._exit(3)


@server.tool()
async def hang() -> str:
    """Never answers."""
    await asyncio.Event().wait()
    return ""


@server.tool(structured_output=False)
def text() -> str:
    """Gives a text."""
    return '{"a": 1}'


@server.tool(structured_output=False)
def several() -> list[Any]:
    """Gives a text and a picture."""
    return ["look", Image(data=b"\x89PNG", format="png")]


@server.tool(structured_output=False)
def nothing() -> list[str]:
    """Gives nothing."""
    return []


@server.tool()
def big(size: int) -> str:
    """Gives much."""
    return "x" * size


@server.tool()
def process() -> dict[str, Any]:
    """What the server is."""
    return {"pid": os.getpid(), "environment": sorted(os.environ), "arguments": sys.argv[1:]}


@server.tool()
def token() -> str:
    """A variable of the environment."""
    return os.environ["TOKEN"]


@server.tool()
def spawn() -> int:
    """Starts another process, which ignores every request to end."""
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    )
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    return child.pid


def main(manner: str) -> None:
    if manner == "silent":
        # Neither an answer nor an end.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(sys.argv[2]).write_text(str(os.getpid()))
        while True:
            signal.pause()
    if manner == "talkative":
        print("no JSON at all", flush=True)
        print("\x1b[31mready\x1b[0m with " + os.environ.get("TOKEN", ""), file=sys.stderr, flush=True)
    if manner == "gone":
        sys.exit("there is no configuration")
    server.run()
    if manner == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            signal.pause()


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "")
