"""The client over real sockets, against the real server and against one that dies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import pytest

from errands.client import A2AClient, AgentNotFoundError, AgentUnreachableError, AnswerLostError
from errands.errors import TaskNotCancelableError, TaskNotFoundError, UnsupportedOperationError
from errands.model.base import encode
from errands.model.card import AgentInterface
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.model.core import TaskState
from errands.runtime.context import TaskContext
from errands.runtime.worker import Worker
from errands.server.app import A2AServer
from tests.ports import free_port
from tests.unit.client.agent import BINDINGS, ScriptedAgent, card, chunk, snapshot, status
from tests.unit.client.serving import serving

pytestmark = pytest.mark.anyio


class Talkative(Worker):
    """Streams words, asks when told to ask, and waits when told to wait."""

    def __init__(self) -> None:
        self.turns = 0
        self.go_on = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        self.turns += 1
        command, _, rest = ctx.user_text.partition(" ")
        if command == "ask":
            await ctx.request_input("what?")
        elif command == "direct":
            await ctx.reply_directly(rest)
        elif command == "wait":
            await self.go_on.wait()
            await ctx.complete("waited")
        else:
            words = ctx.user_text.split(" ")
            for place, word in enumerate(words):
                await ctx.emit_text_artifact(word, append=place > 0, last_chunk=place == len(words) - 1)
            await ctx.complete()


def server_of(worker: Worker) -> A2AServer:
    config = AgentCardConfig(
        name="Talkative", description="Talks.", capabilities=CapabilitiesConfig(streaming=True), protocol="jsonrpc"
    )
    return A2AServer(worker=worker, agent_card=config, storage="memory")


@pytest.fixture
def worker() -> Talkative:
    return Talkative()


@pytest.fixture(params=BINDINGS)
async def client(request: pytest.FixtureRequest, worker: Talkative) -> AsyncIterator[A2AClient]:
    async with (
        serving(server_of(worker).app) as url,
        A2AClient(url, protocol=request.param, retry_delay=0.001) as client,
    ):
        yield client


async def test_messages_are_answered(client: A2AClient) -> None:
    result = await client.send("a b")
    assert (result.text, result.completed) == ("ab", True)
    assert (await client.get_task(result.task_id)).text == "ab"
    assert (await client.send("direct hi")).text == "hi"
    assert [task.task_id async for task in client.list_tasks(context_id=result.context_id)] == [result.task_id]


async def test_a_listing_of_large_tasks_goes_on_through_short_pages(client: A2AClient) -> None:
    # Each is stored with its message and its artifact: no two of them have room on one page.
    sent = {(await client.send(letter * 2_500_000)).task_id for letter in "abc"}
    page = await client.list_tasks(page_size=100)
    assert (len(page.tasks), page.total_size, page.next_page_token is None) == (1, 3, False)
    listed = [task.task_id async for task in client.list_tasks(page_size=100)]
    assert (len(listed), set(listed)) == (3, sent)


async def test_a_stream_comes_as_it_happens(client: A2AClient) -> None:
    events = [event async for event in client.stream("a b c")]
    assert [event.text for event in events if event.kind == "artifact"] == ["a", "b", "c"]
    assert events[-1].state == "completed"
    assert all(event.event_id for event in events)
    assert [piece async for piece in client.stream_text("x y")] == ["x", "y"]


async def test_a_conversation_goes_on_in_its_task(client: A2AClient) -> None:
    conversation = client.conversation()
    assert [piece async for piece in conversation.stream_text("ask me")] == ["what?"]
    first = conversation.task_id
    assert [piece async for piece in conversation.stream_text("nothing much")] == ["nothing", "much"]
    assert (conversation.task_id, conversation.state) == (first, "completed")
    await conversation.send("again")
    assert conversation.task_id != first
    assert len({turn.result.context_id for turn in conversation.history}) == 1


async def test_a_subscriber_follows_a_task_that_somebody_else_started(client: A2AClient, worker: Talkative) -> None:
    started = await client.send("wait", blocking=False)
    stream = client.subscribe(started.task_id)
    assert (await anext(stream)).kind == "task"
    worker.go_on.set()
    assert [event.state async for event in stream][-1] == "completed"
    assert [event.kind async for event in client.subscribe(started.task_id)] == ["task"]


async def test_every_event_can_be_asked_for_again_by_the_id_before_it(client: A2AClient) -> None:
    events = [event async for event in client.stream("a b c d")]
    for place, event in enumerate(events[:-1]):
        stream = client.subscribe(event.task_id or "", last_event_id=event.event_id)
        assert [later.response async for later in stream] == [later.response for later in events[place + 1 :]]


async def test_refusals_have_their_classes(client: A2AClient) -> None:
    done = await client.send("a")
    with pytest.raises(TaskNotFoundError):
        await client.get_task("nobody's")
    with pytest.raises(TaskNotCancelableError):
        await client.cancel(done.task_id)
    with pytest.raises(UnsupportedOperationError):
        await client.send("more", task_id=done.task_id)


async def test_a_waiting_task_can_be_canceled(client: A2AClient) -> None:
    waiting = await client.send("ask")
    assert (await client.cancel(waiting.task_id)).canceled
    assert [event.state async for event in client.subscribe(waiting.task_id)] == ["canceled"]


async def test_the_card_is_not_sent_again_when_it_has_not_changed(client: A2AClient) -> None:
    before = client.agent_card
    assert await client.refresh_card() is before


class Mangling(httpx.AsyncBaseTransport):
    """A network that loses answers: `mangle` gets each request with its response, and may raise."""

    def __init__(self, mangle: Callable[[httpx.Request, httpx.Response], Awaitable[httpx.Response]]) -> None:
        self._inner = httpx.AsyncHTTPTransport()
        self._mangle = mangle

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._mangle(request, await self._inner.handle_async_request(request))

    async def aclose(self) -> None:
        await self._inner.aclose()


class CutAfter(httpx.AsyncByteStream):
    def __init__(self, stream: Any, length: int) -> None:
        self._stream = stream
        self._left = length

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for piece in self._stream:
            yield piece[: self._left]
            self._left -= len(piece)
            if self._left <= 0:
                raise httpx.ReadError("cut")

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.mark.parametrize("binding", BINDINGS)
@pytest.mark.parametrize("length", [1000, 1111, 1500])
async def test_the_real_servers_stream_survives_a_bad_network(worker: Talkative, binding: str, length: int) -> None:
    async def cut_streams(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if response.headers["content-type"].startswith("text/event-stream"):
            response.stream = CutAfter(response.stream, length)
        return response

    words = [f"w{n}" for n in range(50)]
    async with (
        serving(server_of(worker).app) as url,
        httpx.AsyncClient(transport=Mangling(cut_streams)) as http,
        A2AClient(url, protocol=binding, httpx_client=http, retry_delay=0) as client,
    ):
        assert [piece async for piece in client.stream_text(" ".join(words))] == words
    assert worker.turns == 1


async def test_a_message_whose_answer_was_lost_can_be_sent_again_and_is_done_once(worker: Talkative) -> None:
    lost: list[bytes] = []

    async def lose_the_first(request: httpx.Request, response: httpx.Response) -> httpx.Response:
        if request.method == "POST" and not lost:
            lost.append(await response.aread())
            raise httpx.ReadError("gone")
        return response

    async with (
        serving(server_of(worker).app) as url,
        httpx.AsyncClient(transport=Mangling(lose_the_first)) as http,
        A2AClient(url, httpx_client=http) as client,
    ):
        with pytest.raises(AnswerLostError) as caught:
            await client.send("a b")
        result = await client.send("a b", message_id=caught.value.message_id)
    assert result.text == "ab"
    assert result.task_id.encode() in lost[0]
    assert worker.turns == 1


async def test_an_agent_that_is_not_there_is_not_found() -> None:
    async with serving(server_of(Talkative()).app, free_port()) as url:
        pass
    with pytest.raises(AgentNotFoundError):
        await A2AClient(url, retry_delay=0).connect()
    async with A2AClient(
        url, card=card(AgentInterface(url=url, protocol_binding="JSONRPC", protocol_version="1.0")), retry_delay=0
    ) as client:
        with pytest.raises(AgentUnreachableError):
            await client.send("x")


class Dying:
    """An agent whose every life tells a few events of its log and then ends without a word."""

    LOG = (
        snapshot(),
        *(chunk(str(n), append=n > 0) for n in range(8)),
        status(TaskState.COMPLETED),
    )

    def __init__(self, binding: str) -> None:
        self._frames = ScriptedAgent(binding).frames(*self.LOG)
        self.url = ""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            raise RuntimeError("no lifespan")
        if scope["path"].endswith("agent-card.json"):
            await self._answer(send, "application/json", [encode(self._card())], more=False)
            return
        last = int(dict(scope["headers"]).get(b"last-event-id", b"0"))
        await self._answer(send, "text/event-stream", self._frames[last : last + 3], more=True)
        raise RuntimeError("killed in the middle of a stream")

    def _card(self) -> Any:
        return card(
            *(
                AgentInterface(url=self.url, protocol_binding=binding, protocol_version="1.0")
                for binding in ("JSONRPC", "HTTP+JSON")
            )
        )

    async def _answer(self, send: Any, kind: str, pieces: list[bytes], *, more: bool) -> None:
        headers = [(b"content-type", kind.encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not more:
            await send({"type": "http.response.body", "body": b""})


@pytest.mark.parametrize("binding", BINDINGS)
async def test_a_stream_outlasts_an_agent_that_dies_and_comes_back(binding: str) -> None:
    agent = Dying(binding)
    async with AsyncExitStack() as stack:
        first_life = await stack.enter_async_context(AsyncExitStack())
        port = free_port()
        agent.url = await first_life.enter_async_context(serving(agent, port))
        waits = 0

        async def sleep(seconds: float) -> None:
            nonlocal waits
            waits += 1
            if waits == 1:
                await first_life.aclose()
            elif waits == 3:
                await stack.enter_async_context(serving(agent, port))

        client = await stack.enter_async_context(A2AClient(agent.url, protocol=binding))
        client._retry.sleep = sleep
        assert [event.response async for event in client.stream("x")] == list(Dying.LOG)
    assert waits > 3
