"""`errands tasks export` and `import`: whole tasks, from every kind of store to every other, and back."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest

from errands import A2AServer, AccessRule, AgentCardConfig, ApiKeyAuth, Caller, TaskContext, Worker
from errands.engines.urls import engine_from_url
from errands.errors import TaskNotFoundError
from errands.model.core import TaskState
from errands.model.log import Draft, Event, PushConfig, StoredTask, Work
from errands.policy.task_archive import ArchivedEvent, ArchivedHead
from tests.contract.changes import AGENT, LEASE_MS, ME, OTHER_TENANT, WORKER, Changes, ManualClock, log_of
from tests.damage import GARBAGE, MISFIT, damage_event
from tests.docs.pages import ROOT, tables
from tests.postgres import own_schema
from tests.redis_server import shared_url
from tests.unit.cli.conftest import Errands, live

STORES: dict[str, Callable[[Path], str]] = {
    "sqlite": lambda folder: f"sqlite:///{folder / 'tasks.db'}",
    "postgresql": own_schema,
    "redis": shared_url,
}
PAIRS = list(product(STORES, STORES))
ENDED = {"completed", "failed", "paused", "elsewhere"}


def store(kind: str, folder: Path) -> str:
    folder.mkdir()
    return STORES[kind](folder)


async def fill(url: str) -> None:
    """Tasks in every situation, with the times of a clock long ago."""
    clock = ManualClock()
    changes = Changes(clock)
    async with engine_from_url(url) as engine:
        await engine.commit(changes.create("completed"))
        await engine.claim("lost", [AGENT], 1, clock.advance(10))
        clock.advance(LEASE_MS)
        (stored,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
        fence = stored.head.attempt
        await engine.commit(changes.working("completed", fence=fence, at=clock.advance(3)))
        record = Draft("record", b'{"record":"started","at":"2026-01-31T00:00:00.000Z","agent":"a"}')
        await engine.commit(changes.move("completed", events=(record,), fence=fence))
        for text in ("Grüße", "\u0000 and \u2028", "x" * 50_000):
            await engine.commit(changes.chunk("completed", text, fence=fence, at=clock.advance(1)))
        await engine.commit(changes.complete("completed", fence=fence, context=b"\x00memory", at=clock.advance(1)))
        await engine.commit(changes.start("failed"))
        await engine.commit(
            changes.status("failed", TaskState.FAILED, "why", fence=1, work=Work.IDLE, unread=-1, at=clock.advance(9))
        )
        await engine.commit(changes.start("paused"))
        await engine.commit(changes.ask("paused", fence=1, asks="bob@example.com"))
        await engine.commit(changes.start("elsewhere", scope=OTHER_TENANT))
        await engine.commit(changes.complete("elsewhere", fence=1, scope=OTHER_TENANT))
        await engine.commit(changes.create("queued"))
        await engine.commit(changes.start("working"))


def tasks_in(archive: Path) -> dict[str, list[dict[str, Any]]]:
    """The lines of each task."""
    found: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, archive.read_text("utf-8").split("\n")[:-1]):
        if line["line"] == "task":
            lines = found[line["taskId"]] = []
        if line["line"] in ("task", "event"):
            lines.append(line)
    return found


def load(url: str, task_id: str) -> StoredTask:
    async def load() -> StoredTask:
        async with engine_from_url(url) as engine:
            return await engine.load(task_id, None)

    return asyncio.run(load())


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_a_round_trip_loses_nothing(errands: Errands, tmp_path: Path, source: str, target: str) -> None:
    one, other = store(source, tmp_path / "one"), store(target, tmp_path / "other")
    there, back = tmp_path / "there.jsonl", tmp_path / "back.jsonl"
    asyncio.run(fill(one))
    exported = errands("tasks", "export", str(there), "--storage", one)
    assert (exported.exit_code, exported.stdout) == (0, "")
    assert "6 tasks exported, 2 of them in the queue or at work." in exported.stderr
    result = errands("tasks", "import", str(there), "--storage", other, "--json")
    assert json.loads(result.stdout) == {"imported": 4, "existing": 0, "live": 2}
    errands("tasks", "export", str(back), "--storage", other)
    assert tasks_in(back) == {name: lines for name, lines in tasks_in(there).items() if name in ENDED}
    assert load(other, "completed").task == load(one, "completed").task
    assert load(other, "completed").head == load(one, "completed").head

    async def logs(url: str) -> list[object]:
        async with engine_from_url(url) as engine:
            return [await log_of(engine, "completed"), await engine.load_context(ME, "context of completed")]

    assert asyncio.run(logs(other)) == asyncio.run(logs(one))


@pytest.fixture
def archive(errands: Errands, tmp_path: Path) -> Path:
    source, path = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))
    assert errands("tasks", "export", str(path), "--storage", source).exit_code == 0
    return path


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'target.db'}"


@pytest.mark.parametrize("kind", STORES)
def test_with_live_a_task_at_work_is_ready_for_the_servers_of_the_new_store(
    errands: Errands, archive: Path, tmp_path: Path, kind: str
) -> None:
    target = store(kind, tmp_path / "target")
    result = errands("tasks", "import", str(archive), "--storage", target, "--live")
    assert result.stdout == "6 tasks imported; 0 existed already.\n"

    async def claim() -> dict[str, StoredTask]:
        async with engine_from_url(target) as engine:
            claimed = await engine.claim("new", [AGENT], 10, engine.clock() + LEASE_MS)
            return {stored.task.id: stored for stored in claimed}

    claimed = asyncio.run(claim())
    assert set(claimed) == {"queued", "working"}
    # The lease in the former store was given back, so that its attempt does not count.
    head = claimed["working"].head
    assert (head.attempt, head.given_back, head.version) == (2, 1, 2)


def test_live_tasks_are_left_out_and_the_command_says_what_to_do(errands: Errands, archive: Path, target: str) -> None:
    result = errands("tasks", "import", str(archive), "--storage", target)
    assert "2 tasks in the queue or at work left out." in result.stderr
    assert "--live" in result.stderr


def test_a_task_that_exists_stops_the_import_or_is_skipped(errands: Errands, archive: Path, target: str) -> None:
    errands("tasks", "import", str(archive), "--storage", target)
    again = errands("tasks", "import", str(archive), "--storage", target)
    assert again.exit_code == 1
    assert "the store already has task" in again.stderr
    assert "--existing skip" in again.stderr
    skipped = errands("tasks", "import", str(archive), "--storage", target, "--existing", "skip")
    assert skipped.stdout == "0 tasks imported; 4 existed already.\n"


def test_an_import_that_was_interrupted_can_be_continued(errands: Errands, archive: Path, target: str) -> None:
    lines = archive.read_text("utf-8").split("\n")
    part = archive.with_name("part.jsonl")
    part.write_text("\n".join(lines[: len(lines) // 2]) + "\n", "utf-8")
    first = errands("tasks", "import", str(part), "--storage", target)
    assert first.exit_code == 1
    assert "is not complete" in first.stderr
    done = errands("tasks", "import", str(archive), "--storage", target, "--existing", "skip", "--json")
    found = json.loads(done.stdout)
    assert found["imported"] >= 1
    assert found["existing"] >= 1
    assert found["imported"] + found["existing"] == 4


def head_line(lines: list[str]) -> int:
    return next(n for n, line in enumerate(lines) if '"task"' in line and "completed" in line)


def spoil_event(lines: list[str]) -> None:
    lines[head_line(lines) + 1] = lines[head_line(lines) + 1].replace("hello", "hullo")


def spoil_state(lines: list[str]) -> None:
    n = head_line(lines)
    lines[n] = lines[n].replace("TASK_STATE_COMPLETED", "TASK_STATE_FAILED")


def spoil_version(lines: list[str]) -> None:
    head = json.loads(lines[n := head_line(lines)])
    lines[n] = json.dumps({**head, "version": head["version"] + 1})


def spoil_json(lines: list[str]) -> None:
    lines[head_line(lines)] = "{"


def spoil_field(lines: list[str]) -> None:
    n = head_line(lines)
    lines[n] = json.dumps({**json.loads(lines[n]), "colour": "red"})


def digested(lines: list[str]) -> list[str]:
    """The lines of an archive whose first task has the digest of its events."""
    n = head_line(lines)
    head = json.loads(lines[n])
    own = lines[n + 1 : n + 1 + head["events"]]
    head["sha256"] = hashlib.sha256("".join(f"{line}\n" for line in own).encode()).hexdigest()
    lines[n] = json.dumps(head)
    return lines


def spoil_subject(lines: list[str]) -> None:
    n = head_line(lines)
    at = next(at for at in range(n, len(lines)) if '"kind":"status"' in lines[at])
    lines[at] = lines[at].replace('"taskId":"completed"', '"taskId":"failed"')
    digested(lines)


def spoil_kind(lines: list[str]) -> None:
    n = head_line(lines)
    at = next(at for at in range(n, len(lines)) if '"kind":"status"' in lines[at])
    lines[at] = lines[at].replace('"kind":"status"', '"kind":"message"')
    digested(lines)


def spoil_head(**fields: object) -> Callable[[list[str]], None]:
    def spoil(lines: list[str]) -> None:
        n = head_line(lines)
        lines[n] = json.dumps({**json.loads(lines[n]), **fields})

    return spoil


def spoil_start(lines: list[str]) -> None:
    lines[0] = lines[0].replace('"format":1', '"format":2')


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (spoil_event, "the events of task completed were changed after the export"),
        (spoil_state, "the log of task completed does not lead to what the line says"),
        (spoil_version, "the log of task completed has gaps"),
        (spoil_json, "it cannot be read"),
        (spoil_field, "unknown field `colour`"),
        (spoil_subject, "is about another task"),
        (spoil_kind, "it is not a message"),
        (spoil_head(version=2**31 - 1), "the log of task completed has gaps"),
        (spoil_head(version=2**63), "it cannot be read"),
        (spoil_head(events=-1), "it cannot be read"),
        (spoil_head(trimmed=-1), "it cannot be read"),
        (spoil_head(attempt=2**40), "it cannot be read"),
        (spoil_head(statusAt="9999-12-31T23:59:59-12:00"), "is not a time"),
        (spoil_head(createdAt="0001-01-01T00:00:00Z"), "is not a time"),
        (spoil_head(taskId=""), "it cannot be read"),
        (spoil_start, "this release reads format 1"),
    ],
)
def test_what_cannot_be_read_back_is_not_imported(
    errands: Errands, archive: Path, target: str, spoil: Callable[[list[str]], None], problem: str
) -> None:
    lines = archive.read_text("utf-8").split("\n")
    spoil(lines)
    archive.write_text("\n".join(lines), "utf-8")
    result = errands("tasks", "import", str(archive), "--storage", target)
    assert result.exit_code == 1
    assert problem in " ".join(result.stderr.split())
    assert f"{archive}, line " in result.stderr.replace("\n", "")
    with pytest.raises(TaskNotFoundError):
        load(target, "completed")


def test_an_archive_is_for_its_owner_only_and_never_replaces_a_file(
    errands: Errands, archive: Path, tmp_path: Path
) -> None:
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    source = f"sqlite:///{tmp_path / 'source' / 'tasks.db'}"
    before = archive.read_bytes()
    again = errands("tasks", "export", str(archive), "--storage", source)
    assert again.exit_code == 2
    assert "exists; name a new file" in again.stderr
    assert archive.read_bytes() == before


@contextmanager
def served(source: str, **options: Any) -> Iterator[str]:
    """The URL of a server of a store that runs no turns."""
    card = AgentCardConfig(name=AGENT, description="Waits.")
    with live(A2AServer(worker=Idle(), agent_card=card, storage=source, role="api", **options)) as url:
        yield url


class Idle(Worker):
    async def handle(self, ctx: TaskContext) -> None: ...


def test_a_server_exports_what_its_store_has(errands: Errands, tmp_path: Path) -> None:
    source = store("sqlite", tmp_path / "source")
    asyncio.run(fill(source))
    by_store, by_server = tmp_path / "store.jsonl", tmp_path / "server.jsonl"
    with served(source, console="on") as url:
        exported = errands("tasks", "export", str(by_server), "--url", url)
        one = errands("tasks", "export", "-", "--url", url, "--task", "failed").stdout
        none = errands("tasks", "export", "-", "--url", url, "--agent", "unknown").stdout
        missing = errands("tasks", "export", "-", "--url", url, "--task", "missing")
    assert (exported.exit_code, exported.stdout) == (0, "")
    assert "6 tasks exported, 2 of them in the queue or at work." in exported.stderr
    errands("tasks", "export", str(by_store), "--storage", source)
    assert tasks_in(by_server) == tasks_in(by_store)
    assert [json.loads(line)["line"] for line in one.splitlines()] == ["archive", "task", *["event"] * 3, "end"]
    assert [json.loads(line)["line"] for line in none.splitlines()] == ["archive", "end"]
    assert (missing.exit_code, "Task not found" in missing.stderr) == (3, True)
    target = f"sqlite:///{tmp_path / 'target.db'}"
    imported = errands("tasks", "import", str(by_server), "--storage", target, "--json")
    assert json.loads(imported.stdout) == {"imported": 4, "existing": 0, "live": 2}


def test_a_server_names_its_damaged_tasks(errands: Errands, tmp_path: Path) -> None:
    source, archive = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))

    async def damage() -> None:
        async with engine_from_url(source) as engine:
            await damage_event(engine, "completed", 4, GARBAGE)

    asyncio.run(damage())
    with served(source, console="on") as url:
        exported = errands("tasks", "export", str(archive), "--url", url)
    assert exported.exit_code == 1
    assert "Task completed is damaged and was left out" in exported.stderr
    assert set(tasks_in(archive)) == {"failed", "paused", "elsewhere", "queued", "working"}


def test_a_server_exports_to_operators_only_and_nothing_is_written_for_others(errands: Errands, tmp_path: Path) -> None:
    source, archive = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))
    keys = {"own": Caller(owner="me", tenant="tenant"), "all": Caller(owner="root", scopes=frozenset({"operate"}))}
    rules = [AccessRule(name="operators", when="'operate' in caller.scopes", grant="read", reach="agent")]
    export = ["tasks", "export", str(archive), "--url"]
    with served(source, auth=[ApiKeyAuth(keys)], access_rules=rules) as url:
        refused = errands(*export, url, "--api-key", "own")
        assert (refused.exit_code, "archives are for operators" in refused.stderr) == (3, True)
        nobody = errands(*export, url)
        assert (nobody.exit_code, "--api-key KEY" in nobody.stderr) == (3, True)
        assert not archive.exists()
        assert errands(*export, url, "--api-key", "all").exit_code == 0
    assert len(tasks_in(archive)) == 6


def test_a_store_and_a_server_exclude_each_other(errands: Errands, tmp_path: Path) -> None:
    both = errands("tasks", "export", "-", "--url", "http://localhost:1", "--storage", "sqlite:///x.db")
    assert (both.exit_code, "give one of them" in both.stderr) == (2, True)
    neither = errands("tasks", "export", "-", "--header", "A: b")
    assert (neither.exit_code, "name it with --url" in neither.stderr) == (2, True)


def test_one_task_or_those_of_one_agent_are_exported_to_stdout(errands: Errands, tmp_path: Path) -> None:
    source = store("sqlite", tmp_path / "source")
    asyncio.run(fill(source))
    one = errands("tasks", "export", "-", "--storage", source, "--task", "failed").stdout
    assert [json.loads(line)["line"] for line in one.splitlines()] == ["archive", "task", *["event"] * 3, "end"]
    none = errands("tasks", "export", "-", "--storage", source, "--agent", "unknown").stdout
    assert [json.loads(line)["line"] for line in none.splitlines()] == ["archive", "end"]


@pytest.mark.parametrize(
    ("version", "data"), [(1, MISFIT), (1, GARBAGE), (3, b'{"record":"unknown"}'), (4, GARBAGE)], ids=str
)
def test_a_damaged_task_is_left_out_and_named(errands: Errands, tmp_path: Path, version: int, data: bytes) -> None:
    source, archive = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))

    async def damage() -> None:
        async with engine_from_url(source) as engine:
            await damage_event(engine, "completed", version, data)

    asyncio.run(damage())
    exported = errands("tasks", "export", str(archive), "--storage", source)
    assert exported.exit_code == 1
    assert "Task completed is damaged and was left out" in exported.stderr
    imported = errands("tasks", "import", str(archive), "--storage", f"sqlite:///{tmp_path / 'target.db'}", "--json")
    assert json.loads(imported.stdout)["imported"] == 3


def test_a_carriage_return_in_an_archive_does_not_cut_the_lines_of_streams(
    errands: Errands, archive: Path, target: str
) -> None:
    lines = archive.read_text("utf-8").split("\n")
    n = head_line(lines)
    lines[n + 1] = lines[n + 1].replace('"data":{', '"data":{\r')
    archive.write_bytes("\n".join(digested(lines)).encode())
    assert errands("tasks", "import", str(archive), "--storage", target).exit_code == 0

    async def first() -> Event:
        async with engine_from_url(target) as engine:
            return (await log_of(engine, "completed"))[0]

    assert b"\r" not in asyncio.run(first()).data


@pytest.mark.parametrize("damage", ["created_at = 1e17", "updated_at = -5", "attempt = 1e12", "attempt = -1"])
def test_a_task_with_damaged_times_or_numbers_does_not_spoil_the_archive(
    errands: Errands, tmp_path: Path, damage: str
) -> None:
    source, archive = store("sqlite", tmp_path / "source"), tmp_path / "tasks.jsonl"
    asyncio.run(fill(source))
    with closing(sqlite3.connect(tmp_path / "source" / "tasks.db")) as database, database:
        database.execute(f"UPDATE tasks SET {damage} WHERE id = 'completed'")
    exported = errands("tasks", "export", str(archive), "--storage", source)
    assert exported.exit_code == 1
    assert "Task completed is damaged and was left out" in exported.stderr
    imported = errands("tasks", "import", str(archive), "--storage", f"sqlite:///{tmp_path / 'target.db'}", "--json")
    assert json.loads(imported.stdout)["imported"] == 3


def test_webhooks_with_their_secrets_are_left_out(errands: Errands, tmp_path: Path) -> None:
    source = store("sqlite", tmp_path / "source")

    async def hook() -> None:
        clock = ManualClock()
        async with engine_from_url(source) as engine:
            push = PushConfig(id="p", url="https://h.example/secret", host="h.example:443", token="secret")
            await engine.commit(Changes(clock).start(push=push))

    asyncio.run(hook())
    result = errands("tasks", "export", "-", "--storage", source)
    assert "secret" not in result.stdout
    assert "1 task had webhooks, which are not in an archive" in result.stderr


def test_tasks_are_not_imported_into_memory(errands: Errands, archive: Path) -> None:
    result = errands("tasks", "import", str(archive), "--storage", "memory")
    assert result.exit_code == 2
    assert "lost" in result.stderr


@pytest.mark.parametrize(
    ("heading", "line"), [("field of a task line", ArchivedHead), ("field of an event line", ArchivedEvent)]
)
def test_every_field_of_an_archive_is_documented(heading: str, line: type[msgspec.Struct]) -> None:
    page = (ROOT / "docs/cli.md").read_text("utf-8")
    [found] = [table for table in tables(page) if table.header[0] == heading]
    documented = {name for row in found.rows for name in re.findall(r"`(\w+)`", row[0])}
    assert documented == {field.encode_name for field in msgspec.structs.fields(line)}
