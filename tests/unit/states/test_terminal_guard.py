"""The terminal-state guard: once a task has ended, no further transition is possible."""

from __future__ import annotations

import asyncio

import pytest

from errands import TaskContext, TaskNotCancelableError, TaskTerminalStateError
from errands.client import TaskTerminalError
from errands.engines.urls import engine_from_url
from errands.model.base import encode
from errands.model.core import (
    TERMINAL_STATES,
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    TaskArtifactUpdateEvent,
    TaskState,
)
from errands.model.log import Change, Draft
from errands.testing import http_client, serve
from tests.contract.changes import versions
from tests.unit.support import ANYBODY, LIFECYCLE, Agent, bring, log_of, running, step

pytestmark = pytest.mark.anyio

ENDS = sorted(TERMINAL_STATES)
ENDING = {"complete": "completed", "fail": "failed", "reject": "rejected"}
STATES = [state for state in TaskState if state is not TaskState.UNSPECIFIED]


@pytest.mark.parametrize("end", ENDS, ids=lambda state: state.short)
async def test_storage_rejects_any_further_transition_by_raising_terminal_state_error(
    end: TaskState, storage: str
) -> None:
    async with engine_from_url(storage) as engine:
        before = await bring(engine, end)
        for state in STATES:
            with pytest.raises(TaskTerminalStateError, match=f"already {end.short}"):
                await engine.commit(step("t1", state))
        assert await engine.load("t1", ANYBODY) == before
        assert len(await log_of(engine, "t1")) == before.version


@pytest.mark.parametrize("late", [TaskState.FAILED, TaskState.CANCELED], ids=lambda state: state.short)
async def test_a_completed_task_cannot_be_failed_or_canceled(late: TaskState, storage: str) -> None:
    async with engine_from_url(storage) as engine:
        await bring(engine, TaskState.COMPLETED)
        with pytest.raises(TaskTerminalStateError):
            await engine.commit(step("t1", late))
        assert (await engine.load("t1", ANYBODY)).state is TaskState.COMPLETED


async def test_a_canceled_task_cannot_be_completed(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        await bring(engine, TaskState.CANCELED)
        with pytest.raises(TaskTerminalStateError):
            await engine.commit(step("t1", TaskState.COMPLETED))
        assert (await engine.load("t1", ANYBODY)).state is TaskState.CANCELED


async def test_the_first_writer_wins_and_the_others_get_a_clear_error(storage: str) -> None:
    async with engine_from_url(storage) as engine:
        await bring(engine, TaskState.WORKING)
        outcomes = await asyncio.gather(*(engine.commit(step("t1", end)) for end in ENDS), return_exceptions=True)
        stored = await engine.load("t1", ANYBODY)
    assert versions(outcomes[:1]) == [3]
    assert stored.state is ENDS[0]
    for outcome in outcomes[1:]:
        assert isinstance(outcome, TaskTerminalStateError)
        assert str(outcome) == f"Task t1 is already {ENDS[0].short}"


@pytest.mark.parametrize("end", ENDS, ids=lambda state: state.short)
async def test_pure_message_appends_without_a_transition_are_not_affected(end: TaskState, storage: str) -> None:
    message = Message(message_id="late", role=Role.USER, parts=[Part(text="thanks")])
    async with engine_from_url(storage) as engine:
        before = await bring(engine, end)
        note = Change(
            task_id="t1", scope=ANYBODY, events=(Draft("message", encode(StreamResponse(message=message))),), at=3
        )
        assert (await engine.commit(note)).version == before.version + 1
        after = await engine.load("t1", ANYBODY)
    assert after.state is end
    assert [m.message_id for m in after.task.history or []] == ["first of t1", "late"]


@pytest.mark.parametrize("end", ENDS, ids=lambda state: state.short)
async def test_pure_artifact_appends_without_a_transition_are_not_affected(end: TaskState, storage: str) -> None:
    artifact = Artifact(artifact_id="late", parts=[Part(text="a footnote")])
    update = TaskArtifactUpdateEvent(task_id="t1", context_id="c", artifact=artifact)
    draft = Draft("artifact", encode(StreamResponse(artifact_update=update)))
    async with engine_from_url(storage) as engine:
        await bring(engine, end)
        await engine.commit(Change(task_id="t1", scope=ANYBODY, events=(draft,), at=3))
        after = await engine.load("t1", ANYBODY)
    assert after.state is end
    assert after.task.artifacts == [artifact]


@pytest.mark.parametrize("method", ENDING)
async def test_a_terminal_task_receives_no_messages(method: str, storage: str) -> None:
    calls: list[str] = []

    async def handle(ctx: TaskContext) -> None:
        calls.append(ctx.user_text)
        await LIFECYCLE[method][0](ctx)

    async with running(handle, storage) as client:
        ended = await client.send("one")
        with pytest.raises(TaskTerminalError, match=f"already {ENDING[method]}"):
            await client.send("two", task_id=ended.task_id)
        after = await client.get_task(ended.task_id)
    assert after == ended
    assert calls == ["one"]


@pytest.mark.parametrize("method", ENDING)
async def test_a_terminal_task_cannot_be_canceled(method: str, storage: str) -> None:
    async with running(LIFECYCLE[method][0], storage) as client:
        ended = await client.send("one")
        with pytest.raises(TaskNotCancelableError, match=f"already {ENDING[method]}"):
            await client.cancel(ended.task_id)
        assert (await client.get_task(ended.task_id)).state == ENDING[method]


async def test_a_canceled_task_cannot_be_canceled_again(storage: str) -> None:
    async with running(lambda ctx: ctx.request_input("?"), storage) as client:
        paused = await client.send("one")
        await client.cancel(paused.task_id)
        with pytest.raises(TaskNotCancelableError, match="already canceled"):
            await client.cancel(paused.task_id)


async def test_over_http_the_refusals_have_the_codes_of_the_protocol(storage: str) -> None:
    server = serve(Agent(lambda ctx: ctx.complete("done")), storage=storage)
    message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    async with server, http_client(server) as http:
        task_id = (await http.post("/message:send", json={"message": message})).json()["task"]["id"]
        late = {**message, "messageId": "m2", "taskId": task_id}
        sent = (await http.post("/message:send", json={"message": late})).json()["error"]
        canceled = (await http.post(f"/tasks/{task_id}:cancel", json={})).json()["error"]
        rpc = {"jsonrpc": "2.0", "id": 1, "method": "CancelTask", "params": {"id": task_id}}
        called = (await http.post("/", json=rpc)).json()["error"]
    assert (sent["code"], sent["details"][0]["reason"]) == (400, "UNSUPPORTED_OPERATION")
    assert (canceled["code"], canceled["details"][0]["reason"]) == (400, "TASK_NOT_CANCELABLE")
    assert called["code"] == -32002
