"""`errands db`: the tables of a store, made, checked and printed."""

from __future__ import annotations

import asyncio
import json
import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from errands.clock import system_clock
from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError
from errands.model.log import Work
from tests.conftest import STORAGES
from tests.damage import damage_event, damage_head
from tests.postgres import own_schema
from tests.unit.cli.conftest import Errands
from tests.unit.support import opening


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store without tables."""
    return own_schema(tmp_path) if request.param == "postgresql" else f"sqlite:///{tmp_path / 'folder' / 'tasks.db'}"


def test_an_empty_store_is_told_apart_made_and_then_fine(errands: Errands, empty: str) -> None:
    refused = errands("db", "check", "--storage", empty)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "errands db upgrade" in refused.stderr
    made = re.search(r"created with schema version (\d+)", errands("db", "upgrade", "--storage", empty).stdout)
    assert made is not None
    assert f"already have schema version {made[1]}" in errands("db", "upgrade", "--storage", empty).stdout
    fine = errands("db", "check", "--storage", empty)
    assert fine.exit_code == 0
    assert fine.stdout == f"The tables have schema version {made[1]}; this release can use them.\n"


def test_checking_and_printing_change_nothing(errands: Errands, empty: str) -> None:
    script = errands("db", "sql", "--storage", empty).stdout
    assert "CREATE TABLE tasks" in script
    errands("db", "check", "--storage", empty)
    assert errands("db", "sql", "--storage", empty).stdout == script


def test_nothing_is_printed_for_tables_that_are_up_to_date(errands: Errands, empty: str) -> None:
    errands("db", "upgrade", "--storage", empty)
    printed = errands("db", "sql", "--storage", empty)
    assert (printed.exit_code, printed.stdout, printed.stderr) == (0, "", "There is nothing to do.\n")


def test_the_printed_sql_makes_a_file_that_errands_can_use(errands: Errands, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    script = errands("db", "sql", "--storage", url).stdout
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        connection.executescript(script)
    assert errands("db", "check", "--storage", url).exit_code == 0


def test_a_file_of_another_program_is_left_as_it_is(errands: Errands, tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "tasks.db")) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    before = (tmp_path / "tasks.db").read_bytes()
    for command in ("check", "upgrade", "sql"):
        result = errands("db", command, "--storage", f"sqlite:///{tmp_path / 'tasks.db'}")
        assert result.exit_code == 1
        assert "another program" in result.stderr
    assert (tmp_path / "tasks.db").read_bytes() == before


def test_memory_has_no_tables(errands: Errands) -> None:
    result = errands("db", "upgrade", "--storage", "memory")
    assert result.exit_code == 2
    assert "no tables" in result.stderr


def test_the_storage_of_the_settings_is_meant_when_none_is_named(
    errands: Errands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDS_STORAGE", f"sqlite:///{tmp_path / 'of the settings.db'}")
    errands("db", "upgrade")
    assert (tmp_path / "of the settings.db").exists()


def test_a_server_that_is_not_there_is_a_sentence(errands: Errands) -> None:
    result = errands("db", "check", "--storage", "postgresql://me:secret@localhost:1/tasks")
    assert result.exit_code == 1
    assert "cannot be reached" in result.stderr
    assert "secret" not in result.stderr


@pytest.mark.parametrize("scheme", ["postgresql", "postgres", "postgresql+asyncpg"])
def test_every_way_to_write_the_url_means_the_same(scheme: str) -> None:
    assert engine_from_url(f"{scheme}://me@localhost/tasks").name == "postgresql"


def test_without_the_extra_the_message_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("errands.engines.postgres")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'errands\[postgres\]'"):
        engine_from_url("postgresql://me@localhost/tasks")


@pytest.fixture(params=[name for name in STORAGES if name != "memory"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store with three tasks: one is fine, one has a damaged log, one a damaged head."""
    url = STORAGES[request.param](tmp_path)
    asyncio.run(fill(url))
    return url


async def fill(url: str) -> None:
    now = system_clock()
    async with engine_from_url(url) as engine:
        for task_id in ("fine", "torn", "headless"):
            held: dict[str, Any] = {"work": Work.LEASE, "worker": "host:1:abc", "due_at": now + 60_000}
            await engine.commit(opening(task_id, at=now, **held))
        await damage_event(engine, "torn", 1)
        await damage_head(engine, "headless")


def test_damaged_tasks_are_listed_with_the_reason(errands: Errands, damaged: str) -> None:
    listed = errands("db", "damaged", "--storage", damaged)
    assert (listed.exit_code, listed.stderr) == (0, "")
    header, *rows = listed.stdout.splitlines()
    assert header.split() == ["TASK", "CHANGED", "AGENT", "OWNER", "WHY"]
    assert sorted(row.split()[0] for row in rows) == ["headless", "torn"]
    documents = json.loads(errands("db", "damaged", "--storage", damaged, "--json").stdout)
    (torn,) = [document for document in documents if document["taskId"] == "torn"]
    assert torn["agent"] == "Test agent"
    assert torn["damage"]


def test_damaged_tasks_are_deleted_though_a_worker_holds_them(errands: Errands, damaged: str) -> None:
    deleted = errands("db", "damaged", "--storage", damaged, "--delete", "torn", "--delete", "headless")
    assert deleted.exit_code == 0
    assert deleted.stdout == "Task torn is deleted.\nTask headless is deleted.\n"
    assert errands("db", "damaged", "--storage", damaged).stderr == "Every task can be read.\n"


def test_only_damaged_tasks_are_deleted(errands: Errands, damaged: str) -> None:
    refused = errands("db", "damaged", "--storage", damaged, "--delete", "fine")
    assert refused.exit_code == 2
    assert "only deletes damaged tasks" in refused.stderr
    assert errands("db", "damaged", "--storage", damaged, "--delete", "unknown").exit_code != 0
