"""`ClientResult.text` and `.data` are the answer of this turn, whatever the task had said or made before."""

from __future__ import annotations

from typing import Any

import pytest

from errands import AgentExecutor, EventQueue, Message, Part, RequestContext, Role, TaskContext, TaskUpdater
from errands.client import ClientResult
from errands.client.results import ResultMemory
from errands.model.core import Artifact, Task, TaskState, TaskStatus
from errands.testing import connect
from tests.unit.support import running

pytestmark = pytest.mark.anyio


async def turns(ctx: TaskContext) -> None:
    """Streams a draft and asks; ends as the answer says."""
    if not ctx.history:
        await ctx.emit_text_artifact("a draft", artifact_id="draft", last_chunk=True)
        await ctx.request_input("Good?")
        return
    match ctx.user_text:
        case "respond":
            await ctx.respond("Thank you.")
        case "complete":
            await ctx.complete("the text")
        case "replace":
            await ctx.emit_text_artifact("another draft", artifact_id="draft", last_chunk=True)
            await ctx.complete()
        case "json":
            await ctx.complete_json({"n": 1})
        case "fail":
            await ctx.emit_text_artifact("half of the te", artifact_id="text")
            await ctx.fail("The printer is on fire.")
        case "reject":
            await ctx.reject("Not mine.")
        case "ask":
            await ctx.request_input("Really?")
        case "auth":
            await ctx.request_auth("Who are you?")
        case "nothing":
            await ctx.complete()


ANSWERS = {
    "respond": ("Thank you.", None),
    "complete": ("the text", None),
    "replace": ("another draft", None),
    "json": (None, {"n": 1}),
    "fail": ("The printer is on fire.", None),
    "reject": ("Not mine.", None),
    "ask": ("Really?", None),
    "auth": ("Who are you?", None),
    "nothing": (None, None),
}


@pytest.mark.parametrize(("way", "answer"), ANSWERS.items())
@pytest.mark.parametrize("over", ["send", "conversation", "stream"])
async def test_the_second_turn_shows_its_own_answer(way: str, answer: tuple[str | None, Any], over: str) -> None:
    async with running(turns) as client:
        if over == "send":
            asked = await client.send("begin")
            result = await client.send(way, task_id=asked.task_id)
        else:
            conversation = client.conversation()
            asked = await conversation.send("begin")
            if over == "conversation":
                result = await conversation.send(way)
            else:
                async for _ in conversation.stream(way):
                    pass
                result = conversation.history[-1].result
    assert asked.text == "a draft"
    assert (result.text, result.data) == answer


@pytest.mark.parametrize("way", ["respond", "complete", "fail", "reject", "ask", "auth"])
async def test_a_task_that_is_looked_at_shows_the_answer_of_its_last_turn(way: str) -> None:
    async with running(turns) as client:
        asked = await client.send("begin")
        await client.send(way, task_id=asked.task_id)
        assert (await client.get_task(asked.task_id)).text == ANSWERS[way][0]


async def test_a_first_turn_that_fails_says_why_and_keeps_what_it_had_made() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("half of the te")
        await ctx.fail("The printer is on fire.")

    async with running(handle) as client:
        result = await client.send("begin")
    assert (result.text, result.artifacts[0].text) == ("The printer is on fire.", "half of the te")


async def test_an_artifact_of_a_turn_that_completes_counts_more_than_its_closing_words() -> None:
    class Closing(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            if context.current_task is None:
                await updater.requires_input(updater.new_agent_message([Part(text="Which?")]))
                return
            await updater.add_artifact([Part(text=f"In {context.get_user_input()}")])
            await updater.complete(updater.new_agent_message([Part(text="Done")]))

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None: ...

    async with connect(Closing()) as client:
        asked = await client.send("begin")
        assert (await client.send("French", task_id=asked.task_id)).text == "In French"


def waiting(number: int) -> Task:
    artifact = Artifact(artifact_id="a", parts=[Part(text="made")])
    status = TaskStatus(state=TaskState.INPUT_REQUIRED)
    said = [Message(message_id=f"m{n}", role=Role.USER, parts=[Part(text="hi")]) for n in range(2)]
    return Task(id=f"t{number}", status=status, artifacts=[artifact], history=said)


def test_a_client_remembers_a_bounded_number_of_tasks() -> None:
    memory = ResultMemory()
    results: list[ClientResult] = [memory.result(waiting(number), is_new=True) for number in range(1001)]
    assert {result.text for result in results} == {"made"}
    assert memory.result(waiting(1000), is_new=False).text is None
    assert memory.result(waiting(0), is_new=False).text == "made"


def test_a_message_that_named_no_task_may_have_been_the_answer_to_one() -> None:
    task = waiting(1)
    task.status = TaskStatus(state=TaskState.COMPLETED)
    task.artifacts = [*(task.artifacts or ()), Artifact(artifact_id="b", parts=[Part(text="made now")])]
    assert ResultMemory().result(task, is_new=True).text == "made now"
