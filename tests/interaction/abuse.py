"""Clients that abuse a server and clients that do not, each kind in a process of its own, on this machine only.

    python -m tests.interaction.abuse honest|hostile URL SECONDS CLIENTS STREAMS

Each process prints what it has seen as JSON when its time is over.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from urllib.parse import urlsplit
from uuid import uuid4

import uvloop

#: Where the clients connect from. Those that guess keys use up the requests of their address.
HONEST_ADDRESS, HOSTILE_ADDRESS, GUESSING_ADDRESS = "127.0.0.1", "127.0.0.2", "127.0.0.3"
#: Requests per second of one honest client.
PACE = 25
#: The accounts that all hostile clients share, those of the streams that are never read, and those with webhooks.
ACCOUNTS = [f"hostile-{number}" for number in range(4)]
STREAMERS = [f"streamer-{number}" for number in range(4)]
SPAMMERS = [f"spammer-{number}" for number in range(4)]
HONEST = [f"honest-{number}" for number in range(20)]
MEGABYTE = 1_000_000


# Made once: making them costs the machine, which has all sides to serve, more than refusing them.
GIANT = b'{"message":{"messageId":"%b","role":"ROLE_USER","parts":[{"text":"' + b"x" * 9 * MEGABYTE + b'"}]}}'
NESTED = b"[" * MEGABYTE
TINY_VALUES = b'{"jsonrpc":"2.0","params":[' + b"[]," * MEGABYTE + b"1]}"


class Connection:
    """A connection over which requests are written and, perhaps, answers read."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, key: str, path: str, body: bytes | None = None, method: str = "POST") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nA2A-Version: 1.0\r\n"
            f"X-API-Key: {key}\r\nContent-Length: {len(body or b'')}\r\n\r\n"
        )
        self.writer.write(head.encode() + (body or b""))
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
        return int(head.split(b" ", 2)[1]), await self.reader.readexactly(int(length)) if length else b""


def send_body(text: str) -> bytes:
    message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}]}
    configuration = {"returnImmediately": text != "hi"}
    return json.dumps({"message": message, "configuration": configuration}).encode()


class Clients:
    """The clients of one process, and what they have seen."""

    def __init__(self, url: str, seconds: float, clients: int, streams: int) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._end = time.monotonic() + seconds
        self._clients, self._streams = clients, streams
        self._receiver_port = 0
        self.taken: list[float] = []
        self.failures: list[str] = []
        self.statuses: Counter[str] = Counter()

    async def connect(self, source: str = HOSTILE_ADDRESS) -> Connection:
        return Connection(*await asyncio.open_connection(self._host, self._port, local_addr=(source, 0)))

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self._end

    # Honest clients

    async def honest(self) -> None:
        await asyncio.gather(*(self._honest_client(HONEST[number]) for number in range(self._clients)))

    async def _honest_client(self, key: str) -> None:
        connection = await self.connect(HONEST_ADDRESS)
        await asyncio.sleep(random.random() / PACE)
        while self.goes_on:
            began = time.perf_counter()
            try:
                await connection.send(key, "/message:send", send_body("hi"))
                status, body = await connection.answer()
                if status != 200 or b'"TASK_STATE_COMPLETED"' not in body:
                    self.failures.append(f"{status} {body[:300]!r}")
            except (OSError, EOFError) as error:
                self.failures.append(repr(error))
                connection = await self.connect(HONEST_ADDRESS)
            took = time.perf_counter() - began
            self.taken.append(took)
            await asyncio.sleep(max(1 / PACE - took, 0))

    # Hostile clients

    async def hostile(self) -> None:
        kinds: list[Callable[[str], Awaitable[str]]] = [
            self._giant_body,
            self._nested_body,
            self._tiny_values,
            self._trickle,
            self._random_ids,
            self._cancels,
            self._guesses_keys,
            self._foreign_webhooks,
            self._webhook_spam,
        ]
        accounts = itertools.cycle(ACCOUNTS)
        # At every address of 127.0.0.0/8, which are as many hosts for the server.
        receiver = await asyncio.start_server(self._receive, "0.0.0.0", 0)
        self._receiver_port = receiver.sockets[0].getsockname()[1]
        async with asyncio.TaskGroup() as group:
            for number in range(self._clients):
                kind = kinds[number % len(kinds)]
                key = random.choice(SPAMMERS) if kind == self._webhook_spam else next(accounts)
                group.create_task(self._repeat(kind, key))
            group.create_task(self._unread_streams())
        receiver.close()

    async def _repeat(self, attack: Callable[[str], Awaitable[str]], key: str) -> None:
        while self.goes_on:
            seen = "nothing"
            with suppress(OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, RuntimeError, ValueError):
                async with asyncio.timeout(max(self._end - time.monotonic(), 0.01)):
                    seen = await attack(key)
            self.statuses[f"{attack.__name__.strip('_')} {seen}"] += 1
            # As far away as an attacker over a network: this machine does the work of all sides.
            await asyncio.sleep(0.05)

    async def _ask(self, key: str, path: str, body: bytes, source: str = HOSTILE_ADDRESS) -> str:
        connection = await self.connect(source)
        try:
            await connection.send(key, path, body)
            return str((await connection.answer())[0])
        finally:
            connection.writer.close()

    async def _giant_body(self, key: str) -> str:
        return await self._ask(key, "/message:send", GIANT % str(uuid4()).encode())

    async def _nested_body(self, key: str) -> str:
        return await self._ask(key, "/", NESTED)

    async def _tiny_values(self, key: str) -> str:
        return await self._ask(key, "/", TINY_VALUES)

    async def _trickle(self, key: str) -> str:
        connection = await self.connect()
        try:
            for byte in b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000000\r\n\r\n" + b" " * 1000:
                connection.writer.write(bytes([byte]))
                await connection.writer.drain()
                await asyncio.sleep(0.1)
                if not self.goes_on or connection.reader.at_eof():
                    break
            return "sent"
        finally:
            connection.writer.close()

    async def _random_ids(self, key: str) -> str:
        connection = await self.connect()
        try:
            for path, method in (("", "GET"), (":cancel", "POST"), (":subscribe", "GET")):
                await connection.send(key, f"/tasks/{uuid4()}{path}", method=method)
                status, _ = await connection.answer()
            return str(status)
        finally:
            connection.writer.close()

    async def _cancels(self, key: str) -> str:
        connection = await self.connect()
        try:
            await connection.send(key, "/message:send", send_body("slow"))
            status, body = await connection.answer()
            if status == 200:
                task_id = json.loads(body)["task"]["id"]
                await connection.send(key, f"/tasks/{task_id}:cancel", b"{}")
                status, _ = await connection.answer()
            return str(status)
        finally:
            connection.writer.close()

    async def _guesses_keys(self, key: str) -> str:
        return await self._ask(str(uuid4()), "/message:send", send_body("hi"), GUESSING_ADDRESS)

    async def _foreign_webhooks(self, key: str) -> str:
        config = json.dumps({"url": "http://10.0.0.1/", "taskId": str(uuid4())}).encode()
        return await self._ask(key, f"/tasks/{uuid4()}/pushNotificationConfigs", config)

    async def _webhook_spam(self, key: str) -> str:
        """Have the server call ten hosts that it has not called before, about a task of many events."""
        connection = await self.connect()
        try:
            message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "hi"}]}
            configuration = {"taskPushNotificationConfig": self._webhook()}
            body = json.dumps({"message": message, "configuration": configuration}).encode()
            await connection.send(key, "/message:send", body)
            status, answer = await connection.answer()
            if status == 200:
                task_id = json.loads(answer)["task"]["id"]
                for number in range(9):
                    config = json.dumps({**self._webhook(), "id": str(number)}).encode()
                    await connection.send(key, f"/tasks/{task_id}/pushNotificationConfigs", config)
                    status, _ = await connection.answer()
            return str(status)
        finally:
            connection.writer.close()

    def _webhook(self) -> dict[str, str]:
        """A webhook at a random address of this machine, all of which are the receiver below."""
        address = ".".join(str(random.randrange(1, 255)) for _ in range(3))
        kind = random.choice(["hang", "trickle", "fail", "redirect", "large"])
        return {"url": f"http://127.{address}:{self._receiver_port}/{kind}"}

    async def _receive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer a notification as its path says: never, byte by byte, with an error, a redirect or a flood."""
        with suppress(OSError, EOFError, RuntimeError, asyncio.LimitOverrunError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            kind = head.split(b" ", 2)[1].strip(b"/").decode()
            self.statuses[f"called {kind}"] += 1
            if kind == "fail":
                writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            elif kind == "redirect":
                writer.write(b"HTTP/1.1 302 No\r\nLocation: http://127.0.0.1/\r\nContent-Length: 0\r\n\r\n")
            elif kind == "large":
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 1_000_000)
            while kind in ("hang", "trickle") and self.goes_on and not reader.at_eof():
                if kind == "trickle":
                    writer.write(b"H")
                await asyncio.sleep(0.5)
        writer.close()

    async def _unread_streams(self) -> None:
        """Open streams that are never read, on tasks that go on saying something."""
        opened: list[Connection] = []
        subjects: list[tuple[str, str]] = []
        for key, _ in itertools.product(STREAMERS, range(3)):
            connection = await self.connect()
            await connection.send(key, "/message:send", send_body("talk"))
            _, body = await connection.answer()
            subjects.append((key, json.loads(body)["task"]["id"]))
            connection.writer.close()
        subjects.sort(key=lambda subject: subject[1])

        async def open_stream(key: str, task_id: str, delay: float) -> None:
            await asyncio.sleep(delay)
            with suppress(OSError, EOFError):
                connection = await self.connect()
                opened.append(connection)
                await connection.send(key, f"/tasks/{task_id}:subscribe", method="GET")
                status = (await connection.reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
                connection.reader._transport.pause_reading()  # type: ignore[attr-defined]
                self.statuses[f"streams {status}"] += 1

        wanted = enumerate(itertools.islice(itertools.cycle(subjects), self._streams))
        with suppress(TimeoutError):
            async with asyncio.timeout(max(self._end - time.monotonic(), 0)):
                # No faster than the rate that an account has.
                await asyncio.gather(*(open_stream(*subject, number / 100) for number, subject in wanted))
        await asyncio.sleep(max(self._end - time.monotonic(), 0))
        for connection in opened:
            connection.writer.transport.abort()


async def main(role: str, url: str, seconds: str, clients: str, streams: str) -> None:
    if role == "hostile":
        # Attackers have machines of their own. What they do on this one must not take its cores from the server.
        os.nice(10)
    run = Clients(url, float(seconds), int(clients), int(streams))
    await (run.honest() if role == "honest" else run.hostile())
    seen = {"taken": run.taken, "failures": run.failures, "statuses": run.statuses}
    sys.stdout.write(json.dumps(seen))


if __name__ == "__main__":
    uvloop.run(main(*sys.argv[1:]))
