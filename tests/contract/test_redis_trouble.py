"""When the server cannot be used: what happened, what to do, and nothing half-written or written twice."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from errands.engines.base import Retention
from errands.engines.redis import RedisEngine
from errands.errors import StorageError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import ListQuery
from tests.contract.changes import (
    AGENT,
    LEASE_MS,
    ME,
    WORKER,
    Changes,
    ManualClock,
    collect,
    log_of,
    text_in,
    versions,
    whole_life,
)
from tests.contract.health import impatient, trouble_of, until_trouble
from tests.redis_server import Server
from tests.waiting import happens, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def engine(server: Server, clock: ManualClock) -> AsyncIterator[RedisEngine]:
    async with RedisEngine(server.url, clock=clock, patience=60, poll_interval=0.02) as engine:
        yield engine


@asynccontextmanager
async def asking(server: Server) -> AsyncIterator[Redis]:
    """Somebody at the server's console."""
    async with Redis(port=server.port) as console:
        yield console


@asynccontextmanager
async def server_with(folder: Path, *options: str) -> AsyncIterator[Server]:
    server = Server(folder / "another", *options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


# Opening


async def test_a_server_that_is_not_there_is_named(server: Server) -> None:
    server.stop()
    with pytest.raises(StorageError, match=rf"127.0.0.1:{server.port}/0 cannot be reached. Check that it runs"):
        await RedisEngine(server.url).open()


async def test_a_wrong_password_is_refused_and_not_shown(tmp_path: Path) -> None:
    async with server_with(tmp_path, "--requirepass", "right") as server:
        with pytest.raises(StorageError, match="refused the user or the password") as refusal:
            await RedisEngine(f"redis://:wrong@127.0.0.1:{server.port}/0").open()
        assert "wrong@" not in str(refusal.value)
        with pytest.raises(StorageError, match="password"):
            await RedisEngine(server.url).open()
        async with RedisEngine(f"redis://:right@127.0.0.1:{server.port}/0") as engine:
            assert await trouble_of(engine) == ""


async def test_a_database_that_there_is_not_is_refused(server: Server) -> None:
    with pytest.raises(StorageError, match="has no database of this number"):
        await RedisEngine(f"redis://127.0.0.1:{server.port}/99").open()


async def test_a_server_that_may_evict_is_refused(tmp_path: Path) -> None:
    async with server_with(tmp_path, "--maxmemory", "100mb", "--maxmemory-policy", "volatile-lru") as server:
        with pytest.raises(StorageError, match=r"volatile-lru.*CONFIG SET maxmemory-policy noeviction"):
            await RedisEngine(server.url).open()
        async with asking(server) as console:
            await console.config_set("maxmemory-policy", "noeviction")
        async with RedisEngine(server.url) as engine:
            assert await trouble_of(engine) == ""


async def test_a_server_without_an_append_only_file_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server_with(tmp_path, "--appendonly", "no") as server, RedisEngine(server.url):
        assert "appendonly yes" in caplog.text


async def test_a_server_that_does_not_show_its_setup_is_used_with_a_warning(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    async with asking(server) as console:
        await console.execute_command("ACL", "SETUSER", "agent", "on", ">pw", "~*", "&*", "+@all", "-info")  # type: ignore[no-untyped-call]
    async with RedisEngine(f"redis://agent:pw@127.0.0.1:{server.port}/0") as engine:
        assert await trouble_of(engine) == ""
    assert "make sure that maxmemory-policy is noeviction" in caplog.text


async def test_a_user_who_may_do_too_little_is_told(server: Server) -> None:
    async with asking(server) as console:
        await console.execute_command("ACL", "SETUSER", "agent", "on", ">pw", "~*", "&*", "+@all", "-@scripting")  # type: ignore[no-untyped-call]
    with pytest.raises(StorageError, match="does not allow this user a command"):
        await RedisEngine(f"redis://agent:pw@127.0.0.1:{server.port}/0").open()


async def test_the_rights_that_the_page_lists_are_enough(server: Server, changes: Changes, clock: ManualClock) -> None:
    page = (Path(__file__).parents[2] / "docs" / "redis.md").read_text("utf-8")
    (rights,) = [line for line in page.splitlines() if line.startswith("ACL SETUSER")]
    async with asking(server) as console:
        await console.execute_command(*rights.split())  # type: ignore[no-untyped-call]
    url = f"redis://errands:password@127.0.0.1:{server.port}/0"
    retention = Retention(ended_after=0.0, contexts_after=0.0, events_per_task=1)
    async with RedisEngine(url, clock=clock, retention=retention) as engine:
        await whole_life(engine, changes, clock)


async def test_a_replica_is_refused(server: Server, tmp_path: Path) -> None:
    async with server_with(tmp_path, "--replicaof", "127.0.0.1", str(server.port)) as replica:
        with pytest.raises(StorageError, match=rf"read-only replica of 127.0.0.1:{server.port}. Put the address"):
            await RedisEngine(replica.url).open()


async def test_keys_of_another_schema_are_refused_and_left_alone(server: Server) -> None:
    async with asking(server) as console:
        await console.set("{errands}:schema", "99")
        with pytest.raises(StorageError, match=r"schema '99'.*another prefix"):
            await RedisEngine(server.url).open()
        assert await console.keys() == [b"{errands}:schema"]


async def test_an_opening_that_failed_leaves_nothing_behind(server: Server, changes: Changes) -> None:
    server.stop()
    engine = RedisEngine(server.url)
    with pytest.raises(StorageError):
        await engine.open()
    server.start()
    await engine.open()
    assert (await engine.commit(changes.start())).version == 2
    await engine.close()


# While it is used


async def test_a_server_out_of_memory_refuses_the_whole_batch_and_takes_writes_again_afterwards(
    server: Server, engine: RedisEngine, changes: Changes
) -> None:
    await engine.commit(changes.start())
    async with asking(server) as console:
        await console.config_set("maxmemory", 1)
        results = await asyncio.gather(
            engine.commit(changes.chunk()), engine.commit(changes.start("another")), return_exceptions=True
        )
        for result in results:
            assert isinstance(result, StorageError)
            assert "out of memory and takes no writes; nothing was changed" in str(result)
        assert len(await log_of(engine)) == 2
        assert (await engine.list(ListQuery(scope=ME))).total_size == 1
        await console.config_set("maxmemory", 0)
    assert (await engine.commit(changes.chunk())).version == 3


async def test_retention_frees_the_memory_of_a_server_that_is_full(
    server: Server, changes: Changes, clock: ManualClock
) -> None:
    retention = Retention(ended_after=0.0, contexts_after=0.0, events_per_task=3)
    async with RedisEngine(server.url, clock=clock, retention=retention) as engine, asking(server) as console:
        await engine.commit(changes.start("long"))
        for _ in range(10):
            await engine.commit(changes.chunk("long"))
        for task_id in ("ended", "deleted"):
            await engine.commit(changes.start(task_id))
            await engine.commit(changes.complete(task_id, context=b"value"))
        clock.advance(1)
        await console.config_set("maxmemory", 1)
        await engine.delete("deleted", ME)
        assert await engine.sweep() == 1
        assert await engine.load_context(ME, "context of ended") is None
        assert [event.version for event in (await engine.read("long", ME, 9)).events] == [10, 11, 12]
        assert (await engine.read("long", ME, 8)).gap
        assert text_in(await engine.load("long", ME)) == "x" * 10
        await console.config_set("maxmemory", 0)
        assert (await engine.commit(changes.chunk("long"))).version == 13


async def test_a_server_that_became_a_replica_refuses_commits(
    server: Server, engine: RedisEngine, changes: Changes, tmp_path: Path
) -> None:
    await engine.commit(changes.start())
    async with server_with(tmp_path) as other, asking(server) as console:
        await console.replicaof("127.0.0.1", other.port)
        with pytest.raises(StorageError, match="read-only replica"):
            await engine.commit(changes.chunk())
        assert f"read-only replica of 127.0.0.1:{other.port}" in await trouble_of(engine)
        await console.replicaof("NO", "ONE")
        assert await trouble_of(engine) == ""


async def test_a_server_that_begins_to_evict_makes_the_process_unready(server: Server, engine: RedisEngine) -> None:
    async with asking(server) as console:
        await console.config_set("maxmemory", "100mb")
        await console.config_set("maxmemory-policy", "allkeys-lru")
        assert re.search("may evict tasks.*allkeys-lru", await trouble_of(engine))
        await console.config_set("maxmemory-policy", "noeviction")
        assert await trouble_of(engine) == ""


@pytest.mark.parametrize(
    ("setting", "refusing", "again", "said"),
    [("maxmemory", 1, 0, "out of memory"), ("min-replicas-to-write", 1, 0, "too few replicas")],
)
async def test_a_server_that_refuses_to_write_makes_the_process_unready(
    server: Server, engine: RedisEngine, setting: str, refusing: int, again: int, said: str
) -> None:
    assert await trouble_of(engine) == ""
    async with asking(server) as console:
        await console.config_set(setting, refusing)
        await until_trouble(engine, said)
        await console.config_set(setting, again)
    assert await trouble_of(engine) == ""


async def test_commits_wait_for_a_server_that_restarts(server: Server, engine: RedisEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    server.stop(signal.SIGTERM)
    commits = [asyncio.ensure_future(engine.commit(changes.chunk())) for _ in range(10)]
    # In a thread, so that the commits find nobody there meanwhile.
    await asyncio.to_thread(server.start)
    assert versions(await asyncio.gather(*commits)) == list(range(3, 13))
    assert [event.version for event in await log_of(engine)] == list(range(1, 13))


async def test_a_call_is_made_again_when_another_one_has_reached_the_server_meanwhile(
    server: Server, engine: RedisEngine, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.commit(changes.start())
    link, failed = engine.parts.server, asyncio.Event()
    disconnect, call = link._recover, link.call

    async def broken(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(link, "call", call)
        raise ConnectionResetError

    async def slow() -> None:
        failed.set()
        await until(lambda: link._away_since is None)
        await disconnect()

    monkeypatch.setattr(link, "_patience", 0.0)
    monkeypatch.setattr(link, "_away_since", 0.0)
    monkeypatch.setattr(link, "_recover", slow)
    monkeypatch.setattr(link, "call", broken)
    loading = asyncio.ensure_future(engine.load("t", ME))
    await happens(failed)
    assert (await engine.read("t", ME, 0)).events
    assert (await loading).version == 2


async def test_a_server_that_stays_away_refuses_everything_until_it_is_back(
    server: Server, changes: Changes, clock: ManualClock
) -> None:
    async with RedisEngine(server.url, clock=clock, patience=0.1, poll_interval=0.02) as engine:
        await engine.commit(changes.start())
        server.stop(signal.SIGTERM)
        for call in (
            engine.commit(changes.chunk()),
            engine.commit(changes.chunk()),
            engine.load("t", ME),
            engine.read("t", ME, 0),
            engine.list(ListQuery(scope=ME)),
            engine.claim(WORKER, [AGENT], 1, 0),
            engine.extend(WORKER, [], 0),
            engine.wanted_canceled(WORKER),
            engine.load_context(ME, "c"),
            engine.commit(changes.move(context=b"")),
            engine.delete("t", ME),
            engine.sweep(),
            engine.check(),
        ):
            with suppress(StorageError):
                assert await call == []  # nothing to extend
        assert "cannot be reached" in await trouble_of(engine)
        server.start()
        assert await trouble_of(engine) == ""
        assert (await engine.commit(changes.chunk())).version == 3


async def test_a_subscriber_hears_on_after_a_restart(
    server: Server, engine: RedisEngine, changes: Changes, clock: ManualClock
) -> None:
    async with RedisEngine(server.url, clock=clock, patience=60) as other:
        await other.commit(changes.start())
        subscription = engine.subscribe("t", ME, 2)
        reading = asyncio.ensure_future(collect(subscription, 5))
        await other.commit(changes.chunk())
        await asyncio.to_thread(server.stop)
        await asyncio.to_thread(server.start)
        await other.commit(changes.chunk())
        await other.commit(changes.chunk())
        assert await reading == [3, 4, 5]
        subscription.close()


async def test_who_waits_for_a_task_that_the_server_has_lost_is_told(
    server: Server, engine: RedisEngine, changes: Changes
) -> None:
    for task_id in ("t", "another"):
        await engine.commit(changes.start(task_id))
    subscription, kept = engine.subscribe("t", ME, 2), engine.subscribe("another", ME, 2)
    waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None))
    await until(lambda: engine.parts.notifications._heard >= {"t", "another"})
    async with asking(server) as console:
        await console.delete(engine.keys("task", "t"), engine.keys("log", "t"))
        with pytest.raises(TaskNotFoundError):
            await subscription.next()
        with pytest.raises(TaskNotFoundError):
            await waiting
        await engine.commit(changes.chunk("another"))
        assert await collect(kept, 3) == [3]
        await console.flushall()
        with pytest.raises(TaskNotFoundError):
            await kept.next()
    subscription.close()
    kept.close()


async def test_workers_are_woken_after_the_ear_was_lost(
    server: Server, engine: RedisEngine, changes: Changes, clock: ManualClock
) -> None:
    woken = asyncio.Event()
    engine.on_work(woken.set)
    async with asking(server) as console, RedisEngine(server.url, clock=clock) as other:
        await console.execute_command("CLIENT", "KILL", "TYPE", "pubsub")  # type: ignore[no-untyped-call]
        await happens(woken)
        woken.clear()
        await other.commit(changes.create())
        await happens(woken)


async def test_forgotten_scripts_are_loaded_again(server: Server, engine: RedisEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    async with asking(server) as console:
        await console.script_flush()
    assert (await engine.commit(changes.chunk())).version == 3


async def test_a_server_that_hangs_is_given_up_and_does_nothing_twice_when_it_goes_on(
    server: Server, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with impatient(RedisEngine(server.url, clock=clock, timeout=0.2, patience=60)) as engine:
        await engine.commit(changes.start())
        server.pause()
        assert re.search("did not answer in time|cannot be reached", await trouble_of(engine))
        link, tries = engine.parts.server, 0
        call = link.call

        async def counted(*arguments: Any, **options: Any) -> Any:
            nonlocal tries
            tries += 1
            return await call(*arguments, **options)

        monkeypatch.setattr(link, "call", counted)
        commit = asyncio.ensure_future(engine.commit(changes.chunk()))
        await until(lambda: tries > 1)  # what was sent first waits in the server's sockets
        server.go_on()
        assert (await commit).version == 3
        assert (await engine.commit(changes.chunk())).version == 4
        assert [event.version for event in await log_of(engine)] == [1, 2, 3, 4]


# In the middle of a commit


class Proxy:
    """Between an engine and the server: cuts connections at the worst moment."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: set[asyncio.StreamWriter] = set()
        #: What the next write meets: its request is lost, or its answer.
        self.lose: str | None = None
        self.lost = 0

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"redis://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/0"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind_reader, behind = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers |= {writer, behind}
        answers = asyncio.ensure_future(self._pass(behind_reader, writer))
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                if self.lose and b"commit" in data:
                    lose, self.lose = self.lose, None
                    self.lost += 1
                    answers.cancel()
                    await asyncio.gather(answers, return_exceptions=True)
                    if lose == "answer":
                        behind.write(data)
                        await behind_reader.readexactly(1)  # it was done
                    break
                behind.write(data)
                await behind.drain()
        writer.close()
        behind.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 20):
                writer.write(data)
                await writer.drain()


@pytest.mark.parametrize("lose", ["request", "answer"])
async def test_a_commit_whose_connection_broke_is_written_once_and_answered_truly(
    server: Server, changes: Changes, clock: ManualClock, lose: str
) -> None:
    async with Proxy(server.port) as proxy, RedisEngine(proxy.url, clock=clock) as engine:
        await engine.commit(changes.start())
        subscription = engine.subscribe("t", ME, 2, caught_up=True)
        proxy.lose = lose
        assert (await engine.commit(changes.chunk())).version == 3
        proxy.lose = lose
        assert (await engine.commit(changes.create("new", receipt=b"digest"))).version == 1
        proxy.lose = lose
        assert (await engine.commit(changes.complete(fence=1))).version == 4
        assert proxy.lost == 3
        assert await collect(subscription, 4) == [3, 4]
        subscription.close()
        assert [event.version for event in await log_of(engine)] == [1, 2, 3, 4]
        assert (await engine.load("t", ME)).state is TaskState.COMPLETED


async def test_a_refusal_whose_answer_was_lost_is_still_a_refusal(
    server: Server, changes: Changes, clock: ManualClock
) -> None:
    async with Proxy(server.port) as proxy, RedisEngine(proxy.url, clock=clock) as engine:
        await engine.commit(changes.start(receipt=b"digest"))
        proxy.lose = "answer"
        with pytest.raises(Exception, match="already accepted"):
            await engine.commit(changes.create("again", receipt=b"digest"))
        assert proxy.lost == 1


async def test_a_claim_whose_answer_was_lost_is_not_lost(server: Server, changes: Changes, clock: ManualClock) -> None:
    async with Proxy(server.port) as proxy, RedisEngine(proxy.url, clock=clock) as engine:
        await engine.commit(changes.create("one"))
        # The commit and the claim travel in one batch.
        proxy.lose = "answer"
        created = asyncio.ensure_future(engine.commit(changes.create("two")))
        await asyncio.sleep(0)
        claimed = await engine.claim(WORKER, [AGENT], 10, clock() + LEASE_MS)
        assert (await created).version == 1
        assert proxy.lost == 1
        assert [(stored.task.id, stored.head.attempt) for stored in claimed] == [("one", 1), ("two", 1)]


async def test_whoever_writes_while_the_server_is_killed_again_and_again_writes_everything_once(
    server: Server, changes: Changes, clock: ManualClock
) -> None:
    async with (
        RedisEngine(server.url, clock=clock, patience=60) as one,
        RedisEngine(server.url, clock=clock, patience=60) as other,
    ):
        await one.commit(changes.start())
        subscription = one.subscribe("t", ME, 2)
        half = asyncio.Event()

        async def write(engine: RedisEngine, name: str) -> None:
            for start in range(0, 300, 3):
                texts = [f"{name}{number};" for number in range(start, start + 3)]
                await asyncio.gather(*(engine.commit(changes.chunk(text=text)) for text in texts))
                half.set()

        writing = asyncio.gather(write(one, "a"), write(other, "b"))
        for _ in range(3):
            half.clear()
            await half.wait()
            await asyncio.to_thread(server.stop)
            await asyncio.to_thread(server.start)
        await writing
        assert await collect(subscription, 602) == list(range(3, 603))
        subscription.close()
        pieces = text_in(await one.load("t", ME)).split(";")
        for name in "ab":
            written = [piece for piece in pieces if piece.startswith(name)]
            assert written == [f"{name}{number}" for number in range(300)]
