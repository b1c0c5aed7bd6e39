"""`@agent`: a plain function as an agent."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pytest

from errands import ConfigurationError, Part, TaskContext, Worker, agent
from errands.runtime.handler import BlockingTaskContext
from errands.testing import connect
from tests.unit.support import said

pytestmark = pytest.mark.anyio


class Order(msgspec.Struct):
    item: str
    count: int = 1


@agent
async def echo(text: str) -> str:
    """Says it again."""
    return f"Echo: {text}"


@agent
def blocking_echo(text: str) -> str:
    return f"Echo: {text}"


@agent
async def counting(text: str) -> AsyncIterator[str]:
    for word in text.split():
        yield f"{word} "


@agent
def blocking_counting(text: str) -> Iterator[str]:
    for word in text.split():
        yield f"{word} "


@agent
async def order(order: Order) -> Order:
    return Order(item=order.item, count=order.count * 2)


@agent
def blocking_order(order: Order) -> Order:
    return Order(item=order.item, count=order.count * 2)


@agent
async def nothing() -> None:
    return None


@agent
def blocking_nothing() -> None:
    return None


@agent
async def asking(text: str, ctx: TaskContext) -> str | None:
    if not ctx.history:
        await ctx.request_input("sure?")
        return None
    return f"{ctx.history[0].text}, {text}"


@agent
def blocking_asking(text: str, ctx: BlockingTaskContext) -> str | None:
    if not ctx.history:
        ctx.request_input("sure?")
        return None
    return f"{ctx.history[0].text}, {text}"


@agent
def blocking_naming(ctx: TaskContext) -> str:
    return ctx.task_id


@agent
async def breaking(text: str) -> str:
    raise RuntimeError("inside")


@agent
def blocking_breaking(text: str) -> str:
    raise RuntimeError("inside")


@agent
async def mixed() -> AsyncIterator[Any]:
    yield "rows: "
    yield {"n": 1}


@agent
def blocking_mixed() -> Iterator[Any]:
    yield "rows: "
    yield {"n": 1}


@agent
async def breaking_stream() -> AsyncIterator[str]:
    yield "half"
    raise RuntimeError("inside")


@agent
def blocking_breaking_stream() -> Iterator[str]:
    yield "half"
    raise RuntimeError("inside")


@agent
async def ending_stream(ctx: TaskContext) -> AsyncIterator[str]:
    yield "half"
    await ctx.fail("that is all")


@agent
def blocking_ending_stream(ctx: BlockingTaskContext) -> Iterator[str]:
    yield "half"
    ctx.fail("that is all")


def both(name: str) -> pytest.MarkDecorator:
    """Runs a test with the function written as `async def` and as `def`."""
    return pytest.mark.parametrize("worker", [globals()[name], globals()[f"blocking_{name}"]], ids=["async", "def"])


@both("echo")
async def test_a_string_that_is_returned_becomes_a_text_artifact(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert result.completed
    assert [artifact.parts for artifact in result.artifacts] == [[Part(text="Echo: hi")]]


@both("order")
async def test_any_other_value_becomes_a_json_artifact_and_a_type_takes_the_first_json_value(
    worker: Worker, storage: str
) -> None:
    async with connect(worker, storage=storage) as client:
        from_data = await client.send([Part(data={"item": "nail", "count": 21})])
        from_text = await client.send('{"item": "nail"}')
    assert from_data.data == {"item": "nail", "count": 42}
    assert from_text.data == {"item": "nail", "count": 2}


@both("order")
async def test_a_value_that_does_not_fit_the_type_is_asked_for(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        asked = await client.send("a nail, please")
        answered = await client.send([Part(data={"item": "nail"})], task_id=asked.task_id)
    assert asked.input_required
    assert (said(asked) or "").startswith("That answer does not fit: ")
    assert answered.data == {"item": "nail", "count": 2}


@both("nothing")
async def test_none_completes_without_output(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert result.completed
    assert result.artifacts == []


@both("counting")
async def test_a_generator_is_streamed_piece_by_piece(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        events = [event async for event in client.stream("one two")]
        result = await client.get_task(events[0].task_id or "")
    pieces = [event for event in events if event.kind == "artifact"]
    assert [piece.text for piece in pieces] == ["one ", "two ", ""]
    assert [piece.last_chunk for piece in pieces] == [False, False, True]
    assert events[-1].state == "completed"
    assert result.text == "one two "


@both("mixed")
async def test_a_generator_may_give_json_between_its_text(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert [artifact.parts for artifact in result.artifacts] == [[Part(text="rows: "), Part(data={"n": 1})]]


@both("breaking_stream")
async def test_a_generator_that_breaks_fails_the_task_and_keeps_what_it_gave(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert result.failed
    assert [artifact.text for artifact in result.artifacts] == ["half"]
    assert "inside" not in (said(result) or "")


@both("ending_stream")
async def test_a_generator_that_takes_the_context_may_end_the_turn_itself(
    worker: Worker, storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert result.failed
    assert said(result) == "that is all"
    assert [artifact.text for artifact in result.artifacts] == ["half"]
    assert caplog.records == []


@both("asking")
async def test_a_function_that_takes_the_context_may_end_the_turn_itself(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        asked = await client.send("delete it")
        answered = await client.send("yes", task_id=asked.task_id)
    assert asked.input_required
    assert answered.text == "delete it, yes"


@both("breaking")
async def test_an_exception_fails_the_task_and_is_not_shown(worker: Worker, storage: str) -> None:
    async with connect(worker, storage=storage) as client:
        result = await client.send("hi")
    assert result.failed
    assert "inside" not in (said(result) or "")


async def test_a_def_may_call_its_context_a_task_context_too(storage: str) -> None:
    async with connect(blocking_naming, storage=storage) as client:
        result = await client.send("hi")
    assert result.text == result.task_id


async def test_a_def_does_not_run_on_the_event_loop() -> None:
    threads: list[threading.Thread] = []

    @agent
    def where() -> None:
        threads.append(threading.current_thread())

    async with connect(where) as client:
        await client.send("hi")
    assert threads[0] is not threading.current_thread()


async def test_a_parameter_without_a_type_gets_the_users_text() -> None:
    @agent
    async def untyped(text):  # type: ignore[no-untyped-def]
        return text

    async with connect(untyped) as client:
        assert (await client.send("hi")).text == "hi"


async def test_the_card_is_made_of_the_functions_name_and_docstring() -> None:
    async with connect(echo) as client:
        card = client.agent_card
    assert (card.name, card.description, card.version) == ("echo", "Says it again.", "1.0.0")
    assert card.capabilities.streaming


async def test_the_card_is_made_of_the_arguments_when_they_are_given() -> None:
    @agent(name="Shop", description="Sells.", version="2.0", streaming=False, icon_url="https://shop.test/icon")
    async def shop(text: str) -> str:
        return text

    async with connect(shop) as client:
        card = client.agent_card
    assert (card.name, card.description, card.version) == ("Shop", "Sells.", "2.0")
    assert not card.capabilities.streaming
    assert card.icon_url == "https://shop.test/icon"


async def test_the_function_can_still_be_called() -> None:
    assert await echo("hi") == "Echo: hi"
    assert blocking_echo("hi") == "Echo: hi"
    assert echo.__name__ == "echo"


def test_parameters_that_no_message_can_fill_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="plain names"):

        @agent
        async def variadic(*texts: str) -> None:
            return None
