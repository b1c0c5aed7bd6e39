"""`errands top`: what is on the screen while a server works, and which keys change it."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.text import Text

from errands import A2AServer, AgentCardConfig, TaskContext, Worker
from errands.cli.dashboard import percentiles
from errands.cli.printing import CleanConsole, state_text
from errands.engines.urls import engine_from_url
from errands.model.log import Change, Delivery, PushConfig
from errands.server.auth import ApiKeyAuth
from tests.live import live as live_app
from tests.terminal import CTRL_C, Terminal
from tests.unit.cli.agent import Gate
from tests.unit.cli.conftest import Errands, live
from tests.unit.cli.test_chat import proxied
from tests.unit.reviews.support import BOB, suspend


class Patient(Worker):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "hold":
            await self._gate.wait()
        await ctx.complete()


def server(gate: Gate, name: str = "Patient", **options: Any) -> A2AServer:
    card = AgentCardConfig(name=name, description="Waits.")
    defaults: dict[str, Any] = {"storage": "memory", "console": "on", "drain_timeout": 0.1}
    return A2AServer(worker=Patient(gate), agent_card=card, **(defaults | options))


@pytest.fixture
def url(gate: Gate) -> Iterator[str]:
    with live(server(gate)) as url:
        yield url
        gate.open()


def test_running_tasks_and_throughput_are_on_the_screen(errands: Errands, url: str, gate: Gate, tmp_path: Path) -> None:
    task = errands("send", url, "hold", "--no-wait").stdout.strip()
    with Terminal("top", url, "--interval", "0.2", cwd=tmp_path, columns=140) as terminal:
        terminal.shows(f"{url}  healthy", "running 1 of 1000", task, "working", "Patient")
        for _ in range(3):
            errands("send", url, "hello")
        terminal.until(lambda: re.search(r"completed \d+\.\d/s", terminal.display))
        terminal.until(lambda: re.search(r"p50 .* p95 .* p99", terminal.display))
        gate.open()
        terminal.shows("No task is running.")
        terminal.press("q")
        assert terminal.exit_code() == 0


def test_a_lease_counts_down(errands: Errands, url: str, tmp_path: Path) -> None:
    errands("send", url, "hold", "--no-wait")
    seen: set[str] = set()

    def counts() -> bool:
        seen.update(re.findall(r"working +1 +\d+s +(\d+) s", terminal.display))
        return len(seen) >= 3

    # Only the countdown changes: the server is not asked again so soon.
    with Terminal("top", url, "--interval", "60", cwd=tmp_path, columns=140) as terminal:
        terminal.until(counts)


def test_p_pauses_and_s_sorts(errands: Errands, url: str, tmp_path: Path) -> None:
    errands("send", url, "hold", "--no-wait")
    with Terminal("top", url, "--interval", "0.2", cwd=tmp_path, columns=140) as terminal:
        terminal.shows("AGE ▾")
        for column in ("LEASE ▾", "AGENT ▾", "OWNER ▾", "AGE ▾"):
            terminal.press("s")
            terminal.until(lambda column=column: column in terminal.display, column)  # type: ignore[misc]
        terminal.press("p")
        terminal.until(lambda: "PAUSED" in terminal.display)
        terminal.press("p")
        terminal.until(lambda: "PAUSED" not in terminal.display)
        terminal.press(CTRL_C)
        assert terminal.exit_code() == 130


def test_a_server_that_goes_away_is_said_and_asked_again(url: str, tmp_path: Path) -> None:
    with proxied(url) as proxy:
        port = proxy.port
        terminal = Terminal("top", proxy.url, "--interval", "0.2", cwd=tmp_path, columns=140)
        terminal.shows("healthy")
    with terminal:
        terminal.until(lambda: "NO ANSWER for" in terminal.display)
        assert "PROCESS" in terminal.display, "what was known is still shown"
        with proxied(url, port):
            terminal.until(lambda: "NO ANSWER" not in terminal.display)
            terminal.press("q")
            assert terminal.exit_code() == 0


def test_reviews_and_dead_webhooks_are_listed(errands: Errands, gate: Gate, tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"

    async def make() -> None:
        async with engine_from_url(storage) as engine:
            await suspend(engine, "asked", BOB)
            scope = (await engine.load("asked", None)).scope
            push = PushConfig(id="hook", url="https://hooks.example/secret", host="hooks.example:443")
            await engine.commit(Change(task_id="asked", scope=scope, at=engine.clock(), push=push))
            await engine.settle_deliveries(
                [
                    Delivery(
                        task_id="asked", config_id="hook", claim=0, delivered=0, failed_at=1, error="gone", dead=True
                    )
                ]
            )

    asyncio.run(make())
    with live(server(gate, "Test agent", storage=storage)) as url, Terminal("top", url, cwd=tmp_path) as terminal:
        terminal.shows("REVIEW OF TASK", BOB, "reviews 1", "WEBHOOK OF TASK", "hooks.example:443", "gone", "dead 1")
        terminal.shows("1 webhook given up")
        assert "secret" not in terminal.text


def test_json_is_one_document(errands: Errands, url: str) -> None:
    errands("send", url, "hello")
    found = json.loads(errands("top", url, "--json").stdout)
    assert found["problems"] == []
    [process] = found["processes"]
    assert process["role"] == "all"
    assert found["runningTasks"] == []
    assert found["requestsPerSecond"] > 0
    assert set(found["latency"]) == {"p50", "p95", "p99"}


def test_once_prints_the_same_in_a_pipe(errands: Errands, url: str) -> None:
    shown = errands("top", url, "--once").stdout
    assert f"{url}  healthy" in shown
    assert "No task is running." in shown


def test_without_a_terminal_there_is_no_dashboard(errands: Errands, url: str) -> None:
    result = errands("top", url)
    assert result.exit_code == 2
    assert "--once or --json" in result.stderr


def test_an_operator_api_that_is_off_is_an_error_with_a_way_out(errands: Errands, gate: Gate) -> None:
    with live(server(gate, console="off")) as url:
        result = errands("top", url, "--once")
    assert result.exit_code == 3
    assert "the operator API is not available to you" in result.stderr
    assert "errands tasks running --storage URL" in result.stderr


def test_figures_are_for_operators(errands: Errands, gate: Gate) -> None:
    with live(server(gate, auth=[ApiKeyAuth({"k3y": "alice"})])) as url:
        without = errands("top", url, "--once")
        assert without.exit_code == 3
        assert "--api-key" in without.stderr
        refused = errands("top", url, "--once", "--api-key", "k3y")
    assert refused.exit_code == 3
    assert "operators" in refused.stderr


def test_another_server_is_recognised(errands: Errands) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"<html>"})

    with live_app(app) as url:
        result = errands("top", url, "--once")
    assert result.exit_code == 3
    assert "unlike a server of errands" in result.stderr


ESCAPE = "\x1b]0;owned\x07\x9b2J\u202e"


def test_a_server_cannot_write_to_the_terminal_but_texts(errands: Errands) -> None:
    """Every text of every answer has something that a terminal would obey."""
    sample = {"name": "errands_tasks_total", "labels": {"state": ESCAPE + "odd"}, "value": 5.0}
    process = {"id": ESCAPE, "role": ESCAPE, "version": ESCAPE, "startedAt": 0, "at": 1000, "figures": [sample]}
    running = {"taskId": ESCAPE, "agent": ESCAPE, "owner": ESCAPE, "state": ESCAPE, "worker": ESCAPE}
    numbers = {"attempt": 1, "leaseUntil": 2000, "age": 5}
    answers: dict[str, Any] = {
        "/admin/figures": {"now": 1000, "process": process, "processes": []},
        "/admin/running": [running | numbers],
        "/admin/reviews": [{"taskId": ESCAPE, "agent": ESCAPE, "user": ESCAPE, "since": 0, "text": ESCAPE}],
        "/admin/outbox": [
            {"taskId": ESCAPE, "configId": "c", "host": ESCAPE, "attempts": 1, "error": ESCAPE, "dead": False}
        ],
    }

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": json.dumps(answers[scope["path"]]).encode()})

    with live_app(app) as url:
        shown, as_json = errands("top", url, "--once"), errands("top", url, "--once", "--json")
    assert (shown.exit_code, as_json.exit_code) == (0, 0)
    assert "odd" in shown.stdout
    for text in (shown.stdout, as_json.stdout):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert json.loads(as_json.stdout)["reviews"][0]["user"] == ESCAPE


def test_nor_can_an_error_of_a_server_on_the_screen_of_the_dashboard() -> None:
    with StringIO() as file:
        CleanConsole(file=file, force_terminal=True, width=80).print(Text(f"NO ANSWER {ESCAPE}"), state_text(ESCAPE))
        printed = file.getvalue()
    assert "NO ANSWER" in printed
    assert "\x1b]" not in printed
    assert not set("\x07\x9b\u202e") & set(printed)


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([0, 0, 0], {}),
        ([10, 0, 0], {"p50": 0.5, "p95": 0.95, "p99": 0.99}),
        ([0, 10, 0], {"p50": 1.5, "p95": 1.95, "p99": 1.99}),
        ([50, 45, 5], {"p50": 1.0, "p95": 2.0, "p99": 2.0}),
        ([0, 0, 1], {"p50": 2.0, "p95": 2.0, "p99": 2.0}),
    ],
)
def test_percentiles_are_interpolated_in_their_buckets(counts: list[float], expected: dict[str, float]) -> None:
    assert percentiles((1.0, 2.0), counts) == pytest.approx(expected)
