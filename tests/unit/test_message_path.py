"""How many files a newcomer has to open to follow one message through the server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import errands
from errands import TaskContext, Worker
from errands.testing import http_client, serve
from tests.interaction.wire import rpc

PACKAGE = Path(errands.__file__).parent
#: The files that one `SendMessage` may pass through.
MOST_FILES = 18


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


@contextmanager
def files_called() -> Iterator[dict[str, int]]:
    """Count the calls of functions in each file of errands, in the order in which they are first called."""
    calls: dict[str, int] = {}

    def count(frame: FrameType, event: str, _: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            name = path.relative_to(PACKAGE).as_posix()
            calls[name] = calls.get(name, 0) + 1

    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.anyio
@pytest.mark.holds_the_loop("the profiler is called for every function call")
async def test_a_message_passes_through_few_files(capsys: pytest.CaptureFixture[str]) -> None:
    server = serve(Echo(), storage="memory")
    async with server, http_client(server) as client:

        def message(number: int) -> dict[str, Any]:
            return rpc(
                "SendMessage",
                {"message": {"messageId": f"m{number}", "role": "ROLE_USER", "parts": [{"text": "hi"}]}},
            )

        await client.post("/", json=message(1))  # what is done once is done
        with files_called() as calls:
            answer = await client.post("/", json=message(2))
    assert answer.json()["result"]["task"]["status"]["state"] == "TASK_STATE_COMPLETED"
    del calls["testing.py"]  # the transport of this test
    with capsys.disabled():
        print(f"\none SendMessage passes through {len(calls)} files:")
        for name, count in calls.items():
            print(f"  {count:3} calls  {name}")
    assert len(calls) <= MOST_FILES
