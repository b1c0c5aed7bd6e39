"""The `Broker`: who may claim what, in which order, and what a holder hears."""

from __future__ import annotations

import asyncio

import pytest

from errands.engines.base import Engine
from errands.errors import LeaseLostError
from errands.model.core import TaskState
from errands.model.log import Lease, LeaseSignal, StoredTask, Work
from tests.contract.changes import (
    AGENT,
    LEASE_MS,
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    WORKER,
    Changes,
    ManualClock,
    context_of,
    text_in,
)
from tests.waiting import happens

pytestmark = pytest.mark.anyio


def ids(claimed: list[StoredTask]) -> list[str]:
    return [stored.task.id for stored in claimed]


async def claim(engine: Engine, clock: ManualClock, limit: int = 100, worker: str = WORKER) -> list[StoredTask]:
    return await engine.claim(worker, [AGENT], limit, clock() + LEASE_MS)


async def test_a_ready_task_is_claimed_with_all_that_it_holds(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create(scope=OTHER_TENANT))
    await engine.commit(changes.chunk(text="so far", scope=OTHER_TENANT))
    (claimed,) = await claim(engine, clock)
    assert claimed == await engine.load("t", OTHER_TENANT)
    assert (claimed.scope, claimed.version, text_in(claimed)) == (OTHER_TENANT, 2, "so far")
    assert (claimed.head.worker, claimed.head.attempt, claimed.head.due_at) == (WORKER, 1, clock() + LEASE_MS)


async def test_claiming_changes_neither_the_version_nor_the_state(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create())
    (claimed,) = await claim(engine, clock)
    assert (claimed.version, claimed.state) == (1, TaskState.SUBMITTED)


async def test_the_longest_due_is_claimed_first(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    for task_id, due_in in (("late", 30), ("b", 20), ("early", 10), ("a", 20)):
        await engine.commit(changes.create(task_id, due_at=clock() + due_in))
    clock.advance(30)
    assert ids(await claim(engine, clock, limit=3)) == ["early", "a", "b"]
    assert ids(await claim(engine, clock, limit=3)) == ["late"]


async def test_no_more_than_the_limit_is_claimed(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    for number in range(10):
        await engine.commit(changes.create(f"t{number}"))
    assert [len(await claim(engine, clock, limit=4)) for _ in range(4)] == [4, 4, 2, 0]


async def test_a_task_is_not_claimed_before_it_is_due(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.create(due_at=clock() + 10))
    clock.advance(9)
    assert await claim(engine, clock) == []
    clock.advance(1)
    assert ids(await claim(engine, clock)) == ["t"]


async def test_an_idle_task_is_never_claimed(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    await engine.commit(changes.start("paused"))
    await engine.commit(changes.ask("paused"))
    clock.advance(10 * LEASE_MS)
    assert await claim(engine, clock) == []


async def test_only_tasks_of_the_named_agents_are_claimed(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    for agent in ("one", "two", "three"):
        await engine.commit(changes.create(f"task of {agent}", scope=ME._replace(agent=agent)))
    until = clock() + LEASE_MS
    assert await engine.claim(WORKER, ["nobody"], 10, until) == []
    assert await engine.claim(WORKER, [], 10, until) == []
    assert sorted(ids(await engine.claim(WORKER, ["one", "three"], 10, until))) == ["task of one", "task of three"]
    assert ids(await engine.claim(WORKER, ["one", "two", "three"], 10, until)) == ["task of two"]


async def test_the_order_goes_across_agents(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    for number in range(6):
        await engine.commit(
            changes.create(f"t{number}", scope=ME._replace(agent=f"agent {number % 2}"), due_at=clock() + number)
        )
    clock.advance(10)
    claimed = await engine.claim(WORKER, ["agent 1", "agent 0"], 4, clock() + LEASE_MS)
    assert ids(claimed) == ["t0", "t1", "t2", "t3"]


async def test_a_leased_task_is_not_claimed_until_its_lease_runs_out(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS - 1)
    assert await claim(engine, clock, worker="another") == []
    clock.advance(1)
    (claimed,) = await claim(engine, clock, worker="another")
    assert (claimed.head.worker, claimed.head.attempt) == ("another", 2)


async def test_an_old_task_with_a_living_holder_is_never_due(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    for _ in range(100):
        clock.advance(LEASE_MS - 1)
        assert await engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == []
        assert await claim(engine, clock, worker="another") == []


async def test_every_claim_raises_the_attempt(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.create())
    for attempt in range(1, 6):
        (claimed,) = await claim(engine, clock)
        assert claimed.head.attempt == attempt
        clock.advance(LEASE_MS)


async def test_the_former_holder_is_refused_from_the_claim_on(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS)
    # The same worker, even: what counts is the attempt.
    await claim(engine, clock)
    with pytest.raises(LeaseLostError):
        await engine.commit(changes.complete(fence=1))
    assert (await engine.commit(changes.complete(fence=2))).version == 3


async def test_concurrent_claimers_never_get_the_same_task(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await asyncio.gather(*(engine.commit(changes.create(f"t{number}")) for number in range(200)))
    shares = await asyncio.gather(*(claim(engine, clock, limit=7, worker=f"worker {n}") for n in range(40)))
    claimed = [task_id for share in shares for task_id in ids(share)]
    assert sorted(claimed) == sorted(f"t{number}" for number in range(200))
    for worker, share in enumerate(shares):
        assert all(stored.head.worker == f"worker {worker}" for stored in share)


async def test_a_claim_sees_what_was_committed_before_it(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    created = asyncio.ensure_future(engine.commit(changes.create()))
    await asyncio.sleep(0)
    claimed = await claim(engine, clock)
    await created
    assert ids(claimed) == ["t"]


async def test_a_fine_lease_gives_no_signal(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    until = clock() + 5 * LEASE_MS
    assert await engine.extend(WORKER, [Lease("t", 1)], until) == []
    assert (await engine.load("t", ME)).head.due_at == until


async def test_a_lease_that_ran_out_but_was_not_taken_over_is_extended(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(2 * LEASE_MS)
    assert await engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == []
    assert await claim(engine, clock, worker="another") == []
    assert (await engine.commit(changes.chunk(fence=1))).version == 3


async def test_lost_leases_are_told_apart_from_fine_ones(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    for task_id in ("fine", "taken over", "ended"):
        await engine.commit(changes.start(task_id))
    await engine.commit(changes.complete("ended"))
    await engine.commit(changes.move("taken over", work=Work.READY, due_at=clock()))
    await claim(engine, clock, worker="another")
    leases = [Lease(task_id, 1) for task_id in ("fine", "taken over", "ended", "never there")]
    assert await engine.extend(WORKER, leases, clock() + 2 * LEASE_MS) == [
        LeaseSignal(task_id, lost=True, cancel_requested=False) for task_id in ("taken over", "ended", "never there")
    ]
    assert (await engine.load("taken over", ME)).head.due_at == clock() + LEASE_MS


async def test_another_workers_lease_is_not_mine_to_extend(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    assert await engine.extend("another", [Lease("t", 1)], clock() + LEASE_MS) == [
        LeaseSignal("t", lost=True, cancel_requested=False)
    ]


async def test_an_earlier_attempt_of_the_same_worker_is_lost(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS)
    await claim(engine, clock)
    assert await engine.extend(WORKER, [Lease("t", 1), Lease("t", 2)], clock() + LEASE_MS) == [
        LeaseSignal("t", lost=True, cancel_requested=False)
    ]


async def test_an_earlier_attempt_does_not_extend_the_later_one(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS)
    (claimed,) = await claim(engine, clock)
    await engine.extend(WORKER, [Lease("t", 1)], clock() + 9 * LEASE_MS)
    assert (await engine.load("t", ME)).head == claimed.head


async def test_a_wanted_cancel_is_signaled_and_the_lease_extended(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.cancel())
    until = clock() + 2 * LEASE_MS
    assert await engine.extend(WORKER, [Lease("t", 1)], until) == [LeaseSignal("t", lost=False, cancel_requested=True)]
    assert (await engine.load("t", ME)).head.due_at == until


async def test_extending_nothing_is_allowed(engine: Engine, clock: ManualClock) -> None:
    assert await engine.extend(WORKER, [], clock() + LEASE_MS) == []


async def test_many_leases_are_extended_at_once(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await asyncio.gather(*(engine.commit(changes.start(f"t{number}")) for number in range(300)))
    leases = [Lease(f"t{number}", 1) for number in range(300)]
    clock.advance(LEASE_MS)
    assert await engine.extend(WORKER, leases, clock() + LEASE_MS) == []
    assert await claim(engine, clock) == []


async def test_workers_are_woken_when_a_task_becomes_ready(engine: Engine, changes: Changes) -> None:
    woken = asyncio.Event()
    engine.on_work(woken.set)
    await engine.commit(changes.create())
    await happens(woken)


async def test_workers_are_woken_when_a_cancel_is_wanted(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    woken = asyncio.Event()
    engine.on_work(woken.set)
    await engine.commit(changes.cancel())
    await happens(woken)


async def test_every_worker_of_the_process_is_woken(engine: Engine, changes: Changes) -> None:
    woken = [asyncio.Event(), asyncio.Event()]
    for event in woken:
        engine.on_work(event.set)
    await engine.commit(changes.create())
    await happens(*woken)


async def test_a_worker_learns_which_of_its_tasks_are_wanted_canceled(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    for task_id in ("wanted", "not wanted", "ended"):
        await engine.commit(changes.start(task_id))
    await engine.commit(changes.start("somebody else's", worker="another"))
    for task_id in ("wanted", "ended", "somebody else's"):
        await engine.commit(changes.cancel(task_id))
    await engine.commit(changes.complete("ended", work=Work.IDLE))
    assert await engine.wanted_canceled(WORKER) == ["wanted"]


async def test_what_runs_is_what_is_leased_now_by_whoever_and_for_whichever_agent(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create("ready"))
    await engine.commit(changes.start("mine"))
    clock.advance(1)
    await engine.commit(changes.start("theirs", scope=OTHER_AGENT, worker="another worker"))
    await engine.commit(changes.start("ended"))
    await engine.commit(changes.complete("ended"))
    mine, theirs = await engine.running()
    assert (mine.task_id, mine.context_id, mine.scope) == ("mine", context_of("mine"), ME)
    assert mine.head == (await engine.load("mine", ME)).head
    assert (theirs.task_id, theirs.scope, theirs.head.worker) == ("theirs", OTHER_AGENT, "another worker")


async def test_a_task_whose_lease_has_run_out_does_not_run_until_it_is_claimed(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    clock.advance(LEASE_MS)
    assert await engine.running() == []
    await claim(engine, clock)
    assert [task.head.attempt for task in await engine.running()] == [2]


async def test_a_paused_task_that_is_held_runs(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.status("t", TaskState.AUTH_REQUIRED, fence=1))
    assert [task.head.state for task in await engine.running()] == [TaskState.AUTH_REQUIRED]
    await engine.commit(changes.move(fence=1, work=Work.IDLE, unread=-1))
    assert await engine.running() == []


async def test_the_age_of_the_queue_is_how_long_the_longest_due_task_has_waited(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    assert await engine.queue_age([AGENT]) is None
    await engine.commit(changes.create("first"))
    clock.advance(400)
    await engine.commit(changes.create("second"))
    clock.advance(100)
    assert await engine.queue_age([AGENT]) == 500
    await claim(engine, clock, limit=1)
    assert await engine.queue_age([AGENT]) == 100
    await claim(engine, clock)
    assert await engine.queue_age([AGENT]) is None


async def test_a_task_whose_lease_has_run_out_waits_since_then(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(due_at=clock.now + 1000))
    clock.advance(1000)
    assert await engine.queue_age([AGENT]) == 0
    clock.advance(700)
    assert await engine.queue_age([AGENT]) == 700


async def test_a_task_that_is_not_due_yet_makes_the_queue_no_older(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create(due_at=clock.now + 1000))
    assert await engine.queue_age([AGENT]) is None


async def test_the_queue_of_another_agent_is_none_of_ours(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.create("theirs", scope=OTHER_AGENT))
    clock.advance(300)
    await engine.commit(changes.create("ours"))
    clock.advance(100)
    assert await engine.queue_age([AGENT]) == 100
    assert await engine.queue_age([OTHER_AGENT.agent]) == 400
    assert await engine.queue_age([OTHER_AGENT.agent, AGENT]) == 400
    assert await engine.queue_age(["nobody"]) is None


async def test_a_try_that_was_given_back_is_told_from_one_that_was_lost_until_the_turn_ends(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.move(fence=1, work=Work.READY, due_at=clock(), gives_back=True))
    (again,) = await claim(engine, clock)
    assert (again.head.attempt, again.head.attempt_base, again.head.given_back) == (2, 0, 1)
    clock.advance(LEASE_MS)
    (lost,) = await claim(engine, clock)
    assert (lost.head.attempt, lost.head.attempt_base, lost.head.given_back) == (3, 0, 1)
    await engine.commit(changes.ask(fence=3))
    ended = (await engine.load("t", ME)).head
    assert (ended.attempt, ended.attempt_base, ended.given_back) == (3, 3, 0)
