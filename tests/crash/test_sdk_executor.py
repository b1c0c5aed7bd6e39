"""The process of an executor of the official SDK is killed in the middle of its work; another one finishes it."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from errands import A2AClient
from tests.interop.peers.pieces import GATE, HALF, PIECES
from tests.interop.sdks import PEERS, SDKS, Sdk, interpreter, serving_executor
from tests.ports import free_port
from tests.soak import LONG
from tests.unit.cli.processes import Served

pytestmark = [pytest.mark.anyio, pytest.mark.crash, pytest.mark.timeout(300)]


class Writers:
    """One server after another, at one address and on one file."""

    def __init__(self, sdk: Sdk, folder: Path) -> None:
        self._sdk = sdk
        self._port = free_port()
        self._storage = f"sqlite:///{folder / 'tasks.db'}"

    def serve(self) -> Served:
        target = f"writer_{'1_3' if self._sdk.protocol == '1.0' else '0_3'}.py"
        settings = {"storage": self._storage, "lease_seconds": "2", "poll_interval": "0.1"}
        return serving_executor(self._sdk, target, port=self._port, **settings)


@contextmanager
def following(client: Sdk, url: str, task_id: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The events that the SDK's own client shows of a task, as they come."""
    command = [interpreter(client), str(PEERS / client.client), url, "JSONRPC", task_id]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield map(json.loads, process.stdout)
        finally:
            process.kill()


#: The executor's SDK and the client's. In the short form each client has an executor of its own release; all pairs meet
#: without a crash in `tests/interop/test_sdk_executors.py`.
PAIRS = [(executor, client) for executor in SDKS.values() for client in SDKS.values() if LONG or executor is client]


@pytest.mark.parametrize(
    ("executor", "client"), [pytest.param(*pair, id=f"{pair[0].release}-under-{pair[1].release}") for pair in PAIRS]
)
async def test_a_killed_executor_is_run_again_and_the_official_client_takes_its_stream_up(
    executor: Sdk, client: Sdk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    monkeypatch.setenv(GATE, str(gate))
    interpreter(client)
    interpreter(executor)
    writers = Writers(executor, tmp_path)
    with writers.serve() as first:
        async with A2AClient(first.url) as sender:
            task_id = (await sender.send("write", blocking=False)).task_id
        with following(client, first.url, task_id) as events:
            seen = ""
            while PIECES[HALF - 1] not in seen:
                seen += next(events)["text"]
            first.signal(signal.SIGKILL)
            first.finish()
    with writers.serve() as second, following(client, second.url, task_id) as events:
        shown = [next(events)]
        gate.touch()
        shown += events
        async with A2AClient(second.url) as reader:
            task = await reader.get_task(task_id)
    assert shown[-1]["state"] == "completed"
    assert (task.state, task.text) == ("completed", "".join(PIECES))
