"""any-llm: a question is sent as the messages, tools and files that servers take."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from errands.agents.models.base import FunctionCall, FunctionSaid, ModelSaid, UserSaid
from tests.agents.any_llm import asking
from tests.agents.openai_server import Reply
from tests.agents.support import KEY, OFFERS, question, said_by_user

pytestmark = pytest.mark.anyio


async def test_a_question_is_sent_as_messages_and_tools() -> None:
    call = FunctionCall("a", "orders", {"number": "A-17"})
    said = (
        said_by_user("Where is A-17?"),
        ModelSaid("One moment.", (call, FunctionCall("b", "orders", None, raw="{"))),
        FunctionSaid("a", "orders", {"item": "kettle"}),
        FunctionSaid("b", "orders", "The arguments were no JSON object."),
    )
    async with asking(Reply(text="Here.")) as (server, model):
        await model.ask(question(*said, offers=OFFERS))
    [request] = server.requests
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.body["model"] == "gpt-test"
    assert request.body["messages"] == [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Where is A-17?"},
        {
            "role": "assistant",
            "content": "One moment.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "orders", "arguments": '{"number":"A-17"}'}},
                {"id": "b", "type": "function", "function": {"name": "orders", "arguments": '{"unreadable":"{"}'}},
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": '{"item":"kettle"}'},
        {"role": "tool", "tool_call_id": "b", "content": "The arguments were no JSON object."},
    ]
    assert [tool["function"]["name"] for tool in request.body["tools"]] == ["orders", "refunds_pay"]
    assert request.body["tools"][0]["function"]["parameters"] == OFFERS[0].parameters


@pytest.mark.parametrize(
    ("called", "sent"), [("functions.find it", "functions_find_it"), ("", "_"), ("x" * 99, "x" * 64)]
)
async def test_a_call_of_a_name_that_servers_refuse_is_sent_back_by_another(called: str, sent: str) -> None:
    said = (said_by_user("Hi"), ModelSaid("", (FunctionCall("1", called, {}),)), FunctionSaid("1", called, "no"))
    async with asking(Reply(text="Sorry.")) as (server, model):
        await model.ask(question(*said))
    [call] = server.requests[0].body["messages"][-2]["tool_calls"]
    assert call["function"]["name"] == sent


def data(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


@pytest.mark.parametrize(
    ("part", "sent"),
    [
        (
            {"mimeType": "image/png", "file": "https://example.com/a.png"},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        ),
        (
            {"mimeType": "image/png", "file": data("image/png", b"png")},
            {"type": "image_url", "image_url": {"url": data("image/png", b"png")}},
        ),
        (
            {"mimeType": "audio/wav", "file": data("audio/wav", b"wav")},
            {"type": "input_audio", "input_audio": {"data": "d2F2", "format": "wav"}},
        ),
        (
            {"mimeType": "application/pdf", "file": data("application/pdf", b"pdf"), "filename": "a.pdf"},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": data("application/pdf", b"pdf")}},
        ),
    ],
)
async def test_files_are_sent_as_content_parts(part: dict[str, Any], sent: dict[str, Any]) -> None:
    async with asking(Reply(text="I see.")) as (server, model):
        await model.ask(question(UserSaid([{"mimeType": "text/plain", "text": "Look:"}, part])))
    assert server.requests[0].body["messages"][1]["content"] == [{"type": "text", "text": "Look:"}, sent]


@pytest.mark.parametrize(
    ("part", "text"),
    [
        ({"mimeType": "text/csv", "file": data("text/csv", "ä,b".encode())}, "ä,b"),
        ({"mimeType": "application/json; charset=utf-8", "file": "data:application/json,%7B%7D"}, "{}"),
        (
            {"mimeType": "application/pdf", "file": "https://example.com/a.pdf", "filename": "a.pdf"},
            "[the file a.pdf of type application/pdf at https://example.com/a.pdf]",
        ),
        ({"mimeType": "application/json", "data": {"a": 1}}, '{"a":1}'),
        (
            {"mimeType": "image/png", "file": "a.png", "filename": "a.png", "sizeBytes": 5},
            "[the file a.png of type image/png]",
        ),
    ],
)
async def test_what_is_text_or_cannot_be_sent_becomes_text(part: dict[str, Any], text: str) -> None:
    async with asking(Reply(text="I see.")) as (server, model):
        await model.ask(question(UserSaid([{"mimeType": "text/plain", "text": "Look:"}, part])))
    assert server.requests[0].body["messages"][1]["content"] == f"Look:\n{text}"


async def test_web_search_is_asked_for_as_the_provider_wants_it() -> None:
    async with asking(Reply(text="Found.")) as (server, model):
        assert model.resolve("openai/gpt-test", ("web-search",)) == "openai/gpt-test"
        await model.ask(question(builtins=("web-search",)))
    assert server.requests[0].body["web_search_options"] == {}
