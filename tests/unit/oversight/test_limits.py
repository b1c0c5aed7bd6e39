"""Limits of a policy, on agents of every kind."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest

from errands import AgentExecutor, EventQueue, RequestContext, TaskContext, TaskStoppedError, TaskUpdater, agent
from errands.agents.models.base import Answer
from errands.agents.tools.python import tool
from errands.engines.memory import MemoryEngine
from errands.testing import ManualClock
from tests.agents import rig
from tests.unit.oversight.support import KINDS, Thinks, manifest, policy, reason, serving
from tests.unit.support import Agent, ThreadedAgent, said

pytestmark = pytest.mark.anyio


class Talker(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        for _ in range(int(context.get_user_input())):
            await context.record_llm("m", prompt=10, completion=1)
            async with context.capability("look"):
                pass
        await TaskUpdater(event_queue, context.task_id, context.context_id).complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


async def talk(ctx: TaskContext) -> None:
    for _ in range(int(ctx.user_text)):
        await ctx.record_llm("m", prompt=10, completion=1)
        async with ctx.capability("look"):
            pass
    await ctx.complete("done")


def talk_in_thread(ctx: Any) -> None:
    for _ in range(int(ctx.user_text)):
        ctx.record_llm("m", prompt=10, completion=1)
        with ctx.capability("look"):
            pass
    ctx.complete("done")


@agent(name="Test agent")
async def talk_as_function(ctx: TaskContext) -> None:
    await talk(ctx)


@tool
async def look() -> str:
    """Looks."""
    return "seen"


def think(text: str, before: int) -> Answer:
    """As many answers as the text says; the last one has no call."""
    is_last = before // 2 + 1 == int(text)
    answer = rig.say("done") if is_last else rig.call(("look", {}))
    return msgspec.structs.replace(answer, prompt_tokens=10, completion_tokens=1)


def talkers() -> dict[str, Any]:
    return {
        "worker": Agent(talk),
        "thread": ThreadedAgent(talk_in_thread),
        "function": talk_as_function,
        "executor": Talker(),
        "manifest": manifest(Thinks(think), "capabilities: {look: '*'}\n", look),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("limit", "allowed", "message"),
    [
        ("max_turns", 3, "max_turns is 3 and the task has come to 4"),
        ("max_prompt_tokens", 30, "max_prompt_tokens is 30 and the task has come to 40"),
        ("max_completion_tokens", 3, "max_completion_tokens is 3 and the task has come to 4"),
        ("max_tool_calls", 3, "max_tool_calls is 3 and the task has come to 4"),
    ],
)
async def test_a_limit_that_is_exceeded_ends_the_task(kind: str, limit: str, allowed: int, message: str) -> None:
    async with serving(talkers()[kind], policy=policy(limits={limit: allowed})) as server:
        assert (await server.client.send("3")).state == "completed"
        result = await server.client.send("9")
        assert (result.state, reason(result)) == ("failed", "limit_exceeded")
        assert message in (said(result) or "")
        assert (await server.kinds(result))[-2:] == ["Decided", "Ended"]
        assert (await server.decisions(result))[-1] == (f"limits.{limit}", "exceeded")


async def test_limits_count_over_all_turns_of_a_task() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.record_llm("m")
        await ctx.request_input("And?")

    async with serving(Agent(handle), policy=policy(limits={"max_turns": 2})) as server:
        result = await server.client.send("1")
        result = await server.client.send("2", task_id=result.task_id)
        assert result.state == "input-required"
        result = await server.client.send("3", task_id=result.task_id)
        assert (result.state, reason(result)) == ("failed", "limit_exceeded")


def clocked(clock: ManualClock, heard: list[str], seconds: int) -> dict[str, Any]:
    """Agents of every kind that take so many seconds and complete their task, or ask for more when told "wait"."""

    def hear(text: str) -> None:
        heard.append(text)
        clock.advance(seconds=seconds)

    async def handle(ctx: TaskContext) -> None:
        hear(ctx.user_text)
        await (ctx.request_input("And?") if ctx.user_text == "wait" else ctx.complete("at last"))

    def handle_in_thread(ctx: Any) -> None:
        hear(ctx.user_text)
        if ctx.user_text == "wait":
            ctx.request_input("And?")
        else:
            ctx.complete("at last")

    @agent(name="Test agent")
    async def function(ctx: TaskContext) -> None:
        await handle(ctx)

    class Executor(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            hear(context.get_user_input())
            updater = TaskUpdater(event_queue, context.task_id, context.context_id)
            await (updater.requires_input() if context.get_user_input() == "wait" else updater.complete())

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            pass

    def answer(text: str, before: int) -> Answer:
        hear(text)
        return rig.say("And?" if text == "wait" else "at last")

    return {
        "worker": Agent(handle),
        "thread": ThreadedAgent(handle_in_thread),
        "function": function,
        "executor": Executor(),
        "manifest": manifest(Thinks(answer), closes=False),
    }


@pytest.mark.parametrize("kind", KINDS)
async def test_a_task_that_is_too_old_takes_no_input(kind: str) -> None:
    clock = ManualClock()
    heard: list[str] = []
    worker, storage = clocked(clock, heard, 0)[kind], MemoryEngine(clock=clock)
    async with serving(worker, policy=policy(limits={"max_age": "1h"}), storage=storage) as server:
        result = await server.client.send("wait")
        assert result.state == "input-required"
        clock.advance(seconds=3601)
        result = await server.client.send("two", task_id=result.task_id)
        assert (result.state, reason(result)) == ("failed", "limit_exceeded")
        assert heard == ["wait"]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_comes_too_late_is_not_given(kind: str) -> None:
    clock = ManualClock()
    worker, storage = clocked(clock, [], 61)[kind], MemoryEngine(clock=clock)
    async with serving(worker, policy=policy(limits={"max_age": "1m"}), storage=storage) as server:
        result = await server.client.send("hi")
        assert (result.state, reason(result)) == ("failed", "limit_exceeded")
        assert "at last" not in (said(result) or "")


async def test_an_agent_that_ignores_that_it_was_stopped_writes_nothing_more() -> None:
    async def handle(ctx: TaskContext) -> None:
        for _ in range(3):
            try:
                await ctx.record_llm("m")
            except TaskStoppedError:
                break
        await ctx.emit_text_artifact("more")
        await ctx.complete("all the same")

    async with serving(Agent(handle), policy=policy(limits={"max_turns": 1})) as server:
        result = await server.client.send("hi")
        assert (result.state, result.artifacts) == ("failed", [])


@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_that_takes_too_long_is_interrupted(kind: str) -> None:
    let_go = threading.Event()

    @agent(name="Test agent")
    async def forever_as_function(text: str) -> None:
        await asyncio.Event().wait()

    async def think_forever(text: str, before: int) -> Answer:
        await asyncio.Event().wait()
        raise AssertionError

    async def forever(ctx: TaskContext) -> None:
        await asyncio.Event().wait()

    def forever_in_thread(ctx: Any) -> None:
        let_go.wait()

    class Forever(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            await asyncio.Event().wait()

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            pass

    agents: dict[str, Any] = {
        "worker": Agent(forever),
        "thread": ThreadedAgent(forever_in_thread),
        "function": forever_as_function,
        "executor": Forever(),
        "manifest": manifest(Thinks(think_forever)),
    }
    try:
        async with serving(agents[kind], policy=policy(limits={"max_age": "20ms"})) as server:
            result = await server.client.send("hi")
            assert (result.state, reason(result)) == ("failed", "limit_exceeded")
    finally:
        let_go.set()
