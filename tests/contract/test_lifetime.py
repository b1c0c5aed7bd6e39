"""Opening, closing and asking whether an engine is well."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from errands.engines.base import Engine
from errands.engines.subscriptions import Subscription
from errands.errors import DuplicateMessageError, StorageError
from errands.model.core import TERMINAL_STATES
from errands.model.log import Lease, ListQuery
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, versions
from tests.contract.conftest import OpenEngine
from tests.contract.health import trouble_of

pytestmark = pytest.mark.anyio


async def test_the_check_of_an_open_engine_raises_nothing(engine: Engine) -> None:
    assert await trouble_of(engine) == ""


async def test_an_engine_says_its_name(engine: Engine) -> None:
    assert engine.name in ("memory", "sqlite", "postgresql", "redis")


@asynccontextmanager
async def ending_what_is_pending(engine: Engine, changes: Changes) -> AsyncIterator[None]:
    """Somebody follows a task and somebody waits for its end; the block must end both."""
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await subscription.next(timeout=0.01)
    pending = asyncio.ensure_future(subscription.next())
    with engine.expect("t", ME, TERMINAL_STATES) as expectation:
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await asyncio.sleep(0)
        yield
        assert await pending is None
        assert await waiting is None


async def test_disconnecting_ends_subscriptions_and_waits_and_leaves_the_rest_working(
    engine: Engine, changes: Changes
) -> None:
    async with ending_what_is_pending(engine, changes):
        engine.disconnect()
    assert (await engine.commit(changes.complete())).version == 3


async def test_closing_ends_subscriptions_and_waits(engine: Engine, changes: Changes) -> None:
    async with ending_what_is_pending(engine, changes):
        await engine.close()


@pytest.mark.parametrize("iterations", range(0, 30, 3))
async def test_an_engine_that_is_closed_during_a_check_leaves_nothing_behind(
    open_shared: OpenEngine, iterations: int
) -> None:
    before = asyncio.all_tasks()
    engine = await open_shared()
    checking = asyncio.ensure_future(engine.check())
    for _ in range(iterations):
        await asyncio.sleep(0)
    await engine.close()
    await asyncio.wait({checking})
    assert checking.cancelled() or isinstance(checking.exception(), StorageError | None)
    assert asyncio.all_tasks() == before


async def versions_in(subscription: Subscription) -> list[int]:
    return [event.version async for events in subscription for event in events]


async def test_a_subscriber_that_has_yet_to_read_when_the_engine_closes_is_ended_and_not_refused(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    subscriptions = [engine.subscribe("t", ME, 0) for _ in range(5)]
    closing = asyncio.ensure_future(engine.close())
    reading = [asyncio.ensure_future(versions_in(subscription)) for subscription in subscriptions]
    await closing
    # What is there may still be read, as far as the store lasts.
    for seen in await asyncio.gather(*reading):
        assert seen in ([], [1, 2])


async def test_closing_writes_what_is_queued(engine: Engine, changes: Changes) -> None:
    commits = [asyncio.ensure_future(engine.commit(changes.start(f"t{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    assert versions(await asyncio.gather(*commits)) == [2] * 50


async def test_closing_twice_is_like_closing_once(engine: Engine, changes: Changes) -> None:
    await engine.close()
    await engine.close()
    await engine.open()
    assert (await engine.commit(changes.start())).version == 2


async def test_everything_survives_a_reopening(open_shared: OpenEngine, clock: ManualClock, changes: Changes) -> None:
    engine = await open_shared()
    await engine.commit(changes.start(receipt=b"digest"))
    await engine.commit(changes.chunk(text="kept"))
    await engine.commit(changes.create("waiting"))
    await engine.commit(changes.move(context=b"remembered"))
    before = await engine.load("t", ME), await engine.read("t", ME, 0)
    await engine.close()
    engine = await open_shared()
    assert (await engine.load("t", ME), await engine.read("t", ME, 0)) == before
    assert await engine.load_context(ME, "context of t") == b"remembered"
    assert await engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == []
    assert [stored.task.id for stored in await engine.claim("w", [AGENT], 9, clock() + 1)] == ["waiting"]
    with pytest.raises(DuplicateMessageError):
        await engine.commit(changes.create("again", receipt=b"digest"))
    assert (await engine.commit(changes.complete(fence=1))).version == 4


async def test_an_engine_can_be_opened_again_after_it_was_closed(stored_engine: Engine, changes: Changes) -> None:
    for number in range(3):
        await stored_engine.close()
        await stored_engine.open()
        await stored_engine.commit(changes.start(f"t{number}"))
    assert (await stored_engine.list(ListQuery(scope=ME))).total_size == 3


async def test_opening_an_open_engine_is_refused(stored_engine: Engine) -> None:
    with pytest.raises(StorageError, match="already open"):
        await stored_engine.open()
    assert await trouble_of(stored_engine) == ""


async def test_a_closed_engine_refuses_everything(stored_engine: Engine, changes: Changes, clock: ManualClock) -> None:
    engine = stored_engine
    await engine.close()
    for call in (
        engine.commit(changes.start()),
        engine.load("t", ME),
        engine.list(ListQuery(scope=ME)),
        engine.delete("t", ME),
        engine.load_context(ME, "c"),
        engine.claim(WORKER, [AGENT], 1, clock()),
        engine.extend(WORKER, [Lease("t", 1)], clock()),
        engine.read("t", ME, 0),
        engine.wait_for_state("t", ME, TERMINAL_STATES, None),
        engine.sweep(),
        engine.check(),
    ):
        with pytest.raises(StorageError, match="not open"):
            await call
