"""errands' own client in PraisonAI's dialect: against errands' `/a2a`, and against what PraisonAI's server answers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx
import msgspec
import pytest

from errands import A2AClient, A2AServer, CapabilitiesConfig, Part, Role, Worker
from errands.client import (
    AgentCapabilityError,
    NoCommonProtocolError,
    ProtocolError,
    StreamEvent,
    StreamInterruptedError,
)
from errands.clock import system_clock
from errands.errors import (
    AuthenticationRequiredError,
    InternalError,
    InvalidParamsError,
    MethodNotFoundError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from errands.testing import connect, serve
from tests.cells import one_engine
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, card
from tests.waiting import until

pytestmark = pytest.mark.anyio

Connected = Callable[..., AbstractAsyncContextManager[A2AClient]]


@pytest.fixture
def connected(storage: str) -> Connected:
    @asynccontextmanager
    async def connect_over(agent: Worker | A2AServer, **options: Any) -> AsyncIterator[A2AClient]:
        server = agent if isinstance(agent, A2AServer) else serve(agent, storage=storage, **options)
        async with connect(server, client={"protocol": "praisonai"}) as client:
            assert (client.protocol, client.version) == ("praisonai", "0.3")
            yield client

    return connect_over


# Against errands


async def test_a_send_answers_with_the_completed_task_in_which_both_sides_have_spoken(connected: Connected) -> None:
    async with connected(Echo()) as client:
        result = await client.send("hi")
        assert (result.state, result.text) == ("completed", "Echo: hi")
        task = (await client.get_task(result.task_id)).raw_task
        assert task is not None
        assert task.history is not None
        assert [message.role for message in task.history] == [Role.USER, Role.AGENT]
        assert task.status.timestamp is not None
        assert task.status.timestamp.endswith("Z")


async def test_parts_of_every_kind_go_there_and_back(connected: Connected) -> None:
    parts = [
        Part(text="hi", metadata={"a": 1}),
        Part(raw=b"\x00\xff", media_type="image/png", filename="a.png"),
        Part(url="https://example.com/a.pdf", media_type="application/pdf"),
        Part(data={"a": [1, None]}),
    ]
    async with connected(Parrot(), agent_card=card(input_modes=["*/*"])) as client:
        task = (await client.send(parts)).raw_task
        assert task is not None
        assert task.artifacts is not None
        assert task.history is not None
        assert task.history[0].parts == parts
        assert [artifact.parts[0].raw for artifact in task.artifacts][1] == b"\x00\xff"


@one_engine
async def test_who_does_not_wait_gets_the_task_at_once(connected: Connected) -> None:
    worker = Gated()
    async with connected(worker) as client:
        assert (await client.send("hi", blocking=False)).state in {"submitted", "working"}
        worker.gate.set()


async def test_a_stream_tells_what_happens_and_ends_with_the_task(connected: Connected) -> None:
    worker = Gated()
    worker.gate.set()
    async with connected(worker) as client:
        events = [event async for event in client.stream("hi")]
        assert [event.text for event in events if event.kind == "artifact"] == ["first ", "second"]
        assert (events[-1].state, events[-1].is_final) == ("completed", True)
        assert [piece async for piece in client.stream_text("hi")] == ["first ", "second"]


@one_engine
async def test_a_direct_reply_is_a_task_here(connected: Connected) -> None:
    async with connected(Direct()) as client:
        result = await client.send("hi")
        assert (result.state, result.text) == ("completed", "You said hi")


async def test_a_conversation_carries_its_context_and_answers_questions(connected: Connected) -> None:
    async with connected(Asks()) as client:
        conversation = client.conversation()
        first = await conversation.send("A poem")
        assert conversation.state == "input-required"
        second = await conversation.send("French")
        assert (second.task_id, second.text) == (first.task_id, "A poem in French")
        third = await conversation.send("Another")
        assert third.context_id == first.context_id
        assert third.task_id != first.task_id


@one_engine
async def test_a_streamed_conversation_answers_questions_too(connected: Connected) -> None:
    async with connected(Asks()) as client:
        conversation = client.conversation()
        assert [event async for event in conversation.stream("A poem")][-1].state == "input-required"
        assert "".join([piece async for piece in conversation.stream_text("French")]) == "A poem in French"


async def test_the_same_message_sent_again_is_the_same_task(connected: Connected) -> None:
    async with connected(Echo()) as client:
        first, again = await client.send("hi", message_id="m-1"), await client.send("hi", message_id="m-1")
        assert first.task_id == again.task_id
        assert first.context_id == "context-m-1"


async def test_a_cancelled_task_is_canceled(connected: Connected) -> None:
    worker = Patient()
    async with connected(worker) as client:
        task = await client.send("hi", blocking=False)
        await worker.started.wait()
        assert (await client.cancel(task.task_id)).state == "canceled"
        assert (await client.get_task(task.task_id)).state == "canceled"


async def test_tasks_are_listed_on_one_page_the_newest_first_and_as_asked_for(connected: Connected) -> None:
    async with connected(Asks()) as client:
        asked = await client.send("one", context_id="c-1")
        # Of two tasks of one millisecond, either may come first.
        asked_at = system_clock()
        await until(lambda: system_clock() > asked_at)
        done = await client.send("two", context_id="c-2")
        await client.send("French", task_id=done.task_id, context_id="c-2")
        page = await client.list_tasks(page_size=1)
        assert [task.task_id for task in page.tasks] == [done.task_id, asked.task_id]
        assert (page.total_size, page.next_page_token) == (2, None)
        assert all(task.raw_task is not None and task.raw_task.artifacts is None for task in page.tasks)
        assert [task.text async for task in client.list_tasks(include_artifacts=True, status="completed")] == [
            "two in French"
        ]
        assert [task.task_id async for task in client.list_tasks(context_id="c-1")] == [asked.task_id]
        assert [task async for task in client.list_tasks(status_timestamp_after="2999-01-01T00:00:00Z")] == []
        assert len((await client.list_tasks(status_timestamp_after="2001-01-01T00:00:00Z")).tasks) == 2
        for wrong in ("yesterday", ""):
            with pytest.raises(InvalidParamsError):
                await client.list_tasks(status_timestamp_after=wrong)
        with pytest.raises(InvalidParamsError, match="page_token"):
            await client.list_tasks(page_token="2")


@pytest.mark.parametrize(("length", "shown"), [(None, 2), (0, 0), (1, 1), (9, 2)])
@one_engine
async def test_the_history_is_cut_to_the_length_asked_for(connected: Connected, length: int | None, shown: int) -> None:
    async with connected(Echo()) as client:
        sent = await client.send("hi", history_length=length)
        got = await client.get_task(sent.task_id, history_length=length)
        for task in (sent.raw_task, got.raw_task):
            assert task is not None
            assert len(task.history or []) == shown


@one_engine
async def test_a_task_that_does_not_exist_is_not_found(connected: Connected) -> None:
    async with connected(Echo()) as client:
        for attempt in (client.get_task("none"), client.cancel("none")):
            with pytest.raises(TaskNotFoundError) as caught:
                await attempt
            assert caught.value.metadata == {"taskId": "none"}


@one_engine
async def test_a_task_that_has_ended_takes_no_message(connected: Connected) -> None:
    async with connected(Echo()) as client:
        task = await client.send("hi")
        with pytest.raises(UnsupportedOperationError):
            await client.send("more", task_id=task.task_id)
        with pytest.raises(UnsupportedOperationError):
            [event async for event in client.stream("more", task_id=task.task_id)]


async def test_the_extended_card_is_read() -> None:
    extended = card(capabilities=CapabilitiesConfig(streaming=True, extended_agent_card=True))

    async def provide(request: Any) -> Any:
        return card(version="9.9.9")

    server = serve(Echo(), agent_card=extended, extended_card_provider=provide)
    async with connect(server, client={"protocol": "praisonai"}) as client:
        assert (await client.get_extended_card()).version == "9.9.9"


async def test_a_server_that_does_not_speak_0_3_does_not_speak_the_dialect() -> None:
    with pytest.raises(NoCommonProtocolError, match="praisonai"):
        async with connect(serve(Echo(), protocol_versions=["1.0"]), client={"protocol": "praisonai"}):
            pass


# Against what PraisonAI's own server answers


async def tell(client: A2AClient) -> list[StreamEvent]:
    return [event async for event in client.stream("hi")]


CARD: dict[str, Any] = {
    "name": "Assistant",
    "url": "http://agent.test/a2a",
    "version": "1.0.0",
    "description": "Helper. Help users",
    "capabilities": {"streaming": True, "pushNotifications": False, "extendedAgentCard": False},
    "provider": {"name": "PraisonAI"},
}
TASK = {
    "id": "task-1",
    "status": {"state": "completed", "timestamp": "2026-01-02T03:04:05.678901+00:00"},
    "artifacts": [{"artifactId": "art-1", "parts": [{"text": "Hello"}]}],
    "history": [
        {"messageId": "msg-auto", "role": "user", "parts": [{"fileWithUri": "https://a/b", "mediaType": "x/y"}]},
        {"messageId": "msg-1", "role": "agent", "parts": [{"text": "Hello"}], "taskId": "task-1"},
    ],
}


class Praison:
    """Answers `/a2a` with what it was given, and keeps what was asked."""

    def __init__(self, *answers: httpx.Response, pushes: bool = False) -> None:
        self.answers = list(answers)
        self.card = {**CARD, "capabilities": {**CARD["capabilities"], "pushNotifications": pushes}}
        self.asked: list[Any] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/.well-known/agent.json":
            return httpx.Response(200, json=self.card)
        if request.url.path != "/a2a":
            return httpx.Response(404)
        self.asked.append(msgspec.json.decode(request.content))
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]

    @asynccontextmanager
    async def client(self) -> AsyncIterator[A2AClient]:
        http = httpx.AsyncClient(transport=httpx.MockTransport(self))
        async with http, A2AClient("http://agent.test", httpx_client=http, max_retries=1, retry_delay=0) as client:
            assert client.protocol == "praisonai"
            yield client


def result(content: Any) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": "1", "result": content})


def refusal(code: int, message: str) -> httpx.Response:
    return httpx.Response(200, json={"jsonrpc": "2.0", "id": "1", "error": {"code": code, "message": message}})


def events(*pairs: tuple[str, Any]) -> httpx.Response:
    frames = "".join(f"event: {name}\ndata: {msgspec.json.encode(data).decode()}\n\n" for name, data in pairs)
    return httpx.Response(200, text=frames, headers={"content-type": "text/event-stream"})


async def test_what_is_sent_is_what_its_server_reads() -> None:
    agent = Praison(result(TASK))
    async with agent.client() as client:
        await client.send("hi", message_id="m-1", blocking=False, metadata={"k": "v"})
        await client.send("hi", message_id="m-2", context_id="c")
    assert [asked["method"] for asked in agent.asked] == ["message/send"] * 2
    assert agent.asked[0]["params"]["configuration"] == {"returnImmediately": True}
    assert agent.asked[0]["params"]["message"]["role"] == "user"
    assert agent.asked[0]["params"]["message"]["parts"] == [{"text": "hi"}]
    assert agent.asked[0]["params"]["message"]["contextId"] == "context-m-1"
    assert agent.asked[1]["params"]["message"]["contextId"] == "c"
    assert "configuration" not in agent.asked[1]["params"]


async def test_a_task_without_a_context_is_read() -> None:
    async with Praison(result(TASK)).client() as client:
        found = await client.get_task("task-1")
        assert (found.state, found.text) == ("completed", "Hello")
        assert found.raw_task is not None
        assert found.raw_task.history is not None
        assert found.raw_task.history[0].parts == [Part(url="https://a/b", media_type="x/y")]
        assert found.raw_task.status.timestamp == "2026-01-02T03:04:05.678901Z"


@pytest.mark.parametrize(
    ("spelling", "state"),
    [
        ("submitted", "submitted"),
        ("working", "working"),
        ("completed", "completed"),
        ("failed", "failed"),
        ("cancelled", "canceled"),
        ("input_required", "input-required"),
        ("auth_required", "auth-required"),
    ],
)
async def test_every_state_is_read(spelling: str, state: str) -> None:
    async with Praison(result({**TASK, "status": {"state": spelling}})).client() as client:
        assert (await client.get_task("task-1")).state == state


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        (-32000, "Task not found: task-1", TaskNotFoundError),
        (-32000, "Something else", InternalError),
        (-32002, "Task not cancelable: already completed", TaskNotCancelableError),
        (-32601, "Push notifications not supported: tasks/get", PushNotificationNotSupportedError),
        (-32601, "Method not found: tasks/get", MethodNotFoundError),
        (-32602, "Invalid params: 'id' required", InvalidParamsError),
    ],
)
async def test_its_codes_are_the_errors_they_mean(code: int, message: str, kind: type[Exception]) -> None:
    async with Praison(refusal(code, message)).client() as client:
        with pytest.raises(kind, match=message):
            await client.get_task("task-1")


async def test_a_wrong_token_is_a_matter_of_authentication() -> None:
    async with Praison(httpx.Response(401, json={"detail": "Invalid token"})).client() as client:
        with pytest.raises(AuthenticationRequiredError):
            await client.send("hi")


async def test_its_stream_is_followed_to_its_end() -> None:
    agent = Praison(
        events(
            ("task.status", {"taskId": "t", "status": {"state": "working"}, "final": False}),
            ("task.news", {"of": "later versions"}),
            (
                "task.artifact",
                {"taskId": "t", "artifact": {"artifactId": "a", "parts": [{"text": "Hi"}]}, "lastChunk": True},
            ),
            ("task.status", {"taskId": "t", "status": {"state": "completed"}, "final": True}),
            ("done", {}),
        )
    )
    async with agent.client() as client:
        seen = [(event.kind, event.state or event.text) async for event in client.stream("hi")]
        assert seen == [("status", "working"), ("artifact", "Hi"), ("status", "completed")]


async def test_a_stream_that_breaks_goes_on_with_the_task_itself() -> None:
    working = ("task.status", {"taskId": "task-1", "status": {"state": "working"}})
    agent = Praison(events(working), result(TASK))
    async with agent.client() as client:
        seen = [(event.kind, event.state) async for event in client.stream("hi")]
        assert seen == [("status", "working"), ("task", "completed")]
    assert [asked["method"] for asked in agent.asked] == ["message/stream", "tasks/get"]


async def test_a_stream_whose_task_never_ends_is_interrupted() -> None:
    working = ("task.status", {"taskId": "task-1", "status": {"state": "working"}})
    agent = Praison(events(working), result({**TASK, "status": {"state": "working"}, "artifacts": None}))
    async with agent.client() as client:
        with pytest.raises(StreamInterruptedError, match="task-1"):
            await tell(client)


async def test_an_error_that_opens_a_stream_is_raised() -> None:
    async with Praison(events(("error", {"code": -32602, "message": "no"}))).client() as client:
        with pytest.raises(InvalidParamsError, match="no"):
            await tell(client)


@pytest.mark.parametrize(
    "answer",
    [
        result({}),
        result(None),
        result([TASK]),
        result({**TASK, "status": {"state": "daydreaming"}}),
        httpx.Response(200, text="<html>"),
        httpx.Response(200, json={"detail": "?"}),
        events(("task.status", {"taskId": "t"})),
        events(("task.status", [])),
        events(("error", [])),
    ],
)
async def test_an_answer_that_is_none_is_a_protocol_error(answer: httpx.Response) -> None:
    async with Praison(answer).client() as client:
        with pytest.raises(ProtocolError):
            await (tell(client) if answer.headers["content-type"] == "text/event-stream" else client.get_task("t"))


async def test_what_its_card_does_not_offer_is_not_asked_for() -> None:
    agent = Praison(result(TASK))
    async with agent.client() as client:
        with pytest.raises(AgentCapabilityError):
            await client.set_push_config("t", url="https://example.com")
        with pytest.raises(UnsupportedOperationError):
            client.subscribe("t")
    assert agent.asked == []


async def test_what_the_dialect_has_not_is_unsupported() -> None:
    agent = Praison(result(TASK), pushes=True)
    async with agent.client() as client:
        for attempt in (
            client.set_push_config("t", url="https://example.com"),
            client.list_push_configs("t"),
            client.get_push_config("t", "p"),
            client.delete_push_config("t", "p"),
            client.send("hi", push_url="https://example.com"),
        ):
            with pytest.raises(UnsupportedOperationError):
                await attempt
    assert agent.asked == []
