"""What a process of an MCP server writes into its log comes into ours without its secrets."""

from __future__ import annotations

import asyncio
import logging
import sys
from asyncio.subprocess import PIPE

import pytest

from errands.agents.tools.mcp import McpServer
from errands.agents.tools.mcp_connection import copy_log

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("secret", "written"),
    [
        ("top-secret-value", "a" * 1_990 + "top-secret-value"),
        ("first-half-of-it\nother-half-of-it", "first-half-of-it\nother-half-of-it"),
    ],
    ids=["where a line is cut", "over several lines"],
)
async def test_no_piece_of_a_secret_is_logged(caplog: pytest.LogCaptureFixture, secret: str, written: str) -> None:
    caplog.set_level(logging.INFO)
    program = f"import sys; sys.stderr.write({written!r})"
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stderr=PIPE)
    assert child.stderr is not None
    await copy_log(child.stderr, McpServer(tool="shop", transport="stdio", env=(("TOKEN", secret),)))
    await child.wait()
    assert "***" in caplog.text
    assert not any(piece in caplog.text for piece in ("top-s", "first-half", "other-half"))
