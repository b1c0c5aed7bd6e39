"""The model port over any-llm's real client and a real socket."""

from __future__ import annotations

import asyncio
import base64
import logging
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from errands.agents.models.any_llm import AnyLlmModel
from errands.agents.models.base import (
    Answer,
    FunctionCall,
    FunctionSaid,
    ModelError,
    ModelSaid,
    OnText,
    Question,
    UserSaid,
)
from errands.errors import ConfigurationError
from tests.agents.openai_server import Call, OpenAIServer, Reply
from tests.agents.support import KEY, OFFERS, Heard, Waits, model_at, question, said_by_user

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _no_keys_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(variable, raising=False)


@asynccontextmanager
async def asking(*replies: Reply, **options: Any) -> AsyncIterator[tuple[OpenAIServer, AnyLlmModel]]:
    async with OpenAIServer(replies) as server:
        model = model_at(server, **options)
        try:
            yield server, model
        finally:
            await model.close()


async def ask(reply: Reply, asked: Question | None = None, on_text: OnText | None = None) -> Answer:
    async with asking(reply) as (_, model):
        return await model.ask(asked or question(), on_text)


async def refused(*replies: Reply, asked: Question | None = None, **options: Any) -> str:
    async with asking(*replies, **options) as (_, model):
        with pytest.raises(ModelError) as error:
            await model.ask(asked or question())
        return str(error.value)


@pytest.fixture(params=["streamed", "whole"])
def on_text(request: pytest.FixtureRequest) -> Heard | None:
    return Heard() if request.param == "streamed" else None


# Answers


async def test_an_answer_has_its_text_its_model_and_its_tokens(on_text: Heard | None) -> None:
    answer = await ask(Reply(text="Hello, my friend.", usage=(123, 45), model="gpt-test-2026"), on_text=on_text)
    assert answer == Answer(
        text="Hello, my friend.", model="openai/gpt-test-2026", prompt_tokens=123, completion_tokens=45
    )


async def test_text_is_told_piece_by_piece_as_it_comes() -> None:
    heard = Heard()
    async with asking(Reply(text="one two three", hold_before=2)) as (server, model):
        asked = asyncio.create_task(model.ask(question(), heard))
        await server.holding.wait()
        server.released.set()
        await asked
    assert heard.pieces == ["one ", "two ", "three"]


async def test_the_first_words_are_heard_while_the_last_are_not_yet_written() -> None:
    first = asyncio.Event()

    async def hear(_: str) -> None:
        first.set()

    async with asking(Reply(text="one two", hold_before=1)) as (server, model):
        asked = asyncio.create_task(model.ask(question(), hear))
        await first.wait()
        assert not asked.done()
        server.released.set()
        assert (await asked).text == "one two"


async def test_several_calls_are_put_together_from_mixed_pieces(on_text: Heard | None) -> None:
    calls = [
        Call(id="a", name="orders", arguments='{"number": "A-17", "ü": [1, 2.5, null]}'),
        Call(id="b", name="refunds_pay", arguments='{"amount": 45}'),
    ]
    answer = await ask(Reply(text="One moment.", calls=calls), on_text=on_text)
    assert answer.text == "One moment."
    assert answer.calls == (
        FunctionCall("a", "orders", {"number": "A-17", "ü": [1, 2.5, None]}),
        FunctionCall("b", "refunds_pay", {"amount": 45}),
    )


@pytest.mark.parametrize("raw", ['{"number": ', "[1]", '"text"', "none", '{"a": NaN}'])
async def test_arguments_that_are_no_json_object_are_kept_as_they_are(raw: str, on_text: Heard | None) -> None:
    answer = await ask(Reply(calls=[Call(id="a", name="orders", arguments=raw)]), on_text=on_text)
    assert answer.calls == (FunctionCall("a", "orders", None, raw=raw),)


async def test_no_arguments_are_an_empty_object(on_text: Heard | None) -> None:
    answer = await ask(Reply(calls=[Call(id="a", name="orders", arguments="")]), on_text=on_text)
    assert answer.calls[0].arguments == {}


async def test_ids_that_are_missing_or_used_before_are_replaced(on_text: Heard | None) -> None:
    before = ModelSaid(calls=(FunctionCall("call_1", "orders", {}), FunctionCall("x", "orders", {})))
    results = [FunctionSaid(call.id, call.name, {}) for call in before.calls]
    calls = [Call(id=given, name="orders") for given in ("call_1", None, "x", "new")]
    answer = await ask(Reply(calls=calls), question(said_by_user("Hi"), before, *results), on_text)
    ids = [call.id for call in answer.calls]
    assert ids[3] == "new"
    assert len({*ids, "call_1", "x"}) == 6


async def test_the_same_id_twice_in_one_answer_becomes_two() -> None:
    answer = await ask(Reply(calls=[Call(id="a", name="orders"), Call(id="a", name="refunds_pay")]), on_text=Heard())
    assert [(call.name, call.id) for call in answer.calls] == [("orders", "a"), ("refunds_pay", "call_2")]


async def test_half_a_character_is_replaced(on_text: Heard | None) -> None:
    call = '{"index": 0, "id": "1", "type": "function", "function": {"name": "f\\ud83d", "arguments": "{\\ud83d"}}'
    told = f'{{"role": "assistant", "content": "half \\ud83d", "tool_calls": [{call}]}}'
    kind, place = ("chat.completion", "message") if on_text is None else ("chat.completion.chunk", "delta")
    choice = f'{{"index": 0, "finish_reason": "stop", "{place}": {told}}}'
    whole = f'{{"id": "1", "object": "{kind}", "created": 1, "model": "m", "choices": [{choice}]}}'
    answer = await ask(Reply(raw=whole if on_text is None else f"data: {whole}\n\n"), on_text=on_text)
    assert answer.text == "half ?"
    assert answer.calls == (FunctionCall("1", "f?", None, "{?"),)


async def test_what_a_provider_wants_to_see_again_is_sent_back(on_text: Heard | None) -> None:
    extra = {"google": {"thought_signature": "abc"}}
    async with asking(Reply(calls=[Call(id="a", name="orders", extra_content=extra)]), Reply(text="Done.")) as (
        server,
        model,
    ):
        first = await model.ask(question(), on_text)
        said = (said_by_user("Hi"), ModelSaid(calls=first.calls), FunctionSaid("a", "orders", {"paid": 45}))
        await model.ask(question(*said))
    assert first.calls[0].extra == extra
    assert server.requests[1].body["messages"][2]["tool_calls"][0]["extra_content"] == extra


async def test_tokens_are_estimated_and_called_so_when_the_provider_does_not_count(on_text: Heard | None) -> None:
    answer = await ask(Reply(text="twelve signs", usage=None), on_text=on_text)
    assert answer.estimated
    assert (answer.completion_tokens, answer.prompt_tokens > 5) == (3, True)


async def test_usage_is_asked_for_when_streaming() -> None:
    async with asking(Reply(text="Hi")) as (server, model):
        await model.ask(question(), Heard())
    assert server.requests[0].body["stream_options"] == {"include_usage": True}


# Questions


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


# Trying again


async def test_what_may_pass_is_tried_again_with_growing_waits(on_text: Heard | None) -> None:
    waits = Waits()
    replies = [Reply(status=503), Reply(cut_before=0), Reply(status=500), Reply(text="At last.")]
    async with asking(*replies, waits=waits) as (server, model):
        answer = await model.ask(question(), on_text)
    assert answer.text == "At last."
    assert len(server.requests) == 4
    assert waits.seconds == [0.5, 1.0, 2.0]


@pytest.mark.parametrize(
    ("status", "retry_after", "waited"),
    [(429, "3", 3.5), (503, "2.5", 3.0), (429, "Fri, 15 Jan 2027 08:00:20 GMT", 20.5), (429, "soon", 0.5)],
)
async def test_as_long_as_the_provider_asks_for_is_waited(status: int, retry_after: str, waited: float) -> None:
    waits = Waits()
    async with asking(Reply(status=status, headers={"Retry-After": retry_after}), Reply(text="Yes."), waits=waits) as (
        _,
        model,
    ):
        assert (await model.ask(question())).text == "Yes."
    assert waits.seconds == [waited]


async def test_a_provider_that_asks_for_too_long_a_wait_is_not_waited_for() -> None:
    waits = Waits()
    told = await refused(Reply(status=429, headers={"Retry-After": "3600"}), waits=waits)
    assert told.endswith("raise the limits of the account (it asks to wait 3600 s)")
    assert waits.seconds == []


async def test_four_failures_are_enough() -> None:
    async with asking(*[Reply(status=503)] * 5) as (server, model):
        with pytest.raises(ModelError, match=r"answers with status 503: .*; try again later \(tried 4 times\)$"):
            await model.ask(question())
    assert len(server.requests) == 4


async def test_a_stream_that_is_cut_before_any_text_is_tried_again() -> None:
    heard = Heard()
    calls = [Call(id="a", name="orders", arguments='{"number": "A-17"}')]
    async with asking(Reply(calls=calls, cut_before=2), Reply(calls=calls)) as (server, model):
        answer = await model.ask(question(), heard)
    assert [call.arguments for call in answer.calls] == [{"number": "A-17"}]
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    "reply", [Reply(text="one two three", cut_before=2), Reply(text="one two three", finish_reason=None)]
)
async def test_a_stream_that_breaks_off_after_some_text_is_not_begun_again(reply: Reply) -> None:
    heard = Heard()
    async with asking(reply, Reply(text="other words")) as (server, model):
        with pytest.raises(ModelError):
            await model.ask(question(), heard)
    assert len(server.requests) == 1
    assert "".join(heard.pieces).startswith("one two ")


async def test_an_answer_that_takes_too_long_ends_in_an_error() -> None:
    told = await refused(Reply(hold_before=0), timeout=0.2)
    assert told.endswith("did not finish its answer in 0.2 s: try again, or set ERRANDS_MODEL_TIMEOUT to more seconds")


async def test_an_answer_that_takes_too_long_after_a_failure_tells_of_both() -> None:
    told = await refused(Reply(status=503, error={"message": "busy"}), Reply(hold_before=0), timeout=0.2)
    assert "did not finish its answer in 0.2 s (before, openai at " in told
    assert "answers with status 503: busy; try again later): try again, or set ERRANDS_MODEL_TIMEOUT" in told


async def test_what_the_listener_raises_is_passed_on_and_nothing_is_tried_again() -> None:
    async def deaf(_: str) -> None:
        raise ConnectionResetError("the listener has gone")

    async with asking(Reply(text="one two"), Reply(text="three")) as (server, model):
        with pytest.raises(ConnectionResetError, match="the listener has gone"):
            await model.ask(question(), deaf)
    assert len(server.requests) == 1


async def test_a_question_that_is_cancelled_leaves_the_model_usable() -> None:
    async with asking(Reply(text="one two", hold_before=1), Reply(text="three")) as (server, model):
        asked = asyncio.create_task(model.ask(question(), Heard()))
        await server.holding.wait()
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        assert (await model.ask(question())).text == "three"


# Errors


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (
            Reply(status=401, error={"message": f"Incorrect API key provided: {KEY}", "code": "invalid_api_key"}),
            (
                "does not accept the API key, or not for gpt-test: set ERRANDS_MODEL_API_KEY or OPENAI_API_KEY "
                "to a key that may use it"
            ),
        ),
        (
            Reply(status=404, error={"message": "no such model", "code": "model_not_found"}),
            (
                "has no model gpt-test, or nothing answers there: check the agent's model, ERRANDS_MODEL and "
                "ERRANDS_MODEL_BASE_URL"
            ),
        ),
        (
            Reply(status=400, error={"message": f"{KEY} is a strange temperature, like sk-proj-abcdef123456"}),
            "refuses the request for gpt-test: … is a strange temperature, like …",
        ),
        (
            Reply(
                status=400, error={"message": "maximum context length is 8 tokens", "code": "context_length_exceeded"}
            ),
            (
                "the conversation is longer than gpt-test of openai takes: begin a new task, or use a model "
                "with a larger context"
            ),
        ),
        (
            Reply(status=429, error={"message": "you are out of credit", "code": "insufficient_quota"}),
            "the account at openai has no credit left: add some, or use another key or model",
        ),
        (
            Reply(status=400, error={"message": "blocked by our content policy"}),
            "openai refuses the content: blocked by our content policy",
        ),
    ],
)
async def test_an_error_says_what_to_do_and_has_no_secret(
    reply: Reply, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "errands")
    async with asking(reply) as (server, model):
        with pytest.raises(ModelError) as error:
            await model.ask(question())
    message = str(error.value)
    assert message.removeprefix(f"openai at {server.url} ") == told
    assert KEY not in message + caplog.text
    assert error.value.__cause__ is None
    assert len(server.requests) == 1


NOTHING = '{"id": "a", "object": "chat.completion", "created": 1, "model": "m", "choices": []}'


@pytest.mark.parametrize("raw", ["", "not json", "{}", '{"choices": "none"}', NOTHING])
async def test_an_answer_that_makes_no_sense_is_an_error(raw: str, on_text: Heard | None) -> None:
    async with asking(*[Reply(raw=raw)] * 4) as (_, model):
        with pytest.raises(ModelError):
            await model.ask(question(), on_text)


@pytest.mark.parametrize("raw", ["", "<html>Welcome</html>"])
async def test_an_address_where_something_else_answers_is_told(raw: str, on_text: Heard | None) -> None:
    async with asking(*[Reply(raw=raw, headers={"Content-Type": "text/html"})] * 4) as (_, model):
        with pytest.raises(
            ModelError, match="check ERRANDS_MODEL_BASE_URL, which usually ends in /v1, and what answers"
        ):
            await model.ask(question(), on_text)


async def test_an_error_in_a_stream_is_tried_again_while_no_text_was_told() -> None:
    failed = 'data: {"error": {"message": "The model is overloaded", "code": 502}}\n\n'
    async with asking(Reply(raw=failed, headers={"Content-Type": "text/event-stream"}), Reply(text="Yes.")) as (
        server,
        model,
    ):
        assert (await model.ask(question(), Heard())).text == "Yes."
    assert len(server.requests) == 2


async def test_nobody_at_the_address_is_told_with_the_address_but_not_with_its_password() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    model = AnyLlmModel(base_url=f"http://me:secret@127.0.0.1:{port}/v1?key=secret", patience=Waits().patience())
    with pytest.raises(ModelError) as error:
        await model.ask(question())
    await model.close()
    assert str(error.value) == (
        f"openai at http://127.0.0.1:{port}/v1 cannot be reached (ConnectionRefusedError): check the network and "
        "ERRANDS_MODEL_BASE_URL (tried 4 times)"
    )


# What is known without asking


def test_an_agent_without_a_model_is_answered_by_the_default() -> None:
    model = AnyLlmModel("openai/gpt-default", api_key=KEY)
    assert model.resolve(None) == "openai/gpt-default"
    assert model.resolve("openai/gpt-own") == "openai/gpt-own"


@pytest.mark.parametrize(
    ("made", "named", "builtins", "told"),
    [
        (
            lambda: AnyLlmModel(),
            None,
            (),
            "the agent names no model: add model: provider/model to it, or set ERRANDS_MODEL",
        ),
        (lambda: AnyLlmModel(), "gpt-4o", (), "the model is 'gpt-4o': models are written provider/model, such as "),
        (lambda: AnyLlmModel(), "openai/gpt", (), "there is no API key for openai: set OPENAI_API_KEY"),
        (lambda: AnyLlmModel(), "opnai/gpt", (), "there is no provider 'opnai': take one of anthropic, "),
        (lambda: AnyLlmModel(), "cohere/command", (), "cohere needs a package: pip install 'any-llm-sdk[cohere]'"),
        (
            lambda: AnyLlmModel(api_key=KEY),
            "openai/gpt",
            ("image-generation",),
            "model_capabilities: errands cannot ask openai for image-generation: take it away",
        ),
        (
            lambda: AnyLlmModel(api_key=KEY),
            "anthropic/claude",
            ("web-search",),
            (
                "model_capabilities: errands cannot ask anthropic for web-search: use a model of gemini, openai, "
                "openrouter, perplexity, vertexai, or take it away"
            ),
        ),
    ],
)
def test_what_cannot_work_is_refused_when_the_agent_is_loaded(
    made: Callable[[], AnyLlmModel], named: str | None, builtins: tuple[str, ...], told: str
) -> None:
    with pytest.raises(ConfigurationError) as error:
        made().resolve(named, builtins)
    assert str(error.value).startswith(told)


@pytest.mark.parametrize("url", ["models.example.com/v1", "ftp://example.com", "http://", "http://me:secret@host:port"])
def test_an_address_that_is_none_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        AnyLlmModel(base_url=url)
    told = "ERRANDS_MODEL_BASE_URL is no address: write it like https://models.example.com/v1"
    assert str(error.value) == told


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "any_llm", None)
    with pytest.raises(ConfigurationError, match=r"models need an extra \(.*\): pip install 'errands\[models\]'"):
        AnyLlmModel(api_key=KEY).resolve("openai/gpt-test")


def test_the_packages_of_providers_are_loaded_only_when_they_are_needed() -> None:
    program = "import sys, errands.agents.models.choose; print({'any_llm', 'openai', 'yaml'} & sys.modules.keys())"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "set()"


async def test_what_is_refused_when_it_is_loaded_is_refused_when_it_is_asked() -> None:
    with pytest.raises(ModelError, match="there is no API key for openai: set OPENAI_API_KEY"):
        await AnyLlmModel().ask(question())


async def test_a_server_of_ones_own_needs_no_key_and_no_known_provider() -> None:
    async with OpenAIServer([Reply(text="Hello.")]) as server:
        model = AnyLlmModel("my-gateway/big", base_url=server.url)
        answer = await model.ask(question(model=model.resolve(None)))
        await model.close()
    assert (answer.text, answer.model) == ("Hello.", "my-gateway/big")


async def test_a_key_is_never_sent_to_another_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    async with OpenAIServer([Reply(text="Hello.")]) as other:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai-itself")
        monkeypatch.setenv("OPENAI_BASE_URL", other.url)
        model = AnyLlmModel("anthropic/claude", api_key=KEY)
        await model.ask(question(model=model.resolve("openai/gpt-test")))
        await model.close()
    assert other.requests[0].headers["authorization"] == "Bearer sk-of-openai-itself"


def test_a_key_that_could_be_meant_for_two_providers_is_refused() -> None:
    model = AnyLlmModel(api_key=KEY)
    model.resolve("openai/gpt-test")
    with pytest.raises(ConfigurationError, match="could be meant for openai or for anthropic: set ERRANDS_MODEL"):
        model.resolve("anthropic/claude")


async def test_closing_lets_go_of_connections_and_may_be_done_twice() -> None:
    async with asking(Reply(text="Hello.")) as (_, model):
        await model.ask(question())
        await model.close()


# Answers without an end


@pytest.mark.parametrize(
    ("what", "streaming"), [("text", True), ("arguments", True), ("calls", True), ("body", True), ("body", False)]
)
async def test_an_answer_without_an_end_is_not_read_any_further(what: str, streaming: bool) -> None:
    async with asking(Reply(endless=what), max_bytes=20_000) as (server, model):
        with pytest.raises(ModelError, match=r"did not come to an end within 20,000 bytes.*ERRANDS_MODEL_MAX_BYTES"):
            await model.ask(question(), Heard() if streaming else None)
        # It would be the same again.
        assert len(server.requests) == 1


async def test_an_answer_of_the_greatest_size_is_read() -> None:
    text = "word " * 4_000
    async with asking(Reply(text=text), Reply(text=text), max_bytes=20_000) as (_, model):
        assert (await model.ask(question(), Heard())).text == text
        assert (await model.ask(question())).text == text
