"""One body per behaviour, run over every binding and every engine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import pytest

from errands import A2AClient, A2AServer, Worker
from errands.testing import connect, serve

BINDINGS = ["jsonrpc", "http+json"]

Connect = Callable[..., AbstractAsyncContextManager[A2AClient]]


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def connected(binding: str, storage: str) -> Connect:
    """`async with connected(worker) as client`: an agent and its client over this binding and engine."""

    @asynccontextmanager
    async def connect_over(
        agent: Worker | A2AServer, *, client: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[A2AClient]:
        server = agent if isinstance(agent, A2AServer) else serve(agent, storage=storage, **options)
        async with connect(server, client={"protocol": binding, **(client or {})}) as connected_client:
            assert connected_client.protocol == binding
            yield connected_client

    return connect_over
