"""What is stored of a task may be unreadable: that concerns this task, and no other."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

import pytest

from errands.engines.base import Engine, Retention
from errands.engines.damage import EXPLANATION
from errands.engines.memory import MemoryEngine
from errands.errors import ConcurrencyError, DuplicateMessageError, TaskNotFoundError, TaskTerminalStateError
from errands.model.core import TERMINAL_STATES, TaskState, text_of
from errands.model.log import AskingQuery, Draft, Lease, ListQuery, StoredTask, Work
from tests.contract.changes import (
    AGENT,
    LEASE_MS,
    ME,
    SOMEBODY_ELSE,
    WORKER,
    Changes,
    ManualClock,
    context_of,
    log_of,
    message_draft,
)
from tests.contract.conftest import OpenEngine
from tests.contract.test_outbox import config, settled
from tests.damage import GARBAGE, MISFIT, damage_event, damage_head, damage_push

pytestmark = pytest.mark.anyio

Damage = Callable[[Engine, str], Awaitable[None]]


async def damage_first(engine: Engine, task_id: str) -> None:
    await damage_event(engine, task_id, 1, GARBAGE)


async def damage_tail(engine: Engine, task_id: str) -> None:
    await damage_event(engine, task_id, 2)


async def damage_snapshot(engine: Engine, task_id: str) -> None:
    """Where nothing was folded yet it has no snapshot, so one is written first."""
    stored = await engine.load(task_id, ME)
    changes = Changes(engine.clock)
    await engine.commit(changes.chunk(task_id, expected=stored.version, fold=stored.task))
    await damage_event(engine, task_id, 0)


#: Ways in which it may come to that.
DAMAGES: list[Damage] = [damage_first, damage_tail, damage_snapshot, damage_head]


@pytest.fixture(params=DAMAGES, ids=lambda damage: damage.__name__)
def damage(request: pytest.FixtureRequest, engine: Engine) -> Damage:
    found: Damage = request.param
    if found is damage_head and isinstance(engine, MemoryEngine):
        pytest.skip("a head in memory is never decoded")
    return found


def assert_failed(stored: StoredTask, task_id: str) -> None:
    assert (stored.task.id, stored.scope, stored.state) == (task_id, ME, TaskState.FAILED)
    assert stored.task.status.state is TaskState.FAILED
    assert stored.task.status.message is not None
    assert text_of(stored.task.status.message.parts) == EXPLANATION


async def start_three(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    """Three running tasks; the second, `bad`, is the first to be due."""
    await engine.commit(changes.start("one", due_at=clock() + LEASE_MS))
    await engine.commit(changes.start("bad", due_at=clock() + LEASE_MS - 1))
    await engine.commit(changes.start("two", due_at=clock() + LEASE_MS))


async def claim(engine: Engine, clock: ManualClock, limit: int = 10) -> list[str]:
    claimed = await engine.claim("another", [AGENT], limit, clock() + LEASE_MS)
    assert not any(stored.damage for stored in claimed)
    return sorted(stored.task.id for stored in claimed)


async def test_a_damaged_task_does_not_keep_the_others_from_being_claimed(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    clock.advance(LEASE_MS)
    assert await claim(engine, clock) == ["one", "two"]


async def test_a_claimer_with_little_room_finds_the_healthy_task_behind_damaged_ones(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    for task_id in ("bad1", "bad2", "bad3", "good"):
        await engine.commit(changes.start(task_id))
        clock.advance(1)
    for task_id in ("bad1", "bad2", "bad3"):
        await damage_tail(engine, task_id)
    clock.advance(LEASE_MS)
    assert await claim(engine, clock, limit=1) == ["good"]


async def test_any_number_of_damaged_tasks_may_stand_before_a_healthy_one(clock: ManualClock, changes: Changes) -> None:
    engine = MemoryEngine(clock=clock)
    for number in range(1500):
        await engine.commit(changes.start(f"bad{number}"))
        await damage_tail(engine, f"bad{number}")
        clock.advance(1)
    await engine.commit(changes.start("good"))
    clock.advance(LEASE_MS)
    assert await claim(engine, clock, limit=1) == ["good"]


async def test_a_damaged_task_leaves_the_queue_for_good(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    clock.advance(LEASE_MS)
    await claim(engine, clock)
    clock.advance(3 * LEASE_MS)
    assert await engine.queue_age([AGENT]) == 2 * LEASE_MS
    assert await claim(engine, clock) == ["one", "two"]
    assert [task.task_id for task in await engine.running()] == ["one", "two"]
    assert_failed(await engine.load("bad", ME), "bad")
    with pytest.raises((TaskTerminalStateError, ConcurrencyError)):
        await engine.commit(changes.working("bad", fence=1))


async def test_its_log_ends_with_the_status_that_it_failed(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await start_three(engine, changes, clock)
    await damage_tail(engine, "bad")
    clock.advance(LEASE_MS)
    await claim(engine, clock)
    *_, damaged, last = await log_of(engine, "bad")
    assert damaged.data == MISFIT
    assert b"TASK_STATE_FAILED" in last.data
    assert (await engine.list(ListQuery(scope=ME, state=TaskState.FAILED))).tasks[0].task.id == "bad"


async def test_whoever_held_a_damaged_task_is_fenced_off(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    clock.advance(LEASE_MS)
    await claim(engine, clock)
    signals = await engine.extend(WORKER, [Lease("bad", 1)], clock() + LEASE_MS)
    assert [signal.lost for signal in signals] == [True]


async def test_while_it_is_held_it_is_only_shown_as_failed(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await engine.commit(changes.cancel("bad"))
    await damage(engine, "bad")
    assert await engine.extend(WORKER, [Lease("one", 1)], clock() + LEASE_MS) == []
    assert sorted(task.task_id for task in await engine.running()) == ["bad", "one", "two"]
    assert await engine.wanted_canceled(WORKER) == ["bad"]
    stored = await engine.load("bad", ME)
    assert_failed(stored, "bad")
    await engine.set_aside(stored)
    (signal,) = await engine.extend(WORKER, [Lease("bad", 1)], clock() + LEASE_MS)
    assert not signal.lost


async def test_listings_show_it_as_failed_among_the_others(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    if damage is damage_head and engine.name == "postgresql":
        # Its index knows tasks by their state, and this one has none that is known.
        await engine.set_aside(await engine.load("bad", ME), WORKER)
    clock.advance(1)
    page = await engine.list(ListQuery(scope=ME, with_artifacts=True))
    found = {stored.task.id: stored for stored in page.tasks}
    assert sorted(found) == ["bad", "one", "two"]
    assert_failed(found["bad"], "bad")
    assert found["one"].state is found["two"].state is TaskState.WORKING
    working = await engine.list(ListQuery(scope=ME, state=TaskState.WORKING))
    assert sorted(stored.task.id for stored in working.tasks) == ["one", "two"]


async def test_a_listing_goes_on_when_a_task_was_damaged_and_others_changed_since_it_began(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    clock.advance(1)
    first = await engine.list(ListQuery(scope=ME, page_size=1))
    await damage(engine, "bad")
    clock.advance(1)
    await engine.commit(changes.working("one"))
    await engine.commit(changes.working("two"))
    found = {stored.task.id for stored in first.tasks}
    token = first.next_page_token
    while token:
        page = await engine.list(ListQuery(scope=ME, page_size=1, page_token=token))
        found |= {stored.task.id for stored in page.tasks}
        token = page.next_page_token
    assert {"one", "two"} <= found


async def test_a_damaged_task_is_shown_to_its_owner_only(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    with pytest.raises(TaskNotFoundError):
        await engine.load("bad", SOMEBODY_ELSE)
    assert (await engine.list(ListQuery(scope=SOMEBODY_ELSE))).tasks == []


async def test_what_can_be_told_of_it_is_told(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start("bad"))
    created = clock()
    await damage_tail(engine, "bad")
    stored = await engine.load("bad", ME)
    assert stored.task.context_id == context_of("bad")
    assert (stored.head.created_at, stored.version) == (created, 2)


async def test_a_review_that_cannot_be_read_is_not_asked_for(engine: Engine, changes: Changes) -> None:
    for task_id in ("bad", "good"):
        await engine.commit(changes.start(task_id))
        await engine.commit(changes.ask(task_id, fence=1, asks="bob"))
    await damage_tail(engine, "bad")
    assert [stored.task.id for stored in await engine.asking(AskingQuery())] == ["good"]
    assert await engine.asking(AskingQuery(task_id="bad")) == []


async def test_whoever_waits_for_it_hears_that_it_failed(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await start_three(engine, changes, clock)
    await damage_tail(engine, "bad")
    stored = await engine.wait_for_state("bad", ME, TERMINAL_STATES, 5)
    assert_failed(stored, "bad")
    with engine.expect("bad", ME, TERMINAL_STATES) as expectation:
        clock.advance(LEASE_MS)
        await claim(engine, clock)
        settled = await expectation.wait(stored.version, 60)
    assert settled is not None
    assert_failed(settled, "bad")


async def test_a_paused_task_ends_when_it_is_set_aside(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start("bad"))
    await engine.commit(changes.ask("bad", fence=1))
    await damage_tail(engine, "bad")
    await engine.set_aside(await engine.load("bad", ME))
    (stored,) = (await engine.list(ListQuery(scope=ME, state=TaskState.FAILED))).tasks
    assert_failed(stored, "bad")
    await engine.delete("bad", ME)
    assert (await engine.list(ListQuery(scope=ME))).total_size == 0


async def test_a_subscription_has_a_gap_where_an_event_cannot_be_read(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start("bad"))
    for _ in range(3):
        await engine.commit(changes.chunk("bad"))
    await damage_event(engine, "bad", 4, GARBAGE)
    subscription = engine.subscribe("bad", ME, 0)
    assert await subscription.next() is None
    assert subscription.gap
    after = engine.subscribe("bad", ME, 4)
    assert [event.version for event in await after.next() or ()] == [5]
    after.close()


async def test_what_cannot_be_decoded_but_was_committed_is_damaged_too(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start("good"))
    await engine.commit(changes.start("bad"))
    await engine.commit(changes.move("bad", events=(Draft("status", MISFIT),), fence=1))
    clock.advance(LEASE_MS)
    assert await claim(engine, clock) == ["good"]
    assert_failed(await engine.load("bad", ME), "bad")


async def test_a_completed_task_that_cannot_be_read_is_shown_as_failed_and_can_be_deleted(
    engine: Engine, changes: Changes
) -> None:
    await engine.commit(changes.start("bad"))
    await engine.commit(changes.complete("bad", fence=1))
    await damage_first(engine, "bad")
    stored = await engine.load("bad", ME)
    assert_failed(stored, "bad")
    await engine.set_aside(stored)
    assert stored.version == (await engine.load("bad", ME)).version
    await engine.delete("bad", ME)
    with pytest.raises(TaskNotFoundError):
        await engine.load("bad", ME)


async def test_retention_deletes_damaged_tasks_like_others(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(failed_after=60))
    await start_three(engine, changes, clock)
    await damage_tail(engine, "bad")
    if not isinstance(engine, MemoryEngine):
        await engine.commit(changes.start("headless"))
        await damage_head(engine, "headless")
    clock.advance(LEASE_MS)
    await claim(engine, clock)
    assert await engine.sweep() == 0
    clock.advance(60_000)
    assert await engine.sweep() == (1 if isinstance(engine, MemoryEngine) else 2)
    assert sorted([stored.task.id async for stored in engine.every_task()]) == ["one", "two"]


async def test_a_log_that_cannot_be_read_does_not_keep_others_from_being_trimmed(
    open_engine: OpenEngine, changes: Changes
) -> None:
    engine = await open_engine(Retention(events_per_task=10))
    for task_id in ("bad", "good"):
        await engine.commit(changes.start(task_id))
    await engine.commit(changes.move("bad", events=(Draft("status", MISFIT),), fence=1))
    for _ in range(30):
        for task_id in ("bad", "good"):
            await engine.commit(changes.chunk(task_id))
    assert await engine.sweep() == 0
    assert (await engine.read("good", ME, 0)).gap
    assert len((await engine.read("good", ME, 22)).events) == 10
    assert_failed(await engine.load("bad", ME), "bad")


async def test_a_message_to_it_is_recognised_when_it_comes_again(engine: Engine, changes: Changes) -> None:
    """Receipts are apart from what cannot be read."""
    await engine.commit(changes.start("bad", receipt=b"digest"))
    await engine.commit(changes.move("bad", events=(message_draft("bad", "more"),), work=Work.KEEP))
    await damage_tail(engine, "bad")
    with pytest.raises(DuplicateMessageError, match="already accepted by task bad"):
        await engine.commit(changes.create("another", receipt=b"digest"))


async def test_it_is_logged_once(
    engine: Engine,
    changes: Changes,
    clock: ManualClock,
    caplog: pytest.LogCaptureFixture,
    request: pytest.FixtureRequest,
) -> None:
    task_id = f"bad in {request.node.name}"
    await engine.commit(changes.start(task_id))
    await damage_tail(engine, task_id)
    with caplog.at_level(logging.ERROR, "errands"):
        for _ in range(3):
            await engine.load(task_id, ME)
            await engine.list(ListQuery(scope=ME))
        clock.advance(LEASE_MS)
        await claim(engine, clock)
        await engine.load(task_id, ME)
    (record,) = [record for record in caplog.records if task_id in record.getMessage()]
    assert record.levelno == logging.ERROR
    assert "errands db damaged" in record.getMessage()


async def test_every_task_of_the_store_can_be_looked_at(engine: Engine, changes: Changes, damage: Damage) -> None:
    for number in range(250):
        await engine.commit(changes.start(f"t{number}", scope=ME if number % 2 else SOMEBODY_ELSE))
    await damage(engine, "t201")
    found = {stored.task.id: stored.damage async for stored in engine.every_task()}
    assert len(found) == 250
    assert [task_id for task_id, why in found.items() if why] == ["t201"]


async def test_a_damaged_task_can_be_deleted_by_whoever_knows_its_id_alone(
    engine: Engine, changes: Changes, clock: ManualClock, damage: Damage
) -> None:
    await start_three(engine, changes, clock)
    await damage(engine, "bad")
    (stored,) = [stored async for stored in engine.every_task() if stored.damage]
    await engine.set_aside(stored, stored.head.worker)
    await engine.delete(stored.task.id, stored.scope)
    assert sorted([stored.task.id async for stored in engine.every_task()]) == ["one", "two"]
    clock.advance(LEASE_MS)
    assert await claim(engine, clock) == ["one", "two"]


@pytest.mark.parametrize("data", [GARBAGE, b'{"id":42}'], ids=["garbage", "misfit"])
async def test_a_damaged_push_config_does_not_hold_up_other_webhooks(
    engine: Engine, changes: Changes, clock: ManualClock, data: bytes
) -> None:
    if isinstance(engine, MemoryEngine):
        pytest.skip("a config in memory is never decoded")
    await engine.commit(changes.start("bad", push=config("a", token="secret")))
    await engine.commit(changes.move("bad", push=config("b")))
    clock.advance(1)
    await engine.commit(changes.start("good", push=config()))
    await damage_push(engine, "bad", "a", data)
    for _ in range(2):
        claimed = await engine.claim_deliveries(AGENT, 10, lambda host: 10, clock() + LEASE_MS)
        assert [(entry.task_id, entry.config.id) for entry in claimed] == [("good", "c")]
        clock.advance(LEASE_MS)
    assert sorted([entry.config.id async for entry in engine.outbox()]) == ["b", "c"]
    assert [one.id for one in await engine.push_configs("bad", ME)] == ["b"]
    assert {task.task.id for task in (await engine.list(ListQuery(scope=ME))).tasks} == {"bad", "good"}
    await engine.settle_deliveries([settled(claimed[0], 1)])
