"""Large files under authentication: who may download, probe, upload and use them."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import (
    A2AClient,
    A2AServer,
    AccessRule,
    AgentCardConfig,
    ApiKeyAuth,
    Caller,
    JWTAuth,
    Part,
    TaskContext,
    Worker,
)
from errands.client.credentials import BearerToken
from errands.errors import InvalidParamsError
from errands.runtime.blobs import PIECE
from errands.testing import BASE_URL, http_client
from tests.auth.issuer import AUDIENCE, ISSUER, Keys, now
from tests.interaction.wire import message
from tests.unit.client.serving import serving
from tests.waiting import until

pytestmark = pytest.mark.anyio

LARGE = os.urandom(400_000)
CARD = AgentCardConfig(name="Archive", description="Keeps files.", input_modes=["*/*"])
KEYS = Keys()
ALICE = {"X-API-Key": "alice's"}
RULES = [
    AccessRule(when="caller.owner == 'denied'", deny="not you"),
    AccessRule(
        when="caller.owner == 'alice' && operation == 'SendMessage' && 'frozen' in caller.claims", deny="frozen"
    ),
    AccessRule(when="caller.owner == 'auditor'", grant="read"),
    AccessRule(when="caller.owner == 'operator'", grant="write"),
]


class Archive(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        for number, file in enumerate(ctx.files):
            content = file.content if file.content is not None else await ctx.read_file(file)
            await ctx.emit_artifact(artifact_id=f"{number}", file_bytes=content[::-1])
        await ctx.complete()


class Idle(Worker):
    """Asks, so that tasks stay open."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.request_input("more?")


def archive(folder: Path, worker: Worker | None = None, **options: Any) -> A2AServer:
    keys = {f"{name}'s": name for name in ("alice", "bob", "denied", "auditor", "operator")}
    callers = {**keys, "tenant's": Caller(owner="alice", tenant="acme")}
    jwt = JWTAuth(issuer=ISSUER, audience=AUDIENCE, keys=KEYS.published())
    return A2AServer(
        worker=worker or Archive(),
        agent_card=CARD,
        storage="memory",
        blobs=str(folder / "blobs"),
        auth=[ApiKeyAuth(callers), jwt],
        access_rules=RULES,
        **options,
    )


@pytest.fixture
async def http(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    server = archive(tmp_path)
    async with server, http_client(server) as client:
        yield client


def key(name: str) -> dict[str, str]:
    return {"X-API-Key": f"{name}'s"}


def bearer(**claims: Any) -> dict[str, str]:
    return {"Authorization": f"Bearer {KEYS.token('alice', **claims)}"}


async def upload(http: httpx.AsyncClient, headers: dict[str, str], path: str = "/blobs") -> httpx.Response:
    return await http.post(path, content=LARGE, headers=headers)


async def send(http: httpx.AsyncClient, headers: dict[str, str], url: str, path: str = "") -> httpx.Response:
    body = {"message": message(parts=[{"url": url}])}
    return await http.post(f"{path}/message:send", json=body, headers={"A2A-Version": "1.0", **headers})


#: Everyone who may not see what belongs to alice, and the status that tells so.
STRANGERS: list[tuple[str, dict[str, str], int]] = [
    ("anonymous", {}, 401),
    ("wrong key", {"X-API-Key": "guessed"}, 401),
    ("expired", bearer(exp=now() - 3600), 401),
    ("wrong audience", bearer(aud="another agent"), 401),
    ("other user", key("bob"), 404),
    ("other user for alice", {**key("bob"), "Errands-Owner": "alice"}, 403),
    ("other tenant", key("tenant"), 404),
    ("denied", key("denied"), 403),
    ("denied for alice", {**key("denied"), "Errands-Owner": "alice"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), [one[1:] for one in STRANGERS], ids=[one[0] for one in STRANGERS])
async def test_strangers_learn_nothing_about_a_file(
    http: httpx.AsyncClient, headers: dict[str, str], status: int
) -> None:
    waiting = (await upload(http, ALICE)).json()["url"]
    task = (await send(http, ALICE, (await upload(http, ALICE)).json()["url"])).json()["task"]
    kept = task["artifacts"][0]["parts"][0]["url"]
    etag = (await http.get(kept, headers=ALICE)).headers["etag"]
    missing = "0" * 48
    for url in (kept, waiting):
        nowhere = url[:-48] + missing
        for method in ("GET", "HEAD"):
            for more in (
                {},
                {"Range": "bytes=0-9"},
                {"If-None-Match": etag},
                {"If-None-Match": "*"},
                {"Range": "bytes=9999999-"},
            ):
                answers = [await http.request(method, one, headers={**headers, **more}) for one in (url, nowhere)]
                found, gone = ((one.status_code, sorted(one.headers.items()), one.content) for one in answers)
                assert found == gone
                assert found[0] == status
        refused = await send(http, headers, url)
        assert refused.status_code in (400, status)
        assert refused.status_code != 200
    if status in (401, 403):
        assert (await upload(http, headers)).status_code == status


async def test_access_rules_hold_for_downloads_and_uploads(http: httpx.AsyncClient) -> None:
    task = (await send(http, ALICE, (await upload(http, ALICE)).json()["url"])).json()["task"]
    url = task["artifacts"][0]["parts"][0]["url"]
    for name in ("auditor", "operator"):
        assert (await http.get(url, headers=key(name))).content == LARGE[::-1]
        assert (await http.get(url, headers={**key(name), "Errands-Owner": "alice"})).status_code == 200
        assert (await http.get(url, headers={**key(name), "Errands-Owner": "bob"})).status_code == 404
    assert (await upload(http, {**key("auditor"), "Errands-Owner": "alice"})).status_code == 403
    for_alice = await upload(http, {**key("operator"), "Errands-Owner": "alice"})
    assert for_alice.status_code == 201
    # It belongs to alice: the operator's own messages cannot use it, and hers can.
    assert (await send(http, key("operator"), for_alice.json()["url"])).status_code == 400
    assert (await send(http, ALICE, for_alice.json()["url"])).status_code == 200
    frozen = {"Authorization": f"Bearer {KEYS.token('alice', frozen=True)}"}
    assert (await http.get(url, headers=frozen)).status_code == 200
    assert (await upload(http, frozen)).status_code == 403


async def test_a_tenant_of_others_cannot_be_named_in_the_path(http: httpx.AsyncClient) -> None:
    assert (await upload(http, key("tenant"), "/other/blobs")).status_code == 403
    own = await upload(http, key("tenant"), "/acme/blobs")
    assert own.status_code == 201
    assert (await http.get(own.json()["url"], headers=key("tenant"))).status_code == 200
    assert (await http.get(own.json()["url"].replace("/acme/", "/other/"), headers=key("tenant"))).status_code == 403
    assert (await http.get(own.json()["url"], headers=key("bob"))).status_code == 404


async def test_a_client_uploads_and_downloads_with_its_credentials(tmp_path: Path) -> None:
    server = archive(tmp_path)
    async with (
        server,
        http_client(server) as http,
        A2AClient(BASE_URL, httpx_client=http, credentials=BearerToken(lambda: KEYS.token("alice"))) as client,
    ):
        task = (await client.send([Part(raw=LARGE)])).raw_task
        assert task is not None
        part = (task.artifacts or [])[0].parts[0]
        assert await client.download(part) == LARGE[::-1]
        assert (await client.download_to(part, tmp_path / "file")).read_bytes() == LARGE[::-1]


async def test_a_file_is_uploaded_with_the_credentials_of_its_message(tmp_path: Path) -> None:
    server = archive(tmp_path)
    async with (
        server,
        http_client(server) as http,
        A2AClient(BASE_URL, httpx_client=http, credentials=KEYS.token("bob")) as client,
    ):
        task = (await client.send([Part(raw=LARGE)], credentials=KEYS.token("alice"))).raw_task
        assert task is not None
        part = (task.artifacts or [])[0].parts[0]
        assert (await server.engine.load(task.id, None)).scope.owner == "alice"
        assert await client.download(part, credentials=KEYS.token("alice")) == LARGE[::-1]
        bobs = await client.upload(LARGE)
        with pytest.raises(InvalidParamsError):
            await client.send([bobs], credentials=KEYS.token("alice"))


@pytest.mark.parametrize("storage", ["memory", "sqlite"])
async def test_files_count_for_the_bytes_of_their_owner(storage: str, tmp_path: Path) -> None:
    server = archive(tmp_path, caller_max_bytes=1_000_000, worker=Idle())
    if storage == "sqlite":
        server.use_storage(f"sqlite:///{tmp_path}/tasks.db")
    async with server, http_client(server) as http:
        first = (await send(http, ALICE, (await upload(http, ALICE)).json()["url"])).json()["task"]
        assert (await send(http, ALICE, (await upload(http, ALICE)).json()["url"])).status_code == 200
        files = stored_files(tmp_path)
        for more in ({}, {"taskId": first["id"]}):
            inside = {"raw": base64.b64encode(LARGE).decode()}
            refused = await http.post("/message:send", json={"message": message(parts=[inside], **more)}, headers=ALICE)
            assert (refused.status_code, refused.json()["error"]["details"][0]["reason"]) == (429, "TOO_MANY_BYTES")
        assert stored_files(tmp_path) == files
        assert (await send(http, key("bob"), (await upload(http, key("bob"))).json()["url"])).status_code == 200
    if storage == "sqlite":
        # The next process knows it, too.
        server = archive(tmp_path, caller_max_bytes=1_000_000, worker=Idle())
        server.use_storage(f"sqlite:///{tmp_path}/tasks.db")
        async with server:
            assert server.blobs is not None
            assert 800_000 < await server.blobs.stored_bytes(server.engine, server.scope("alice")) < 810_000


async def test_a_caller_gains_no_room_for_uploads_by_naming_other_tenants(tmp_path: Path) -> None:
    server = archive(tmp_path, max_upload_bytes=len(LARGE))
    async with server, http_client(server) as http:
        uploads = [await upload(http, ALICE, f"/t{number}/blobs") for number in range(11)]
        assert [one.status_code for one in uploads] == [201] * 10 + [503]
        # An upload belongs to the tenant that was named for it, and using it makes room again.
        assert (await send(http, ALICE, uploads[0].json()["url"], "/t1")).status_code == 400
        assert (await send(http, ALICE, uploads[1].json()["url"], "/t1")).status_code == 200
        assert (await upload(http, ALICE, "/t5/blobs")).status_code == 201


def stored_files(folder: Path) -> int:
    return sum(1 for path in (folder / "blobs").rglob("*") if path.is_file())


async def test_one_caller_with_many_slow_uploads_leaves_room_for_others(tmp_path: Path) -> None:
    server = archive(tmp_path, max_buffered_bytes=16 * 2 * PIECE)
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(server)
        url = await stack.enter_async_context(serving(server.app))
        readers: list[asyncio.StreamReader] = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            stack.callback(writer.close)
            head = "POST /blobs HTTP/1.1\r\nHost: localhost\r\nX-API-Key: alice's\r\nContent-Length: 9\r\n\r\nx"
            writer.write(head.encode())
            readers.append(reader)
        answers = [asyncio.create_task(reader.readline()) for reader in readers]
        stack.callback(lambda: [one.cancel() for one in answers])
        await until(lambda: sum(one.done() for one in answers) == 18)
        assert {one.result() for one in answers if one.done()} == {b"HTTP/1.1 429 Too Many Requests\r\n"}
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url))
        assert (await upload(http, ALICE)).json()["error"]["details"][0]["reason"] == "TOO_MANY_STREAMS"
        assert (await upload(http, key("bob"))).status_code == 201
