"""The audit trail names who has acted, also in the name of another owner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import A2AServer, AccessRule, AgentCardConfig, ApiKeyAuth, CapabilitiesConfig, TaskContext, Worker
from errands.engines.memory import MAX_ACCESSES, MemoryEngine
from errands.errors import StorageError
from errands.model.log import AccessEntry
from errands.operations import OPERATIONS
from errands.policy.audit_trail import AuditEntry, entries_of, entry_of, read_log
from errands.runtime import quotas
from errands.runtime.quotas import RequestRate
from errands.server.access_audit import CALLER_BURST, CALLER_RATE
from errands.testing import http_client, serve
from tests.auth.test_matrix import BINDINGS, Line
from tests.auth.test_matrix import Caller as MatrixCaller
from tests.interaction.wire import message

pytestmark = pytest.mark.anyio

HOOK = {
    "url": "https://example.com/?key=secret-1",
    "token": "secret-2",
    "authentication": {"scheme": "Bearer", "credentials": "secret-3"},
}


class Asks(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.request_input("more?")


async def test_an_operator_is_named_and_not_the_owner_and_no_secret_is_exported() -> None:
    server = A2AServer(
        worker=Asks(),
        agent_card=AgentCardConfig(name="Asks", description="Asks."),
        storage="memory",
        audit=True,
        trust_forwarded=True,
        push_concurrency=0,
        auth=[ApiKeyAuth({"a": "alice", "o": "operator"})],
        access_rules=[AccessRule(when="caller.owner == 'operator'", grant="write")],
    )
    alice = {"X-API-Key": "a", "X-Forwarded-For": "6.6.6.6, 198.51.100.1"}
    operator = {"X-API-Key": "o", "X-Forwarded-For": "198.51.100.2"}
    async with server, http_client(server) as http:
        body = {"message": message(), "configuration": {"taskPushNotificationConfig": HOOK}}
        task_id = (await http.post("/message:send", json=body, headers=alice)).json()["task"]["id"]
        more = {"message": message(taskId=task_id)}
        assert (await http.post("/message:send", json=more, headers=operator)).status_code == 200
        assert (await http.post(f"/tasks/{task_id}:cancel", json={}, headers=operator)).status_code == 200
        for_alice = {**operator, "Errands-Owner": "alice"}
        made = (await http.post("/message:send", json={"message": message()}, headers=for_alice)).json()["task"]["id"]
        found: list[AuditEntry] = []
        for one in (task_id, made):
            stored = await server.engine.load(one, None)
            found += entries_of(stored, (await read_log(server.engine, stored)).events)
    assert [(entry.action, entry.by, entry.address) for entry in found if entry.actor == "caller"] == [
        ("create", "alice", "198.51.100.1"),
        ("message", "operator", "198.51.100.2"),
        ("cancel", "operator", "198.51.100.2"),
        ("create", "operator", "198.51.100.2"),
    ]
    assert {entry.owner for entry in found} == {"alice"}
    assert "secret" not in repr(found)


KEYS = {"a": "alice", "b": "bob", "o": "operator"}
RULES = [AccessRule(when="caller.owner == 'operator'", grant="write")]


def audited(*, streaming: bool = False, **options: Any) -> A2AServer:
    settings = {"audit": True, "storage": "memory", "push_concurrency": 0, **options}
    capabilities = CapabilitiesConfig(streaming=streaming)
    card = AgentCardConfig(name="Asks", description="Asks.", input_modes=["*/*"], capabilities=capabilities)
    return A2AServer(worker=Asks(), agent_card=card, auth=[ApiKeyAuth(KEYS)], access_rules=RULES, **settings)


def key(name: str, **more: str) -> dict[str, str]:
    return {"X-API-Key": name, **more}


async def noted(server: A2AServer) -> list[AuditEntry]:
    return [entry_of(access) async for access in server.engine.accesses()]


async def opened(http: httpx.AsyncClient, **configuration: Any) -> str:
    body = {"message": message(), "configuration": configuration}
    task_id: str = (await http.post("/message:send", json=body, headers=key("a"))).json()["task"]["id"]
    return task_id


async def test_looks_at_tasks_of_others_are_noted_and_those_at_own_ones_are_not(storage: str) -> None:
    server = audited(storage=storage)
    async with server, http_client(server) as http:
        task_id = await opened(http)
        for headers, path in (
            (key("a"), f"/tasks/{task_id}"),
            (key("a"), "/tasks"),
            (key("o"), "/tasks"),
            (key("o"), f"/tasks/{task_id}"),
            (key("o", **{"Errands-Owner": "alice"}), "/tasks"),
            (key("o", **{"Errands-Owner": "*"}), "/tasks"),
        ):
            assert (await http.get(path, headers=headers)).status_code == 200
        found = await noted(server)
    assert [(one.action, one.by, one.owner, one.task, one.outcome, one.detail) for one in found] == [
        ("read", "operator", "alice", task_id, "allowed", {"operation": "GetTask"}),
        ("read", "operator", "alice", "", "allowed", {"operation": "ListTasks"}),
        ("read", "operator", "*", "", "allowed", {"operation": "ListTasks", "reach": "tenant"}),
    ]
    assert all(one.address == "127.0.0.1" and one.agent == "Asks" and not one.version for one in found)


async def test_entries_of_the_same_moment_keep_their_order(storage: str) -> None:
    server = audited(storage=storage)
    async with server, http_client(server) as http:
        now = server.engine.clock()
        server.engine.clock = lambda: now
        for number in range(CALLER_BURST):
            await http.get(f"/tasks/{number}", headers=key("b"))
        assert [one.task for one in await noted(server)] == [str(number) for number in range(CALLER_BURST)]


@pytest.mark.parametrize("path", ["/message:send", "/message:stream"])
async def test_a_look_through_a_repeated_message_is_noted(path: str) -> None:
    server = audited(streaming=True)
    async with server, http_client(server) as http:
        body = {"message": message()}
        task_id = (await http.post("/message:send", json=body, headers=key("a"))).json()["task"]["id"]
        assert task_id in (await http.post(path, json=body, headers=key("a"))).text
        assert await noted(server) == []
        assert task_id in (await http.post(path, json=body, headers=key("o", **{"Errands-Owner": "alice"}))).text
        assert [(one.action, one.by, one.owner, one.task) for one in await noted(server)] == [
            ("read", "operator", "alice", task_id)
        ]


async def test_a_setting_has_every_look_noted() -> None:
    server = audited(audit_reads=True)
    async with server, http_client(server) as http:
        task_id = await opened(http)
        await http.get(f"/tasks/{task_id}", headers=key("a"))
        assert [(one.action, one.by, one.task) for one in await noted(server)] == [("read", "alice", task_id)]


async def test_without_the_setting_nothing_is_noted() -> None:
    server = audited(audit=False, audit_reads=True)
    async with server, http_client(server) as http:
        task_id = await opened(http)
        await http.get(f"/tasks/{task_id}", headers=key("o"))
        await http.get(f"/tasks/{task_id}", headers=key("b"))
        assert await noted(server) == []


async def test_changes_of_webhooks_are_noted_without_their_secrets() -> None:
    server = audited()
    async with server, http_client(server) as http:
        task_id = await opened(http, taskPushNotificationConfig={**HOOK, "id": "first"})
        path = f"/tasks/{task_id}/pushNotificationConfigs"
        await http.post(path, json={**HOOK, "id": "second"}, headers=key("a"))
        await http.delete(f"{path}/first", headers=key("o"))
        found = await noted(server)
    assert [(one.action, one.by, one.detail.get("config"), one.detail.get("host")) for one in found] == [
        ("webhook", "alice", "first", "example.com"),
        ("webhook", "alice", "second", "example.com"),
        ("webhook", "operator", "first", None),
    ]
    assert "secret" not in repr(found)


async def test_webhooks_of_tasks_that_a_caller_does_not_have_do_not_fill_the_store() -> None:
    server = audited()
    async with server, http_client(server) as http:
        task_id = await opened(http)
        for _ in range(50):
            for one in (task_id, "unknown"):
                path = f"/tasks/{one}/pushNotificationConfigs"
                assert (await http.post(path, json=HOOK, headers=key("b"))).status_code == 404
                assert (await http.delete(f"{path}/x", headers=key("b"))).status_code == 404
            body = {"message": message(taskId=task_id), "configuration": {"taskPushNotificationConfig": HOOK}}
            assert (await http.post("/message:send", json=body, headers=key("b"))).status_code == 404
        found = await noted(server)
    assert {one.action for one in found} == {"denied"}
    assert len(found) < CALLER_BURST + 10


async def test_a_tenant_with_a_long_name_is_refused_and_not_noted() -> None:
    server = audited(audit_reads=True)
    async with server, http_client(server) as http:
        for headers in (key("a"), {}):
            answer = await http.post("/message:send", json={"tenant": "t" * 501, "message": message()}, headers=headers)
            assert answer.status_code == (400 if headers else 401)
        assert (await http.get(f"/{'t' * 500}/tasks", headers=key("a"))).status_code == 200
        assert max(len(one.tenant) for one in await noted(server)) == 500
    async with serve(Asks()) as server, http_client(server) as http:
        answer = await http.post("/message:send", json={"tenant": "t" * 501, "message": message()})
        assert answer.status_code == 400


async def test_the_callers_of_the_past_do_not_hide_how_much_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_CALLERS", 2)
    server = audited(trust_forwarded=True)
    async with server, http_client(server) as http:
        audit = server.dispatcher._audit
        assert audit is not None
        audit._total_rate = RequestRate(0.001, 1)
        for number in range(5):
            await http.get("/tasks/x", headers={"X-Forwarded-For": f"192.0.2.{number}"})
        assert dict(audit._left_out) == {"192.0.2.3": 1, "192.0.2.4": 1}


async def test_the_memory_store_keeps_a_bounded_number_of_entries() -> None:
    async with MemoryEngine() as engine:
        for number in range(MAX_ACCESSES + 10):
            await engine.note_access(AccessEntry(id=str(number), at=1, action="read"))
        ids = [one.id async for one in engine.accesses()]
    assert (len(ids), ids[0]) == (MAX_ACCESSES, "10")


async def test_transfers_of_files_are_noted(tmp_path: Path) -> None:
    server = audited(blobs=str(tmp_path / "blobs"))
    async with server, http_client(server) as http:
        uploaded = (await http.post("/blobs", content=b"x" * 1000, headers=key("a"))).json()
        assert (await http.get(uploaded["url"], headers=key("a"))).status_code == 200
        assert (await http.get(uploaded["url"], headers=key("b"))).status_code == 404
        found = await noted(server)
    name = uploaded["url"].rpartition("/")[2]
    assert [(one.action, one.by, one.detail["operation"], one.outcome, one.detail.get("file")) for one in found] == [
        ("file", "alice", "upload", "allowed", name),
        ("file", "alice", "download", "allowed", name),
        ("denied", "bob", "download", "TASK_NOT_FOUND", None),
    ]
    assert found[0].detail["sha256"] == uploaded["sha256"]


@pytest.mark.parametrize(("version", "binding"), BINDINGS)
async def test_denied_requests_are_noted_on_every_binding(version: str, binding: str) -> None:
    server = audited(grpc_port=0)
    async with server, http_client(server) as http:
        task_id = await opened(http)
        line = Line(server, version, binding)
        for headers, outcome, by in (
            ({}, "UNAUTHENTICATED", ""),
            (key("b"), "TASK_NOT_FOUND", "bob"),
            (key("b", **{"Errands-Owner": "alice"}), "PERMISSION_DENIED", "bob"),
        ):
            async with line.transport(MatrixCaller("x", headers)) as transport:
                assert (await line.outcome(transport, OPERATIONS["GetTask"], task_id, None))[0] == outcome
            last = (await noted(server))[-1]
            assert (last.action, last.outcome, last.by, last.owner) == ("denied", outcome, by, "")
            assert last.address in ("127.0.0.1", "::1")
            assert last.task == (task_id if by else "")


async def test_a_flood_of_denied_requests_does_not_fill_the_store() -> None:
    server = audited()
    async with server, http_client(server) as http:
        for _ in range(100):
            await http.get("/tasks/x", headers=key("b"))
        found = await noted(server)
        assert CALLER_BURST <= len(found) < CALLER_BURST + 10
        # Others are still noted, and the next entry says how many are missing.
        await http.get("/tasks/x", headers=key("a"))
        audit = server.dispatcher._audit
        assert audit is not None
        audit._caller_rate = RequestRate(CALLER_RATE, CALLER_BURST)
        await http.get("/tasks/x", headers=key("b"))
        alices, bobs = (await noted(server))[-2:]
    assert (alices.by, alices.detail) == ("alice", {"operation": "GetTask"})
    assert bobs.detail["leftOut"] == 100 - len(found)


async def test_a_look_that_cannot_be_noted_is_refused() -> None:
    class Full(MemoryEngine):
        async def note_access(self, entry: AccessEntry) -> None:
            raise StorageError("the disk is full")

    server = audited(storage=Full())
    async with server, http_client(server) as http:
        task_id = await opened(http)
        assert (await http.get(f"/tasks/{task_id}", headers=key("o"))).status_code == 503
        assert (await http.get(f"/tasks/{task_id}", headers=key("b"))).status_code == 404
        assert (await http.get(f"/tasks/{task_id}", headers=key("a"))).status_code == 200
