"""The page and the files of the console, without a browser."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp

import errands
from errands import A2AServer, AgentCardConfig, OIDCAuth, TaskContext, Worker
from errands.console.routes import CONTENT_SECURITY_POLICY, SIGN_IN_EXTENSION, static_files

pytestmark = pytest.mark.anyio
STATIC = Path(errands.__file__).parent / "console" / "static"


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.complete("")


def make(name: str = "Desk", **options: Any) -> A2AServer:
    settings = {"storage": "memory", "console": "on", **options}
    return A2AServer(worker=Silent(), agent_card=AgentCardConfig(name=name, description="Helps."), **settings)


@asynccontextmanager
async def client_of(app: ASGIApp) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    server = make()
    async with server, client_of(server.app) as opened:
        yield opened


@pytest.mark.parametrize("path", ["/console", "/console/", "/chat", "/chat/some%2Fcontext", "/console/tasks/1/2/3"])
async def test_every_address_of_the_console_has_the_same_page_with_relative_links(
    client: httpx.AsyncClient, path: str
) -> None:
    page = await client.get(path)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    links = re.findall(r'(?:href|src)="([^"]+)"', page.text)
    assert len(links) >= 3
    for link in links:
        assert not link.startswith(("/", "http"))
        assert (await client.get(str(page.url.join(link)))).status_code == 200
    [root] = re.findall(r'data-root="([^"]+)"', page.text)
    assert page.url.join(root).path == "/"


async def test_nothing_but_the_files_of_the_console_may_run(client: httpx.AsyncClient) -> None:
    for path in ("/console", "/chat/1"):
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"] == CONTENT_SECURITY_POLICY
        assert "unsafe" not in headers["content-security-policy"]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["cross-origin-opener-policy"] == headers["cross-origin-resource-policy"] == "same-origin"
    for path in ("/console/static/app.js", "/console/static/style.css"):
        headers = (await client.get(path)).headers
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert (headers["x-content-type-options"], headers["cross-origin-resource-policy"]) == (
            "nosniff",
            "same-origin",
        )
    page = (await client.get("/console")).text
    assert re.findall(r"<script(?![^>]* src=)[^>]*>", page) == ['<script type="application/json" id="card">']
    assert " style=" not in page
    assert re.findall(r"\son\w+=", page) == []


async def test_the_page_may_ask_the_providers_at_which_people_sign_in_and_no_others() -> None:
    one = OIDCAuth(issuer="https://id.example.com/realms/a", audience="a", console_client="console", prefix="")
    other = OIDCAuth(issuer="https://other.example.com", audience="a", name="other", prefix="other:")
    server = make(auth=[one, other])
    async with server, client_of(server.app) as opened:
        page = await opened.get("/console")
        wanted = CONTENT_SECURITY_POLICY.replace("connect-src 'self'", "connect-src 'self' https://id.example.com")
        assert page.headers["content-security-policy"] == wanted
        [card] = re.findall(r'id="card">(.*?)</script>', page.text, re.DOTALL)
        [extension] = json.loads(card)["capabilities"]["extensions"]
        assert (extension["uri"], extension["params"]) == (SIGN_IN_EXTENSION, {"clients": {"oidc": "console"}})
        server.use_auth([other])
    assert server.agent_card.extensions == []


async def test_a_card_cannot_leave_its_element(client: httpx.AsyncClient) -> None:
    name = "</script><script>alert(1)</script><!--"
    server = make(name=name)
    async with server, client_of(server.app) as opened:
        page = (await opened.get("/console")).text
    [card] = re.findall(r'id="card">(.*?)</script>', page, re.DOTALL)
    assert "<" not in card
    assert json.loads(card)["name"] == name


async def test_files_are_compressed_once_and_known_by_their_content(client: httpx.AsyncClient) -> None:
    path = "/console/static/app.js"
    content = (STATIC / "app.js").read_bytes()
    async with client.stream("GET", path, headers={"accept-encoding": "br, gzip;q=0.8"}) as packed:
        assert packed.headers["content-encoding"] == "gzip"
        assert gzip.decompress(b"".join([piece async for piece in packed.aiter_raw()])) == content
    plain = await client.get(path, headers={"accept-encoding": "identity"})
    refused = await client.get(path, headers={"accept-encoding": "gzip;q=0"})
    assert plain.content == refused.content == content
    assert "content-encoding" not in {**plain.headers, **refused.headers}
    etag = plain.headers["etag"]
    assert plain.headers["vary"] == "accept-encoding"
    for known in (etag, f'"other", W/{etag}', "*"):
        again = await client.get(path, headers={"if-none-match": known})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert (await client.get(path, headers={"if-none-match": '"other"'})).status_code == 200


async def test_head_is_answered_like_get_and_other_methods_are_refused(client: httpx.AsyncClient) -> None:
    for path in ("/console", "/console/static/style.css"):
        head, full = await client.head(path), await client.get(path)
        assert head.status_code == 200
        assert head.content == b""
        assert head.headers == full.headers
        refused = await client.post(path)
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["", "nothing.js", "%2e%2e/routes.py", "..%2froutes.py", "vendor", "vendor/", "/etc/passwd", "app.js/"]
)
async def test_there_are_no_other_files(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(f"/console/static/{path}")).status_code == 404


async def test_the_console_is_off_where_strangers_could_reach_it() -> None:
    server = make(console="auto")
    async with server, client_of(server.app) as opened:
        answered = await opened.get("/console")
        assert answered.status_code == 404
        assert "ERRANDS_CONSOLE=on" in answered.json()["error"]["message"]
        assert (await opened.get("/console/static/app.js")).status_code == 404
    server = make(console="off")
    server.listen_at("127.0.0.1", 8000)
    async with server, client_of(server.app) as opened:
        assert (await opened.get("/chat")).status_code == 404


async def test_it_is_on_at_an_address_of_this_machine() -> None:
    server = make(console="auto")
    server.listen_at("127.0.0.1", 8000)
    async with server, client_of(server.app) as opened:
        assert (await opened.get("/chat")).status_code == 200


async def test_a_fastapi_application_that_is_debugged_has_it() -> None:
    app = make(console="auto").as_fastapi_app(debug=True)
    async with app.router.lifespan_context(app), client_of(app) as opened:
        page = await opened.get("/console/tasks")
        assert page.status_code == 200
        assert (await opened.get(str(page.url.join("static/app.js")))).status_code == 200


async def test_a_mounted_agent_has_its_console_below_its_own_path() -> None:
    server = make()
    app = Starlette(routes=[Mount("/agents/desk", server.app)])
    async with server, client_of(app) as opened:
        page = await opened.get("/agents/desk/console/tasks")
        assert page.status_code == 200
        [script] = re.findall(r'<script type="module" src="([^"]+)"', page.text)
        assert page.url.join(script).path == "/agents/desk/console/static/app.js"
        assert (await opened.get(str(page.url.join(script)))).status_code == 200
        assert (await opened.get("/console")).status_code == 404


async def test_the_vendored_libraries_are_those_that_the_list_names() -> None:
    vendored = STATIC / "vendor"
    listed = json.loads((vendored / "VENDORED.json").read_text())
    for name, digest in listed["sha256"].items():
        assert hashlib.sha256((vendored / name).read_bytes()).hexdigest() == digest
    assert {library["package"] for library in listed["libraries"]} == {
        file.suffix.removeprefix(".") for file in vendored.glob("LICENSE.*")
    }
    names = {file.name for file in vendored.iterdir()}
    assert names == {*listed["sha256"], "VENDORED.json", "LICENSE.preact", "LICENSE.htm"}


async def test_every_module_is_used_and_imports_nothing_from_elsewhere() -> None:
    modules = {name: file.content.decode() for name, file in static_files().items() if name.endswith(".js")}
    used = {"app.js"}
    for name, text in modules.items():
        if name.startswith("vendor/"):
            continue
        for target in re.findall(r"""(?:from\s+|import\(|import\s+)["']([^"']+)["']""", text):
            assert target.startswith("./"), f"{name} imports {target}"
            assert target.removeprefix("./") in modules, f"{name} imports {target}"
            used.add(target.removeprefix("./"))
        for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
            assert forbidden not in text, f"{name} has {forbidden}"
    assert used == set(modules)
