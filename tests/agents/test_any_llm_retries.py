"""any-llm: what may pass is tried again, and nothing that was told is told twice."""

from __future__ import annotations

import asyncio

import pytest

from errands.agents.models.base import FunctionCall, FunctionSaid, ModelError, ModelSaid
from tests.agents.any_llm import asking, refused
from tests.agents.openai_server import Call, Reply
from tests.agents.support import Heard, question
from tests.clock import let_pass

pytestmark = pytest.mark.anyio


async def test_what_may_pass_is_tried_again(on_text: Heard | None) -> None:
    replies = [Reply(status=503), Reply(cut_before=0), Reply(status=429), Reply(text="At last.")]
    async with asking(*replies) as (server, model):
        answer = await model.ask(question(), on_text)
    assert answer.text == "At last."
    assert len(server.requests) == 4


async def test_four_failures_are_enough() -> None:
    async with asking(*[Reply(status=503)] * 5) as (server, model):
        with pytest.raises(ModelError, match=r"openai at .* failed with status 503: "):
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
        with pytest.raises(ModelError) as error:
            await model.ask(question(), heard)
    assert error.value.broke_off
    assert server.url not in error.value.for_caller
    assert len(server.requests) == 1
    assert "".join(heard.pieces).startswith("one two ")


async def too_late(*replies: Reply) -> str:
    """What is told when the time is up after these, while the next reply is waited for."""
    async with asking(*replies, Reply(hold_before=0), timeout=60) as (server, model):
        asked = asyncio.create_task(model.ask(question()))
        await server.holding.wait()
        let_pass(seconds=60)
        with pytest.raises(ModelError) as error:
            await asked
        return str(error.value)


async def test_an_answer_that_takes_too_long_ends_in_an_error() -> None:
    told = await too_late()
    assert told.endswith("did not finish its answer within 60 s: try again, or increase ERRANDS_MODEL_TIMEOUT")


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


async def test_an_error_in_a_stream_is_tried_again_while_no_text_was_told() -> None:
    failed = 'data: {"error": {"message": "The model is overloaded", "code": 502}}\n\n'
    async with asking(Reply(raw=failed, headers={"Content-Type": "text/event-stream"}), Reply(text="Yes.")) as (
        server,
        model,
    ):
        assert (await model.ask(question(), Heard())).text == "Yes."
    assert len(server.requests) == 2


async def test_an_answer_without_a_word_and_without_a_call_is_tried_again(on_text: Heard | None) -> None:
    async with asking(Reply(), Reply(text=" \n"), Reply(text="Here I am.")) as (server, model):
        if on_text is None:
            assert (await model.ask(question())).text == "Here I am."
            assert len(server.requests) == 3
            return
        # The second has told a blank.
        with pytest.raises(ModelError, match=r"gave an empty answer; try again$"):
            await model.ask(question(), on_text)
        assert len(server.requests) == 2


async def test_what_an_empty_try_took_counts() -> None:
    async with asking(Reply(usage=(1000, 3)), Reply(usage=(1000, 2)), Reply(text="Hi", usage=(1000, 1))) as (_, model):
        answer = await model.ask(question())
    assert (answer.prompt_tokens, answer.completion_tokens) == (3000, 6)


async def test_a_model_that_was_told_results_may_say_nothing(on_text: Heard | None) -> None:
    called = ModelSaid("One moment.", (FunctionCall("c1", "add", {}),))
    asked = question(called, FunctionSaid("c1", "add", 2))
    async with asking(Reply()) as (server, model):
        assert (await model.ask(asked, on_text)).text == ""
        assert len(server.requests) == 1


async def test_a_model_that_never_says_anything_is_an_error() -> None:
    told = await refused(*[Reply()] * 3)
    assert told.endswith("gave an empty answer; try again")


@pytest.mark.parametrize(
    ("reason", "told"),
    [
        ("length", "reached the length limit of an answer before it said anything: ask for less"),
        ("content_filter", "withheld the whole answer (content_filter): ask for something else"),
    ],
)
async def test_an_answer_that_was_cut_to_nothing_is_not_tried_again(
    reason: str, told: str, on_text: Heard | None
) -> None:
    async with asking(Reply(finish_reason=reason)) as (server, model):
        with pytest.raises(ModelError) as error:
            await model.ask(question(), on_text)
        assert told in str(error.value)
        assert len(server.requests) == 1
