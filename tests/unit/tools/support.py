"""A real service behind a socket, an agent with one tool, and a short way to call it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import yaml
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from errands.agents.delegation import Delegation, RemoteDelegate
from errands.agents.manifests import Function, Manifests, load
from errands.agents.mounts import Files, MountError
from errands.agents.tools.base import Bounds, Invocation
from errands.agents.tools.toolbox import Toolbox, ToolTurn
from errands.model.log import Scope
from errands.outbound import Outbound
from errands.policy.cel import Call, Session

Json = dict[str, Any]

NOW = "2026-05-20T03:45:00Z"
RUNTIME = {"version": "1.2", "dashboard_url": "https://dash.example.com", "api_root": "https://api.example.com"}
CONTEXT: Json = {"user": {"id": "ann", "email": "ann@example.com"}, "agent": {"name": "support"}, "input": []}


class Seen(msgspec.Struct):
    """A request as the service got it."""

    method: str
    #: The path and query as they came over the wire.
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name.lower()), None)

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


class Service:
    """Answers every request with what it was told to, and remembers them."""

    def __init__(self) -> None:
        self.url = ""
        self.seen: list[Seen] = []
        self.answer: Callable[[Request], Response] = lambda request: JSONResponse({"ok": True})
        self.app = Starlette(routes=[Route("/{path:path}", self._endpoint, methods=list(_METHODS))])

    @property
    def only(self) -> Seen:
        [seen] = self.seen
        return seen

    def answers(self, content: Any, status: int = 200, **headers: str) -> None:
        self.answer = lambda request: JSONResponse(content, status, headers)

    def sends(self, content: bytes, kind: str, status: int = 200, **headers: str) -> None:
        self.answer = lambda request: Response(content, status, {**headers, "Content-Type": kind})

    async def _endpoint(self, request: Request) -> Response:
        query = request.scope["query_string"].decode()
        self.seen.append(
            Seen(
                request.method,
                request.scope["raw_path"].decode() + (f"?{query}" if query else ""),
                [(key.decode("latin-1"), value.decode("latin-1")) for key, value in request.headers.raw],
                await request.body(),
            )
        )
        return self.answer(request)


_METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")


class MemoryFiles(Files):
    backend = "local"

    def __init__(self) -> None:
        super().__init__("files", ("shop", "support", "T-1"), max_bytes=1_000_000)
        self.held: dict[str, str] = {}

    def _get(self, path: str) -> bytes:
        if path not in self.held:
            raise MountError(f"there is no file {path}")
        return self.held[path].encode()

    def _put(self, path: str, content: bytes) -> None:
        self.held[path] = content.decode()

    def _size(self, path: str) -> int:
        return len(self._get(path))

    def _problem(self, error: Exception, path: str, *, is_read: bool) -> str:
        raise error


def tool(name: str = "crm", **fields: Any) -> Json:
    return {
        "kind": "commonagents.info/v1beta2/tool",
        "namespace": "shop",
        "name": name,
        "description": f"What {name} does.",
        **fields,
    }


def action(name: str, backend: str, configuration: Json, **parameters: Any) -> Json:
    return {
        "name": name,
        "description": f"Does {name}.",
        "parameters": {"properties": parameters},
        "execute": {backend: configuration},
    }


def manifests(folder: Path, *tools: Json, **agent: Any) -> Manifests:
    """An agent with these tools."""
    document = {
        "kind": "commonagents.info/v1beta2/agent",
        "namespace": "shop",
        "name": "support",
        "description": "Helps.",
        "prompt": "Help.",
        "capabilities": {one["name"]: "*" for one in tools},
        **agent,
    }
    file = folder / "agents.yaml"
    file.write_text(yaml.safe_dump_all([document, *tools], sort_keys=False))
    return load(file)


def toolbox(
    found: Manifests,
    *,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    outbound: Outbound | None = None,
    auth: Mapping[str, str] | None = None,
    bounds: Bounds | None = None,
) -> Toolbox:
    return Toolbox(
        found,
        found.agents[0],
        settings=settings or {},
        outbound=outbound or Outbound(["127.0.0.1"]),
        runtime=RUNTIME,
        auth=auth or {},
        bounds=bounds,
    )


async def refuse(call: Call) -> Any:
    raise AssertionError(f"nobody performs {call}")


def invocation(arguments: Json | None = None, **fields: Any) -> Invocation:
    values: Json = {
        "call": "call-1",
        "action": None,
        "arguments": arguments or {},
        "context": CONTEXT,
        "session": Session(NOW),
        "perform": refuse,
        **fields,
    }
    return Invocation(**values)


class Caller:
    """Calls functions of a toolbox by name, in one turn."""

    def __init__(self, turn: ToolTurn, functions: list[Function]) -> None:
        self.turn = turn
        self.functions = {function.name: function for function in functions}

    async def call(self, name: str, arguments: Json | None = None, **fields: Any) -> Any:
        return await self.turn.invoke(self.functions[name], invocation(arguments, **fields))


@asynccontextmanager
async def calling(box: Toolbox, files: Files | None = None) -> AsyncIterator[Caller]:
    functions = await box.functions()
    async with box.turn(task_id="T-1", files=files) as turn:
        yield Caller(turn, functions)


async def ask_remote_agent(url: str) -> None:
    """Asks an agent there that must not answer with more than 100,000 bytes."""

    async def began(task_id: str) -> None:
        raise AssertionError("there is no task")

    delegate = RemoteDelegate("writer", url, http=lambda: Outbound(["127.0.0.1"]).client(max_bytes=100_000))
    await delegate.run(
        Delegation(call="c", message="Write.", parent="p", scope=Scope("", "", "a"), depth=1, began=began)
    )
