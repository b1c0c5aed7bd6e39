"""Three replicas on one store, under mixed load, killed again and again while the store itself is restarted.

What must come out: every accepted message has led to one task, every task has ended once, every reader was shown every
event once and in order, and nothing was written by a process that had lost its task to another.
"""

from __future__ import annotations

import asyncio
import random
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from errands.engines.urls import engine_from_url
from tests import postgres, redis_server
from tests.cluster.checks import check_readers, check_tasks
from tests.cluster.cluster import Cluster, cluster_on
from tests.cluster.load import Load
from tests.soak import LONG

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

#: At least so long, and so many.
SECONDS, KILLS = (60, 30) if LONG else (0, 4)
REPLICAS = 3

#: A store's URL, and what restarts its server.
Store = tuple[str, Callable[[], None]]


@pytest.fixture(params=["postgresql", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    """A server of its own, which loses what is only in its memory when it is restarted."""
    if request.param == "postgresql":
        with postgres.own_server() as database:
            yield database.url(), lambda: database.control("restart", "-m", "immediate")
        return
    with TemporaryDirectory() as folder:
        server = redis_server.Server(Path(folder) / "data")
        server.start()

        def restart() -> None:
            server.stop(signal.SIGKILL)
            server.start()

        yield server.url, restart
        server.stop()


async def test_nothing_is_lost_or_done_twice_whatever_breaks(store: Store) -> None:
    url, restart_store = store
    with cluster_on([url] * REPLICAS) as cluster:
        await cluster.start()
        async with Load(cluster) as load, load.going_on():
            await _break_things(cluster, restart_store)
        async with engine_from_url(url) as engine:
            await check_tasks(engine, load)
            await check_readers(engine, load)
    _report(cluster, load)
    if LONG:
        assert statistics.median(load.cancels) < 0.1


async def test_a_cancel_reaches_the_worker_on_another_replica_at_once(store: Store) -> None:
    with cluster_on([store[0]] * REPLICAS, "waits-for-signs") as cluster:
        await cluster.start()
        async with Load(cluster) as load:
            for _ in range(15):
                await load.cancel()
    # The handlers have seen them all, and nobody looks by itself more than once an hour.
    assert len(load.cancels) == 15
    if LONG:
        assert statistics.median(load.cancels) < 0.1


async def _break_things(cluster: Cluster, restart_store: Callable[[], None]) -> None:
    until = time.monotonic() + SECONDS
    while cluster.kills < KILLS or time.monotonic() < until:
        await asyncio.sleep(random.uniform(0.2, 1.5))
        await cluster.replace_one()
        if cluster.kills == KILLS // 2:
            await asyncio.to_thread(restart_store)


def _report(cluster: Cluster, load: Load) -> None:
    """The figures, for whoever runs it with -s."""
    cancels = sorted(load.cancels) or [0.0]
    sys.stdout.write(
        f"\n{len(load.accepted)} tasks, {cluster.kills} kills, {len(load.seen)} readers, "
        f"{load.reconnects} broken streams, {len(cancels)} cancels seen elsewhere after "
        f"{statistics.median(cancels) * 1000:.1f} ms (median), "
        f"{cancels[int(len(cancels) * 0.95)] * 1000:.1f} ms (95 %)\n"
    )
