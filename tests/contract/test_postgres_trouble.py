"""When the database cannot be used or goes away: what happened, what to do, and that nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import asyncpg
import pytest

from errands.engines.postgres import PostgresEngine
from errands.engines.postgres.connection import PostgresOptions, connect
from errands.errors import ConfigurationError, LeaseLostError, StorageError
from errands.model.core import TERMINAL_STATES
from errands.model.log import ListQuery
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect, log_of, versions
from tests.contract.health import impatient, trouble_of, until_trouble
from tests.postgres import Server, administering, own_database, own_schema, own_server, shared_server, url_for

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return url_for(tmp_path)


async def refusal(url: str) -> str:
    """What opening says."""
    with pytest.raises(StorageError) as error:
        await PostgresEngine(url, patience=0.1).open()
    return str(error.value)


async def test_a_server_that_is_not_there_is_named_with_what_to_check() -> None:
    said = await refusal("postgresql://me:secret@localhost:1/tasks")
    assert "tasks at localhost:1 cannot be reached" in said
    assert "host and port" in said
    assert "secret" not in said


async def test_a_database_that_does_not_exist_is_named_with_how_to_create_it() -> None:
    assert "nowhere" in await refusal(shared_server().url(database="nowhere"))
    assert "createdb" in await refusal(shared_server().url(database="nowhere"))


async def test_an_option_that_the_server_does_not_know_is_refused() -> None:
    assert "no_such_setting" in await refusal(shared_server().url(no_such_setting="1"))


async def test_a_url_that_asyncpg_cannot_read_is_a_wrong_configuration() -> None:
    with pytest.raises(ConfigurationError, match="sslmode"):
        await PostgresEngine(shared_server().url(sslmode="sometimes")).open()


async def test_a_user_without_rights_is_told_which_it_needs(tmp_path: Path) -> None:
    url = own_schema(tmp_path)
    connection = await asyncpg.connect(shared_server().url())
    with suppress(asyncpg.DuplicateObjectError):
        await connection.execute("CREATE ROLE powerless LOGIN")
    await connection.close()
    assert "db upgrade" in await refusal(url.replace("postgres@", "powerless@"))


async def test_a_read_only_database_says_so(tmp_path: Path) -> None:
    said = await refusal(f"{own_schema(tmp_path)}&default_transaction_read_only=on")
    assert "read-only" in said
    assert "primary" in said


async def test_a_full_disk_is_told_and_so_is_its_end(url: str) -> None:
    async with PostgresEngine(url) as engine:
        assert await trouble_of(engine) == ""
        administrator = await connect(PostgresOptions.parse(url))
        await administrator.execute(
            """
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
            CREATE TRIGGER full_disk BEFORE INSERT ON events EXECUTE FUNCTION refuse();
            """
        )
        await until_trouble(engine, "the disk is full")
        await administrator.execute("DROP TRIGGER full_disk ON events")
        await administrator.close()
        assert await trouble_of(engine) == ""


GOODBYE = b"X\0\0\0\4"


class Proxy:
    """Stands between engines and the server, and does to their connections what networks do."""

    def __init__(self, server: Server) -> None:
        self._target = str(server.socket_folder / ".s.PGSQL.5432")
        self._folder = tempfile.TemporaryDirectory()
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()
        #: What to do to the next commit: "before" it reaches the server, "after" it was done, or nothing.
        self.cut: str | None = None
        self.cuts = 0
        #: Whether nothing gets through any more after a cut.
        self.pauses = False
        #: Whether the server hears that somebody leaves.
        self.hears_goodbyes = True
        #: How many connections the server has refused because there are too many.
        self.refusals = 0

    def through(self, url: str) -> str:
        return url.replace(str(Path(self._target).parent), self._folder.name)

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, f"{self._folder.name}/.s.PGSQL.5432")

    async def stop(self) -> None:
        self._server.close()
        self.resume()
        self.break_all()

    def pause(self) -> None:
        self._flowing.clear()

    def resume(self) -> None:
        self._flowing.set()

    def break_all(self) -> None:
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._flowing.wait()
        other_reader, other_writer = await asyncio.open_unix_connection(self._target)
        self._writers |= {writer, other_writer}
        try:
            await asyncio.gather(
                self._copy(reader, other_writer, writer), self._copy(other_reader, writer, other_writer)
            )
        finally:
            self._writers -= {writer, other_writer}

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
    ) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flowing.wait()
                if data == GOODBYE and not self.hears_goodbyes:
                    continue
                if self.cut is not None and b"COMMIT\0" in data:
                    cut, self.cut = self.cut, None
                    self.cuts += 1
                    if self.pauses:
                        self.pause()
                    if cut == "after":
                        # Nobody hears the answer, but the server gets the question.
                        back.close()
                        writer.write(data)
                        await writer.drain()
                        await asyncio.sleep(0.2)
                    break
                self.refusals += b"C53300\0" in data
                writer.write(data)
                await writer.drain()
        writer.close()
        back.close()


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    proxy = Proxy(shared_server())
    await proxy.start()
    yield proxy
    await proxy.stop()
    proxy._folder.cleanup()


@pytest.fixture
async def engine(url: str, proxy: Proxy, clock: ManualClock) -> AsyncIterator[PostgresEngine]:
    async with PostgresEngine(proxy.through(url), clock=clock, patience=60, poll_interval=0.05) as engine:
        yield engine


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_commit_whose_end_was_not_heard_is_written_once(
    engine: PostgresEngine, proxy: Proxy, changes: Changes, cut: str
) -> None:
    await engine.commit(changes.start())
    proxy.cut = cut
    results = await asyncio.gather(
        engine.commit(changes.chunk(expected=2)), *(engine.commit(changes.create(f"t{n}")) for n in range(5))
    )
    assert versions(results) == [3, 1, 1, 1, 1, 1]
    assert proxy.cuts == 1
    assert [event.version for event in await log_of(engine)] == [1, 2, 3]
    assert (await engine.list(ListQuery(scope=ME))).total_size == 6


@pytest.mark.parametrize("cut", ["before", "after"])
async def test_a_claim_whose_end_was_not_heard_gives_what_it_took(
    engine: PostgresEngine, proxy: Proxy, changes: Changes, clock: ManualClock, cut: str
) -> None:
    await engine.commit(changes.create())
    proxy.cut = cut
    (claimed,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    assert claimed.head.attempt == 1
    assert proxy.cuts == 1
    assert (await engine.commit(changes.working(fence=1))).version == 2


async def test_what_became_of_a_commit_is_learned_though_the_server_is_crowded(
    proxy: Proxy, changes: Changes, clock: ManualClock
) -> None:
    async with own_database() as database, administering() as admin:
        with suppress(asyncpg.DuplicateObjectError):
            await admin.execute("CREATE ROLE squeezed LOGIN")
        await admin.execute("ALTER ROLE squeezed CONNECTION LIMIT -1")
        await admin.execute(f"ALTER DATABASE {database} OWNER TO squeezed")
        url = proxy.through(shared_server().url("squeezed", database))
        async with PostgresEngine(url, clock=clock, patience=60) as engine:
            await engine.commit(changes.start())
            await admin.execute("ALTER ROLE squeezed CONNECTION LIMIT 0")
            proxy.cut = "after"
            writing = asyncio.ensure_future(engine.commit(changes.chunk(expected=2)))
            while not proxy.cuts:
                await asyncio.sleep(0.01)
            # From now on only whoever wants to learn what became of the commit asks for a connection.
            refusals = proxy.refusals
            while proxy.refusals < refusals + 2 and not writing.done():
                await asyncio.sleep(0.01)
            await admin.execute("ALTER ROLE squeezed CONNECTION LIMIT -1")
            assert (await writing).version == 3
            assert [event.version for event in await log_of(engine)] == [1, 2, 3]


async def test_broken_connections_are_made_again_and_nobody_notices(
    engine: PostgresEngine, proxy: Proxy, changes: Changes
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    for version in range(3, 13):
        proxy.break_all()
        assert (await engine.commit(changes.chunk())).version == version
        assert (await engine.load("t", ME)).version == version
    assert await collect(subscription, 12) == list(range(3, 13))
    subscription.close()


async def test_a_server_that_is_slow_to_hear_goodbyes_is_used_all_the_same(
    url: str, proxy: Proxy, changes: Changes
) -> None:
    proxy.hears_goodbyes = False
    assert await PostgresEngine(proxy.through(url)).schema.check() > 0
    async with PostgresEngine(proxy.through(url)) as engine:
        proxy.hears_goodbyes = True
        assert (await engine.commit(changes.start())).version == 2


async def test_what_happened_while_nobody_listened_is_heard_afterwards(
    url: str, engine: PostgresEngine, proxy: Proxy, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2, caught_up=True)
    waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None))
    async with PostgresEngine(url, clock=clock) as other:
        proxy.break_all()
        await other.commit(changes.chunk())
        await other.commit(changes.complete())
    assert await collect(subscription, 4) == [3, 4]
    assert (await waiting).version == 4
    subscription.close()


async def test_a_replica_that_is_cut_off_loses_its_lease_and_recovers(
    url: str, proxy: Proxy, changes: Changes, clock: ManualClock
) -> None:
    async with (
        impatient(PostgresEngine(proxy.through(url), clock=clock, patience=60, command_timeout=0.5)) as engine,
        PostgresEngine(url, clock=clock) as other,
    ):
        await engine.commit(changes.start())
        proxy.pause()
        late = asyncio.ensure_future(engine.commit(changes.chunk(text="too late", fence=1)))
        clock.advance(LEASE_MS)
        while not (taken := await other.claim("another", [AGENT], 1, clock() + LEASE_MS)):
            pass  # until the server has given up on the other's transaction
        assert (await other.commit(changes.chunk(fence=taken[0].head.attempt))).version == 3
        proxy.resume()
        with pytest.raises(LeaseLostError):
            await late
        assert (await engine.commit(changes.create("again"))).version == 1
        assert len(await log_of(engine)) == 3


async def test_a_server_that_stays_away_is_reported_when_patience_ends(
    url: str, proxy: Proxy, changes: Changes, clock: ManualClock
) -> None:
    async with PostgresEngine(proxy.through(url), clock=clock, patience=0.2) as engine:
        await engine.commit(changes.start())
        await proxy.stop()
        results = await asyncio.gather(
            engine.commit(changes.chunk()),
            engine.commit(changes.start("another")),
            engine.load("t", ME),
            return_exceptions=True,
        )
        for result in results:
            assert isinstance(result, StorageError)
            assert "cannot be reached" in str(result)
        assert "cannot be reached" in await trouble_of(engine)
        await proxy.start()
        assert (await engine.commit(changes.chunk())).version == 3
        assert await trouble_of(engine) == ""


@pytest.fixture(scope="module", name="own_server")
def the_own_server() -> Iterator[Server]:
    with own_server() as server:
        yield server


async def test_a_server_that_is_restarted_is_found_again(
    own_server: Server, changes: Changes, clock: ManualClock
) -> None:
    async with PostgresEngine(own_server.url(), clock=clock, patience=60, poll_interval=0.05) as engine:
        await engine.commit(changes.start())
        subscription = engine.subscribe("t", ME, 2)

        async def write() -> list[int]:
            return [(await engine.commit(changes.chunk())).version for _ in range(200)]

        writing = asyncio.ensure_future(write())
        seen = await collect(subscription, 20)
        for mode in ("fast", "immediate"):
            await asyncio.to_thread(own_server.control, "restart", "-m", mode)
        assert await writing == list(range(3, 203))
        assert seen + await collect(subscription, 202) == list(range(3, 203))
        subscription.close()
        assert [event.version for event in await log_of(engine)] == list(range(1, 203))


async def test_what_a_crash_undid_is_written_again_whoever_got_the_number_of_its_transaction(
    own_server: Server, changes: Changes, clock: ManualClock
) -> None:
    url = own_server.url(schema="undone")
    proxy = Proxy(own_server)
    await proxy.start()
    other = await asyncpg.connect(own_server.url())
    # What is not committed is not on the disk either.
    await other.execute("ALTER SYSTEM SET wal_writer_delay TO '10s'")
    await other.execute("SELECT pg_reload_conf()")
    await other.execute("CREATE TABLE numbers (number integer)")
    await other.close()
    async with PostgresEngine(proxy.through(url), clock=clock, patience=60) as engine:
        await engine.commit(changes.start())
        proxy.cut, proxy.pauses = "before", True
        undone = asyncio.ensure_future(engine.commit(changes.chunk()))
        while not proxy.cuts:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(own_server.control, "restart", "-m", "immediate")
        other = await asyncpg.connect(own_server.url())
        for _ in range(50):
            await other.execute("INSERT INTO numbers VALUES (1)")
        await other.close()
        proxy.resume()
        assert (await undone).version == 3
        assert [event.version for event in await log_of(engine)] == [1, 2, 3]
    await proxy.stop()
    proxy._folder.cleanup()


async def test_a_wrong_password_is_told_without_showing_it(own_server: Server) -> None:
    connection = await asyncpg.connect(own_server.url())
    right = "r@i:g/h%t?#&= +"
    await connection.execute(f"CREATE ROLE careful LOGIN PASSWORD '{right}'")
    rules = own_server.folder / "pg_hba.conf"
    rules.write_text("local all careful scram-sha-256\n" + rules.read_text())
    await connection.execute("SELECT pg_reload_conf()")
    await connection.close()
    # The reload takes effect for connections that are made after it was noticed.
    while "careful:wrong" in (said := await said_by(own_server.url("careful:wrong")) or "careful:wrong"):
        await asyncio.sleep(0.01)
    assert "refuses the password" in said
    assert "wrong" not in said.replace("wrong password", "")
    # The right one may have any characters.
    with pytest.raises(StorageError, match="has no tables of errands yet"):
        await PostgresEngine(own_server.url(f"careful:{quote(right, safe='')}", schema="nothing")).schema.check()


async def said_by(url: str) -> str | None:
    try:
        await PostgresEngine(url).schema.check()
    except StorageError as error:
        return str(error) if "password" in str(error) else None
    return None
