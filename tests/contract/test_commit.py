"""`Storage.commit`: atomic, ordered, durable before visible, and refused for the right reason."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from errands import lifecycle
from errands.engines.base import Engine
from errands.errors import (
    ConcurrencyError,
    ErrandsError,
    IllegalTransitionError,
    LeaseLostError,
    StorageError,
    TaskTerminalStateError,
)
from errands.model.core import TaskState
from errands.model.log import Change, Head, ListQuery, Scope, Work
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
    collect,
    context_of,
    log_of,
    text_in,
    versions,
)

pytestmark = pytest.mark.anyio


async def test_a_commit_returns_the_new_version_of_the_task(engine: Engine, changes: Changes) -> None:
    assert (await engine.commit(changes.start())).version == 2
    assert (await engine.commit(changes.chunk())).version == 3


async def test_the_events_get_the_next_versions_without_a_gap(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk())
    await engine.commit(changes.complete())
    log = await log_of(engine)
    assert [(event.version, event.kind) for event in log] == [
        (1, "task"),
        (2, "status"),
        (3, "artifact"),
        (4, "status"),
    ]


async def test_an_events_data_comes_back_byte_for_byte(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    change = changes.chunk(text='quote " newline \n null \0 snowman \N{SNOWMAN} ' + "long " * 5000)
    await engine.commit(change)
    assert (await log_of(engine))[-1].data == change.events[0].data


async def test_a_change_without_events_moves_the_task_in_the_queue_and_keeps_the_version(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    assert (await engine.commit(changes.move(fence=1, work=Work.READY, due_at=clock()))).version == 2
    (claimed,) = await engine.claim("another", [AGENT], 10, clock() + LEASE_MS)
    assert (claimed.version, claimed.head.attempt) == (2, 2)


async def test_a_commit_writes_every_field_of_the_head(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start(direct=True))
    created_at = clock()
    await engine.commit(changes.cancel(at=clock.advance(5)))
    head = (await engine.load("t", ME)).head
    assert (head.version, head.state, head.attempt, head.worker) == (3, TaskState.WORKING, 1, WORKER)
    assert (head.unread, head.cancel_requested, head.direct) == (1, True, True)
    assert (head.created_at, head.updated_at, head.status_at) == (created_at, created_at + 5, created_at)
    assert head.due_at == created_at + LEASE_MS


async def test_the_stored_head_is_the_one_that_the_lifecycle_computes(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    steps = [
        changes.create(),
        changes.status("t", TaskState.WORKING, work=Work.LEASE, worker=WORKER, due_at=clock() + 5),
        changes.ask(fence=1),
        changes.answer(at=clock.advance(7)),
        changes.cancel(direct=True),
    ]
    head = Head()
    for step in steps:
        await engine.commit(step)
        head = lifecycle.advance(head, step)
        assert (await engine.load("t", ME)).head == head


async def test_a_created_task_keeps_its_scope_and_context(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create(scope=SOMEBODY_ELSE))
    stored = await engine.load("t", SOMEBODY_ELSE)
    assert (stored.scope, stored.task.context_id) == (SOMEBODY_ELSE, context_of("t"))


Refusal = tuple[Callable[[Changes], Change], type[ErrandsError]]

REFUSALS: dict[str, Refusal] = {
    "a task that exists is not created again": (lambda c: c.create(), ConcurrencyError),
    "another version than the expected one": (lambda c: c.chunk(expected=1), ConcurrencyError),
    "a task that does not exist": (lambda c: c.chunk("nobody's"), ConcurrencyError),
    "a task that does not exist at a version": (lambda c: c.chunk("nobody's", expected=3), ConcurrencyError),
    "another state than the expected one": (
        lambda c: c.chunk(expected_states=frozenset({TaskState.SUBMITTED})),
        ConcurrencyError,
    ),
    "a stale fence": (lambda c: c.chunk(fence=0), LeaseLostError),
    "a fence of the future": (lambda c: c.chunk(fence=2), LeaseLostError),
    "a way that the lifecycle does not have": (lambda c: c.status("t", TaskState.SUBMITTED), IllegalTransitionError),
    "somebody else's task": (lambda c: c.chunk(scope=SOMEBODY_ELSE), ConcurrencyError),
    "a task of another tenant": (lambda c: c.chunk(scope=OTHER_TENANT), ConcurrencyError),
    "a task of another agent": (lambda c: c.chunk(scope=OTHER_AGENT), ConcurrencyError),
    "an id that somebody else's task has": (lambda c: c.create(scope=SOMEBODY_ELSE), ConcurrencyError),
    "a fold on the wrong version": (lambda c: c.complete(expected=1), ConcurrencyError),
}


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS.keys())
async def test_a_refused_change_leaves_everything_as_it_was(
    engine: Engine, changes: Changes, clock: ManualClock, refusal: Refusal
) -> None:
    build, error = refusal
    await engine.commit(changes.start())
    before = await engine.load("t", ME), await engine.read("t", ME, 0)
    clock.advance(1)
    with pytest.raises(error):
        await engine.commit(build(changes))
    assert (await engine.load("t", ME), await engine.read("t", ME, 0)) == before


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.WORKING, TaskState.CANCELED])
async def test_an_ended_task_takes_no_further_state(engine: Engine, changes: Changes, state: TaskState) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    with pytest.raises(TaskTerminalStateError):
        await engine.commit(changes.status("t", state))


@pytest.mark.parametrize("work", [Work.READY, Work.LEASE])
@pytest.mark.parametrize("fence", [None, 1])
async def test_an_ended_task_is_not_worked_on_again(
    engine: Engine, changes: Changes, clock: ManualClock, work: Work, fence: int | None
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    before = await engine.load("t", ME)
    with pytest.raises(TaskTerminalStateError):
        await engine.commit(changes.move(work=work, worker="another", due_at=clock(), fence=fence))
    assert await engine.load("t", ME) == before
    assert await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS) == []


async def test_the_holder_of_an_ended_task_is_told_that_it_ended(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.status("t", TaskState.CANCELED, work=Work.IDLE))
    with pytest.raises(TaskTerminalStateError):
        await engine.commit(changes.chunk(fence=1))


@pytest.mark.parametrize("work", [Work.READY, Work.LEASE])
async def test_a_lease_is_taken_only_from_the_attempt_that_was_seen(
    engine: Engine, changes: Changes, clock: ManualClock, work: Work
) -> None:
    # A claim leaves the version as it is.
    await engine.commit(changes.start())
    if work is Work.READY:
        await engine.commit(changes.move(fence=1, work=Work.READY, due_at=clock()))
    clock.advance(LEASE_MS)
    taking = changes.move(expected=2, fence=1, work=Work.LEASE, worker="faster", due_at=clock() + LEASE_MS)
    late = changes.move(expected=2, fence=1, work=Work.LEASE, worker="slower", due_at=clock() + LEASE_MS)
    await engine.commit(taking)
    with pytest.raises(LeaseLostError):
        await engine.commit(late)
    head = (await engine.load("t", ME)).head
    assert (head.worker, head.attempt) == ("faster", 2)


async def test_a_stale_fence_is_refused(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS)
    (claimed,) = await engine.claim("another", [AGENT], 1, clock() + LEASE_MS)
    with pytest.raises(LeaseLostError):
        await engine.commit(changes.chunk(fence=1))
    assert (await engine.commit(changes.chunk(fence=claimed.head.attempt))).version == 3


async def test_a_lease_that_was_given_back_is_no_lease(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.move(fence=1, work=Work.READY, due_at=clock()))
    with pytest.raises(LeaseLostError):
        await engine.commit(changes.chunk(fence=1))


async def test_of_100_concurrent_commits_with_the_same_expected_version_exactly_one_wins(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    results = await asyncio.gather(
        *(engine.commit(changes.chunk(text=f"{n};", expected=2)) for n in range(100)), return_exceptions=True
    )
    winners = [n for n, result in enumerate(results) if versions([result]) == [3]]
    assert len(winners) == 1
    assert sum(isinstance(result, ConcurrencyError) for result in results) == 99
    assert text_in(await engine.load("t", ME)) == f"{winners[0]};"


async def test_of_100_concurrent_creations_of_one_task_exactly_one_wins(engine: Engine, changes: Changes) -> None:
    results = await asyncio.gather(*(engine.commit(changes.create()) for _ in range(100)), return_exceptions=True)
    assert sorted(versions(results), key=str) == [1, *[None] * 99]
    assert [event.version for event in await log_of(engine)] == [1]


async def test_of_two_concurrent_ends_exactly_one_wins(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    results = await asyncio.gather(
        engine.commit(changes.complete()),
        engine.commit(changes.status("t", TaskState.CANCELED, work=Work.IDLE)),
        return_exceptions=True,
    )
    assert versions(results) == [3, None]
    assert isinstance(results[1], TaskTerminalStateError)


async def test_commits_to_one_task_take_effect_in_the_order_they_were_called(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    commits = [asyncio.ensure_future(engine.commit(changes.chunk(text=f"{n} "))) for n in range(500)]
    assert versions(await asyncio.gather(*commits)) == list(range(3, 503))
    assert text_in(await engine.load("t", ME)) == "".join(f"{n} " for n in range(500))


async def test_a_refused_change_is_not_tried_again_after_those_that_were_called_later(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    early, due, late = await asyncio.gather(
        engine.commit(changes.chunk(text="early", expected=3)),
        engine.commit(changes.chunk(text="due", expected=2)),
        engine.commit(changes.chunk(text="late", expected=2)),
        return_exceptions=True,
    )
    assert (type(early), versions([due]), type(late)) == (ConcurrencyError, [3], ConcurrencyError)
    assert text_in(await engine.load("t", ME)) == "due"


async def test_concurrent_changes_to_one_task_see_each_other(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    commits = (
        engine.commit(changes.create()),
        engine.commit(changes.working(work=Work.LEASE, worker=WORKER, due_at=clock() + LEASE_MS, expected=1)),
        engine.commit(changes.chunk(fence=1)),
        engine.commit(changes.ask(fence=1)),
        engine.commit(changes.answer(expected_states=frozenset({TaskState.INPUT_REQUIRED}))),
    )
    assert versions(await asyncio.gather(*commits)) == [1, 2, 3, 4, 6]


async def test_a_refused_change_does_not_disturb_those_committed_with_it(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start("refused"))
    commits = [
        engine.commit(changes.chunk("refused", expected=77) if n % 3 == 1 else changes.start(f"t{n}"))
        for n in range(60)
    ]
    results = await asyncio.gather(*commits, return_exceptions=True)
    for n, result in enumerate(results):
        assert isinstance(result, ConcurrencyError) if n % 3 == 1 else versions([result]) == [2]
    assert len(await log_of(engine, "refused")) == 2


async def test_what_a_subscriber_sees_is_already_in_the_log(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2, caught_up=True)
    for version in range(3, 30):
        commit = asyncio.ensure_future(engine.commit(changes.chunk()))
        events = await subscription.next()
        assert (await engine.read("t", ME, version - 1)).events == events
        assert (await engine.load("t", ME)).version == version
        assert (await commit).version == version
    subscription.close()


async def test_a_refused_change_is_never_seen_by_a_subscriber(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await asyncio.gather(
        engine.commit(changes.chunk(expected=9)),
        engine.commit(changes.chunk(text="the only one")),
        engine.commit(changes.chunk(fence=9)),
        return_exceptions=True,
    )
    assert await collect(subscription, 3) == [3]
    assert await subscription.next(timeout=0.01) == []
    subscription.close()


async def test_a_commit_that_is_abandoned_by_its_caller_is_written_or_not_but_never_half(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    abandoned = asyncio.ensure_future(engine.commit(changes.complete()))
    await asyncio.sleep(0)
    abandoned.cancel()
    await asyncio.gather(abandoned, return_exceptions=True)
    # Whatever is committed now comes after it.
    await engine.commit(changes.create("another"))
    stored = await engine.load("t", ME)
    assert (stored.version, stored.state, stored.task.status.state) in [
        (3, TaskState.COMPLETED, TaskState.COMPLETED),
        (2, TaskState.WORKING, TaskState.WORKING),
    ]
    assert len(await log_of(engine)) == stored.version


@pytest.mark.parametrize("scope", [Scope(), ME, OTHER_TENANT, OTHER_AGENT], ids=str)
async def test_tasks_of_every_scope_live_side_by_side(engine: Engine, changes: Changes, scope: Scope) -> None:
    for number, whose in enumerate([Scope(), ME, OTHER_TENANT, OTHER_AGENT]):
        await engine.commit(changes.start(f"t{number}", scope=whose))
    mine = [Scope(), ME, OTHER_TENANT, OTHER_AGENT].index(scope)
    assert (await engine.commit(changes.chunk(f"t{mine}", scope=scope))).version == 3


async def fails_alone(engine: Engine, changes: Changes, **fields: Any) -> None:
    """Of many changes of one moment, the one with these fields is refused and the others are written."""
    results = await asyncio.gather(
        *(engine.commit(changes.start(f"t{n}", **(fields if n == 7 else {}))) for n in range(20)),
        return_exceptions=True,
    )
    assert isinstance(results.pop(7), StorageError)
    assert versions(results) == [2] * 19
    assert (await engine.list(ListQuery(scope=ME))).total_size == 19


@pytest.mark.parametrize("worker", ["\ud800", object()], ids=["half a character", "something that is not text"])
async def test_a_change_that_cannot_be_stored_fails_alone(stored_engine: Engine, changes: Changes, worker: Any) -> None:
    await fails_alone(stored_engine, changes, worker=worker)


@pytest.mark.parametrize("open_shared", ["sqlite", "postgresql"], indirect=True)
async def test_a_number_that_fits_in_no_column_fails_alone(stored_engine: Engine, changes: Changes) -> None:
    await fails_alone(stored_engine, changes, due_at=2**70)
