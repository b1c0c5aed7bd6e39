"""Measure what webhooks cost: python benchmarks/push.py [URL ...]

For each store (default: a SQLite file), three figures:

- a blocking send with a registered webhook beside one without, at a steady rate over one connection: what a client that
  registers a webhook waits for;
- the same as fast as one connection can send, with the deliveries left to another process, and by the same process;
- how many notifications arrive each second, alone and beside a host with a thousand webhooks that never answers.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from uuid import uuid4

import httpx
import uvloop

from errands.clock import system_clock, to_iso
from errands.engines.base import Engine
from errands.engines.urls import engine_from_url
from errands.model.base import encode
from errands.model.core import StreamResponse, Task, TaskState, TaskStatus
from errands.model.log import Change, Draft, PushConfig, Scope, Work
from errands.runtime.push import PushSender, push_guard
from errands.runtime.settings import Settings

AGENT = Path(__file__).parent / "servers" / "errands_server.py"
#: Sends per figure, and each second at the steady rate.
SENDS, RATE = 200, 40
#: Webhooks per figure, and those of the host that hangs.
WEBHOOKS, HANGING = 1000, 1000
SCOPE = Scope(agent="bench")


# A receiver in a process of its own: it counts what arrives, or accepts connections and never answers.


class Receiver(asyncio.Protocol):
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.data = b""

    def data_received(self, data: bytes) -> None:
        self.data += data
        while (end := self.data.find(b"\r\n\r\n")) >= 0:
            length = re.search(rb"(?i)content-length: (\d+)", self.data[:end])
            size = end + 4 + (int(length[1]) if length else 0)
            if len(self.data) < size:
                return
            asked, self.data = self.data[:4], self.data[size:]
            if asked == b"POST":
                Receiver.count += 1
            body = str(Receiver.count).encode()
            self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))  # type: ignore[attr-defined]


async def receive(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", port)
    await server.serve_forever()


@contextmanager
def receiver() -> Iterator[str]:
    """Yield the URL of a webhook."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    process = subprocess.Popen([sys.executable, __file__, "--receive", str(port)])
    try:
        for _ in range(500):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.01)
        yield f"http://127.0.0.1:{port}/hook"
    finally:
        process.terminate()
        process.wait()


@contextmanager
def hanging() -> Iterator[str]:
    """Yield the URL of a webhook that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/hook"


@contextmanager
def served(storage: str, **settings: str) -> Iterator[str]:
    """Yield the URL of the benchmark agent."""
    environment = {
        **os.environ,
        "ERRANDS_STORAGE": storage,
        "ERRANDS_PUSH_ALLOW": "127.0.0.1",
        **{f"ERRANDS_{name.upper()}": value for name, value in settings.items()},
    }
    command = [sys.executable, "-m", "errands", "serve", str(AGENT), "--port", "0", "--storage", storage]
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.match(r"url +(\S+)", line):
                yield found[1]
                break
    finally:
        process.terminate()
        process.wait()


# Sends


async def sends(url: str, webhook: str | None, rate: float | None) -> list[float]:
    """Return the milliseconds of each send, over one connection."""
    host, port = re.findall(r"//([^:/]+):(\d+)", url)[0]
    reader, writer = await asyncio.open_connection(host, int(port))
    took: list[float] = []
    due = time.perf_counter()
    for _ in range(SENDS):
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "hello"}]}
        config = {} if webhook is None else {"taskPushNotificationConfig": {"url": webhook}}
        body = json.dumps(
            {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "SendMessage",
                "params": {"message": message, "configuration": config},
            }
        ).encode()
        if rate is not None:
            due += 1 / rate
            await asyncio.sleep(max(due - time.perf_counter(), 0))
        began = time.perf_counter()
        head = (
            f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        answered = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", answered)
        assert length is not None
        answer = await reader.readexactly(int(length[1]))
        took.append((time.perf_counter() - began) * 1000)
        assert b"TASK_STATE_COMPLETED" in answer, answer
    writer.close()
    return took


async def compare_sends(title: str, url: str, webhook: str, rate: float | None) -> None:
    # In turns, so that whatever else the machine does concerns both; the first turn warms up.
    without: list[float] = []
    with_webhook: list[float] = []
    for turn in range(6):
        plain, told = await sends(url, None, rate), await sends(url, webhook, rate)
        if turn:
            without += plain
            with_webhook += told
    ratio = median(with_webhook) / median(without)
    print(
        f"  {title}: without {median(without):.2f} ms, with a webhook {median(with_webhook):.2f} ms (median), "
        f"ratio {ratio:.2f}",
        flush=True,
    )


# Deliveries


async def fill(engine: Engine, webhook: str, count: int) -> None:
    now = system_clock()
    host = webhook.split("/")[2]

    def change() -> Change:
        task_id = str(uuid4())
        task = Task(id=task_id, context_id="c", status=TaskStatus(state=TaskState.WORKING, timestamp=to_iso(now)))
        return Change(
            task_id=task_id,
            scope=SCOPE,
            events=[Draft("task", encode(StreamResponse(task=task)))],
            expected=0,
            at=now,
            state=TaskState.WORKING,
            work=Work.LEASE,
            worker="bench",
            due_at=now + 3_600_000,
            context_id="c",
            push=PushConfig(id="c", url=webhook, host=host),
        )

    await asyncio.gather(*(engine.commit(change()) for _ in range(count)))


async def count_of(client: httpx.AsyncClient, webhook: str) -> int:
    return int((await client.get(webhook)).text)


async def deliver(engine: Engine, webhook: str) -> float:
    """Return the notifications per second until all webhooks were told."""
    settings = Settings(push_allow="127.0.0.1")
    async with httpx.AsyncClient(trust_env=False) as client:
        wanted = await count_of(client, webhook) + WEBHOOKS
        await fill(engine, webhook, WEBHOOKS)
        began = time.perf_counter()
        async with PushSender(engine, SCOPE.agent, settings, push_guard(settings)):
            while await count_of(client, webhook) < wanted:  # noqa: ASYNC110 - the receiver is another process
                await asyncio.sleep(0.02)
            rate = WEBHOOKS / (time.perf_counter() - began)
            # Leaving it waits for those that hang.
            settings.drain_timeout = 0.0
        return rate


async def compare_deliveries(storage: str, webhook: str) -> None:
    alone: list[float] = []
    beside: list[float] = []
    with hanging() as dead:
        async with engine_from_url(storage) as engine:
            await deliver(engine, webhook)
            for _ in range(5):
                alone.append(await deliver(engine, webhook))
                # In turns, so that whatever else the machine does concerns both.
                await fill(engine, dead, HANGING)
                beside.append(await deliver(engine, webhook))
                async for entry in engine.outbox(SCOPE.agent):
                    if entry.config.url == dead:
                        drop = Change(task_id=entry.task_id, scope=SCOPE, at=system_clock(), drop_push="c")
                        await engine.commit(drop)
    print(
        f"  notifications: alone {median(alone):.0f}/s, beside a host that hangs {median(beside):.0f}/s, "
        f"ratio {median(beside) / median(alone):.2f}",
        flush=True,
    )


async def main(storages: list[str]) -> None:
    with receiver() as webhook:
        for storage in storages:
            print(storage.partition(":")[0])
            with served(storage) as url:
                await compare_sends(f"a send at {RATE}/s, delivered by the same process", url, webhook, RATE)
                await compare_sends("sends in a row, delivered by the same process", url, webhook, None)
            with served(storage, push_concurrency="0") as url, served(storage, role="worker"):
                await compare_sends("sends in a row, delivered by another process", url, webhook, None)
            await compare_deliveries(storage, webhook)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--receive"]:
        uvloop.run(receive(int(sys.argv[2])))
    else:
        with tempfile.TemporaryDirectory() as folder:
            uvloop.run(main(sys.argv[1:] or [f"sqlite:///{folder}/tasks.db"]))
