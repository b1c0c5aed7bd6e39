"""`Storage.sweep`: what retention removes, and what it never touches."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from pathlib import Path

import pytest

from errands.engines.base import DURABLE_RETENTION, Engine, Retention
from errands.engines.memory import MemoryEngine
from errands.engines.postgres import PostgresEngine
from errands.engines.redis import RedisEngine
from errands.engines.urls import engine_from_url
from errands.errors import ConcurrencyError, DuplicateMessageError, TaskNotFoundError
from errands.model.core import TaskState
from errands.model.log import Draft, ListQuery, Reach, Work
from tests.contract.changes import (
    AGENT,
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    SOMEBODY_ELSE,
    Changes,
    ManualClock,
    collect,
    context_of,
    text_in,
)
from tests.contract.conftest import OpenEngine

pytestmark = pytest.mark.anyio


async def kept(engine: Engine) -> list[str]:
    page = await engine.list(ListQuery(scope=ME, page_size=1000))
    return sorted(stored.task.id for stored in page.tasks)


async def end_some(engine: Engine, changes: Changes, clock: ManualClock, count: int) -> None:
    """Ended tasks t0, t1, … one second apart."""
    for number in range(count):
        clock.advance(1000)
        await engine.commit(changes.start(f"t{number}"))
        await engine.commit(changes.complete(f"t{number}"))


async def test_everything_is_kept_when_nothing_else_is_said(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await end_some(engine, changes, clock, 3)
    clock.advance(10**12)
    assert await engine.sweep() == 0
    assert await kept(engine) == ["t0", "t1", "t2"]


async def test_tasks_that_ended_long_ago_are_deleted(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=2.0))
    await end_some(engine, changes, clock, 5)
    assert await engine.sweep() == 3
    assert await kept(engine) == ["t3", "t4"]
    with pytest.raises(TaskNotFoundError):
        await engine.read("t0", ME, 0)
    assert await engine.sweep() == 0


async def test_an_age_that_no_store_can_count_is_for_ever(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=1e300, failed_after=1e18, accesses_after=1e300))
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    clock.advance(10**12)
    assert await engine.sweep() == 0
    await engine.load("t", ME)


async def test_live_tasks_are_never_deleted(open_engine: OpenEngine, changes: Changes, clock: ManualClock) -> None:
    engine = await open_engine(Retention(ended_after=0.0, ended_at_most=0))
    await engine.commit(changes.create("submitted"))
    await engine.commit(changes.start("working"))
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.ask("paused"))
    clock.advance(10**9)
    assert await engine.sweep() == 0
    assert await kept(engine) == ["paused", "submitted", "working"]


async def test_of_too_many_ended_tasks_the_newest_are_kept(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_at_most=2))
    await engine.commit(changes.start("live"))
    await end_some(engine, changes, clock, 5)
    await engine.sweep()
    assert await kept(engine) == ["live", "t3", "t4"]


async def test_more_tasks_than_fit_one_batch_are_deleted_in_one_sweep(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0.0))
    await asyncio.gather(*(engine.commit(changes.start(f"t{number}")) for number in range(450)))
    await asyncio.gather(*(engine.commit(changes.complete(f"t{number}")) for number in range(450)))
    clock.advance(1)
    assert await engine.sweep() == 450
    assert await kept(engine) == []


async def long_task(engine: Engine, changes: Changes, chunks: int) -> None:
    await engine.commit(changes.start())
    for start in range(0, chunks, 10):
        drafts = tuple(changes.chunk(text=f"{number} ").events[0] for number in range(start, start + 10))
        await engine.commit(changes.chunk(events=drafts))


async def test_only_the_newest_events_of_a_long_log_are_kept_for_replay(
    open_engine: OpenEngine, changes: Changes
) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await long_task(engine, changes, 100)
    assert await engine.sweep() == 0
    newest = (await engine.read("t", ME, 82)).events
    assert [event.version for event in newest] == list(range(83, 103))
    assert not (await engine.read("t", ME, 82)).gap


async def test_a_trimmed_task_loads_as_before_and_goes_on(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await long_task(engine, changes, 100)
    await engine.sweep()
    assert text_in(await engine.load("t", ME)) == "".join(f"{number} " for number in range(100))
    assert (await engine.commit(changes.chunk(text="end"))).version == 103
    assert text_in(await engine.load("t", ME)).endswith("99 end")
    assert (await engine.commit(changes.complete())).version == 104


async def test_reading_before_the_kept_events_tells_of_the_gap(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await long_task(engine, changes, 100)
    await engine.sweep()
    for after in (0, 5, 60):
        assert (await engine.read("t", ME, after)).gap


async def test_a_subscription_that_asks_for_trimmed_events_ends_with_a_gap(
    open_engine: OpenEngine, changes: Changes
) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await long_task(engine, changes, 100)
    await engine.sweep()
    subscription = engine.subscribe("t", ME, 5)
    assert await subscription.next() is None
    assert subscription.gap
    following = engine.subscribe("t", ME, 90)
    assert await collect(following, 102) == list(range(91, 103))
    assert not following.gap
    following.close()


async def test_a_short_log_is_not_trimmed(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await long_task(engine, changes, 10)
    await engine.sweep()
    assert len((await engine.read("t", ME, 0)).events) == 12


async def test_receipts_outlive_the_events_they_came_with(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await engine.commit(changes.start("first", receipt=b"digest"))
    drafts = tuple(changes.chunk("first").events[0] for _ in range(100))
    await engine.commit(changes.chunk("first", events=drafts))
    await engine.sweep()
    with pytest.raises(Exception, match="already accepted"):
        await engine.commit(changes.create("second", receipt=b"digest"))


async def test_contexts_that_nobody_has_touched_for_long_are_forgotten(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(contexts_after=10))
    for task_id, value in (("old", b"1"), ("young", b"2")):
        await engine.commit(changes.start(task_id))
        await engine.commit(changes.complete(task_id, context=value))
        clock.advance(6_000)
    await engine.sweep()
    kept = [await engine.load_context(ME, f"context of {task_id}") for task_id in ("old", "young")]
    assert kept == [None, b"2"]


async def test_contexts_go_with_the_ended_tasks_when_they_have_no_age_of_their_own(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=10))
    await engine.commit(changes.start())
    await engine.commit(changes.complete(context=b"1"))
    clock.advance(10_001)
    await engine.sweep()
    assert await engine.load_context(ME, context_of("t")) is None


@pytest.mark.parametrize("retention", [Retention(ended_after=10), Retention(contexts_after=10)])
async def test_the_context_of_a_live_task_is_kept(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock, retention: Retention
) -> None:
    engine = await open_engine(retention)
    for task_id in ("ended", "live"):
        await engine.commit(changes.start(task_id, context=b"1"))
    # Of the same name, and not the same conversation.
    theirs = {"scope": SOMEBODY_ELSE, "context_id": context_of("live")}
    await engine.commit(changes.start("theirs", context=b"2", **theirs))
    await engine.commit(changes.complete("theirs", **theirs))
    await engine.commit(changes.ask("live"))
    await engine.commit(changes.complete("ended"))
    clock.advance(10_001)
    await engine.sweep()
    assert await engine.load_context(ME, context_of("ended")) is None
    assert await engine.load_context(ME, context_of("live")) == b"1"
    assert await engine.load_context(SOMEBODY_ELSE, context_of("live")) is None
    await engine.commit(changes.status("live", TaskState.CANCELED))
    await engine.sweep()
    assert await engine.load_context(ME, context_of("live")) is None


# Receipts

WINDOW = 60_000


async def test_a_receipt_does_not_outlive_its_window(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.commit(changes.start("first", receipt=b"digest", receipt_since=clock() - WINDOW))
    await engine.commit(changes.complete("first"))
    clock.advance(WINDOW - 1)
    await engine.sweep()
    with pytest.raises(DuplicateMessageError):
        await engine.commit(changes.start("second", receipt=b"digest", receipt_since=clock() - WINDOW))
    clock.advance(1)
    await engine.sweep()
    # Even a window without a beginning finds nothing any more, where the store can be swept.
    if engine.name != "redis":
        await engine.commit(changes.start("second", receipt=b"digest"))
    await engine.load("first", ME)


async def test_a_receipt_that_is_renewed_lasts_anew(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine()
    await engine.commit(changes.start("first", receipt=b"digest", receipt_since=clock() - WINDOW))
    clock.advance(WINDOW + 1)
    await engine.commit(changes.start("second", receipt=b"digest", receipt_since=clock() - WINDOW))
    await engine.sweep()
    with pytest.raises(DuplicateMessageError) as refused:
        await engine.commit(changes.start("third", receipt=b"digest", receipt_since=clock() - WINDOW))
    assert refused.value.task_id == "second"


# What a durable engine keeps unless it is told otherwise


@pytest.mark.parametrize("given", [None, Retention(failed_after=1), Retention(ended_after=math.inf)])
async def test_a_durable_engine_keeps_ended_tasks_for_30_days(
    tmp_path: Path, changes: Changes, clock: ManualClock, given: Retention | None
) -> None:
    engine = engine_from_url(f"sqlite:///{tmp_path / 'tasks.db'}", given)
    engine.clock = clock
    async with engine:
        await end_some(engine, changes, clock, 1)
        clock.advance(30 * 86_400_000 - 1)
        assert await engine.sweep() == 0
        clock.advance(1)
        is_for_ever = given is not None and given.ended_after == math.inf
        assert await engine.sweep() == (0 if is_for_ever else 1)


@pytest.mark.parametrize("kind", [PostgresEngine, RedisEngine])
def test_every_durable_engine_has_the_same_default(kind: type[PostgresEngine] | type[RedisEngine]) -> None:
    assert kind("postgresql://host/db" if kind is PostgresEngine else "redis://host").retention == DURABLE_RETENTION
    assert MemoryEngine().retention.ended_after == 3600


# What a scope uses


async def test_the_live_tasks_of_a_scope_are_counted(engine: Engine, changes: Changes) -> None:
    assert await engine.count_live(ME) == 0
    await engine.commit(changes.create("queued"))
    await engine.commit(changes.start("running"))
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.ask("paused"))
    await engine.commit(changes.start("ended"))
    await engine.commit(changes.complete("ended"))
    await engine.commit(changes.start("somebody else's", scope=SOMEBODY_ELSE))
    await engine.commit(changes.start("another agent's", scope=OTHER_AGENT))
    assert await engine.count_live(ME) == 3
    await engine.commit(changes.complete("running"))
    assert await engine.count_live(ME) == 2
    assert await engine.count_live(SOMEBODY_ELSE) == 1
    await engine.commit(changes.start("of another tenant", scope=OTHER_TENANT))
    reaches: tuple[Reach, ...] = ("scope", "owner", "tenant", "agent")
    assert [await engine.count_live(ME, reach) for reach in reaches] == [2, 3, 3, 4]


async def test_the_bytes_of_a_scope_are_those_of_its_tasks(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0))
    assert await engine.stored_bytes(ME) == 0
    for number in range(3):
        await engine.commit(changes.start(f"t{number}"))
        await engine.commit(changes.chunk(f"t{number}", "x" * 100_000, fence=1))
        await engine.commit(changes.start(f"other{number}", scope=SOMEBODY_ELSE))
    assert 300_000 <= await engine.stored_bytes(ME) <= 400_000
    assert 0 < await engine.stored_bytes(SOMEBODY_ELSE) < 50_000
    await engine.commit(changes.complete("t0"))
    clock.advance(1)
    await engine.sweep()
    assert 200_000 <= await engine.stored_bytes(ME) <= 300_000
    await engine.commit(changes.start("of another tenant", scope=OTHER_TENANT))
    await engine.commit(changes.chunk("of another tenant", "x" * 100_000, fence=1, scope=OTHER_TENANT))
    assert 300_000 <= await engine.stored_bytes(ME, "owner") <= 400_000
    assert await engine.stored_bytes(ME, "agent") > await engine.stored_bytes(ME, "owner")


# Tasks that are too late


async def test_tasks_that_have_not_ended_are_found_by_their_age(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create("queued"))
    await engine.commit(changes.start("running"))
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.ask("paused"))
    await engine.commit(changes.start("ended"))
    await engine.commit(changes.complete("ended"))
    await engine.commit(changes.start("to be canceled"))
    await engine.commit(changes.cancel("to be canceled"))
    await engine.commit(changes.start("another agent's", scope=OTHER_AGENT))
    began = clock()
    clock.advance(10)
    await engine.commit(changes.start("young"))
    assert await abandoned(engine, unfinished_by=began) == ["paused", "queued", "running"]
    assert await abandoned(engine, unfinished_by=began - 1) == []
    assert len(await abandoned(engine, unfinished_by=clock(), limit=2)) == 2


async def abandoned(engine: Engine, **bounds: int) -> list[str]:
    wanted = {"paused_by": -1, "created_by": -1, "limit": 100, **bounds}
    found = await engine.abandoned(AGENT, **wanted)
    assert all(scope.agent == AGENT for _, scope in found)
    return sorted(task_id for task_id, _ in found)


async def test_paused_tasks_are_found_by_how_long_they_wait_and_how_old_they_are(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start("old, paused late"))
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.start("running"))
    await engine.commit(changes.start("ended"))
    await engine.commit(changes.complete("ended"))
    await engine.commit(changes.start("answered"))
    await engine.commit(changes.ask("answered"))
    await engine.commit(changes.start("somebody else's", scope=SOMEBODY_ELSE))
    await engine.commit(changes.ask("somebody else's", scope=SOMEBODY_ELSE))
    await engine.commit(changes.start("another agent's", scope=OTHER_AGENT))
    await engine.commit(changes.ask("another agent's", scope=OTHER_AGENT))
    await engine.commit(changes.ask("paused"))
    began = clock()
    clock.advance(10)
    await engine.commit(changes.ask("old, paused late"))
    await engine.commit(changes.answer("answered"))
    await engine.commit(changes.start("young"))
    await engine.commit(changes.ask("young"))
    # A pause that is held: whoever holds it goes on by itself.
    await engine.commit(changes.start("held"))
    await engine.commit(changes.status("held", TaskState.AUTH_REQUIRED, fence=1))
    assert await abandoned(engine) == []
    assert await abandoned(engine, paused_by=began) == ["paused", "somebody else's"]
    assert await abandoned(engine, created_by=began) == ["old, paused late", "paused", "somebody else's"]
    assert await abandoned(engine, paused_by=clock()) == ["old, paused late", "paused", "somebody else's", "young"]
    assert len(await abandoned(engine, paused_by=clock(), limit=2)) == 2
    assert dict(await engine.abandoned(AGENT, began, -1, 100))["somebody else's"] == SOMEBODY_ELSE


@pytest.mark.parametrize("state", [TaskState.CANCELED, TaskState.FAILED])
async def test_a_paused_task_can_be_ended_by_one_who_does_not_hold_it(
    engine: Engine, changes: Changes, state: TaskState
) -> None:
    await engine.commit(changes.start())
    version = (await engine.commit(changes.ask())).version
    await engine.commit(changes.status("t", state, expected=version, work=Work.IDLE))
    assert await abandoned(engine, paused_by=2**60) == []
    with pytest.raises(ConcurrencyError):
        await engine.commit(changes.status("t", state, expected=version, work=Work.IDLE))


# By state


async def end_as(engine: Engine, changes: Changes, states: Sequence[TaskState]) -> None:
    """One task for each state, called as it."""
    for state in states:
        await engine.commit(changes.start(state.short))
        await engine.commit(changes.status(state.short, state, fence=1, work=Work.IDLE))


ENDED = [TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED]


async def test_each_state_has_an_age_of_its_own(open_engine: OpenEngine, changes: Changes, clock: ManualClock) -> None:
    engine = await open_engine(
        Retention(completed_after=10, failed_after=30, canceled_after=20, rejected_after=40, ended_after=1)
    )
    await end_as(engine, changes, ENDED)
    left = []
    for _ in range(4):
        clock.advance(10_000)
        assert await engine.sweep() == 1
        left.append(await kept(engine))
    assert left == [["canceled", "failed", "rejected"], ["failed", "rejected"], ["rejected"], []]


async def test_a_state_without_an_age_goes_by_that_of_all(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=10, failed_after=30))
    await end_as(engine, changes, ENDED)
    clock.advance(10_000)
    assert await engine.sweep() == 3
    assert await kept(engine) == ["failed"]


async def test_only_the_states_that_have_an_age_are_deleted_when_there_is_none_for_all(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(completed_after=0))
    await end_as(engine, changes, ENDED)
    await engine.commit(changes.start("working"))
    clock.advance(10**9)
    assert await engine.sweep() == 1
    assert await kept(engine) == ["canceled", "failed", "rejected", "working"]


async def test_of_too_many_the_longest_ended_go_whatever_their_state(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_at_most=2))
    for state in (TaskState.FAILED, TaskState.COMPLETED, TaskState.REJECTED, TaskState.CANCELED):
        clock.advance(1000)
        await end_as(engine, changes, [state])
    await engine.sweep()
    assert await kept(engine) == ["canceled", "rejected"]


async def test_with_a_task_goes_all_that_belongs_to_it(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0, events_per_task=20))
    await engine.commit(changes.start(receipt=b"digest"))
    await engine.commit(changes.chunk(events=(Draft("record", b"{}"), *changes.chunk(text="x" * 1000).events)))
    await engine.commit(changes.complete())
    clock.advance(1)
    assert await engine.sweep() == 1
    with pytest.raises(TaskNotFoundError):
        await engine.records("t", ME)
    # Nothing of the first is found by a second task of the same name.
    await engine.commit(changes.start(receipt=b"digest"))
    assert await engine.records("t", ME) == []
    assert text_in(await engine.load("t", ME)) == ""


# One process at a time


async def test_what_was_swept_just_now_is_not_swept_again(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0))
    await end_some(engine, changes, clock, 2)
    assert await engine.sweep(every=60) == 2
    await end_some(engine, changes, clock, 2)
    clock.advance(57_999)
    assert await engine.sweep(every=60) == 0
    clock.advance(1)
    assert await engine.sweep(every=60) == 2
    await end_some(engine, changes, clock, 2)
    assert await engine.sweep() == 2


async def test_a_clock_that_was_wrong_does_not_keep_the_others_from_sweeping(
    open_shared: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    fast, right = await open_shared(Retention(ended_after=0)), await open_shared(Retention(ended_after=0))
    fast.clock = lambda: clock() + 10**9
    await fast.sweep(every=60)
    await end_some(right, changes, clock, 2)
    assert await right.sweep(every=60) == 2


async def test_of_several_processes_one_sweeps(open_shared: OpenEngine, changes: Changes, clock: ManualClock) -> None:
    engines = [await open_shared(Retention(ended_after=0)) for _ in range(3)]
    await end_some(engines[0], changes, clock, 5)
    clock.advance(1)
    assert sorted(await asyncio.gather(*(engine.sweep(every=60) for engine in engines))) == [0, 0, 5]
    await end_some(engines[1], changes, clock, 1)
    clock.advance(30_000)
    assert [await engine.sweep(every=60) for engine in engines] == [0, 0, 0]
    # Whoever comes first after that, also when the one before has died.
    clock.advance(30_000)
    assert [await engine.sweep(every=60) for engine in reversed(engines)] == [1, 0, 0]
