"""What a served agent logs."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import logging
from errands.cli.http_server import configure_logging

configure_logging("LEVEL")
for name in ("httpx", "httpx2", "httpcore.connection"):
    logging.getLogger(name).info("HTTP Request: GET http://far.example/?key=hunter2")
logging.getLogger("errands").warning("it has ended")
"""


@pytest.mark.parametrize("level", ["debug", "info"])
def test_the_addresses_of_requests_are_not_logged(level: str) -> None:
    program = [sys.executable, "-c", _PROGRAM.replace("LEVEL", level)]
    logged = subprocess.run(program, capture_output=True, text=True, check=True, timeout=50).stderr
    assert "it has ended" in logged
    assert "hunter2" not in logged
