"""The clients of @a2a-js/sdk: a process of Node.js makes the calls, and the conversation is held here."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.interop.peers.conversation import STEPS, Answer, Refused, Saying, data_part, outcome
from tests.interop.sdks import PEERS, ROOT, environment

#: What the SDK needs for gRPC.
_GRPC = ("@grpc/grpc-js@1.14.7", "@bufbuild/protobuf@2.17.0")
#: Bytes that a line of the process may have.
_LINE = 2**24


@dataclass(frozen=True)
class NodeSdk:
    release: str
    client: str

    @property
    def name(self) -> str:
        return f"a2a-js {self.release}"


NODE_SDKS = (NodeSdk("1.3.0", "client_1_3.mjs"), NodeSdk("0.3.14", "client_0_3.mjs"))


def packages(sdk: NodeSdk) -> Path:
    """Return the directory that has this SDK, which is made once and kept. Without Node.js the test is skipped."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        if os.environ.get("CI"):
            pytest.fail("node and npm are not installed")
        pytest.skip("node and npm are not installed")
    environment(f"a2a-js-{sdk.release}", f"@a2a-js/sdk@{sdk.release}", *_GRPC, npm=True)
    return ROOT / ".interop" / f"a2a-js-{sdk.release}"


class NodeCaller:
    """A `Caller` whose calls are made by the process; see `peers/js/caller.mjs`."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._write, self._lines = process.stdin.write, process.stdout
        self._ids = count()
        self._answers: defaultdict[int, asyncio.Queue[dict[str, Any]]] = defaultdict(asyncio.Queue)

    async def receive(self) -> None:
        """Hand what the process says to those who have asked for it, until it ends."""
        async for line in self._lines:
            said = json.loads(line)
            self._answers[said["id"]].put_nowait(said)
        for answers in self._answers.values():
            answers.put_nowait({"refused": "the process has ended"})

    async def _events(self, method: str, *arguments: Any) -> AsyncIterator[dict[str, Any]]:
        number = next(self._ids)
        answers = self._answers[number]
        self._write(json.dumps({"id": number, "method": method, "arguments": arguments}).encode() + b"\n")
        while "done" not in (said := await answers.get()):
            if "refused" in said:
                raise Refused(said["refused"])
            yield said
            if "value" in said:
                return

    async def _call(self, method: str, *arguments: Any) -> Any:
        [said] = [said async for said in self._events(method, *arguments)]
        return said["value"]

    async def card(self) -> dict[str, Any]:
        card: dict[str, Any] = await self._call("card")
        return card

    async def extended_card(self) -> dict[str, Any]:
        card: dict[str, Any] = await self._call("extended_card")
        return card

    async def send(self, message: Saying, *, wait: bool = True) -> Answer:
        return _answer(await self._call("send", _said(message), wait))

    async def stream(self, message: Saying) -> AsyncIterator[Answer]:
        async for said in self._events("stream", _said(message)):
            yield _answer(said["event"])

    async def subscribe(self, task_id: str) -> AsyncIterator[Answer]:
        async for said in self._events("subscribe", task_id):
            yield _answer(said["event"])

    async def get(self, task_id: str, history_length: int | None = None) -> Answer:
        return _answer(await self._call("get", task_id, history_length))

    async def list(self, context_id: str) -> list[Answer]:
        return [_answer(task) for task in await self._call("list", context_id)]

    async def cancel(self, task_id: str) -> Answer:
        return _answer(await self._call("cancel", task_id))

    async def set_push(self, task_id: str) -> None:
        await self._call("set_push", task_id)


def _said(message: Saying) -> dict[str, Any]:
    parts = [{"data": json.loads(part["data"])} if "data" in part else part for part in message.parts]
    return {**asdict(message), "parts": parts}


def _answer(fields: dict[str, Any]) -> Answer:
    parts = [data_part(part["data"]) if "data" in part else part for part in fields.get("parts", [])]
    return Answer(**{**fields, "parts": parts})


@asynccontextmanager
async def connected(sdk: NodeSdk, url: str, binding: str) -> AsyncIterator[NodeCaller]:
    command = ("node", PEERS / "js" / sdk.client, packages(sdk), url, binding)
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, limit=_LINE
    )
    caller = NodeCaller(process)
    receiving = asyncio.create_task(caller.receive())
    try:
        yield caller
    finally:
        process.kill()
        await process.wait()
        await receiving


async def conversation(sdk: NodeSdk, url: str, binding: str) -> dict[str, Any]:
    """Return what came of each step when the SDK's client talked to the agent at this address."""
    async with connected(sdk, url, binding) as caller:
        return {step: await outcome(caller, step) for step in STEPS}
