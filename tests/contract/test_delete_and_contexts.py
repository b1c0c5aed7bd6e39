"""`Storage.delete` and the contexts."""

from __future__ import annotations

import asyncio

import pytest

from errands.engines.base import Engine
from errands.errors import ConcurrencyError, LeaseLostError, TaskNotFoundError, TaskTerminalStateError
from errands.model.core import TaskState
from errands.model.log import Lease, LeaseSignal, ListQuery, Work
from tests.contract.changes import (
    AGENT,
    LEASE_MS,
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    SOMEBODY_ELSE,
    WORKER,
    Changes,
    ManualClock,
)

pytestmark = pytest.mark.anyio


async def test_a_deleted_task_is_gone_with_its_log(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    await engine.delete("t", ME)
    for call in (engine.load("t", ME), engine.read("t", ME, 0), engine.delete("t", ME)):
        with pytest.raises(TaskNotFoundError):
            await call
    assert (await engine.list(ListQuery(scope=ME))).total_size == 0


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED])
async def test_every_ended_task_can_be_deleted(engine: Engine, changes: Changes, state: TaskState) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.status("t", state, work=Work.IDLE))
    await engine.delete("t", ME)
    assert (await engine.list(ListQuery(scope=ME))).total_size == 0


async def test_a_live_task_cannot_be_deleted(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create("submitted"))
    await engine.commit(changes.start("working"))
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.ask("paused"))
    for task_id in ("submitted", "working", "paused"):
        with pytest.raises(ConcurrencyError):
            await engine.delete(task_id, ME)
        assert (await engine.load(task_id, ME)).task.id == task_id


async def test_deleting_one_task_leaves_its_neighbours_alone(engine: Engine, changes: Changes) -> None:
    for task_id in ("before", "t", "after"):
        await engine.commit(changes.start(task_id))
        await engine.commit(changes.chunk(task_id, task_id))
        await engine.commit(changes.complete(task_id))
    neighbours = [
        (await engine.load(task_id, ME), await engine.read(task_id, ME, 0)) for task_id in ("before", "after")
    ]
    await engine.delete("t", ME)
    assert neighbours == [
        (await engine.load(task_id, ME), await engine.read(task_id, ME, 0)) for task_id in ("before", "after")
    ]


async def test_a_deleted_id_can_be_used_again_and_begins_anew(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    await engine.delete("t", ME)
    assert (await engine.commit(changes.create())).version == 1
    stored = await engine.load("t", ME)
    assert (stored.state, stored.head.attempt) == (TaskState.SUBMITTED, 0)


async def test_a_deleted_task_is_neither_claimed_nor_extended(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    # Ended without being taken out of the queue: deletion has to do that, too.
    await engine.commit(changes.status("t", TaskState.FAILED))
    await engine.delete("t", ME)
    clock.advance(LEASE_MS)
    assert await engine.claim(WORKER, [AGENT], 10, clock() + LEASE_MS) == []
    assert await engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == [
        LeaseSignal("t", lost=True, cancel_requested=False)
    ]


async def test_a_context_that_was_never_saved_is_none(engine: Engine) -> None:
    assert await engine.load_context(ME, "c") is None


async def test_a_context_gives_back_what_was_last_kept(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(context=b"first"))
    await engine.commit(changes.move(context=b"\x00second\xff"))
    await engine.commit(changes.chunk())
    assert await engine.load_context(ME, "context of t") == b"\x00second\xff"


async def test_an_empty_context_is_not_none(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(context=b""))
    assert await engine.load_context(ME, "context of t") == b""


async def test_contexts_of_other_scopes_are_others(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start("mine", context_id="c", context=b"mine"))
    await engine.commit(changes.start("theirs", context_id="c", context=b"theirs", scope=SOMEBODY_ELSE))
    await engine.commit(changes.start("another", context_id="d", context=b"another"))
    assert await engine.load_context(ME, "c") == b"mine"
    assert await engine.load_context(SOMEBODY_ELSE, "c") == b"theirs"
    assert await engine.load_context(OTHER_TENANT, "c") is None
    assert await engine.load_context(OTHER_AGENT, "c") is None


async def test_tasks_of_one_conversation_share_its_context(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start("first", context_id="c", context=b"first"))
    await engine.commit(changes.start("second", context_id="c", context=b"second"))
    await engine.commit(changes.complete("first"))
    assert await engine.load_context(ME, "c") == b"second"


async def test_of_concurrent_changes_of_a_context_the_last_wins(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await asyncio.gather(*(engine.commit(changes.move(context=b"%d" % n)) for n in range(50)))
    assert await engine.load_context(ME, "context of t") == b"49"


async def test_a_context_is_kept_only_with_a_change_that_is_accepted(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(context=b"kept"))
    clock.advance(LEASE_MS)
    await engine.claim("another worker", [AGENT], 1, clock() + LEASE_MS)
    with pytest.raises(LeaseLostError):
        await engine.commit(changes.move(fence=1, context=b"lost"))
    await engine.commit(changes.complete())
    with pytest.raises(TaskTerminalStateError):
        await engine.commit(changes.move(fence=2, context=b"lost"))
    assert await engine.load_context(ME, "context of t") == b"kept"
