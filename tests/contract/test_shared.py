"""Several engines on one store, in this process and in others: they see each other's writes and never undo them.

Over every engine that processes can share.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from errands.engines.base import Engine
from errands.errors import ConcurrencyError, DuplicateMessageError, LeaseLostError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import Head, Lease, LeaseSignal
from tests.conftest import STORAGES
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect, log_of, text_in
from tests.contract.sharing import engine_at, hold, listening_pair, pair_at, run_process
from tests.postgres import own_schema

pytestmark = pytest.mark.anyio

Pair = tuple[Engine, Engine]
#: The engines that processes can share.
SHARED = [name for name in STORAGES if name != "memory"]


@pytest.fixture(params=SHARED)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL of each engine that processes can share."""
    return STORAGES[request.param](tmp_path)


@pytest.fixture(params=[*SHARED, "postgresql-listening"])
async def pair(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Pair]:
    """Two engines on one store; those of PostgreSQL look for news, or only listen."""
    name, _, listens = request.param.partition("-")
    opened = (listening_pair if listens else pair_at)(STORAGES[name](tmp_path), clock)
    async with opened as engines:
        yield engines


@pytest.fixture(params=SHARED)
def missing(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A storage URL where nothing is yet, not even tables."""
    return own_schema(tmp_path) if request.param == "postgresql" else STORAGES[request.param](tmp_path)


async def test_what_one_writes_the_other_reads(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    assert (await other.commit(changes.chunk(text="from the other", fence=1))).version == 3
    assert text_in(await one.load("t", ME)) == "from the other"


@pytest.mark.parametrize("caught_up", [True, False])
async def test_a_subscriber_sees_the_events_of_the_other(pair: Pair, changes: Changes, caught_up: bool) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscription = one.subscribe("t", ME, 2, caught_up=caught_up)
    reading = asyncio.ensure_future(collect(subscription, 12))
    for _ in range(10):
        await other.commit(changes.chunk())
    assert await reading == list(range(3, 13))
    subscription.close()


async def test_a_subscriber_sees_events_of_both_once_and_in_order(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscriptions = [engine.subscribe("t", ME, 2) for engine in pair * 2]
    reading = asyncio.gather(*(collect(subscription, 202) for subscription in subscriptions))

    async def write(engine: Engine) -> None:
        for _ in range(100):
            await engine.commit(changes.chunk())

    await asyncio.gather(write(one), write(other))
    for seen in await reading:
        assert seen == list(range(3, 203))
    for subscription in subscriptions:
        subscription.close()


async def test_a_waiter_hears_that_the_other_ended_the_task(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    waiting = asyncio.ensure_future(one.wait_for_state("t", ME, TERMINAL_STATES, None))
    await asyncio.sleep(0)
    await other.commit(changes.complete(fence=1))
    assert (await waiting).state is TaskState.COMPLETED


async def test_an_expectation_is_fulfilled_by_the_other(pair: Pair, changes: Changes) -> None:
    one, other = pair
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        version = (await one.commit(changes.start())).version
        await other.commit(changes.complete(fence=1))
        stored = await expectation.wait(version, None)
    assert stored is not None
    assert stored.version == 3


async def test_an_expectation_of_a_task_that_only_the_other_writes_is_fulfilled(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await other.commit(changes.start())
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await asyncio.sleep(0)
        await other.commit(changes.chunk())
        await other.commit(changes.complete(fence=1))
        stored = await waiting
    assert stored is not None
    assert stored.version == 4


async def test_workers_are_woken_by_the_others_task(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    one, other = pair
    woken = asyncio.Event()
    one.on_work(woken.set)
    await other.commit(changes.create())
    await woken.wait()
    assert [stored.task.id for stored in await one.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)] == ["t"]


async def test_a_holder_learns_of_the_others_cancel(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    one, other = pair
    await one.commit(changes.start())
    woken = asyncio.Event()
    one.on_work(woken.set)
    await other.commit(changes.cancel())
    await woken.wait()
    assert await one.wanted_canceled(WORKER) == ["t"]
    assert await one.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS) == [
        LeaseSignal("t", lost=False, cancel_requested=True)
    ]


async def test_guards_hold_between_the_two(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    one, other = pair
    await one.commit(changes.start(receipt=b"digest"))
    with pytest.raises(DuplicateMessageError):
        await other.commit(changes.create("again", receipt=b"digest"))
    with pytest.raises(ConcurrencyError):
        await other.commit(changes.start())
    clock.advance(LEASE_MS)
    await other.claim("another", [AGENT], 1, clock() + LEASE_MS)
    with pytest.raises(LeaseLostError):
        await one.commit(changes.chunk(fence=1))


async def test_of_the_same_message_sent_to_both_at_once_one_is_accepted(pair: Pair, changes: Changes) -> None:
    for number in range(20):
        receipt = b"%d" % number
        results = await asyncio.gather(
            *(pair[n % 2].commit(changes.create(f"{number}-{n}", receipt=receipt)) for n in range(6)),
            return_exceptions=True,
        )
        assert sorted(map(type, results), key=str) == [DuplicateMessageError] * 5 + [Head]


async def test_of_the_same_task_created_in_both_at_once_one_wins(pair: Pair, changes: Changes) -> None:
    for number in range(20):
        results = await asyncio.gather(
            *(engine.commit(changes.create(f"t{number}")) for engine in pair * 3), return_exceptions=True
        )
        assert sorted(map(type, results), key=str) == [ConcurrencyError] * 5 + [Head]


async def test_batches_over_the_same_tasks_never_wait_for_each_other_for_ever(pair: Pair, changes: Changes) -> None:
    names = [f"t{number}" for number in range(20)]
    await asyncio.gather(*(pair[0].commit(changes.start(name)) for name in names))

    async def write(engine: Engine, order: list[str]) -> None:
        for _ in range(10):
            await asyncio.gather(*(engine.commit(changes.chunk(name)) for name in order))

    await asyncio.gather(write(pair[0], names), write(pair[1], names[::-1]))
    assert {(await pair[0].load(name, ME)).version for name in names} == {22}


async def test_the_two_never_claim_the_same_task(pair: Pair, changes: Changes, clock: ManualClock) -> None:
    await asyncio.gather(*(pair[number % 2].commit(changes.create(f"t{number}")) for number in range(100)))
    shares = await asyncio.gather(
        *(engine.claim(f"worker {n}", [AGENT], 3, clock() + LEASE_MS) for n in range(20) for engine in pair)
    )
    claimed = [stored.task.id for share in shares for stored in share]
    assert len(claimed) == len(set(claimed))
    rest = await pair[0].claim("the last", [AGENT], 100, clock() + LEASE_MS)
    assert sorted(claimed + [stored.task.id for stored in rest]) == sorted(f"t{number}" for number in range(100))


async def test_who_watches_another_task_is_left_in_peace(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start("watched"))
    await one.commit(changes.start("busy"))
    watched, busy = one.subscribe("watched", ME, 2), one.subscribe("busy", ME, 2)
    for version in range(3, 8):
        await other.commit(changes.chunk("busy"))
        assert await collect(busy, version) == [version]
    assert await watched.next(timeout=0.01) == []
    watched.close()
    busy.close()


async def test_processes_that_create_the_store_together_share_it(missing: str, clock: ManualClock) -> None:
    names = ["a", "b", "c", "d"]
    results = await asyncio.gather(*(run_process(missing, name) for name in names))
    versions = sorted(version for written, _ in results for version in written)
    assert versions == list(range(3, 3 + 30 * len(names)))
    claimed = sorted(task_id for _, share in results for task_id in share)
    assert claimed == sorted(f"{name}-{number}" for name in names for number in range(30))
    async with engine_at(missing, clock) as engine:
        log = await log_of(engine, "shared")
        assert [event.version for event in log] == list(range(1, versions[-1] + 1))
        text = text_in(await engine.load("shared", ME))
    for name in names:
        pieces = [piece for piece in text.split(";") if piece.startswith(f"{name}:")]
        assert pieces == [f"{name}:{number}" for number in range(30)]


async def test_a_subscriber_follows_what_another_process_writes(url: str, clock: ManualClock) -> None:
    async with engine_at(url, clock) as engine:
        await engine.commit(Changes(clock).start("shared"))
        subscription = engine.subscribe("shared", ME, 2)
        reading = asyncio.ensure_future(collect(subscription, 32))
        await run_process(url, "writer")
        assert await reading == list(range(3, 33))
        subscription.close()


async def test_a_cancel_reaches_the_process_that_works_and_its_end_the_one_that_waits(
    url: str, clock: ManualClock
) -> None:
    changes = Changes(clock)
    async with engine_at(url, clock) as engine:
        await engine.commit(changes.create())
        process = await hold(url)
        waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None))
        await engine.commit(changes.cancel())
        assert (await waiting).state is TaskState.CANCELED
        assert await process.wait() == 0


async def test_what_a_killed_process_held_is_claimed_again_and_its_late_writes_are_refused(
    url: str, clock: ManualClock
) -> None:
    changes = Changes(clock)
    async with engine_at(url, clock) as engine:
        await engine.commit(changes.create())
        process = await hold(url)
        process.kill()
        await process.wait()
        assert await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS) == []
        clock.advance(LEASE_MS)
        (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
        assert (stored.head.attempt, stored.state) == (2, TaskState.WORKING)
        with pytest.raises(LeaseLostError):
            await engine.commit(changes.chunk(fence=1))
        assert (await engine.commit(changes.complete(fence=2))).version == 3
