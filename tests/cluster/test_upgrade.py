"""A rolling upgrade: the code before the newest migration works on while the tables are upgraded, then beside the new
code, until it is replaced.

The code before is taken from the history of this repository: what the newest migration was added to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from errands.engines.postgres import PostgresEngine, sql
from errands.engines.urls import engine_from_url
from tests.cluster.checks import check_readers, check_tasks
from tests.cluster.cluster import cluster_on
from tests.cluster.history import git, source_at
from tests.cluster.load import Load
from tests.postgres import own_server

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

MIGRATIONS = "src/errands/engines/postgres/migrations"
NEWEST = sql.migrations()[-1]


class Before(NamedTuple):
    """A commit that the newest migration, and maybe some before it, were added to."""

    commit: str
    version: int


def _before() -> Before | None:
    """Return the newest of those commits."""
    path = f"{MIGRATIONS}/{NEWEST.version:04}_*.sql"
    # Merges too: a migration may have been numbered when its branch came in.
    for added in git("log", "-m", "--diff-filter=A", "--format=%H", "--", path).decode().split():
        for parent in git("rev-parse", f"{added}^@").decode().split():
            names = git("ls-tree", "--name-only", parent, f"{MIGRATIONS}/").decode().split()
            versions = [int(Path(name).name[:4]) for name in sorted(names)]
            if versions and versions == list(range(1, len(versions) + 1)) and len(versions) < NEWEST.version:
                return Before(parent, len(versions))
    return None


@pytest.fixture
def before() -> Before:
    found = _before()
    if found is None:
        pytest.skip("the history that has the code before the newest migration is not here")
    return found


@pytest.fixture
def url() -> Iterator[str]:
    with own_server() as server:
        yield server.url()


async def test_replicas_are_replaced_one_by_one_while_clients_work(url: str, before: Before, tmp_path: Path) -> None:
    with cluster_on([url] * 3, source=source_at(before.commit, tmp_path)) as cluster:
        await cluster.start()
        schema = PostgresEngine(url).schema
        async with Load(cluster) as load, load.going_on():
            await load.accept_more(10)
            assert await schema.upgrade() == (before.version, NEWEST.version)
            await load.accept_more(10)
            # An old one that is restarted finds its way into the new tables, too.
            await cluster.replace_one()
            await load.accept_more(10)
            for replica in cluster.replicas:
                await asyncio.to_thread(replica.stop)
                replica.source = None
                replica.start()
                await replica.ready()
                await load.accept_more(10)
        async with engine_from_url(url) as engine:
            await check_tasks(engine, load)
            await check_readers(engine, load)
