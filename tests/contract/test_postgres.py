"""What the PostgreSQL engine promises beyond the port: group commit, texts of any kind, few connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from errands.engines.base import Retention
from errands.engines.postgres import PostgresEngine, connection, retention
from errands.engines.postgres.connection import MIN_POOL_SIZE, connect
from errands.errors import ConfigurationError, DuplicateMessageError
from errands.model.core import TaskState
from errands.model.log import Head, Lease, ListQuery, Scope
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, context_of, versions
from tests.postgres import shared_server, url_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_for(tmp_path)


@pytest.fixture
async def engine(url: str, clock: ManualClock) -> AsyncIterator[PostgresEngine]:
    async with PostgresEngine(url, clock=clock) as engine:
        yield engine


async def ask(engine: PostgresEngine, query: str) -> list[Any]:
    """The rows that a connection of its own sees."""
    asking = await asyncpg.connect(shared_server().url())
    try:
        await asking.execute(f'SET search_path TO "{engine._options.schema}"')
        return [tuple(row) for row in await asking.fetch(query)]
    finally:
        await asking.close()


async def test_every_field_of_a_head_has_its_column(engine: PostgresEngine) -> None:
    schema = engine._options.schema
    columns = await ask(
        engine,
        f"SELECT column_name FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name = 'tasks'",
    )
    assert set(Head.__struct_fields__) <= {name for (name,) in columns}


async def test_many_commits_share_few_transactions(engine: PostgresEngine, changes: Changes) -> None:
    before = engine.parts.store.transactions
    await asyncio.gather(*(engine.commit(changes.start(f"t{number}")) for number in range(400)))
    assert engine.parts.store.transactions - before <= 2


async def test_contexts_are_saved_in_the_transaction_of_the_changes_beside_them(
    engine: PostgresEngine, changes: Changes
) -> None:
    before = engine.parts.store.transactions
    await asyncio.gather(
        *(engine.commit(changes.start(f"t{number}")) for number in range(20)),
        *(engine.commit(changes.start(f"u{number}", context=b"value")) for number in range(20)),
    )
    assert engine.parts.store.transactions - before <= 2
    assert await engine.load_context(ME, "context of u19") == b"value"


async def test_work_on_one_task_is_done_in_the_order_it_was_asked_for(
    engine: PostgresEngine, changes: Changes, clock: ManualClock
) -> None:
    results = await asyncio.gather(
        engine.commit(changes.create()),
        engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS),
        engine.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS),
    )
    assert [stored.task.id for stored in results[1]] == ["t"]
    assert results[2] == []
    ended = await asyncio.gather(
        engine.commit(changes.working(fence=1)),
        engine.commit(changes.complete(fence=1)),
        engine.delete("t", ME),
        engine.commit(changes.create()),
    )
    assert versions(ended) == [2, 3, None, 1]
    assert (await engine.load("t", ME)).state is TaskState.SUBMITTED


ODD = ["with \0 in it", "\x1a", "\x1a0\0\x1a1", "käse 🧀", ""]


@pytest.mark.parametrize("text", ODD)
async def test_texts_of_any_kind_come_back_as_they_were(
    engine: PostgresEngine, changes: Changes, clock: ManualClock, text: str
) -> None:
    scope = Scope(text, text, text)
    await engine.commit(changes.start(f"t{text}", scope=scope, context_id=text, worker=text))
    await engine.commit(changes.move(f"t{text}", scope=scope, context=b"value"))
    assert (await engine.load(f"t{text}", scope)).scope == scope
    assert (await engine.list(ListQuery(scope=scope, context_id=text))).total_size == 1
    assert await engine.load_context(scope, text) == b"value"
    assert await engine.extend(text, [Lease(f"t{text}", 1)], clock() + 1) == []
    await engine.commit(changes.cancel(f"t{text}", scope=scope))
    assert await engine.wanted_canceled(text) == [f"t{text}"]
    clock.advance(LEASE_MS)
    (claimed,) = await engine.claim("another", [text], 1, clock() + 1)
    assert (claimed.task.id, claimed.scope) == (f"t{text}", scope)


async def test_what_cannot_be_a_text_is_not_found(engine: PostgresEngine) -> None:
    assert await engine.load_context(ME, "\ud800") is None
    assert (await engine.list(ListQuery(scope=ME, context_id="\ud800"))).total_size == 0
    with pytest.raises(Exception, match="not found"):
        await engine.load("\ud800", ME)
    with pytest.raises(Exception, match="not found"):
        await engine.read("\ud800", ME, 0)


async def test_a_folded_task_is_read_from_its_snapshot_alone(engine: PostgresEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk(text="kept"))
    before = await engine.load("t", ME)
    await engine.commit(changes.move(fold=before.task, expected=3))
    await ask(engine, "UPDATE events SET data = 'not even JSON' WHERE kind <> 'snapshot'")
    assert await engine.load("t", ME) == before
    assert (await engine.list(ListQuery(scope=ME, with_artifacts=True))).tasks == [before]


async def test_the_tallies_are_what_counting_would_give(
    url: str, engine: PostgresEngine, changes: Changes, clock: ManualClock
) -> None:
    async with PostgresEngine(url, clock=clock, retention=Retention(ended_after=0)) as other:
        for number in range(30):
            await (engine if number % 2 else other).commit(changes.start(f"t{number}"))
        for number in range(20):
            await (other if number % 3 else engine).commit(changes.complete(f"t{number}"))
        await engine.delete("t3", ME)
        for state, expected in ((None, 29), (TaskState.WORKING, 10), (TaskState.COMPLETED, 19)):
            assert (await engine.list(ListQuery(scope=ME, state=state, page_size=1))).total_size == expected
        clock.advance(1)
        assert await other.sweep() == 19
        assert (await engine.list(ListQuery(scope=ME))).total_size == 10


async def test_a_task_that_changes_while_a_page_is_put_together_is_no_match_any_more(
    engine: PostgresEngine, changes: Changes
) -> None:
    await engine.commit(changes.start("changes"))
    await engine.commit(changes.start("stays"))
    writing = await asyncpg.connect(shared_server().url())
    await writing.execute(f'SET search_path TO "{engine._options.schema}"')
    # Between finding the ids and looking at the tasks, the listing waits for the total.
    await writing.execute("BEGIN; LOCK TABLE tallies IN ACCESS EXCLUSIVE MODE")
    page = asyncio.create_task(engine.list(ListQuery(scope=ME, state=TaskState.WORKING)))
    while not await writing.fetchval("SELECT 1 FROM pg_locks WHERE NOT granted AND relation = 'tallies'::regclass"):
        await asyncio.sleep(0)
    await writing.execute("UPDATE tasks SET state = 'TASK_STATE_COMPLETED' WHERE id = 'changes'; COMMIT")
    await writing.close()
    assert [stored.task.id for stored in (await page).tasks] == ["stays"]


async def test_long_logs_are_found_in_steps_however_many_tasks_there_are(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "LOOK", 3)
    async with PostgresEngine(url, clock=clock, retention=Retention(events_per_task=2)) as engine:
        for number in range(10):
            await engine.commit(changes.start(f"t{number}"))
        for name in ("t0", "t2", "t3", "t9"):
            await asyncio.gather(*(engine.commit(changes.chunk(name)) for _ in range(4)))
        await engine.sweep()
        assert await ask(engine, "SELECT id FROM tasks WHERE trimmed = 4 ORDER BY id") == [
            ("t0",),
            ("t2",),
            ("t3",),
            ("t9",),
        ]


async def test_large_changes_of_one_moment_do_not_make_one_huge_transaction(
    engine: PostgresEngine, changes: Changes
) -> None:
    await asyncio.gather(*(engine.commit(changes.start(f"t{n}")) for n in range(40)))
    before = engine.parts.store.transactions
    large = "x" * 1_000_000
    results = await asyncio.gather(*(engine.commit(changes.chunk(f"t{n}", text=large)) for n in range(40)))
    assert versions(results) == [3] * 40
    assert 4 <= engine.parts.store.transactions - before <= 10


async def test_an_engine_makes_no_more_connections_than_it_may(url: str, changes: Changes) -> None:
    name = "counted connections"
    async with PostgresEngine(f"{url}&pool_size=4&application_name={name}") as engine:
        await asyncio.gather(*(engine.commit(changes.start(f"t{n}")) for n in range(100)))
        subscriptions = [engine.subscribe(f"t{n}", ME, 0) for n in range(100)]
        await asyncio.gather(*(subscription.next() for subscription in subscriptions))
        await asyncio.gather(*(engine.load(f"t{n}", ME) for n in range(100)))
        ((count,),) = await ask(engine, f"SELECT count(*) FROM pg_stat_activity WHERE application_name = '{name}'")
        assert 2 <= count <= 4


async def test_reading_goes_on_while_the_smallest_pool_sweeps(
    url: str, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sweep waits as long as it is made to, however slow the machine is.
    patient = connection._SESSION.replace("lock_timeout TO '2s'", "lock_timeout TO 0")
    assert patient != connection._SESSION
    monkeypatch.setattr(connection, "_SESSION", patient)
    smallest = f"{url}&pool_size={MIN_POOL_SIZE}"
    async with PostgresEngine(smallest, clock=clock, retention=Retention(ended_after=0)) as engine:
        await engine.commit(changes.create("waiting"))
        await engine.commit(changes.start())
        await engine.commit(changes.complete())
        blocker = await asyncpg.connect(shared_server().url())
        # In the middle of it, the sweep waits for this.
        await blocker.execute(f'BEGIN; LOCK TABLE "{engine._options.schema}".receipts IN ACCESS EXCLUSIVE MODE')
        sweep = asyncio.create_task(engine.sweep())
        waiting = (
            f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{engine._options.schema}.receipts'::regclass"
        )
        while not await blocker.fetchval(waiting):
            await asyncio.sleep(0)
        assert await engine.wanted_canceled(WORKER) == []
        assert (await engine.load("waiting", ME)).task.id == "waiting"
        await blocker.close()
        assert await sweep == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [("pool_size=2", "pool_size"), ("pool_size=many", "pool_size"), ("schema=", "schema"), ('schema=a"b', "schema")],
)
def test_an_option_that_does_not_fit_is_refused(options: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        PostgresEngine(f"postgresql://localhost/tasks?{options}")


def test_a_password_is_never_shown() -> None:
    engine = PostgresEngine("postgresql://me:secret@localhost:5433/tasks")
    assert engine._options.name == "tasks at localhost:5433"


def test_each_of_several_hosts_may_have_a_port() -> None:
    options = PostgresEngine("postgresql://me:secret@a:5433,b:5434/tasks?target_session_attrs=primary")._options
    assert options.name == "tasks at a:5433,b:5434"
    assert options.dsn == "postgresql://me:secret@a:5433,b:5434/tasks?target_session_attrs=primary"


async def test_a_batch_that_finds_a_known_message_is_still_one_batch(engine: PostgresEngine, changes: Changes) -> None:
    await engine.commit(changes.start("first", receipt=b"digest"))
    results = await asyncio.gather(
        *(engine.commit(changes.start(f"t{n}", receipt=b"digest" if n == 3 else None)) for n in range(10)),
        engine.commit(changes.chunk("first", context_id=context_of("first"))),
        return_exceptions=True,
    )
    assert isinstance(results.pop(3), DuplicateMessageError)
    assert versions(results) == [2] * 9 + [3]


@asynccontextmanager
async def patient_connection(engine: PostgresEngine) -> AsyncIterator[Any]:
    """One that waits for others as long as it takes, and for which they do."""
    connection = await connect(engine._options._replace(command_timeout=600))
    try:
        await connection.execute("SET lock_timeout TO 0; SET idle_in_transaction_session_timeout TO 0")
        yield connection
    finally:
        connection.terminate()
