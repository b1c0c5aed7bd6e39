"""`RequestContext` and its builders: every member, what is filled in, and what contradicts itself."""

from __future__ import annotations

from typing import Any
from unittest.mock import create_autospec

import pytest
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    ConfigurationError,
    EventQueue,
    ExecutorWorker,
    IDGenerator,
    IDGeneratorContext,
    Part,
    RequestContext,
    RequestContextBuilder,
    RequestEnvelope,
    ServerCallContext,
    SimpleRequestContextBuilder,
    Task,
    TaskState,
    TaskStatus,
    User,
    UUIDGenerator,
    Worker,
)
from errands.errors import InvalidParamsError
from errands.model.card_config import ExtensionConfig
from errands.model.core import Message, Role
from errands.model.requests import SendMessageConfiguration, SendMessageRequest
from errands.testing import connect
from tests.unit.executor.agents import Executor, executing, updater_of, words
from tests.unit.support import Agent, Gate, reaches

pytestmark = pytest.mark.anyio

CALL = ServerCallContext(tenant="acme", requested_extensions={"https://example.com/x"})


def request(text: str = "hi", **options: Any) -> SendMessageRequest:
    message = Message(message_id="m", role=Role.USER, parts=[Part(text=text)], **options)
    return SendMessageRequest(message=message, metadata={"a": 1}, configuration=SendMessageConfiguration())


def task(task_id: str = "t", context_id: str = "c") -> Task:
    return Task(id=task_id, context_id=context_id, status=TaskStatus(state=TaskState.WORKING))


class Seen:
    """An executor that keeps what it was given."""

    def __init__(self) -> None:
        self.contexts: list[RequestContext] = []

    async def __call__(self, context: RequestContext, queue: EventQueue) -> None:
        self.contexts.append(context)
        await updater_of(context, queue).complete()


# The class by itself


def test_it_gives_what_the_request_says() -> None:
    context = RequestContext(CALL, request(), task_id="t", context_id="c", task=task())
    assert (context.task_id, context.context_id, context.tenant) == ("t", "c", "acme")
    assert context.call_context is CALL
    assert context.requested_extensions == {"https://example.com/x"}
    assert context.metadata == {"a": 1}
    assert context.configuration == SendMessageConfiguration()
    assert context.current_task == task()
    assert context.message is not None
    assert (context.message.task_id, context.message.context_id) == ("t", "c")


def test_without_a_request_there_is_nothing_in_it() -> None:
    context = RequestContext(CALL)
    assert (context.message, context.configuration, context.metadata, context.current_task) == (None, None, {}, None)
    assert (context.task_id, context.context_id, context.get_user_input(), context.related_tasks) == (
        None,
        None,
        "",
        [],
    )


def test_get_user_input_joins_the_text_parts_with_the_delimiter() -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(text="a"), Part(data=1), Part(text="b")])
    context = RequestContext(CALL, SendMessageRequest(message=message))
    assert context.get_user_input() == "a\nb"
    assert context.get_user_input(" ") == "a b"


def test_get_user_input_is_empty_without_text() -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(data=1)])
    assert RequestContext(CALL, SendMessageRequest(message=message)).get_user_input() == ""


def test_attach_related_task_adds_to_related_tasks() -> None:
    context = RequestContext(CALL, request(), related_tasks=[task("one")])
    context.attach_related_task(task("two"))
    assert [related.id for related in context.related_tasks] == ["one", "two"]


def test_missing_identifiers_are_made() -> None:
    context = RequestContext(CALL, request())
    assert context.task_id
    assert context.context_id
    assert context.task_id != context.context_id


def test_the_identifiers_of_the_message_are_taken_before_new_ones_are_made() -> None:
    context = RequestContext(CALL, request(task_id="t1", context_id="c1"))
    assert (context.task_id, context.context_id) == ("t1", "c1")


@pytest.mark.parametrize("wrong", [{"task_id": "other"}, {"context_id": "other"}])
def test_identifiers_that_contradict_the_task_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidParamsError, match="other"):
        RequestContext(CALL, request(), task=task(), **wrong)


def test_a_uuid_generator_never_repeats_itself() -> None:
    generator = UUIDGenerator()
    assert len({generator.generate(IDGeneratorContext()) for _ in range(100)}) == 100


def test_a_user_without_a_name_is_not_authenticated() -> None:
    assert (User().is_authenticated, User("ada").is_authenticated) == (False, True)


# As an executor is given it


async def test_current_task_is_none_for_the_first_message_of_a_task(storage: str) -> None:
    seen = Seen()
    async with executing(seen, storage) as client:
        result = await client.send("hi", context_id="talk", metadata={"k": "v"})
    [context] = seen.contexts
    assert context.message is not None
    assert context.current_task is None
    assert (context.task_id, context.context_id) == (result.task_id, "talk")
    assert (context.get_user_input(), context.message.metadata, context.attempt) == ("hi", {"k": "v"}, 1)


async def test_configuration_is_what_the_sender_asked_for(storage: str) -> None:
    seen = Seen()
    async with executing(seen, storage) as client:
        await client.send("hi", blocking=False, accepted_output_modes=["text/plain"], history_length=3)
    assert seen.contexts[0].configuration == SendMessageConfiguration(
        accepted_output_modes=["text/plain"], history_length=3, return_immediately=True
    )


async def test_configuration_survives_the_queue(storage: str) -> None:
    seen, gate = Seen(), Gate()

    async def execute(context: RequestContext, queue: EventQueue) -> None:
        if context.get_user_input() == "busy":
            await updater_of(context, queue).start_work()
            await gate()
        await seen(context, queue)

    async with executing(execute, storage, max_concurrent_tasks=1) as client:
        busy = await client.send("busy", blocking=False)
        stream = client.stream("hi", history_length=3)
        await gate.reached.wait()
        gate.open()
        assert [event.state async for event in stream][-1] == "completed"
        await reaches(client, busy.task_id, "completed")
    configuration = seen.contexts[-1].configuration
    assert configuration is not None
    assert configuration.history_length == 3


class Named(A2AMiddleware):
    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        envelope.owner = "ada"
        envelope.tenant = "acme"
        envelope.context["secret"] = "s3cr3t"


async def test_call_context_says_who_calls_and_carries_what_middleware_put_aside(storage: str) -> None:
    seen = Seen()
    async with executing(seen, storage, middlewares=[Named()]) as client:
        await client.send("hi")
    call = seen.contexts[0].call_context
    assert (call.user.user_name, call.user.is_authenticated, call.tenant) == ("ada", True, "acme")
    assert seen.contexts[0].tenant == "acme"
    assert call.state["secret"] == "s3cr3t"
    assert "s3cr3t" not in repr(call)


async def test_extensions_are_those_requested_and_those_the_card_has(storage: str) -> None:
    seen = Seen()
    card = AgentCardConfig(
        name="Test agent",
        description="Has one.",
        extensions=[ExtensionConfig(uri="https://example.com/known")],
    )
    wanted = ["https://example.com/known", "https://example.com/unknown"]
    async with executing(seen, storage, agent_card=card, client={"extensions": wanted}) as client:
        await client.send("hi")
    assert seen.contexts[0].requested_extensions == set(wanted)
    assert seen.contexts[0].call_context.activated_extensions == {"https://example.com/known"}


# Builders


async def test_referred_tasks_are_populated_when_they_are_wanted(storage: str) -> None:
    seen = Seen()
    builder = SimpleRequestContextBuilder(should_populate_referred_tasks=True)
    async with executing(seen, storage, request_context_builder=builder) as client:
        first = await client.send("one")
        await client.send(request("two", reference_task_ids=[first.task_id, "nowhere"]).message)
    assert [related.id for related in seen.contexts[1].related_tasks] == [first.task_id]


async def test_a_task_that_is_referred_to_again_and_again_is_loaded_once_and_a_hundred_at_most() -> None:
    class Everything:
        async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
            return task(task_id)

    names = [str(number) for number in range(200)]
    context = await SimpleRequestContextBuilder(True, Everything()).build(
        CALL, request(reference_task_ids=["0"] * 1000 + names)
    )
    assert [related.id for related in context.related_tasks] == names[:100]


async def test_referred_tasks_are_left_alone_when_they_are_not_wanted(storage: str) -> None:
    seen = Seen()
    async with executing(seen, storage) as client:
        first = await client.send("one")
        await client.send(request("two", reference_task_ids=[first.task_id]).message)
    assert seen.contexts[1].related_tasks == []


class Archive:
    async def get(self, task_id: str, context: ServerCallContext) -> Task | None:
        return task(f"{task_id} of {context.tenant}") if task_id == "old" else None


async def test_referred_tasks_come_from_the_task_store_that_is_given() -> None:
    builder = SimpleRequestContextBuilder(True, Archive())
    context = await builder.build(CALL, request(reference_task_ids=["old", "unknown"]))
    assert [related.id for related in context.related_tasks] == ["old of acme"]


def test_a_request_context_can_be_specialised_and_stood_in_for_as_that_of_the_official_sdk() -> None:
    class Tagged(RequestContext):
        @property
        def metadata(self) -> dict[str, Any]:
            return {**super().metadata, "tag": 1}

    assert Tagged(CALL).metadata == {"tag": 1}
    double = create_autospec(RequestContext, instance=True)
    double.get_user_input.return_value = "hello"
    assert double.get_user_input() == "hello"
    assert all(hasattr(double, name) for name in ("message", "task_id", "context_id", "related_tasks", "tenant"))


async def test_a_task_store_that_is_still_empty_is_asked_all_the_same() -> None:
    class EmptyArchive(Archive):
        def __len__(self) -> int:
            return 0

    context = await SimpleRequestContextBuilder(True, EmptyArchive()).build(CALL, request(reference_task_ids=["old"]))
    assert [related.id for related in context.related_tasks] == ["old of acme"]


class Counted(IDGenerator):
    def __init__(self, kind: str) -> None:
        self._kind = kind
        self.known: list[IDGeneratorContext] = []

    def generate(self, context: IDGeneratorContext) -> str:
        self.known.append(context)
        return f"{self._kind}-{len(self.known)}"


async def test_id_generators_name_new_tasks_and_contexts(storage: str) -> None:
    seen, tasks, contexts = Seen(), Counted("task"), Counted("context")
    builder = SimpleRequestContextBuilder(task_id_generator=tasks, context_id_generator=contexts)
    async with executing(seen, storage, request_context_builder=builder) as client:
        first = await client.send("one")
        second = [event async for event in client.stream("two", context_id="talk")]
    assert (first.task_id, first.context_id) == ("task-1", "context-1")
    assert (second[0].task_id, second[0].context_id) == ("task-2", "talk")
    assert tasks.known[1] == IDGeneratorContext(context_id="talk")
    assert contexts.known == [IDGeneratorContext(task_id="task-1")]
    assert [context.task_id for context in seen.contexts] == ["task-1", "task-2"]


async def test_id_generators_count_for_an_executor_that_was_made_a_worker_by_hand(storage: str) -> None:
    worker = ExecutorWorker(Executor(Seen()), SimpleRequestContextBuilder(task_id_generator=Counted("task")))
    async with connect(worker, storage=storage) as client:
        assert (await client.send("hi")).task_id == "task-1"


class Broken(RequestContextBuilder):
    async def build(self, *args: Any, **kwargs: Any) -> RequestContext:
        raise RuntimeError("no context today")


class Forgetful(RequestContextBuilder):
    """Does not tell of the task."""

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        context_id: str | None = None,
        task: Task | None = None,
    ) -> RequestContext:
        return RequestContext(context, params, task_id, context_id)


async def test_a_message_comes_too_late_for_a_known_task_whatever_the_builder_tells(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        assert context.current_task is None
        if context.get_user_input() == "one":
            await updater_of(context, queue).requires_input()
        else:
            await queue.enqueue_event(words("an answer"))

    async with executing(execute, storage, request_context_builder=Forgetful()) as client:
        task_id = (await client.send("one")).task_id
        assert (await client.send("two", task_id=task_id)).state == "failed"


async def test_a_builder_that_raises_fails_the_task(storage: str) -> None:
    async with executing(Seen(), storage, request_context_builder=Broken()) as client:
        assert (await client.send("hi")).state == "failed"


# A2AServer(executor=...)


CARD = AgentCardConfig(name="A", description="An agent.")


def nothing(**options: Any) -> A2AServer:
    return A2AServer(agent_card=CARD, storage="memory", **options)


async def done(ctx: Any) -> None:
    await ctx.complete()


WORKER: Worker = Agent(done)


@pytest.mark.parametrize("agent", [{}, {"worker": WORKER, "executor": Executor(Seen())}])
def test_an_agent_is_a_worker_or_an_executor_and_never_both(agent: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"worker=\.\.\. or executor=\.\.\."):
        nothing(**agent)


def test_an_executor_must_be_one() -> None:
    with pytest.raises(ConfigurationError, match=r"errands\.AgentExecutor, not str"):
        nothing(executor="me")


def test_a_context_builder_goes_with_an_executor() -> None:
    with pytest.raises(ConfigurationError, match="request_context_builder"):
        nothing(worker=WORKER, request_context_builder=SimpleRequestContextBuilder())


async def test_an_executor_may_carry_its_card(storage: str) -> None:
    async def execute(context: RequestContext, queue: EventQueue) -> None:
        await queue.enqueue_event(words("hello"))

    executor = Executor(execute)
    executor.agent_card = CARD  # type: ignore[attr-defined]
    async with connect(A2AServer(executor=executor, storage=storage)) as client:
        assert client.agent_card.name == "A"
        assert (await client.send("hi")).text == "hello"
