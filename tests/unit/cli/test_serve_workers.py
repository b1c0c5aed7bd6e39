"""`errands serve --workers`: several real processes on one port, killed, replaced and drained."""

from __future__ import annotations

import os
import re
import signal
import socket
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from errands.cli.supervisor import restart_delay
from errands.client.grpc_transport import GrpcTransport
from errands.model.core import Message, Part, Role, TaskState
from errands.model.requests import SendMessageRequest
from errands.operations import OPERATIONS
from tests.unit.cli.processes import Served, errands
from tests.unit.cli.programs import ECHO, stored, write

HEADERS = {"A2A-Version": "1.0"}

#: Says which process runs the turn. "hold" waits until there is a file "go".
TELLING = """
import asyncio
import os
from pathlib import Path
from errands import A2AServer, AgentCardConfig, CapabilitiesConfig, TaskContext, Worker

class Telling(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact(f"begun by {os.getpid()}\\n")
        while ctx.user_text == "hold" and not Path("go").exists():
            await asyncio.sleep(0.01)
        await ctx.complete(f"ended by {os.getpid()}")

card = AgentCardConfig(name="Telling", description="Tells.", capabilities=CapabilitiesConfig(streaming=True))
server = A2AServer(worker=Telling(), agent_card=card)
"""


def send(server: Served, text: str, *, wait: bool = True) -> str:
    """The id of the task that was made, or what it answered; over a connection of its own."""
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    body = {"message": message, "configuration": {"returnImmediately": not wait}}
    task = httpx.post(f"{server.url}/message:send", json=body, headers=HEADERS, timeout=None).json()["task"]
    return str(answer_of(task) if wait else task["id"])


def answer_of(task: dict[str, Any]) -> str:
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


def hold(server: Served) -> tuple[str, int]:
    """The id of a task that is at work, and the process that runs it."""
    task_id = send(server, "hold", wait=False)
    with httpx.stream("POST", f"{server.url}/tasks/{task_id}:subscribe", headers=HEADERS, timeout=None) as response:
        for line in response.iter_lines():
            if "begun by" in line:
                return task_id, int(line.partition("begun by ")[2].partition("\\n")[0])
    raise AssertionError("the task never began")


def finished(server: Served, task_id: str) -> str:
    """What a task has answered, once it has ended."""
    with httpx.stream("POST", f"{server.url}/tasks/{task_id}:subscribe", headers=HEADERS, timeout=None) as response:
        for _ in response.iter_lines():
            pass
    task = httpx.get(f"{server.url}/tasks/{task_id}", headers=HEADERS, timeout=None).json()
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    return answer_of(task)


def children(server: Served) -> set[int]:
    path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
    return {int(pid) for pid in path.read_text().split() if "spawn_main" in _command(int(pid))}


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def ender(answer: str) -> int:
    return int(answer.partition("ended by ")[2])


def until_serving(server: Served, count: int, without: int = 0) -> set[int]:
    """The processes, once so many have answered something; `without` is not among them."""
    seen: set[int] = set()
    while len(seen) < count:
        seen.add(ender(send(server, "who")))
        seen.discard(without)
    return seen


def test_the_processes_share_port_and_work_and_greet_once(tmp_path: Path) -> None:
    with Served(write(tmp_path, TELLING), "--workers", "2", cwd=tmp_path) as server:
        assert "Telling 1.0.0" in server.greeting
        assert until_serving(server, 2) == children(server)
        result = server.stop()
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.count("Telling 1.0.0") == 1


def test_each_of_the_processes_shows_the_metrics_of_all(tmp_path: Path) -> None:
    with Served(write(tmp_path, TELLING), "--workers", "2", cwd=tmp_path) as server:
        pids = {str(pid) for pid in until_serving(server, 2)}
        seen: set[str] = set()
        while seen != pids:
            families = text_string_to_metric_families(httpx.get(f"{server.url}/metrics", timeout=None).text)
            [running] = [family for family in families if family.name == "errands_turns_running"]
            seen = {sample.labels["process"] for sample in running.samples}
            assert seen <= pids
        assert server.stop().stderr == ""


def test_a_killed_process_is_replaced_and_its_task_is_finished_by_another(tmp_path: Path) -> None:
    program = write(tmp_path, TELLING)
    with Served(program, "--workers", "2", cwd=tmp_path, lease_seconds="1", poll_interval="0.2") as server:
        until_serving(server, 2)
        task_id, holder = hold(server)
        os.kill(holder, signal.SIGKILL)
        (tmp_path / "go").touch()
        assert ender(finished(server, task_id)) != holder
        assert holder not in until_serving(server, 2, without=holder)
        ended = server.stop()
    assert ended.returncode == 0
    assert f"Process {holder} was ended by SIGKILL; it is replaced." in ended.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_tasks_of_all_processes_finish(tmp_path: Path, number: signal.Signals) -> None:
    with Served(write(tmp_path, TELLING), "--workers", "2", cwd=tmp_path, drain_timeout="20") as server:
        until_serving(server, 2)
        tasks: dict[str, int] = {}
        while len(set(tasks.values())) < 2:
            tasks |= [hold(server)]
        server.signal(number)
        server.until_draining()
        (tmp_path / "go").touch()
        assert server.finish().returncode == 0
    states = {stored(tmp_path, task_id, "Telling").state for task_id in tasks}
    assert states == {TaskState.COMPLETED}


def test_ctrl_c_that_reaches_every_process_is_one_signal(tmp_path: Path) -> None:
    """As a terminal sends it: to the whole group."""
    program = write(tmp_path, TELLING)
    with Served(program, "--workers", "2", cwd=tmp_path, drain_timeout="20") as server:
        task_id, _ = hold(server)
        os.killpg(server.pid, signal.SIGINT)
        server.until_draining()
        (tmp_path / "go").touch()
        assert server.finish().returncode == 0
    assert stored(tmp_path, task_id, "Telling").state is TaskState.COMPLETED


def test_a_second_signal_ends_all_processes_at_once(tmp_path: Path) -> None:
    with Served(write(tmp_path, TELLING), "--workers", "2", cwd=tmp_path, drain_timeout="600") as server:
        hold(server)
        processes = children(server)
        server.signal(signal.SIGTERM)
        server.until_draining()
        assert server.stop(signal.SIGINT).returncode == 128 + signal.SIGINT
    for pid in processes:
        assert "spawn_main" not in _command(pid)


def test_processes_end_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), "--workers", "2", cwd=tmp_path) as server:
        processes = children(server)
        # Both pipes are the children's, too: they are at their end when the last process has ended.
        server.stop(signal.SIGKILL)
    assert processes
    for pid in processes:
        assert "spawn_main" not in _command(pid)


def test_a_process_that_dies_again_and_again_is_waited_for_longer_and_longer() -> None:
    delays = [restart_delay(deaths) for deaths in range(1, 12)]
    assert delays[:4] == [0.0, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == restart_delay(10**6) == 30.0


# Refusing


@pytest.mark.parametrize(
    ("code", "options", "words"),
    [
        (ECHO, ["--storage", "memory"], "storage 'memory' is private to one process"),
        (ECHO, ["--reload"], "omit --reload or --workers"),
        (ECHO, ["--storage", "carrier-pigeon://"], "unknown storage"),
    ],
)
def test_what_several_processes_cannot_do_is_a_sentence(
    tmp_path: Path, code: str, options: list[str], words: str
) -> None:
    result = errands("serve", str(write(tmp_path, code)), "--port", "0", "--workers", "2", *options, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.count(words) == 1
    assert "Traceback" not in result.stderr


def test_a_program_that_fails_is_not_started_again_and_again(tmp_path: Path) -> None:
    result = errands("serve", str(write(tmp_path, "1 / 0\n")), "--port", "0", "--workers", "3", cwd=tmp_path)
    assert result.returncode == 1
    assert result.stderr.count("ZeroDivisionError: division by zero") == 1


# gRPC


@pytest.mark.anyio
async def test_the_processes_share_the_port_of_grpc(tmp_path: Path) -> None:
    with Served(write(tmp_path, TELLING), "--workers", "2", "--grpc-port", "0", cwd=tmp_path) as server:
        [address] = re.findall(r"^grpc +(127\.0\.0\.1:\d+)$", server.greeting, re.MULTILINE)
        seen: set[int] = set()
        while len(seen) < 2:
            transport = GrpcTransport(address, "1.0", headers={}, timeout=60.0)
            message = Message(message_id=str(uuid4()), role=Role.USER, parts=[Part(text="who")])
            request = SendMessageRequest(message=message)
            answer = await transport.call(OPERATIONS["SendMessage"], request, read_timeout=60.0)
            seen.add(ender(answer_of(msgspec.to_builtins(answer.task))))
            await transport.close()
        assert seen == children(server)
        assert server.stop().returncode == 0


def test_a_port_of_grpc_that_is_in_use_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--port", "0", "--workers", "2", "--grpc-port", port)
        result = errands("serve", str(write(tmp_path, ECHO)), *options, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert (
        f"port {port} of 127.0.0.1 is in use; stop the program that uses it, or choose another with --grpc-port"
        in result.stderr
    )


def test_a_program_that_leaves_the_port_of_grpc_open_is_refused(tmp_path: Path) -> None:
    program = write(tmp_path, TELLING.replace("agent_card=card", "agent_card=card, grpc_port=0"))
    result = errands("serve", str(program), "--port", "0", "--workers", "2", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert "grpc_port=0" in result.stderr
