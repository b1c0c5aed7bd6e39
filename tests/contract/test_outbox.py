"""The outbox: webhooks are queued by the commit itself, and given to one sender at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from errands import errors
from errands.engines.base import Engine, Retention
from errands.engines.postgres import schema as postgres_schema
from errands.engines.sqlite import schema as sqlite_schema
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Delivery, OutboxEntry, PushConfig
from tests.contract.changes import AGENT, ME, SOMEBODY_ELSE, WORKER, Changes, ManualClock
from tests.contract.conftest import OpenEngine
from tests.postgres import own_schema

pytestmark = pytest.mark.anyio

HOST = "hooks.example:443"
LEASE = 20_000


def config(config_id: str = "c", host: str = HOST, **fields: Any) -> PushConfig:
    return PushConfig(id=config_id, url=f"https://{host}/{config_id}", host=host, **fields)


async def claim(
    engine: Engine, clock: ManualClock, *, limit: int = 10, per_host: int = 10, agent: str = AGENT
) -> list[OutboxEntry]:
    return await engine.claim_deliveries(agent, limit, lambda host: per_host, clock() + LEASE)


def settled(entry: OutboxEntry, delivered: int, **fields: Any) -> Delivery:
    return Delivery(task_id=entry.task_id, config_id=entry.config.id, claim=entry.claim, delivered=delivered, **fields)


async def entry_of(engine: Engine) -> OutboxEntry:
    (entry,) = [entry async for entry in engine.outbox()]
    return entry


async def test_a_config_that_comes_with_its_task_is_due_with_the_first_event(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    head = await engine.commit(changes.start(push=config(token="t", scheme="Bearer", credentials="c")))
    assert head.pushes == ("c",)
    assert (await engine.load("t", ME)).head == head
    (entry,) = await claim(engine, clock)
    assert entry.config == config(token="t", scheme="Bearer", credentials="c")
    assert (entry.task_id, entry.scope, entry.delivered, entry.due_at) == ("t", ME, 0, clock() + LEASE)
    assert (entry.attempts, entry.failed_at, entry.error, entry.dead) == (0, None, "", False)
    assert await claim(engine, clock) == []


async def test_a_config_that_is_added_later_begins_with_the_next_event(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    head = await engine.commit(changes.move(push=config()))
    assert (head.version, head.state, head.worker) == (2, TaskState.WORKING, WORKER)
    assert await claim(engine, clock) == []
    await engine.commit(changes.chunk(fence=1))
    (entry,) = await claim(engine, clock)
    assert entry.delivered == 2


async def test_events_that_subscribers_are_not_shown_fill_no_outbox(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.move(push=config()))
    await engine.commit(changes.cancel())
    assert await claim(engine, clock) == []


async def test_what_was_delivered_is_due_again_with_the_next_event(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    assert await engine.settle_deliveries([settled(entry, 2)]) == [True]
    clock.advance(2 * LEASE)
    assert await claim(engine, clock) == []
    await engine.commit(changes.complete(fence=1))
    (entry,) = await claim(engine, clock)
    assert (entry.delivered, entry.claim) == (2, 2)


async def test_an_event_that_is_committed_during_a_delivery_is_not_missed(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    await engine.commit(changes.chunk(fence=1))
    assert await claim(engine, clock) == []
    await engine.settle_deliveries([settled(entry, 2)])
    (entry,) = await claim(engine, clock)
    assert entry.delivered == 2


async def test_no_event_is_missed_however_commits_and_deliveries_meet(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    commits = asyncio.gather(*(engine.commit(changes.chunk(fence=1)) for _ in range(30)))
    while not commits.done() or (await entry_of(engine)).due_at is not None:
        for entry in await claim(engine, clock):
            version = (await engine.load("t", ME)).version
            await engine.settle_deliveries([settled(entry, version)])
        await asyncio.sleep(0)
    assert (await entry_of(engine)).delivered == (await engine.load("t", ME)).version == 32


async def test_a_failure_is_due_at_its_time(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    failed = settled(entry, 1, due_at=clock() + 5000, attempts=1, failed_at=clock(), error="HTTP 500")
    assert await engine.settle_deliveries([failed]) == [True]
    await engine.commit(changes.chunk(fence=1))
    assert await claim(engine, clock) == []
    clock.advance(5000)
    (entry,) = await claim(engine, clock)
    assert (entry.delivered, entry.attempts, entry.failed_at, entry.error) == (1, 1, clock() - 5000, "HTTP 500")


async def test_a_lease_that_expired_is_taken_over_and_its_holder_refused(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    (lost,) = await claim(engine, clock)
    clock.advance(LEASE)
    (entry,) = await claim(engine, clock)
    assert entry.claim == lost.claim + 1
    assert await engine.settle_deliveries([settled(lost, 2), settled(entry, 1, due_at=clock() + LEASE)]) == [
        False,
        True,
    ]
    assert (await entry_of(engine)).delivered == 1


async def test_a_dead_entry_is_not_due_until_it_is_retried(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    await engine.settle_deliveries([settled(entry, 0, attempts=9, failed_at=5, error="gone", dead=True)])
    await engine.commit(changes.chunk(fence=1))
    clock.advance(2 * LEASE)
    assert await claim(engine, clock) == []
    shown = await entry_of(engine)
    assert (shown.dead, shown.error, shown.attempts, shown.due_at) == (True, "gone", 9, None)
    assert await engine.retry_delivery("t", "c")
    assert not await engine.retry_delivery("t", "other")
    assert not await engine.retry_delivery("other", "c")
    (entry,) = await claim(engine, clock)
    assert (entry.delivered, entry.attempts, entry.failed_at, entry.error, entry.dead) == (0, 0, None, "", False)


async def test_the_backlog_says_since_when_webhooks_wait_and_how_many_are_dead(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    assert await engine.outbox_backlog(AGENT) == (None, 0)
    first = clock()
    await engine.commit(changes.start("t", push=config(host="b:80")))
    clock.advance(1000)
    await engine.commit(changes.start("u", push=config(host="a:80")))
    assert await engine.outbox_backlog(AGENT) == (first, 0)
    assert await engine.outbox_backlog("another agent") == (None, 0)
    entries = await claim(engine, clock, per_host=1)
    # They are leased.
    assert await engine.outbox_backlog(AGENT) == (None, 0)
    await engine.settle_deliveries([settled(entry, 0, failed_at=5, error="gone", dead=True) for entry in entries])
    assert await engine.outbox_backlog(AGENT) == (None, 2)
    assert await engine.outbox_backlog("another agent") == (None, 0)
    assert await engine.retry_delivery("t", "c")
    assert await engine.outbox_backlog(AGENT) == (clock(), 1)
    await engine.commit(changes.move("u", drop_push="c"))
    assert await engine.outbox_backlog(AGENT) == (clock(), 0)


async def test_the_backlog_forgets_deleted_tasks(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    await engine.settle_deliveries([settled(entry, 0, failed_at=5, error="gone", dead=True)])
    await engine.commit(changes.complete(fence=1))
    assert await engine.outbox_backlog(AGENT) == (None, 1)
    await engine.delete("t", ME)
    assert await engine.outbox_backlog(AGENT) == (None, 0)


async def test_hosts_take_turns_and_none_has_more_than_its_share(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    for number in range(6):
        host = "slow:80" if number < 5 else "fast:80"
        await engine.commit(changes.start(f"t{number}", push=config(host=host)))
        clock.advance(1)
    claimed = await claim(engine, clock, per_host=2)
    assert sorted(entry.config.host for entry in claimed) == ["fast:80", "slow:80", "slow:80"]
    assert [entry.task_id for entry in claimed if entry.config.host == "slow:80"] == ["t0", "t1"]
    asked: list[str] = []

    def no_room(host: str) -> int:
        asked.append(host)
        return 0

    assert await engine.claim_deliveries(AGENT, 9, no_room, clock() + LEASE) == []
    assert asked == ["slow:80"]
    assert len(await claim(engine, clock, limit=1)) == 1


async def test_a_claim_begins_with_the_host_after_the_last(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    for host in ("a:80", "b:80", "c:80"):
        for number in range(2):
            await engine.commit(changes.start(f"{host} {number}", push=config(host=host)))
    hosts = [entry.config.host for _ in range(6) for entry in await claim(engine, clock, limit=1)]
    assert hosts == ["a:80", "b:80", "c:80"] * 2


async def test_only_tasks_of_the_agent_are_claimed(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start(push=config()))
    assert await claim(engine, clock, agent="another agent") == []
    assert [entry async for entry in engine.outbox("another agent")] == []
    assert len([entry async for entry in engine.outbox(AGENT)]) == 1


async def test_configs_belong_to_the_scope_of_their_task(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(push=config("b")))
    await engine.commit(changes.move(push=config("a")))
    assert await engine.push_configs("t", ME) == [config("a"), config("b")]
    for scope, task_id in ((SOMEBODY_ELSE, "t"), (ME, "other")):
        with pytest.raises(errors.TaskNotFoundError):
            await engine.push_configs(task_id, scope)
        with pytest.raises(errors.ConcurrencyError):
            await engine.commit(changes.move(task_id, scope=scope, push=config()))


async def test_a_task_has_no_more_configs_than_allowed(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(push=config("a")))
    outcomes = await asyncio.gather(
        *(engine.commit(changes.move(push=config(name), push_limit=3)) for name in "bcdef"), return_exceptions=True
    )
    assert [type(outcome) for outcome in outcomes].count(errors.TooManyPushConfigsError) == 3
    assert len(await engine.push_configs("t", ME)) == 3
    await engine.commit(changes.move(push=config("a", host="new:80"), push_limit=3))
    assert (await engine.push_configs("t", ME))[0] == config("a", host="new:80")


async def test_a_config_that_replaces_another_continues_where_that_was(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    await engine.settle_deliveries([settled(entry, 1, attempts=3, failed_at=1, error="gone", dead=True)])
    await engine.commit(changes.move(push=config(host="new:80")))
    (again,) = await claim(engine, clock)
    assert (again.config.host, again.delivered, again.dead, again.attempts) == ("new:80", 1, False, 0)
    assert await engine.settle_deliveries([settled(entry, 2)]) == [False]


async def test_a_config_that_is_removed_is_gone(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start(push=config()))
    (entry,) = await claim(engine, clock)
    head = await engine.commit(changes.move(drop_push="c"))
    assert head.pushes == ()
    assert await engine.commit(changes.move(drop_push="c")) == head
    assert await engine.push_configs("t", ME) == []
    assert await engine.settle_deliveries([settled(entry, 2)]) == [False]
    await engine.commit(changes.chunk(fence=1))
    clock.advance(2 * LEASE)
    assert await claim(engine, clock) == []


async def test_an_ended_task_takes_configs(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete(fence=1))
    assert (await engine.commit(changes.move(push=config()))).pushes == ("c",)
    assert await claim(engine, clock) == []


async def test_entries_are_deleted_with_their_task(
    open_engine: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    engine = await open_engine(Retention(ended_after=0.0))
    for task_id in ("t", "u"):
        await engine.commit(changes.start(task_id, push=config()))
        await engine.commit(changes.complete(task_id, fence=1))
    await engine.delete("u", ME)
    (entry,) = await claim(engine, clock)
    clock.advance(1)
    assert await engine.sweep() == 1
    assert [entry async for entry in engine.outbox()] == []
    assert await engine.settle_deliveries([settled(entry, 2)]) == [False]
    clock.advance(2 * LEASE)
    assert await claim(engine, clock) == []


async def test_senders_are_woken_by_commits_that_concern_them(engine: Engine, changes: Changes) -> None:
    woken: list[int] = []
    engine.on_delivery(lambda: woken.append(1))
    await engine.commit(changes.start("u"))
    assert woken == []
    await engine.commit(changes.start(push=config()))
    assert woken == [1]


async def test_replicas_never_hold_the_same_entry(
    open_shared: OpenEngine, changes: Changes, clock: ManualClock
) -> None:
    one, other = await open_shared(), await open_shared()
    await asyncio.gather(*(one.commit(changes.start(f"t{number}", push=config())) for number in range(20)))
    claims = await asyncio.gather(*(claim(engine, clock, limit=4) for engine in (one, other, one, other, one)))
    held = [entry.task_id for entries in claims for entry in entries]
    assert len(held) == len(set(held))
    while entries := await claim(other, clock):
        held += [entry.task_id for entry in entries]
    assert sorted(held) == sorted(f"t{number}" for number in range(20))


async def test_secrets_of_a_config_are_not_shown(engine: Engine, changes: Changes) -> None:
    secret = config(token="hush-1", credentials="hush-2", scheme="Bearer")
    await engine.commit(changes.start(push=secret))
    assert "hush" not in repr(await entry_of(engine)) + repr(changes.move(push=secret))


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_tables_from_before_the_outbox_are_upgraded(
    store: str, tmp_path: Path, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables: Any = sqlite_schema if store == "sqlite" else postgres_schema
    url = f"sqlite:///{tmp_path / 'tasks.db'}" if store == "sqlite" else own_schema(tmp_path)
    first, *later = tables.migrations()
    with monkeypatch.context() as patch:
        patch.setattr(tables, "migrations", lambda: [first])
        made = engine_from_url(url).schema
        assert made is not None
        await made.upgrade()
    upgraded = engine_from_url(url).schema
    assert upgraded is not None
    assert await upgraded.upgrade() == (first[0], later[-1][0])
    engine = engine_from_url(url)
    engine.clock = clock
    async with engine:
        await engine.commit(changes.start(push=config()))
        assert len(await claim(engine, clock)) == 1
