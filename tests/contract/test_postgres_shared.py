"""Several engines on one database, in this process and in others: they see each other's writes and never undo them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from errands.engines.base import Retention
from errands.engines.postgres import PostgresEngine, reading
from errands.engines.postgres.watching import Watching
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import Lease, LeaseSignal
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect
from tests.contract.test_shared import start_process
from tests.postgres import own_schema, url_for

pytestmark = pytest.mark.anyio

Pair = tuple[PostgresEngine, PostgresEngine]

#: Nobody polls while a test runs: what is heard was told.
NEVER = 3600.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_for(tmp_path)


async def listening(engine: PostgresEngine) -> None:
    assert engine._watching is not None
    await engine._watching.is_listening.wait()


@pytest.fixture
async def pair(url: str, clock: ManualClock) -> AsyncIterator[Pair]:
    async with (
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await listening(one)
        await listening(other)
        yield one, other


@pytest.mark.parametrize("caught_up", [True, False])
async def test_a_subscriber_sees_the_events_of_the_other(pair: Pair, changes: Changes, caught_up: bool) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscription = one.subscribe("t", ME, 2, caught_up=caught_up)
    reading = asyncio.ensure_future(collect(subscription, 12))
    for _ in range(10):
        await other.commit(changes.chunk())
    assert await reading == list(range(3, 13))
    subscription.close()


async def test_a_subscriber_sees_events_of_both_once_and_in_order(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscriptions = [engine.subscribe("t", ME, 2) for engine in pair * 2]
    reading = asyncio.gather(*(collect(subscription, 202) for subscription in subscriptions))

    async def write(engine: PostgresEngine) -> None:
        for _ in range(100):
            await engine.commit(changes.chunk())

    await asyncio.gather(write(one), write(other))
    for seen in await reading:
        assert seen == list(range(3, 203))
    for subscription in subscriptions:
        subscription.close()


async def test_many_subscribers_of_one_task_cost_one_read(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscriptions = [one.subscribe("t", ME, 2) for _ in range(50)]
    await marked(one)
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 3) for subscription in subscriptions)):
        assert seen == [3]
    reads: list[int] = []
    whole = reading.read

    async def counted(connection: object, task_id: str, scope: object, after: int, limit: int) -> object:
        reads.append(after)
        return await whole(connection, task_id, ME, after, limit)

    monkeypatch.setattr(reading, "read", counted)
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 4) for subscription in subscriptions)):
        assert seen == [4]
    assert reads == []
    for subscription in subscriptions:
        subscription.close()


async def marked(engine: PostgresEngine) -> None:
    """Until the others know that this engine has readers of the task."""
    assert engine._watching is not None
    while "t" not in engine._watching._seen:
        await asyncio.sleep(0)


async def test_a_waiter_hears_that_the_other_ended_the_task(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    waiting = asyncio.ensure_future(one.wait_for_state("t", ME, TERMINAL_STATES, None))
    await asyncio.sleep(0)
    await other.commit(changes.complete(fence=1))
    assert (await waiting).state is TaskState.COMPLETED


async def test_an_expectation_is_fulfilled_by_the_other(pair: Pair, changes: Changes) -> None:
    one, other = pair
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        version = await one.commit(changes.start())
        await other.commit(changes.complete(fence=1))
        stored = await expectation.wait(version, None)
    assert stored is not None
    assert stored.version == 3


async def test_an_expectation_of_a_task_that_only_the_other_writes_is_fulfilled(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await other.commit(changes.start())
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await asyncio.sleep(0)
        await other.commit(changes.chunk())
        await other.commit(changes.complete(fence=1))
        stored = await waiting
    assert stored is not None
    assert stored.version == 4


async def test_workers_are_woken_by_the_others_task(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    one, other = pair
    woken = asyncio.Event()
    one.on_work(woken.set)
    await other.commit(changes.create())
    await woken.wait()
    assert [stored.task.id for stored in await one.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)] == ["t"]


async def test_a_holder_learns_of_the_others_cancel(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    one, other = pair
    await one.commit(changes.start())
    woken = asyncio.Event()
    one.on_work(woken.set)
    await other.commit(changes.cancel())
    await woken.wait()
    assert await one.wanted_canceled(WORKER) == ["t"]
    assert await one.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == [
        LeaseSignal("t", lost=False, cancel_requested=True)
    ]


async def test_nobody_is_told_of_a_task_that_only_its_writer_watches(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    woken = asyncio.Event()
    other.on_work(woken.set)
    heard: list[str] = []
    assert other._watching is not None
    monkeypatch.setattr(other._watching, "_follow", lambda task_id, before: heard.append(task_id))
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
    monkeypatch.setattr(Watching, "_hear", lambda *_: None)
    async with (
        PostgresEngine(url, clock=clock, poll_interval=0.02) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await listening(one)
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
    assert engine._readers is not None
    async with engine._readers.connection() as connection:
        assert await connection.fetchval(
            "SELECT pg_try_advisory_lock(hashtext('errands sweep ' || current_schema()), 1)"
        )
        yield
        await connection.fetchval("SELECT pg_advisory_unlock_all()")


async def test_processes_that_make_the_tables_together_share_them(tmp_path: Path, clock: ManualClock) -> None:
    url = own_schema(tmp_path)
    results = await asyncio.gather(*(start_process(url, name) for name in ("a", "b", "c", "d")))
    versions = sorted(version for written, _ in results for version in written)
    assert versions == list(range(3, 3 + 30 * 4))
