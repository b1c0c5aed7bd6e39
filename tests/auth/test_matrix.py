"""Every operation, over every binding in every version, by every kind of caller: exactly the owner gets through."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple
from uuid import uuid4

import httpx
import pytest

from errands import (
    A2AError,
    A2AServer,
    AgentCardConfig,
    ApiKeyAuth,
    CapabilitiesConfig,
    JWTAuth,
    TaskContext,
    Worker,
)
from errands.client import A2AClient
from errands.client.agent_session import Transport
from errands.client.discovery import choose_interface, open_transport
from errands.model import requests
from errands.model.base import A2AObject
from errands.model.core import Message, Part, Role, TaskState
from errands.operations import OPERATIONS, Operation
from errands.testing import BASE_URL, InProcessTransport, http_client
from errands.wire.praisonai import METHODS
from tests.auth.issuer import AUDIENCE, ISSUER, Keys, now

pytestmark = pytest.mark.anyio

BINDINGS = [(version, binding) for version in ("1.0", "0.3") for binding in ("jsonrpc", "http+json", "grpc")]
#: What only the owner may learn.
SECRET = "the owner's secret"
KEY = "a key that is revoked later"
CARD = AgentCardConfig(
    name="Vault",
    description="Keeps secrets.",
    capabilities=CapabilitiesConfig(streaming=True, extended_agent_card=True, push_notifications=True),
)


class Vault(Worker):
    """Asks, so that the task stays open."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.request_input(SECRET)


class Caller(NamedTuple):
    """Who calls, with which headers and for which tenant, and how it is refused."""

    name: str
    headers: dict[str, str]
    tenant: str | None = None
    reason: str = "UNAUTHENTICATED"


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def callers(keys: Keys) -> list[Caller]:
    """Everyone but the owner, who is alice of the tenant acme."""
    return [
        Caller("other user", bearer(keys.token("bob", org="acme")), reason="TASK_NOT_FOUND"),
        Caller("other tenant", bearer(keys.token("alice", org="other")), reason="TASK_NOT_FOUND"),
        Caller("other tenant by name", bearer(keys.token("alice", org="other")), "acme", "PERMISSION_DENIED"),
        Caller("anonymous", {}),
        Caller("expired token", bearer(keys.token("alice", org="acme", exp=now() - 3600))),
        Caller("wrong audience", bearer(keys.token("alice", org="acme", aud="another agent"))),
        Caller("wrong issuer", bearer(keys.token("alice", org="acme", iss="https://evil.example.com"))),
        Caller("other key", bearer(Keys().token("alice", org="acme"))),
        Caller("no tenant", bearer(keys.token("alice"))),
        Caller("revoked key", {"X-API-Key": KEY}),
    ]


def request_of(operation: Operation, task_id: str) -> A2AObject:
    """A request about the owner's task."""
    message = Message(message_id=str(uuid4()), role=Role.USER, parts=[Part(text="hi")], task_id=task_id)
    fields: dict[type[A2AObject], dict[str, Any]] = {
        requests.SendMessageRequest: {"message": message},
        requests.ListTasksRequest: {},
        requests.GetExtendedAgentCardRequest: {},
        requests.TaskPushNotificationConfig: {"task_id": task_id, "id": "c", "url": "https://example.com/hook"},
        requests.GetTaskPushNotificationConfigRequest: {"task_id": task_id, "id": "c"},
        requests.DeleteTaskPushNotificationConfigRequest: {"task_id": task_id, "id": "c"},
        requests.ListTaskPushNotificationConfigsRequest: {"task_id": task_id},
    }
    return operation.request(**fields.get(operation.request, {"id": task_id}))


class Line:
    """One binding in one version of a server; everything that comes over HTTP is recorded."""

    def __init__(self, server: A2AServer, version: str, binding: str) -> None:
        self._server = server
        self.version, self.binding = version, binding
        self.seen: list[str] = []

    @asynccontextmanager
    async def transport(self, caller: Caller) -> AsyncIterator[Transport]:
        async def record(response: httpx.Response) -> None:
            is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
            content = "" if is_stream else (await response.aread()).decode()
            self.seen.append(f"{response.status_code} {response.headers} {content}")

        http = httpx.AsyncClient(
            transport=InProcessTransport(self._server.app), base_url=BASE_URL, event_hooks={"response": [record]}
        )
        async with http, A2AClient(BASE_URL, httpx_client=http, protocol=self.binding, version=self.version) as client:
            card = client.agent_card
            choice = choose_interface(card, card_url=BASE_URL, protocol=self.binding, version=self.version, tenant=None)
            opened = open_transport(choice, http, software=b"", headers=caller.headers, timeout=10)
            self.seen.clear()  # the card is public
            yield opened
            await opened.close()

    def lacking(self, operation: Operation) -> str | None:
        """The reason for which the client does not even ask: the version does not have the operation."""
        is_missing = (self.version, self.binding, operation.name) == ("0.3", "grpc", "ListTasks")
        return "UNSUPPORTED_OPERATION" if is_missing else None

    async def outcome(
        self, transport: Transport, operation: Operation, task_id: str, tenant: str | None
    ) -> tuple[str | None, Any]:
        """The reason for which the operation is refused, or None and its result."""
        try:
            return None, await self.call(transport, operation, task_id, tenant)
        except A2AError as error:
            self.seen.append(f"{error} {error.metadata}")
            return error.reason, None

    async def call(self, transport: Transport, operation: Operation, task_id: str, tenant: str | None) -> Any:
        """The result of an operation, or the first event of a stream. Raises `A2AError`."""
        request = request_of(operation, task_id)
        request.tenant = tenant  # type: ignore[attr-defined]
        if not operation.streams:
            return await transport.call(operation, request, read_timeout=10)
        events = transport.stream(operation, request, last_event_id=None, read_timeout=10)
        try:
            return (await anext(events)).response
        finally:
            await events.aclose()


def vault(keys: Keys, api_keys: ApiKeyAuth, **options: Any) -> A2AServer:
    jwt = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=keys.published(), tenant="org")
    return A2AServer(
        worker=Vault(),
        agent_card=CARD,
        storage="memory",
        auth=[jwt, api_keys],
        extended_card_provider=lambda request: _extended(),
        push_concurrency=0,
        **options,
    )


@pytest.mark.parametrize(("version", "binding"), BINDINGS, ids=["-".join(one) for one in BINDINGS])
async def test_exactly_the_owner_gets_through_and_nothing_leaks(version: str, binding: str) -> None:
    keys, api_keys = Keys(), ApiKeyAuth({KEY: "alice", "another": "carol"})
    server = vault(keys, api_keys, grpc_port=0 if binding == "grpc" else None)
    line = Line(server, version, binding)
    owner = Caller("owner", bearer(keys.token("alice", org="acme")))
    async with server:
        async with line.transport(owner) as transport:
            opened = await line.call(transport, OPERATIONS["SendMessage"], "", None)
            task_id = opened.task.id
            hook = requests.TaskPushNotificationConfig(
                task_id=task_id, id="c", url="https://example.com/hook", token=SECRET
            )
            await transport.call(OPERATIONS["CreateTaskPushNotificationConfig"], hook, read_timeout=10)
            log = await server.engine.load(task_id, None)
            assert (log.scope.tenant, log.scope.owner) == ("acme", "alice")
        async with line.transport(Caller("key", {"X-API-Key": KEY})) as transport:
            await line.call(transport, OPERATIONS["GetExtendedAgentCard"], "", None)
        api_keys.use({"another": "carol"})
        for caller in callers(keys):
            if caller.tenant is not None and version == "0.3":
                continue  # it has no tenants
            async with line.transport(caller) as transport:
                for operation in OPERATIONS.values():
                    await _check_refusal(line, transport, operation, caller, task_id)
            token = caller.headers.get("Authorization", " ").split(" ")[1] or caller.headers.get("X-API-Key", "?")
            assert not [said for said in line.seen if SECRET in said or token in said]
        assert (await server.engine.load(task_id, None)).version == log.version
        assert [one.token for one in await server.engine.push_configs(task_id, log.scope)] == [SECRET]
        async with line.transport(owner) as transport:
            # Canceling ends the task, and deleting its config ends that, so they come last.
            last = ("DeleteTaskPushNotificationConfig", "CancelTask")
            for operation in sorted(OPERATIONS.values(), key=lambda one: one.name in last):
                reason, _ = await line.outcome(transport, operation, task_id, None)
                assert reason == line.lacking(operation), operation.name
        assert (await server.engine.load(task_id, None)).state is TaskState.CANCELED


async def _check_refusal(line: Line, transport: Transport, operation: Operation, caller: Caller, task_id: str) -> None:
    """Checks what somebody else is told about the owner's task."""
    reason, result = await line.outcome(transport, operation, task_id, caller.tenant)
    where = (operation.name, caller.name)
    if caller.reason != "TASK_NOT_FOUND":
        assert reason == (line.lacking(operation) or caller.reason), where
    elif operation.name == "ListTasks" and not line.lacking(operation):
        assert (reason, result.tasks, result.total_size) == (None, [], 0), where
    elif operation.name == "GetExtendedAgentCard":
        assert reason is None, where
    else:
        assert reason == (line.lacking(operation) or "TASK_NOT_FOUND"), where


async def _extended() -> AgentCardConfig:
    return CARD


async def test_exactly_the_owner_gets_through_in_the_dialect_of_praisonai() -> None:
    keys, api_keys = Keys(), ApiKeyAuth({KEY: "alice", "another": "carol"})
    owner = bearer(keys.token("alice", org="acme"))
    server = vault(keys, api_keys)
    async with server, http_client(server) as http:

        async def ask(method: str, headers: dict[str, str], task_id: str = "") -> httpx.Response:
            message = {"role": "user", "parts": [{"text": "hi"}]}
            params = {"message": message} if method.startswith("message/") else {"id": task_id}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return await http.post("/a2a", json=body, headers=headers)

        opened = (await ask("message/send", owner)).json()["result"]
        api_keys.use({"another": "carol"})
        for caller in callers(keys):
            for method, operation in METHODS.items():
                answer = await ask(method, caller.headers, opened["id"])
                if caller.reason == "UNAUTHENTICATED":
                    assert answer.status_code == 401, (method, caller.name)
                    assert SECRET not in answer.text, (method, caller.name)
                elif operation in ("GetTask", "CancelTask"):
                    assert answer.json()["error"]["message"] == f"Task not found: {opened['id']}", (method, caller.name)
                else:
                    assert opened["id"] not in answer.text, (method, caller.name)
        assert (await ask("tasks/get", owner, opened["id"])).json()["result"]["id"] == opened["id"]
