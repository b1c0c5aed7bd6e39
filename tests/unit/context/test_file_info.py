"""`FileInfo`: a frozen dataclass with content, url, filename and media_type."""

from __future__ import annotations

import base64
import dataclasses
import inspect
import typing
from typing import Any

import pytest

from errands import FileInfo, TaskContext
from errands.testing import http_client, serve
from tests.unit.support import Agent, open_card

pytestmark = pytest.mark.anyio


async def file_of(part: dict[str, Any]) -> FileInfo:
    seen: list[FileInfo] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend(ctx.files)
        await ctx.complete()

    server = serve(Agent(handle), agent_card=open_card())
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [part]}
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json={"message": message})
    assert answer.status_code == 200, answer.text
    (file,) = seen
    return file


def test_file_info_has_the_documented_fields_and_types() -> None:
    assert str(inspect.signature(FileInfo, eval_str=True)) == (
        "(content: bytes | None, url: str | None, filename: str | None, media_type: str | None) -> None"
    )
    assert list(typing.get_type_hints(FileInfo)) == ["content", "url", "filename", "media_type"]


def test_file_info_is_frozen() -> None:
    file = FileInfo(content=b"x", url=None, filename=None, media_type=None)
    with pytest.raises(dataclasses.FrozenInstanceError):
        file.content = b"y"  # type: ignore[misc]


def test_file_infos_with_the_same_content_are_equal() -> None:
    assert FileInfo(b"x", None, "a", "b") == FileInfo(b"x", None, "a", "b")


async def test_content_is_decoded_bytes() -> None:
    file = await file_of({"raw": base64.b64encode(b"\x00\x01\xfe").decode(), "filename": "x"})
    assert file == FileInfo(content=b"\x00\x01\xfe", url=None, filename="x", media_type=None)


async def test_content_is_none_when_only_a_url_was_sent() -> None:
    file = await file_of({"url": "https://files.test/x"})
    assert file == FileInfo(content=None, url="https://files.test/x", filename=None, media_type=None)


async def test_filename_and_media_type_are_what_the_client_said() -> None:
    file = await file_of({"url": "https://files.test/x", "filename": "r.csv", "mediaType": "text/csv"})
    assert (file.filename, file.media_type) == ("r.csv", "text/csv")
