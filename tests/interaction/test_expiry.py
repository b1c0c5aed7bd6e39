"""Paused tasks that nobody answers: they end by themselves, once, and everybody who watches sees it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import pytest

from errands import (
    A2AClient,
    A2AServer,
    AgentExecutor,
    BearerTokenMiddleware,
    EventQueue,
    LifecycleHooks,
    Message,
    Part,
    RequestContext,
    Settings,
    TaskContext,
    TaskUpdater,
    Worker,
)
from errands.engines.base import Engine, Retention
from errands.errors import A2AError
from errands.model.core import TERMINAL_STATES, TaskState
from errands.policy.document import Policy
from errands.policy.limits import Limits
from errands.policy.records import Decided, Ended
from errands.policy.run import stored_records
from errands.testing import connect, serve
from tests.agents.rig import AGENT, at_work
from tests.contract.changes import ManualClock
from tests.contract.conftest import ENGINES
from tests.unit.reviews.support import ALICE, People, Reviewed, verify
from tests.waiting import until

pytestmark = pytest.mark.anyio

HOUR = 3_600_000
SETTINGS = Settings(paused_timeout=3600, sweep_interval=0.02, poll_interval=0.02)
PATIENT = Settings(paused_timeout=None, sweep_interval=0.02, poll_interval=0.02)
POLICY = Policy(version="7", limits=Limits(max_age="1h"))
NO_ANSWER = "No answer came within 1 hour."

#: Opens another engine on the store of a test.
Build = Callable[[], Engine]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def builder(name: str, folder: Path, clock: ManualClock) -> Build:
    return lambda: ENGINES[name](folder, clock, Retention())


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Build:
    """Makes engines of each kind in turn."""
    return builder(request.param, tmp_path, clock)


@pytest.fixture(params=[name for name in ENGINES if name != "memory"])
def build_shared(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> Build:
    """The same for engines that processes can share."""
    return builder(request.param, tmp_path, clock)


class Asks(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await (ctx.request_auth("who?") if ctx.user_text == "auth" else ctx.request_input("which?"))


async def ended(server: A2AServer, task_id: str) -> tuple[TaskState, str | None, str | None]:
    """The state, message and reason that a task ends with."""
    stored = await server.engine.wait_for_state(task_id, server.scope(), TERMINAL_STATES, None)
    message = stored.task.status.message
    if message is None:
        return stored.state, None, None
    return stored.state, message.parts[0].text, (message.metadata or {}).get("reason")


async def pause(client: A2AClient, text: str = "go") -> str:
    asked = await client.send(text)
    assert asked.state in ("input-required", "auth-required")
    return asked.task_id


@pytest.mark.parametrize("text", ["input", "auth"])
async def test_a_paused_task_that_nobody_answers_is_canceled(build: Build, clock: ManualClock, text: str) -> None:
    server = serve(Asks(), storage=build(), settings=SETTINGS)
    async with connect(server) as client:
        task_id = await pause(client, text)
        clock.advance(HOUR)
        assert await ended(server, task_id) == (TaskState.CANCELED, NO_ANSWER, "paused_timeout")
        with pytest.raises(A2AError):
            await client.send("too late", task_id=task_id)


class Hearing:
    """Hooks that note how tasks end."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, TaskState, str | None]] = []
        self.hooks = LifecycleHooks(on_terminal=self._hear)

    async def _hear(self, task_id: str, state: TaskState, message: Message | None) -> None:
        self.heard.append((task_id, state, message.parts[0].text if message else None))


async def test_whoever_watches_a_paused_task_sees_its_end(build: Build, clock: ManualClock) -> None:
    hearing = Hearing()
    server = serve(Asks(), storage=build(), settings=SETTINGS, hooks=hearing.hooks)
    async with connect(server) as client:
        task_id = await pause(client)
        states: list[str | None] = []
        async for event in client.subscribe(task_id):
            states.append(event.state)
            clock.advance(HOUR)
        assert states[-1] == "canceled"
    assert hearing.heard == [(task_id, TaskState.CANCELED, NO_ANSWER)]


async def test_a_task_that_is_answered_in_time_waits_anew(build: Build, clock: ManualClock) -> None:
    server = serve(Asks(), storage=build(), settings=SETTINGS)
    async with connect(server) as client:
        task_id = await pause(client)
        other = await pause(client)
        clock.advance(HOUR - 1)
        assert (await client.send("again", task_id=task_id)).state == "input-required"
        clock.advance(1)
        # When the other one has ended, this one has been looked at as well.
        assert (await ended(server, other))[0] is TaskState.CANCELED
        assert (await client.get_task(task_id)).state == "input-required"


async def test_without_a_timeout_a_paused_task_waits_for_ever(build: Build, clock: ManualClock) -> None:
    server = serve(Asks(), storage=build(), settings=PATIENT)
    async with connect(server) as client:
        task_id = await pause(client)
        clock.advance(10_000 * HOUR)
        await server.task_manager._canceler.end_abandoned()
        assert (await client.get_task(task_id)).state == "input-required"


async def test_of_several_servers_one_ends_a_task(build_shared: Build, clock: ManualClock) -> None:
    hearing = Hearing()
    async with AsyncExitStack() as stack:
        servers = [serve(Asks(), storage=build_shared(), settings=SETTINGS, hooks=hearing.hooks) for _ in range(3)]
        clients = [await stack.enter_async_context(connect(server)) for server in servers]
        tasks = [await pause(clients[0]) for _ in range(10)]
        clock.advance(HOUR)
        for task_id in tasks:
            assert await ended(servers[0], task_id) == (TaskState.CANCELED, NO_ANSWER, "paused_timeout")
        # A server that stops between a commit and its hook does not call the hook.
        await until(lambda: len(hearing.heard) >= len(tasks))
    assert sorted(task_id for task_id, *_ in hearing.heard) == sorted(tasks)


# Executors


class AsksExecutor(AgentExecutor):
    def __init__(self) -> None:
        self.canceled: list[str | None] = []

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.requires_input(updater.new_agent_message([Part(text="which?")]))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        self.canceled.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


@pytest.mark.parametrize("policy", [None, POLICY])
async def test_an_executor_lets_go_of_a_task_that_nobody_answers(
    build: Build, clock: ManualClock, policy: Policy | None
) -> None:
    executor = AsksExecutor()
    server = serve(executor, storage=build(), settings=PATIENT if policy else SETTINGS, policy=policy)
    async with connect(server) as client:
        task_id = await pause(client)
        clock.advance(HOUR + 1)
        state, _, reason = await ended(server, task_id)
    if policy is None:
        assert (state, reason) == (TaskState.CANCELED, "paused_timeout")
    else:
        assert (state, reason) == (TaskState.FAILED, "limit_exceeded")
    assert executor.canceled == [task_id]


# The age that a policy allows


async def test_a_paused_task_that_is_too_old_for_its_policy_fails(build: Build, clock: ManualClock) -> None:
    server = serve(Asks(), storage=build(), settings=PATIENT, policy=POLICY)
    async with connect(server) as client:
        task_id = await pause(client)
        clock.advance(HOUR + 1)
        text = f"max_age is {HOUR} ms and the task has come to {HOUR + 1} ms"
        assert await ended(server, task_id) == (TaskState.FAILED, text, "limit_exceeded")
        known = await stored_records(server.engine, task_id, server.scope())
    (decided,) = [record for record in known if isinstance(record, Decided)]
    assert (decided.step, decided.outcome, decided.policy) == ("limits.max_age", "exceeded", "7")
    assert isinstance(known[-1], Ended)


@pytest.mark.parametrize("policy", [None, POLICY])
@pytest.mark.parametrize("hears_cancel", [False, True])
async def test_a_manifest_agent_is_told_the_limit_as_at_its_next_message(
    build: Build, clock: ManualClock, tmp_path: Path, policy: Policy | None, hears_cancel: bool
) -> None:
    text = AGENT if policy is not None else f"{AGENT}\nlimits: {{max_age: 1h}}"
    options = {"settings": PATIENT, "policy": policy}
    async with at_work(tmp_path / "agent", text, "What else?", storage=build(), server=options) as desk:
        # With tools that keep something for the task elsewhere, its worker has to let go of that.
        desk.server.pool.handlers[desk.server.agent_card.name].hears_cancel = hears_cancel
        assert (await desk.say("hello")).status.state is TaskState.INPUT_REQUIRED
        assert desk.task is not None
        clock.advance(HOUR + 1)
        said = f"A limit of this agent was exceeded: max_age is {HOUR} ms and the task has come to {HOUR + 1} ms."
        assert await ended(desk.server, desk.task.id) == (TaskState.FAILED, said, "limit_exceeded")
        known = await desk.records()
    (decided,) = [record for record in known if isinstance(record, Decided)]
    name, version = ("limits.max_age", "") if policy is None else ("policy.limits.max_age", "7")
    assert (decided.step, decided.outcome, decided.policy) == (name, "exceeded", version)


async def test_a_task_that_waits_for_a_review_is_canceled_too(build: Build, clock: ManualClock) -> None:
    server = serve(Reviewed(), storage=build(), settings=SETTINGS, middlewares=[BearerTokenMiddleware(verify)])
    async with server, People(server)("alice") as (alice,):
        waiting = await alice.send("pay 500")
        assert waiting.state == "input-required"
        clock.advance(HOUR)
        stored = await server.engine.wait_for_state(waiting.task_id, ALICE, TERMINAL_STATES, None)
        assert (stored.state, stored.head.asks) == (TaskState.CANCELED, "")


class Waits(Worker):
    """Keeps the only slot of a server busy."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        await self.gate.wait()
        await ctx.complete(ctx.user_text)


async def test_a_task_that_grew_too_old_in_the_queue_fails_when_its_turn_comes(
    build: Build, clock: ManualClock
) -> None:
    worker = Waits()
    settings = Settings(max_concurrent_tasks=1, sweep_interval=0.02, poll_interval=0.02, lease_seconds=36_000)
    server = serve(worker, storage=build(), settings=settings, policy=POLICY)
    async with connect(server) as client:
        first = await client.send("first", blocking=False)
        queued = await client.send("second", blocking=False)
        clock.advance(HOUR + 1)
        worker.gate.set()
        for task in (first, queued):
            assert (await ended(server, task.task_id))[::2] == (TaskState.FAILED, "limit_exceeded")


# The time that a task may take

SHORT = Settings(task_timeout=3600, paused_timeout=None, sweep_interval=0.02, poll_interval=0.02, lease_seconds=36_000)
TOO_LONG = (TaskState.FAILED, "The task was not finished within 1 hour.", "task_timeout")


class Runs(Worker):
    """Works until it is told to stop."""

    def __init__(self) -> None:
        self.stopped = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        while not ctx.is_cancelled:
            await asyncio.sleep(0.001)
        self.stopped.set()


async def test_a_task_that_takes_too_long_fails_at_work_and_in_the_queue(build: Build, clock: ManualClock) -> None:
    worker = Runs()
    settings = msgspec.structs.replace(SHORT, max_concurrent_tasks=1)
    server = serve(worker, storage=build(), settings=settings)
    async with connect(server) as client:
        running = await client.send("first", blocking=False)
        queued = await client.send("second", blocking=False)
        clock.advance(HOUR - 1)
        await server.task_manager._canceler.end_abandoned()
        assert (await client.get_task(queued.task_id)).state == "submitted"
        clock.advance(1)
        assert await ended(server, running.task_id) == TOO_LONG
        assert await ended(server, queued.task_id) == TOO_LONG
    assert worker.stopped.is_set()


async def test_a_paused_task_that_takes_too_long_fails(build: Build, clock: ManualClock) -> None:
    server = serve(Asks(), storage=build(), settings=SHORT)
    async with connect(server) as client:
        task_id = await pause(client)
        clock.advance(HOUR)
        assert await ended(server, task_id) == TOO_LONG


async def test_a_handler_that_does_not_stop_is_stopped_by_force(clock: ManualClock, tmp_path: Path) -> None:
    class Deaf(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await asyncio.Event().wait()

    settings = msgspec.structs.replace(SHORT, cancel_force_timeout=0.01)
    server = serve(Deaf(), storage=builder("sqlite", tmp_path, clock)(), settings=settings)
    async with connect(server) as client:
        task = await client.send("go", blocking=False)
        clock.advance(HOUR)
        assert await ended(server, task.task_id) == TOO_LONG


async def test_an_executor_lets_go_of_a_task_that_takes_too_long(clock: ManualClock, tmp_path: Path) -> None:
    executor = AsksExecutor()
    server = serve(executor, storage=builder("sqlite", tmp_path, clock)(), settings=SHORT)
    async with connect(server) as client:
        task_id = await pause(client)
        clock.advance(HOUR)
        assert await ended(server, task_id) == TOO_LONG
    assert executor.canceled == [task_id]


async def test_another_process_ends_the_task_that_a_process_runs(build_shared: Build, clock: ManualClock) -> None:
    async with AsyncExitStack() as stack:
        servers = [
            serve(Runs(), storage=build_shared(), settings=msgspec.structs.replace(SHORT, sweep_interval=interval))
            for interval in (3600, 0.02)
        ]
        servers[0].settings.poll_interval = 0.02
        first, _ = [await stack.enter_async_context(connect(server)) for server in servers]
        task = await first.send("go", blocking=False)
        clock.advance(HOUR)
        assert await ended(servers[1], task.task_id) == TOO_LONG
