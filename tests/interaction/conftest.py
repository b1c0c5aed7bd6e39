"""One body per behaviour, run over every version, binding and engine that it concerns."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import pytest

from errands import A2AClient, A2AServer, AgentExecutor, Worker
from errands.testing import connect, serve
from tests.conftest import STORAGES
from tests.interaction.fuzzing import Target

BINDINGS = ["jsonrpc", "http+json"]

Connect = Callable[..., AbstractAsyncContextManager[A2AClient]]


@pytest.fixture(autouse=True)
def loop_for_grpc(one_loop: None) -> None:
    """See `one_loop`."""


@pytest.fixture(params=BINDINGS)
def binding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


class Dialect(NamedTuple):
    version: str
    binding: str


DIALECTS = [Dialect(version, binding) for version in ("1.0", "0.3") for binding in (*BINDINGS, "grpc")]
#: For tests that are not about the wire.
one_dialect = pytest.mark.parametrize("dialect", DIALECTS[:1], ids="-".join, indirect=True)


def cells(wire: Sequence[Any]) -> list[tuple[Any, str]]:
    """Return every way over the wire on one engine, and every other engine over the first way: see `tests.cells`."""
    return [(way, "memory") for way in wire] + [(wire[0], name) for name in STORAGES if name != "memory"]


@pytest.hookimpl(tryfirst=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the cells of a test that has both a way over the wire and an engine, and does not choose them itself."""
    chosen = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    for name, ways in (("dialect", DIALECTS), ("binding", BINDINGS)):
        if {name, "storage"} <= set(metafunc.fixturenames) and not {name, "storage"}.intersection(chosen):
            ids = ["-".join([way] if isinstance(way, str) else way) + f"-{storage}" for way, storage in cells(ways)]
            mark = pytest.mark.parametrize((name, "storage"), cells(ways), ids=ids, indirect=True)
            metafunc.definition.add_marker(mark)


@pytest.fixture(params=DIALECTS, ids="-".join)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    spoken: Dialect = request.param
    return spoken


@pytest.fixture
def connected(dialect: Dialect, storage: str) -> Connect:
    """`async with connected(worker) as client`: an agent and its client over this dialect and engine."""

    @asynccontextmanager
    async def connect_over(
        agent: Worker | AgentExecutor | A2AServer, *, client: dict[str, Any] | None = None, **options: Any
    ) -> AsyncIterator[A2AClient]:
        if dialect.binding == "grpc":
            options.setdefault("grpc_port", 0)
        server = agent if isinstance(agent, A2AServer) else serve(agent, storage=storage, **options)
        wishes = {"protocol": dialect.binding, "version": dialect.version, **(client or {})}
        async with connect(server, client=wishes) as connected_client:
            assert (connected_client.version, connected_client.protocol) == dialect
            yield connected_client

    return connect_over


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A running agent for the fuzz tests of a module."""
    target = Target()
    yield target
    target.close()
