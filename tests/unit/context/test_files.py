"""`ctx.files`: file attachments from the user message, as typed wrappers."""

from __future__ import annotations

import pytest

from errands import FileInfo, Part, TaskContext
from errands.testing import connect
from tests.unit.support import Agent, open_card

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n"


async def files_seen(parts: list[Part], storage: str = "memory") -> list[FileInfo]:
    seen: list[FileInfo] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend(ctx.files)
        await ctx.complete()

    async with connect(Agent(handle), storage=storage, agent_card=open_card()) as client:
        await client.send(parts)
    return seen


async def test_files_are_the_file_attachments_of_the_message_in_their_order(storage: str) -> None:
    parts = [
        Part(text="compare"),
        Part(raw=PNG, filename="a.png", media_type="image/png"),
        Part(data={"not": "a file"}),
        Part(url="https://files.test/b.png", filename="b.png", media_type="image/png"),
    ]
    assert await files_seen(parts, storage) == [
        FileInfo(content=PNG, url=None, filename="a.png", media_type="image/png"),
        FileInfo(content=None, url="https://files.test/b.png", filename="b.png", media_type="image/png"),
    ]


async def test_files_are_empty_when_nothing_is_attached() -> None:
    assert await files_seen([Part(text="nothing attached"), Part(data={})]) == []


async def test_an_attached_file_may_be_empty(storage: str) -> None:
    (file,) = await files_seen([Part(raw=b"", filename="empty")], storage)
    assert file.content == b""


async def test_the_file_example_of_the_reference_works(storage: str) -> None:
    def analyze_image(content: bytes) -> str:
        return f"{len(content)} bytes"

    async def handle(ctx: TaskContext) -> None:
        for f in ctx.files:
            if f.media_type == "image/png" and f.content:
                result = analyze_image(f.content)
                await ctx.complete(result)
                return

    async with connect(Agent(handle), storage=storage, agent_card=open_card()) as client:
        result = await client.send([Part(raw=PNG, media_type="image/png")])
    assert result.text == "8 bytes"
