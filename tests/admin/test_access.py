"""Who sees and changes what through the operator API."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from starlette.requests import Request

from errands import A2AMiddleware, AccessRule, ApiKeyMiddleware, RequestEnvelope, TaskContext, Worker
from errands.policy.audit_trail import entry_of
from errands.testing import InProcessTransport, serve
from tests.admin.operating import Obedient, Site, ids, open_site, reason, site
from tests.unit.reviews.support import Reviewed
from tests.unit.support import Gate

pytestmark = pytest.mark.anyio

#: Pages about one task, which are for those who may see the task.
OF_A_TASK = ("tasks/{id}", "tasks/{id}/timeline", "tasks/{id}/events", "tasks/{id}/stream")


async def test_everyone_lists_own_tasks_and_operators_those_they_may_see(storage: str) -> None:
    async with site(storage=storage) as admin:
        made = {who: await admin.send(who) for who in ("alice", "bob", "eve", "operator")}
        for who, seen in (
            ("alice", {"alice"}),
            ("bob", {"bob"}),
            ("eve", {"eve"}),
            ("auditor", {"alice", "bob"}),
            ("operator", {"alice", "bob", "eve", "operator"}),
        ):
            assert set(ids(await admin.get(who, "tasks"))) == {made[one] for one in seen}, who
        assert ids(await admin.get("operator", "tasks?owner=bob")) == [made["bob"]]
        assert ids(await admin.get("operator", "tasks?tenant=other")) == [made["eve"]]
        assert ids(await admin.get("operator", "tasks", **{"Errands-Owner": "bob"})) == []
        named = await admin.get("operator", "tasks?tenant=acme", **{"Errands-Owner": "bob"})
        assert ids(named) == [made["bob"]]


@pytest.mark.parametrize("page", OF_A_TASK)
async def test_a_task_is_for_its_owner_and_for_operators_and_not_found_by_others(page: str) -> None:
    async with site() as admin:
        path = page.format(id=await admin.send("alice"))
        for who, status in (("alice", 200), ("auditor", 200), ("operator", 200), ("bob", 404), ("eve", 404)):
            assert (await admin.get(who, path)).status_code == status, who
        assert reason(await admin.get("bob", path)) == (404, "TASK_NOT_FOUND")
        assert reason(await admin.get(None, path)) == (401, "UNAUTHENTICATED")
        assert reason(await admin.get("nobody", path)) == (401, "UNAUTHENTICATED")


async def test_an_archive_is_for_operators() -> None:
    async with site() as admin:
        path = f"tasks/{await admin.send('alice')}/archive"
        for who in ("auditor", "operator"):
            answer = await admin.get(who, path)
            assert (answer.status_code, answer.headers["content-type"]) == (200, "application/jsonl")
            head, *events = map(json.loads, answer.text.splitlines())
            assert (head["line"], head["owner"], head["events"]) == ("task", "alice", len(events))
        assert reason(await admin.get("alice", path)) == (403, "PERMISSION_DENIED")
        assert reason(await admin.get("bob", path)) == (404, "TASK_NOT_FOUND")
        assert reason(await admin.get(None, path)) == (401, "UNAUTHENTICATED")


async def test_a_log_that_is_too_long_for_an_answer_has_no_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("errands.server.admin.MOST_ARCHIVED", 100)
    async with site() as admin:
        answer = await admin.get("operator", f"tasks/{await admin.send('alice')}/archive")
        assert reason(answer) == (413, "PAYLOAD_TOO_LARGE")


async def test_an_auditor_changes_nothing() -> None:
    async with site() as admin:
        task_id = await admin.send("alice", "ask")
        hook = {"taskPushNotificationConfig": {"url": "https://example.com/", "id": "one"}}
        hooked = await admin.send("alice", "ask", configuration=hook)
        assert reason(await admin.post("auditor", f"tasks/{task_id}/cancel")) == (404, "TASK_NOT_FOUND")
        assert reason(await admin.post("auditor", f"tasks/{task_id}/retry")) == (403, "PERMISSION_DENIED")
        assert reason(await admin.get("auditor", "outbox")) == (403, "PERMISSION_DENIED")
        assert reason(await admin.post("auditor", f"outbox/{hooked}/one/drop")) == (404, "TASK_NOT_FOUND")
        assert set(ids(await admin.get("operator", "tasks?state=input-required"))) == {hooked, task_id}
        assert len(ids(await admin.get("operator", "tasks"))) == 2


async def test_rules_that_deny_hold_for_the_operator_api_too() -> None:
    rules = [
        AccessRule(when="caller.owner == 'alice' && operation == 'CancelTask'", deny="not you"),
        AccessRule(when="caller.owner == 'bob' && operation == 'ListTasks'", deny="not you"),
        AccessRule(when="caller.owner == 'oscar' && operation == 'SendMessage'", deny="not you"),
        AccessRule(when="caller.owner == 'oscar'", grant="write", reach="agent"),
    ]
    async with site(rules=rules) as admin:
        task_id = await admin.send("alice", "ask")
        assert reason(await admin.post("alice", f"tasks/{task_id}/cancel")) == (403, "PERMISSION_DENIED")
        assert reason(await admin.get("bob", "tasks")) == (403, "PERMISSION_DENIED")
        assert reason(await admin.post("operator", f"tasks/{task_id}/retry")) == (403, "PERMISSION_DENIED")
        assert (await admin.post("operator", f"tasks/{task_id}/cancel")).json()["state"] == "canceled"


async def test_callers_learn_who_they_are_and_what_they_may_do() -> None:
    deny = AccessRule(when="'audit' in caller.scopes && !reads", deny="Auditors only read")
    read = AccessRule(when="'audit' in caller.scopes", grant="read")
    write = AccessRule(when="'operate' in caller.scopes", grant="write", reach="agent")
    for rules in ([read, write, deny], [read, write]):
        async with site(rules=rules) as admin:
            found = {who: (await admin.get(who, "me")).json() for who in ("alice", "auditor", "operator")}
        names = ("owner", "tenant", "reach", "isOperator", "canWrite", "authenticated")
        assert [tuple(one[name] for name in names) for one in found.values()] == [
            ("alice", "acme", "scope", False, True, True),
            ("audrey", "acme", "tenant", True, False, True),
            ("oscar", "ops", "agent", True, True, True),
        ]


async def test_owners_do_not_see_how_the_agent_works_inside() -> None:
    class Inside(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            async with ctx.capability("look", {"where": "SECRET"}) as call:
                call.output = "SECRET"
            await ctx.complete("done")

    async with site(Inside()) as admin:
        task_id = await admin.send("alice")
        for page in OF_A_TASK:
            own = (await admin.get("alice", page.format(id=task_id))).text
            whole = (await admin.get("operator", page.format(id=task_id))).text
            worker = admin.server.pool.leases.worker_id
            assert "SECRET" not in own
            assert worker not in own
            assert ("SECRET" in whole) == (page != "tasks/{id}"), page
        own_lanes = [span["lane"] for span in (await admin.get("alice", f"tasks/{task_id}/timeline")).json()["spans"]]
        assert "tool" in own_lanes
        kinds = {event["kind"] for event in (await admin.get("alice", f"tasks/{task_id}/events")).json()["events"]}
        assert kinds == {"task", "status", "artifact"}
        assert (await admin.get("alice", f"tasks/{task_id}/events?kind=record")).json()["events"] == []
        assert (await admin.get("alice", "agent")).json()["policy"] is None
        for who in ("alice", "auditor"):  # the auditor is an operator of one tenant
            assert reason(await admin.get(who, "figures")) == (403, "PERMISSION_DENIED")
        assert (await admin.get("operator", "figures")).status_code == 200
        assert reason(await admin.get("alice", "outbox")) == (403, "PERMISSION_DENIED")


async def test_running_turns_are_shown_to_those_who_may_see_their_tasks() -> None:
    gate = Gate()

    class Waits(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await gate()
            await ctx.complete()

    async with site(Waits()) as admin:
        task_id = await admin.send("alice", configuration={"returnImmediately": True})
        await gate.reached.wait()
        for who, seen in (("alice", 1), ("bob", 0), ("eve", 0), ("auditor", 1), ("operator", 1)):
            found = (await admin.get(who, "running")).json()
            assert [row["taskId"] for row in found] == [task_id] * seen, who
        [row] = (await admin.get("operator", "running")).json()
        assert row["worker"] == admin.server.pool.leases.worker_id
        assert (row["owner"], row["state"], row["attempt"], row["cancelRequested"]) == ("alice", "working", 1, False)
        assert row["runningFor"] >= 0
        assert (await admin.get("alice", "running")).json()[0]["worker"] == ""
        gate.open()


async def test_looks_of_operators_enter_the_audit_trail_like_those_through_a2a() -> None:
    async with site(audit=True) as admin:
        task_id = await admin.send("alice")
        for who, path in (
            ("alice", "tasks"),
            ("alice", f"tasks/{task_id}"),
            ("operator", "me"),
            ("operator", "figures"),
            ("operator", "agent"),
            ("operator", "tasks"),
            ("operator", f"tasks/{task_id}/timeline"),
            ("bob", f"tasks/{task_id}/events"),
            (None, "tasks"),
        ):
            await admin.get(who, path)
        found = [entry_of(one) async for one in admin.server.engine.accesses()]
    assert [(one.action, one.by, one.owner, one.task, one.outcome) for one in found] == [
        ("read", "oscar", "*", "", "allowed"),
        ("read", "oscar", "alice", task_id, "allowed"),
        ("denied", "bob", "", task_id, "TASK_NOT_FOUND"),
        ("denied", "", "", "", "UNAUTHENTICATED"),
    ]


async def test_callers_that_middleware_knows_see_their_own_tasks() -> None:
    server = serve(Obedient(), middlewares=[ApiKeyMiddleware(["one", "two"])])
    async with site(server=server) as admin:
        first, second = [await admin.send(who) for who in ("one", "two")]
        assert ids(await admin.get("one", "tasks")) == [first]
        assert reason(await admin.get("one", f"tasks/{second}")) == (404, "TASK_NOT_FOUND")
        assert (await admin.get("one", "me")).json()["isOperator"] is False
        assert reason(await admin.get(None, "me")) == (401, "UNAUTHENTICATED")


async def test_callers_that_middleware_lets_pass_without_a_name_are_operators_of_their_tasks_on_this_machine() -> None:
    class Optional(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
            envelope.owner = request.headers.get("X-API-Key", "")

    server = serve(Reviewed(), middlewares=[Optional()])
    server.listen_at("127.0.0.1", 8000)
    async with server, httpx.AsyncClient(transport=InProcessTransport(server.app), base_url="http://localhost") as http:
        admin = Site(server, http)
        nameless, named = [await admin.send(who) for who in (None, "alice")]
        assert ids(await admin.get(None, "tasks")) == [nameless]
        assert reason(await admin.get(None, f"tasks/{named}")) == (404, "TASK_NOT_FOUND")
        assert reason(await admin.post(None, f"reviews/{named}", {"approved": True})) == (404, "TASK_NOT_FOUND")
        assert [one["taskId"] for one in (await admin.get(None, "reviews")).json()] == [nameless]
        kinds = [event["kind"] for event in (await admin.get(None, f"tasks/{nameless}/events")).json()["events"]]
        assert "record" in kinds
        assert (await admin.post(None, f"reviews/{nameless}", {"approved": True})).status_code == 200
        refused = await admin.get(None, "tasks", **{"X-Forwarded-For": "192.0.2.7"})
        assert reason(refused) == (403, "PERMISSION_DENIED")
        assert ids(await admin.get("alice", "tasks", **{"X-Forwarded-For": "192.0.2.7"})) == [named]
        server.listen_at("0.0.0.0", 8000)
        assert reason(await admin.get(None, "tasks")) == (403, "PERMISSION_DENIED")


async def test_without_authentication_everyone_is_an_operator_of_all_tenants(storage: str) -> None:
    async with open_site(storage=storage) as admin:
        made = [await admin.send(), await admin.send(tenant="acme")]
        assert sorted(ids(await admin.get(None, "tasks"))) == sorted(made)
        assert ids(await admin.get(None, "tasks?tenant=acme")) == [made[1]]
        row = (await admin.get(None, f"tasks/{made[1]}")).json()
        assert (row["tenant"], row["task"]["id"]) == ("acme", made[1])
        me = (await admin.get(None, "me")).json()
        assert (me["isOperator"], me["canWrite"], me["authenticated"], me["reach"]) == (True, True, False, "agent")


async def test_tasks_of_other_agents_in_the_same_store_are_not_shown(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path / 'tasks.db'}"
    other = serve(Obedient(), storage=store, console="on")
    other.agent_card.name = "Another agent"
    async with open_site(storage=store) as admin, site(server=other) as elsewhere:
        task_id = await elsewhere.send()
        assert ids(await admin.get(None, "tasks")) == []
        assert reason(await admin.get(None, f"tasks/{task_id}")) == (404, "TASK_NOT_FOUND")
        assert ids(await elsewhere.get(None, "tasks")) == [task_id]
