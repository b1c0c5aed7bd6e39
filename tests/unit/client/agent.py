"""An agent played from a script, byte by byte, over either HTTP binding and without a socket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, NamedTuple

import httpx
import msgspec

from errands.client import A2AClient
from errands.errors import A2AError
from errands.model.base import A2AObject, encode
from errands.model.card import AgentCapabilities, AgentCard, AgentInterface
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.operations import OPERATIONS
from errands.wire import sse
from errands.wire.status import JSONRPC_HTTP, to_http, to_jsonrpc

URL = "http://agent.test"
BINDINGS = ("jsonrpc", "http+json")
_PATHS = {
    operation.name: (
        operation.http_method,
        re.compile(re.sub(r"\{\w+\}", "[^/:]+", operation.path) + "$"),
    )
    for operation in OPERATIONS.values()
}


def card(
    *interfaces: AgentInterface, streaming: bool = True, push: bool = True, extended: bool = True, name: str = "Fake"
) -> AgentCard:
    return AgentCard(
        name=name,
        description="Plays from a script.",
        supported_interfaces=list(interfaces)
        or [
            AgentInterface(url=f"{URL}/rpc", protocol_binding="JSONRPC", protocol_version="1.0"),
            AgentInterface(url=f"{URL}/rest", protocol_binding="HTTP+JSON", protocol_version="1.0"),
        ],
        version="1",
        capabilities=AgentCapabilities(streaming=streaming, push_notifications=push, extended_agent_card=extended),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[],
    )


class Call(NamedTuple):
    """A request as the agent understood it."""

    operation: str
    #: The JSON-RPC parameters, or the body or query of HTTP+JSON.
    params: dict[str, Any]
    request: httpx.Request

    @property
    def headers(self) -> httpx.Headers:
        return self.request.headers

    @property
    def path(self) -> str:
        return self.request.url.raw_path.decode()

    @property
    def read_timeout(self) -> float | None:
        timeout: float | None = self.request.extensions["timeout"]["read"]
        return timeout


class Bytes(httpx.AsyncByteStream):
    """A body in pieces, which may break off."""

    def __init__(self, pieces: Iterable[bytes], then: Exception | None = None) -> None:
        self._pieces = pieces
        self._then = then
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for piece in self._pieces:
            yield piece
        if self._then is not None:
            raise self._then

    async def aclose(self) -> None:
        self.closed = True


Answer = Callable[[Call], httpx.Response] | httpx.Response | Exception


class ScriptedAgent:
    """Answers each call with the next line of its script; the card is always there."""

    def __init__(self, binding: str = "jsonrpc", *, agent_card: AgentCard | None = None) -> None:
        self.binding = binding
        self.card = agent_card or card()
        self.script: list[Answer] = []
        self.calls: list[Call] = []
        self.waits: list[float] = []

    def client(self, **options: Any) -> A2AClient:
        """A client of this agent that does not sleep: `waits` has what it would have slept."""
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))
        client = A2AClient(URL, httpx_client=http, protocol=self.binding, card=self.card, **options)
        client._retry.sleep = self.sleep
        client._retry.uniform = lambda low, high: high
        return client

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)

    def plays(self, *answers: Answer) -> None:
        self.script = list(answers)

    @property
    def operations(self) -> list[str]:
        return [call.operation for call in self.calls]

    def _answer(self, request: httpx.Request) -> httpx.Response:
        call = self._understand(request)
        self.calls.append(call)
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, httpx.Response) else answer(call)

    def _understand(self, request: httpx.Request) -> Call:
        if self.binding == "jsonrpc":
            body = msgspec.json.decode(request.content)
            return Call(body["method"], body["params"], request)
        for name, (method, path) in _PATHS.items():
            if request.method == method and path.search(request.url.path):
                params = msgspec.json.decode(request.content) if request.content else dict(request.url.params)
                return Call(name, params, request)
        raise AssertionError(f"no operation for {request.method} {request.url}")

    def result(self, model: A2AObject | None) -> httpx.Response:
        body = b"null" if model is None else encode(model)
        return httpx.Response(200, content=self.enveloped(body))

    def refusal(self, error: A2AError, **headers: str) -> httpx.Response:
        if self.binding == "jsonrpc":
            status = JSONRPC_HTTP.get(error.reason, 200)
            body: Any = {"jsonrpc": "2.0", "id": "1", "error": to_jsonrpc(error)}
        else:
            status, body = to_http(error)
        return httpx.Response(status, json=body, headers=headers)

    def error_event(self, error: A2AError) -> bytes:
        body: Any = {"id": "1", "error": to_jsonrpc(error)} if self.binding == "jsonrpc" else to_http(error)[1]
        return sse.named(sse.ERROR_EVENT, sse.plain_frame(encode(body)))

    def enveloped(self, body: bytes) -> bytes:
        return b'{"jsonrpc":"2.0","id":"1","result":%b}' % body if self.binding == "jsonrpc" else body

    def frame(self, event_id: int | str | None, response: StreamResponse, name: str = "") -> bytes:
        data = self.enveloped(encode(response))
        head = f"event: {name}\n".encode() if name else b""
        if event_id is not None:
            head += f"id: {event_id}\n".encode()
        return head + b"data: %b\n\n" % data

    def frames(self, *responses: StreamResponse, first_id: int | None = 1) -> list[bytes]:
        """The events numbered from `first_id`, or without ids."""
        return [
            self.frame(None if first_id is None else first_id + place, response)
            for place, response in enumerate(responses)
        ]

    def gap_frame(self, event_id: int, response: StreamResponse) -> bytes:
        return self.frame(event_id, response, sse.GAP_EVENT)


def streaming(pieces: Iterable[bytes], then: Exception | None = None) -> httpx.Response:
    """A stream of these bytes that is closed, or broken off with `then`."""
    return httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=Bytes(pieces, then))


def cut() -> httpx.ReadError:
    return httpx.ReadError("connection reset")


def message(text: str, role: Role = Role.AGENT, message_id: str = "m") -> Message:
    return Message(message_id=message_id, role=role, parts=[Part(text=text)])


def task(state: TaskState = TaskState.WORKING, *, text: str | None = None, said: str | None = None) -> Task:
    """A task with one artifact when `text` is given, and a status message when `said` is."""
    return Task(
        id="t1",
        context_id="c1",
        status=TaskStatus(state=state, message=message(said) if said is not None else None),
        artifacts=[Artifact(artifact_id="a", parts=[Part(text=text)])] if text is not None else None,
    )


def snapshot(state: TaskState = TaskState.WORKING, *, text: str | None = None) -> StreamResponse:
    return StreamResponse(task=task(state, text=text))


def status(state: TaskState, said: str | None = None) -> StreamResponse:
    words = message(said) if said is not None else None
    return StreamResponse(
        status_update=TaskStatusUpdateEvent(
            task_id="t1", context_id="c1", status=TaskStatus(state=state, message=words)
        )
    )


def chunk(text: str, *, append: bool = True, last: bool = False, artifact_id: str = "a") -> StreamResponse:
    return StreamResponse(
        artifact_update=TaskArtifactUpdateEvent(
            task_id="t1",
            context_id="c1",
            artifact=Artifact(artifact_id=artifact_id, parts=[Part(text=text)]),
            append=append,
            last_chunk=last,
        )
    )


#: The life of a task whose text is "één twee drie" in one artifact and "other" in another.
LOG = [
    snapshot(TaskState.SUBMITTED),
    status(TaskState.WORKING),
    status(TaskState.WORKING, "counting"),
    chunk("één ", append=False),
    chunk("twee "),
    chunk("other", append=False, artifact_id="b"),
    chunk("drie", last=True),
    status(TaskState.COMPLETED, "done"),
]
