"""errands' client with fasta2a, whose agents answer a send before they have begun with the task."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from errands import A2AClient
from tests.interop.sdks import environment, serving_peer

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(300)]  # the first test of all makes the environment


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    python = environment("fasta2a", "fasta2a==2.1.1", "uvicorn")
    with serving_peer(python, "server_fasta2a.py") as url:
        yield url


@pytest.fixture
async def client(agent: str) -> AsyncIterator[A2AClient]:
    async with A2AClient(agent) as client:
        yield client


async def test_a_send_waits_for_the_end(client: A2AClient) -> None:
    sent = await client.send("hello")
    assert (sent.state, sent.text) == ("completed", "Echo: hello")


async def test_a_send_that_does_not_wait_returns_at_once(client: A2AClient) -> None:
    assert (await client.send("hello", blocking=False)).state in ("submitted", "working")


async def test_a_cancel_waits_for_the_end(client: A2AClient) -> None:
    sent = await client.send("hello", blocking=False)
    # fasta2a cancels a task after it has run.
    assert (await client.cancel(sent.task_id)).is_terminal
