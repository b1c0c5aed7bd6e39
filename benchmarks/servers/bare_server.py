"""The upper bound: typed JSON in and out on bare ASGI, without a lifecycle and without storage."""

from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import msgspec
from bench_agent import chunks, echo

JSON_HEADERS = [(b"content-type", b"application/json")]
SSE_HEADERS = [(b"content-type", b"text/event-stream")]


class Part(msgspec.Struct):
    text: str


class Message(msgspec.Struct, rename="camel"):
    message_id: str
    role: str
    parts: list[Part]


class Params(msgspec.Struct):
    message: Message


class Request(msgspec.Struct):
    id: int | str
    method: str
    params: Params
    jsonrpc: str = "2.0"


class Artifact(msgspec.Struct, rename="camel"):
    artifact_id: str
    parts: list[Part]


class Status(msgspec.Struct):
    state: str
    timestamp: datetime


class Task(msgspec.Struct, rename="camel"):
    id: str
    context_id: str
    status: Status
    artifacts: list[Artifact]
    history: list[Message]


class ArtifactUpdate(msgspec.Struct, rename="camel"):
    task_id: str
    context_id: str
    artifact: Artifact
    append: bool
    last_chunk: bool


class StatusUpdate(msgspec.Struct, rename="camel"):
    task_id: str
    context_id: str
    status: Status


class Result(msgspec.Struct, rename="camel", omit_defaults=True):
    task: Task | None = None
    artifact_update: ArtifactUpdate | None = None
    status_update: StatusUpdate | None = None


class Response(msgspec.Struct):
    id: int | str
    result: Result
    jsonrpc: str = "2.0"


decoder = msgspec.json.Decoder(Request)
encoder = msgspec.json.Encoder()


def completed() -> Status:
    return Status(state="TASK_STATE_COMPLETED", timestamp=datetime.now(UTC))


async def read_body(receive: Any) -> bytes:
    event = await receive()
    body: bytes = event["body"]
    while event.get("more_body"):
        event = await receive()
        body += event["body"]
    return body


async def send_json(send: Any, body: bytes) -> None:
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": 200, "headers": [*JSON_HEADERS, length]})
    await send({"type": "http.response.body", "body": body})


async def send_event(send: Any, request: Request, result: Result) -> None:
    body = b"data: " + encoder.encode(Response(request.id, result)) + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def send_stream(send: Any, request: Request, pieces: list[str]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": SSE_HEADERS})
    task_id, context_id = str(uuid4()), str(uuid4())
    last = len(pieces) - 1
    for index, piece in enumerate(pieces):
        artifact = Artifact("answer", [Part(piece)])
        update = ArtifactUpdate(task_id, context_id, artifact, index > 0, index == last)
        await send_event(send, request, Result(artifact_update=update))
    await send_event(send, request, Result(status_update=StatusUpdate(task_id, context_id, completed())))
    await send({"type": "http.response.body", "body": b""})


async def send_task(send: Any, request: Request, text: str) -> None:
    artifact = Artifact("answer", [Part(echo(text))])
    task = Task(str(uuid4()), str(uuid4()), completed(), [artifact], [request.params.message])
    await send_json(send, encoder.encode(Response(request.id, Result(task=task))))


async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
    if scope["type"] == "lifespan":
        raise NotImplementedError
    if scope["method"] != "POST":
        await send_json(send, b"{}")
        return
    request = decoder.decode(await read_body(receive))
    text = request.params.message.parts[0].text
    if request.method == "SendStreamingMessage":
        await send_stream(send, request, chunks(text))
    else:
        await send_task(send, request, text)
