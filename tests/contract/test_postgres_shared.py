"""Several engines on one PostgreSQL: who is told of what, and what happens when nobody is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from errands.engines.base import Retention
from errands.engines.postgres import PostgresEngine
from errands.engines.postgres.notifications import Notifications
from errands.model.core import TERMINAL_STATES
from tests.contract.changes import ME, Changes, ManualClock, collect
from tests.contract.sharing import NEVER, is_listening, listening_pair
from tests.postgres import url_for

pytestmark = pytest.mark.anyio

Pair = tuple[PostgresEngine, PostgresEngine]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_for(tmp_path)


@pytest.fixture
async def pair(url: str, clock: ManualClock) -> AsyncIterator[Pair]:
    async with listening_pair(url, clock) as engines:
        yield engines


async def test_many_subscribers_of_one_task_cost_one_read(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscriptions = [one.subscribe("t", ME, 2) for _ in range(50)]
    await marked(one)
    # Each has looked into the log by itself, and from now on waits to be told.
    assert await asyncio.gather(*(subscription.next(timeout=0.01) for subscription in subscriptions)) == [[]] * 50
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 3) for subscription in subscriptions)):
        assert seen == [3]
    reads: list[str] = []

    def count(name: str) -> None:
        uncounted = getattr(one, name)

        async def counted(*arguments: Any) -> Any:
            reads.append(name)
            return await uncounted(*arguments)

        monkeypatch.setattr(one, name, counted)

    count("read")
    count("tail")
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 4) for subscription in subscriptions)):
        assert seen == [4]
    assert reads == ["tail"]
    for subscription in subscriptions:
        subscription.close()


async def marked(engine: PostgresEngine) -> None:
    """Until the others know that this engine has readers of the task."""
    while "t" not in engine.parts.notifications._seen:
        await asyncio.sleep(0)


async def test_nobody_is_told_of_a_task_that_only_its_writer_watches(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    woken = asyncio.Event()
    other.on_work(woken.set)
    heard: list[str] = []
    monkeypatch.setattr(other.parts.notifications, "_follow", lambda task_id, before: heard.append(task_id))
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        await one.commit(changes.start())
        await one.commit(changes.complete(fence=1))
        assert await expectation.wait(2, None)
    watched = other.subscribe("t", ME, 3)
    # The next note that comes is about work, so none about the task came before it.
    await one.commit(changes.create("next"))
    await woken.wait()
    assert heard == []
    watched.close()


async def test_a_lost_note_is_made_up_for_by_the_next_look(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Notifications, "_hear", lambda *_: None)
    async with (
        PostgresEngine(url, clock=clock, poll_interval=0.02) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await is_listening(one)
        woken = asyncio.Event()
        one.on_work(woken.set)
        await one.commit(changes.start())
        subscription = one.subscribe("t", ME, 2, caught_up=True)
        await other.commit(changes.chunk())
        assert await collect(subscription, 3) == [3]
        await other.commit(changes.create("work", due_at=clock() + 1))
        clock.advance(1)
        woken.clear()
        await woken.wait()
        subscription.close()


async def test_one_at_a_time_sweeps(url: str, changes: Changes, clock: ManualClock) -> None:
    keep = Retention(ended_after=0)
    async with (
        PostgresEngine(url, clock=clock, retention=keep) as one,
        PostgresEngine(url, clock=clock, retention=keep) as other,
    ):
        await one.commit(changes.start())
        await one.commit(changes.complete())
        clock.advance(1)
        async with sweeping(one):
            assert await other.sweep() == 0
        assert await other.sweep() == 1


@asynccontextmanager
async def sweeping(engine: PostgresEngine) -> AsyncIterator[None]:
    """Somebody is at it and takes long."""
    async with engine.readers.connection() as connection:
        assert await connection.fetchval(
            "SELECT pg_try_advisory_lock(hashtext('errands sweep ' || current_schema()), 1)"
        )
        yield
        await connection.fetchval("SELECT pg_advisory_unlock_all()")
