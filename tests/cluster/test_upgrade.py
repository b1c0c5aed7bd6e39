"""A rolling upgrade: replicas of this release work on while the tables are upgraded, then beside a release that knows
one migration more, until they are replaced by it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import errands
from errands.engines.postgres import PostgresEngine, schema
from errands.engines.postgres.schema import Migration, migrations
from errands.engines.urls import engine_from_url
from tests.cluster.checks import check_readers, check_tasks
from tests.cluster.cluster import cluster_on
from tests.cluster.load import Load
from tests.postgres import own_server

pytestmark = [pytest.mark.anyio, pytest.mark.cluster, pytest.mark.timeout(300)]

NEWEST = migrations()[-1].version
MIGRATION = """-- A column that this release does not know.
-- oldest: 1

ALTER TABLE tasks ADD COLUMN colour text NOT NULL DEFAULT 'red';
"""


@pytest.fixture
def url() -> Iterator[str]:
    with own_server() as server:
        yield server.url()


@pytest.fixture
def next_release(tmp_path: Path) -> Path:
    """Where the package of a release is that has one migration more."""
    package = Path(shutil.copytree(Path(errands.__file__).parent, tmp_path / "errands"))
    (package / f"engines/postgres/migrations/{NEWEST + 1:04}_colour.sql").write_text(MIGRATION)
    return tmp_path


async def test_replicas_are_replaced_one_by_one_while_clients_work(
    url: str, next_release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster_on([url] * 3) as cluster:
        await cluster.start()
        async with Load(cluster) as load, load.going_on():
            await load.accept_more(10)
            with monkeypatch.context() as patch:
                known = migrations()
                patch.setattr(schema, "migrations", lambda: [*known, Migration(NEWEST + 1, 1, MIGRATION)])
                assert await PostgresEngine(url).schema.upgrade() == (NEWEST, NEWEST + 1)
            await load.accept_more(10)
            # An old one that is restarted can use the new tables, too.
            await cluster.replace_one()
            await load.accept_more(10)
            for replica in cluster.replicas:
                await asyncio.to_thread(replica.stop)
                replica.source = next_release
                replica.start()
                await replica.ready()
                await load.accept_more(10)
        async with engine_from_url(url) as engine:
            await check_tasks(engine, load)
            await check_readers(engine, load)
