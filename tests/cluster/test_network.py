"""A replica that is cut off from its store loses its tasks, writes nothing more to them, and comes back by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx
import pytest

from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.core import TERMINAL_STATES, TaskState
from tests.clients import HEADERS
from tests.cluster.checks import SCOPE, check_fences, ends_in, log_of, words_in
from tests.cluster.cluster import Replica, cluster_on
from tests.cluster.load import Load
from tests.cluster.proxy import Proxy, port_proxy, socket_proxy
from tests.ports import free_port
from tests.postgres import own_server
from tests.redis_server import Server as RedisServer

pytestmark = [pytest.mark.anyio, pytest.mark.cluster]


class Network:
    """A store, and the way to it that can be cut."""

    def __init__(self, url: str, cuttable_url: str, proxy: Proxy) -> None:
        self.url = url
        self.cuttable_url = cuttable_url
        self.proxy = proxy


@asynccontextmanager
async def _postgres(folder: Path) -> AsyncIterator[Network]:
    name = ".s.PGSQL.5432"
    with own_server() as server:
        async with socket_proxy(server.socket_folder / name, folder / name) as proxy:
            yield Network(server.url(), server.url().replace(str(server.socket_folder), str(folder)), proxy)


@asynccontextmanager
async def _redis(folder: Path) -> AsyncIterator[Network]:
    server = RedisServer(folder / "data")
    server.start()
    port = free_port()
    try:
        async with port_proxy(server.port, port) as proxy:
            yield Network(server.url, server.url.replace(str(server.port), str(port)), proxy)
    finally:
        server.stop()


@pytest.fixture(params=[_postgres, _redis], ids=["postgresql", "redis"])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    with TemporaryDirectory() as folder:
        async with request.param(Path(folder)) as network:
            yield network


async def test_a_replica_that_is_cut_off_loses_its_task_and_recovers_by_itself(network: Network) -> None:
    with cluster_on([network.cuttable_url, network.url]) as cluster:
        lonely, other = cluster.replicas
        lonely.start()
        await lonely.ready()
        lonely_pid = lonely.pid
        async with Load(cluster) as load, engine_from_url(network.url) as engine:
            task_id = (await load.send_to(lonely, "talk")).id
            await _is_said_by(lonely, engine, task_id)
            # Not before: where a machine stands still for longer than a lease, any replica may take a task over.
            other.start()
            await other.ready()
            network.proxy.pause()
            await _is_ready(lonely, False)
            # The lease runs out, and the other goes on, while the lonely one still wants to write.
            await _is_said_by(other, engine, task_id)
            await load.cancel_at(other, task_id)
            log = await log_of(engine, task_id)
            other.kill()
            network.proxy.resume()
            await _is_ready(lonely, True)
            assert lonely.pid == lonely_pid
            # What it wanted to write meanwhile was refused, and it works again as if nothing had been.
            again = (await load.send_to(lonely, "write")).id
            stored = await engine.wait_for_state(again, SCOPE, TERMINAL_STATES, None)
            assert stored.state is TaskState.COMPLETED
            assert {pid for _, pid, _ in words_in(await log_of(engine, again))} == {lonely_pid}
            assert await log_of(engine, task_id) == log
            assert len(ends_in(log)) == 1
            check_fences(log)


async def _is_said_by(replica: Replica, engine: Engine, task_id: str) -> None:
    """Waits until this replica has written to the task."""
    subscription = engine.subscribe(task_id, SCOPE, 0)
    pids: set[int] = set()
    while replica.pid not in pids:
        pids |= {pid for _, pid, _ in words_in(await subscription.next() or [])}
    subscription.close()


async def _is_ready(replica: Replica, wanted: bool) -> None:
    """Waits until the replica says so."""
    async with httpx.AsyncClient(timeout=None) as client:
        while (await client.get(f"{replica.url}/health/ready", headers=HEADERS)).is_success is not wanted:
            await asyncio.sleep(0.05)
        # It lives all the while: nobody has to restart it.
        assert (await client.get(f"{replica.url}/health", headers=HEADERS)).is_success
