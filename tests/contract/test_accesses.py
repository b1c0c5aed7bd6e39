"""`AccessLog`: requests that the log of no task shows are kept in order, as long as retention says."""

from __future__ import annotations

import asyncio
import math

import pytest

from errands.clock import to_iso
from errands.engines.base import Engine, Retention
from errands.engines.memory import MemoryEngine
from errands.model.log import AccessEntry
from errands.policy.audit_trail import entry_of
from tests.contract.changes import ManualClock
from tests.contract.conftest import OpenEngine
from tests.damage import damage_access

pytestmark = pytest.mark.anyio


def entry(name: str, at: int) -> AccessEntry:
    return AccessEntry(
        id=name,
        at=at,
        action="read",
        operation="GetTask",
        task="a\0 task \U0001f600",
        by="operator",
        owner="alice",
        detail={"n": 1},
    )


async def listed(engine: Engine) -> list[str]:
    return [one.id async for one in engine.accesses()]


async def test_entries_are_kept_whole_and_listed_from_the_oldest(engine: Engine, clock: ManualClock) -> None:
    assert await listed(engine) == []
    entries = [entry(f"e{number:03}", clock.advance(number % 2)) for number in range(250)]
    for one in entries:
        await engine.note_access(one)
    assert [one async for one in engine.accesses()] == entries


async def test_entries_survive_the_engine(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine()
    await engine.note_access(entry("e", clock()))
    if engine.durable:
        await engine.close()
        await engine.open()
    assert await listed(engine) == ["e"]


async def test_retention_deletes_old_entries_and_keeps_them_for_ever_if_it_should(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(accesses_after=10))
    for number in range(3):
        await engine.note_access(entry(f"e{number}", clock.advance(5000)))
    await engine.sweep()
    assert await listed(engine) == ["e1", "e2"]
    engine.retention = Retention(accesses_after=math.inf)
    clock.advance(10**12)
    await engine.sweep()
    assert await listed(engine) == ["e1", "e2"]


async def test_an_entry_that_cannot_be_read_says_so_and_hides_no_other(engine: Engine, clock: ManualClock) -> None:
    for number in range(3):
        await engine.note_access(entry(f"e{number}", clock.advance(1)))
    if isinstance(engine, MemoryEngine):
        pytest.skip("it keeps objects")
    await damage_access(engine, "e1")
    found = [one async for one in engine.accesses()]
    assert [one.action for one in found] == ["read", "unreadable", "read"]
    assert [one.at for one in found] == [clock() - 2, clock() - 1, clock()]


async def test_an_entry_with_an_impossible_time_does_not_stop_the_trail(engine: Engine, clock: ManualClock) -> None:
    for at in (-(10**12), clock(), 2**53):
        await engine.note_access(entry(f"at {at}", at))
    assert [entry_of(one).at for one in [one async for one in engine.accesses()]] == [
        "1970-01-01T00:00:00.000Z",
        to_iso(clock()),
        "9999-12-31T23:59:59.999Z",
    ]


async def test_entries_are_not_missed_while_retention_deletes_older_ones(
    open_engine: OpenEngine, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(accesses_after=1))
    await asyncio.gather(*(engine.note_access(entry(f"e{number:04}", clock())) for number in range(700)))
    clock.advance(1000)
    await asyncio.gather(*(engine.note_access(entry(f"f{number:04}", clock())) for number in range(700)))
    found: list[str] = []
    async for one in engine.accesses():
        if len(found) == 10:
            await engine.sweep()
        found.append(one.id)
    assert {f"f{number:04}" for number in range(700)} <= set(found)
    assert len(found) == len(set(found))
