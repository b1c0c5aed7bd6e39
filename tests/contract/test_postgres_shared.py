"""Several engines on one database, in this process and in others: they see each other's writes and never undo them."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import errands
from errands.engines.base import Retention
from errands.engines.postgres import PostgresEngine, reading
from errands.engines.postgres.watching import Watching
from errands.errors import ConcurrencyError, DuplicateMessageError, LeaseLostError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import Lease, LeaseSignal
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect, log_of, text_in
from tests.postgres import own_schema, url_for

pytestmark = pytest.mark.anyio

Pair = tuple[PostgresEngine, PostgresEngine]

#: Nobody polls while a test runs: what is heard was told.
NEVER = 3600.0


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_for(tmp_path)


async def listening(engine: PostgresEngine) -> None:
    assert engine._watching is not None
    await engine._watching.is_listening.wait()


@pytest.fixture
async def pair(url: str, clock: ManualClock) -> AsyncIterator[Pair]:
    async with (
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await listening(one)
        await listening(other)
        yield one, other


async def test_what_one_writes_the_other_reads(pair: Pair, changes: Changes) -> None:
    one, other = pair
    await one.commit(changes.start())
    assert await other.commit(changes.chunk(text="from the other", fence=1)) == 3
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

    async def write(engine: PostgresEngine) -> None:
        for _ in range(100):
            await engine.commit(changes.chunk())

    await asyncio.gather(write(one), write(other))
    for seen in await reading:
        assert seen == list(range(3, 203))
    for subscription in subscriptions:
        subscription.close()


async def test_many_subscribers_of_one_task_cost_one_read(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    await one.commit(changes.start())
    subscriptions = [one.subscribe("t", ME, 2) for _ in range(50)]
    await marked(one)
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 3) for subscription in subscriptions)):
        assert seen == [3]
    reads: list[int] = []
    whole = reading.read

    async def counted(connection: object, task_id: str, scope: object, after: int, limit: int) -> object:
        reads.append(after)
        return await whole(connection, task_id, ME, after, limit)

    monkeypatch.setattr(reading, "read", counted)
    await other.commit(changes.chunk())
    for seen in await asyncio.gather(*(collect(subscription, 4) for subscription in subscriptions)):
        assert seen == [4]
    assert reads == []
    for subscription in subscriptions:
        subscription.close()


async def marked(engine: PostgresEngine) -> None:
    """Until the others know that this engine has readers of the task."""
    assert engine._watching is not None
    while "t" not in engine._watching._seen:
        await asyncio.sleep(0)


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
        version = await one.commit(changes.start())
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


async def test_nobody_is_told_of_a_task_that_only_its_writer_watches(
    pair: Pair, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = pair
    woken = asyncio.Event()
    other.on_work(woken.set)
    heard: list[str] = []
    assert other._watching is not None
    monkeypatch.setattr(other._watching, "_follow", lambda task_id, before: heard.append(task_id))
    with one.expect("t", ME, TERMINAL_STATES) as expectation:
        await one.commit(changes.start())
        await one.commit(changes.complete(fence=1))
        assert await expectation.wait(2, None)
    watched = other.subscribe("t", ME, 3)
    # The next note that comes is about work, so none about the task came before it.
    await one.commit(changes.create("next"))
    await woken.wait()
    assert heard == []
    watched.close()


async def test_a_lost_note_is_made_up_for_by_the_next_look(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Watching, "_hear", lambda *_: None)
    async with (
        PostgresEngine(url, clock=clock, poll_interval=0.02) as one,
        PostgresEngine(url, clock=clock, poll_interval=NEVER) as other,
    ):
        await listening(one)
        woken = asyncio.Event()
        one.on_work(woken.set)
        await one.commit(changes.start())
        subscription = one.subscribe("t", ME, 2, caught_up=True)
        await other.commit(changes.chunk())
        assert await collect(subscription, 3) == [3]
        await other.commit(changes.create("work", due_at=clock() + 1))
        clock.advance(1)
        woken.clear()
        await woken.wait()
        subscription.close()


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
        assert sorted(map(type, results), key=str) == [DuplicateMessageError] * 5 + [int]


async def test_of_the_same_task_created_in_both_at_once_one_wins(pair: Pair, changes: Changes) -> None:
    for number in range(20):
        results = await asyncio.gather(
            *(engine.commit(changes.create(f"t{number}")) for engine in pair * 3), return_exceptions=True
        )
        assert sorted(map(type, results), key=str) == [ConcurrencyError] * 5 + [int]


async def test_batches_over_the_same_tasks_never_wait_for_each_other_for_ever(pair: Pair, changes: Changes) -> None:
    names = [f"t{number}" for number in range(20)]
    await asyncio.gather(*(pair[0].commit(changes.start(name)) for name in names))

    async def write(engine: PostgresEngine, order: list[str]) -> None:
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


async def test_one_at_a_time_sweeps(url: str, changes: Changes, clock: ManualClock) -> None:
    keep = Retention(ended_after=0)
    async with (
        PostgresEngine(url, clock=clock, retention=keep) as one,
        PostgresEngine(url, clock=clock, retention=keep) as other,
    ):
        await one.commit(changes.start())
        await one.commit(changes.complete())
        clock.advance(1)
        async with sweeping(one):
            assert await other.sweep() == 0
        assert await other.sweep() == 1


@asynccontextmanager
async def sweeping(engine: PostgresEngine) -> AsyncIterator[None]:
    """Somebody is at it and takes long."""
    assert engine._readers is not None
    async with engine._readers.connection() as connection:
        assert await connection.fetchval(
            "SELECT pg_try_advisory_lock(hashtext('errands sweep ' || current_schema()), 1)"
        )
        yield
        await connection.fetchval("SELECT pg_advisory_unlock_all()")


#: A process of its own: appends to the shared task, creates tasks, claims some, says what it got, and does as told.
PROCESS = """
import asyncio, json, sys
from errands.engines.postgres import PostgresEngine
from tests.contract.changes import AGENT, LEASE_MS, ME, Changes, ManualClock

async def main(url, name, then):
    clock = ManualClock()
    changes = Changes(clock)
    async with PostgresEngine(url, clock=clock) as engine:
        await asyncio.gather(engine.commit(changes.start("shared")), return_exceptions=True)
        versions = []
        for number in range(30):
            versions.append(await engine.commit(changes.chunk("shared", f"{name}:{number};")))
            await engine.commit(changes.create(f"{name}-{number}"))
        claimed = []
        while share := await engine.claim(name, [AGENT], 4, clock() + LEASE_MS):
            claimed += [stored.task.id for stored in share]
        if then == "complete":
            await engine.commit(changes.complete("shared"))
        if then == "cancel":
            await engine.commit(changes.cancel("held"))
        print(json.dumps([versions, claimed]), flush=True)
        if then == "wait":
            await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


async def start_process(url: str, name: str, then: str = "") -> asyncio.subprocess.Process:
    roots = [str(Path(errands.__file__).parents[1]), str(Path(__file__).parents[2])]
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROCESS,
        url,
        name,
        then,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(roots)},
    )


async def run_process(url: str, name: str, then: str = "") -> tuple[list[int], list[str]]:
    process = await start_process(url, name, then)
    output, _ = await process.communicate()
    assert process.returncode == 0
    versions, claimed = json.loads(output)
    return versions, claimed


async def test_processes_that_make_the_tables_together_share_them(tmp_path: Path, clock: ManualClock) -> None:
    url = own_schema(tmp_path)
    names = ["a", "b", "c", "d"]
    results = await asyncio.gather(*(run_process(url, name) for name in names))
    versions = sorted(version for written, _ in results for version in written)
    assert versions == list(range(3, 3 + 30 * len(names)))
    claimed = [task_id for _, share in results for task_id in share]
    assert len(claimed) == len(set(claimed))
    async with PostgresEngine(url, clock=clock) as engine:
        log = await log_of(engine, "shared")
        assert [event.version for event in log] == list(range(1, versions[-1] + 1))
        text = text_in(await engine.load("shared", ME))
    for name in names:
        pieces = [piece for piece in text.split(";") if piece.startswith(f"{name}:")]
        assert pieces == [f"{name}:{number}" for number in range(30)]


async def test_a_subscriber_follows_what_another_process_writes(url: str, clock: ManualClock) -> None:
    async with PostgresEngine(url, clock=clock, poll_interval=NEVER) as engine:
        await engine.commit(Changes(clock).start("shared"))
        subscription = engine.subscribe("shared", ME, 2)
        reading = asyncio.ensure_future(collect(subscription, 32))
        await run_process(url, "writer")
        assert await reading == list(range(3, 33))
        subscription.close()


async def test_an_expectation_is_fulfilled_by_another_process(url: str, clock: ManualClock) -> None:
    async with PostgresEngine(url, clock=clock, poll_interval=NEVER) as engine:
        with engine.expect("shared", ME, TERMINAL_STATES) as expectation:
            await engine.commit(Changes(clock).start("shared"))
            await run_process(url, "writer", "complete")
            stored = await expectation.wait(2, None)
        assert stored is not None
        assert stored.state is TaskState.COMPLETED


async def test_a_cancel_of_another_process_reaches_the_holder(url: str, clock: ManualClock) -> None:
    async with PostgresEngine(url, clock=clock, poll_interval=NEVER) as engine:
        await listening(engine)
        await engine.commit(Changes(clock).start("held"))
        woken = asyncio.Event()
        process = asyncio.ensure_future(run_process(url, "canceler", "cancel"))
        engine.on_work(woken.set)
        await process
        await woken.wait()
        assert await engine.wanted_canceled(WORKER) == ["held"]


async def test_what_a_killed_process_had_claimed_is_claimed_again(url: str, clock: ManualClock) -> None:
    process = await start_process(url, "killed", "wait")
    assert process.stdout is not None
    _, claimed = json.loads(await process.stdout.readline())
    process.kill()
    await process.wait()
    async with PostgresEngine(url, clock=clock) as engine:
        assert await engine.claim("heir", [AGENT], 100, clock() + LEASE_MS) == []
        clock.advance(LEASE_MS)
        inherited = await engine.claim("heir", [AGENT], 100, clock() + LEASE_MS)
        assert {stored.task.id for stored in inherited} == {*claimed, "shared"}
        assert {stored.head.attempt for stored in inherited} == {2}
