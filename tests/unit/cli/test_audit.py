"""`errands audit`: who did what to which task, and a file in which nothing can be changed unnoticed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from errands import A2AClient, A2AServer, AgentCardConfig, ApiKeyMiddleware, TaskContext, Worker
from errands.engines.base import Engine
from errands.errors import TaskNotFoundError
from errands.model.log import LogSlice, StoredTask
from errands.policy.audit_trail import read_log
from errands.runtime.middleware import digest_of
from errands.testing import BASE_URL, http_client
from tests.conftest import STORAGES
from tests.unit.cli.conftest import Errands

DURABLE = [name for name in STORAGES if name != "memory"]


class Obliging(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("what?")
            return
        async with ctx.capability("search", {"query": "tea"}) as call:
            call.output = "found"
        for number in range(3):
            await ctx.emit_text_artifact("secret words", append=number > 0)
        await ctx.complete()


async def work(storage: str, *, audit: bool = True, name: str = "m") -> list[str]:
    """The ids of a task that was answered and completed, and of one that was canceled."""
    server = A2AServer(
        worker=Obliging(),
        agent_card=AgentCardConfig(name="Obliging", description="Obliges."),
        middlewares=[ApiKeyMiddleware(["alice"])],
        storage=storage,
        audit=audit,
    )
    headers = {"X-API-Key": "alice"}
    async with (
        server,
        http_client(server) as http,
        A2AClient(BASE_URL, httpx_client=http, headers=headers) as client,
    ):
        asked = await client.send("ask", message_id=f"{name}1")
        await client.send("secret question", task_id=asked.task_id, message_id=f"{name}2")
        other = await client.send("ask", message_id=f"{name}3")
        await client.cancel(other.task_id)
    return [asked.task_id, other.task_id]


def entries(errands: Errands, *arguments: str) -> list[dict[str, Any]]:
    result = errands("audit", *arguments)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


@pytest.fixture(params=DURABLE)
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return STORAGES[request.param](tmp_path)


def test_the_trail_says_who_did_what_from_where_and_with_which_outcome(errands: Errands, storage: str) -> None:
    answered, canceled = asyncio.run(work(storage))
    found = entries(errands, "--storage", storage, "--task", answered)
    alice = digest_of("alice")
    assert [(one["action"], one["actor"], one.get("outcome", "")) for one in found] == [
        ("lease", "worker", ""),
        ("create", "caller", ""),
        ("state", "worker", ""),
        ("state", "worker", ""),
        ("lease", "worker", ""),
        ("state", "worker", ""),
        ("message", "caller", ""),
        ("state", "worker", ""),
        ("call", "worker", "finished"),
        ("artifact", "worker", ""),
        ("state", "worker", ""),
    ]
    sent = [one for one in found if one["actor"] == "caller"]
    assert [(one["by"], one["address"], one["detail"]["message"]) for one in sent] == [
        (alice, "127.0.0.1", "m1"),
        (alice, "127.0.0.1", "m2"),
    ]
    assert all(one["owner"] == alice and one["agent"] == "Obliging" and one["at"] for one in found)
    assert "secret" not in json.dumps(found)
    last = entries(errands, "--storage", storage, "--task", canceled)[-2:]
    assert [(one["action"], one["by"], one.get("address")) for one in last[:1]] == [("cancel", alice, "127.0.0.1")]
    assert last[1]["detail"] == {"state": "canceled"}


def at(folder: Path) -> str:
    return f"sqlite:///{folder / 'tasks.db'}"


def test_without_the_setting_the_owner_is_known_and_no_address(errands: Errands, tmp_path: Path) -> None:
    answered, _ = asyncio.run(work(at(tmp_path), audit=False))
    found = [one for one in entries(errands, "--storage", at(tmp_path), "--task", answered) if one["actor"] == "caller"]
    assert {(one["by"], one.get("address")) for one in found} == {(digest_of("alice"), None)}


def test_the_trail_can_begin_at_a_time(errands: Errands, tmp_path: Path) -> None:
    asyncio.run(work(at(tmp_path)))
    assert len(entries(errands, "--storage", at(tmp_path), "--since", "2020-01-31")) > 10
    assert entries(errands, "--storage", at(tmp_path), "--since", "2999-01-31T12:00:00Z") == []
    wrong = errands("audit", "--storage", at(tmp_path), "--since", "yesterday")
    assert (wrong.exit_code, "expected a time such as" in wrong.stderr) == (2, True)


def test_a_chained_file_is_continued_and_verified(errands: Errands, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    options = ("--storage", at(tmp_path))
    asyncio.run(work(at(tmp_path)))
    first = errands("audit", *options, "--append", str(file)).stdout.strip()
    lines = file.read_bytes().splitlines()
    assert json.loads(lines[-1])["hash"] == first
    assert file.stat().st_mode & 0o777 == 0o600
    again = errands("audit", *options, "--append", str(file))
    assert (again.stdout.strip(), "0 entries were added" in again.stderr) == (first, True)
    asyncio.run(work(at(tmp_path), name="n"))
    assert errands("audit", *options, "--append", str(file)).stdout.strip() != first
    assert file.read_bytes().splitlines()[: len(lines)] == lines
    verified = errands("audit", *options, "--verify", str(file))
    assert (verified.exit_code, "match the store" in verified.stderr) == (0, True)


Lines = list[bytes]
#: What is done to the lines of a file, and how it is found out.
FORGERIES: dict[str, Callable[[Lines], Lines]] = {
    "it was changed": lambda lines: [lines[0], lines[1].replace(b"127.0.0.1", b"10.0.0.1")],
    "line 3: a line before it was removed": lambda lines: [*lines[:2], *lines[3:]],
    "line 1: a line before it was removed": lambda lines: lines[1:],
    "line 2: a line before it was removed": lambda lines: [lines[0], lines[0], *lines[1:]],
    "it is not a line of a chained audit file": lambda lines: [*lines[:2], lines[2][:-20]],
}


def test_a_changed_file_is_found_out(errands: Errands, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    options = ("--storage", at(tmp_path))
    asyncio.run(work(at(tmp_path)))
    errands("audit", *options, "--append", str(file))
    lines = file.read_bytes().splitlines()
    for problem, forge in FORGERIES.items():
        file.write_bytes(b"".join(line + b"\n" for line in forge(lines)))
        for command in ("--verify", "--append"):
            result = errands("audit", *options, command, str(file))
            assert result.exit_code == 1
            assert problem in result.stderr
    file.write_bytes(b"\n".join(lines))
    assert "it is incomplete" in errands("audit", *options, "--append", str(file)).stderr


def test_a_changed_store_is_found_out(errands: Errands, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    options = ("--storage", at(tmp_path))
    answered, _ = asyncio.run(work(at(tmp_path)))
    errands("audit", *options, "--append", str(file))
    database = sqlite3.connect(tmp_path / "tasks.db")
    with database:
        # The last piece of the artifact, which has no entry of its own.
        database.execute(
            "update events set data = replace(cast(data as text), 'secret words', 'other words') where rowid = "
            "(select max(rowid) from events where kind = 'artifact')"
        )
    database.close()
    result = errands("audit", *options, "--verify", str(file))
    assert result.exit_code == 1
    assert f"of task {answered}" in result.stderr


async def refuse(storage: str, times: int, headers: dict[str, str] | None = None) -> None:
    """Have requests without a key refused, or those with one that ask for unknown tasks."""
    server = A2AServer(
        worker=Obliging(),
        agent_card=AgentCardConfig(name="Obliging", description="Obliges."),
        middlewares=[ApiKeyMiddleware(["alice"])],
        storage=storage,
        audit=True,
    )
    async with server, http_client(server) as http:
        for number in range(times):
            assert (await http.get(f"/tasks/t{number}", headers=headers)).status_code == (404 if headers else 401)


def test_requests_that_no_task_shows_are_in_the_trail_and_in_the_chain(errands: Errands, storage: str) -> None:
    asyncio.run(refuse(storage, 2))
    found = entries(errands, "--storage", storage)
    assert [(one["action"], one["outcome"], one["address"]) for one in found] == [
        ("denied", "UNAUTHENTICATED", "127.0.0.1")
    ] * 2


def test_a_changed_access_log_is_found_out(errands: Errands, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    options = ("--storage", at(tmp_path))
    asyncio.run(refuse(at(tmp_path), 3))
    errands("audit", *options, "--append", str(file))
    assert "0 entries were added" in errands("audit", *options, "--append", str(file)).stderr
    assert errands("audit", *options, "--verify", str(file)).exit_code == 0
    ids = [json.loads(line)["access"] for line in file.read_bytes().splitlines()]
    database = sqlite3.connect(tmp_path / "tasks.db")
    with database:
        # Retention deletes the oldest ones.
        database.execute("delete from accesses where id = ?", (ids[0],))
    verified = errands("audit", *options, "--verify", str(file))
    assert (verified.exit_code, "0 tasks and 1 entries of the access log" in verified.stderr) == (0, True)
    with database:
        database.execute("update accesses set data = replace(cast(data as text), '127.0.0.1', '10.0.0.1')")
    result = errands("audit", *options, "--verify", str(file))
    assert (result.exit_code, ids[1] in result.stderr, ids[0] in result.stderr) == (1, True, False)
    with database:
        database.execute("delete from accesses where id = ?", (ids[2],))
    database.close()
    assert ids[2] in errands("audit", *options, "--verify", str(file)).stderr


def test_damaged_entries_and_times_do_not_stop_the_trail(errands: Errands, tmp_path: Path) -> None:
    options = ("--storage", at(tmp_path))
    asyncio.run(work(at(tmp_path)))
    asyncio.run(refuse(at(tmp_path), 3))
    before = len(entries(errands, *options))
    database = sqlite3.connect(tmp_path / "tasks.db")
    ids = [row[0] for row in database.execute("select id from accesses order by at, id")]
    with database:
        database.execute("update accesses set data = 'no JSON' where id = ?", (ids[0],))
        database.execute("update accesses set at = 'never', data = 3 where id = ?", (ids[1],))
        database.execute("update accesses set at = 1 << 62, data = 3 where id = ?", (ids[2],))
        database.execute("update events set at = 1 << 62")
    database.close()
    found = entries(errands, *options)
    assert len(found) == before
    assert [one["action"] for one in found].count("unreadable") == 3
    assert found[0]["at"].startswith("9999-")


def test_tasks_that_are_deleted_meanwhile_do_not_stop_the_trail(
    errands: Errands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = asyncio.run(work(at(tmp_path)))

    async def deleting(engine: Engine, stored: StoredTask) -> LogSlice:
        if stored.task.id == ids[0]:
            raise TaskNotFoundError(taskId=ids[0])
        return await read_log(engine, stored)

    monkeypatch.setattr("errands.cli.audit.read_log", deleting)
    assert {one["task"] for one in entries(errands, "--storage", at(tmp_path))} == {ids[1]}
    assert errands("audit", "--storage", at(tmp_path), "--append", str(tmp_path / "audit.jsonl")).exit_code == 0


def test_the_trail_of_a_task_that_is_gone_has_what_the_access_log_says(errands: Errands, tmp_path: Path) -> None:
    asyncio.run(refuse(at(tmp_path), 2, {"X-API-Key": "alice"}))
    options = ("--storage", at(tmp_path))
    assert [(one["action"], one["task"]) for one in entries(errands, *options, "--task", "t1")] == [("denied", "t1")]
    assert errands("audit", *options, "--task", "unknown").exit_code != 0


def test_verifying_takes_no_other_options(errands: Errands, tmp_path: Path) -> None:
    for options in (("--verify", "x", "--task", "t"), ("--append", "x", "--since", "2020-01-31")):
        assert errands("audit", *options).exit_code == 2
