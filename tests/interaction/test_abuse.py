"""Hundreds of hostile clients at once, beside honest ones: these are answered, soon, and the server stays small."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.interaction.abuse import ACCOUNTS, HONEST, SPAMMERS, STREAMERS
from tests.interaction.test_bounds import Target, bearable
from tests.soak import LONG
from tests.unit.cli.processes import LongServed
from tests.unit.cli.programs import write

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc"),
]

SECONDS, CLIENTS, STREAMS = (120, 200, 1000) if LONG else (4, 40, 100)
#: Another process may take the core at the wrong moment.
TRIES = 1 if LONG else 3
#: Megabytes by which the server may grow: what it may hold for its clients, and what large requests take while they
#: are handled.
MOST = 350

PROGRAM = f"""
import asyncio

from errands import A2AServer, AgentCardConfig, ApiKeyMiddleware, CapabilitiesConfig, TaskContext, Worker

class Agent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "talk":
            while not ctx.is_cancelled:
                await ctx.emit_text_artifact("x" * 10_000, artifact_id="talk", append=True)
                await asyncio.sleep(0.5)
        elif ctx.user_text == "slow":
            while not ctx.is_cancelled:
                await asyncio.sleep(0.01)
        else:
            await ctx.complete("hi")

server = A2AServer(
    worker=Agent(),
    agent_card=AgentCardConfig(name="Agent", description="x", capabilities=CapabilitiesConfig(streaming=True)),
    middlewares=[ApiKeyMiddleware({[*ACCOUNTS, *STREAMERS, *SPAMMERS, *HONEST]!r})],
)
"""
#: What docs/limits.md recommends for a server that strangers can reach.
SETTINGS = {
    "caller_rate": "50",
    "caller_burst": "100",
    "caller_max_tasks": "100",
    "caller_max_streams": "250",
    "caller_max_bytes": "50000000",
    "task_timeout": "3600",
    "max_buffered_bytes": "64000000",
    # So that webhooks of strangers are called here, as public ones are elsewhere.
    "push_allow": "127.0.0.0/8",
}


def start(role: str, url: str, seconds: float, clients: int, streams: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.interaction.abuse", role, url, str(seconds), str(clients), str(streams)]
    return subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> Any:
    said, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(said)


def p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100 - 1]


def test_honest_clients_are_served_beside_hostile_ones(tmp_path: Path) -> None:
    with LongServed(write(tmp_path, PROGRAM), cwd=tmp_path, port=0, **SETTINGS) as served, ExitStack() as stack:
        target = Target(served, stack)
        finish(start("honest", served.url, 1, len(HONEST)))
        before = target.megabytes("VmRSS")
        for _ in range(TRIES):
            quiet = finish(start("honest", served.url, SECONDS / 3, len(HONEST)))
            hostile = start("hostile", served.url, SECONDS, CLIENTS, STREAMS)
            stack.callback(hostile.kill)
            attacked = finish(start("honest", served.url, SECONDS, len(HONEST)))
            seen = finish(hostile)["statuses"]
            slowest, usual = p99(attacked["taken"]), p99(quiet["taken"])
            failures = len(quiet["failures"]) + len(attacked["failures"])
            print(
                f"p99 of {len(quiet['taken'])} requests {usual * 1000:.1f} ms -> of {len(attacked['taken'])} beside "
                f"{CLIENTS} hostile clients {slowest * 1000:.1f} ms, {slowest / usual:.1f} x; {failures} failures"
            )
            print(json.dumps(seen, indent=1))
            assert quiet["failures"] == attacked["failures"] == []
            if slowest < bearable(usual):
                break
        assert slowest < bearable(usual)
        most, now = target.megabytes("VmHWM"), target.megabytes("VmRSS")
        print(f"resident memory {before:.0f} MB before, {most:.0f} MB at most, {now:.0f} MB at the end")
        assert most - before < MOST
        # On a slow machine not all of them are open before the time is over.
        assert seen["streams 200"] > STREAMS / 2
        assert sum(count for kind, count in seen.items() if kind.startswith("called ")) > 0
        assert "Traceback" not in served.stop().stderr
