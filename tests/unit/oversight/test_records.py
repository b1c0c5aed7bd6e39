"""`ctx.record_llm`, `ctx.capability` and `ctx.policy_context`: what agents tell about their runs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from errands import (
    AgentExecutor,
    CapabilityBlockedError,
    EventQueue,
    Part,
    RequestContext,
    TaskContext,
    TaskStoppedError,
    TaskUpdater,
    agent,
)
from errands.agents.models.base import Answer
from errands.clock import from_iso
from errands.engines.memory import MemoryEngine
from errands.errors import ConfigurationError
from errands.policy.records import (
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    InputArrived,
    ModelCalled,
    OutputGiven,
    Started,
)
from errands.runtime.executor import ServerCallContext
from errands.testing import ManualClock
from tests.agents import rig
from tests.unit.oversight.support import Thinks, around, manifest, policy, reason, serving
from tests.unit.support import Agent, Gate, ThreadedAgent, reaches, said

pytestmark = pytest.mark.anyio


async def busy(ctx: TaskContext) -> None:
    await ctx.record_llm("acme/large", prompt=12, completion=3, text="let me look")
    async with ctx.capability("search", {"query": "tea"}, limit=2) as call:
        call.output = [f"{call.arguments['query']} {n}" for n in range(call.arguments["limit"])]
    await ctx.complete("found")


def busy_in_thread(ctx: Any) -> None:
    ctx.record_llm("acme/large", prompt=12, completion=3, text="let me look")
    with ctx.capability("search", {"query": "tea"}, limit=2) as call:
        call.result([f"{call.arguments['query']} {n}" for n in range(call.arguments["limit"])])
    assert call.output == ["tea 0", "tea 1"]
    assert ctx.policy_context()["llm"]["tokens"]["total"] == 15
    ctx.complete("found")


@agent(name="Test agent")
async def busy_function(text: str, ctx: TaskContext) -> None:
    await busy(ctx)


class BusyExecutor(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        await context.record_llm("acme/large", prompt=12, completion=3, text="let me look")
        async with context.capability("search", {"query": "tea"}, limit=2) as call:
            call.output = [f"{call.arguments['query']} {n}" for n in range(call.arguments["limit"])]
        assert (await context.policy_context())["capabilities"]["_meta"]["count"] == 1
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.add_artifact([Part(text="found")], "answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


BUSY = {
    "worker": Agent(busy),
    "thread": ThreadedAgent(busy_in_thread),
    "function": busy_function,
    "executor": BusyExecutor(),
}


@pytest.mark.parametrize("kind", BUSY)
async def test_what_an_agent_tells_is_in_the_records_of_its_task(kind: str, tmp_path: Any) -> None:
    async with serving(BUSY[kind], storage=f"sqlite:///{tmp_path / 'tasks.db'}") as server:
        result = await server.client.send("look for tea")
        assert result.state == "completed"
        started, arrived, called, began, finished, given = await server.records(result)
        assert isinstance(started, Started)
        assert (started.agent, started.user) == ("Test agent", "")
        assert isinstance(arrived, InputArrived)
        assert arrived.values == {"message": [{"mimeType": "text/plain", "text": "look for tea"}]}
        assert isinstance(called, ModelCalled)
        assert (called.model, called.prompt, called.completion, called.text) == ("acme/large", 12, 3, "let me look")
        assert isinstance(began, CapabilityBegan)
        assert (began.function, began.arguments) == ("search", {"query": "tea", "limit": 2})
        assert isinstance(finished, CapabilityFinished)
        assert (finished.call, finished.output) == (began.call, ["tea 0", "tea 1"])
        assert isinstance(given, OutputGiven)
        assert given.values == {"message": [{"mimeType": "text/plain", "text": "found"}]}


async def test_records_of_calls_and_models_have_the_time_of_their_end() -> None:
    clock = ManualClock()

    async def handle(ctx: TaskContext) -> None:
        async with ctx.capability("search"):
            clock.advance(seconds=2)
        with suppress(RuntimeError):
            async with ctx.capability("search"):
                clock.advance(seconds=3)
                raise RuntimeError
        await ctx.record_llm("m")
        await ctx.complete("done")

    def answer(text: str, before: int) -> Answer:
        clock.advance(seconds=4)
        return rig.say("done")

    async with serving(Agent(handle), storage=MemoryEngine(clock=clock)) as server:
        known = await server.records(await server.client.send("hi"))
        took = [_seconds(one) for one in known if isinstance(one, CapabilityFinished | CapabilityErrored | ModelCalled)]
        assert took == [2, 3, 0]
    async with serving(manifest(Thinks(answer)), storage=MemoryEngine(clock=clock)) as server:
        known = await server.records(await server.client.send("hi"))
        [called] = [one for one in known if isinstance(one, ModelCalled)]
        assert (_seconds(called), called.first_token_at) == (4, called.ended_at)


def _seconds(record: CapabilityFinished | CapabilityErrored | ModelCalled) -> float:
    return (from_iso(record.ended_at) - from_iso(record.at)) / 1000


async def test_an_agent_that_tells_nothing_leaves_no_records() -> None:
    async def quiet(ctx: TaskContext) -> None:
        await ctx.complete("quiet")

    async with serving(Agent(quiet)) as server:
        assert await server.records(await server.client.send("hi")) == []


async def test_the_context_goes_on_from_turn_to_turn() -> None:
    contexts: list[dict[str, Any]] = []

    async def handle(ctx: TaskContext) -> None:
        await ctx.record_llm("acme/small", prompt=1)
        contexts.append(await ctx.policy_context())
        await (ctx.request_input("And?") if len(contexts) == 1 else ctx.respond("Good."))

    async with serving(Agent(handle)) as server:
        first = await server.client.send("one")
        await server.client.send("two", task_id=first.task_id)
        second = contexts[1]
        assert second["_history"] == {"turns": ["input", "llm", "input", "llm"], "turn_count": 4}
        assert [said["message"][0]["text"] for said in second["input"]] == ["one", "two"]
        assert [given["message"][0]["text"] for given in second["output"]] == ["And?"]
        assert second["llm"] == {"model": "acme/small", "tokens": {"total": 2, "prompt": 2, "completion": 0}}
        assert second["agent"]["name"] == "Test agent"
        assert await server.kinds(first) == [
            *("Started", "InputArrived", "ModelCalled", "OutputGiven"),
            *("InputArrived", "ModelCalled", "OutputGiven"),
        ]


async def test_the_context_that_an_agent_is_shown_is_its_own_copy() -> None:
    async def handle(ctx: TaskContext) -> None:
        (await ctx.policy_context())["llm"]["tokens"]["total"] = 99
        assert (await ctx.policy_context())["llm"]["tokens"]["total"] == 0
        await ctx.complete("fine")

    async with serving(Agent(handle)) as server:
        assert (await server.client.send("hi")).state == "completed"


async def test_a_capability_that_fails_is_recorded_and_its_exception_passed_on() -> None:
    async def handle(ctx: TaskContext) -> None:
        try:
            async with ctx.capability("search"):
                raise LookupError("nothing there")
        except LookupError as error:
            await ctx.complete(f"{error}, {(await ctx.policy_context())['capabilities']['search']['count_errored']}")

    async with serving(Agent(handle)) as server:
        result = await server.client.send("hi")
        assert result.text == "nothing there, 1"
        errored = next(r for r in await server.records(result) if isinstance(r, CapabilityErrored))
        assert (errored.error, errored.executed) == ("LookupError: nothing there", True)


async def test_the_beginning_of_a_call_is_durable_before_its_block_runs() -> None:
    gate = Gate()

    async def handle(ctx: TaskContext) -> None:
        async with ctx.capability("pay", amount=5):
            await gate()
        await ctx.complete("paid")

    async with serving(Agent(handle)) as server:
        sent = await server.client.send("pay", blocking=False)
        await gate.reached.wait()
        assert (await server.kinds(sent))[-1] == "CapabilityBegan"
        gate.open()
        assert (await reaches(server.client, sent.task_id or "", "completed")).state == "completed"


async def test_concurrent_first_records_begin_the_run_once() -> None:
    async def handle(ctx: TaskContext) -> None:
        await asyncio.gather(*(ctx.record_llm("m", prompt=n) for n in range(5)))
        await ctx.complete("done")

    async with serving(Agent(handle)) as server:
        kinds = await server.kinds(await server.client.send("hi"))
        assert kinds == ["Started", "InputArrived", *["ModelCalled"] * 5, "OutputGiven"]


async def test_what_cannot_be_recorded_is_refused() -> None:
    problems: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        for wrong in (
            lambda: ctx.record_llm("m", prompt=-1),
            lambda: ctx.capability("_meta").__aenter__(),
            lambda: ctx.capability(42).__aenter__(),  # type: ignore[arg-type]
            lambda: ctx.capability("search", {"what": object()}).__aenter__(),
        ):
            try:
                await wrong()
            except (TypeError, ValueError) as error:
                problems.append(str(error))
        await ctx.complete("done")

    async with serving(Agent(handle)) as server:
        assert (await server.client.send("hi")).state == "completed"
    assert problems[0] == "prompt must be from 0 to 2**63 - 1, not -1"
    assert problems[1] == "'_meta' cannot be the name of a capability"
    assert problems[2] == "name must be a str, not int"
    assert problems[3].startswith("not a JSON value")


async def test_a_request_that_nobody_executes_has_no_records() -> None:
    context = RequestContext(ServerCallContext())
    with pytest.raises(ConfigurationError, match="no records"):
        await context.record_llm("m")


# Policies around capabilities


async def test_a_blocked_capability_is_not_called() -> None:
    async def handle(ctx: TaskContext) -> None:
        try:
            async with ctx.capability("pay", amount=500):
                raise AssertionError("this must not run")
        except CapabilityBlockedError as blocked:
            await ctx.complete(f"I may not: {blocked}")

    rule = {"assert": "input.amount <= 100", "error_message": "{input.amount} is too much."}
    async with serving(Agent(handle), policy=around("pay", before=[rule])) as server:
        result = await server.client.send("pay")
        assert result.text == "I may not: 500 is too much."
        assert await server.decisions(result) == [("capabilities.pay.before[0]", "failed: block")]
        restricted = next(r for r in await server.records(result) if isinstance(r, CapabilityRestricted))
        assert restricted.reason == "500 is too much."


async def test_a_block_that_the_agent_lets_pass_fails_the_task_with_the_policys_words() -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.capability("pay"):
            pass

    async with serving(Agent(handle), policy=around("pay", before=[{"assert": "false"}])) as server:
        result = await server.client.send("pay")
        assert (result.state, said(result)) == ("failed", "refused by policy (capabilities.pay.before[0])")


async def test_steps_change_arguments_and_results() -> None:
    async def handle(ctx: TaskContext) -> None:
        async with ctx.capability("search", query="tea") as call:
            call.output = {"found": call.arguments["query"], "token": "hidden"}
        await ctx.complete_json(call.output)

    steps = around(
        "search",
        before_first=[{"transform": "input.put('first', true)"}],
        before=[{"transform": "input.put('query', input.query + '!')"}],
        after=[{"transform": "{'found': output.found, 'first': input.first}"}],
    )
    async with serving(Agent(handle), policy=steps) as server:
        result = await server.client.send("go")
        assert result.data == {"found": "tea!", "first": True}
        finished = next(r for r in await server.records(result) if isinstance(r, CapabilityFinished))
        assert finished.output == {"found": "tea!", "token": "hidden"}


async def test_a_result_that_is_blocked_is_not_used() -> None:
    async def handle(ctx: TaskContext) -> None:
        try:
            async with ctx.capability("search") as call:
                call.output = "rude"
        except CapabilityBlockedError as blocked:
            await ctx.complete(str(blocked))

    rule = {"assert": "output != 'rude'", "error_message": "Not {output}."}
    async with serving(Agent(handle), policy=around("search", after=[rule])) as server:
        assert (await server.client.send("go")).text == "Not rude."


@pytest.mark.parametrize("phase", ["before_first", "before", "after"])
async def test_a_step_that_locks_ends_the_task_and_the_agent_can_write_nothing_more(phase: str) -> None:
    stopped: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        try:
            async with ctx.capability("pay"):
                pass
        except TaskStoppedError as error:
            stopped.append(error.reason)
            await ctx.complete("all the same")

    rule = {"assert": "false", "on_fail": "lock_task", "error_message": "Enough."}
    async with serving(Agent(handle), policy=around("pay", **{phase: [rule]})) as server:
        result = await server.client.send("pay")
        assert (result.state, said(result), reason(result)) == ("rejected", "Enough.", "restricted")
        assert stopped == ["restricted"]
        assert (await server.kinds(result))[-1] == "Ended"


async def test_declared_capabilities_are_known_before_they_are_called() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(str((await ctx.policy_context())["capabilities"]["pay"]["count_successful"]))

    async with serving(Agent(handle), policy=policy(capabilities={"pay": {}})) as server:
        assert (await server.client.send("hi")).text == "0"
