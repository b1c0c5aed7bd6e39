"""The agent of the conformance runs does what the kits expect of each message."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from errands.testing import connect

AGENT = Path(__file__).parents[2] / "conformance" / "agent.py"

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def agent() -> ModuleType:
    spec = importlib.util.spec_from_file_location("conformance_agent", AGENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("message_id", "state", "text"),
    [
        ("tck-complete-task-12345678", "completed", "Hello from TCK"),
        ("tck-input-required-12345678", "input-required", "What else?"),
        ("tck-message-response-12345678", "completed", "Direct message response"),
        ("tck-reject-task-12345678", "rejected", "rejected"),
        ("tck-artifact-text-12345678", "completed", "Generated text content"),
        ("tck-stream-artifact-chunked-12345678", "completed", "chunk-1 chunk-2"),
        ("tck-stream-001-12345678-jsonrpc", "completed", "Stream hello from TCK"),
        ("anything-else", "completed", "Hello from TCK"),
    ],
)
async def test_the_id_of_a_message_says_what_becomes_of_it(
    agent: ModuleType, message_id: str, state: str, text: str
) -> None:
    async with connect(agent.build()) as client:
        result = await client.send("hello", message_id=message_id)
        assert (result.state, result.text) == (state, text)


async def test_a_longer_id_wins_over_a_shorter_one(agent: ModuleType) -> None:
    async with connect(agent.build()) as client:
        [file] = (await client.send("hello", message_id="tck-artifact-file-12345678")).artifacts
        [link] = (await client.send("hello", message_id="tck-artifact-file-url-12345678")).artifacts
    assert (file.parts[0].raw, link.parts[0].url) == (b"tck", "https://example.com/output.txt")
