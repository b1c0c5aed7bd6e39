"""A task that is restored from another store is what it was there: head, log, versions, times and leases."""

from __future__ import annotations

import pytest

from errands.engines.base import Engine
from errands.engines.memory import MemoryEngine
from errands.errors import ConcurrencyError
from errands.model.core import COMPLETED, INPUT_REQUIRED, SUBMITTED
from errands.model.log import IDLE, READY, AskingQuery, Change, Draft, ListQuery, Restored
from tests.contract.changes import AGENT, LEASE_MS, ME, OTHER_TENANT, WORKER, Changes, ManualClock, context_of, log_of

pytestmark = pytest.mark.anyio


async def life(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    """A task that two processes have worked on, with records, from its first event to its last."""
    await engine.commit(changes.create())
    clock.advance(10)
    await engine.claim("lost", [AGENT], 1, clock() + 1)
    clock.advance(5000)
    (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    fence = stored.head.attempt
    await engine.commit(changes.working(fence=fence, at=clock.advance(1)))
    await engine.commit(changes.move(events=(Draft("record", b'{"a": 1}'),), fence=fence))
    await engine.commit(changes.chunk(text="x" * 40_000, fence=fence, at=clock.advance(1)))
    await engine.commit(changes.complete(fence=fence, at=clock.advance(1)))


async def restoring(engine: Engine, trimmed: int = 0, **fields: object) -> Change:
    """The change that restores the task `t` of an engine elsewhere."""
    stored = await engine.load("t", ME)
    events = [e for e in await log_of(engine) if e.version > trimmed]
    records = [e for e in await engine.records("t", ME) if e.version <= trimmed]
    usual: dict[str, object] = {
        "task_id": "t",
        "scope": ME,
        "context_id": context_of("t"),
        "expected": 0,
        "at": stored.head.updated_at,
        "fold": stored.task,
        "work": IDLE,
        "restored": Restored(head=stored.head, events=[*records, *events], trimmed=trimmed),
    }
    return Change(**usual | fields)  # type: ignore[arg-type]


async def test_a_restored_task_is_what_it_was(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await life(engine, changes, clock)
    before, log = await engine.load("t", ME), await log_of(engine)
    change = await restoring(engine)
    await engine.delete("t", ME)
    clock.advance(1_000_000)
    assert await engine.commit(change) == before.head
    assert await engine.load("t", ME) == before
    assert await log_of(engine) == log
    assert [e.data for e in await engine.records("t", ME)] == [b'{"a": 1}']
    page = await engine.list(ListQuery(scope=ME, state=COMPLETED, with_artifacts=True))
    assert page.tasks == [before]
    assert await engine.count_live(ME) == 0


async def test_a_trimmed_log_is_restored_as_it_is(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await life(engine, changes, clock)
    before = await engine.load("t", ME)
    change = await restoring(engine, trimmed=4)
    await engine.delete("t", ME)
    await engine.commit(change)
    assert await engine.load("t", ME) == before
    found = await engine.read("t", ME, 0)
    assert ([event.version for event in found.events], found.gap) == ([5], True)
    assert [e.version for e in await engine.records("t", ME)] == [3]


async def test_a_task_that_exists_is_not_replaced(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await life(engine, changes, clock)
    before, log = await engine.load("t", ME), await log_of(engine)
    for scope in (ME, OTHER_TENANT):
        with pytest.raises(ConcurrencyError):
            await engine.commit(await restoring(engine, scope=scope))
    assert await engine.load("t", ME) == before
    assert await log_of(engine) == log


@pytest.fixture
def former(clock: ManualClock) -> MemoryEngine:
    """The store that tasks are restored from."""
    return MemoryEngine(clock=clock)


async def test_a_restored_task_in_the_queue_is_claimed(
    engine: Engine, former: MemoryEngine, changes: Changes, clock: ManualClock
) -> None:
    await former.commit(changes.create())
    await engine.commit(await restoring(former, work=READY, due_at=clock()))
    assert await engine.count_live(ME) == 1
    (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    assert (stored.head.state, stored.head.attempt, stored.version) == (SUBMITTED, 1, 1)
    await engine.commit(changes.working(fence=1))
    assert (await log_of(engine))[-1].version == 2


async def test_a_long_log_is_restored(
    engine: Engine, former: MemoryEngine, changes: Changes, clock: ManualClock
) -> None:
    await former.commit(changes.start())
    for number in range(3000):
        await former.commit(changes.chunk(text=f"{number} ", fence=1, at=clock.advance(1)))
    await former.commit(changes.complete(fence=1))
    await engine.commit(await restoring(former))
    assert await log_of(engine) == await log_of(former)
    assert await engine.load("t", ME) == await former.load("t", ME)


async def test_a_restored_paused_task_can_be_answered(
    engine: Engine, former: MemoryEngine, changes: Changes, clock: ManualClock
) -> None:
    await former.commit(changes.start())
    await former.commit(changes.ask(fence=1, asks="bob"))
    await engine.commit(await restoring(former))
    (asking,) = await engine.asking(AskingQuery(users=("bob",)))
    assert (asking.state, asking.version) == (INPUT_REQUIRED, 3)
    await engine.commit(changes.answer(expected=3))
    (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    assert stored.head.attempt == 2
