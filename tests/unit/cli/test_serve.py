"""`errands serve` as a process: how it greets, how it refuses to start, and how it ends."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import socket
import sys
from pathlib import Path

import httpx
import pytest

from errands.cli.serve import KEEP_ALIVE
from errands.model.core import TaskState
from errands.runtime.settings import Settings
from tests.unit.cli.processes import Running, Served, errands
from tests.unit.cli.programs import ECHO, stored, write

EXAMPLES = Path(__file__).parents[3] / "examples"

#: Waits until the test writes into the pipe beside it, and answers with what it read.
PATIENT = """
import asyncio
from errands import TaskContext, agent

@agent(name="Patient", description="Waits for a pipe.")
async def patient(ctx: TaskContext) -> None:
    await ctx.emit_text_artifact("begun")
    loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open("pipe", "r+b", buffering=0))
    await ctx.complete((await reader.readline()).decode())
"""
THREADED = """
import threading
from errands import agent

@agent(name="Threaded", description="Never returns.")
def threaded(text: str) -> str:
    threading.Event().wait()
    return text
"""


@pytest.fixture
def patient(tmp_path: Path) -> Path:
    os.mkfifo(tmp_path / "pipe")
    return write(tmp_path, PATIENT)


def begin(server: Served) -> str:
    """The id of a task that is at work and has said so."""
    task_id = errands("send", server.url, "go", "--no-wait").stdout.strip()
    with httpx.stream(
        "POST", f"{server.url}/tasks/{task_id}:subscribe", headers={"A2A-Version": "1.0"}, timeout=None
    ) as response:
        for line in response.iter_lines():
            if "begun" in line:
                return task_id
    raise AssertionError("the task never began")


# The greeting


def test_the_greeting_says_who_serves_where_and_on_what(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), cwd=tmp_path) as server:
        for words in ("Echo 1.0.0", server.url, "sqlite:///.errands/tasks.db", "/.well-known/agent-card.json"):
            assert words in server.greeting
        assert "\x1b" not in server.greeting
    assert (tmp_path / ".errands" / "tasks.db").exists()


def test_the_greeting_says_where_the_console_is_if_it_is_served(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), "--storage", "memory", cwd=tmp_path) as server:
        assert f"{server.url}/console" in server.greeting
        assert httpx.get(f"{server.url}/admin/me", timeout=None).json()["isOperator"] is True
    with Served(write(tmp_path, ECHO), "--storage", "memory", cwd=tmp_path, console="off") as server:
        assert "/console" not in server.greeting
        assert httpx.get(f"{server.url}/admin/me", timeout=None).status_code == 404


def test_a_store_that_forgets_is_called_one(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), "--storage", "memory", cwd=tmp_path) as server:
        assert "memory (tasks are lost when the server stops)" in server.greeting
    assert not (tmp_path / ".errands").exists()


def test_what_the_greeting_says_to_try_works(tmp_path: Path) -> None:
    with Served(write(tmp_path, ECHO), cwd=tmp_path) as server:
        lines = [line.strip() for line in server.greeting.splitlines()]
        [send] = [shlex.split(line) for line in lines if line.startswith("errands send")]
        assert errands(*send[1:]).stdout == "first hello\n"
        [curl] = [shlex.split(line.replace("$(date +%s)", "42")) for line in lines if line.startswith("curl")]
        url, body = curl[2], curl[curl.index("-d") + 1]
        headers = dict(word.split(": ") for flag, word in itertools.pairwise(curl) if flag == "-H")
        answer = httpx.post(url, content=body, headers=headers, timeout=None).json()
        assert answer["task"]["artifacts"][0]["parts"] == [{"text": "first hello"}]
        [card] = [line.split()[1] for line in lines if line.startswith("card ")]
        assert httpx.get(card, timeout=None).json()["name"] == "Echo"


def test_a_connection_is_kept_longer_than_clients_and_load_balancers_keep_it() -> None:
    assert max(60, httpx.Limits().keepalive_expiry or 0) < KEEP_ALIVE


# Refusing to start


def test_a_port_in_use_is_a_sentence_and_exits_with_1(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = errands("serve", str(write(tmp_path, ECHO)), "--port", str(port), cwd=tmp_path)
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith(f"Error: port {port} of 127.0.0.1 is in use")
    assert "--port" in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--storage", "sqlite:////proc/none/tasks.db"], 1, "/proc/none"),
        (["--storage", "carrier-pigeon://"], 2, "unknown storage"),
        (["--host", "host.invalid"], 1, "host.invalid"),
        (["--log-level", "chatty"], 2, "--log-level"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(tmp_path: Path, options: list[str], code: int, words: str) -> None:
    result = errands("serve", str(write(tmp_path, ECHO)), "--port", "0", *options, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (code, "")
    assert words in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    "storage",
    [
        "postgressql://me:secret@localhost/tasks",
        "sqlite://me:secret@localhost/tasks",
        "postgresql://me:secret@[localhost/tasks",
        "redis://:sec/ret@localhost:port",
        "postgresql://me:secret/secret@localhost:1/tasks",
        "postgresql://localhost:1/tasks?user=me&password=secret",
        "postgresql:/me:secret@localhost/tasks",
        "postgresql:me:secret@localhost/tasks",
        "redis:secret@localhost",
        "me:secret@localhost",
        "memory://me:secret@localhost",
        "sqlite:///tasks.db?key=secret",
    ],
)
def test_a_password_in_an_address_that_cannot_be_used_is_not_shown(tmp_path: Path, storage: str) -> None:
    result = errands("serve", str(write(tmp_path, ECHO)), "--port", "0", "--storage", storage, cwd=tmp_path)
    assert (result.returncode > 0, result.stdout) == (True, "")
    assert not re.search("secret|sec.ret", result.stderr)
    assert "Traceback" not in result.stderr


def test_a_password_is_not_shown_with_the_settings() -> None:
    assert "hunter2" not in repr(Settings(storage="redis://:hunter2@localhost", push_secret="hunter2" * 8))


def test_a_program_that_fails_shows_its_own_lines_only(tmp_path: Path) -> None:
    code = "def half():\n    return 1 / 0\n\nhalf()\n"
    result = errands("serve", str(write(tmp_path, code)), "--port", "0", cwd=tmp_path)
    assert result.returncode == 1
    assert "ZeroDivisionError" in result.stderr
    assert "errands/cli" not in result.stderr


def test_a_dependency_that_fails_to_start_shows_its_own_lines_only(tmp_path: Path) -> None:
    code = """
from errands import A2AServer, Dependency

class Database(Dependency):
    async def startup(self) -> None:
        raise ConnectionError("no database today")

    async def shutdown(self) -> None: ...

server = A2AServer(worker=echo, storage="memory", dependencies={Database: Database()})
"""
    result = errands("serve", str(write(tmp_path, ECHO + code)), "--port", "0", cwd=tmp_path)
    assert result.returncode == 1
    assert "no database today" in result.stderr
    assert "errands/server" not in result.stderr


# Ending


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_an_idle_server_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    with Served(write(tmp_path, ECHO), cwd=tmp_path, python=sys.executable) as server:
        assert errands("send", server.url, "hi").returncode == 0
        result = server.stop(number)
    assert (result.returncode, result.stderr) == (0, "")


def test_a_running_task_may_finish_before_the_server_ends(tmp_path: Path, patient: Path) -> None:
    with Served(patient, cwd=tmp_path, drain_timeout="20") as server:
        task_id = begin(server)
        server.signal(signal.SIGTERM)
        server.until_draining()
        (tmp_path / "pipe").write_bytes(b"finished\n")
        assert server.finish().returncode == 0
    task = stored(tmp_path, task_id)
    assert task.state is TaskState.COMPLETED
    assert [part.text for artifact in task.task.artifacts or [] for part in artifact.parts] == ["begun", "finished\n"]


def test_a_task_that_does_not_finish_goes_back_to_the_queue_and_its_streams_end(tmp_path: Path, patient: Path) -> None:
    with Served(patient, cwd=tmp_path, drain_timeout="0.2") as server:
        task_id = begin(server)
        subscription = f"{server.url}/tasks/{task_id}:subscribe"
        with httpx.stream("POST", subscription, headers={"A2A-Version": "1.0"}, timeout=None) as stream:
            lines = stream.iter_lines()
            next(lines)
            server.signal(signal.SIGTERM)
            assert list(lines)[-1] == ""
        assert server.finish().returncode == 0
    task = stored(tmp_path, task_id)
    assert (task.state, task.head.worker) == (TaskState.WORKING, "")
    assert task.head.due_at is not None


def test_the_next_server_takes_up_what_went_back_to_the_queue(tmp_path: Path, patient: Path) -> None:
    with Served(patient, cwd=tmp_path, drain_timeout="0.2") as server:
        task_id = begin(server)
        server.stop()
    (tmp_path / "pipe").unlink()
    os.mkfifo(tmp_path / "pipe")
    with Served(patient, cwd=tmp_path) as server, Running("tasks", "watch", server.url, task_id, cwd=tmp_path) as watch:
        watch.read_until("working")
        with (tmp_path / "pipe").open("wb") as pipe:
            pipe.write(b"at last\n")
        result = watch.finish()
    assert result.returncode == 0
    assert "at last" in result.stdout


def test_a_second_signal_exits_at_once(tmp_path: Path, patient: Path) -> None:
    with Served(patient, cwd=tmp_path, drain_timeout="600") as server:
        begin(server)
        server.signal(signal.SIGTERM)
        server.until_draining()
        assert server.stop(signal.SIGINT).returncode == 128 + signal.SIGINT


def test_a_thread_that_never_returns_does_not_keep_the_process(tmp_path: Path) -> None:
    with Served(write(tmp_path, THREADED), cwd=tmp_path, drain_timeout="0.2") as server:
        task_id = errands("send", server.url, "go", "--no-wait").stdout.strip()
        assert server.stop().returncode == 0
    assert stored(tmp_path, task_id, "Threaded").head.worker == ""


# Reloading


def test_reload_serves_the_code_as_it_is_now(tmp_path: Path) -> None:
    path = write(tmp_path, ECHO)
    with Served(path, "--reload", cwd=tmp_path) as server:
        assert errands("send", server.url, "hi").stdout == "first hi\n"
        path.write_text(ECHO.replace("first", "second"))
        server.read_until("Ctrl-C stops it.")
        assert errands("send", server.url, "hi").stdout == "second hi\n"
        assert server.stop().returncode == 0


# Manifests


def test_the_example_is_served_without_any_key(tmp_path: Path) -> None:
    with Served(EXAMPLES / "support-agent", "--model", "scripted", cwd=tmp_path) as server:
        assert re.search(r"^agent +support 1.0.0$", server.greeting, re.MULTILINE)
        assert re.search(r"^model +scripted$", server.greeting, re.MULTILINE)
        assert re.search(r"^tools +orders, refunds_quote, refunds_pay, analyst$", server.greeting, re.MULTILINE)
        told = errands("send", server.url, "A-17 broke five times").stdout
        assert told == "My colleague doubts that. Please send us a photo, and we will look at it again.\n"
        assert server.stop().returncode == 0


def test_reload_serves_manifests_and_scripts_as_they_are_now(tmp_path: Path) -> None:
    folder = tmp_path / "desk"
    folder.mkdir()
    (folder / "clerk.yaml").write_text(
        "kind: commonagents.info/v1beta2/agent\nnamespace: shop\nname: clerk\ndescription: .\nprompt: .\n"
    )
    script = folder / "scripted.json"
    script.write_text('{"agents": {"clerk": [{"say": "first"}]}}')
    with Served(folder, "--model", "scripted", "--reload", cwd=tmp_path) as server:
        assert errands("send", server.url, "hi").stdout == "first\n"
        script.write_text('{"agents": {"clerk": [{"say": "second"}]}}')
        server.read_until("Ctrl-C stops it.")
        assert errands("send", server.url, "hi").stdout == "second\n"
        (folder / "clerk.yaml").write_text((folder / "clerk.yaml").read_text().replace("name: clerk", "name: boss"))
        assert "boss" in server.read_until("Ctrl-C stops it.")
        assert server.stop().returncode == 0
