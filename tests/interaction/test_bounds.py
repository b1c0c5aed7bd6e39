"""What strangers can make a server hold, and how long others wait meanwhile: measured at a real process, under attack.

The next attack is one more row of `ATTACKS`.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.interaction.wire import message, rpc
from tests.unit.cli.processes import Served
from tests.unit.cli.programs import write

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(sys.platform != "linux", reason="the size of a process is read from /proc"),
]

MEGABYTE = 1_000_000
LARGE = 20 * MEGABYTE
#: What the server under attack may hold for its clients.
BUDGET = 64 * MEGABYTE

PROGRAM = f"""
from errands import A2AServer, AgentCardConfig, ApiKeyMiddleware, CapabilitiesConfig, TaskContext, Worker

class Agent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "pause":
            await ctx.request_input("x" * {LARGE})
        else:
            await ctx.complete("x" * {LARGE} if ctx.user_text == "large" else ctx.user_text)

server = A2AServer(
    worker=Agent(),
    agent_card=AgentCardConfig(
        name="Agent", description="Answers.", capabilities=CapabilitiesConfig(streaming=True)
    ),
    storage="memory",
    middlewares=[ApiKeyMiddleware(["key"])] if MIDDLEWARE else [],
)
"""
#: Another process may take the core at the wrong moment.
TRIES = 3
KEY = {"X-API-Key": "key"}


class Target:
    """A server in a process of its own, and the connections that attack it."""

    def __init__(self, served: Served, connections: ExitStack) -> None:
        self.url = served.url
        self.greeting = served.greeting
        self._status = Path(f"/proc/{served.pid}/status")
        self._connections = connections

    def connect(self) -> socket.socket:
        address = urlsplit(self.url)
        assert address.hostname is not None
        client = self._connections.enter_context(socket.create_connection((address.hostname, address.port or 80)))
        client.settimeout(0.5)
        return client

    def send(self, *pieces: bytes) -> socket.socket:
        """Send as much as the server takes."""
        client = self.connect()
        with suppress(OSError):  # it reads no more, or has closed the connection
            for piece in pieces:
                client.sendall(piece)
        return client

    def answer(self, sent: bytes) -> bytes:
        """Send a request, and return how its answer begins; b"" if there is none."""
        client = self.send(sent)
        client.settimeout(60)
        with suppress(OSError), client:
            return client.recv(100)
        return b""

    def megabytes(self, field: str) -> float:
        """`VmRSS` is what the process occupies, `VmHWM` the most that it ever has."""
        [line] = [line for line in self._status.read_text().splitlines() if line.startswith(field)]
        return int(line.split()[1]) * 1024 / MEGABYTE


Run = Callable[[], object]
Prepare = Callable[[Target], Run]


def request(path: str, body: bytes = b"", length: int | None = None, method: str = "POST") -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


# Attacks: each is prepared first, so that preparing it takes nothing from the others.


def pipelined(target: Target) -> Run:
    requests = request("/health", method="GET") * 1000
    return lambda: [target.send(*[requests] * 200)]


def pipelined_and_read(target: Target) -> Run:
    """Leaves while requests still wait for their answers."""
    requests = request("/health", method="GET") * 1000

    def run() -> None:
        client = target.connect()
        reader = threading.Thread(target=read_all, args=(client,))
        reader.start()
        end = time.monotonic() + 3
        with suppress(OSError):
            while time.monotonic() < end:
                client.sendall(requests)
        client.close()
        reader.join()

    return run


def read_all(client: socket.socket) -> None:
    with suppress(OSError):
        while client.recv(65536):
            pass


def task_of(target: Target, text: str) -> str:
    """Return the id of a new task, in a context of its own of the name `c`."""
    answer = httpx.post(f"{target.url}/message:send", json={"message": message(text, contextId="c")}, timeout=60)
    task_id: str = answer.json()["task"]["id"]
    return task_id


def answers_that_are_not_read(target: Target) -> Run:
    task_id = task_of(target, "large")
    return lambda: [target.send(request(f"/tasks/{task_id}", method="GET")) for _ in range(40)]


def answers_of_every_binding_that_are_not_read(target: Target) -> Run:
    task_id = task_of(target, "pause")
    methods = {"/": ("GetTask", "tasks/get", "SubscribeToTask", "tasks/resubscribe"), "/a2a": ("tasks/get",)}
    requests = [
        *(
            request(path, method="GET")
            for path in (f"/v1/tasks/{task_id}", f"/tasks/{task_id}:subscribe", "/tasks?contextId=c")
        ),
        *(
            request(path, json.dumps(rpc(method, {"id": task_id})).encode())
            for path, names in methods.items()
            for method in names
        ),
    ]
    return lambda: [target.send(each) for each in requests * 5]


def pages_of_the_operator_api_that_are_not_read(target: Target) -> Run:
    task_id = task_of(target, "large")
    pages = ("", "/timeline", "/events?limit=1000", "/stream")
    requests = [request(f"/admin/tasks/{task_id}{page}", method="GET") for page in pages]
    assert b" 200 " in target.answer(requests[0])
    return lambda: [target.send(each) for each in requests * 40]


def downloads_that_are_not_read(target: Target) -> Run:
    headers = {"A2A-Version": "1.0"}
    upload = httpx.post(f"{target.url}/blobs", content=b"x" * LARGE, headers=headers, timeout=60).json()
    download = request(urlsplit(upload["url"]).path, method="GET")
    assert b" 200 " in target.answer(download)
    return lambda: [target.send(download) for _ in range(150)]


def files_that_do_not_come_to_their_end(target: Target) -> Run:
    head = f"POST /blobs HTTP/1.1\r\nHost: localhost\r\nA2A-Version: 1.0\r\nContent-Length: {LARGE}\r\n\r\n"
    return lambda: [target.send(head.encode(), b" " * (LARGE - 1)) for _ in range(40)]


def uploads_that_stand_still(target: Target) -> Run:
    upload = request("/", b" " * 9 * MEGABYTE, length=10 * MEGABYTE)
    return lambda: [target.send(upload) for _ in range(40)]


def uploads_of_strangers(target: Target) -> Run:
    uploads = [request(path, b"[" + b"1," * (5 * MEGABYTE - 1000) + b"1]") for path in AROUND]
    return lambda: [target.answer(upload).index(b"401") for upload in uploads * 3]


#: What is around the parts of a message, at each path.
AROUND = {
    "/": (b'{"jsonrpc":"2.0","id":1,"method":"SendMessage","params":{"message":{"role":"ROLE_USER",', b"}}}"),
    "/a2a": (b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":{"role":"user",', b"}}}"),
    "/message:send": (b'{"message":{"role":"ROLE_USER",', b"}}"),
    "/v1/message:send": (b'{"message":{"role":"user",', b"}}"),
}


def message_with(part: bytes, count: int = 1) -> Prepare:
    """Sends messages with so many of these parts, at every path."""

    def prepare(target: Target) -> Run:
        parts = b'"messageId":"m","parts":[%b]' % b",".join([part] * count)
        messages = [request(path, before + parts + after) for path, (before, after) in AROUND.items()]
        return lambda: [target.answer(each) for each in messages * 3]

    return prepare


class Attack(NamedTuple):
    name: str
    prepare: Prepare
    #: Megabytes by which the process may grow, those that the store keeps included.
    most: float
    #: Whether the server lets in only those who have a key.
    asks: bool = False


def data(item: bytes, count: int) -> bytes:
    return b'{"data":[%b]}' % b",".join([item] * count)


ATTACKS = [
    Attack("pipelined requests", pipelined, most=40),
    Attack("pipelined requests whose answers are read", pipelined_and_read, most=40),
    Attack("answers that are not read", answers_that_are_not_read, most=300),
    Attack("answers of every binding that are not read", answers_of_every_binding_that_are_not_read, most=450),
    Attack("pages of the operator API that are not read", pages_of_the_operator_api_that_are_not_read, most=300),
    Attack("downloads that are not read", downloads_that_are_not_read, most=150),
    Attack("files that do not come to their end", files_that_do_not_come_to_their_end, most=150),
    Attack("uploads that stand still", uploads_that_stand_still, most=150),
    Attack("uploads of strangers", uploads_of_strangers, most=40, asks=True),
    Attack("tiny values", message_with(data(b"[]", 3_000_000)), most=150),
    Attack("as many values as are allowed", message_with(data(b"[]", 49_000)), most=100),
    Attack("tiny parts", message_with(b'{"text":""}', 49_000), most=100),
    Attack("a text of underscores", message_with(b'{"text":"%b"}' % (b"_" * 2_000_000)), most=150),
]


# What others notice of it


def latencies(client: httpx.Client, until: Callable[[], bool], least: int = 100) -> list[float]:
    """Seconds that sends take, one after the other."""
    taken: list[float] = []
    while len(taken) < least or not until():
        began = time.perf_counter()
        answer = client.post("/", json=rpc("SendMessage", {"message": message()}))
        taken.append(time.perf_counter() - began)
        assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    return taken


def p99(taken: list[float]) -> float:
    return sorted(taken)[len(taken) * 99 // 100 - 1]


def bearable(quiet: float) -> float:
    """Seconds that the slowest of a hundred sends may take under attack, on a machine that has other work, too."""
    return max(5 * quiet, 0.25 * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)))


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name)
def test_a_server_under_attack_stays_small_and_answers_others(attack: Attack, tmp_path: Path) -> None:
    program = write(tmp_path, PROGRAM.replace("MIDDLEWARE", str(attack.asks)))
    with (
        Served(program, cwd=tmp_path, max_buffered_bytes=str(BUDGET), blobs=str(tmp_path / "blobs")) as served,
        httpx.Client(base_url=served.url, headers=KEY, timeout=60) as client,
    ):
        for _ in range(TRIES):
            with ExitStack() as connections:
                target = Target(served, connections)
                run = attack.prepare(target)
                quiet = p99(latencies(client, lambda: True, least=300))
                before = target.megabytes("VmRSS")
                attacker = threading.Thread(target=run)
                attacker.start()
                attacked = p99(latencies(client, lambda attacker=attacker: not attacker.is_alive()))  # type: ignore[misc]
                attacker.join()
            print(f"{attack.name}: p99 {quiet * 1000:.1f} -> {attacked * 1000:.1f} ms")
            if attacked < bearable(quiet):
                break
        assert attacked < bearable(quiet)
        grown = target.megabytes("VmHWM") - before
        print(f"{attack.name}: {grown:.0f} MB")
        assert grown < attack.most
        latencies(client, lambda: True)  # it has noticed by now that the attackers have gone
        assert "Traceback" not in served.stop().stderr
