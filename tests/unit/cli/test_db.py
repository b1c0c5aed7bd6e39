"""`errands db`: the tables of a store, made, checked and printed."""

from __future__ import annotations

import re
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from errands.engines.urls import engine_from_url
from errands.errors import ConfigurationError
from tests.postgres import own_schema
from tests.unit.cli.conftest import Errands


@pytest.fixture(params=["sqlite", "postgresql"])
def empty(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store without tables."""
    return own_schema(tmp_path) if request.param == "postgresql" else f"sqlite:///{tmp_path / 'folder' / 'tasks.db'}"


def test_an_empty_store_is_told_apart_made_and_then_fine(errands: Errands, empty: str) -> None:
    refused = errands("db", "check", "--storage", empty)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "errands db upgrade" in refused.stderr
    made = re.search(r"made, with schema version (\d+)", errands("db", "upgrade", "--storage", empty).stdout)
    assert made is not None
    assert f"schema version {made[1]} already" in errands("db", "upgrade", "--storage", empty).stdout
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
    assert (printed.exit_code, printed.stdout, printed.stderr) == (0, "", "Nothing is to be done.\n")


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
