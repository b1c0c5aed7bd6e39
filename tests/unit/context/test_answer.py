"""`ctx.answer(shape)`: the typed answer to `request_input(..., schema=...)`. A bad answer is asked for again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands import ClientResult, InvalidAnswerError, Part, TaskContext
from errands.client.conversation import Content
from tests.unit.support import Gate, lone_context, reaches, running, said, signature

pytestmark = pytest.mark.anyio


class Booking(msgspec.Struct):
    city: str
    nights: int


async def book(ctx: TaskContext) -> None:
    booking = ctx.answer(Booking)
    if booking is None:
        await ctx.request_input("Where and how long?", schema=Booking)
        return
    assert isinstance(booking, Booking)
    await ctx.complete(f"{booking.nights} nights in {booking.city}")


async def answered(*answers: Content, storage: str = "memory") -> list[ClientResult]:
    """What becomes of a booking that is answered so."""
    async with running(book, storage) as client:
        results = [await client.send("a room please")]
        for content in answers:
            results.append(await client.send(content, task_id=results[0].task_id))
    return results


def test_answer_takes_the_shape() -> None:
    assert signature(TaskContext.answer) == "(shape)"


def test_answer_is_none_when_nothing_was_asked_yet() -> None:
    assert lone_context().answer(Booking) is None


async def test_answer_is_the_data_part_as_the_type(storage: str) -> None:
    result = (await answered([Part(data={"city": "Rome", "nights": 3})], storage=storage))[-1]
    assert result.text == "3 nights in Rome"


async def test_answer_takes_a_data_part_before_text() -> None:
    parts = [Part(text='{"city": "Oslo", "nights": 1}'), Part(data={"city": "Rome", "nights": 3})]
    assert (await answered(parts))[-1].text == "3 nights in Rome"


async def test_answer_is_text_as_json_when_there_is_no_data_part(storage: str) -> None:
    result = (await answered('{"city": "Rome", "nights": 3}', storage=storage))[-1]
    assert result.text == "3 nights in Rome"


async def test_answer_takes_numbers_that_were_written_as_text() -> None:
    assert (await answered([Part(data={"city": "Rome", "nights": "3"})]))[-1].text == "3 nights in Rome"


@pytest.mark.parametrize(
    ("shape", "text", "value"),
    [
        (int, "42", 42),
        (float, "1.5", 1.5),
        (bool, "true", True),
        (str, "plain words", "plain words"),
        (str, "42", "42"),
    ],
)
async def test_answer_is_the_text_itself_for_simple_types(shape: type[Any], text: str, value: Any) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        if (answer := ctx.answer(shape)) is None:
            await ctx.request_input("?", schema=shape)
            return
        seen.append(answer)
        await ctx.complete()

    async with running(handle) as client:
        first = await client.send("go")
        await client.send(text, task_id=first.task_id)
    assert seen == [value]
    assert type(seen[0]) is shape


@pytest.mark.parametrize(
    "bad",
    ["no idea", '{"city": "Rome"}', [Part(data={"city": "Rome", "nights": "many"})], [Part(data=[])]],
    ids=["text", "incomplete", "wrong type", "wrong shape"],
)
async def test_a_bad_answer_is_asked_for_again_with_what_was_wrong(bad: Content, storage: str) -> None:
    first, second = await answered(bad, storage=storage)
    assert second.input_required
    assert second.raw_task is not None
    assert second.raw_task.status.message is not None
    assert first.raw_task is not None
    assert first.raw_task.status.message is not None
    complaint, *question = second.raw_task.status.message.parts
    assert (complaint.text or "").startswith("That answer does not fit: ")
    assert question == first.raw_task.status.message.parts


async def test_a_good_answer_after_a_bad_one_is_taken(storage: str) -> None:
    results = await answered("no idea", [Part(data={"city": "Rome", "nights": 3})], storage=storage)
    assert [result.state for result in results] == ["input-required", "input-required", "completed"]
    assert results[-1].text == "3 nights in Rome"


async def test_after_several_bad_answers_only_the_last_one_is_complained_about(storage: str) -> None:
    results = await answered("no idea", '{"city": "Rome"}', '{"nights": 1}', storage=storage)
    assert (said(results[-1]) or "").count("That answer does not fit") == 1
    assert (said(results[-1]) or "").count("Where and how long?") == 1
    assert "city" in (said(results[-1]) or "")


async def test_a_handler_may_deal_with_a_bad_answer_itself(storage: str) -> None:
    async def handle(ctx: TaskContext) -> None:
        try:
            number = ctx.answer(int)
        except InvalidAnswerError:
            await ctx.complete("never mind")
            return
        assert number is None
        await ctx.request_input("how many?", schema=int)

    async with running(handle, storage) as client:
        first = await client.send("go")
        result = await client.send("some", task_id=first.task_id)
    assert result.completed
    assert result.text == "never mind"


async def test_a_message_that_was_waiting_when_the_question_was_asked_is_its_answer(storage: str) -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await book(ctx)

    async with running(handle, storage) as client:
        task_id = (await client.send("a room please", blocking=False)).task_id
        await client.send([Part(data={"city": "Rome", "nights": 3})], task_id=task_id, blocking=False)
        gate.open()
        result = await reaches(client, task_id, "completed")
    assert result.text == "3 nights in Rome"


async def test_a_bad_answer_that_is_noticed_after_the_turn_has_ended_changes_nothing(
    storage: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def handle(ctx: TaskContext) -> None:
        if not ctx.history:
            await ctx.request_input("how many?", schema=int)
            return
        await ctx.complete("done")
        ctx.answer(int)

    async with running(handle, storage) as client:
        first = await client.send("go")
        result = await client.send("some", task_id=first.task_id)
        assert result.completed
        assert (await client.get_task(first.task_id)).completed
    assert "failed after its turn had ended" in caplog.text
    assert "could not be run" not in caplog.text
