"""What an A2AServer can be handed of the official SDK, and what is said about everything else."""

from __future__ import annotations

import subprocess
import sys
import uuid
from typing import Any, cast

import pytest
from a2a.auth.user import UnauthenticatedUser
from a2a.server.agent_execution import AgentExecutor as OfficialExecutor
from a2a.server.agent_execution import RequestContext as OfficialContext
from a2a.server.agent_execution import RequestContextBuilder as OfficialInterface
from a2a.server.agent_execution import SimpleRequestContextBuilder as OfficialBuilder
from a2a.server.context import ServerCallContext
from a2a.server.events import EventQueue as OfficialQueue
from a2a.server.routes import DefaultServerCallContextBuilder
from a2a.server.tasks import InMemoryTaskStore
from a2a.types import AgentCard, AgentSkill
from a2a.types import Message as OfficialMessage
from a2a.types import Part as OfficialPart
from a2a.types import Role as OfficialRole
from a2a.utils.errors import InvalidParamsError as OfficialInvalidParams

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    ConfigurationError,
    Message,
    Part,
    RequestEnvelope,
    Role,
    SimpleRequestContextBuilder,
    TaskContext,
    Worker,
)
from errands.errors import InternalError
from errands.interop import adapt
from errands.interop.executors import SdkExecutor
from errands.testing import connect
from tests.unit.interop.native import Native

CARD = AgentCardConfig(name="Agent", description="An agent.")


class Official(OfficialExecutor):
    async def execute(self, context: OfficialContext, event_queue: OfficialQueue) -> None: ...

    async def cancel(self, context: OfficialContext, event_queue: OfficialQueue) -> None: ...


class Once(Official):
    on_interrupted = "fail"


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None: ...


class Unrelated:
    async def execute(self, context: Any, event_queue: Any) -> None: ...


def test_an_executor_of_ours_stays_as_it_is() -> None:
    executor = Native()
    assert adapt(executor)[0] is executor


def test_an_executor_of_the_sdk_becomes_one_of_ours() -> None:
    assert isinstance(adapt(Official())[0], SdkExecutor)
    A2AServer(executor=Official(), agent_card=CARD, storage="memory")


def test_an_executor_of_the_sdk_may_say_what_becomes_of_it_after_a_crash() -> None:
    assert adapt(Official())[0].on_interrupted == "redeliver"
    assert adapt(Once())[0].on_interrupted == "fail"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (Official, "not the class Official; pass Official()"),
        (Echo(), "not Echo, which is a Worker; pass it as worker="),
        (Unrelated(), "not Unrelated, which has an execute method but derives from neither"),
        ("echo", "errands.AgentExecutor, not str"),
    ],
)
def test_anything_else_is_refused_with_what_is_wrong_about_it(given: Any, says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        A2AServer(executor=given, agent_card=CARD, storage="memory")
    assert says in str(refused.value)


NOT_A_BUILDER = (
    "request_context_builder must be an instance of errands.RequestContextBuilder or, with an executor of the a2a "
    "package, of a2a's RequestContextBuilder, not "
)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"storage": InMemoryTaskStore()}, "or an errands Engine, not InMemoryTaskStore"),
        ({"agent_card": AgentSkill(name="skill")}, "or an AgentCard of the a2a package, not AgentSkill"),
        ({"middlewares": [DefaultServerCallContextBuilder()]}, "not DefaultServerCallContextBuilder; what a2a-sdk's"),
        (
            {"middlewares": [UnauthenticatedUser()]},
            "middlewares must be objects of A2AMiddleware, not UnauthenticatedU",
        ),
        ({"middlewares": [A2AMiddleware]}, "middlewares must be objects of A2AMiddleware, not the class A2AMiddleware"),
        ({"middlewares": A2AMiddleware()}, "middlewares must be a list of A2AMiddleware objects, not A2AMiddleware"),
        (
            {"extended_card_provider": AgentCard(name="x")},
            "must be an async function that returns a card, not AgentCard",
        ),
        ({"hooks": object()}, "hooks must be a LifecycleHooks, not object"),
        ({"settings": {"storage": "memory"}}, "settings must be a Settings, not dict"),
        ({"dependencies": [1]}, "dependencies must be a Mapping, not list"),
        ({"policy": 1}, "policy must be a path or a Policy, not int"),
        ({"executor": None, "worker": Official()}, "not Official; pass it as executor="),
        ({"request_context_builder": DefaultServerCallContextBuilder()}, f"{NOT_A_BUILDER}DefaultServerCallContextBu"),
        ({"request_context_builder": OfficialBuilder}, f"{NOT_A_BUILDER}the class SimpleRequestContextBuilder; pass"),
        ({"request_context_builder": "builder"}, f"{NOT_A_BUILDER}str"),
        (
            {"executor": Native(), "request_context_builder": OfficialBuilder()},
            "request_context_builder=SimpleRequestContextBuilder is from the a2a package and Native is not",
        ),
        (
            {"request_context_builder": SimpleRequestContextBuilder(True, cast("Any", InMemoryTaskStore()))},
            "task_store=InMemoryTaskStore is from the a2a package and holds its types: omit task_store",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_when_the_server_is_made(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        A2AServer(**{"executor": Official(), "agent_card": CARD, "storage": "memory", **given})
    assert says in str(refused.value)


class Says(Official):
    """Answers with what its context has."""

    def __init__(self) -> None:
        self.contexts: list[OfficialContext] = []

    async def execute(self, context: OfficialContext, event_queue: OfficialQueue) -> None:
        self.contexts.append(context)
        parts = [OfficialPart(text=" ".join(task.id for task in context.related_tasks))]
        await event_queue.enqueue_event(OfficialMessage(message_id="m", role=OfficialRole.ROLE_AGENT, parts=parts))


def referring(*task_ids: str) -> Message:
    parts = [Part(text="hi")]
    return Message(message_id=str(uuid.uuid4()), role=Role.USER, parts=parts, reference_task_ids=[*task_ids])


@pytest.mark.anyio
async def test_referred_tasks_are_found_when_wanted_and_only_the_first_hundred_are_looked_for(storage: str) -> None:
    asked: list[str] = []

    class Counting(InMemoryTaskStore):
        async def get(self, task_id: str, context: ServerCallContext) -> Any:
            asked.append(task_id)
            return await super().get(task_id, context)

    for builder, finds in (
        (OfficialBuilder(should_populate_referred_tasks=True), True),
        (OfficialBuilder(should_populate_referred_tasks=True, task_store=Counting()), True),
        (OfficialBuilder(task_store=Counting()), False),
        (None, False),
    ):
        async with connect(Says(), storage=storage, request_context_builder=builder) as client:
            first = await client.send("hi")
            many = (f"nowhere-{number}" for number in range(1000))
            assert (await client.send(referring(first.task_id, *many))).text == (first.task_id if finds else "")
    assert asked.count("nowhere-98") == 1
    assert "nowhere-99" not in asked


@pytest.mark.anyio
async def test_a_builder_that_derives_from_the_interface_alone_makes_the_context_of_the_executor() -> None:
    class Context(OfficialContext):
        pass

    class Builder(OfficialInterface):
        async def build(self, context: Any, params: Any = None, *arguments: Any, **options: Any) -> OfficialContext:
            return Context(context, params, *arguments, **options)

    executor = Says()
    async with connect(executor, request_context_builder=Builder()) as client:
        answer = await client.send("hi")
    assert [type(context) for context in executor.contexts] == [Context]
    assert executor.contexts[0].task_id == answer.task_id


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (OfficialInvalidParams(message="no such city"), "no such city"),
        (None, "The agent gave an invalid response: Builder.build must return a RequestContext of the a2a package, "),
    ],
)
async def test_a_builder_that_fails_fails_the_task(failure: Exception | None, told: str) -> None:
    class Builder(OfficialInterface):
        async def build(self, *arguments: Any, **options: Any) -> Any:
            if failure is not None:
                raise failure

    async with connect(Says(), request_context_builder=Builder()) as client:
        answer = await client.send("hi")
    assert answer.failed
    assert (answer.text or "").startswith(told)


@pytest.mark.anyio
async def test_a_middleware_that_names_the_owner_by_an_object_is_an_error_of_the_server(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Named(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            envelope.owner = cast("Any", UnauthenticatedUser())

    async with connect(Says(), middlewares=[Named()]) as client:
        with pytest.raises(InternalError):
            await client.send("hi")
    assert "envelope.owner, which a middleware has set, must be a str, not UnauthenticatedUser" in caplog.text


def test_without_an_object_of_it_the_a2a_package_is_not_imported() -> None:
    program = (
        "import sys, errands, errands.interop\n"
        "from errands import A2AServer, AgentCardConfig\n"
        "from tests.unit.interop.native import Native\n"
        "A2AServer(executor=Native(), agent_card=AgentCardConfig(name='A', description='A'), storage='memory')\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'a2a'])"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
