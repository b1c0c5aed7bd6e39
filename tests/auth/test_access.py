"""What an authenticated caller may do: its own tasks, access rules, and nothing to learn about the tasks of others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import httpx
import pytest

from errands import A2AServer, AccessRule, AgentCardConfig, ApiKeyAuth, Caller, TaskContext, Worker
from errands.engines.memory import MemoryEngine
from errands.errors import ConfigurationError
from errands.model.log import Scope
from errands.operations import OPERATIONS
from errands.policy.audit_trail import entries_of, read_log
from errands.testing import http_client, serve
from tests.auth.test_matrix import BINDINGS, Line
from tests.auth.test_matrix import Caller as MatrixCaller
from tests.grpc_binding.serving import over_grpc, refusal, send
from tests.interaction.wire import message
from tests.unit.reviews.support import Reviewed

pytestmark = pytest.mark.anyio

KEYS = {
    "a": Caller(owner="alice", tenant="acme"),
    "b": Caller(owner="bob", tenant="acme"),
    "auditor": Caller(owner="audrey", tenant="acme", scopes=frozenset({"audit"})),
    "operator": Caller(owner="oscar", tenant="ops", scopes=frozenset({"operate"})),
    "service": Caller(owner="portal", tenant="acme", scopes=frozenset({"act"})),
}
RULES = [
    AccessRule(name="auditors", when="'audit' in caller.scopes", grant="read"),
    AccessRule(name="only read", when="'audit' in caller.scopes && !reads", deny="Auditors only read"),
    AccessRule(name="operators", when="'operate' in caller.scopes", grant="write", reach="agent"),
    AccessRule(name="services", when="'act' in caller.scopes && operation != 'CancelTask'", grant="write"),
]


class Asks(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.request_input(f"{ctx.tenant}/{ctx.owner}")


class Api:
    """The agent over HTTP, by the holders of keys."""

    def __init__(self, server: A2AServer, http: httpx.AsyncClient) -> None:
        self.server, self._http = server, http

    async def get(self, key: str, path: str, **headers: str) -> httpx.Response:
        return await self._http.get(path, headers={"X-API-Key": key, **headers})

    async def post(self, key: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self._http.post(path, json=body or {}, headers={"X-API-Key": key, **headers})

    async def send(self, key: str, text: str = "hi", *, headers: dict[str, str] | None = None, **fields: Any) -> Any:
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": text}], **fields}
        return await self.post(key, "/message:send", {"message": message}, **(headers or {}))

    async def open(self, key: str = "a", **options: Any) -> str:
        """The id of a new task that waits for input."""
        task_id: str = (await self.send(key, **options)).json()["task"]["id"]
        return task_id


@asynccontextmanager
async def api(rules: Sequence[AccessRule] = RULES, worker: Worker | None = None, **options: Any) -> AsyncIterator[Api]:
    server = serve(worker or Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=rules, **options)
    async with server, http_client(server) as http:
        yield Api(server, http)


# Rules


async def test_an_auditor_sees_the_tasks_of_its_tenant_and_changes_none(storage: str) -> None:
    async with api(storage=storage) as agent:
        task_id = await agent.open("a")
        assert (await agent.get("auditor", f"/tasks/{task_id}")).json()["id"] == task_id
        listed = await agent.get("auditor", "/tasks", **{"Errands-Owner": "alice"})
        assert [task["id"] for task in listed.json()["tasks"]] == [task_id]
        assert (await agent.get("auditor", "/tasks")).json()["tasks"] == []
        for refused in (
            await agent.post("auditor", f"/tasks/{task_id}:cancel"),
            await agent.send("auditor", taskId=task_id),
            await agent.send("auditor"),
        ):
            assert (refused.status_code, refused.json()["error"]["message"]) == (403, "Auditors only read")
        other = await agent.open("operator")
        assert (await agent.get("auditor", f"/tasks/{other}")).status_code == 404


async def test_an_operator_uses_the_tasks_of_all_tenants(storage: str) -> None:
    async with api(storage=storage) as agent:
        task_id = await agent.open("a")
        assert (await agent.get("operator", f"/tasks/{task_id}")).status_code == 200
        named = await agent.get("operator", "/acme/tasks", **{"Errands-Owner": "alice"})
        assert named.json()["totalSize"] == 1
        answered = await agent.send("operator", "go on", taskId=task_id)
        assert answered.json()["task"]["id"] == task_id
        assert (await agent.post("operator", f"/tasks/{task_id}:cancel")).status_code == 200
        assert (await agent.get("a", f"/tasks/{task_id}")).json()["status"]["state"] == "TASK_STATE_CANCELED"


async def test_an_auditor_lists_the_tasks_of_every_owner_of_its_tenant_and_an_operator_those_of_all(
    storage: str,
) -> None:
    every = {"Errands-Owner": "*"}
    async with api(storage=storage) as agent:
        tasks = [await agent.open(key) for key in ("a", "b", "operator")]
        for key, path, expected in (
            ("auditor", "/tasks", tasks[:2]),
            ("auditor", "/acme/tasks", tasks[:2]),
            ("operator", "/tasks", tasks),
            ("operator", "/acme/tasks", tasks[:2]),
            ("operator", "/ops/tasks", tasks[2:]),
            ("operator", "/tasks?status=TASK_STATE_COMPLETED", []),
        ):
            listed = (await agent.get(key, path, **every)).json()
            assert sorted(task["id"] for task in listed["tasks"]) == sorted(expected), (key, path)
            assert listed["totalSize"] == len(expected)
        for refused in (
            await agent.get("b", "/tasks", **every),
            await agent.get("auditor", "/ops/tasks", **every),
            await agent.send("operator", headers=every),
            await agent.get("operator", f"/tasks/{tasks[0]}", **every),
        ):
            assert refused.status_code == 403


@pytest.mark.parametrize(("version", "binding"), [one for one in BINDINGS if one != ("0.3", "grpc")])
async def test_every_binding_lists_across_owners(version: str, binding: str) -> None:
    server = serve(Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=RULES, grpc_port=0)
    async with server, http_client(server) as http:
        tasks = {await Api(server, http).open(key) for key in ("a", "b")}
        line = Line(server, version, binding)
        headers = {"X-API-Key": "auditor", "Errands-Owner": "*"}
        async with line.transport(MatrixCaller("auditor", headers)) as transport:
            listed = await line.call(transport, OPERATIONS["ListTasks"], "", None)
        assert {task.id for task in listed.tasks} == tasks


async def test_the_dialect_of_praisonai_lists_across_owners() -> None:
    async with api() as agent:
        tasks = {await agent.open(key) for key in ("a", "b")}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tasks/list", "params": {}}
        listed = (await agent.post("auditor", "/a2a", body, **{"Errands-Owner": "*"})).json()
        assert {task["id"] for task in listed["result"]} == tasks


async def test_a_service_account_acts_for_users() -> None:
    async with api() as agent:
        task_id = await agent.open("service", headers={"Errands-Owner": "alice"})
        asked = (await agent.get("a", f"/tasks/{task_id}")).json()
        assert asked["status"]["message"]["parts"][0]["text"] == "acme/alice"
        assert (await agent.get("b", f"/tasks/{task_id}")).status_code == 404
        # Its rule excepts this.
        assert (await agent.post("service", f"/tasks/{task_id}:cancel")).status_code == 404


async def test_the_audit_trail_names_who_acted_and_not_for_whom() -> None:
    async with api(audit=True) as agent:
        task_id = await agent.open("service", headers={"Errands-Owner": "alice"})
        await agent.send("a", taskId=task_id)
        await agent.post("operator", f"/tasks/{task_id}:cancel")
        stored = await agent.server.engine.load(task_id, Scope("acme", "alice", agent.server.agent_card.name))
        log = await read_log(agent.server.engine, stored)
    acts = [(one.action, one.by, one.owner) for one in entries_of(stored, log.events) if one.actor == "caller"]
    assert acts == [("create", "portal", "alice"), ("message", "alice", "alice"), ("cancel", "oscar", "alice")]


async def test_grpc_names_the_owner_in_its_metadata() -> None:
    server = serve(Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=RULES, grpc_port=0)
    async with over_grpc(server) as served:
        acting = (("x-api-key", "service"), ("errands-owner", "alice"))
        task = (await served.v1_0.SendMessage(send(), metadata=acting)).task
        assert task.status.message.parts[0].text == "acme/alice"
        denied = served.v1_0.SendMessage(send(), metadata=(("x-api-key", "b"), ("errands-owner", "alice")))
        assert (await refusal(denied)).code == "PERMISSION_DENIED"


async def test_a_caller_without_a_tenant_does_not_reach_into_one_by_naming_it() -> None:
    keys = {"a": Caller(owner="alice", tenant="acme"), "s": Caller(owner="sam")}
    rule = AccessRule(when="caller.owner == 'sam'", grant="write")
    server = serve(Asks(), auth=[ApiKeyAuth(keys)], access_rules=[rule])
    async with server, http_client(server) as http:
        agent = Api(server, http)
        task_id = await agent.open("a")
        for path in (f"/tasks/{task_id}", f"/acme/tasks/{task_id}"):
            assert (await agent.get("s", path)).status_code == 404
        assert (await agent.get("s", "/acme/tasks", **{"Errands-Owner": "alice"})).status_code == 403


async def test_without_a_rule_nobody_acts_for_others() -> None:
    for rules in (RULES, []):
        async with api(rules) as agent:
            refused = await agent.send("b", headers={"Errands-Owner": "alice"})
            assert refused.status_code == 403
            assert (await agent.get("b", "/tasks", **{"Errands-Owner": "bob"})).status_code == 200
            assert (await agent.get("b", "/other/tasks")).status_code == 403


@pytest.mark.parametrize(
    "when",
    [
        "skill == 'pay'",
        "message.parts.exists(part, has(part.text) && part.text.contains('forbidden'))",
        "has(metadata.dry) && metadata.dry",
        "operation == 'SendMessage' && caller.owner == 'bob'",
        "caller.claims.role == 'none'",  # it has no role, so the rule cannot be evaluated
        "message.metadata.missing > 1",
    ],
)
async def test_a_rule_denies_by_caller_operation_skill_and_message_and_if_it_fails(when: str) -> None:
    async with api([AccessRule(name="deny", when=when, deny="Not this")]) as agent:
        message = {
            "messageId": "1",
            "role": "ROLE_USER",
            "parts": [{"text": "forbidden"}],
            "metadata": {"skillId": "pay"},
        }
        refused = await agent.post("b", "/message:send", {"message": message, "metadata": {"dry": True}})
        assert refused.status_code == 403
        assert refused.json()["error"]["message"] in ("Not this", "Permission denied")
        assert (await agent.get("a", "/tasks")).status_code in (200, 403)


async def test_a_grant_that_cannot_be_evaluated_grants_nothing() -> None:
    async with api([AccessRule(when="caller.claims.role == 'operator'", grant="write", reach="agent")]) as agent:
        task_id = await agent.open("a")
        assert (await agent.get("b", f"/tasks/{task_id}")).status_code == 404


async def test_a_rule_looks_at_large_messages_without_holding_up_others() -> None:
    rule = AccessRule(when="message.parts.exists(part, part.text.endsWith('forbidden'))", deny="Not this")
    async with api([rule]) as agent:
        long = "x" * 300_000
        assert (await agent.send("a", long)).status_code == 200
        assert (await agent.send("a", long + "forbidden")).status_code == 403


async def test_a_message_and_its_request_cannot_name_two_skills_of_which_only_one_is_checked() -> None:
    async with api([AccessRule(when="skill == 'pay'", deny="Not this")]) as agent:
        message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "hi"}], "metadata": {"skillId": "look"}}
        for skill, status in (("pay", 400), ("look", 200)):
            sent = await agent.post("b", "/message:send", {"message": message, "metadata": {"skillId": skill}})
            assert sent.status_code == status, sent.text


@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_a_rule_may_name_every_operation(operation: str) -> None:
    serve(Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=[AccessRule(when=f"operation == '{operation}'", deny="")])


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ({"when": "caler.owner == 'a'", "deny": ""}, "'caler' is not available"),
        ({"when": "caller.owner", "name": "mine"}, "rule mine needs either deny or grant"),
        ({"when": "true", "deny": "no", "grant": "read"}, "either deny or grant"),
        ({"when": "true", "grant": "everything"}, "grant is read or write"),
        ({"when": "1 + 1", "deny": ""}, "must be true or false"),
        ({"when": "review('me')", "deny": ""}, "review"),
        ({"when": "operation == 'SendMesage'", "deny": ""}, "operation is never 'SendMesage'.*SendMessage"),
        ({"when": "'tasks/get' != operation", "deny": ""}, "operation is never 'tasks/get'"),
        ({"when": "operation in ['GetTask', 'CancelTasks']", "deny": ""}, "never 'CancelTasks'.*did you mean 'CancelT"),
        ({"when": "caller.ownr == 'a'", "grant": "read"}, "caller has no field 'ownr'.*did you mean owner"),
        ({"when": "message.role == 'user'", "deny": ""}, "message.role is never 'user'"),
        ({"when": "message.parts.exists(p, true) && message.task_id == ''", "deny": ""}, "did you mean taskId"),
    ],
)
def test_a_rule_that_makes_no_sense_is_told_when_the_server_is_made(rule: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        serve(Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=[AccessRule(**rule)])


def test_what_is_not_a_rule_is_told() -> None:
    with pytest.raises(ConfigurationError, match="AccessRule objects, not of dict"):
        serve(Asks(), auth=[ApiKeyAuth(KEYS)], access_rules=[{"when": "true"}])


def test_rules_need_callers() -> None:
    with pytest.raises(ConfigurationError, match="access_rules need auth"):
        serve(Asks(), access_rules=RULES)


async def test_an_operator_does_not_answer_a_review_in_the_name_of_its_owner() -> None:
    async with api(worker=Reviewed("alice")) as agent:
        task_id = await agent.open("a", text="pay 500")
        await agent.send("operator", "approve", taskId=task_id, headers={"Errands-Owner": "alice"})
        shown = (await agent.get("a", f"/tasks/{task_id}")).json()
        assert shown["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        await agent.send("a", "approve", taskId=task_id)
        assert (await agent.get("a", f"/tasks/{task_id}")).json()["status"]["state"] == "TASK_STATE_COMPLETED"


# The tasks and conversations of others


class Recorder(MemoryEngine):
    """Remembers what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    async def load(self, *arguments: Any) -> Any:
        self.asked.append("load")
        return await super().load(*arguments)

    async def load_small(self, *arguments: Any) -> Any:
        self.asked.append("load_small")
        return await super().load_small(*arguments)

    async def asking(self, *arguments: Any) -> Any:
        self.asked.append("asking")
        return await super().asking(*arguments)

    async def commit(self, *arguments: Any) -> Any:
        self.asked.append("commit")
        return await super().commit(*arguments)


async def test_the_id_of_another_callers_task_is_like_one_that_does_not_exist() -> None:
    engine = Recorder()
    async with api([], storage=engine) as agent:
        task_id = await agent.open("a")
        unknown = str(uuid4())

        async def told(wanted: str) -> list[tuple[int, str, list[str]]]:
            outcomes = []
            for ask in (
                lambda: agent.get("b", f"/tasks/{wanted}"),
                lambda: agent.post("b", f"/tasks/{wanted}:cancel"),
                lambda: agent.post("b", f"/tasks/{wanted}:subscribe"),
                lambda: agent.send("b", taskId=wanted),
                lambda: agent.send("b", taskId=wanted, contextId="guessed"),
            ):
                engine.asked.clear()
                answer = await ask()
                outcomes.append((answer.status_code, answer.text.replace(wanted, "ID"), [*engine.asked]))
            return outcomes

        foreign = await told(task_id)
        assert foreign == await told(unknown)
        assert {status for status, _, _ in foreign} == {404}


async def test_a_large_task_of_another_caller_is_not_even_read(storage: str) -> None:
    async with api([], storage=storage) as agent:
        task_id = await agent.open("a", text="x" * 2_000_000)
        scope = agent.server.scope("bob", "acme")
        with pytest.raises(Exception, match="not found"):
            await agent.server.engine.load_small(task_id, scope, 1000)


async def test_a_context_belongs_to_its_caller_and_is_another_one_for_everyone_else(storage: str) -> None:
    class Remembers(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            known = await ctx.load_context() or []
            await ctx.update_context([*known, ctx.user_text])
            await ctx.complete_json({"known": known, "history": len(ctx.history)})

    async with api(worker=Remembers(), storage=storage) as agent:

        async def said(key: str, text: str) -> Any:
            answer = await agent.send(key, text, contextId="shared")
            return answer.json()["task"]["artifacts"][0]["parts"][0]["data"]["known"]

        assert await said("a", "my password is 1234") == []
        assert await said("b", "what do you know?") == []
        assert await said("a", "and now?") == ["my password is 1234"]
        listed = await agent.get("b", "/tasks?contextId=shared")
        assert listed.json()["totalSize"] == 1


async def test_who_may_only_read_tasks_of_others_sees_no_webhooks() -> None:
    server = A2AServer(
        worker=Asks(),
        agent_card=AgentCardConfig(name="Hooks", description="Has webhooks."),
        storage="memory",
        push_concurrency=0,
        auth=[ApiKeyAuth({"a": "alice", "r": "auditor"})],
        access_rules=[AccessRule(when="caller.owner == 'auditor'", grant="read")],
    )
    async with server, http_client(server) as http:
        hook = {"id": "c", "url": "https://example.com/", "token": "secret"}
        body = {"message": message(), "configuration": {"taskPushNotificationConfig": hook}}
        task = (await http.post("/message:send", json=body, headers={"X-API-Key": "a"})).json()["task"]
        place = f"/tasks/{task['id']}/pushNotificationConfigs"
        for headers, status in (({}, 404), ({"Errands-Owner": "alice"}, 403)):
            auditor = {"X-API-Key": "r", "A2A-Version": "1.0", **headers}
            answers = [
                await http.get(place, headers=auditor),
                await http.get(f"{place}/c", headers=auditor),
                await http.delete(f"{place}/c", headers=auditor),
                await http.post(place, json={"url": "https://example.com/"}, headers=auditor),
            ]
            assert {answer.status_code for answer in answers} == {status}
            assert not [answer for answer in answers if "secret" in answer.text]
            assert (await http.get(f"/tasks/{task['id']}", headers=auditor)).status_code == 200
