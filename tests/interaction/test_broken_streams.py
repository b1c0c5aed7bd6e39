"""A stream whose store goes away: its reader is told to come back, and not that the server is at fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands.engines.redis import RedisEngine
from errands.testing import http_client, serve
from tests.contract.health import trouble_of
from tests.interaction.agents import Gated
from tests.redis_server import Server

pytestmark = pytest.mark.anyio

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


def over_json_rpc(http: httpx.AsyncClient) -> Any:
    call = {"jsonrpc": "2.0", "id": 1, "method": "SendStreamingMessage", "params": {"message": MESSAGE}}
    return http.stream("POST", "/", json=call)


def over_http(http: httpx.AsyncClient) -> Any:
    return http.stream("POST", "/message:stream", json={"message": MESSAGE})


@pytest.mark.parametrize("asked", [over_json_rpc, over_http])
async def test_a_reader_whose_store_goes_away_is_told_that_it_is_not_available(
    store: Server, asked: Any, caplog: pytest.LogCaptureFixture
) -> None:
    worker = Gated()
    engine = RedisEngine(store.url, patience=0.1, poll_interval=0.02)
    server = serve(worker, storage=engine)
    async with server, http_client(server) as http:
        async with asked(http) as answer:
            frames = answer.aiter_lines()
            assert "TASK_STATE_SUBMITTED" in "".join([await anext(frames) for _ in range(2)])
            await worker.started.wait()
            store.stop()
            rest = "".join([line async for line in frames])
        assert "The task store is not available" in rest
        assert "Internal error" not in rest
        assert "Traceback" not in caplog.text
        store.start()
        assert await trouble_of(engine) == ""
        worker.gate.set()
