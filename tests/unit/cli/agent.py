"""An agent that does what it is told, so that a command's every way to end can be asked for."""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import Awaitable, Callable

from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    AuthenticationRequiredError,
    CapabilitiesConfig,
    RequestEnvelope,
    TaskContext,
    Worker,
)

#: What text of an agent must not do to a terminal.
HOSTILE = "\x1b[2Jhostile\x07 [red]markup[/red]"

Act = Callable[[TaskContext, str], Awaitable[None]]


class Gate:
    """Where the agent's "hold" stops until the test, in another thread, lets it go on."""

    def __init__(self) -> None:
        self._opened = threading.Event()

    def open(self) -> None:
        self._opened.set()

    def shut(self) -> None:
        self._opened.clear()

    async def wait(self) -> None:
        await asyncio.to_thread(self._opened.wait, 20)


class Obliging(Worker):
    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.history:
            await ctx.complete(f"{ctx.history[0].text}, then {ctx.user_text}, with {ctx.request_context}")
            return
        wish, _, rest = ctx.user_text.partition(" ")
        act: Act = getattr(self, f"_{wish}", self._echo)
        await act(ctx, rest)

    async def _echo(self, ctx: TaskContext, rest: str) -> None:
        await ctx.complete(f"You said: {ctx.user_text}")

    async def _stream(self, ctx: TaskContext, rest: str) -> None:
        await ctx.send_status("Thinking")
        for index, word in enumerate(rest.split()):
            await ctx.emit_text_artifact(f"{word} ", append=index > 0)
        await ctx.emit_artifact(artifact_id="chart", data={"points": 2}, last_chunk=True)
        await ctx.emit_text_artifact("the end", artifact_id="epilogue")
        await ctx.complete()

    async def _hold(self, ctx: TaskContext, rest: str) -> None:
        await ctx.emit_text_artifact("before")
        await self._gate.wait()
        await ctx.emit_text_artifact(" after", append=True)
        await ctx.complete()

    async def _wait(self, ctx: TaskContext, rest: str) -> None:
        while not ctx.is_cancelled:
            await asyncio.sleep(0.01)
        await ctx.fail("stopped")

    async def _ask(self, ctx: TaskContext, rest: str) -> None:
        schema = {"for an object": dict[str, int], "with schema": str}.get(rest)
        await ctx.request_input("Which colour?", schema=schema)

    async def _auth(self, ctx: TaskContext, rest: str) -> None:
        await ctx.request_auth("A token, please.", schemes=["Bearer"], auth_url="https://auth.test/new")

    async def _fail(self, ctx: TaskContext, rest: str) -> None:
        await ctx.fail("It broke.")

    async def _reject(self, ctx: TaskContext, rest: str) -> None:
        await ctx.reject("Not my work.")

    async def _respond(self, ctx: TaskContext, rest: str) -> None:
        await ctx.respond("Noted.")

    async def _direct(self, ctx: TaskContext, rest: str) -> None:
        await ctx.reply_directly("Just a message.")

    async def _hostile(self, ctx: TaskContext, rest: str) -> None:
        await ctx.complete(HOSTILE)

    async def _parts(self, ctx: TaskContext, rest: str) -> None:
        files = [[file.filename, file.media_type, _digest(file.content)] for file in ctx.files]
        await ctx.complete_json({"files": files, "data": ctx.json_values})

    async def _context(self, ctx: TaskContext, rest: str) -> None:
        await ctx.complete_json({"context": ctx.context_id, "headers": ctx.request_context})

    async def _accepts(self, ctx: TaskContext, rest: str) -> None:
        await ctx.complete(f"{rest}: {ctx.accepts(rest)}")


class Doorman(A2AMiddleware):
    """Keeps two headers for the worker, and refuses one token."""

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if request.headers.get("authorization") == "Bearer wrong":
            raise AuthenticationRequiredError
        for name in ("authorization", "x-extra"):
            if name in request.headers:
                envelope.context[name] = request.headers[name]


def obliging_server(gate: Gate, *, streaming: bool) -> A2AServer:
    card = AgentCardConfig(
        name="Obliging agent",
        description="Does what it is told.",
        capabilities=CapabilitiesConfig(streaming=streaming),
        input_modes=["*/*"],
    )
    return A2AServer(worker=Obliging(gate), agent_card=card, storage="memory", middlewares=[Doorman()])


def _digest(content: bytes | None) -> str:
    return hashlib.sha256(content or b"").hexdigest()
