"""Whatever an agent passes to its context or updater is refused at the call, or gives a task that can be read."""

from __future__ import annotations

import asyncio
import datetime
import enum
import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands import A2AClient, AgentExecutor, EventQueue, Message, Part, RequestContext, TaskContext, TaskUpdater
from errands.errors import TaskNotCancelableError
from errands.model.core import Role, TaskState
from errands.testing import BASE_URL, http_client, serve
from tests.soak import examples
from tests.unit.support import Agent, said

pytestmark = pytest.mark.soak

#: A call that a test makes of its agent: what it does, and what it is done to.
Do = Callable[[Any], Awaitable[Any]]

#: What a handler may end with when it is asked to do something impossible.
REFUSALS = (TypeError, ValueError)


class Colour(enum.Enum):
    RED = "red"


class Word(str):
    __slots__ = ()


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


ENDLESS: list[Any] = []
ENDLESS.append(ENDLESS)

STRANGE = st.sampled_from(
    [
        *(None, True, 0, 42, -1, 2**53 + 1, 2**64, 10**400, 1.5, float("nan"), float("inf")),
        *("", "text", "\ud800", "\0", b"", b"bytes", bytearray(b"x"), memoryview(b"x")),
        *((), (1, 2), {1, 2}, {1: 2}, {(1, 2): 3}, {"\ud800": 1}, {"a": {"b": []}}),
        *([], ["a"], [1], ["\ud800"], ENDLESS),
        *(nested(20), nested(40), nested(79), nested(90), nested(500), nested(5000)),
        *(object(), object, len, Colour.RED, Word("word"), datetime.timedelta(1), Exception("x"), iter(()), range(3)),
        *(msgspec.UNSET, msgspec.Raw(b"junk"), msgspec.Raw(b'{"a":1}'), {"a": msgspec.Raw(b"[")}),
        *("completed", "TASK_STATE_COMPLETED", TaskState.completed, TaskState.UNSPECIFIED, "user", Role.user),
        *(Part(text="x"), [Part(text="x")], [Part(data={"deep": nested(85)})], [Part(data=object())]),
        Message(message_id="m", role=Role.agent, parts=[Part(text="x")]),
        Message(message_id="", role=Role.user, parts=[]),
        Message(message_id="m", role=Role.agent, parts=[Part(text="x")], metadata={"a": object()}),
    ]
)  # fmt: skip
ANYTHING = STRANGE | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)


def methods(kind: type) -> dict[str, list[str]]:
    """Return every public method that an agent can call, with its parameters: a new method is covered by itself."""
    found = {}
    for name, member in inspect.getmembers(kind, inspect.isfunction):
        parameters = [p.name for p in inspect.signature(member).parameters.values() if p.kind is not p.VAR_KEYWORD]
        if not name.startswith("_") and len(parameters) > 1:
            found[name] = parameters[1:]
    return found


#: A good value for each parameter, so that a call can be good but for one of its arguments.
GOOD: dict[str, Any] = {
    **dict.fromkeys(("text", "question", "reason", "details", "model", "description", "name", "filename"), "text"),
    **dict.fromkeys(("artifact_id", "credentials_hint", "mime_type", "media_type"), "text/plain"),
    **dict.fromkeys(("append", "last_chunk"), False),
    **dict.fromkeys(("prompt", "completion"), 1),
    **{name: {"key": [1]} for name in ("metadata", "arguments", "data", "context")},
    **{name: ["urn:x"] for name in ("extensions", "schemes")},
    **dict.fromkeys(("file_url", "auth_url"), "https://example.com"),
    **dict.fromkeys(("file_bytes", "content"), b"bytes"),
    "file": Part(raw=b"bytes"),
    "start": 0,
    "length": 3,
    "message": None,
    "parts": [Part(text="x")],
    "schema": {"type": "string"},
    "shape": int,
    "state": TaskState.working,
    "timestamp": None,
}
#: Only one of these is given.
CONTENTS = {"text", "data", "file_bytes", "file_url"}


@st.composite
def calls(draw: st.DrawFn, kind: type) -> tuple[str, dict[str, Any]]:
    """Draw a method and arguments for it, of which one or two may be anything."""
    name, parameters = draw(st.sampled_from(sorted(methods(kind).items())))
    strange = draw(st.lists(st.sampled_from(parameters), min_size=1, max_size=2, unique=True))
    content = draw(st.sampled_from(sorted(CONTENTS)))
    arguments = {}
    for parameter in parameters:
        if parameter in strange:
            arguments[parameter] = draw(ANYTHING)
        elif (
            name != "emit_artifact"
            or parameter not in CONTENTS
            or (CONTENTS.isdisjoint(strange) and parameter == content)
        ):
            arguments[parameter] = GOOD[parameter]
    return name, arguments


async def make(target: Any, name: str, arguments: dict[str, Any]) -> Any:
    """Call a method, and do with what it gives what an agent would do."""
    positional = [arguments.pop(key) for key in ("name", "arguments") if name == "capability" and key in arguments]
    given = getattr(target, name)(*positional, **arguments)
    if inspect.isawaitable(given):
        return await given
    if hasattr(given, "__aenter__"):
        async with given as opened:
            if name == "artifact":
                await opened.write("a piece")
    return given


class Executor(AgentExecutor):
    """Does to a `TaskUpdater` what the test says, and completes the task unless that has ended it."""

    do: Do

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await self.do(updater)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


class Rig:
    """A worker and an executor on one engine, with clients that read their tasks in every way there is."""

    def __init__(self, storage: str, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.refused: list[BaseException] = []
        self.do: Do
        self.executor = Executor()
        self._stack = AsyncExitStack()
        self.runner.run(self._start(storage, options))

    async def _start(self, storage: str, options: dict[str, Any]) -> None:
        self.clients: dict[str, list[A2AClient]] = {}
        for name, agent in (("worker", Agent(self._handle)), ("executor", self.executor)):
            server = await self._stack.enter_async_context(serve(agent, storage=storage, grpc_port=0, **options))
            http = await self._stack.enter_async_context(http_client(server))
            clients = [
                A2AClient(BASE_URL, httpx_client=http, version=version, protocol=binding)
                for version in ("1.0", "0.3")
                for binding in ("jsonrpc", "http+json", "grpc")
            ]
            self.clients[name] = [await self._stack.enter_async_context(client) for client in clients]

    def close(self) -> None:
        self.runner.run(self._stack.aclose())
        self.runner.close()

    async def _handle(self, ctx: TaskContext) -> None:
        await self._refusing(ctx)
        if not ctx.turn_ended:
            await ctx.complete("fine")

    async def _refusing(self, target: Any) -> None:
        try:
            await self.do(target)
        except REFUSALS as error:
            self.refused.append(error)

    def work(self, do: Do) -> None:
        """Have the worker do something, and read what came of it."""
        self.do = do
        self.runner.run(self._sent("worker"))

    def publish(self, do: Do) -> None:
        """Have the executor do something, and read what came of it."""

        async def publish(updater: TaskUpdater) -> None:
            try:
                await do(updater)
            except REFUSALS as error:
                self.refused.append(error)
                await updater.complete()

        self.executor.do = publish
        self.runner.run(self._sent("executor"))

    async def _sent(self, name: str) -> None:
        self.refused.clear()
        clients = self.clients[name]
        sent = await clients[0].send("hi")
        if self.refused:
            assert str(self.refused[0]), repr(self.refused[0])
        assert sent.raw_task is None or "unexpectedly" not in (said(sent) or ""), said(sent)
        if not sent.task_id:
            return  # answered with a message
        for client in clients:
            assert (await client.get_task(sent.task_id)).state == sent.state
            if client.version == "1.0":
                newest = await client.list_tasks(page_size=5)
                assert sent.task_id in [task.task_id for task in newest.tasks]
        try:
            assert (await clients[0].cancel(sent.task_id)).state == "canceled"
        except TaskNotCancelableError:
            assert sent.state in ("completed", "failed", "rejected", "canceled")


@pytest.fixture
def rig(storage: str) -> Iterator[Rig]:
    rig = Rig(storage)
    yield rig
    rig.close()


@pytest.fixture
def rig_with_blobs(tmp_path: Path) -> Iterator[Rig]:
    """Every file with a byte is kept beside the log."""
    rig = Rig("memory", blobs=str(tmp_path / "blobs"), blob_bytes=1)
    yield rig
    rig.close()


FEW = settings(
    max_examples=examples(80), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def test_every_method_of_a_context_refuses_a_value_or_leaves_a_task_that_can_be_read(rig: Rig) -> None:
    @FEW
    @given(calls(TaskContext))
    def check(call: tuple[str, dict[str, Any]]) -> None:
        rig.work(partial(make, name=call[0], arguments=dict(call[1])))

    check()


def test_every_method_of_an_updater_refuses_a_value_or_leaves_a_task_that_can_be_read(rig: Rig) -> None:
    @FEW
    @given(calls(TaskUpdater))
    def check(call: tuple[str, dict[str, Any]]) -> None:
        rig.publish(partial(make, name=call[0], arguments=dict(call[1])))

    check()


def test_so_it_is_where_files_are_kept_beside_the_log(rig_with_blobs: Rig) -> None:
    @FEW
    @given(calls(TaskContext), calls(TaskUpdater))
    def check(context_call: tuple[str, dict[str, Any]], updater_call: tuple[str, dict[str, Any]]) -> None:
        rig_with_blobs.work(partial(make, name=context_call[0], arguments=dict(context_call[1])))
        rig_with_blobs.publish(partial(make, name=updater_call[0], arguments=dict(updater_call[1])))

    check()
