"""The load generator: one process, N keep-alive connections, one request in flight on each.

run.py starts it next to a server; it prints one line of JSON. Every response is checked, and a wrong one counts as an
error, not as a request. It depends on the wire format, not on the servers.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter, process_time
from typing import Protocol, cast

import httptools
import msgspec
import uvloop

#: Seconds that requests in flight may take after the measured time.
DRAIN_S = 30.0
ID_MARK = b"@ID@"
CHUNK = re.compile(rb"chunk (\d{8}) text ")


class Part(msgspec.Struct):
    text: str = ""


class Artifact(msgspec.Struct):
    parts: list[Part]


class Status(msgspec.Struct):
    state: str


class Task(msgspec.Struct):
    status: Status
    artifacts: list[Artifact] = []


class TaskResult(msgspec.Struct):
    task: Task


class AnswerV10(msgspec.Struct):
    result: TaskResult


class AnswerV03(msgspec.Struct):
    result: Task


decode_v10 = msgspec.json.Decoder(AnswerV10).decode
decode_v03 = msgspec.json.Decoder(AnswerV03).decode


@dataclass(frozen=True)
class Dialect:
    """The differences on the wire between the protocol versions."""

    version: str
    send: str
    stream: str
    role: str
    part: dict[str, str]
    message: dict[str, str]
    configuration: dict[str, bool]
    completed: str
    artifact_event: bytes
    task_of: Callable[[bytes], Task]


DIALECTS = {
    "1.0": Dialect(
        version="1.0",
        send="SendMessage",
        stream="SendStreamingMessage",
        role="ROLE_USER",
        part={},
        message={},
        configuration={},
        completed="TASK_STATE_COMPLETED",
        artifact_event=b'"artifactUpdate"',
        task_of=lambda body: decode_v10(body).result.task,
    ),
    "0.3": Dialect(
        version="0.3",
        send="message/send",
        stream="message/stream",
        role="user",
        part={"kind": "text"},
        message={"kind": "message"},
        configuration={"blocking": True},
        completed="completed",
        artifact_event=b'"artifact-update"',
        task_of=lambda body: decode_v03(body).result,
    ),
}


class WrongAnswerError(Exception):
    """The server's response was wrong."""


class Work(Protocol):
    """A kind of request: its bytes, and the check of its response."""

    template: bytes

    def check(self, message_id: bytes, body: bytes) -> None: ...


def request_template(dialect: Dialect, port: int, method: str, text: str) -> bytes:
    """Return an HTTP request with a placeholder for the message id; all ids have the same length."""
    message = {
        **dialect.message,
        "messageId": "@ID@",
        "role": dialect.role,
        "parts": [{**dialect.part, "text": text}],
    }
    params: dict[str, object] = {"message": message}
    if dialect.configuration and method == dialect.send:
        params["configuration"] = dialect.configuration
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    length = len(body.replace(ID_MARK, message_id("0" * 8, 0)))
    head = (
        f"POST / HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        f"A2A-Version: {dialect.version}\r\nContent-Length: {length}\r\n\r\n"
    )
    return head.encode() + body


def message_id(run: str, number: int) -> bytes:
    return f"bench-{run}-{number:010d}".encode()


class SendWork:
    """A blocking send: the response is the completed task with the echo of exactly this request."""

    def __init__(self, dialect: Dialect, port: int) -> None:
        self.template = request_template(dialect, port, dialect.send, "hello @ID@")
        self._dialect = dialect

    def check(self, message_id: bytes, body: bytes) -> None:
        try:
            task = self._dialect.task_of(body)
        except msgspec.DecodeError as error:
            raise WrongAnswerError(f"{error}: {body[:300]!r}") from error
        texts = [part.text for artifact in task.artifacts for part in artifact.parts]
        if task.status.state != self._dialect.completed or texts != [f"Echo: hello {message_id.decode()}"]:
            raise WrongAnswerError(f"not the completed echo: {body[:300]!r}")


class StreamWork:
    """A stream of chunks: every chunk once and in order, and a completed event at the end."""

    def __init__(self, dialect: Dialect, port: int, chunks: int) -> None:
        self.template = request_template(dialect, port, dialect.stream, f"stream {chunks}")
        self._artifact_event = dialect.artifact_event
        self._completed = f'"{dialect.completed}"'.encode()
        self._expected = [b"%08d" % index for index in range(chunks)]

    def check(self, message_id: bytes, body: bytes) -> None:
        found = CHUNK.findall(body)
        if found != self._expected:
            raise WrongAnswerError(f"{len(found)} chunks of {len(self._expected)}: {body[-300:]!r}")
        events = body.count(self._artifact_event)
        if events != len(self._expected):
            raise WrongAnswerError(f"{events} artifact events for {len(self._expected)} chunks")
        if self._completed not in body[body.rfind(b"data:") :]:
            raise WrongAnswerError(f"the last event is not completed: {body[-300:]!r}")


@dataclass
class Tally:
    """The results of one phase."""

    started: float
    finished: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: int = 0
    first_error: str = ""

    def fail(self, reason: str) -> None:
        self.errors += 1
        self.first_error = self.first_error or reason

    def report(self) -> dict[str, float | int | str]:
        ordered = sorted(self.latencies) or [0.0]
        elapsed = max(self.finished - self.started, 1e-9)
        return {
            "requests_per_s": len(self.latencies) / elapsed,
            "median_ms": 1000 * ordered[len(ordered) // 2],
            "best_ms": 1000 * ordered[0],
            "p99_ms": 1000 * ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)],
            "requests": len(self.latencies),
            "errors": self.errors,
            "first_error": self.first_error,
        }


class Phase:
    """The state that the connections of one phase share: when to stop, the next id, the tally."""

    def __init__(self, work: Work, seconds: float) -> None:
        self.work = work
        self.tally = Tally(started=perf_counter())
        self.deadline = self.tally.started + seconds
        self._run = secrets.token_hex(4)
        self._number = 0

    def next_id(self) -> bytes:
        self._number += 1
        return message_id(self._run, self._number)


class Connection(asyncio.Protocol):
    """A connection that sends requests and checks responses until the deadline. Subclasses define the transport."""

    def __init__(self, phase: Phase) -> None:
        self.done = asyncio.get_running_loop().create_future()
        self._phase = phase
        self._body: list[bytes] = []
        self._message_id = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._ask()

    def _ask(self) -> None:
        phase = self._phase
        self._sent = perf_counter()
        if self._sent >= phase.deadline:
            self._stop()
            return
        self._message_id = phase.next_id()
        self._write(phase.work.template.replace(ID_MARK, self._message_id))

    def _write(self, request: bytes) -> None:
        self._transport.write(request)

    def _stop(self) -> None:
        if not self.done.done():
            self.done.set_result(None)
        self._transport.close()

    def _answered(self, status: int = 200) -> None:
        phase, body = self._phase, b"".join(self._body)
        self._body.clear()
        now = perf_counter()
        try:
            if status != 200:
                raise WrongAnswerError(f"HTTP {status}: {body[:300]!r}")
            phase.work.check(self._message_id, body)
        except WrongAnswerError as error:
            phase.tally.fail(str(error))
        else:
            phase.tally.latencies.append(now - self._sent)
            phase.tally.finished = now
        self._ask()

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.done.done():
            self._phase.tally.fail(f"the server closed the connection: {exc}")
            self.done.set_result(None)


class HttpConnection(Connection):
    """Keep-alive over HTTP/1.1."""

    def __init__(self, phase: Phase) -> None:
        super().__init__(phase)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._phase.tally.fail(f"not HTTP: {error}: {data[:300]!r}")
            self._stop()

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self._answered(self._parser.get_status_code())


async def run_phase(kind: type[Connection], work: Work, port: int, connections: int, seconds: float) -> Tally:
    """Keep `connections` requests in flight for `seconds`, then let them finish."""
    loop = asyncio.get_running_loop()
    phase = Phase(work, seconds)
    protocols: list[Connection] = []
    for _ in range(connections):
        _, protocol = await loop.create_connection(lambda: kind(phase), "127.0.0.1", port)
        protocols.append(protocol)
    _, unfinished = await asyncio.wait([protocol.done for protocol in protocols], timeout=seconds + DRAIN_S)
    for _ in unfinished:
        phase.tally.fail(f"no answer within {DRAIN_S} s")
    return phase.tally


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--dialect", choices=sorted(DIALECTS), required=True)
    parser.add_argument("--chunks", type=int, default=0, help="stream this many chunks; 0 is a blocking send")
    parser.add_argument("--connections", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--warmup", type=float, default=1.0)
    return parser.parse_args()


def work_of(arguments: argparse.Namespace) -> Work:
    dialect, port = DIALECTS[arguments.dialect], arguments.port
    return StreamWork(dialect, port, arguments.chunks) if arguments.chunks else SendWork(dialect, port)


async def measure(kind: type[Connection], work: Work, arguments: argparse.Namespace) -> Tally:
    port, connections = arguments.port, arguments.connections
    warmup = await run_phase(kind, work, port, connections, arguments.warmup)
    if warmup.errors:
        return warmup
    return await run_phase(kind, work, port, connections, arguments.seconds)


def main(kind: type[Connection] = HttpConnection, work_of: Callable[[argparse.Namespace], Work] = work_of) -> None:
    arguments = parse_arguments()
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        report = runner.run(measure(kind, work_of(arguments), arguments)).report()
    print(json.dumps({**report, "cpu_s": process_time()}))


if __name__ == "__main__":
    main()
