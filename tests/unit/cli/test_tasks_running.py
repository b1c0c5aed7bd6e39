"""`errands tasks running`: what the store says is at work."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from errands.cli.printing import duration
from errands.clock import system_clock
from errands.engines.urls import engine_from_url
from errands.model.core import TaskState
from errands.model.log import Work
from tests.unit.cli.conftest import Errands
from tests.unit.support import opening, step

SECOND = 1000


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a task at work, one that is about to be canceled, and one that waits."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    asyncio.run(fill(url))
    return url


async def fill(url: str) -> None:
    now = system_clock()
    leased: dict[str, Any] = {"work": Work.LEASE, "worker": "host:1:abc", "due_at": now + 100 * SECOND}
    async with engine_from_url(url) as engine:
        await engine.commit(opening("old", at=now - 90 * SECOND, **leased))
        await engine.commit(step("old", TaskState.WORKING, fence=1, at=now))
        await engine.commit(opening("unwanted", at=now, **leased))
        await engine.commit(step("unwanted", TaskState.WORKING, fence=1, at=now, cancel_requested=True))
        await engine.commit(opening("waiting", at=now, due_at=now))


def test_it_shows_what_is_held_by_whom_the_oldest_first(errands: Errands, store: str) -> None:
    header, *rows = [line.split() for line in errands("tasks", "running", "--storage", store).stdout.splitlines()]
    assert header == ["TASK", "STATE", "ATTEMPT", "AGE", "LEASE", "AGENT", "WORKER"]
    assert [(row[0], row[1], row[2], row[4], row[-1]) for row in rows] == [
        ("old", "working", "1", "1m", "host:1:abc"),
        ("unwanted", "canceling", "1", "1m", "host:1:abc"),
    ]
    assert rows[0][3] == "1m"


def test_json_has_every_field(errands: Errands, store: str) -> None:
    old, unwanted = json.loads(errands("tasks", "running", "--storage", store, "--json").stdout)
    assert old.pop("leaseUntil") > "2026"
    assert old.pop("ageSeconds") >= 90
    assert old == {
        "taskId": "old",
        "contextId": "c",
        "state": "TASK_STATE_WORKING",
        "agent": "Test agent",
        "owner": "",
        "tenant": "",
        "worker": "host:1:abc",
        "attempt": 1,
        "cancelRequested": False,
    }
    assert unwanted["cancelRequested"] is True


def test_it_can_be_of_one_agent(errands: Errands, store: str) -> None:
    result = errands("tasks", "running", "--storage", store, "--agent", "Another")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "Nothing is running.\n")


def test_the_default_store_is_that_of_the_environment(
    errands: Errands, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ERRANDS_STORAGE", store)
    assert len(errands("tasks", "running").stdout.splitlines()) == 3


def test_a_store_that_is_not_there_is_not_made(errands: Errands, tmp_path: Path) -> None:
    result = errands("tasks", "running", "--storage", f"sqlite:///{tmp_path / 'none.db'}")
    assert result.exit_code == 2
    assert "name the store with --storage" in result.stderr
    assert not (tmp_path / "none.db").exists()


def test_memory_cannot_be_looked_into(errands: Errands) -> None:
    result = errands("tasks", "running", "--storage", "memory")
    assert result.exit_code == 2
    assert "only the server itself can read" in result.stderr


@pytest.mark.parametrize(
    ("ms", "words"), [(-5, "0s"), (59_999, "59s"), (60_000, "1m"), (7_200_000, "2h"), (180_000_000, "2d")]
)
def test_a_duration_is_told_in_the_largest_unit_that_fits(ms: int, words: str) -> None:
    assert duration(ms) == words
