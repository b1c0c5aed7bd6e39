"""PraisonAI's dialect at `POST /a2a`: what its clients send and what they must get."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    BearerTokenMiddleware,
    CapabilitiesConfig,
    RequestEnvelope,
    Settings,
    TaskContext,
    TaskNotCancelableError,
    TaskNotFoundError,
    TaskState,
    Worker,
)
from errands.model.core import Task, TaskStatus
from errands.testing import http_client, serve
from errands.wire.praisonai.names import METHODS, STATES
from errands.wire.praisonai.requests import MOST_LISTED
from errands.wire.praisonai.writing import write_tasks
from errands.wire.sse import ServerSentEvent, SSEParser
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, Replies, card

pytestmark = pytest.mark.anyio


class PraisonClient:
    """What a client of PraisonAI does, with as little as possible around it."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def call(self, method: str, params: Any = None, **headers: str) -> dict[str, Any]:
        body = {"jsonrpc": "2.0", "method": method, "id": "7", "params": params or {}}
        answer = await self.http.post("/a2a", json=body, headers=headers)
        assert answer.status_code == 200
        document: dict[str, Any] = answer.json()
        assert (document["jsonrpc"], document["id"]) == ("2.0", "7")
        return document

    async def result(self, method: str, params: Any = None, **headers: str) -> Any:
        return (await self.call(method, params, **headers))["result"]

    async def send(self, text: str = "hi", configuration: Any = None, **fields: Any) -> Any:
        message = {"role": "user", "parts": [{"text": text}], **fields}
        return await self.result("message/send", {"message": message, "configuration": configuration})

    async def refused(self, method: str, params: Any = None) -> tuple[int, str]:
        error = (await self.call(method, params))["error"]
        assert set(error) == {"code", "message"}
        return error["code"], error["message"]

    async def stream(self, text: str = "hi", **fields: Any) -> list[ServerSentEvent]:
        message = {"role": "user", "parts": [{"text": text}], **fields}
        body = {"jsonrpc": "2.0", "method": "message/stream", "id": "7", "params": {"message": message}}
        answer = await self.http.post("/a2a", json=body)
        assert answer.headers["content-type"].startswith("text/event-stream")
        return SSEParser().feed(answer.content)


@asynccontextmanager
async def praison(agent: Worker | A2AServer, **options: Any) -> AsyncIterator[PraisonClient]:
    server = agent if isinstance(agent, A2AServer) else serve(agent, **options)
    async with server, http_client(server) as http:
        yield PraisonClient(http)


def texts(message: dict[str, Any]) -> list[str]:
    return [part["text"] for part in message["parts"]]


# Sending


async def test_a_send_answers_with_a_task_in_which_both_sides_have_spoken(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        task = await client.send("Analyze this")
        assert set(task) == {"id", "contextId", "status", "artifacts", "history"}
        assert task["status"]["state"] == "completed"
        assert task["status"]["timestamp"].endswith("+00:00")
        assert task["artifacts"] == [{"artifactId": "final-answer", "parts": [{"text": "Echo: Analyze this"}]}]
        assert [(m["role"], texts(m)) for m in task["history"]] == [
            ("user", ["Analyze this"]),
            ("agent", ["Echo: Analyze this"]),
        ]
        assert await client.result("tasks/get", {"id": task["id"]}) == task


async def test_an_answer_that_is_a_message_is_an_artifact_too() -> None:
    class Responds(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.respond("Done.")

    async with praison(Responds()) as client:
        task = await client.send()
        assert texts(task["artifacts"][0]) == ["Done."]
        assert [m["role"] for m in task["history"]] == ["user", "agent"]


async def test_the_message_of_an_executor_is_a_task_here_too() -> None:
    async with praison(serve(Replies())) as client:
        assert texts((await client.send("hi"))["artifacts"][0]) == ["You said hi"]
        events = await client.stream("hi")
    assert [event.event for event in events] == ["task.artifact", "task.status", "done"]


async def test_a_direct_reply_is_a_task_here() -> None:
    async with praison(Direct()) as client:
        task = await client.send()
        assert task["status"]["state"] == "completed"
        assert texts(task["artifacts"][0]) == ["You said hi"]
        assert texts(task["history"][-1]) == ["You said hi"]
        assert await client.result("tasks/get", {"id": task["id"]}) == task


async def test_the_context_is_always_returned_and_kept() -> None:
    async with praison(Echo()) as client:
        first = await client.send("one", contextId=None)
        second = await client.send("two", contextId=first["contextId"])
        assert second["contextId"] == first["contextId"]
        assert second["id"] != first["id"]


async def test_messages_without_an_id_are_different_messages() -> None:
    async with praison(Echo()) as client:
        first, second = await client.send("same", contextId="c"), await client.send("same", contextId="c")
        assert first["id"] != second["id"]
        assert first["history"][0]["messageId"] != second["history"][0]["messageId"]


async def test_a_message_that_is_sent_again_with_its_id_is_worked_on_once() -> None:
    async with praison(Echo()) as client:
        first, again = await client.send(messageId="m-1"), await client.send(messageId="m-1")
        assert first == again
        assert first["history"][0]["messageId"] == "m-1"


@pytest.mark.parametrize("key", ["returnImmediately", "return_immediately"])
async def test_who_wants_to_go_on_at_once_can(key: str) -> None:
    worker = Gated()
    async with praison(worker) as client:
        task = await client.send(configuration={key: True})
        assert task["status"]["state"] in {"submitted", "working"}
        worker.gate.set()


async def test_a_question_is_answered_by_naming_its_task() -> None:
    async with praison(Asks()) as client:
        asked = await client.send("hello")
        assert asked["status"]["state"] == "input_required"
        assert texts(asked["status"]["message"]) == ["Which language?"]
        answered = await client.send("French", taskId=asked["id"])
        assert (answered["id"], answered["status"]["state"]) == (asked["id"], "completed")
        assert [m["role"] for m in answered["history"]] == ["user", "agent", "user", "agent"]
        code, message = await client.refused("message/send", {"message": say("more", taskId=asked["id"])})
        assert code < 0
        assert "completed" in message or "terminal" in message


async def test_every_state_has_its_spelling() -> None:
    assert set(TaskState) == set(STATES)
    assert set(STATES.values()) == {
        "submitted",
        "working",
        "completed",
        "failed",
        "cancelled",
        "input_required",
        "auth_required",
    }


@pytest.mark.parametrize(("ending", "state"), [("fail", "failed"), ("reject", "failed"), ("auth", "auth_required")])
async def test_a_task_that_does_not_complete_says_how_it_ended_and_why(ending: str, state: str) -> None:
    class Ends(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            if ending == "fail":
                await ctx.fail("No key.")
            elif ending == "reject":
                await ctx.reject("No key.")
            else:
                await ctx.request_auth("No key.")

    async with praison(Ends()) as client:
        status = (await client.send())["status"]
        assert status["state"] == state
        assert "No key." in texts(status["message"])[0]


# What is taken


def say(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"role": "user", "parts": [{"text": text}], **fields}


IMAGE = base64.b64encode(b"\x89PNG").decode()


@pytest.mark.parametrize(
    ("sent", "shown"),
    [
        ({"text": "a"}, [{"text": "a"}]),
        ({"kind": "text", "text": "a"}, [{"text": "a"}]),
        ({"type": "text", "text": "a", "metadata": {"k": 1}}, [{"text": "a"}]),
        ({"url": "https://x.test/a"}, [{"fileWithUri": "https://x.test/a"}]),
        (
            {"fileWithUri": "https://x.test/a", "media_type": "image/png", "filename": "a.png"},
            [{"fileWithUri": "https://x.test/a", "mediaType": "image/png", "name": "a.png"}],
        ),
        (
            {"kind": "file", "file": {"uri": "https://x.test/a", "mimeType": "image/png", "name": "a.png"}},
            [{"fileWithUri": "https://x.test/a", "mediaType": "image/png", "name": "a.png"}],
        ),
        (
            {"kind": "file", "file": {"bytes": IMAGE, "mimeType": "image/png"}},
            [{"fileWithBytes": IMAGE, "mediaType": "image/png"}],
        ),
        ({"raw": IMAGE, "mediaType": "image/png"}, [{"fileWithBytes": IMAGE, "mediaType": "image/png"}]),
        ({"fileWithBytes": IMAGE}, [{"fileWithBytes": IMAGE}]),
        ({"data": {"n": 2**53 + 1}}, [{"data": {"n": 2**53 + 1}}]),
        ({"text": "a", "data": {"b": 1}}, [{"text": "a"}, {"data": {"b": 1}}]),
    ],
)
async def test_a_part_is_what_its_keys_say_and_nothing_of_it_is_dropped(
    sent: dict[str, Any], shown: list[dict[str, Any]]
) -> None:
    async with praison(Parrot(), agent_card=card(input_modes=["*/*"])) as client:
        task = await client.result("message/send", {"message": {"role": "user", "parts": [sent]}})
        assert [without(part, "metadata") for part in task["history"][0]["parts"]] == shown
        assert task["history"][0]["parts"][0].get("metadata") == sent.get("metadata")
        given = [without(part, "metadata") for artifact in task["artifacts"] for part in artifact["parts"]]
        assert given == shown


def without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}


async def test_what_comes_with_a_message_reaches_the_worker() -> None:
    seen: list[Any] = []

    class Looks(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            seen.extend([ctx.metadata, ctx.accepts("image/png")])
            await ctx.complete("ok")

    async with praison(Looks()) as client:
        message = say(metadata={"a": 1}, extensions={"https://e.test": "1"}, referenceTaskIds=["t-0"])
        configuration = {"acceptContentTypes": ["text/plain"]}
        params = {"message": message, "configuration": configuration, "metadata": {"b": 2}}
        task = await client.result("message/send", params)
        assert task["history"][0]["metadata"] == {"a": 1}
        assert task["history"][0]["extensions"] == {"https://e.test": ""}
        assert task["history"][0]["referenceTaskIds"] == ["t-0"]
        assert seen == [{"a": 1}, False]


@pytest.mark.parametrize("fields", [{"role": None}, {"role": "ROLE_USER"}])
async def test_the_role_may_be_left_out_or_spelled_as_in_1_0(fields: dict[str, Any]) -> None:
    message = {key: value for key, value in {**say(), **fields}.items() if value is not None}
    async with praison(Echo()) as client:
        assert (await client.result("message/send", {"message": message}))["history"][0]["role"] == "user"


@pytest.mark.parametrize("path", ["/a2a", "/a2a/"])
async def test_the_path_may_end_with_a_slash(path: str) -> None:
    async with praison(Echo()) as client:
        body = {"jsonrpc": "2.0", "method": "message/send", "id": 1, "params": {"message": say()}}
        assert (await client.http.post(path, json=body)).json()["result"]["status"]["state"] == "completed"
        assert (await client.http.get(path)).status_code == 405


# Tasks


async def test_tasks_are_listed_as_a_bare_array(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        first = await client.send("one", contextId="c-1")
        second = await client.send("two", contextId="c-1")
        other = await client.send("three", contextId="c-2")
        assert {task["id"] for task in await client.result("tasks/list")} == {first["id"], second["id"], other["id"]}
        for key in ("contextId", "context_id"):
            listed = {task["id"]: task for task in await client.result("tasks/list", {key: "c-1"})}
            assert listed == {first["id"]: first, second["id"]: second}
        assert await client.result("tasks/list", {"contextId": "nobody"}) == []
        assert len(await client.result("tasks/list", {"contextId": None})) == 3


async def test_a_listing_begins_with_the_oldest_task() -> None:
    newest, oldest = (Task(id=name, status=TaskStatus(state=TaskState.WORKING)) for name in ("newest", "oldest"))
    assert [task["id"] for task in json.loads(write_tasks([newest, oldest]))] == ["oldest", "newest"]


async def test_a_listing_holds_more_than_a_page(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        for number in range(120):
            await client.send(str(number), contextId="c")
        assert MOST_LISTED > 120
        assert len(await client.result("tasks/list", {"contextId": "c"})) == 120


async def test_a_cancel_stops_the_work_and_the_task_stays_cancelled(storage: str) -> None:
    stopped = asyncio.Event()

    class Stubborn(Worker):
        def __init__(self) -> None:
            self.started = asyncio.Event()

        async def handle(self, ctx: TaskContext) -> None:
            self.started.set()
            try:
                await asyncio.Event().wait()
            finally:
                stopped.set()
                await ctx.complete("too late")

    worker = Stubborn()
    async with praison(worker, storage=storage, cancel_force_timeout_s=0.01) as client:
        task = await client.send(configuration={"returnImmediately": True})
        await worker.started.wait()
        cancelled = await client.result("tasks/cancel", {"id": task["id"]})
        assert (cancelled["id"], cancelled["status"]["state"]) == (task["id"], "cancelled")
        await stopped.wait()
        assert (await client.result("tasks/get", {"id": task["id"]}))["status"]["state"] == "cancelled"
        assert await client.result("tasks/cancel", {"id": task["id"]}) == cancelled


async def test_cancelling_a_finished_task_answers_with_it_and_changes_nothing() -> None:
    async with praison(Echo()) as client:
        task = await client.send()
        assert await client.result("tasks/cancel", {"id": task["id"]}) == task
        assert await client.result("tasks/get", {"id": task["id"]}) == task


# Streams


async def test_a_stream_has_named_events_without_envelope_and_ends_with_done(storage: str) -> None:
    async with praison(Echo(), storage=storage) as client:
        events = await client.stream("hi")
        assert [event.event for event in events] == ["task.status"] * 2 + ["task.artifact", "task.status", "done"]
        assert {event.id for event in events} == {None}
        bodies = [json.loads(event.data) for event in events]
        assert [body["status"]["state"] for body in bodies if "status" in body] == ["submitted", "working", "completed"]
        assert [body["final"] for body in bodies if "status" in body] == [False, False, True]
        task_id, context_id = bodies[0]["taskId"], bodies[0]["contextId"]
        assert all((body["taskId"], body["contextId"]) == (task_id, context_id) for body in bodies[:-1])
        assert bodies[2]["artifact"]["parts"] == [{"text": "Echo: hi"}]
        assert (bodies[2]["append"], bodies[2]["lastChunk"]) == (False, True)
        assert bodies[-1] == {}
        stored = await client.result("tasks/get", {"id": task_id})
        assert stored["status"] == bodies[-2]["status"]
        assert stored["artifacts"] == [bodies[2]["artifact"]]


async def test_a_streamed_message_is_an_artifact_too() -> None:
    async with praison(Direct()) as client:
        bodies = [json.loads(event.data) for event in await client.stream()]
        (artifact,) = [body["artifact"] for body in bodies if "artifact" in body]
        assert texts(artifact) == ["You said hi"]
        stored = await client.result("tasks/get", {"id": bodies[0]["taskId"]})
        assert stored["artifacts"] == [artifact]


async def test_a_stream_of_a_question_ends_when_it_is_asked() -> None:
    async with praison(Asks()) as client:
        *_, last, done = await client.stream()
        assert json.loads(last.data)["status"]["state"] == "input_required"
        assert json.loads(last.data)["final"] is True
        assert done.event == "done"


async def test_pieces_of_an_artifact_are_streamed_as_they_come() -> None:
    worker = Gated()
    worker.gate.set()
    async with praison(worker) as client:
        pieces = [json.loads(event.data) for event in await client.stream() if event.event == "task.artifact"]
        assert [(texts(p["artifact"]), p["append"], p["lastChunk"]) for p in pieces] == [
            (["first "], False, False),
            (["second"], True, True),
        ]


async def test_a_message_streamed_again_shows_its_task_as_it_is() -> None:
    async with praison(Echo()) as client:
        await client.stream(messageId="m-1", contextId="c")
        events = await client.stream(messageId="m-1", contextId="c")
        assert [event.event for event in events] == ["task.artifact", "task.status", "done"]


async def test_a_stream_that_the_server_ends_early_is_not_done() -> None:
    worker = Patient()
    server = serve(worker, settings=Settings(drain_timeout=0.01))
    async with praison(server) as client:
        streaming = asyncio.create_task(client.stream())
        await worker.started.wait()
        server.engine.disconnect()
        assert "done" not in [event.event for event in await streaming]


async def test_an_agent_that_does_not_stream_says_so() -> None:
    async with praison(Echo(), agent_card=card(capabilities=CapabilitiesConfig())) as client:
        code, message = await client.refused("message/stream", {"message": say()})
        assert (code, "does not stream" in message) == (-32004, True)


# The card


async def test_the_extended_card_is_given_or_the_public_one_in_its_place() -> None:
    async def provider(request: Request) -> AgentCardConfig:
        return card(version="9.9.9")

    async with praison(Echo(), agent_card=card()) as client:
        public = (await client.http.get("/.well-known/agent.json")).json()
        assert await client.result("agent/getExtendedCard") == public
    async with praison(Echo(), agent_card=card(), extended_card_provider=provider) as client:
        extended = await client.result("agent/getExtendedCard")
        assert (extended["version"], extended["protocolVersion"]) == ("9.9.9", "0.3.0")


async def test_the_older_card_has_what_its_client_reads() -> None:
    async with praison(Echo()) as client:
        found = (await client.http.get("/.well-known/agent.json")).json()
        assert {"name", "url", "version", "capabilities"} <= set(found)
        assert None not in found["capabilities"].values()


# Errors


@pytest.mark.parametrize("params", [{}, {"message": None}])
@pytest.mark.parametrize("method", ["message/send", "message/stream"])
async def test_a_message_is_required(method: str, params: dict[str, Any]) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, params) == (-32602, "Invalid params: 'message' required")


@pytest.mark.parametrize("params", [{}, {"id": None}, {"id": ""}])
@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_an_id_is_required(method: str, params: dict[str, Any]) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, params) == (-32602, "Invalid params: 'id' required")


@pytest.mark.parametrize("method", ["tasks/get", "tasks/cancel"])
async def test_an_unknown_task_is_not_found(method: str) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method, {"id": "task-1"}) == (-32000, "Task not found: task-1")
        params = {"message": say(taskId="task-1")}
        assert await client.refused("message/send", params) == (-32000, "Task not found: task-1")


@pytest.mark.parametrize("method", ["SendMessage", "tasks/resubscribe", "agent/getAuthenticatedExtendedCard", "x"])
async def test_an_unknown_method_is_not_found(method: str) -> None:
    async with praison(Echo()) as client:
        assert await client.refused(method) == (-32601, f"Method not found: {method}")


@pytest.mark.parametrize("verb", ["set", "get", "list", "delete"])
async def test_push_notifications_are_not_supported(verb: str) -> None:
    method = f"tasks/pushNotificationConfig/{verb}"
    async with praison(Echo()) as client:
        assert await client.refused(method) == (-32601, f"Push notifications not supported: {method}")
        push = {"message": say(), "configuration": {"pushNotificationConfig": {"url": "https://hook.test"}}}
        assert (await client.refused("message/send", push))[0] == -32601
        assert await client.result("tasks/list") == []


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user"},
        {"role": "user", "parts": []},
        {"role": "user", "parts": [{}]},
        {"role": "user", "parts": [{"kind": "text"}]},
        {"role": "user", "parts": [{"text": "a"}, {"sound": "b"}]},
        {"role": "user", "parts": [{"text": 1}]},
        {"role": "user", "parts": [{"raw": "not base64!"}]},
        {"role": "agent", "parts": [{"text": "a"}]},
        {"role": "user", "parts": [{"text": "a"}], "messageId": 5},
        {"role": "user", "parts": "a"},
        "hello",
        ["hello"],
        5,
    ],
)
async def test_a_message_that_is_none_is_refused_with_a_reason_and_makes_no_task(message: Any) -> None:
    async with praison(Echo()) as client:
        code, reason = await client.refused("message/send", {"message": message})
        assert code == -32602
        assert reason.startswith("Invalid params: ")
        assert await client.result("tasks/list") == []


@pytest.mark.parametrize(
    ("body", "code", "message", "request_id"),
    [
        (b"{", -32700, "Parse error: invalid JSON", None),
        (b"\xff\xfe", -32700, "Parse error: invalid JSON", None),
        (b"", -32700, "Parse error: invalid JSON", None),
        (b'{"id": 3, "method": "tasks/list"}', -32600, "Invalid Request: jsonrpc must be '2.0'", 3),
        (b'{"jsonrpc": "1.0", "id": 3, "method": "tasks/list"}', -32600, "Invalid Request: jsonrpc must be '2.0'", 3),
        (b"[]", -32600, None, None),
        (b'{"jsonrpc": "2.0", "id": 3, "method": "tasks/get", "params": []}', -32600, None, 3),
        (b'{"jsonrpc": "2.0", "id": 3, "method": 4}', -32600, None, 3),
    ],
)
async def test_a_broken_envelope_is_told_so(body: bytes, code: int, message: str | None, request_id: Any) -> None:
    async with praison(Echo()) as client:
        answer = await client.http.post("/a2a", content=body, headers={"Content-Type": "application/json"})
        document = answer.json()
        assert (answer.status_code, document["id"]) == (200, request_id)
        assert document["error"]["code"] == code
        assert set(document["error"]) == {"code", "message"}
        assert message in (None, document["error"]["message"])


async def test_deep_nesting_and_other_types_are_refused() -> None:
    async with praison(Echo()) as client:
        deep = b"[" * 100_000
        body = b'{"jsonrpc":"2.0","id":1,"method":"message/send","params":{"message":%b}}' % deep
        answer = await client.http.post("/a2a", content=body, headers={"Content-Type": "application/json"})
        assert answer.json()["error"]["code"] in (-32600, -32602, -32700)
        answer = await client.http.post("/a2a", content=b"{}", headers={"Content-Type": "text/plain"})
        assert answer.json()["error"]["code"] == -32005


async def test_a_body_that_is_too_large_is_refused() -> None:
    async with praison(Echo()) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "message/send", "params": {"message": say("x" * 11_000_000)}}
        answer = await client.http.post("/a2a", json=body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, -32600)


# Middleware, scope, versions


async def verify(token: str) -> dict[str, Any] | None:
    return {"sub": token} if token in ("ada", "alan") else None


async def test_middleware_decides_who_is_let_in_and_whose_tasks_are_seen() -> None:
    server = serve(Echo(), middlewares=[BearerTokenMiddleware(verify)])
    async with praison(server) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}
        for method in METHODS:
            params = {"message": say(), "id": "t"}
            answer = await client.http.post("/a2a", json={**body, "method": method, "params": params})
            assert answer.status_code == 401, method
            assert "www-authenticate" in answer.headers
            assert "error" in answer.json()
        ada, alan = {"Authorization": "Bearer ada"}, {"Authorization": "Bearer alan"}
        task = await client.result("message/send", {"message": say()}, **ada)
        assert len(await client.result("tasks/list", {}, **ada)) == 1
        assert await client.result("tasks/list", {}, **alan) == []
        error = (await client.call("tasks/get", {"id": task["id"]}, **alan))["error"]
        assert error == {"code": -32000, "message": f"Task not found: {task['id']}"}
        error = (await client.call("tasks/cancel", {"id": task["id"]}, **alan))["error"]
        assert error["code"] == -32000


async def test_middleware_may_refuse_with_any_error() -> None:
    class Refuses(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            raise TaskNotCancelableError("Not now")

    async with praison(Echo(), middlewares=[Refuses()]) as client:
        assert await client.refused("tasks/get", {"id": "t"}) == (-32002, "Not now")


async def test_middleware_sees_the_message_of_a_send() -> None:
    seen: list[str | None] = []

    class Sees(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            if envelope.params is not None:
                seen.append(envelope.params.message.parts[0].text)

    async with praison(Echo(), middlewares=[Sees()]) as client:
        await client.send("look")
    assert seen == ["look"]


async def test_an_agent_that_serves_1_0_alone_has_no_such_path() -> None:
    async with praison(Echo(), protocol_versions=["1.0"]) as client:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list"}
        assert (await client.http.post("/a2a", json=body)).status_code == 404


# In Python


async def test_a_program_lists_gets_and_cancels_the_tasks_of_its_server(storage: str) -> None:
    server = serve(Asks(), storage=storage)
    async with praison(server) as client:
        first = await client.send("one", contextId="c-1")
        await client.send("two", contextId="c-2")
        assert [task.id for task in await server.tasks.list(context_id="c-1")] == [first["id"]]
        assert len(await server.tasks.list()) == 2
        assert len(await server.tasks.list(limit=1)) == 1
        assert await server.tasks.list(state=TaskState.COMPLETED) == []
        assert (await server.tasks.get(first["id"])).status.state is TaskState.INPUT_REQUIRED
        assert (await server.tasks.cancel(first["id"])).status.state is TaskState.CANCELED
        assert (await client.result("tasks/get", {"id": first["id"]}))["status"]["state"] == "cancelled"
        with pytest.raises(TaskNotCancelableError):
            await server.tasks.cancel(first["id"])
        with pytest.raises(TaskNotFoundError):
            await server.tasks.get("nothing")


async def test_a_program_sees_all_pages_and_each_owners_tasks_alone() -> None:
    server = serve(Echo(), middlewares=[BearerTokenMiddleware(verify)])
    async with praison(server) as client:
        for number in range(101):
            await client.result("message/send", {"message": say(str(number))}, Authorization="Bearer ada")
        assert len(await server.tasks.of("ada").list()) == 101
        assert len(await server.tasks.of("ada").list(limit=100)) == 100
        assert await server.tasks.list() == []
        assert await server.tasks.of("ada", tenant="acme").list() == []
