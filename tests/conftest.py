"""What every test may use. A later engine needs one line in `STORAGES`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tests import redis_server
from tests.postgres import url_for

# A busy machine is no mistake of the code; every test has a timeout of its own.
settings.register_profile("errands", deadline=None)
settings.load_profile("errands")

STORAGES: dict[str, Callable[[Path], str]] = {
    "memory": lambda folder: "memory",
    "sqlite": lambda folder: f"sqlite:///{folder / 'tasks.db'}",
    "postgresql": url_for,
    "redis": redis_server.shared_url,
}


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
async def one_loop(anyio_backend: str) -> AsyncIterator[None]:
    """Holds one event loop for the tests of a process: gRPC may still have a word for the loop of a test before."""
    yield  # noqa: PT022 - what ends with the fixture is the loop


@pytest.fixture(params=STORAGES)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine in turn."""
    return STORAGES[request.param](tmp_path)
