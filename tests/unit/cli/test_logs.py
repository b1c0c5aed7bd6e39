"""What a served agent logs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import asyncio, httpx, logging
from errands.cli.logs import LogLevel, configure_logging

async def main():
    answer = httpx.MockTransport(lambda request: httpx.Response(200))
    async with httpx.AsyncClient(transport=answer) as http:
        await http.get("http://far.example/?key=hunter2")

configure_logging(LogLevel.{level})
asyncio.run(main())
logging.getLogger("errands").warning("it has ended")
"""


@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_addresses_of_requests_are_not_logged(level: str) -> None:
    program = [sys.executable, "-c", _PROGRAM.replace("{level}", level)]
    logged = subprocess.run(program, capture_output=True, text=True, check=True, timeout=50).stderr
    assert "it has ended" in logged
    assert "hunter2" not in logged
