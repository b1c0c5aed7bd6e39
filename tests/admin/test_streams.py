"""The log of a task as it grows: every event once, also after a cut, and a gap where events are gone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from errands import TaskContext, Worker
from errands.client import A2AClient
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.testing import BASE_URL
from errands.wire.sse import ServerSentEvent, SSEParser
from tests.admin.operating import Site, open_site, reason, site
from tests.admin.test_tasks import SCOPE
from tests.contract.changes import Changes
from tests.damage import GARBAGE, damage_event
from tests.unit.support import Gate

pytestmark = pytest.mark.anyio


class Steps(Worker):
    """Emits a word whenever the test opens the gate."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("one ", artifact_id="a")
        await self.gate()
        async with ctx.capability("look") as call:
            call.output = 1
        await ctx.emit_text_artifact("two ", artifact_id="a", append=True)
        await ctx.complete("done")


@asynccontextmanager
async def streaming(
    admin: Site, path: str, who: str | None = None, **headers: str
) -> AsyncIterator[AsyncIterator[ServerSentEvent]]:
    async with admin.http.stream("GET", f"/admin/{path}", headers=admin.named(who, headers)) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[ServerSentEvent]:
            parser = SSEParser()
            async for chunk in answer.aiter_bytes():
                for event in parser.feed(chunk):
                    yield event

        yield events()


async def whole(admin: Site, path: str, who: str | None = None, **headers: str) -> list[ServerSentEvent]:
    async with streaming(admin, path, who, **headers) as events:
        return [event async for event in events]


def versions(events: list[ServerSentEvent]) -> list[int]:
    return [json.loads(event.data)["version"] for event in events if event.event == "message"]


async def test_a_stream_shows_every_kind_of_event_as_it_happens_and_ends_with_the_task(storage: str) -> None:
    worker = Steps()
    async with open_site(worker, storage=storage) as admin:
        task_id = await admin.send(configuration={"returnImmediately": True})
        async with streaming(admin, f"tasks/{task_id}/stream") as events:
            found = [await anext(events) for _ in range(3)]
            assert [json.loads(event.data)["kind"] for event in found] == ["task", "status", "artifact"]
            worker.gate.open()
            found += [event async for event in events]
        last = (await admin.get(None, f"tasks/{task_id}")).json()["version"]
        assert versions(found) == list(range(1, last + 1))
        assert [event.id for event in found[:-1]] == [str(one) for one in range(1, last + 1)]
        assert "record" in {json.loads(event.data).get("kind") for event in found}
        assert (found[-1].event, found[-1].id) == ("end", None)
        logged = (await admin.get(None, f"tasks/{task_id}/events")).json()["events"]
        assert [json.loads(event.data) for event in found[:-1]] == logged


async def test_a_reader_that_was_cut_off_goes_on_where_it_was(storage: str) -> None:
    worker = Steps()
    worker.gate.open()
    async with open_site(worker, storage=storage) as admin:
        task_id = await admin.send()
        every = versions(await whole(admin, f"tasks/{task_id}/stream"))
        for seen in range(len(every) + 1):
            rest = await whole(admin, f"tasks/{task_id}/stream", **{"Last-Event-ID": str(seen)})
            assert versions(rest) == every[seen:]
            assert rest[-1].event == "end"
        assert versions(await whole(admin, f"tasks/{task_id}/stream?after=2")) == every[2:]
        refused = await admin.get(None, f"tasks/{task_id}/stream", **{"Last-Event-ID": "x"})
        assert reason(refused) == (400, "INVALID_PARAMS")


async def test_events_that_are_gone_are_a_gap_and_the_rest_follows() -> None:
    engine = MemoryEngine(retention=Retention(events_per_task=5))
    async with open_site(storage=engine) as admin:
        changes = Changes(engine.clock)
        await engine.commit(changes.start(scope=SCOPE, due_at=2**50))
        for _ in range(20):
            await engine.commit(changes.chunk(scope=SCOPE))
        await engine.sweep()
        kept = (await admin.get(None, "tasks/t/events")).json()["events"][0]["version"]
        assert kept > 4
        async with streaming(admin, "tasks/t/stream", **{"Last-Event-ID": "3"}) as events:
            gap = await anext(events)
            found = [await anext(events) for _ in range(22 - kept + 1)]
            await engine.commit(changes.complete(scope=SCOPE))
            found += [event async for event in events]
        assert (gap.event, gap.id, json.loads(gap.data)) == (
            "gap",
            str(kept - 1),
            {"version": kept - 1, "after": 3, "before": kept},
        )
        assert versions(found) == list(range(kept, 24))


async def test_an_event_that_cannot_be_read_does_not_end_the_stream(storage: str) -> None:
    worker = Steps()
    worker.gate.open()
    async with open_site(worker, storage=storage) as admin:
        task_id = await admin.send()
        last = (await admin.get(None, f"tasks/{task_id}")).json()["version"]
        await damage_event(admin.server.engine, task_id, 3, GARBAGE)
        found = await whole(admin, f"tasks/{task_id}/stream")
    assert versions(found) == list(range(1, last + 1))
    assert [json.loads(event.data)["version"] for event in found if '"unreadable":true' in event.data] == [3]


async def test_owners_see_only_the_kinds_of_events_that_a2a_shows() -> None:
    worker = Steps()
    worker.gate.open()
    async with site(worker) as admin:
        task_id = await admin.send("alice")
        found = await whole(admin, f"tasks/{task_id}/stream", "alice")
    kinds = [json.loads(event.data)["kind"] for event in found if event.event == "message"]
    assert set(kinds) == {"task", "status", "artifact"}
    assert found[-1].event == "end"


async def test_streams_of_a_caller_are_counted() -> None:
    async with open_site(Steps(), caller_max_streams=1, drain_timeout=0) as admin:
        task_id = await admin.send(configuration={"returnImmediately": True})
        async with streaming(admin, f"tasks/{task_id}/stream") as events:
            await anext(events)
            assert reason(await admin.get(None, f"tasks/{task_id}/stream")) == (429, "TOO_MANY_STREAMS")
        async with streaming(admin, f"tasks/{task_id}/stream") as events:
            await anext(events)


async def test_a_stream_says_that_it_lives_and_why_the_server_ends_it() -> None:
    async with open_site(Steps(), keep_alive=0.01, drain_timeout=0) as admin:
        task_id = await admin.send(configuration={"returnImmediately": True})
        async with admin.http.stream("GET", f"/admin/tasks/{task_id}/stream") as answer:
            chunks = answer.aiter_bytes()
            seen = b""
            while b": keep-alive" not in seen:
                seen += await anext(chunks)
            await admin.server.drain()
            rest = b"".join([chunk async for chunk in chunks])
    assert b"event: error" in rest
    assert b"UNAVAILABLE" in rest
    assert b"event: end" not in rest


async def test_files_in_events_have_addresses_that_the_reader_can_use(tmp_path: Any) -> None:
    class Files(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.emit_artifact(artifact_id="file", file_bytes=b"x" * 5000, media_type="text/plain")
            await ctx.complete("done")

    async with open_site(Files(), blobs=str(tmp_path / "blobs"), blob_bytes=1000) as admin:
        async with A2AClient(BASE_URL, httpx_client=admin.http) as client:
            task_id = (await client.send("hi")).task_id
        task = (await admin.get(None, f"tasks/{task_id}")).json()["task"]
        events = (await admin.get(None, f"tasks/{task_id}/events")).text
        stream = (await admin.get(None, f"tasks/{task_id}/stream")).text
        url = task["artifacts"][0]["parts"][0]["url"]
        assert url.startswith(f"{BASE_URL}/blobs/")
        assert url in events
        assert url in stream
        assert (await admin.http.get(url)).content == b"x" * 5000
