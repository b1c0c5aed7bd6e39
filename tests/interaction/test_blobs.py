"""Large files over the wire: they leave the log, and come back under the same authentication as their task."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import (
    A2AClient,
    A2AServer,
    AgentCardConfig,
    AgentExecutor,
    ApiKeyMiddleware,
    CapabilitiesConfig,
    EventQueue,
    Part,
    RequestContext,
    TaskContext,
    TaskUpdater,
    Worker,
)
from errands.engines.base import Engine
from errands.errors import InvalidParamsError, PayloadTooLargeError, TaskNotFoundError
from errands.model.core import Message, Role, TaskArtifactUpdateEvent
from errands.runtime.blobs import PIECE
from errands.testing import connect, http_client, serve
from tests.cells import every_engine, one_engine
from tests.interaction.conftest import Connect, Dialect
from tests.interaction.wire import message
from tests.unit.client.serving import serving

pytestmark = pytest.mark.anyio

LARGE = os.urandom(PIECE + 100_000)
CARD = AgentCardConfig(
    name="Mirror", description="Mirrors.", input_modes=["*/*"], capabilities=CapabilitiesConfig(streaming=True)
)
HTML = b"<script>alert(1)</script>" * 20_000


class Mirror(Worker):
    """Gives the files of a message back, reversed."""

    async def handle(self, ctx: TaskContext) -> None:
        for number, file in enumerate(ctx.files):
            content = file.content if file.content is not None else await ctx.read_file(file)
            await ctx.emit_artifact(
                artifact_id=f"{number}", file_bytes=content[::-1], media_type="text/html", filename=file.filename
            )
        await ctx.complete()


class MirrorExecutor(AgentExecutor):
    """The same as an executor."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        assert context.message is not None
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        parts = [Part(raw=(part.raw or b"")[::-1]) for part in context.message.parts]
        await updater.add_artifact(parts, "0", last_chunk=True)
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


def mirror(folder: Path, worker: Worker | None = None, **options: Any) -> A2AServer:
    return serve(worker or Mirror(), agent_card=CARD, blobs=str(folder / "blobs"), **options)


def mirror_at(dialect: Dialect, folder: Path, **options: Any) -> A2AServer:
    """Return one for clients of this dialect. Over gRPC, a server must be told where its HTTP is."""
    if dialect.binding == "grpc":
        options["grpc_port"] = 0
    server = mirror(folder, **options)
    server.listen_at("agent.test", 80)
    return server


async def stored_bytes(engine: Engine, server: A2AServer, task_id: str) -> int:
    log = await engine.read(task_id, server.scope(), 0)
    return sum(len(event.data) for event in log.events)


async def test_large_files_go_both_ways_and_the_log_stays_small(
    connected: Connect, dialect: Dialect, storage: str, tmp_path: Path
) -> None:
    async with connected(server := mirror_at(dialect, tmp_path, storage=storage)) as client:
        result = await client.send([Part(raw=LARGE, filename="größe.bin", media_type="x/y"), Part(raw=b"small")])
        assert result.raw_task is not None
        large, small = (artifact.parts[0] for artifact in result.raw_task.artifacts or ())
        assert small.raw == b"llams"
        assert large.url is not None
        assert large.url.startswith("http://agent.test")
        assert (large.filename, large.media_type) == ("größe.bin", "text/html")
        assert await client.download(large) == LARGE[::-1]
        assert result.raw_task.history is not None
        assert await client.download(result.raw_task.history[0].parts[0]) == LARGE
        assert await stored_bytes(server.engine, server, result.task_id) < 10_000
        found = (await client.get_task(result.task_id)).raw_task
        assert found is not None
        assert found.artifacts == result.raw_task.artifacts


@one_engine
async def test_streams_have_addresses_in_place_of_files(connected: Connect, dialect: Dialect, tmp_path: Path) -> None:
    async with connected(mirror_at(dialect, tmp_path)) as client:
        events = [event async for event in client.stream([Part(raw=LARGE)])]
        (part,) = (event.raw.artifact.parts[0] for event in events if isinstance(event.raw, TaskArtifactUpdateEvent))
        assert await client.download(part) == LARGE[::-1]


@pytest.mark.parametrize("agent", [Mirror, MirrorExecutor])
async def test_files_inside_a_message_become_blobs_too(agent: type[Worker | AgentExecutor], tmp_path: Path) -> None:
    server = mirror(tmp_path, agent())  # type: ignore[arg-type]
    async with server, http_client(server) as client:
        part = {"raw": base64.b64encode(LARGE).decode(), "mediaType": "x/y"}
        task = (await client.post("/message:send", json={"message": message(parts=[part])})).json()["task"]
        urls = [task["artifacts"][0]["parts"][0]["url"], task["history"][0]["parts"][0]["url"]]
        assert [(await client.get(url)).content for url in urls] == [LARGE[::-1], LARGE]
        assert await stored_bytes(server.engine, server, task["id"]) < 10_000


async def test_small_files_and_servers_without_a_blob_store_keep_files_inside(tmp_path: Path) -> None:
    async with connect(mirror(tmp_path, blob_bytes=len(LARGE))) as client:
        task = (await client.send([Part(raw=LARGE)])).raw_task
        assert task is not None
        assert [artifact.parts[0].raw for artifact in task.artifacts or ()] == [LARGE[::-1]]
    async with connect(serve(Mirror(), agent_card=CARD)) as client:
        task = (await client.send([Part(raw=LARGE)])).raw_task
        assert task is not None
        assert [artifact.parts[0].raw for artifact in task.artifacts or ()] == [LARGE[::-1]]
        assert client.capabilities.extensions is None


class Reads(Worker):
    """Says how a file of the message is given to it, and reads it in pieces."""

    async def handle(self, ctx: TaskContext) -> None:
        (file,) = ctx.files
        digest, position = hashlib.sha256(), 0
        while piece := await ctx.read_file(file, position, 100_000):
            digest.update(piece)
            position += len(piece)
        await ctx.complete(f"{file.content is None} {position} {digest.hexdigest()}")


class ReadsInThread(Worker):
    def handle(self, ctx: Any) -> None:  # type: ignore[override]
        (file,) = ctx.files
        ctx.complete(f"{file.content is None} {len(ctx.read_file(file))} {hashlib.sha256(LARGE).hexdigest()}")


@pytest.mark.parametrize("worker", [Reads, ReadsInThread])
async def test_a_file_larger_than_a_request_is_read_in_pieces(worker: type[Worker], tmp_path: Path) -> None:
    digest = hashlib.sha256(LARGE).hexdigest()
    for most, is_left_out in ((len(LARGE), False), (400_000, True)):
        async with connect(mirror(tmp_path, worker(), max_body_bytes=most)) as client:
            assert (await client.send([Part(raw=LARGE)])).text == f"{is_left_out} {len(LARGE)} {digest}"


class Produces(Worker):
    """Writes a file that it never has in memory as a whole."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def handle(self, ctx: TaskContext) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            for start in range(0, len(LARGE), 1000):
                yield LARGE[start : start + 1000]

        contents: list[Path | AsyncIterator[bytes]] = [self._path, pieces()]
        for number, content in enumerate(contents):
            url = await ctx.store_file(content, media_type="x/y")
            await ctx.emit_artifact(artifact_id=f"{number}", file_url=url, filename="a.bin")
        await ctx.complete()


async def test_a_handler_stores_a_file_piece_by_piece(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    await asyncio.to_thread(path.write_bytes, LARGE)
    async with connect(mirror(tmp_path, Produces(path))) as client:
        task = (await client.send("go")).raw_task
        assert task is not None
        parts = [artifact.parts[0] for artifact in task.artifacts or ()]
        assert [await client.download(part) for part in parts] == [LARGE, LARGE]
    async with connect(serve(Produces(path))) as client:
        assert (await client.send("go")).state == "failed"


async def test_a_handler_does_not_fetch_addresses_elsewhere(tmp_path: Path) -> None:
    async with connect(mirror(tmp_path, Reads())) as client:
        for url in ("http://127.0.0.1:1/x", "http://agent.test/blobs/other", "file:///etc/passwd"):
            result = await client.send([Part(url=url)])
            assert result.state == "failed"


async def test_a_blob_that_a_message_names_and_that_is_not_here_is_refused(tmp_path: Path) -> None:
    async with connect(mirror(tmp_path)) as client:
        for place in ("blobs/" + "0" * 48, "blobs/t/" + "0" * 48):
            with pytest.raises(InvalidParamsError, match="upload it again"):
                await client.send([Part(url=f"http://agent.test/{place}")])


async def test_an_artifact_can_be_sent_to_another_task(tmp_path: Path) -> None:
    async with connect(mirror(tmp_path)) as client:
        first = (await client.send([Part(raw=LARGE)])).raw_task
        assert first is not None
        second = (await client.send([first.artifacts[0].parts[0]])).raw_task  # type: ignore[index]
        assert second is not None
        assert await client.download(second.artifacts[0].parts[0]) == LARGE  # type: ignore[index]


async def test_a_message_with_the_same_file_uploaded_again_is_the_same_message(tmp_path: Path) -> None:
    async with connect(mirror(tmp_path)) as client:
        said = Message(message_id="m", role=Role.USER, parts=[Part(raw=LARGE)])
        first, again = await client.send(said), await client.send(said)
        assert first.task_id == again.task_id


# Downloads


async def a_blob(client: A2AClient, content: bytes = LARGE, filename: str = "a.html") -> str:
    task = (await client.send([Part(raw=content[::-1], filename=filename)])).raw_task
    assert task is not None
    assert task.artifacts is not None
    assert task.artifacts[0].parts[0].url is not None
    return task.artifacts[0].parts[0].url


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of HTTP, and the address of a blob."""
    server = mirror(tmp_path)
    async with connect(server) as client, http_client(server) as http:
        yield http, await a_blob(client)


@pytest.mark.parametrize(
    ("wanted", "start", "end"),
    [
        ("bytes=0-0", 0, 1),
        (f"bytes={PIECE - 10}-{PIECE + 9}", PIECE - 10, PIECE + 10),
        ("bytes=600000-", 600_000, len(LARGE)),
        ("bytes=-5", len(LARGE) - 5, len(LARGE)),
        (f"bytes=10-{10**15}", 10, len(LARGE)),
    ],
)
async def test_a_range_is_served(served: tuple[httpx.AsyncClient, str], wanted: str, start: int, end: int) -> None:
    http, url = served
    answer = await http.get(url, headers={"Range": wanted})
    assert answer.status_code == 206
    assert answer.content == LARGE[start:end]
    assert answer.headers["content-range"] == f"bytes {start}-{end - 1}/{len(LARGE)}"
    assert answer.headers["content-length"] == str(end - start)


async def test_ranges_that_do_not_fit_and_conditions(served: tuple[httpx.AsyncClient, str]) -> None:
    http, url = served
    answer = await http.get(url, headers={"Range": f"bytes={len(LARGE)}-"})
    assert (answer.status_code, answer.headers["content-range"]) == (416, f"bytes */{len(LARGE)}")
    for ignored in ("bytes=1-2,5-6", "lines=1-2", "bytes=x", "bytes=" + "9" * 30 + "-"):
        answer = await http.get(url, headers={"Range": ignored})
        assert (answer.status_code, answer.content) == (200, LARGE)
    etag = f'"{hashlib.sha256(LARGE).hexdigest()}"'
    assert answer.headers["etag"] == etag
    digest = base64.b64encode(hashlib.sha256(LARGE).digest()).decode()
    assert answer.headers["repr-digest"] == f"sha-256=:{digest}:"
    assert (await http.get(url, headers={"If-None-Match": f"W/{etag}"})).status_code == 304
    ranged = {"Range": "bytes=0-0", "If-Range": etag}
    assert (await http.get(url, headers=ranged)).status_code == 206
    assert (await http.get(url, headers={**ranged, "If-Range": '"other"'})).status_code == 200
    head = await http.head(url)
    assert (head.status_code, head.headers["content-length"], head.content) == (200, str(len(LARGE)), b"")
    assert (await http.delete(url)).status_code == 405


async def test_what_an_agent_writes_never_runs_as_a_page_of_the_server(tmp_path: Path) -> None:
    server = mirror(tmp_path)
    async with connect(server) as client, http_client(server) as http:
        answer = await http.get(await a_blob(client, HTML, 'a"\r\nSet-Cookie: x=1; ü.html'))
        assert answer.content == HTML
        assert answer.headers["content-disposition"] == (
            'attachment; filename="a___Set-Cookie_ x_1_ _.html"; '
            "filename*=UTF-8''a%22%0D%0ASet-Cookie%3A%20x%3D1%3B%20%C3%BC.html"
        )
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
        assert "set-cookie" not in answer.headers


class Typed(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_artifact(artifact_id="a", file_bytes=LARGE, media_type=ctx.user_text)
        await ctx.complete()


@pytest.mark.parametrize("media_type", ["text/html\r\nX: y", "no type", "", "ü/x", "a/b; x=y"])
async def test_a_type_that_is_none_is_not_repeated(media_type: str, tmp_path: Path) -> None:
    server = mirror(tmp_path, Typed())
    async with connect(server) as client, http_client(server) as http:
        task = (await client.send(media_type or " ")).raw_task
        assert task is not None
        answer = await http.get(task.artifacts[0].parts[0].url or "")  # type: ignore[index]
        assert answer.headers["content-type"] == "application/octet-stream"


async def test_only_the_owner_finds_a_file(tmp_path: Path) -> None:
    server = mirror(tmp_path, middlewares=[ApiKeyMiddleware(["alice", "bob"])])
    async with connect(server, client={"headers": {"X-API-Key": "alice"}}) as alice, http_client(server) as http:
        kept = await a_blob(alice)
        upload = (await alice.upload(LARGE)).url or ""
        wrong = [f"{kept[:-1]}{'0' if kept[-1] != '0' else '1'}", kept.replace("blobs/", "blobs/x"), f"{kept}.json"]
        for url in (kept, upload):
            assert (await http.get(url)).status_code == 401
            assert (await http.get(url, headers={"X-API-Key": "carol"})).status_code == 401
            assert (await http.get(url, headers={"X-API-Key": "alice"})).content == LARGE
        foreign = [await http.get(url, headers={"X-API-Key": "bob"}) for url in (kept, upload, *wrong[:2])]
        missing = await http.get(wrong[0], headers={"X-API-Key": "alice"})
        assert {answer.content for answer in foreign} == {missing.content}
        assert missing.status_code == 404
        assert (await http.get(wrong[2], headers={"X-API-Key": "alice"})).status_code == 404
        assert (await http.post("/blobs", content=b"x")).status_code == 401
    async with connect(server, client={"headers": {"X-API-Key": "bob"}}) as bob:
        with pytest.raises(InvalidParamsError, match="upload it again"):
            await bob.send([Part(url=upload)])
        with pytest.raises(TaskNotFoundError):
            await bob.download(kept)


@every_engine
async def test_a_file_cannot_be_read_any_more_when_its_task_is_deleted(storage: str, tmp_path: Path) -> None:
    server = mirror(tmp_path, storage=storage)
    async with connect(server) as client, http_client(server) as http:
        url = await a_blob(client)
        assert (await http.get(url)).content == LARGE
        await server.engine.delete(url.split("/")[-2], server.scope())
        assert (await http.get(url)).status_code == 404


async def test_tenants_have_files_of_their_own(tmp_path: Path) -> None:
    server = mirror(tmp_path)
    async with connect(server, client={"tenant": "acme"}) as client, http_client(server) as http:
        url = await a_blob(client)
        assert url.startswith("http://agent.test/acme/blobs/")
        assert (await http.get(url)).content == LARGE
        assert (await http.get(url.replace("/acme/", "/other/"))).status_code == 404
        assert (await http.get(url.replace("/acme/", "/"))).status_code == 404


async def test_a_damaged_file_is_not_sent(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    server = mirror(tmp_path)
    async with connect(server) as client, http_client(server) as http:
        url = await a_blob(client)
        (path,) = await asyncio.to_thread(lambda: list((tmp_path / "blobs").rglob(url.rpartition("/")[2])))
        path.write_bytes(LARGE[:-1] + b"?")
        cut = await http.get(url)
        assert cut.content == LARGE[:PIECE]
        assert cut.headers["content-length"] == str(len(LARGE))
        refused = await http.get(url, headers={"Range": f"bytes={PIECE}-"})
        assert refused.status_code == 500
        assert refused.json()["error"]["message"].startswith("The file cannot be read (reference ")
        assert "differs from what was written" in caplog.text


async def test_downloads_and_uploads_count_as_memory_of_the_process(tmp_path: Path) -> None:
    server = mirror(tmp_path, max_buffered_bytes=4 * PIECE)
    async with connect(server) as client, http_client(server) as http:
        url = await a_blob(client)
        server.large_work.budget.reserve(4 * PIECE)
        for refused in (await http.get(url), await http.post("/blobs", content=b"x")):
            assert refused.status_code == 503
            assert "max_buffered_bytes" in refused.json()["error"]["message"]
        server.large_work.budget.give_back(4 * PIECE)
        assert (await http.get(url)).content == LARGE
        assert server.large_work.budget.total == 0


# Uploads


async def test_an_upload_is_described_and_used_in_a_message(tmp_path: Path) -> None:
    server = mirror(tmp_path)
    async with server, http_client(server) as http:
        answer = await http.post("/blobs?filename=a%20b.txt", content=LARGE, headers={"Content-Type": "text/plain"})
        assert answer.status_code == 201
        uploaded = answer.json()
        assert answer.headers["location"] == uploaded["url"]
        assert uploaded | {"url": ""} == {
            "url": "",
            "size": len(LARGE),
            "sha256": hashlib.sha256(LARGE).hexdigest(),
            "mediaType": "text/plain",
            "filename": "a b.txt",
        }
        body = {"message": message(parts=[{"url": uploaded["url"]}])}
        task = (await http.post("/message:send", json=body)).json()["task"]
        assert (await http.get(task["artifacts"][0]["parts"][0]["url"])).content == LARGE[::-1]
        assert task["history"][0]["parts"][0]["filename"] == "a b.txt"


async def test_uploads_are_bounded(tmp_path: Path) -> None:
    server = mirror(tmp_path, max_upload_bytes=1000)
    async with server, http_client(server) as http:

        async def endless() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b"x" * 400

        for content in (b"x" * 1001, endless()):
            refused = await http.post("/blobs", content=content)
            assert refused.status_code == 413
            assert "max_upload_bytes" in refused.json()["error"]["message"]
        wrong = await http.post("/blobs", content=b"x", headers={"Content-Digest": f"sha-256=:{'A' * 43}=:"})
        assert wrong.status_code == 400
        assert (await http.post("/blobs", content=b"x", headers={"Content-Digest": "md5=:x:"})).status_code == 400
        assert (await http.post("/blobs?filename=" + "x" * 256, content=b"x")).status_code == 400
        statuses = [(await http.post("/blobs", content=b"x" * 1000)).status_code for _ in range(11)]
        assert statuses == [201] * 9 + [503] * 2
        assert server.large_work.budget.total == 0


async def test_a_web_page_cannot_upload_without_asking_first(tmp_path: Path) -> None:
    server = mirror(tmp_path)
    async with server, http_client(server) as http:
        page = {"Origin": "https://evil.example", "Content-Type": "text/plain"}
        assert (await http.post("/blobs", content=b"x", headers=page)).status_code == 403
        assert (await http.post("/blobs", content=b"x", headers={**page, "A2A-Version": "1.0"})).status_code == 201


async def test_files_are_uploaded_from_and_downloaded_to_paths_over_real_connections(tmp_path: Path) -> None:
    content = os.urandom(5_000_000)
    source, target = tmp_path / "source.bin", tmp_path / "target.bin"
    await asyncio.to_thread(source.write_bytes, content)
    server = mirror(tmp_path, max_body_bytes=len(content))
    async with server, serving(server.app) as url, A2AClient(url) as client:
        part = await client.upload(source)
        assert part.filename == "source.bin"
        task = (await client.send([part])).raw_task
        assert task is not None
        assert await client.download_to(task.artifacts[0].parts[0], target) == target  # type: ignore[index]
        assert await asyncio.to_thread(target.read_bytes) == content[::-1]
        assert sorted(path.name for path in await asyncio.to_thread(lambda: list(tmp_path.iterdir()))) == [
            *("blobs", "source.bin", "target.bin")
        ]
        with pytest.raises(PayloadTooLargeError):
            await client.download(part, max_bytes=1000)


async def test_a_client_that_goes_away_leaves_nothing_behind(tmp_path: Path) -> None:
    server = mirror(tmp_path)
    async with server, serving(server.app) as url:
        port = int(url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /blobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2000000\r\n\r\n" + b"x" * 1_000_000)
        await writer.drain()
        folder = tmp_path / "blobs"
        await _until(lambda: any(path.name.endswith(".part") for path in folder.rglob("*")))
        writer.close()
        await _until(lambda: not any(path.is_file() for path in folder.rglob("*")))
        assert server.large_work.budget.total == 0


async def _until(condition: Any) -> None:
    async with asyncio.timeout(30):
        while not await asyncio.to_thread(condition):
            await asyncio.sleep(0.01)
