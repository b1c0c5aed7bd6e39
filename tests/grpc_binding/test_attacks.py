"""A real process under attack over gRPC: its memory stays bounded, and other clients hardly notice."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc.aio
import httpx
import pytest
from a2a.types import a2a_pb2_grpc
from google.protobuf.internal.encoder import _VarintBytes

from errands.wire.proto.codec import CODECS
from tests.grpc_binding.http2 import Connection
from tests.grpc_binding.serving import is_answered, pb, refusal, send
from tests.unit.cli.processes import Served

pytestmark = pytest.mark.anyio

PROGRAM = """
import os
from errands import A2AServer, AgentCardConfig, BearerTokenMiddleware, TaskContext, Worker

class Repeat(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("x" * int(ctx.user_text))

async def verify(token):
    return {"sub": token} if token == "good" else None

server = A2AServer(
    worker=Repeat(),
    agent_card=AgentCardConfig(name="Repeat", description="Answers with so many letters."),
    storage="memory",
    middlewares=[BearerTokenMiddleware(verify)] if "GUARDED" in os.environ else [],
)
"""
TOKEN = (("authorization", "Bearer good"),)
SEND = f"/{CODECS['1.0'].service}/SendMessage"
GET = f"/{CODECS['1.0'].service}/GetTask"
MIB = 1024 * 1024
LARGEST = 10 * MIB
#: What a decoded message would take many times the memory of: ten megabytes of empty parts.
CROWDED = b"\x12" + _VarintBytes(LARGEST - 8) + b"\x2a\x00" * (LARGEST // 2 - 4)
ROUNDS = 100
#: Seconds below which a busy machine says nothing. Without bounds these attacks stopped the process for 10 s and more.
NOTICEABLE = 1.0


class Victim:
    """A served agent, and what it is like to be its client."""

    def __init__(self, served: Served) -> None:
        [address] = re.findall(r"^grpc +(127\.0\.0\.1:\d+)$", served.greeting, re.MULTILINE)
        self.port = int(address.rpartition(":")[2])
        self._pid, self._url = served.pid, served.url
        self.channel = grpc.aio.insecure_channel(address, [("grpc.max_receive_message_length", -1)])
        self.stub: Any = a2a_pb2_grpc.A2AServiceStub(self.channel)  # type: ignore[no-untyped-call]
        self._http = httpx.AsyncClient(base_url=self._url, headers=dict(TOKEN), timeout=120)

    def resident(self, which: str = "VmRSS") -> int:
        """Bytes in memory; `VmHWM` is the most that there were."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return 1024 * int(re.findall(rf"{which}:\s+(\d+) kB", status)[0])

    async def p99(self) -> float:
        """Seconds that calls over HTTP and gRPC take."""
        times = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await self.stub.SendMessage(send("5", message_id=str(uuid4())), metadata=TOKEN)
            times.append(time.perf_counter() - began)
            began = time.perf_counter()
            message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "5"}]}
            (await self._http.post("/message:send", json={"message": message})).raise_for_status()
            times.append(time.perf_counter() - began)
        return statistics.quantiles(times, n=100)[98]

    async def endures(self, attack: Callable[[], Awaitable[None]], growth: int) -> None:
        """Assert that others do not notice the attack, and that it takes no more than `growth` bytes."""
        quiet, before = await self.p99(), self.resident()
        attacking = asyncio.ensure_future(attack())
        attacked = await self.p99()
        await attacking
        assert attacked <= max(5 * quiet, NOTICEABLE)
        assert self.resident("VmHWM") - before <= growth

    async def close(self) -> None:
        await self.channel.close()
        await self._http.aclose()


@pytest.fixture(params=[True, False], ids=["guarded", "open"])
def served(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.delenv("GUARDED", raising=False)
    if request.param:
        monkeypatch.setenv("GUARDED", "1")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with Served(program, "--grpc-port", "0", cwd=tmp_path) as served:
        yield served


async def test_crowded_messages(served: Served, request: pytest.FixtureRequest) -> None:
    """Without a token they are not received; with one, or where none is needed, they are not decoded."""
    victim = Victim(served)
    call = victim.channel.unary_unary(SEND)
    expected = "UNAUTHENTICATED" if "guarded" in request.node.name else "RESOURCE_EXHAUSTED"

    async def attack() -> None:
        for _ in range(4):
            refused = await asyncio.gather(*(refusal(call(CROWDED)) for _ in range(4)))
            assert {one.code for one in refused} == {expected}

    await victim.endures(attack, growth=220 * MIB)
    await victim.close()


@pytest.mark.parametrize("served", [False], indirect=True, ids=["open"])
async def test_messages_that_do_not_come_to_their_end(served: Served) -> None:
    victim = Victim(served)
    connections = [Connection(victim.port) for _ in range(4)]

    def park(connection: Connection) -> None:
        for _ in range(15):
            connection.call(SEND, CROWDED[: LARGEST - 100], length=LARGEST)

    async def attack() -> None:
        await asyncio.gather(*(asyncio.to_thread(park, connection) for connection in connections))

    await victim.endures(attack, growth=500 * MIB)
    for connection in connections:
        connection.close()
    await victim.close()


@pytest.mark.parametrize("served", [False], indirect=True, ids=["open"])
async def test_answers_that_are_not_read(served: Served) -> None:
    victim = Victim(served)
    task = (await victim.stub.SendMessage(send(str(5 * MIB)))).task
    question = pb.GetTaskRequest(id=task.id).SerializeToString()
    connection = Connection(victim.port, window=0)

    async def attack() -> None:
        for number in range(80):
            await asyncio.to_thread(connection.call, GET, question)
            # At the server's pace: this is about what it holds, not about how much it can do.
            await victim.stub.SendMessage(send("5", message_id=f"a{number}"))

    await victim.endures(attack, growth=400 * MIB)
    connection.close()
    # What they held is free again.
    while not await is_answered(victim.stub, pb.GetTaskRequest(id=task.id)):
        pass
    await victim.close()
