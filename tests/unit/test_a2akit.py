"""`errands.a2akit`: a program written for a2akit 0.0.32 finds its names here, or on the page about moving."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import errands.a2akit
from errands.a2akit import (
    A2AClientError,
    A2AServer,
    AgentCardConfig,
    TaskContext,
    TaskNotFoundError,
    TaskTerminalError,
    Worker,
    get_settings,
)
from errands.errors import ConfigurationError, UnsupportedOperationError
from errands.testing import connect, http_client
from tests.interaction.wire import rpc

pytestmark = pytest.mark.anyio

#: What `from a2akit import …` gives, and what else its clients and workers import from `client`, `storage`, `worker`.
NAMES = """
    OTEL_ENABLED A2AClient A2AMiddleware A2AServer AgentCardConfig ApiKeyMiddleware ArtifactWrite
    AuthenticationRequiredError BearerTokenMiddleware Broker CancelRegistry CapabilitiesConfig ClientResult
    ClientStreamEvent ContentTypeNotSupportedError ContextMismatchError DefaultEventEmitter Dependency
    DependencyContainer EventBus EventEmitter ExtensionConfig FileInfo HookableEmitter InMemoryBroker
    InMemoryCancelRegistry InMemoryEventBus InMemoryPushConfigStore InMemoryStorage InvalidAgentResponseError
    LifecycleHooks ListTasksQuery ListTasksResult ProviderConfig PushConfigStore PushNotificationAuthenticationInfo
    PushNotificationConfig RedisBroker RedisCancelRegistry RedisEventBus RedisStorage RequestEnvelope Settings
    SignatureConfig SkillConfig Storage TaskContext TaskManager TaskNotAcceptingMessagesError TaskNotCancelableError
    TaskNotFoundError TaskPushNotificationConfig TaskTerminalStateError UnsupportedOperationError Worker get_settings
    A2AClientError AgentCapabilityError AgentNotFoundError ArtifactInfo ListResult NotConnectedError ProtocolError
    StreamEvent TaskTerminalError ConcurrencyError HistoryMessage PreviousArtifact
"""
GONE = (Path(__file__).parents[2] / "docs" / "migrating-from-a2akit.md").read_text().partition("## What is gone")[2]


class Echo(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete(f"Echo: {ctx.user_text}")


def serve(**options: Any) -> A2AServer:
    card = AgentCardConfig(name="Echo", description="Echoes.", version="1.0.0")
    return A2AServer(worker=Echo(), agent_card=card, **{"storage": "memory", **options})


@pytest.mark.parametrize("name", NAMES.split())
def test_every_name_of_a2akit_is_here_or_is_said_to_be_gone(name: str) -> None:
    is_here = name in errands.a2akit.__all__ and hasattr(errands.a2akit, name)
    assert is_here is (f"`{name}`" not in GONE)


@pytest.mark.parametrize(
    ("asked", "served"),
    [("0.3", ("0.3",)), ("0.3.0", ("0.3",)), ("1.0", ("1.0",)), ("1.0.0", ("1.0",)), (None, ("1.0", "0.3"))],
)
async def test_one_protocol_version_is_served_or_all_are(asked: str | None, served: tuple[str, ...]) -> None:
    server = serve(protocol_version=asked)
    methods = {"1.0": "ListTasks", "0.3": "tasks/list"}
    async with server, http_client(server) as client:
        answers = {version: (await client.post("/", json=rpc(name, {}))).json() for version, name in methods.items()}
    assert tuple(version for version, answer in answers.items() if "result" in answer) == served


@pytest.mark.parametrize("asked", ["2.0", "", "latest"])
def test_other_protocol_versions_are_refused(asked: str) -> None:
    with pytest.raises(ConfigurationError, match="protocol version"):
        serve(protocol_version=asked)


def test_the_version_is_asked_for_in_one_way() -> None:
    with pytest.raises(ConfigurationError, match="not both"):
        serve(protocol_version="0.3", protocol_versions=["1.0"])


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ({"cancel_registry": object()}, "cancel_registry=.*: a cancel is in the task's log"),
        ({"push_allow_http": True}, "push_allow_http=True: errands has no such setting; docs/push.md"),
        ({"push_max_retries": 0}, "push_max_retries=0: errands has no such setting"),
        ({"push_allowed_hosts": set()}, "push_allowed_hosts="),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_an_argument_that_would_have_no_effect_is_refused(option: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        serve(**option)


def test_telemetry_is_opentelemetry() -> None:
    assert [serve(enable_telemetry=wanted).settings.otel for wanted in (True, False, None)] == [True, False, False]


def test_an_argument_that_asks_for_nothing_is_taken() -> None:
    serve(
        enable_telemetry=None,
        cancel_registry=None,
        push_allow_http=False,
        push_timeout=None,
        middlewares=None,
        additional_protocols=None,
        hooks=None,
        dependencies=None,
    )


@pytest.mark.parametrize("name", ["broker", "event_bus"])
@pytest.mark.parametrize(
    ("given", "shown"), [("redis://user:secret@host", "'redis://user:***@host'"), (object(), "object")]
)
def test_another_store_for_queue_or_events_is_refused(name: str, given: Any, shown: str) -> None:
    with pytest.raises(
        ConfigurationError, match=re.escape(f"{name}={shown}: tasks, queue and events are in one store")
    ):
        serve(**{name: given})


def test_the_same_store_for_queue_and_events_is_accepted() -> None:
    serve(storage="memory", broker="memory", event_bus="memory")


def test_an_unknown_argument_is_an_error_as_everywhere() -> None:
    with pytest.raises(TypeError, match="telemetry"):
        serve(telemetry=True)


async def test_what_the_agent_says_is_an_error_of_the_client_that_knows_the_task() -> None:
    async with connect(serve()) as client:
        with pytest.raises(A2AClientError) as caught:
            await client.get_task("no-such-task")
        assert isinstance(caught.value, TaskNotFoundError)
        assert caught.value.task_id == "no-such-task"
        ended = await client.send("hi")
        with pytest.raises(TaskTerminalError):
            await client.send("again", task_id=ended.task_id)
    assert TaskTerminalError is UnsupportedOperationError


def test_settings_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    get_settings.cache_clear()
    monkeypatch.setenv("ERRANDS_BLOCKING_TIMEOUT", "5")
    assert get_settings().blocking_timeout == 5
    monkeypatch.setenv("ERRANDS_BLOCKING_TIMEOUT", "6")
    assert get_settings() is get_settings()
    get_settings.cache_clear()
    assert get_settings().blocking_timeout == 6
    get_settings.cache_clear()
