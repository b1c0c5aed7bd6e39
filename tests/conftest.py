"""What every test may use. A later engine needs one line in `STORAGES`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import redis_server

STORAGES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory",
    "sqlite": lambda folder: f"sqlite:///{folder / 'tasks.db'}",
    "redis": redis_server.shared_url,
}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine in turn."""
    return STORAGES[request.param](tmp_path)
