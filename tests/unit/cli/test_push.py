"""`errands push`: failed deliveries, listed, retried and dropped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from errands.clock import system_clock
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.log import Delivery, OutboxEntry, PushConfig, Scope
from tests.contract.changes import Changes
from tests.unit.cli.conftest import Errands

_T = TypeVar("_T")
SCOPE = Scope("", "alice", "Shop")


@pytest.fixture
def store(tmp_path: Path) -> str:
    """A store with a webhook that was given up, one that fails and one that was told everything."""
    url = f"sqlite:///{tmp_path / 'tasks.db'}"
    use(url, fill)
    return url


def use(url: str, action: Callable[[Engine], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        async with engine_from_url(url) as engine:
            return await action(engine)

    return asyncio.run(run())


async def fill(engine: Engine) -> None:
    changes, now = Changes(system_clock), system_clock()
    for name in ("failing", "dead", "fine"):
        push = PushConfig(id=f"{name}-config", url="https://hooks.example/hush", host="hooks.example:443", token="hush")
        await engine.commit(changes.start(name, scope=SCOPE, push=push))
    for entry in await engine.claim_deliveries("Shop", 9, lambda host: 9, now + 60_000):
        failure: dict[str, Any] = {"attempts": 3, "failed_at": now - 7_200_000, "error": "HTTP 500"}
        fields = {"dead": {**failure, "dead": True}, "failing": {**failure, "due_at": now + 90_000}}
        await engine.settle_deliveries(
            [
                Delivery(
                    task_id=entry.task_id,
                    config_id=entry.config.id,
                    claim=entry.claim,
                    delivered=2,
                    **fields.get(entry.task_id, {}),
                )
            ]
        )


async def entries(engine: Engine) -> dict[str, OutboxEntry]:
    return {entry.task_id: entry async for entry in engine.outbox()}


def test_failed_deliveries_are_listed_dead_ones_first(errands: Errands, store: str) -> None:
    shown = errands("push", "list", "--storage", store).stdout.splitlines()
    assert [line.split()[0] for line in shown] == ["TASK", "dead", "failing"]
    assert shown[1].split()[1:] == ["dead-config", "hooks.example:443", "dead", "2h", "HTTP", "500"]
    assert "in 1m" in shown[2]
    everything = errands("push", "list", "--storage", store, "--all", "--json")
    found = json.loads(everything.stdout)
    assert [one["taskId"] for one in found] == ["dead", "failing", "fine"]
    assert (found[0]["dead"], found[0]["owner"], found[2]["attempts"]) == (True, "alice", 0)
    assert "hush" not in everything.output + "".join(shown)


def test_a_listing_can_be_of_one_agent_and_short(errands: Errands, store: str) -> None:
    other = errands("push", "list", "--storage", store, "--agent", "Other")
    assert (other.stdout, other.stderr) == ("", "No delivery has failed.\n")
    short = errands("push", "list", "--storage", store, "--limit", "1")
    assert [line.split()[0] for line in short.stdout.splitlines()] == ["TASK", "dead"]
    assert "--limit 5" in short.stderr


def test_a_dead_delivery_is_due_again_when_it_is_retried(errands: Errands, store: str) -> None:
    assert errands("push", "retry", "dead", "--storage", store).exit_code == 0
    entry = use(store, entries)["dead"]
    assert (entry.dead, entry.attempts) == (False, 0)
    assert entry.due_at is not None


def test_a_webhook_that_is_dropped_is_gone(errands: Errands, store: str) -> None:
    assert errands("push", "drop", "dead", "dead-config", "--storage", store).exit_code == 0
    assert sorted(use(store, entries)) == ["failing", "fine"]


@pytest.mark.parametrize("command", ["retry", "drop"])
def test_what_does_not_exist_is_refused(errands: Errands, store: str, command: str) -> None:
    for arguments in (["unknown"], ["dead", "unknown"]):
        refused = errands("push", command, *arguments, "--storage", store)
        assert refused.exit_code == 2
        assert "errands push list" in refused.stderr
