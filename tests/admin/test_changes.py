"""What operators, owners and reviewers change: canceling, sending again, answering reviews, webhooks."""

from __future__ import annotations

import asyncio
import base64
from typing import Any

import pytest

from errands import AccessRule, AgentExecutor, EventQueue, RequestContext, TaskContext, Worker
from errands.model.base import encode as encode_event
from errands.model.core import INPUT_REQUIRED, Message, Part, Role
from errands.model.log import Delivery, Draft, Scope, Work
from errands.policy.audit_trail import entry_of
from errands.policy.cel.session import Call, Session
from errands.policy.records import OutputHeld, Started, Waiting, encode
from errands.policy.reviews import review_message
from errands.runtime.inner import InnerAgents
from errands.runtime.journal import status_update
from errands.testing import serve
from tests.admin.operating import RULES, Obedient, Site, ids, open_site, reason, site
from tests.contract.changes import Changes
from tests.unit.reviews.support import BOB, Reviewed
from tests.unit.support import Gate
from tests.waiting import until

pytestmark = pytest.mark.anyio

HOOK = {
    "url": "https://hooks.example.com:8443/path-SECRET?key=SECRET",
    "id": "hook",
    "token": "token-SECRET",
    "authentication": {"scheme": "Bearer", "credentials": "credentials-SECRET"},
}


# Canceling


async def test_owners_and_operators_cancel_tasks(storage: str) -> None:
    async with site(storage=storage) as admin:
        for who, status in (("bob", 404), ("eve", 404), ("alice", 200), ("operator", 200)):
            task_id = await admin.send("alice", "ask")
            answer = await admin.post(who, f"tasks/{task_id}/cancel")
            assert answer.status_code == status, who
            state = (await admin.get("alice", f"tasks/{task_id}")).json()["state"]
            assert state == ("canceled" if status == 200 else "input-required")
            if status == 200:
                assert (answer.json()["id"], answer.json()["state"]) == (task_id, "canceled")
                again = await admin.post(who, f"tasks/{task_id}/cancel")
                assert reason(again) == (400, "TASK_NOT_CANCELABLE")


async def test_a_running_turn_of_an_inner_agent_is_canceled() -> None:
    gate = Gate()

    class Waits(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await gate()

    server = serve(Obedient(), console="on", cancel_force_timeout=0, inner=InnerAgents({"inside": Waits()}))
    async with site(server=server) as admin:
        changes = Changes(server.engine.clock)
        await server.engine.commit(changes.create(scope=Scope(agent="inside")))
        await gate.reached.wait()
        assert (await admin.post(None, "tasks/t/cancel")).json()["state"] == "canceled"
        assert reason(await admin.post(None, "tasks/t/retry")) == (400, "UNSUPPORTED_OPERATION")
        # A2A itself does not lead to inner agents.
        assert (await admin.http.get("/tasks/t")).status_code == 404


# Sending again


async def test_a_task_is_sent_again_as_a_new_task_of_its_owner(storage: str) -> None:
    async with site(storage=storage) as admin:
        first = await admin.send("alice", "fail please", contextId="c1", metadata={"skillId": "x"})
        for who in ("alice", "operator"):
            row = (await admin.post(who, f"tasks/{first}/retry")).json()
            assert (row["owner"], row["tenant"], row["words"]) == ("alice", "acme", "fail please")
            assert row["id"] != first
            assert row["contextId"] == "c1"
            task = (await admin.get("alice", f"tasks/{row['id']}")).json()["task"]
            assert task["history"][0]["metadata"] == {"skillId": "x"}
        assert len(ids(await admin.get("alice", "tasks"))) == 3
        assert ids(await admin.get("bob", "tasks")) == []
        for who in ("bob", "eve"):
            assert reason(await admin.post(who, f"tasks/{first}/retry")) == (404, "TASK_NOT_FOUND")


async def test_what_came_with_the_message_is_sent_again_too() -> None:
    seen: list[Any] = []

    class Remembers(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            seen.append((ctx.user_text, ctx.request_metadata))
            await ctx.complete("done")

    async with open_site(Remembers()) as admin:
        body = {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
            "metadata": {"ticket": 7},
        }
        task_id = (await admin.http.post("/message:send", json=body)).json()["task"]["id"]
        row = (await admin.post(None, f"tasks/{task_id}/retry")).json()
        await until(lambda: len(seen) == 2)
        assert seen[0] == seen[1] == ("hi", {"ticket": 7})
        assert row["id"] != task_id


async def test_rules_about_metadata_hold_for_a_message_that_is_sent_again() -> None:
    rules = [
        *RULES,
        AccessRule(
            name="refunds", when="has(metadata.kind) && metadata.kind == 'refund' && caller.owner != 'bob'", deny="no"
        ),
    ]
    async with site(rules=rules) as admin:
        body = {
            "message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]},
            "metadata": {"kind": "refund"},
        }
        sent = await admin.http.post("/message:send", json=body, headers={"X-API-Key": "bob"})
        task_id = sent.json()["task"]["id"]
        assert (await admin.post("bob", f"tasks/{task_id}/retry")).status_code == 200
        # The operator may write to the tasks of others, but not this.
        assert reason(await admin.post("operator", f"tasks/{task_id}/retry")) == (403, "PERMISSION_DENIED")


async def test_a_task_of_an_executor_that_answers_with_a_message_is_sent_again() -> None:
    class Direct(AgentExecutor):
        async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
            await event_queue.enqueue_event(new_message(f"you said {context.get_user_input()}", context))

        async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
            raise NotImplementedError

    async with open_site(Direct()) as admin:  # type: ignore[arg-type]
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}}
        assert "message" in (await admin.http.post("/message:send", json=body)).json()
        [first] = ids(await admin.get(None, "tasks"))
        row = (await admin.post(None, f"tasks/{first}/retry")).json()
        assert row["id"] != first
        assert sorted(ids(await admin.get(None, "tasks"))) == sorted([first, row["id"]])


def new_message(text: str, context: RequestContext) -> Any:
    return Message(
        message_id="answer",
        role=Role.AGENT,
        parts=[Part(text=text)],
        task_id=context.task_id,
        context_id=context.context_id,
    )


async def test_files_of_the_message_are_sent_again_too(tmp_path: Any) -> None:
    async with open_site(blobs=str(tmp_path / "blobs"), blob_bytes=1000) as admin:
        part = {"raw": base64.b64encode(b"x" * 5000).decode(), "filename": "a.txt"}
        body = {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "look"}, part]}}
        first = (await admin.http.post("/message:send", json=body)).json()["task"]["id"]
        row = (await admin.post(None, f"tasks/{first}/retry")).json()
        await reaches(admin, None, row["id"], "completed")
        task = (await admin.get(None, f"tasks/{row['id']}")).json()["task"]
        url = task["history"][0]["parts"][1]["url"]
        assert row["id"] in url
        assert (await admin.http.get(url)).content == b"x" * 5000


# Reviews


async def test_a_review_is_listed_for_who_is_asked_and_for_operators(storage: str) -> None:
    async with site(Reviewed(), storage=storage) as admin:
        task_id = await admin.send("alice", "buy it")
        for who, seen in (("bob", 1), ("auditor", 1), ("operator", 1), ("alice", 0), ("eve", 0)):
            found = (await admin.get(who, "reviews")).json()
            assert [one["taskId"] for one in found] == [task_id] * seen, who
        [review] = (await admin.get("bob", "reviews")).json()
        assert (review["owner"], review["user"], review["subject"]) == ("alice", BOB, {"message": "buy it"})
        assert (await admin.get("operator", "reviews?mine=1")).json() == []
        assert len((await admin.get("bob", "reviews?mine=1")).json()) == 1


@pytest.mark.parametrize("approved", [True, False])
async def test_only_who_is_asked_answers_and_sees_no_more_than_the_state(approved: bool, storage: str) -> None:
    async with site(Reviewed(), storage=storage) as admin:
        task_id = await admin.send("alice", "buy it")
        answer = {"approved": approved, "comment": "as agreed"}
        for who, expected in (
            ("alice", (403, "PERMISSION_DENIED")),
            ("operator", (403, "PERMISSION_DENIED")),
            ("auditor", (404, "TASK_NOT_FOUND")),
            ("eve", (404, "TASK_NOT_FOUND")),
            (None, (401, "UNAUTHENTICATED")),
        ):
            assert reason(await admin.post(who, f"reviews/{task_id}", answer)) == expected, who
        row = (await admin.post("bob", f"reviews/{task_id}", answer)).json()
        assert (row["id"], row["state"], row["words"]) == (task_id, "submitted", "")
        again = await admin.post("bob", f"reviews/{task_id}", answer)
        assert reason(again) == (404, "TASK_NOT_FOUND")
        await reaches(admin, "alice", task_id, "completed" if approved else "rejected")
        said = (await admin.get("alice", f"tasks/{task_id}")).json()["task"]["history"]
        assert f"{'approved' if approved else 'denied'}: as agreed" in [one["parts"][0]["text"] for one in said]
        assert (await admin.get("operator", "reviews")).json() == []


async def reaches(admin: Site, who: str | None, task_id: str, state: str) -> None:
    async with asyncio.timeout(60):
        while (await admin.get(who, f"tasks/{task_id}")).json()["state"] != state:
            await asyncio.sleep(0.001)


async def test_an_answer_to_a_review_is_not_taken_for_a_later_one_of_the_same_task() -> None:
    async with site(Reviewed(BOB, BOB.upper())) as admin:
        task_id = await admin.send("alice", "go")
        [first] = (await admin.get("bob", "reviews")).json()
        answer = {"approved": True, "since": first["since"]}
        assert (await admin.post("bob", f"reviews/{task_id}", answer)).status_code == 200
        await reaches(admin, "alice", task_id, "input-required")
        [second] = (await admin.get("bob", "reviews")).json()
        assert second["since"] > first["since"]
        assert reason(await admin.post("bob", f"reviews/{task_id}", answer)) == (400, "UNSUPPORTED_OPERATION")
        answer["since"] = second["since"]
        assert (await admin.post("bob", f"reviews/{task_id}", answer)).status_code == 200
        await reaches(admin, "alice", task_id, "completed")


async def test_without_authentication_the_user_who_is_asked_has_answered() -> None:
    async with open_site(Reviewed()) as admin:
        task_id = await admin.send(text="buy it")
        [review] = (await admin.get(None, "reviews?mine=1")).json()
        assert review["user"] == BOB
        row = (await admin.post(None, f"reviews/{task_id}", {"approved": True})).json()
        assert row["state"] == "submitted"
        await reaches(admin, None, task_id, "completed")
        [asked] = [
            span
            for span in (await admin.get(None, f"tasks/{task_id}/timeline")).json()["spans"]
            if span["lane"] == "people"
        ]
        assert (asked["outcome"], asked["detail"]["by"]) == ("ok", BOB)


async def test_a_review_says_which_rule_asks_and_shows_who_is_asked_what_the_owner_must_not_see() -> None:
    async with site() as admin:
        await hold(admin)
        [review] = (await admin.get("bob", "reviews")).json()
        assert review["rule"] == "guardrails.after[0]"
        assert "SECRET" in str(review["subject"])
        for page in ("tasks/t", "tasks/t/timeline", "tasks/t/events", "tasks"):
            own = await admin.get("alice", page)
            assert own.status_code == 200
            assert "SECRET" not in own.text
        assert "SECRET" in (await admin.get("operator", "tasks/t/events")).text


async def hold(admin: Site) -> None:
    """A task `t` of alice whose answer waits for a review by bob."""
    engine, scope = admin.server.engine, Scope("acme", "alice", "Test agent")
    changes = Changes(engine.clock)
    call = Call("review", (BOB,), place="guardrails.after[0]")
    question = review_message(call, "SECRET", task_id="t", context_id="c", held=True)
    noted = (
        Started(at="", agent="Test agent"),
        OutputHeld(at="", values={"message": "SECRET"}, turn={}),
        Waiting(at="", call=call, session=Session(now=""), subject="SECRET"),
    )
    await engine.commit(changes.start(scope=scope, due_at=2**50))
    asks = Draft("status", encode_event(status_update("t", "c", INPUT_REQUIRED, engine.clock(), question)))
    await engine.commit(
        changes.move(
            scope=scope,
            events=(*(Draft("record", encode(one)) for one in noted), asks),
            state=INPUT_REQUIRED,
            asks=BOB,
            work=Work.IDLE,
        )
    )


async def test_a_server_that_stops_takes_no_answer() -> None:
    async with open_site(Reviewed()) as admin:
        task_id = await admin.send(text="buy it")
        await admin.server.pool.drain()
        refused = await admin.post(None, f"reviews/{task_id}", {"approved": True})
        assert reason(refused) == (503, "UNAVAILABLE")


# Webhooks


async def failing(admin: Site, task_id: str, *, dead: bool) -> None:
    """Let the delivery to the webhook of a task fail."""
    engine = admin.server.engine
    [entry] = [
        one for one in await engine.claim_deliveries("Test agent", 9, lambda _: 9, 2**50) if one.task_id == task_id
    ]
    failure = Delivery(
        task_id=task_id,
        config_id=entry.config.id,
        claim=entry.claim,
        delivered=0,
        due_at=None if dead else 2**50,
        attempts=3,
        failed_at=engine.clock(),
        error="HTTP 500",
        dead=dead,
    )
    assert await engine.settle_deliveries([failure]) == [True]


async def test_the_outbox_shows_operators_hosts_and_errors_and_no_secret(storage: str) -> None:
    async with site(storage=storage) as admin:
        dead, trying = [
            await admin.send("alice", "ask", configuration={"taskPushNotificationConfig": HOOK}) for _ in range(2)
        ]
        await failing(admin, dead, dead=True)
        found = (await admin.get("operator", "outbox")).json()
        assert [(one["taskId"], one["dead"], one["attempts"], one["error"]) for one in found] == [
            (dead, True, 3, "HTTP 500"),
            (trying, False, 0, ""),
        ]
        assert {one["host"] for one in found} == {"hooks.example.com:8443"}
        assert [one["taskId"] for one in (await admin.get("operator", "outbox?dead=1")).json()] == [dead]
        limited = await admin.get("operator", "outbox?limit=1")
        assert [one["taskId"] for one in limited.json()] == [dead]
        assert limited.headers["errands-left-out"] == "1"
        for page in ("outbox", "tasks", f"tasks/{dead}", f"tasks/{dead}/events", f"tasks/{dead}/timeline"):
            assert "SECRET" not in (await admin.get("operator", page)).text
        assert (await admin.get("operator", f"tasks/{dead}")).json()["push"] == 1
        for who in ("alice", "bob", "auditor", "eve"):
            assert reason(await admin.get(who, "outbox")) == (403, "PERMISSION_DENIED")


async def test_operators_deliver_again_and_drop_webhooks(storage: str) -> None:
    async with site(storage=storage, audit=True) as admin:
        task_id = await admin.send("alice", "ask", configuration={"taskPushNotificationConfig": HOOK})
        await failing(admin, task_id, dead=True)
        for who, expected in (
            ("alice", (403, "PERMISSION_DENIED")),
            ("bob", (404, "TASK_NOT_FOUND")),
            ("auditor", (404, "TASK_NOT_FOUND")),
            (None, (401, "UNAUTHENTICATED")),
        ):
            assert reason(await admin.post(who, f"outbox/{task_id}/hook/retry")) == expected, who
        assert (await admin.post("operator", f"outbox/{task_id}/hook/retry")).status_code == 200
        [entry] = (await admin.get("operator", "outbox")).json()
        assert (entry["dead"], entry["attempts"]) == (False, 0)
        assert reason(await admin.post("operator", f"outbox/{task_id}/other/drop")) == (404, "TASK_NOT_FOUND")
        assert (await admin.post("operator", f"outbox/{task_id}/hook/drop")).status_code == 200
        assert (await admin.get("operator", "outbox")).json() == []
        assert (await admin.get("operator", f"tasks/{task_id}")).json()["push"] == 0
        noted = [entry_of(one) async for one in admin.server.engine.accesses()]
        changed = [(one.by, one.detail["operation"]) for one in noted if one.action == "webhook" and one.by == "oscar"]
        assert changed == [
            ("oscar", "CreateTaskPushNotificationConfig"),
            ("oscar", "DeleteTaskPushNotificationConfig"),
            ("oscar", "DeleteTaskPushNotificationConfig"),
        ]


async def test_without_authentication_everyone_operates_the_outbox() -> None:
    async with open_site() as admin:
        task_id = await admin.send(text="ask", configuration={"taskPushNotificationConfig": HOOK})
        assert [one["taskId"] for one in (await admin.get(None, "outbox")).json()] == [task_id]
        assert (await admin.post(None, f"outbox/{task_id}/hook/retry")).status_code == 200
        assert (await admin.post(None, f"outbox/{task_id}/hook/drop")).status_code == 200
        assert (await admin.get(None, "outbox")).json() == []
