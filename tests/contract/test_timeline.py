"""What the log tells beside the events themselves: when each was committed, and who held the task from when on."""

from __future__ import annotations

import pytest

from errands.engines.base import Engine, Retention
from errands.model.core import TaskState
from errands.model.log import Draft, LeaseRecord, Work
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect, log_of
from tests.contract.conftest import OpenEngine

pytestmark = pytest.mark.anyio


async def leases(engine: Engine) -> dict[int, LeaseRecord]:
    """The leases that the log of the task tells, by the versions of the events that tell them."""
    return {event.version: event.lease for event in await log_of(engine) if event.lease is not None}


async def claim(engine: Engine, clock: ManualClock, worker: str = WORKER) -> int:
    (stored,) = await engine.claim(worker, [AGENT], 1, clock() + LEASE_MS)
    return stored.head.attempt


async def test_every_event_has_the_time_of_its_commit(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    start = clock()
    await engine.commit(changes.start())
    await engine.commit(changes.chunk(at=clock.advance(5)))
    await engine.commit(changes.complete(at=clock.advance(7)))
    assert [event.at - start for event in await log_of(engine)] == [0, 0, 5, 12]


async def test_subscribers_see_the_time_and_the_lease(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    subscription = engine.subscribe("t", ME, 0)
    await engine.commit(changes.start())
    (task, working) = await subscription.next() or []
    assert (task.at, working.at) == (clock(), clock())
    assert task.lease == LeaseRecord(1, WORKER, clock() + LEASE_MS, "new")
    assert working.lease is None
    subscription.close()


async def test_another_process_sees_the_time_and_the_lease(
    open_shared: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    one, other = await open_shared(), await open_shared()
    await one.commit(changes.create())
    subscription = other.subscribe("t", ME, 1)
    attempt = await claim(one, clock)
    await one.commit(changes.working(fence=attempt))
    events = await subscription.next() or []
    assert [(event.at, event.lease) for event in events] == [
        (clock(), LeaseRecord(1, WORKER, clock() + LEASE_MS, "new"))
    ]
    subscription.close()


async def test_records_and_kept_events_have_them_after_trimming(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(events_per_task=1))
    start = clock()
    await engine.commit(changes.start(events=(Draft("record", b"one"), *changes.start().events)))
    for _ in range(5):
        await engine.commit(changes.chunk(at=clock.advance(1)))
    await engine.sweep()
    (record,) = await engine.records("t", ME)
    assert (record.at, record.lease) == (start, LeaseRecord(1, WORKER, start + LEASE_MS, "new"))
    assert (await engine.read("t", ME, 7)).events[-1].at == clock()


async def test_a_claim_is_told_by_the_first_event_after_it(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create())
    attempt = await claim(engine, clock)
    assert await leases(engine) == {}
    await engine.commit(changes.working(fence=attempt))
    await engine.commit(changes.chunk(fence=attempt))
    assert await leases(engine) == {2: LeaseRecord(1, WORKER, clock() + LEASE_MS, "new")}
    assert (await engine.load("t", ME)).head.claimed == ""


async def test_a_lease_that_expired_is_told_by_the_next_holder(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS + 1)
    attempt = await claim(engine, clock, "another")
    await engine.commit(changes.working(fence=attempt))
    assert (await leases(engine))[3] == LeaseRecord(2, "another", clock() + LEASE_MS, "expired")


async def test_a_lease_that_was_given_back_is_told_by_the_next_holder(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.move(fence=1, work=Work.READY, due_at=clock(), gives_back=True))
    attempt = await claim(engine, clock, "another")
    await engine.commit(changes.working(fence=attempt))
    assert (await leases(engine))[3] == LeaseRecord(2, "another", clock() + LEASE_MS, "given back")


async def test_a_turn_that_ends_with_its_first_event_tells_its_lease(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create())
    attempt = await claim(engine, clock)
    await engine.commit(changes.complete(fence=attempt))
    assert await leases(engine) == {2: LeaseRecord(1, WORKER, clock() + LEASE_MS, "new")}


async def test_each_turn_of_a_task_tells_its_lease(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.ask(fence=1))
    await engine.commit(changes.answer())
    attempt = await claim(engine, clock)
    await engine.commit(changes.status("t", TaskState.WORKING, fence=attempt))
    assert {version: lease.cause for version, lease in (await leases(engine)).items()} == {1: "new", 6: "new"}


async def test_a_message_that_comes_before_the_holder_writes_tells_its_lease(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create())
    attempt = await claim(engine, clock)
    await engine.commit(changes.cancel())
    await engine.commit(changes.working(fence=attempt))
    assert await leases(engine) == {2: LeaseRecord(1, WORKER, clock() + LEASE_MS, "new")}


async def test_a_lease_without_an_event_is_not_told(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.create())
    await claim(engine, clock)
    clock.advance(LEASE_MS + 1)
    attempt = await claim(engine, clock, "another")
    subscription = engine.subscribe("t", ME, 1)
    await engine.commit(changes.working(fence=attempt))
    assert await collect(subscription, 2) == [2]
    subscription.close()
    assert await leases(engine) == {2: LeaseRecord(2, "another", clock() + LEASE_MS, "expired")}
