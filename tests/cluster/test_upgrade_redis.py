"""A rolling upgrade on Redis, which has no tables to be upgraded first: old and new code work side by side on the same
keys, and what the old has left is looked after by the new.

The old code is taken from the history of this repository.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from errands.engines.base import Retention
from errands.engines.urls import engine_from_url
from errands.model.log import ListQuery
from tests.cluster.checks import SCOPE, check_readers, check_tasks
from tests.cluster.cluster import cluster_on
from tests.cluster.history import git, source_at
from tests.cluster.load import Load
from tests.redis_server import Server

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

ENGINE = "src/errands/engines/redis"
#: What is stored, and how it is spelled.
LAYOUT = [f"{ENGINE}/lua", f"{ENGINE}/keys.py", f"{ENGINE}/records.py", "src/errands/model/log.py"]


def _before_the_last_change() -> str | None:
    """The commit to which what is stored was last changed."""
    return git("log", "-1", "--format=%P", "--", *LAYOUT).decode().partition(" ")[0].strip() or None


def _before_retention_by_state() -> str | None:
    """The newest that notes all ended tasks in one place."""
    for commit in git("log", "--format=%H", "--", f"{ENGINE}/keys.py").decode().split():
        if b"def ended(self" not in git("show", f"{commit}:{ENGINE}/keys.py"):
            return commit
    return None


@pytest.fixture(params=[_before_the_last_change, _before_retention_by_state], ids=lambda find: find.__name__)
def old_source(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    find: Callable[[], str | None] = request.param
    commit = find()
    if commit is None or not git("ls-tree", commit, ENGINE):
        pytest.skip("the history that has the code before is not here")
    return source_at(commit, tmp_path)


@pytest.fixture
def url() -> Iterator[str]:
    with TemporaryDirectory() as folder:
        server = Server(Path(folder) / "data")
        server.start()
        yield server.url
        server.stop()


async def test_replicas_are_replaced_one_by_one_while_clients_work(url: str, old_source: Path) -> None:
    with cluster_on([url] * 3, source=old_source) as cluster:
        await cluster.start()
        async with Load(cluster) as load, load.going_on():
            await load.accept_more(10)
            for replica in cluster.replicas:
                await asyncio.to_thread(replica.stop)
                replica.source = None
                replica.start()
                await replica.ready()
                await load.accept_more(10)
                if replica is cluster.replicas[0]:
                    # Old or new, while both are there.
                    await cluster.replace_one()
    async with engine_from_url(url, Retention(ended_after=0)) as engine:
        await check_tasks(engine, load)
        await check_readers(engine, load)
        # Also those that ended before retention knew of states.
        assert await engine.sweep() == len(load.accepted)
        assert (await engine.list(ListQuery(scope=SCOPE))).total_size == 0
