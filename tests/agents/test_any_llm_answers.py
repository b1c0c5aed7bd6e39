"""any-llm: an answer is understood, streamed or whole."""

from __future__ import annotations

import asyncio

import pytest

from errands.agents.models.base import Answer, FunctionCall, FunctionSaid, ModelError, ModelSaid
from tests.agents.any_llm import ask, asking
from tests.agents.openai_server import Call, Reply
from tests.agents.support import Heard, question, said_by_user

pytestmark = pytest.mark.anyio


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


# Answers that are cut


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_why_an_answer_is_not_whole_is_told(reason: str, on_text: Heard | None) -> None:
    answer = await ask(Reply(text="It is", finish_reason=reason), on_text=on_text)
    assert (answer.text, answer.incomplete) == ("It is", reason)
    whole = await ask(Reply(text="It is so."), on_text=on_text)
    assert whole.incomplete is None


@pytest.mark.parametrize("written", ["", '{"numb', '{"number": "A-17"'])
async def test_a_call_that_was_cut_has_no_arguments(written: str, on_text: Heard | None) -> None:
    calls = [Call(id="a", name="orders", arguments=""), Call(id="b", name="orders", arguments=written)]
    answer = await ask(Reply(calls=calls, finish_reason="length"), on_text=on_text)
    # Before the last one nothing is missing.
    assert [call.arguments for call in answer.calls] == [{}, None]
    assert (answer.calls[1].raw, answer.incomplete) == (written, "length")


# Answers without an end


@pytest.mark.parametrize("what", ["text", "arguments", "calls"])
async def test_an_answer_without_an_end_is_not_read_any_further(what: str) -> None:
    async with asking(Reply(endless=what), max_bytes=20_000) as (server, model):
        with pytest.raises(ModelError, match=r"is longer than 20,000 bytes.*ERRANDS_MODEL_MAX_BYTES"):
            await model.ask(question(), Heard())
        # It would be the same again.
        assert len(server.requests) == 1


async def test_an_answer_of_the_greatest_size_is_read() -> None:
    text = "word " * 4_000
    async with asking(Reply(text=text), Reply(text=text), max_bytes=20_000) as (_, model):
        assert (await model.ask(question(), Heard())).text == text
        assert (await model.ask(question())).text == text
