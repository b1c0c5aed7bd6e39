"""Lifecycle hooks: called after a state change has become durable, in its order, and never in its way."""

from __future__ import annotations

import asyncio

import pytest

from errands import LifecycleHooks, Message, Settings, TaskContext, TaskState
from errands.engines.urls import engine_from_url
from errands.runtime import hooks as hooks_module
from errands.runtime.hooks import StateHook
from errands.testing import connect
from tests.unit.support import ANYBODY, LIFECYCLE, Agent, Gate, reaches, running, until_cancelled
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Diary:
    """Every hook, writing down what it was called with."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.messages: list[str | None] = []
        self.hooks = LifecycleHooks(
            on_state_change=self._note("change"),
            on_working=self._working,
            on_turn_end=self._note("turn end"),
            on_terminal=self._note("terminal"),
        )

    def _note(self, name: str) -> StateHook:
        async def hook(task_id: str, state: TaskState, message: Message | None) -> None:
            self.calls.append(f"{name} {state.short}")
            self.messages.append(message.parts[0].text if message else None)

        return hook

    async def _working(self, task_id: str) -> None:
        self.calls.append("working")


async def test_every_change_is_told_first_in_general_and_then_by_its_kind(storage: str) -> None:
    diary = Diary()

    async def handle(ctx: TaskContext) -> None:
        await (ctx.respond("done") if ctx.history else ctx.request_input("more?"))

    async with running(handle, storage, hooks=diary.hooks) as client:
        task_id = (await client.send("one")).task_id
        await client.send("two", task_id=task_id)
    assert diary.calls == [
        "change submitted",
        "change working",
        "working",
        "change input-required",
        "turn end input-required",
        "change submitted",
        "change working",
        "working",
        "change completed",
        "terminal completed",
    ]
    assert diary.messages == [None, None, "more?", "more?", None, None, "done", "done"]


@pytest.mark.parametrize("method", LIFECYCLE)
async def test_the_last_hooks_tell_how_the_turn_ended(method: str, storage: str) -> None:
    diary = Diary()
    call, state = LIFECYCLE[method]
    kind = "turn end" if state in ("input-required", "auth-required") else "terminal"
    async with running(call, storage, hooks=diary.hooks) as client:
        await client.send("hi")
    assert diary.calls[-2:] == [f"change {state}", f"{kind} {state}"]


async def test_a_cancel_is_told_like_any_other_end(storage: str) -> None:
    diary = Diary()
    async with running(until_cancelled, storage, hooks=diary.hooks) as client:
        task = await client.send("hi", blocking=False)
        await client.cancel(task.task_id)
    assert diary.calls[-2:] == ["change canceled", "terminal canceled"]


async def test_a_progress_report_is_told_in_general_and_the_start_of_work_once(storage: str) -> None:
    diary, gate = Diary(), Gate()

    async def handle(ctx: TaskContext) -> None:
        await ctx.send_status("one")
        await ctx.send_status()
        await ctx.emit_text_artifact("two")
        await gate()
        await ctx.send_status("three")
        await ctx.complete()

    async with running(handle, storage, hooks=diary.hooks) as client:
        async for event in client.stream("hi"):
            if event.text == "two":
                gate.open()
    assert diary.calls == [
        "change submitted",
        "change working",
        "working",
        "change working",
        "change working",
        "change completed",
        "terminal completed",
    ]
    # What says nothing, a sign of life or an artifact, is not told.
    assert diary.messages == [None, None, "one", "three", None, None]


async def test_a_task_that_waited_in_the_queue_is_told_as_working_when_a_worker_takes_it_up(storage: str) -> None:
    diary, gate = Diary(), Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    async with running(handle, storage, hooks=diary.hooks, max_concurrent_tasks=1) as client:
        await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", blocking=False)
        await until(lambda: len(diary.calls) == 4)
        assert diary.calls == ["change submitted", "change working", "working", "change submitted"]
        gate.open()
        await reaches(client, behind.task_id, "completed")
    assert diary.calls[-4:] == ["change working", "working", "change completed", "terminal completed"]


async def test_a_hook_is_called_when_the_change_can_already_be_read(storage: str) -> None:
    engine = engine_from_url(storage)
    seen: list[tuple[str, str]] = []

    async def on_state_change(task_id: str, state: TaskState, message: Message | None) -> None:
        stored = await engine.load(task_id, ANYBODY)
        seen.append((state.short, stored.state.short))

    hooks = LifecycleHooks(on_state_change=on_state_change)
    async with connect(Agent(lambda ctx: ctx.complete()), storage=engine, hooks=hooks) as client:
        await client.send("hi")
    order = ["submitted", "working", "completed"]
    assert [told for told, _ in seen] == order
    # The task may have gone on meanwhile.
    assert all(order.index(told) <= order.index(read) for told, read in seen)


async def test_a_hook_that_fails_is_logged_and_changes_nothing(storage: str, caplog: pytest.LogCaptureFixture) -> None:
    async def breaks(*_: object) -> None:
        raise RuntimeError("in the hook")

    hooks = LifecycleHooks(on_state_change=breaks, on_working=breaks, on_turn_end=breaks, on_terminal=breaks)
    async with running(lambda ctx: ctx.complete("done"), storage, hooks=hooks) as client:
        assert (await client.send("hi")).text == "done"
    assert caplog.text.count("the lifecycle hook breaks failed") == 5
    assert "in the hook" in caplog.text


async def test_only_the_hooks_that_are_set_are_called(storage: str) -> None:
    ended: list[str] = []

    async def on_terminal(task_id: str, state: TaskState, message: Message | None) -> None:
        ended.append(task_id)

    async with running(lambda ctx: ctx.fail("no"), storage, hooks=LifecycleHooks(on_terminal=on_terminal)) as client:
        task = await client.send("hi")
    assert ended == [task.task_id]


async def test_a_slow_hook_holds_up_neither_turns_nor_clients_and_keeps_the_order(storage: str) -> None:
    gate, seen = asyncio.Event(), list[str]()

    async def waits(task_id: str, state: TaskState, message: Message | None) -> None:
        await gate.wait()
        seen.append(state.short)

    async with running(
        lambda ctx: ctx.complete("done"), storage, hooks=LifecycleHooks(on_state_change=waits)
    ) as client:
        assert (await client.send("hi")).text == "done"
        assert seen == []
        gate.set()
    assert seen == ["submitted", "working", "completed"]


async def test_a_server_that_stops_does_not_wait_for_a_hook_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    async def hangs(task_id: str, state: TaskState, message: Message | None) -> None:
        await asyncio.Event().wait()

    hooks, settings = LifecycleHooks(on_terminal=hangs), Settings(drain_timeout=0.05)
    async with connect(Agent(lambda ctx: ctx.complete("done")), hooks=hooks, settings=settings) as client:
        assert (await client.send("hi")).text == "done"
    assert "lifecycle hooks of 1 tasks were not called to the end" in caplog.text


async def test_what_waits_for_slow_hooks_is_bounded(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hooks_module, "MAX_UNREAD", 6)
    gate, ended = asyncio.Event(), list[str]()

    async def waits(task_id: str, state: TaskState, message: Message | None) -> None:
        await gate.wait()
        ended.append(task_id)

    hooks = LifecycleHooks(on_terminal=waits)
    async with connect(Agent(lambda ctx: ctx.complete("done")), hooks=hooks) as client:
        sent = [(await client.send(f"message {number}")).task_id for number in range(20)]
        gate.set()
        await until(lambda: bool(ended))
        assert ended == sent[: len(ended)]
        assert len(ended) <= 6
        last = (await client.send("the hooks have caught up")).task_id
        await until(lambda: last in ended)
    assert caplog.text.count("lifecycle hooks are") == 1
