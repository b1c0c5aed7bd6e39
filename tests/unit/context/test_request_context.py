"""`ctx.request_context`: transient request data from middleware, never persisted."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from errands import A2AMiddleware, BearerTokenMiddleware, RequestEnvelope, TaskContext
from errands.engines.urls import engine_from_url
from errands.model.base import encode
from errands.testing import connect, http_client, serve
from tests.unit.support import ANYBODY, Agent, Gate, log_of, opening, reaches, run

pytestmark = pytest.mark.anyio

SECRET = "s3cr3t-7f1c2a"


class Headers(A2AMiddleware):
    """Puts the request's `x-secret` header aside for the worker."""

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if "x-secret" in request.headers:
            envelope.context["secret"] = request.headers["x-secret"]


class Remembering:
    """A handler that notes the request context of each turn."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    async def __call__(self, ctx: TaskContext) -> None:
        self.seen.append(ctx.request_context)
        await (ctx.complete() if ctx.history else ctx.request_input("more?"))


class Held(Remembering):
    """The same, held at a gate; each turn completes the task."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def __call__(self, ctx: TaskContext) -> None:
        await self.gate()
        self.seen.append(ctx.request_context)
        await ctx.complete()


def message(text: str, **fields: Any) -> dict[str, Any]:
    return {"message": {"messageId": text, "role": "ROLE_USER", "parts": [{"text": text}], **fields}}


async def test_request_context_is_an_empty_dict_when_no_middleware_is_registered() -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.request_context)
        await ctx.complete()

    await run(handle)
    assert seen == [{}]


async def test_request_context_is_what_middleware_put_aside_before_the_dispatch(storage: str) -> None:
    handle = Remembering()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with server, http_client(server) as http:
        await http.post("/message:send", json=message("hi"), headers={"x-secret": SECRET})
    assert handle.seen == [{"secret": SECRET}]


async def test_request_context_is_separate_from_metadata(storage: str) -> None:
    seen: list[dict[str, Any]] = []

    async def handle(ctx: TaskContext) -> None:
        seen.extend([ctx.request_context, ctx.metadata])
        await ctx.complete()

    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with server, http_client(server) as http:
        body = message("hi", metadata={"kept": True})
        await http.post("/message:send", json=body, headers={"x-secret": SECRET})
    assert seen == [{"secret": SECRET}, {"kept": True}]


async def test_request_context_of_each_turn_is_that_of_its_own_request(storage: str) -> None:
    handle = Remembering()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json=message("one"), headers={"x-secret": "first"})
        follow_up = message("two", taskId=answer.json()["task"]["id"])
        await http.post("/message:send", json=follow_up, headers={"x-secret": "second"})
    assert handle.seen == [{"secret": "first"}, {"secret": "second"}]


async def test_request_context_of_an_earlier_turn_is_not_handed_to_a_later_one(storage: str) -> None:
    handle = Remembering()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json=message("one"), headers={"x-secret": SECRET})
        await http.post("/message:send", json=message("two", taskId=answer.json()["task"]["id"]))
    assert handle.seen == [{"secret": SECRET}, {}]


async def test_request_context_reaches_the_worker_when_the_task_had_to_wait_for_one(storage: str) -> None:
    handle = Held()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()], max_concurrent_tasks=1)
    async with connect(server) as client, http_client(server) as http:
        await client.send("in front", blocking=False)
        await handle.gate.reached.wait()
        body = {**message("behind"), "configuration": {"returnImmediately": True}}
        waiting = (await http.post("/message:send", json=body, headers={"x-secret": SECRET})).json()["task"]
        assert waiting["status"]["state"] == "TASK_STATE_SUBMITTED"
        handle.gate.open()
        await reaches(client, waiting["id"], "completed")
    assert handle.seen == [{}, {"secret": SECRET}]


async def test_request_context_reaches_the_turn_of_a_message_that_waited_for_a_running_task(storage: str) -> None:
    handle = Held()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with connect(server) as client, http_client(server) as http:
        task_id = (await client.send("one", blocking=False)).task_id
        for text, secret in (("two", "second"), ("three", "third")):
            body = {**message(text, taskId=task_id), "configuration": {"returnImmediately": True}}
            await http.post("/message:send", json=body, headers={"x-secret": secret})
        handle.gate.open()
        await reaches(client, task_id, "completed")
    assert handle.seen == [{}, {"secret": "second"}, {"secret": "third"}]


async def test_request_context_of_a_waiting_message_survives_that_it_is_sent_again(storage: str) -> None:
    handle = Held()
    server = serve(Agent(handle), storage=storage, middlewares=[Headers()])
    async with connect(server) as client, http_client(server) as http:
        task_id = (await client.send("one", blocking=False)).task_id
        body = {**message("two", taskId=task_id), "configuration": {"returnImmediately": True}}
        for _ in range(2):
            await http.post("/message:send", json=body, headers={"x-secret": SECRET})
        handle.gate.open()
        await reaches(client, task_id, "completed")
    assert handle.seen == [{}, {"secret": SECRET}]


async def test_request_context_is_not_persisted(storage: str) -> None:
    server = serve(Agent(Remembering()), storage=storage, middlewares=[Headers()])
    async with server, http_client(server) as http:
        answer = await http.post("/message:send", json=message("findable"), headers={"x-secret": SECRET})
        task_id = answer.json()["task"]["id"]
        stored = await server.engine.load(task_id, ANYBODY)
        kept = encode(stored) + b"".join(event.data for event in await log_of(server.engine, task_id))
    assert b"findable" in kept
    assert SECRET.encode() not in kept


@pytest.mark.parametrize("waits", [False, True], ids=["taken up at once", "queued"])
async def test_secrets_in_the_request_context_never_reach_the_disk_or_the_log(
    waits: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    gate = Gate()

    async def verify(token: str) -> dict[str, Any] | None:
        return {"scope": "all"} if token == SECRET else None

    async def handle(ctx: TaskContext) -> None:
        assert ctx.request_context["auth_token"] == SECRET
        await gate()
        await ctx.emit_text_artifact("kept")
        raise RuntimeError("the handler broke while it held a secret")

    server = serve(
        Agent(handle),
        storage=f"sqlite:///{tmp_path / 'tasks.db'}",
        middlewares=[BearerTokenMiddleware(verify)],
        max_concurrent_tasks=1,
    )
    async with server, http_client(server, headers={"authorization": f"Bearer {SECRET}"}) as http:
        if waits:
            body = {**message("in front"), "configuration": {"returnImmediately": True}}
            await http.post("/message:send", json=body)
            await gate.reached.wait()
            body = {**message("findable"), "configuration": {"returnImmediately": True}}
            await http.post("/message:send", json=body)
            gate.open()
        else:
            gate.open()
            await http.post("/message:send", json=message("findable"))
        while_open = bytes_under(tmp_path)
    closed = bytes_under(tmp_path)
    assert b"findable" in while_open
    assert b"findable" in closed
    assert SECRET.encode() not in while_open
    assert SECRET.encode() not in closed
    assert "the handler broke" in caplog.text
    assert SECRET not in caplog.text


def bytes_under(folder: Path) -> bytes:
    """Every file of the database, the write-ahead log included."""
    return b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())


class Token:
    """Something whose end can be watched."""


class Tokens(A2AMiddleware):
    """Puts a token of its own into each message's request context, and knows which are still there."""

    def __init__(self) -> None:
        self._tokens: list[weakref.ref[Token]] = []

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if envelope.params is not None:
            token = Token()
            self._tokens.append(weakref.ref(token))
            envelope.context["token"] = token

    @property
    def alive(self) -> int:
        gc.collect()
        return sum(token() is not None for token in self._tokens)


async def test_request_context_is_forgotten_when_the_task_is_canceled_before_a_worker_picks_it_up(
    storage: str,
) -> None:
    tokens, gate = Tokens(), Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.complete()

    server = serve(Agent(handle), storage=storage, middlewares=[tokens], max_concurrent_tasks=1)
    async with connect(server) as client:
        in_front = await client.send("in front", blocking=False)
        await gate.reached.wait()
        behind = await client.send("behind", blocking=False)
        assert tokens.alive == 2
        await client.cancel(behind.task_id)
        assert tokens.alive == 1
        gate.open()
        await reaches(client, in_front.task_id, "completed")


async def test_request_context_of_a_waiting_message_is_forgotten_when_its_task_ends_before_its_turn(
    storage: str,
) -> None:
    tokens, gate = Tokens(), Gate()

    async def handle(ctx: TaskContext) -> None:
        await gate()
        await ctx.fail("no more")

    server = serve(Agent(handle), storage=storage, middlewares=[tokens])
    async with connect(server) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await client.send("two", task_id=task_id, blocking=False)
        assert tokens.alive == 2
        gate.open()
        await reaches(client, task_id, "failed")
        await server.pool.drain()
        assert tokens.alive == 0


async def test_request_context_of_a_message_that_is_refused_is_not_kept(storage: str) -> None:
    tokens = Tokens()
    server = serve(Agent(lambda ctx: ctx.complete()), storage=storage, middlewares=[tokens])
    async with connect(server) as client, http_client(server) as http:
        ended = await client.send("one")
        refused = await http.post("/message:send", json=message("two", taskId=ended.task_id))
        assert refused.status_code == 400
        await client.send("three")  # an engine may hold on to what it refused until it writes again
        await server.pool.drain()
        assert tokens.alive == 0


async def test_request_context_is_empty_when_another_process_takes_the_task_over(storage: str) -> None:
    seen: list[Any] = []

    async def handle(ctx: TaskContext) -> None:
        seen.append(ctx.request_context)
        await ctx.complete()

    engine = engine_from_url(storage)
    async with engine:
        await engine.commit(opening())
    async with connect(Agent(handle), storage=engine) as client:
        await reaches(client, "t1", "completed")
    assert seen == [{}]
