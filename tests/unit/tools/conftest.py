"""A service for the tests of one module; each test finds it as if it were new."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from errands.agents.tools import mcp_connection
from tests.live import live
from tests.unit.tools.support import Service


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """MCP servers that do not end by themselves are killed soon."""
    monkeypatch.setattr(mcp_connection, "_GRACE", 0.1)


@pytest.fixture(scope="module")
def running() -> Iterator[Service]:
    service = Service()
    with live(service.app) as service.url:
        yield service


@pytest.fixture
def service(running: Service) -> Service:
    fresh = Service()
    running.seen, running.answer = fresh.seen, fresh.answer
    return running
