"""What a PostgreSQL can be like: behind a pooler, short of connections, just failed over, with rights kept apart."""

from __future__ import annotations

import asyncio
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from errands.engines.base import Retention
from errands.engines.postgres import PostgresEngine
from errands.errors import StorageError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, versions, whole_life
from tests.contract.health import trouble_of
from tests.postgres import administering, own_database, own_schema, shared_server

pytestmark = pytest.mark.anyio


# Poolers


class Pooler:
    """Gives the one connection that it has to whoever begins a transaction, as PgBouncer does in transaction mode.

    Newer poolers look after prepared statements, so that at first everything seems to work: `forgets` is like those.
    """

    def __init__(self, target: Path, *, forgets: bool) -> None:
        self._target = target
        self._forgets = forgets
        self._turn = asyncio.Lock()
        self._greeting = b""
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self, folder: str) -> None:
        self._server = await asyncio.start_unix_server(self._welcome, f"{folder}/.s.PGSQL.5432")

    async def stop(self) -> None:
        self._server.close()
        self._up.close()
        for client in self._clients:
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)

    def _welcome(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            size = await reader.readexactly(4)
            startup = size + await reader.readexactly(int.from_bytes(size, "big") - 4)
            async with self._turn:
                if not self._greeting:
                    self._down, self._up = await asyncio.open_unix_connection(self._target / ".s.PGSQL.5432")
                    self._greeting = b"".join(await self._ask(startup))
            writer.write(self._greeting)
            while (asked := await _read(reader))[:1] != b"X":
                async with self._turn:
                    await self._transaction(asked, reader, writer)
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            writer.close()

    async def _transaction(self, asked: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._forgets:
            await self._ask(_message(b"Q", b"DEALLOCATE ALL\0"))
        self._up.write(asked)
        asking = asyncio.create_task(_read(reader))
        hearing = asyncio.create_task(_read(self._down))
        said = b""
        # It is over when the server is ready for another one, and the client has said nothing more.
        while not said.endswith(b"Z\0\0\0\5I"):
            done, _ = await asyncio.wait({asking, hearing}, return_when=asyncio.FIRST_COMPLETED)
            if asking in done:
                self._up.write(asking.result())
                asking = asyncio.create_task(_read(reader))
            if hearing in done:
                said = hearing.result()
                writer.write(said)
                hearing = asyncio.create_task(_read(self._down))
        # Neither has begun to read: what they wait for comes after the transaction.
        asking.cancel()
        hearing.cancel()
        await asyncio.wait({asking, hearing})

    async def _ask(self, asked: bytes) -> list[bytes]:
        """All that the server says until it is ready for more."""
        self._up.write(asked)
        said = [await _read(self._down)]
        while said[-1][:1] != b"Z":
            said.append(await _read(self._down))
        return said


async def _read(reader: asyncio.StreamReader) -> bytes:
    kind = await reader.readexactly(1)
    size = await reader.readexactly(4)
    return kind + size + await reader.readexactly(int.from_bytes(size, "big") - 4)


def _message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


@pytest.mark.parametrize("forgets", [False, True], ids=["plain", "with prepared statements"])
async def test_a_pooler_in_transaction_mode_is_refused_with_what_is_needed(tmp_path: Path, forgets: bool) -> None:
    url = own_schema(tmp_path)
    target = shared_server().socket_folder
    pooler = Pooler(target, forgets=forgets)
    with tempfile.TemporaryDirectory() as folder:
        await pooler.start(folder)
        engine = PostgresEngine(url.replace(str(target), folder))
        for refused in (engine.open, engine.schema.upgrade, engine.schema.check):
            with pytest.raises(StorageError, match="pool_mode = session") as error:
                await refused()
            assert "HINT" not in str(error.value)
        await pooler.stop()
    async with administering() as admin:
        assert not await admin.fetchval(
            "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'own_%' AND $1 ~ nspname", url
        )


# Connections


async def test_who_gets_fewer_connections_than_it_may_have_works_with_those(
    changes: Changes, clock: ManualClock
) -> None:
    async with own_database() as database, administering() as admin:
        await ensure_role(admin, "modest", "CONNECTION LIMIT 5")
        await admin.execute(f"ALTER DATABASE {database} OWNER TO modest")
        async with PostgresEngine(shared_server().url("modest", database), clock=clock) as engine:
            claimed = 0
            for number in range(10):
                names = [f"{number} {each}" for each in range(40)]
                written = [asyncio.ensure_future(engine.commit(changes.create(name))) for name in names]
                await asyncio.sleep(0)
                # A claim is a transaction of its own, so that a second lane wants a connection.
                claimed += len(await engine.claim(WORKER, [AGENT], 40, clock() + LEASE_MS))
                assert versions(await asyncio.gather(*written)) == [1] * 40
                await asyncio.gather(*(engine.load(name, ME) for name in names))
            claimed += len(await engine.claim(WORKER, [AGENT], 400, clock() + LEASE_MS))
            assert claimed == 400
            assert await trouble_of(engine) == ""


async def test_who_gets_no_connection_at_all_is_told_what_to_do(changes: Changes, clock: ManualClock) -> None:
    async with own_database() as database, administering() as admin:
        await ensure_role(admin, "crowded", "CONNECTION LIMIT 8")
        await admin.execute("ALTER ROLE crowded CONNECTION LIMIT 8")
        await admin.execute(f"ALTER DATABASE {database} OWNER TO crowded")
        url = shared_server().url("crowded", database)
        async with PostgresEngine(url, clock=clock, patience=1.0) as engine:
            await engine.commit(changes.create("before"))
            await admin.execute("ALTER ROLE crowded CONNECTION LIMIT 0")
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database)
            # Whoever still took a broken connection for a good one might find out when its patience is over.
            while await admin.fetchval("SELECT count(*) FROM pg_stat_activity WHERE datname = $1", database):
                await asyncio.sleep(0.01)
            results = await asyncio.gather(
                *(engine.commit(changes.create(str(number))) for number in range(20)),
                engine.load("before", ME),
                return_exceptions=True,
            )
            for result in results:
                assert isinstance(result, StorageError)
                assert "has no connection left. Raise `max_connections`" in str(result)
            await admin.execute("ALTER ROLE crowded CONNECTION LIMIT 8")
            assert (await engine.commit(changes.create("0"))).version == 1


async def ensure_role(admin: Any, name: str, options: str = "") -> None:
    with suppress(asyncpg.DuplicateObjectError):
        await admin.execute(f"CREATE ROLE {name} LOGIN {options}")


# Failovers


async def test_who_was_led_to_a_standby_finds_the_primary_when_the_address_leads_there_again(
    changes: Changes, clock: ManualClock
) -> None:
    async with own_database() as database, administering() as admin:
        url = shared_server().url(database=database)
        async with PostgresEngine(url, clock=clock, poll_interval=0.05) as engine:
            await engine.commit(changes.create("before"))
            await admin.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
            await admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1", database)
            for number in range(8):
                with pytest.raises(StorageError, match="is read-only: a standby, perhaps"):
                    await engine.commit(changes.create(f"meanwhile {number}"))
            assert "is read-only: a standby, perhaps" in await trouble_of(engine)
            assert (await engine.load("before", ME)).version == 1
            await admin.execute(f"ALTER DATABASE {database} RESET default_transaction_read_only")
            for number in range(8):
                assert (await engine.commit(changes.create(f"after {number}"))).version == 1
            assert await trouble_of(engine) == ""


async def test_what_reads_is_connected_anew_when_what_listens_was(clock: ManualClock) -> None:
    async with own_database() as database, administering() as admin:
        url = shared_server().url(database=database)
        async with PostgresEngine(url, clock=clock, poll_interval=0.05) as engine:
            await engine.parts.notifications.is_listening.wait()
            before = await reading_process(engine)
            await admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = $1 AND pid <> $2",
                database,
                before,
            )
            while await reading_process(engine) == before:
                await asyncio.sleep(0.01)


async def reading_process(engine: PostgresEngine) -> int:
    """The process of the server that answers when the engine reads."""
    async with engine.readers.connection() as connection:
        pid: int = await connection.fetchval("SELECT pg_backend_pid()")
        return pid


async def test_who_waits_for_a_task_that_a_failover_has_lost_is_told(changes: Changes, clock: ManualClock) -> None:
    async with own_database() as database:
        url = shared_server().url(database=database)
        async with PostgresEngine(url, clock=clock, poll_interval=0.05) as engine:
            await engine.commit(changes.start())
            subscription = engine.subscribe("t", ME, 2)
            waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None))
            while "t" not in engine.parts.notifications._seen:
                await asyncio.sleep(0.01)
            await _execute(url, "DELETE FROM errands.tasks")
            with pytest.raises(TaskNotFoundError):
                await subscription.next()
            with pytest.raises(TaskNotFoundError):
                await waiting
            subscription.close()


# Users


async def test_a_user_with_the_rights_that_the_page_lists_can_do_everything_but_change_the_tables(
    changes: Changes, clock: ManualClock
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "scaling.md").read_text("utf-8")
    (script,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    async with own_database() as database, administering() as admin:
        for role in ("owner", "agent"):
            await ensure_role(admin, role)
        await admin.execute(f"ALTER DATABASE {database} OWNER TO owner")
        owner = await asyncpg.connect(shared_server().url("owner", database))
        await owner.execute(script)
        await owner.close()
        await PostgresEngine(shared_server().url("owner", database)).schema.upgrade()
        retention = Retention(ended_after=0.0, contexts_after=0.0, events_per_task=1)
        url = shared_server().url("agent", database)
        async with PostgresEngine(url, clock=clock, retention=retention) as engine:
            await whole_life(engine, changes, clock)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await _execute(url, "DROP TABLE errands.tasks")


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
