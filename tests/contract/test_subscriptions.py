"""The `EventBus`: every event once, in order, whoever is slow."""

from __future__ import annotations

import asyncio

import pytest

from errands.engines.base import Engine
from errands.engines.commit import LocalEngine
from errands.engines.subscriptions import BUFFER_BYTES, BUFFER_SIZE, CROWD, READ_BYTES, READ_SIZE, Subscription
from errands.errors import TaskNotFoundError
from errands.model.log import Event
from tests.contract.changes import ME, Changes, collect

pytestmark = pytest.mark.anyio


async def fill(engine: Engine, changes: Changes, upto: int) -> None:
    """A task whose log has `upto` events."""
    await engine.commit(changes.start())
    drafts = [changes.chunk(text=f"{version} ").events[0] for version in range(3, upto + 1)]
    if drafts:
        await engine.commit(changes.chunk(events=tuple(drafts)))


async def test_a_slice_of_the_log_begins_after_the_version_and_ends_at_the_limit(
    engine: Engine, changes: Changes
) -> None:
    await fill(engine, changes, 200)
    log = await engine.read("t", ME, 150, 20)
    assert [event.version for event in log.events] == list(range(151, 171))
    assert not log.gap


@pytest.mark.parametrize("after", [10, 11, 2**28, 2**70])
async def test_nothing_is_read_after_the_end(engine: Engine, changes: Changes, after: int) -> None:
    await fill(engine, changes, 10)
    await engine.commit(changes.start("a neighbour"))
    assert await engine.read("t", ME, after) == await engine.read("t", ME, 10)
    assert (await engine.read("t", ME, after)).events == []


async def test_everything_is_read_from_the_beginning(engine: Engine, changes: Changes) -> None:
    await fill(engine, changes, 10)
    assert [event.version for event in (await engine.read("t", ME, 0)).events] == list(range(1, 11))


async def test_the_log_of_a_task_that_does_not_exist_is_not_found(engine: Engine) -> None:
    with pytest.raises(TaskNotFoundError):
        await engine.read("t", ME, 0)


@pytest.mark.parametrize("after", range(12))
async def test_a_reader_that_starts_at_any_version_sees_every_later_event_once_in_order(
    engine: Engine, changes: Changes, after: int
) -> None:
    await fill(engine, changes, 6)
    subscription = engine.subscribe("t", ME, after)
    reading = asyncio.ensure_future(collect(subscription, 12))
    for _ in range(6):
        await engine.commit(changes.chunk())
    assert await reading == list(range(after + 1, 13))
    subscription.close()


async def test_a_subscriber_gets_the_events_as_they_were_written(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2, caught_up=True)
    change = changes.chunk(text="hello")
    await engine.commit(change)
    assert await subscription.next() == [Event(3, "artifact", change.events[0].data, change.at)]
    subscription.close()


async def test_readers_that_start_while_writers_write_miss_nothing(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    total = 2 + 300

    async def write() -> None:
        for _ in range(300):
            await engine.commit(changes.chunk())

    async def follow(after: int) -> list[int]:
        subscription = engine.subscribe("t", ME, 0)
        await collect(subscription, after)
        subscription.close()
        subscription = engine.subscribe("t", ME, after)
        try:
            return await collect(subscription, total)
        finally:
            subscription.close()

    writing = asyncio.ensure_future(write())
    starts = range(2, 300, 37)
    for after, seen in zip(starts, await asyncio.gather(*map(follow, starts)), strict=True):
        assert seen == list(range(after + 1, total + 1))
    await writing


async def test_one_who_has_just_written_need_not_read_the_log(engine: Engine, changes: Changes) -> None:
    version = (await engine.commit(changes.start())).version
    subscription = engine.subscribe("t", ME, version, caught_up=True)
    await engine.commit(changes.chunk())
    assert await collect(subscription, 3) == [3]
    subscription.close()


async def test_a_slow_subscriber_that_overflows_its_buffer_reads_on_in_the_log(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await engine.commit(changes.chunk())
    assert await collect(subscription, 3) == [3]
    for _ in range(3):
        drafts = tuple(changes.chunk().events[0] for _ in range(BUFFER_SIZE // 2))
        await engine.commit(changes.chunk(events=drafts))
    end = 3 + 3 * (BUFFER_SIZE // 2)
    assert await collect(subscription, end) == list(range(4, end + 1))
    await engine.commit(changes.chunk())
    assert await collect(subscription, end + 1) == [end + 1]
    subscription.close()


async def test_a_slow_subscriber_holds_a_bounded_number_of_bytes(engine: Engine, changes: Changes) -> None:
    version = (await engine.commit(changes.start())).version
    subscription = engine.subscribe("t", ME, version, caught_up=True)
    assert isinstance(subscription, Subscription)
    text = "x" * (BUFFER_BYTES // 4)
    for _ in range(20):
        await engine.commit(changes.chunk(text=text))
        assert sum(len(event.data) for event in subscription._buffer) < 2 * BUFFER_BYTES
    assert await collect(subscription, 22) == list(range(3, 23))
    subscription.close()


async def test_a_read_of_the_log_has_a_bounded_number_of_bytes(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    text = "x" * (READ_BYTES // 4)
    for _ in range(40):
        await engine.commit(changes.chunk(text=text))
    read = (await engine.read("t", ME, 2)).events
    assert [event.version for event in read] == [3, 4, 5, 6]
    assert [event.version for event in (await engine.read("t", ME, 2, 3)).events] == [3, 4, 5]
    subscription = engine.subscribe("t", ME, 0)
    assert await collect(subscription, 42) == list(range(1, 43))
    assert await subscription.next(timeout=0.01) == []
    subscription.close()


async def test_a_log_longer_than_one_read_is_followed_to_its_end(engine: Engine, changes: Changes) -> None:
    end = 2 * READ_SIZE
    await fill(engine, changes, end)
    subscription = engine.subscribe("t", ME, 0)
    assert await collect(subscription, end) == list(range(1, end + 1))
    assert await subscription.next(timeout=0.01) == []
    subscription.close()


async def test_many_subscribers_see_the_same(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscriptions = [engine.subscribe("t", ME, after) for after in (0, 1, 2) * 5]
    reading = asyncio.gather(*(collect(subscription, 22) for subscription in subscriptions))
    for _ in range(20):
        await engine.commit(changes.chunk())
    for after, seen in zip((0, 1, 2) * 5, await reading, strict=True):
        assert seen == list(range(after + 1, 23))
    for subscription in subscriptions:
        subscription.close()


async def test_a_crowd_of_subscribers_leaves_the_event_loop_to_others(engine: Engine, changes: Changes) -> None:
    """Each of them writes to a connection when it is woken; a request that comes then must not wait for all of them."""
    await engine.commit(changes.start())
    subscriptions = [engine.subscribe("t", ME, 2, caught_up=True) for _ in range(10 * CROWD)]
    woken, most = 0, 0

    async def read(subscription: Subscription) -> list[Event] | None:
        nonlocal woken
        events = await subscription.next()
        woken += 1
        return events

    async def look() -> None:
        nonlocal woken, most
        while True:
            most, woken = max(most, woken), 0
            await asyncio.sleep(0)

    readers = [asyncio.ensure_future(read(subscription)) for subscription in subscriptions]
    looking = asyncio.ensure_future(look())
    await asyncio.sleep(0)
    await engine.commit(changes.chunk())
    seen = await asyncio.gather(*readers)
    looking.cancel()
    assert all(events is not None and [event.version for event in events] == [3] for events in seen)
    # Where other processes may write, readers may have looked into the log, and the store may answer many at once.
    assert 0 < most <= (2 * CROWD if engine.name in ("memory", "sqlite") else 10 * CROWD)
    for subscription in subscriptions:
        subscription.close()


async def test_a_subscriber_hears_nothing_of_other_tasks(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.start("another"))
    subscription = engine.subscribe("t", ME, 2)
    await engine.commit(changes.chunk("another"))
    assert await subscription.next(timeout=0.01) == []
    subscription.close()


async def test_next_gives_an_empty_list_when_nothing_came_in_time(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    assert await subscription.next(timeout=0.01) == []
    assert await subscription.next(timeout=0.01) == []
    await engine.commit(changes.chunk())
    assert await collect(subscription, 3) == [3]
    subscription.close()


async def test_an_interrupted_reader_goes_on_where_it_was(engine: Engine, changes: Changes) -> None:
    await fill(engine, changes, 5)
    subscription = engine.subscribe("t", ME, 0)
    interrupted = asyncio.ensure_future(subscription.next())
    await asyncio.sleep(0)
    interrupted.cancel()
    (events,) = await asyncio.gather(interrupted, return_exceptions=True)
    # An engine that never waits has answered before it could be interrupted.
    seen = [event.version for event in events] if isinstance(events, list) else []
    assert seen + (await collect(subscription, 5) if not seen else []) == [1, 2, 3, 4, 5]
    subscription.close()


async def test_closing_ends_a_pending_next(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await subscription.next(timeout=0.01)
    pending = asyncio.ensure_future(subscription.next())
    await asyncio.sleep(0)
    subscription.close()
    assert await pending is None
    assert await subscription.next() is None
    assert not subscription.gap


async def test_closing_twice_is_allowed(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    subscription.close()
    subscription.close()
    assert await subscription.next() is None


async def test_a_closed_subscription_ends_its_iteration(engine: Engine, changes: Changes) -> None:
    await fill(engine, changes, 5)
    subscription = engine.subscribe("t", ME, 0)
    seen: list[int] = []
    async for events in subscription:
        seen += [event.version for event in events]
        if seen[-1] == 5:
            subscription.close()
    assert seen == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("nudged", [False, True], ids=["", "when somebody else may have written, too"])
async def test_a_reader_gets_what_was_published_before_the_server_stopped(
    engine: LocalEngine, changes: Changes, nudged: bool
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2, caught_up=True)
    if nudged:
        engine.subscribers.nudge(["t"])
    await engine.commit(changes.complete())
    engine.disconnect()
    assert [event.version for event in await subscription.next() or ()] == [3]
    assert await subscription.next() is None


async def test_a_reader_who_is_behind_gets_it_from_the_log_when_the_server_stops(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 0)
    await engine.commit(changes.complete())
    engine.disconnect()
    assert [event.version for event in await subscription.next() or ()] == [1, 2, 3]
    assert await subscription.next() is None


async def test_a_writer_never_waits_for_a_subscriber(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    for _ in range(20):
        await engine.commit(changes.chunk(events=tuple(changes.chunk().events[0] for _ in range(BUFFER_SIZE // 4))))
    assert (await engine.load("t", ME)).version == 2 + 20 * (BUFFER_SIZE // 4)
    subscription.close()
