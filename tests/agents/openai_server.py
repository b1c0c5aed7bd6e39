"""A server of OpenAI's chat completions on a real socket: what it answers is scripted, and what it is asked is kept.

In a test, in the loop of the test:

    async with OpenAIServer([Reply(status=503), Reply(text="Hello.")]) as server:
        ...  # ask at server.url
        assert server.requests[1].body["stream"]

As a process, with the rules of a scripted model (docs/models.md); a request for the model NAME gets the rules of the
agent NAME, and any other model those of the agent "*", or of the agent that has exactly the functions that are offered:

    python tests/agents/openai_server.py --port 8080 --script scripted.json

`POST /replies` with a list of replies says what it does next, and `GET /requests` tells what it was asked.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

import msgspec

from errands.agents.models.base import (
    Answer,
    FunctionCall,
    FunctionSaid,
    ModelError,
    ModelSaid,
    Question,
    Said,
    UserSaid,
)
from errands.agents.models.scripted import ScriptedModel, ScriptRule

#: What a provider with another protocol asks for; it can only be answered with `Reply.raw`.
MESSAGES = "/v1/messages"
PATHS = ("/v1/chat/completions", MESSAGES)


class Call(msgspec.Struct, kw_only=True):
    """A function call as it is written on the wire."""

    name: str
    #: The text as it is, so that it may be anything.
    arguments: str = "{}"
    id: str | None = None
    extra_content: dict[str, Any] | None = None


class Reply(msgspec.Struct, kw_only=True):
    """What the server does with one request."""

    text: str = ""
    calls: list[Call] = []
    #: Another status than 200 makes it an error with `error` in its body.
    status: int = 200
    error: dict[str, Any] = {}
    headers: dict[str, str] = {}
    #: Tokens of the prompt and of the completion. None: the server does not count.
    usage: tuple[int, int] | None = (11, 7)
    model: str | None = None
    #: Waits for `OpenAIServer.released` before this piece; 0 is before anything is sent.
    hold_before: int | None = None
    #: Cuts the connection before this piece; 0 is before anything is sent.
    cut_before: int | None = None
    #: Ends the answer properly but early: nobody says that this was all.
    finish_reason: str | None = "stop"
    #: What has no end: `text`, the `arguments` of a call, or `calls`.
    endless: str = ""
    #: Sent as the body in place of everything else.
    raw: str | None = None


class Request(msgspec.Struct):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class Cut(Exception):
    """The connection is to be cut."""


class OpenAIServer:
    """Answers with the given replies, one for each request, and then by the script."""

    def __init__(self, replies: Iterable[Reply] = (), *, script: ScriptedModel | None = None, port: int = 0) -> None:
        self.replies = list(replies)
        self.requests: list[Request] = []
        #: Set when what was held may go on.
        self.released = asyncio.Event()
        #: Set when a reply is being held.
        self.holding = asyncio.Event()
        self.port = port
        self._script = script
        self._numbers = itertools.count(1)
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}/v1"

    async def __aenter__(self) -> OpenAIServer:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)
        await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.current_task()
        assert connection is not None
        self._connections.add(connection)
        try:
            with suppress(Cut, ConnectionError, asyncio.IncompleteReadError):
                await self._exchange(reader, writer)
        finally:
            self._connections.discard(connection)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, headers, body = await _read(reader)
        if (method, path) == ("GET", "/requests"):
            return await _write(writer, 200, msgspec.json.encode(self.requests))
        if (method, path) == ("POST", "/replies"):
            self.replies += msgspec.json.decode(body, type=list[Reply])
            return await _write(writer, 200, b"{}")
        if method != "POST" or path not in PATHS:
            return await _write(writer, 404, _error_body({"message": f"there is no {method} {path}"}))
        request = Request(path, headers, msgspec.json.decode(body))
        self.requests.append(request)
        return await self._answer(request, writer)

    async def _answer(self, request: Request, writer: asyncio.StreamWriter) -> None:
        reply = self.replies.pop(0) if self.replies else self._scripted(request)
        await self._reach(reply, 0)
        if reply.status != 200:
            # The packages of providers wait this long before they try again.
            headers = {"Retry-After-Ms": "1", **reply.headers}
            return await _write(writer, reply.status, _error_body(reply.error), headers)
        number = next(self._numbers)
        if reply.raw is not None:
            return await _write(writer, 200, reply.raw.encode(), reply.headers)
        if not request.body.get("stream"):
            body = msgspec.json.encode(_completion(reply, request, number))
            return await _write(writer, 200, body, reply.headers)
        return await self._stream(reply, _events(reply, request, number), writer)

    async def _stream(self, reply: Reply, events: Iterator[bytes], writer: asyncio.StreamWriter) -> None:
        fields = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        writer.write(_head(200, {**fields, **reply.headers}))
        for index, data in enumerate(events):
            if index:
                await self._reach(reply, index)
            writer.write(_chunk(b"data: " + data + b"\n\n"))
            await writer.drain()
        writer.write(_chunk(b""))
        await writer.drain()

    async def _reach(self, reply: Reply, index: int) -> None:
        """What is to happen before a piece happens."""
        if reply.hold_before == index:
            self.holding.set()
            await self.released.wait()
        if reply.cut_before == index:
            raise Cut

    def _scripted(self, request: Request) -> Reply:
        agent = self._agent(request.body)
        if self._script is None or agent is None:
            model = request.body.get("model")
            return Reply(status=404, error={"message": f"there is no model {model}", "code": "model_not_found"})
        try:
            answer = self._script.answer(_question(request.body, agent))
        except ModelError as error:
            return Reply(status=400, error={"message": str(error)})
        return _reply(answer)

    def _agent(self, body: dict[str, Any]) -> str | None:
        """Whose rules answer: those of the model's name, or else of the agent whose functions are offered."""
        agents = {} if self._script is None else self._script.agents
        model = str(body.get("model"))
        if self._script is not None and self._script.rules(model):
            return model
        offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
        return next((name for name, rules in agents.items() if _called(rules) == offered), None)


def _called(rules: list[tuple[ScriptRule, str]]) -> set[str]:
    return {call.function for rule, _ in rules for call in rule.call}


# HTTP


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    line, *fields = head.strip().split("\r\n")
    method, path, _ = line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
    return method, path, headers, await reader.readexactly(int(headers.get("content-length", 0)))


async def _write(writer: asyncio.StreamWriter, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    writer.write(_head(status, fields) + body)
    await writer.drain()


def _head(status: int, headers: dict[str, str]) -> bytes:
    fields = {"Connection": "close", **headers}
    lines = [f"HTTP/1.1 {status} -", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1")


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def _error_body(error: dict[str, Any]) -> bytes:
    return msgspec.json.encode({"error": {"message": "this is an error of the test", "type": "test", **error}})


# What is sent


def _usage(reply: Reply) -> dict[str, int] | None:
    if reply.usage is None:
        return None
    prompt, completion = reply.usage
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def _finish_reason(reply: Reply) -> str | None:
    return "tool_calls" if reply.calls and reply.finish_reason == "stop" else reply.finish_reason


def _completion(reply: Reply, request: Request, number: int) -> dict[str, Any]:
    calls = [_call(call, call.arguments) for call in reply.calls]
    message = {"role": "assistant", "content": reply.text or None, **({"tool_calls": calls} if calls else {})}
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": reply.model or request.body["model"],
        "choices": [{"index": 0, "message": message, "finish_reason": _finish_reason(reply)}],
        "usage": _usage(reply),
    }


def _call(call: Call, arguments: str) -> dict[str, Any]:
    extra = {"extra_content": call.extra_content} if call.extra_content else {}
    return {"id": call.id or "", "type": "function", "function": {"name": call.name, "arguments": arguments}, **extra}


def _events(reply: Reply, request: Request, number: int) -> Iterator[bytes]:
    """The pieces of a stream: the text word by word, then the calls with their arguments in pieces and mixed."""
    common = {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion.chunk",
        "created": 1_800_000_000,
        "model": reply.model or request.body["model"],
    }
    for delta in _deltas(reply):
        yield msgspec.json.encode({**common, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    if reply.finish_reason is not None:
        last = {"index": 0, "delta": {}, "finish_reason": _finish_reason(reply)}
        yield msgspec.json.encode({**common, "choices": [last]})
    if reply.usage and (request.body.get("stream_options") or {}).get("include_usage"):
        yield msgspec.json.encode({**common, "choices": [], "usage": _usage(reply)})
    yield b"[DONE]"


def _deltas(reply: Reply) -> Iterator[dict[str, Any]]:
    if reply.endless:
        yield from _endless_deltas(reply.endless)
    words = reply.text.split(" ")
    for index, word in enumerate(words if reply.text else []):
        yield {"role": "assistant", "content": word + (" " if index < len(words) - 1 else "")}
    for index, call in enumerate(reply.calls):
        yield {"tool_calls": [{"index": index, **_call(call, "")}]}
    pieces = [[(index, piece) for piece in _pieces(call.arguments)] for index, call in enumerate(reply.calls)]
    for round_ in itertools.zip_longest(*pieces):
        for index, piece in filter(None, round_):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _endless_deltas(what: str) -> Iterator[dict[str, Any]]:
    for index in itertools.count():
        if what == "text":
            yield {"content": "and on " * 1000}
        elif what == "calls":
            yield {"tool_calls": [{"index": index, **_call(Call(name="f", id=f"c{index}"), "{}")}]}
        else:
            piece = "x" * 5000 if index else '{"text": "'
            yield {"tool_calls": [{"index": 0, **_call(Call(name="f", id="c"), piece)}]}


def _pieces(text: str, size: int = 5) -> list[str]:
    return [text[start : start + size] for start in range(0, len(text), size)]


# Scripts


def _question(body: dict[str, Any], agent: str) -> Question:
    """What was asked, in the words of our own port."""
    names: dict[str, str] = {}
    said: list[Said] = []
    for message in body["messages"]:
        if message["role"] == "user":
            content = message["content"]
            parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
            said.append(UserSaid([{"mimeType": "text/plain", "text": part.get("text", "")} for part in parts]))
        elif message["role"] == "assistant":
            calls = message.get("tool_calls") or []
            names |= {call["id"]: call["function"]["name"] for call in calls}
            said.append(ModelSaid(message.get("content") or "", tuple(map(_function_call, calls))))
        elif message["role"] == "tool":
            call_id = message["tool_call_id"]
            said.append(FunctionSaid(call_id, names.get(call_id, ""), _plain(message["content"])))
    return Question(model=str(body["model"]), agent=agent, system="", said=tuple(said))


def _function_call(call: dict[str, Any]) -> FunctionCall:
    return FunctionCall(id=call["id"], name=call["function"]["name"], arguments=_plain(call["function"]["arguments"]))


def _plain(content: str) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content


def _reply(answer: Answer) -> Reply:
    return Reply(
        text=answer.text,
        calls=[
            Call(
                id=call.id,
                name=call.name,
                arguments=call.raw if call.arguments is None else msgspec.json.encode(call.arguments).decode(),
            )
            for call in answer.calls
        ],
        usage=(answer.prompt_tokens, answer.completion_tokens),
    )


async def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--script", help="the script of a scripted model")
    options = parser.parse_args()
    script = ScriptedModel(options.script) if options.script else None
    async with OpenAIServer(script=script, port=options.port) as server:
        print(f"serving {server.url}", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(main())
