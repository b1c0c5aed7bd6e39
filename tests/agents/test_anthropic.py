"""The same model port with a provider that has a protocol of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import Answer, FunctionCall, FunctionSaid, ModelSaid
from tests.agents.openai_server import MESSAGES, OpenAIServer, Reply
from tests.agents.support import KEY, OFFERS, Heard, question, said_by_user

pytestmark = pytest.mark.anyio

MESSAGE: dict[str, Any] = {
    "id": "m",
    "type": "message",
    "role": "assistant",
    "model": "claude-test",
    "stop_reason": None,
    "stop_sequence": None,
}


def block(index: int, begun: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": begun},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def written(text: str) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": text}


STREAM = [
    {"type": "message_start", "message": {**MESSAGE, "content": [], "usage": {"input_tokens": 25, "output_tokens": 1}}},
    *block(0, {"type": "text", "text": ""}, *({"type": "text_delta", "text": word} for word in ("One ", "moment."))),
    *block(
        1, {"type": "tool_use", "id": "t1", "name": "orders", "input": {}}, written('{"number": '), written('"A-17"}')
    ),
    *block(2, {"type": "tool_use", "id": "t2", "name": "refunds_pay", "input": {}}, written("{}")),
    {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {"output_tokens": 15},
    },
    {"type": "message_stop"},
]


def streamed() -> Reply:
    events = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in STREAM)
    return Reply(raw=events, headers={"Content-Type": "text/event-stream"})


async def test_another_protocol_gives_the_same_answers() -> None:
    heard = Heard()
    overloaded = Reply(status=529, error={"type": "overloaded_error", "message": "Overloaded"})
    async with OpenAIServer([overloaded, streamed()]) as server:
        url = server.url.removesuffix("/v1")
        model = AnyLlmModel("anthropic/claude-test", base_url=url, api_key=KEY)
        answer = await model.ask(question(model=model.resolve(None), offers=OFFERS), heard)
        await model.close()
    assert answer == Answer(
        text="One moment.",
        calls=(FunctionCall("t1", "orders", {"number": "A-17"}), FunctionCall("t2", "refunds_pay", {})),
        model="anthropic/claude-test",
        prompt_tokens=25,
        completion_tokens=15,
    )
    assert heard.pieces == ["One ", "moment."]
    assert [request.path for request in server.requests] == [MESSAGES, MESSAGES]


async def test_another_protocol_is_sent_the_same_conversation() -> None:
    whole = {
        **MESSAGE,
        "content": [{"type": "text", "text": "Done."}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 5, "output_tokens": 2},
    }
    calls = (FunctionCall("t1", "orders", {"number": "A-17"}), FunctionCall("t2", "orders", None, raw="{oops"))
    said = (
        said_by_user("Hi"),
        ModelSaid(calls=calls),
        FunctionSaid("t1", "orders", {"item": "kettle"}),
        FunctionSaid("t2", "orders", "no JSON"),
    )
    async with OpenAIServer([Reply(raw=json.dumps(whole))]) as server:
        model = AnyLlmModel("anthropic/claude-test", base_url=server.url.removesuffix("/v1"), api_key=KEY)
        answer = await model.ask(question(*said, model="anthropic/claude-test", offers=OFFERS))
        await model.close()
    assert (answer.text, answer.prompt_tokens, answer.completion_tokens) == ("Done.", 5, 2)
    _, called, results = server.requests[0].body["messages"]
    assert [use["input"] for use in called["content"]] == [{"number": "A-17"}, {"unreadable": "{oops"}]
    assert [result["content"] for result in results["content"]] == ['{"item":"kettle"}', "no JSON"]
