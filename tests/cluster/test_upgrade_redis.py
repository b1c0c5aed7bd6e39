"""A rolling upgrade on Redis, which has no tables to be upgraded first: replicas of this release and of one that
stores a field more work side by side on the same keys."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

import errands
from errands.engines.base import Retention
from errands.engines.urls import engine_from_url
from errands.model.log import ListQuery
from tests.cluster.checks import SCOPE, check_readers, check_tasks
from tests.cluster.cluster import cluster_on
from tests.cluster.load import Load
from tests.redis_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

#: The last field of `Head`, and one that this release does not know.
FIELD = "    pushes: tuple[str, ...] = ()\n"
FURTHER = f'{FIELD}    colour: str = "red"\n'


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """Where the package of a release is whose heads have one field more."""
    package = Path(shutil.copytree(Path(errands.__file__).parent, tmp_path / "errands"))
    model = package / "model/log.py"
    source = model.read_text()
    assert source.count(FIELD) == 1
    model.write_text(source.replace(FIELD, FURTHER))
    return tmp_path


@pytest.fixture
def url() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        server.start()
        yield server.url
        server.stop()


async def test_replicas_are_replaced_one_by_one_while_clients_work(url: str, next_release: Path) -> None:
    with cluster_on([url] * 3) as cluster:
        await cluster.start()
        async with Load(cluster) as load, load.going_on():
            await load.accept_more(10)
            for replica in cluster.replicas:
                await asyncio.to_thread(replica.stop)
                replica.source = next_release
                replica.start()
                await replica.ready()
                await load.accept_more(10)
                if replica is cluster.replicas[0]:
                    # Old or new, while both are there.
                    await cluster.replace_one()
    async with engine_from_url(url, Retention(ended_after=0)) as engine:
        await check_tasks(engine, load)
        await check_readers(engine, load)
        assert await engine.sweep() == len(load.accepted)
        assert (await engine.list(ListQuery(scope=SCOPE))).total_size == 0
