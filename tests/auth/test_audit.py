"""The audit trail names who has acted, also in the name of another owner."""

from __future__ import annotations

import pytest

from errands import A2AServer, AccessRule, AgentCardConfig, ApiKeyAuth, TaskContext, Worker
from errands.policy.audit_trail import AuditEntry, entries_of, read_log
from errands.testing import http_client
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
