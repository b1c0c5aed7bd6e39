"""What is Redis' own: addresses, names of keys, few round trips, one sweeper, a cluster."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest
from redis.asyncio import Redis

from errands.engines.base import Retention
from errands.engines.redis import RedisEngine, notifications, queries
from errands.engines.redis.connection import RedisOptions
from errands.engines.redis.schema import Keys, scope_name
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError, StorageError, TaskNotFoundError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.model.log import Lease, ListQuery, Scope
from tests.contract.changes import AGENT, LEASE_MS, ME, WORKER, Changes, ManualClock, collect, versions
from tests.redis_server import Server, shared_url

pytestmark = pytest.mark.anyio


@pytest.fixture
def url(tmp_path: Path) -> str:
    return shared_url(tmp_path)


@pytest.fixture
async def engine(url: str, clock: ManualClock) -> AsyncIterator[RedisEngine]:
    async with RedisEngine(url, clock=clock) as engine:
        yield engine


@pytest.fixture
async def console(url: str) -> AsyncIterator[Redis]:
    async with Redis.from_url(url.partition("?")[0], decode_responses=True) as console:
        yield console


def base_of(url: str) -> str:
    return Keys(RedisOptions.from_url(url).prefix).base


# Addresses


def test_a_url_names_server_database_user_and_prefix() -> None:
    options = RedisOptions.from_url("redis://us%40er:p%3Aw@example.org:7000/3?prefix=mine")
    assert options == RedisOptions(
        host="example.org", port=7000, db=3, username="us@er", password="p:w", prefix="mine", tls=False
    )
    assert options.server == "example.org:7000/3"


def test_what_a_url_leaves_out_is_the_usual() -> None:
    assert RedisOptions.from_url("redis://") == RedisOptions()
    assert RedisOptions.from_url("rediss://example.org") == RedisOptions(host="example.org", tls=True)


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("redis://host/zero", "a database's number"),
        ("redis://host:port/0", "redis://user:password@host:port/0"),
        ("redis://host/0?prefx=a", "unknown option prefx; possible are prefix, ssl_ca_certs"),
        ("redis://host/0?ssl_certfile=a.pem", "ssl_certfile goes with TLS: write rediss://"),
        ("redis://:pass#word@host/0", "a # is written as %23"),
        ("redis://host/0#", "a # is written as %23"),
        ("redis://host/0?prefix=", "a prefix has 1 to 64"),
        ("redis://host/0?prefix={a}", "a prefix has 1 to 64"),
    ],
)
def test_a_url_that_is_not_understood_is_refused(url: str, words: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        engine_from_url(url)
    assert words in str(refusal.value)


def test_a_refused_url_does_not_show_its_password() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        engine_from_url("redis://user:secret@host/0?x=y")
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "REDIS"])
def test_an_engine_is_made_from_its_url(scheme: str) -> None:
    assert isinstance(engine_from_url(f"{scheme}://host/0", Retention(ended_after=1)), RedisEngine)


def test_without_the_extra_the_error_says_what_to_install() -> None:
    script = """
import sys
sys.modules["redis"] = None
from errands.engines.urls import engine_from_url
try:
    engine_from_url("redis://host/0")
except Exception as error:
    print(type(error).__name__, error)
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert said.startswith("ConfigurationError")
    assert "pip install 'errands[redis]'" in said


# Names


def test_different_scopes_have_different_names() -> None:
    scopes = [Scope("a", "b/c", "d"), Scope("a/b", "c", "d"), Scope("a", "b", "c/d"), Scope("a:b", "", "d"), Scope()]
    assert len({scope_name(scope) for scope in scopes}) == len(scopes)


def test_different_filters_have_different_listings() -> None:
    keys = Keys("p")
    names = [
        keys.listing(ME),
        keys.listing(ME, state=TaskState.COMPLETED),
        keys.listing(ME, "completed"),
        keys.listing(ME, ":completed"),
        keys.listing(ME, "", TaskState.COMPLETED),
        keys.listing(ME, ""),
        keys.listing(ME, "completed", TaskState.COMPLETED),
    ]
    assert len(set(names)) == len(names)


async def test_every_key_has_the_same_hash_tag(
    engine: RedisEngine, url: str, console: Redis, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create("{odd}", receipt=b"digest", context_id="{context}"))
    await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    await engine.commit(changes.cancel("{odd}"))
    await engine.commit(changes.move("{odd}", context=b"value"))
    keys = [key async for key in console.scan_iter(match=base_of(url).replace("{", "\\{") + "*")]
    assert len(keys) > 10
    assert {key.partition("}")[0] for key in keys} == {base_of(url)[:-2]}


async def test_stores_with_different_prefixes_know_nothing_of_each_other(
    engine: RedisEngine, url: str, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create())
    async with RedisEngine(url + "-other", clock=clock) as other:
        with pytest.raises(TaskNotFoundError):
            await other.load("t", ME)
        assert await other.claim(WORKER, [AGENT], 1, clock() + LEASE_MS) == []


async def test_a_deleted_task_leaves_no_key_behind(
    engine: RedisEngine, url: str, console: Redis, changes: Changes
) -> None:
    pattern = base_of(url).replace("{", "\\{") + "*"
    before = {key async for key in console.scan_iter(match=pattern)}
    await engine.commit(changes.start(receipt=b"digest"))
    await engine.commit(changes.cancel())
    await engine.commit(changes.complete(fence=1))
    await engine.delete("t", ME)
    after = {key async for key in console.scan_iter(match=pattern)}
    # Answers and receipts expire, and the agents of a store are few.
    kinds = {key.removeprefix(base_of(url)).partition(":")[0] for key in after - before}
    assert kinds <= {"answer", "receipt", "agents"}


async def test_a_receipt_expires_by_itself_after_its_window(
    engine: RedisEngine, url: str, console: Redis, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create(receipt=b"digest", receipt_since=clock() - 86_400_000))
    (key,) = [key async for key in console.scan_iter(match=base_of(url).replace("{", "\\{") + "receipt:*")]
    assert 86_400_000 < await console.pttl(key) < 2 * 86_400_000


# Round trips


async def test_commits_of_one_moment_share_a_batch(engine: RedisEngine, changes: Changes) -> None:
    before = engine.parts.store.batches
    await asyncio.gather(*(engine.commit(changes.start(f"t{number}")) for number in range(100)))
    assert engine.parts.store.batches - before <= 2


async def test_a_task_that_was_just_written_needs_no_look(engine: RedisEngine, changes: Changes) -> None:
    await engine.commit(changes.start())
    before = engine.parts.store.batches
    await engine.commit(changes.chunk(fence=1))
    await engine.commit(changes.complete(fence=1))
    assert engine.parts.store.batches - before == 2


async def test_a_task_that_was_just_claimed_needs_no_look(
    engine: RedisEngine, url: str, changes: Changes, clock: ManualClock
) -> None:
    async with RedisEngine(url, clock=clock) as other:
        await other.commit(changes.create())
    await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    before = engine.parts.store.batches
    await engine.commit(changes.working(fence=1))
    assert engine.parts.store.batches - before == 1


async def test_a_task_that_another_process_has_written_to_needs_one_more(
    engine: RedisEngine, url: str, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    async with RedisEngine(url, clock=clock) as other:
        await other.commit(changes.chunk())
    before = engine.parts.store.batches
    assert (await engine.commit(changes.chunk(fence=1))).version == 4
    assert engine.parts.store.batches - before == 2


async def test_a_task_whose_keys_are_damaged_fails_alone(
    engine: RedisEngine, url: str, console: Redis, changes: Changes
) -> None:
    await engine.commit(changes.start("damaged"))
    await console.set(f"{base_of(url)}log:damaged", "no stream")
    results = await asyncio.gather(
        engine.commit(changes.start("a")),
        engine.commit(changes.chunk("damaged")),
        engine.commit(changes.start("b")),
        return_exceptions=True,
    )
    assert versions(results) == [2, None, 2]
    assert isinstance(results[1], StorageError)
    assert "WRONGTYPE" in str(results[1])
    stored = await engine.load("damaged", ME)
    assert stored.damage
    await engine.set_aside(stored, WORKER)
    assert [task.task_id for task in await engine.running()] == ["a", "b"]
    assert (await engine.load("b", ME)).version == 2


# Watching


async def test_news_that_nobody_understands_make_a_subscriber_look(
    engine: RedisEngine, url: str, console: Redis, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    channel = f"{base_of(url)}events:t"
    while not await console.publish(channel, "what?"):
        await asyncio.sleep(0.01)
    async with RedisEngine(url, clock=clock) as other:
        await other.commit(changes.chunk())
    assert await collect(subscription, 3) == [3]
    subscription.close()


async def test_workers_are_not_woken_when_another_process_only_works_on(
    engine: RedisEngine, url: str, changes: Changes, clock: ManualClock
) -> None:
    woken = asyncio.Event()
    engine.on_work(woken.set)
    await engine.commit(changes.start())
    async with RedisEngine(url, clock=clock) as other:
        await other.commit(changes.create("first"))
        await woken.wait()  # it hears by now
        subscription = engine.subscribe("t", ME, 2)
        for version in range(3, 8):
            await other.extend(WORKER, [Lease("t", 1)], clock() + LEASE_MS)
            await other.commit(changes.chunk())
            assert await collect(subscription, version) == [version]
            if version == 5:
                # News come in order: whatever was said about the first task has been heard.
                woken.clear()
        assert not woken.is_set()
        subscription.close()


async def test_a_brief_wait_asks_the_server_for_no_channel(
    engine: RedisEngine, url: str, console: Redis, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow the machine is, the wait is a brief one.
    monkeypatch.setattr(notifications, "SETTLE_AFTER", 3600.0)
    with engine.expect("t", ME, TERMINAL_STATES) as expectation:
        version = (await engine.commit(changes.start())).version
        await engine.commit(changes.complete())
        assert await expectation.wait(version, None) is not None
    assert await console.pubsub_channels(base_of(url).replace("{", "\\{") + "events:*") == []


async def channels_become(console: Redis, pattern: str, wanted: list[str]) -> None:
    """Fails when they do not become so in the time that a test has."""
    while await console.pubsub_channels(pattern) != wanted:
        await asyncio.sleep(0.01)


async def test_channels_are_let_go_when_nobody_watches(
    engine: RedisEngine, url: str, console: Redis, changes: Changes
) -> None:
    pattern = base_of(url).replace("{", "\\{") + "events:*"
    await engine.commit(changes.start())
    subscription = engine.subscribe("t", ME, 2)
    await channels_become(console, pattern, [f"{base_of(url)}events:t"])
    subscription.close()
    await channels_become(console, pattern, [])


# Retention


async def test_what_changed_since_a_listing_began_is_found_in_steps_however_much_it_is(
    engine: RedisEngine, changes: Changes, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "LOOK", 3)
    for number in range(20):
        await engine.commit(changes.create(f"t{number:02}"))
    query = ListQuery(scope=ME, page_size=2)
    first = await engine.list(query)
    for number in range(20):
        # Several of each moment, more than one look takes in, and some that are not of this listing.
        clock.advance(number in (1, 8, 9, 11))
        await engine.commit(changes.working(f"t{number:02}"))
        await engine.commit(changes.create(f"new{number:02}"))
    seen = [stored.task.id for stored in first.tasks]
    while first.next_page_token:
        first = await engine.list(msgspec.structs.replace(query, page_token=first.next_page_token))
        seen += [stored.task.id for stored in first.tasks]
    assert {task_id for task_id in seen if task_id.startswith("t")} == {f"t{number:02}" for number in range(20)}


async def test_only_one_process_sweeps_at_a_time(
    url: str, console: Redis, changes: Changes, clock: ManualClock
) -> None:
    async with RedisEngine(url, clock=clock, retention=Retention(ended_after=0.0)) as engine:
        await engine.commit(changes.start())
        await engine.commit(changes.complete())
        sweeper = console.lock(f"{base_of(url)}sweeper", timeout=60)
        await sweeper.acquire()
        assert await engine.sweep() == 0
        await sweeper.release()
        assert await engine.sweep() == 1


async def test_processes_that_sweep_together_delete_each_task_once(
    url: str, changes: Changes, clock: ManualClock
) -> None:
    async with AsyncExitStack() as stack:
        engines = [
            await stack.enter_async_context(RedisEngine(url, clock=clock, retention=Retention(ended_after=0.0)))
            for _ in range(3)
        ]
        await asyncio.gather(*(engines[0].commit(changes.start(f"t{n}")) for n in range(250)))
        await asyncio.gather(*(engines[1].commit(changes.complete(f"t{n}")) for n in range(250)))
        assert sum(await asyncio.gather(*(engine.sweep() for engine in engines))) == 250
        assert (await engines[0].list(ListQuery(scope=ME))).total_size == 0


async def test_a_task_whose_keys_were_removed_by_hand_is_not_claimed_for_ever(
    engine: RedisEngine, url: str, console: Redis, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.create("gone"))
    await engine.commit(changes.create("there"))
    await console.delete(f"{base_of(url)}task:gone", f"{base_of(url)}log:gone")
    for _ in range(2):
        claimed = await engine.claim(WORKER, [AGENT], 10, clock() + LEASE_MS)
        assert [stored.task.id for stored in claimed] in (["there"], [])
    assert await console.zcard(f"{base_of(url)}queue:{AGENT}") == 1


# A cluster


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[tuple[Server, Server]]:
    """Two nodes; the second holds every slot."""
    nodes = [Server(tmp_path / name, "--cluster-enabled", "yes") for name in ("one", "two")]
    for node in nodes:
        node.start()
    try:
        async with Redis(port=nodes[0].port) as one, Redis(port=nodes[1].port) as two:
            await two.execute_command("CLUSTER", "ADDSLOTS", *range(16384))  # type: ignore[no-untyped-call]
            await one.execute_command("CLUSTER", "MEET", "127.0.0.1", nodes[1].port)  # type: ignore[no-untyped-call]
            for console in (one, two):
                while b"cluster_state:ok" not in await raw_cluster_info(console):
                    await asyncio.sleep(0.05)
        yield nodes[0], nodes[1]
    finally:
        for node in nodes:
            node.stop()


async def raw_cluster_info(console: Redis) -> bytes:
    info = await console.execute_command("CLUSTER", "INFO")  # type: ignore[no-untyped-call]
    return info if isinstance(info, bytes) else str(info).replace("'", "").replace(": ", ":").encode()


async def test_a_node_of_a_cluster_leads_to_the_one_that_holds_the_keys(
    cluster: tuple[Server, Server], changes: Changes, clock: ManualClock
) -> None:
    async with RedisEngine(cluster[0].url, clock=clock) as engine, RedisEngine(cluster[1].url, clock=clock) as other:
        assert (await engine.commit(changes.create(receipt=b"digest"))).version == 1
        subscription = other.subscribe("t", ME, 1)
        (stored,) = await other.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
        await engine.commit(changes.working(fence=stored.head.attempt))
        assert await collect(subscription, 2) == [2]
        subscription.close()
        async with Redis(port=cluster[1].port) as console:
            await console.execute_command("CLIENT", "KILL", "TYPE", "normal")  # type: ignore[no-untyped-call]
        assert (await engine.commit(changes.complete(fence=1))).version == 3
        assert (await engine.list(ListQuery(scope=ME, context_id="context of t"))).total_size == 1
        await engine.commit(changes.start("another", context=b"value"))
        await engine.delete("t", ME)
        await engine.sweep()


async def test_every_script_keeps_to_one_slot(
    cluster: tuple[Server, Server], changes: Changes, clock: ManualClock
) -> None:
    retention = Retention(ended_after=0.0, contexts_after=0.0, events_per_task=2)
    async with RedisEngine(cluster[1].url, clock=clock, retention=retention) as engine:
        await engine.commit(changes.start("long"))
        for _ in range(5):
            await engine.commit(changes.chunk("long"))
        await engine.commit(changes.start("ended"))
        await engine.commit(changes.complete("ended", context=b"value"))
        await engine.extend(WORKER, [Lease("long", 1)], clock() + LEASE_MS)
        await engine.wanted_canceled(WORKER)
        clock.advance(1)
        assert await engine.sweep() == 1
        assert await engine.load_context(ME, "context of ended") is None
        assert (await engine.read("long", ME, 0)).gap
        assert len(await log_of_rest(engine)) == 2


async def log_of_rest(engine: RedisEngine) -> list[int]:
    return [event.version for event in (await engine.read("long", ME, 5)).events]
