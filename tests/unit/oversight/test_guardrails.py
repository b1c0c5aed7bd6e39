"""`A2AServer(policy=...)`: guardrails around an agent of any kind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from errands import (
    AgentExecutor,
    Artifact,
    EventQueue,
    Message,
    Part,
    RequestContext,
    Role,
    Task,
    TaskContext,
    TaskState,
    TaskStatus,
)
from errands.policy.document import Policy
from tests.unit.oversight.support import KINDS, after, before, echoes, policy, reason, serving
from tests.unit.support import Agent, said, spoken

pytestmark = pytest.mark.anyio

NO_SECRETS = {
    "assert": "!input.message.exists(part, part.text.contains('secret'))",
    "error_message": "Keep {input.message[0].text} to yourself.",
}
NO_SECRET_ANSWERS = {"assert": "!output.message.exists(part, part.text.contains('secret'))", "error_message": "No."}


@pytest.fixture(params=["memory", "sqlite"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return "memory" if request.param == "memory" else f"sqlite:///{tmp_path / 'tasks.db'}"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_that_is_refused_never_reaches_the_agent(kind: str, storage: str) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)[kind], policy=before(NO_SECRETS), storage=storage) as server:
        fine = await server.client.send("hello")
        refused = await server.client.send("a secret")
        assert (fine.state, fine.text) == ("completed", "Echo: hello")
        assert (refused.state, said(refused)) == ("rejected", "Keep a secret to yourself.")
        assert reason(refused) == "restricted"
        assert heard == ["hello"]
        kinds = [kind for kind in await server.kinds(fine) if kind != "ModelCalled"]
        assert kinds == ["Started", "InputArrived", "Decided", "InputPassed", "OutputGiven"]
        assert await server.kinds(refused) == ["Started", "InputArrived", "Decided", "Ended"]
        assert await server.decisions(refused) == [("guardrails.before[0]", "failed: lock_task")]


@pytest.mark.parametrize("kind", KINDS)
async def test_an_answer_that_is_refused_is_never_seen(kind: str, storage: str) -> None:
    async with serving(echoes([])[kind], policy=after(NO_SECRET_ANSWERS), storage=storage) as server:
        fine = await server.client.send("hello")
        events = [event async for event in server.client.stream("a secret")]
        refused = await server.client.get_task(events[-1].task_id or "")
        assert (fine.state, fine.text) == ("completed", "Echo: hello")
        assert (refused.state, said(refused), reason(refused)) == ("rejected", "No.", "restricted")
        assert refused.artifacts == []
        assert not any(event.kind == "artifact" for event in events)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transform_replaces_what_the_agent_is_given(kind: str) -> None:
    heard: list[str] = []
    redact = {"transform": "input.put('message', [{'mimeType': 'text/plain', 'text': 'redacted'}])"}
    async with serving(echoes(heard)[kind], policy=before(redact)) as server:
        result = await server.client.send("my number is 12")
        assert heard == ["redacted"]
        assert result.text == "Echo: redacted"
        assert spoken(result)[0] == "my number is 12"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_transform_replaces_what_is_answered(kind: str) -> None:
    replace = {"transform": "{'message': [{'text': output.message[0].text + '!'}]}"}
    async with serving(echoes([])[kind], policy=after(replace)) as server:
        result = await server.client.send("hi")
        assert (result.state, result.text, len(result.artifacts)) == ("completed", "Echo: hi!", 1)
        records = await server.records(result)
        assert records[-1].values == {"message": [{"mimeType": "text/plain", "text": "Echo: hi!"}]}  # type: ignore[union-attr]


async def test_later_turns_see_earlier_messages_as_they_were_let_in() -> None:
    seen: list[list[str]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append([message.text for message in ctx.history if message.role == "user"])
        await (ctx.request_input("and?") if len(seen) == 1 else ctx.complete("done"))

    redact = {"transform": "input.put('message', ['number ' + string(size(context.input))])"}
    async with serving(Agent(handle), policy=before(redact)) as server:
        first = await server.client.send("my number is 12")
        await server.client.send("and 13", task_id=first.task_id)
        assert seen == [[], ["number 1"]]


async def test_what_streams_is_held_back_only_when_the_answer_is_guarded() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("thinking aloud")
        await ctx.emit_text_artifact("one ")
        await ctx.emit_text_artifact("two", append=True, last_chunk=True)
        await ctx.complete()

    async with serving(Agent(handle), policy=before({"assert": "true"})) as server:
        shown = [event async for event in server.client.stream("go")]
        assert [event.text for event in shown if event.text] == ["thinking aloud", "one ", "two"]
    async with serving(Agent(handle), policy=after({"assert": "output.message[0].text == 'one two'"})) as server:
        shown = [event async for event in server.client.stream("go")]
        assert [event.text for event in shown if event.text] == ["one two"]
        assert shown[-1].state == "completed"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("guard", [before, after])
async def test_a_transform_that_makes_no_message_ends_the_task(kind: str, guard: Callable[..., Policy]) -> None:
    for wrong in ("{'message': [1]}", "{'message': 'text'}", "1"):
        async with serving(echoes([])[kind], policy=guard({"transform": wrong})) as server:
            result = await server.client.send("hi")
            assert (result.state, reason(result)) == ("rejected", "restricted"), wrong


async def test_a_failing_step_may_be_passed_over_and_leaves_its_decision(caplog: pytest.LogCaptureFixture) -> None:
    steps = before({"assert": "input.message[0].missing == 1", "on_fail": "continue"}, {"assert": "true"})
    with caplog.at_level(logging.INFO, "errands.policy"):
        async with serving(echoes([])["worker"], policy=steps) as server:
            result = await server.client.send("hi")
            assert result.state == "completed"
            decided = await server.decisions(result)
            assert decided == [("guardrails.before[0]", "error: continue"), ("guardrails.before[1]", "passed")]
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    assert "guardrails.before[0] error: continue" in lines[0]
    assert lines[1] == f"task {result.task_id}: guardrails.before[1] passed, policy v1"


async def test_what_a_failed_agent_had_emitted_is_not_shown() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("half of it")
        raise RuntimeError("broken")

    async with serving(Agent(handle), policy=after({"assert": "false"})) as server:
        result = await server.client.send("hi")
        assert (result.state, result.artifacts) == ("failed", [])
        assert "failed unexpectedly" in (said(result) or "")


async def test_words_of_failure_are_guarded_too() -> None:
    async def handle(ctx: TaskContext) -> None:
        await ctx.fail("the secret did not work")

    async with serving(Agent(handle), policy=after(NO_SECRET_ANSWERS)) as server:
        result = await server.client.send("hi")
        assert (result.state, said(result)) == ("rejected", "No.")


async def test_a_policy_without_steps_and_limits_changes_nothing() -> None:
    async with serving(echoes([])["worker"], policy=policy()) as server:
        result = await server.client.send("hi")
        assert (result.state, result.text) == ("completed", "Echo: hi")


def named(text: str) -> Message:
    return Message(message_id="same", role=Role.USER, parts=[Part(text=text)])


def curious(heard: list[str]) -> Agent:
    """Hears, and asks for more."""

    async def handle(ctx: TaskContext) -> None:
        heard.append(ctx.user_text)
        await ctx.request_input("and?")

    return Agent(handle)


async def test_a_message_that_repeats_the_id_of_another_is_looked_at_all_the_same(storage: str) -> None:
    heard: list[str] = []
    async with serving(curious(heard), policy=before(NO_SECRETS), storage=storage) as server:
        first = await server.client.send(named("hello"))
        await server.client.send(named("again"), task_id=first.task_id)
        refused = await server.client.send(named("a secret"), task_id=first.task_id)
        assert (refused.state, heard) == ("rejected", ["hello", "again"])


async def test_a_transform_of_one_message_is_none_of_another_of_the_same_id() -> None:
    heard: list[str] = []
    redact = {"transform": "{'message': ['number ' + string(size(context.input))]}"}
    async with serving(curious(heard), policy=before(redact)) as server:
        first = await server.client.send(named("12"))
        await server.client.send(named("13"), task_id=first.task_id)
        assert heard == ["number 1", "number 2"]


async def replaces(ctx: TaskContext) -> None:
    await ctx.emit_artifact(artifact_id="a", text="a sec")
    await ctx.emit_artifact(artifact_id="a", text="ret", append=True)
    await ctx.emit_artifact(artifact_id="b", text="first,", append=True)
    await ctx.emit_artifact(artifact_id="a", text="and")
    await ctx.emit_artifact(artifact_id="a", text=" more", append=True)
    await ctx.complete()


class PublishesTwice(AgentExecutor):
    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        for state, text in ((TaskState.WORKING, "a secret"), (TaskState.COMPLETED, "and more")):
            artifacts = [
                Artifact(artifact_id=name, parts=[Part(text=one)]) for name, one in (("b", "first,"), ("a", text))
            ]
            status = TaskStatus(state=state)
            task = Task(id=context.task_id or "", context_id=context.context_id, status=status, artifacts=artifacts)
            await event_queue.enqueue_event(task)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


@pytest.mark.parametrize("kind", ["worker", "executor"])
async def test_what_an_agent_has_replaced_itself_is_never_seen(kind: str) -> None:
    worker = Agent(replaces) if kind == "worker" else PublishesTwice()
    async with serving(worker, policy=after(NO_SECRET_ANSWERS)) as server:
        events = [event async for event in server.client.stream("hi")]
        assert (events[-1].state, "sec" in str(events)) == ("completed", False)
        result = await server.client.get_task(events[-1].task_id or "")
        assert sorted(part.text or "" for artifact in result.artifacts for part in artifact.parts) == [
            "and more",
            "first,",
        ]
