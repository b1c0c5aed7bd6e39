"""Opening, closing and asking whether an engine is well."""

from __future__ import annotations

import asyncio

import pytest

from errands.engines.base import Engine
from errands.model.core import TERMINAL_STATES
from tests.contract.changes import ME, Changes

pytestmark = pytest.mark.anyio


async def test_an_open_engine_is_well(engine: Engine) -> None:
    await engine.check()


async def test_an_engine_says_its_name(engine: Engine) -> None:
    assert engine.name in ("memory", "sqlite", "postgresql", "redis")


async def test_disconnecting_ends_subscriptions_and_waits_and_leaves_the_rest_working(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await subscription.next(timeout=0.01)
    pending = asyncio.ensure_future(subscription.next())
    with engine.expect("t", ME, TERMINAL_STATES) as expectation:
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await asyncio.sleep(0)
        engine.disconnect()
        assert await pending is None
        assert await waiting is None
    assert await engine.commit(changes.complete()) == 3


async def test_closing_ends_subscriptions_and_waits(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await subscription.next(timeout=0.01)
    pending = asyncio.ensure_future(subscription.next())
    with engine.expect("t", ME, TERMINAL_STATES) as expectation:
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await asyncio.sleep(0)
        await engine.close()
        assert await pending is None
        assert await waiting is None


async def test_closing_writes_what_is_queued(engine: Engine, changes: Changes) -> None:
    commits = [asyncio.ensure_future(engine.commit(changes.start(f"t{number}"))) for number in range(50)]
    await asyncio.sleep(0)
    await engine.close()
    assert await asyncio.gather(*commits) == [2] * 50


async def test_closing_twice_is_allowed(engine: Engine) -> None:
    await engine.close()
    await engine.close()
