"""An agent and the people who look at it: owners, an operator, an auditor and somebody of another tenant."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx

from errands import A2AServer, AccessRule, ApiKeyAuth, Caller, TaskContext, Worker
from errands.testing import http_client, serve
from tests.interaction.wire import message

KEYS = {
    "alice": Caller(owner="alice", tenant="acme", email="alice@example.com"),
    "bob": Caller(owner="bob", tenant="acme", email="bob@example.com"),
    "eve": Caller(owner="eve", tenant="other"),
    "auditor": Caller(owner="audrey", tenant="acme", scopes=frozenset({"audit"})),
    "operator": Caller(owner="oscar", tenant="ops", scopes=frozenset({"operate"})),
}
RULES = [
    AccessRule(name="auditors", when="'audit' in caller.scopes", grant="read"),
    AccessRule(name="operators", when="'operate' in caller.scopes", grant="write", reach="agent"),
]


class Obedient(Worker):
    """Does what the message says: `ask`, `fail`, or else it completes the task."""

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text.startswith("ask"):
            await ctx.request_input("which one?")
        elif ctx.user_text.startswith("fail"):
            await ctx.fail("it is broken")
        else:
            await ctx.complete(f"did {ctx.user_text}")


class Site:
    """The server over HTTP, by the names of callers; None is a caller without a name."""

    def __init__(self, server: A2AServer, http: httpx.AsyncClient) -> None:
        self.server, self.http = server, http

    async def get(self, who: str | None, path: str, **headers: str) -> httpx.Response:
        return await self.http.get(f"/admin/{path}", headers=self.named(who, headers))

    async def post(self, who: str | None, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return await self.http.post(f"/admin/{path}", json=body or {}, headers=self.named(who, headers))

    async def send(self, who: str | None = None, text: str = "hello", **more: Any) -> str:
        """Send a message and return the id of its task."""
        tenant = more.pop("tenant", None)
        configuration = more.pop("configuration", {})
        body = {"message": message(text, **more), "configuration": configuration}
        path = f"/{tenant}/message:send" if tenant else "/message:send"
        answer = await self.http.post(path, json=body, headers=self.named(who, {}))
        assert answer.status_code == 200, answer.text
        task_id: str = answer.json()["task"]["id"]
        return task_id

    def named(self, who: str | None, headers: dict[str, str]) -> dict[str, str]:
        return headers if who is None else {"X-API-Key": who, **headers}


@asynccontextmanager
async def site(
    worker: Worker | None = None,
    *,
    rules: Sequence[AccessRule] = RULES,
    server: A2AServer | None = None,
    **options: Any,
) -> AsyncIterator[Site]:
    """Serve an agent whose callers authenticate."""
    options.setdefault("push_concurrency", 0)
    server = server or serve(worker or Obedient(), auth=[ApiKeyAuth(KEYS)], access_rules=rules, **options)
    async with server, http_client(server) as http:
        yield Site(server, http)


@asynccontextmanager
async def open_site(worker: Worker | None = None, **options: Any) -> AsyncIterator[Site]:
    """Serve an agent to everyone who reaches it."""
    options = {"console": "on", "push_concurrency": 0, **options}
    async with site(server=serve(worker or Obedient(), **options)) as found:
        yield found


def ids(answer: httpx.Response) -> list[str]:
    """Return the ids of the tasks in an answer."""
    assert answer.status_code == 200, answer.text
    return [row["id"] for row in answer.json()["tasks"]]


def reason(answer: httpx.Response) -> tuple[int, str]:
    """Return the status and the reason of an error."""
    error = answer.json()["error"]
    assert error["code"] == answer.status_code
    return answer.status_code, error["details"][0]["reason"]
