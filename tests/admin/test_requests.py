"""Where the operator API is served, and which requests it refuses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from errands import A2AServer, ApiKeyAuth, ConfigurationError
from errands.errors import StorageError
from errands.testing import InProcessTransport, serve
from tests.admin.operating import KEYS, Obedient, Site, open_site, reason, site

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}
READ = ("me", "tasks", "running", "reviews", "outbox", "agent", "figures", "metrics-table")


def local(server: A2AServer, base_url: str = "http://127.0.0.1:8000") -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=InProcessTransport(server.app), base_url=base_url)


class FromElsewhere(httpx.AsyncBaseTransport):
    """Requests from another machine."""

    def __init__(self, server: A2AServer) -> None:
        self._inner = InProcessTransport(self._app)  # type: ignore[arg-type]
        self._server = server

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        await self._server.app({**scope, "client": ("192.0.2.7", 4711)}, receive, send)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return await self._inner.handle_async_request(request)


# Where it is served


async def test_it_is_on_where_only_this_machine_can_reach_the_server_and_off_elsewhere() -> None:
    for host, status in (("127.0.0.1", 200), ("::1", 200), ("localhost", 200), ("0.0.0.0", 404), ("192.0.2.1", 404)):
        server = serve(Obedient())
        server.listen_at(host, 8000)
        assert server.console.is_on == (status == 200)
        async with server, local(server) as http:
            answer = await http.get("/admin/me")
            assert answer.status_code == status, host
            if status == 404:
                assert "ERRANDS_CONSOLE=on" in answer.json()["error"]["message"]


@pytest.mark.parametrize("console", ["auto", "on"])
async def test_it_is_on_where_callers_authenticate(console: str) -> None:
    server = serve(Obedient(), auth=[ApiKeyAuth(KEYS)], console=console)
    server.listen_at("0.0.0.0", 8000)
    transport = FromElsewhere(server)
    async with server, httpx.AsyncClient(transport=transport, base_url="https://agent.example.com") as http:
        assert (await http.get("/admin/me")).status_code == 401
        assert (await http.get("/admin/me", headers={"X-API-Key": "alice"})).json()["owner"] == "alice"


async def test_the_setting_turns_it_off_everywhere_and_on_everywhere() -> None:
    off = serve(Obedient(), auth=[ApiKeyAuth(KEYS)], console="off")
    off.listen_at("127.0.0.1", 8000)
    async with off, local(off) as http:
        assert reason(await http.get("/admin/me", headers={"X-API-Key": "alice"})) == (404, "METHOD_NOT_FOUND")
    on = serve(Obedient(), console="on")
    on.listen_at("0.0.0.0", 8000)
    async with on, httpx.AsyncClient(transport=FromElsewhere(on), base_url="http://agent.example.com") as http:
        assert (await http.get("/admin/me")).json()["isOperator"] is True
    with pytest.raises(ConfigurationError, match="invalid console='maybe': expected one of auto, on, off"):
        serve(Obedient(), console="maybe")


async def test_a_debugging_application_serves_it_to_this_machine_only() -> None:
    server = serve(Obedient())
    server.as_fastapi_app(debug=True)
    async with server:
        async with local(server) as http:
            assert (await http.get("/admin/me")).status_code == 200
        async with httpx.AsyncClient(transport=FromElsewhere(server), base_url="http://192.0.2.1") as http:
            assert reason(await http.get("/admin/me")) == (403, "PERMISSION_DENIED")
    plain = serve(Obedient())
    plain.as_fastapi_app()
    async with plain, local(plain) as http:
        assert (await http.get("/admin/me")).status_code == 404


@pytest.mark.parametrize(
    "headers", [{"X-Forwarded-For": "192.0.2.7"}, {"Forwarded": "for=192.0.2.7"}, {"Via": "1.1 proxy"}]
)
async def test_without_authentication_a_proxy_on_this_machine_does_not_open_it_to_the_world(
    headers: dict[str, str],
) -> None:
    server = serve(Obedient())
    server.listen_at("127.0.0.1", 8000)
    async with server, local(server) as http:
        refused = await http.get("/admin/tasks", headers=headers)
        assert reason(refused) == (403, "PERMISSION_DENIED")
    for behind in ({"public_url": "https://agent.example.com"}, {"trust_forwarded": True}):
        server = serve(Obedient(), **behind)
        server.listen_at("127.0.0.1", 8000)
        async with server, local(server) as http:
            assert (await http.get("/admin/tasks")).status_code == 404


async def test_a_host_name_that_a_page_may_have_registered_is_refused() -> None:
    server = serve(Obedient())
    server.as_fastapi_app(debug=True)  # it is not known where this one listens
    async with server, local(server, "http://rebound.example.com:8000") as http:
        assert reason(await http.get("/admin/tasks")) == (403, "PERMISSION_DENIED")


async def test_a_process_that_only_runs_turns_does_not_serve_it(tmp_path: Any) -> None:
    server = serve(Obedient(), console="on", role="worker", storage=f"sqlite:///{tmp_path / 't.db'}")
    async with site(server=server) as admin:
        for path in READ:
            assert reason(await admin.get(None, path)) == (404, "METHOD_NOT_FOUND")


async def test_it_works_below_a_path_prefix() -> None:
    server = serve(Obedient(), console="on")

    async def mounted(scope: Any, receive: Any, send: Any) -> None:
        await server.app({**scope, "root_path": "/agents/one"}, receive, send)

    transport = InProcessTransport(mounted)  # type: ignore[arg-type]
    async with server, httpx.AsyncClient(transport=transport, base_url="http://agent.test") as http:
        assert (await http.get("/agents/one/admin/me")).status_code == 200


async def test_paths_of_tenants_are_not_mistaken_for_it() -> None:
    async with open_site() as admin:
        task_id = await admin.send(tenant="administration")
        assert (await admin.http.get(f"/administration/tasks/{task_id}")).status_code == 200
        refused = await admin.http.post("/admin/message:send", json={})
        assert reason(refused) == (404, "METHOD_NOT_FOUND")


# Requests


@pytest.mark.parametrize("path", READ)
async def test_pages_can_be_asked_for_their_head_and_take_nothing_else(path: str) -> None:
    async with open_site() as admin:
        got, head = await admin.get(None, path), await admin.http.head(f"/admin/{path}")
        assert (got.status_code, head.status_code, head.content) == (200, 200, b"")
        assert head.headers["content-type"] == got.headers["content-type"] == "application/json"
        assert got.headers["cache-control"] == "no-store"
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            refused = await admin.http.request(method, f"/admin/{path}")
            assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


async def test_changes_take_only_post_and_streams_only_get() -> None:
    async with open_site() as admin:
        for path in ("tasks/t/cancel", "tasks/t/retry", "reviews/t", "outbox/t/c/retry", "outbox/t/c/drop"):
            refused = await admin.get(None, path)
            assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        refused = await admin.http.head("/admin/tasks/t/stream")
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET")


@pytest.mark.parametrize("path", ["", "nothing", "tasks/", "tasks/t/", "tasks/t/nothing", "outbox/t/c", "figures/x"])
async def test_there_is_nothing_at_other_paths(path: str) -> None:
    async with open_site() as admin:
        assert reason(await admin.get(None, path)) == (404, "METHOD_NOT_FOUND")


@pytest.mark.parametrize(
    "headers",
    [
        {"Content-Type": "text/plain", "Origin": "https://evil.example.com"},
        {"Content-Type": "application/x-www-form-urlencoded"},
        {"Origin": "https://evil.example.com"},
    ],
)
async def test_requests_that_a_web_page_may_have_sent_change_nothing(headers: dict[str, str]) -> None:
    async with open_site() as admin:
        task_id = await admin.send(text="ask")
        for path in (f"tasks/{task_id}/cancel", f"tasks/{task_id}/retry", f"reviews/{task_id}"):
            refused = await admin.http.post(f"/admin/{path}", content=b"{}", headers=headers)
            assert reason(refused) == (400, "CONTENT_TYPE_NOT_SUPPORTED")
        assert (await admin.get(None, f"tasks/{task_id}")).json()["state"] == "input-required"
        assert len((await admin.get(None, "tasks")).json()["tasks"]) == 1


async def test_answers_cannot_be_read_by_pages_of_other_origins() -> None:
    async with open_site() as admin:
        answer = await admin.get(None, "tasks", Origin="https://evil.example.com")
        assert not [name for name in answer.headers if name.startswith("access-control-")]


@pytest.mark.parametrize("other", ["cross-site", "same-site"])
async def test_pages_of_other_origins_cannot_measure_how_long_a_search_takes(other: str) -> None:
    sent = {"Sec-Fetch-Site": other, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    opened = {"Sec-Fetch-Site": other, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    async with open_site() as admin:
        for path in ("/admin/tasks?q=secret", "/admin/figures", "/console/tasks", "/console/static/app.js"):
            assert reason(await admin.http.get(path, headers=sent)) == (403, "PERMISSION_DENIED")
        # A page of ours may be linked, but what it shows may not be opened in a window of the other page.
        assert (await admin.http.get("/console/tasks", headers=opened)).status_code == 200
        assert reason(await admin.http.get("/admin/tasks?q=secret", headers=opened)) == (403, "PERMISSION_DENIED")
        for own in ("same-origin", "none"):
            assert (await admin.get(None, "tasks", **{"Sec-Fetch-Site": own})).status_code == 200
    async with site() as admin:
        assert (await admin.get("alice", "tasks", **sent)).status_code == 200


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"{", (400, "INVALID_JSON")),
        (b"[]", (400, "INVALID_PARAMS")),
        (b'{"approved": "yes"}', (400, "INVALID_PARAMS")),
        (b'{"approved": true, "by": "bob"}', (400, "INVALID_PARAMS")),
        (b'{"approved": true, "comment": "' + b"x" * 70_000 + b'"}', (413, "PAYLOAD_TOO_LARGE")),
        (b"[" * 50_000, (400, "INVALID_REQUEST")),
        (b'{"approved": true, "comment": "\xff"}', (400, "INVALID_JSON")),
    ],
)
async def test_a_body_that_cannot_be_used_is_refused(body: bytes, expected: tuple[int, str]) -> None:
    async with open_site() as admin:
        assert reason(await admin.http.post("/admin/reviews/t", content=body, headers=JSON)) == expected


async def test_requests_count_for_the_rate_of_their_caller() -> None:
    server = serve(Obedient(), auth=[ApiKeyAuth(KEYS)], caller_rate=0.001, caller_burst=5)
    async with site(server=server) as admin:
        found = [(await admin.get("alice", "me")).status_code for _ in range(6)]
        assert found == [200] * 5 + [429]
        assert (await admin.get("bob", "me")).status_code == 200


async def test_a_store_that_fails_is_an_error_without_its_cause() -> None:
    async with open_site() as admin:
        await break_store(admin)
        answer = await admin.get(None, "running")
        assert reason(answer) == (503, "UNAVAILABLE")
        assert "SECRET" not in answer.text


async def break_store(admin: Site) -> None:
    async def running() -> Any:
        raise StorageError("SECRET")

    admin.server.engine.running = running  # type: ignore[method-assign]


async def test_the_agent_is_described_with_its_card_and_what_is_wrong_with_it() -> None:
    async with open_site() as admin:
        found = (await admin.get(None, "agent")).json()
        published = (await admin.http.get("/.well-known/agent-card.json")).json()
    assert found["card"] == published
    assert found["skills"] == published["skills"]
    assert {"severity", "where", "text"} == set(found["findings"][0])
    assert found["policy"]["rules"] == []


async def test_the_policy_is_shown_with_its_rules(tmp_path: Any) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        """
version: "2026-01-31"
limits: {max_turns: 7}
guardrails:
  before:
    - {assert: "size(input.message) < 10", condition: "true", on_fail: lock_task}
other_capabilities: refuse
"""
    )
    async with open_site(policy=str(policy)) as admin:
        found = (await admin.get(None, "agent")).json()["policy"]
    assert (found["version"], found["limits"]) == ("2026-01-31", {"max_turns": 7})
    first = found["rules"][0]
    assert (first["name"], first["action"], first["expression"], first["condition"], first["onFail"]) == (
        "guardrails.before[0]",
        "assert",
        "size(input.message) < 10",
        "true",
        "lock_task",
    )
    assert found["rules"][1]["capability"] == "*"
    assert found["text"].splitlines()[:2] == [
        "limits.max_turns: 7",
        "guardrails.before[0]: assert size(input.message) < 10 when true (on failure: lock_task)",
    ]


async def test_figures_are_those_of_this_process_and_of_the_others_in_the_store(tmp_path: Any) -> None:
    store = f"sqlite:///{tmp_path / 't.db'}"
    other = serve(Obedient(), storage=store, console="on")
    async with open_site(storage=store) as admin, other:
        assert other.reporter is not None
        await other.engine.report(other.reporter.current())
        await admin.send()
        found = (await admin.get(None, "figures")).json()
        table = (await admin.get(None, "metrics-table")).json()
        assert (await admin.get(None, f"figures?since={found['now'] + 10_000}")).json()["process"]["samples"] == []
    values = {one["name"]: one["value"] for one in found["process"]["figures"] if "labels" not in one}
    assert values["errands_turns_running"] == 0
    assert found["process"]["id"] == admin.server.pool.leases.worker_id
    assert [one["id"] for one in found["processes"]] == [other.pool.leases.worker_id]
    assert {one["name"] for one in found["process"]["figures"]} <= {row["name"] for row in table}
    async with open_site(metrics=False) as admin:
        assert reason(await admin.get(None, "figures")) == (404, "METHOD_NOT_FOUND")
