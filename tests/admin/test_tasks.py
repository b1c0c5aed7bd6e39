"""Tasks as rows of a table, and one task with its timeline and its log, however large they are."""

from __future__ import annotations

import asyncio
import time
from itertools import chain
from typing import Any

import pytest

from errands import A2AServer, TaskContext, Worker
from errands.engines.base import Retention
from errands.engines.memory import MemoryEngine
from errands.model import core, log
from errands.model.base import encode
from errands.model.core import StreamResponse, TaskState
from errands.model.log import Draft, Scope, Work
from errands.policy import records
from errands.runtime.inner import InnerAgents
from errands.server import admin as admin_module
from errands.server import task_table
from errands.server.admin_documents import bounded_task
from errands.testing import serve
from tests.admin.operating import Obedient, Site, ids, open_site, reason, site
from tests.contract.changes import Changes
from tests.damage import GARBAGE, damage_event

pytestmark = pytest.mark.anyio

SCOPE = Scope(agent="Test agent")


async def pages(admin: Site, query: str = "", who: str | None = None) -> list[list[str]]:
    """The ids on each page of a list."""
    found, cursor = [], ""
    while True:
        answer = await admin.get(who, f"tasks?{query}&before={cursor}")
        found.append(ids(answer))
        cursor = answer.json()["next"]
        if not cursor:
            return found


# Lists


async def test_pages_have_every_task_once_the_newest_first(storage: str) -> None:
    async with open_site(storage=storage) as admin:
        made = [await admin.send(text=f"number {number}") for number in range(7)]
        found = await pages(admin, "limit=3")
        times = [row["statusAt"] for row in (await admin.get(None, "tasks")).json()["tasks"]]
    assert [len(page) for page in found] == [3, 3, 1]
    assert sorted(chain.from_iterable(found)) == sorted(made)
    assert times == sorted(times, reverse=True)


async def test_a_row_says_what_was_asked_and_why_it_failed() -> None:
    async with open_site() as admin:
        await admin.send(text="fail   now\nplease " + "x" * 1000)
        [row] = (await admin.get(None, "tasks")).json()["tasks"]
    assert row["words"].startswith("fail now please xxx")
    assert len(row["words"]) == 201
    assert (row["state"], row["reason"], row["leases"], row["worker"]) == ("failed", "it is broken", 1, "")
    assert row["createdAt"] <= row["statusAt"] <= row["updatedAt"]


def test_leases_that_a_stopping_process_gave_back_are_not_tries() -> None:
    task = core.Task(id="t", status=core.TaskStatus(state=TaskState.WORKING))
    head = log.Head(version=5, state=TaskState.WORKING, attempt=4, attempt_base=1, given_back=2, worker="w")
    stored = log.StoredTask(task=task, head=head, scope=SCOPE)
    row = task_table.TableRow.of(stored, is_operator=True)
    assert (row.attempt, row.leases) == (1, 4)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("state=completed", ["Tea for two", "coffee"]),
        ("state=failed,input-required", ["ask me", "fail"]),
        ("state=TASK_STATE_FAILED", ["fail"]),
        ("waiting=1", ["ask me"]),
        ("waiting=0&state=failed", ["fail"]),
        ("q=tea", ["Tea for two"]),
        ("q=FOR%20TWO", ["Tea for two"]),
        ("q=nothing", []),
        ("context=c1", ["coffee"]),
        ("owner=", ["Tea for two", "ask me", "coffee", "fail"]),
        ("owner=somebody", []),
        ("agent=another", []),
        ("retried=1", []),
    ],
)
async def test_filters(query: str, expected: list[str]) -> None:
    async with open_site() as admin:
        for text, more in (("Tea for two", {}), ("ask me", {}), ("fail", {}), ("coffee", {"contextId": "c1"})):
            await admin.send(text=text, **more)
        for limit in (1, 50):
            rows = [row async for row in every_row(admin, f"{query}&limit={limit}")]
            assert sorted(row["words"] for row in rows) == expected


async def test_tasks_in_rare_states_are_found_without_looking_at_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_table, "MOST_SCANNED", 5)
    async with open_site() as admin:
        asking, failed = await admin.send(text="ask me"), await admin.send(text="fail")
        for _ in range(20):
            await admin.send()
        for query, expected in (("waiting=1", [asking]), ("state=failed,input-required", [failed, asking])):
            answer = (await admin.get(None, f"tasks?{query}")).json()
            assert [row["id"] for row in answer["tasks"]] == expected
            assert (answer["scanned"], answer["next"]) == (len(expected), None)


async def every_row(admin: Site, query: str) -> Any:
    cursor = ""
    while True:
        answer = (await admin.get(None, f"tasks?{query}&before={cursor}")).json()
        for row in answer["tasks"]:
            yield row
        if not (cursor := answer["next"]):
            return


async def test_a_task_is_found_by_the_beginning_of_its_id() -> None:
    async with open_site() as admin:
        made = [await admin.send() for _ in range(3)]
        assert ids(await admin.get(None, f"tasks?q={made[1]}")) == [made[1]]


async def test_a_task_whose_turn_was_tried_again_is_found() -> None:
    async with open_site() as admin:
        changes = Changes(admin.server.engine.clock)
        for task_id in ("once", "twice"):
            await admin.server.engine.commit(changes.create(task_id, scope=SCOPE, due_at=2**52))
        again = changes.move("twice", scope=SCOPE, work=Work.LEASE, worker="w", due_at=2**52)
        for _ in range(2):
            await admin.server.engine.commit(again)
        assert ids(await admin.get(None, "tasks?retried=1")) == ["twice"]
        assert (await admin.get(None, "tasks/twice")).json()["attempt"] == 2


async def test_one_answer_looks_at_a_bounded_number_of_tasks_and_says_where_to_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_table, "MOST_SCANNED", 20)
    async with open_site() as admin:
        first = await admin.send(text="the needle")
        for _ in range(50):
            await admin.send(text="hay")
        answers: list[Any] = []
        cursor: str | None = ""
        while cursor is not None:
            answers.append((await admin.get(None, f"tasks?q=needle&before={cursor}")).json())
            cursor = answers[-1]["next"]
    assert [answer["scanned"] for answer in answers] == [20, 20, 11]
    assert [[row["id"] for row in answer["tasks"]] for answer in answers] == [[], [], [first]]


async def test_tasks_of_a_few_states_are_found_behind_any_number_of_others(
    storage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_table, "MOST_SCANNED", 20)
    async with open_site(storage=storage) as admin:
        wanted = [await admin.send(text=text) for text in ("ask", "fail", "ask", "fail")]
        for _ in range(30):
            await admin.send()
        for query in (
            "state=failed,input-required",
            "state=failed,input-required,rejected&limit=3",
            "state=failed,input-required&limit=1",
        ):
            found = list(chain.from_iterable(await pages(admin, query)))
            assert sorted(found) == sorted(wanted)
        assert len(await pages(admin, "state=failed,input-required")) == 1
        assert sorted(ids(await admin.get(None, "tasks?waiting=1"))) == sorted(wanted[::2])
        assert ids(await admin.get(None, "tasks?waiting=1&state=failed")) == []
        times = [
            row["statusAt"] for row in (await admin.get(None, "tasks?state=failed,input-required")).json()["tasks"]
        ]
        assert times == sorted(times, reverse=True)


async def test_tasks_of_inner_agents_are_in_the_same_order_and_on_the_same_pages(storage: str) -> None:
    server = serve(Obedient(), console="on", storage=storage, inner=InnerAgents({"one": Obedient(), "two": Obedient()}))
    async with site(server=server) as admin:
        changes = Changes(server.engine.clock)
        made = []
        for number in range(20):
            scope = Scope(agent=("Test agent", "one", "two", "one")[number % 4])
            at = server.engine.clock() - 1000 * (20 - number)
            fields = {"scope": scope, "at": at, "work": Work.IDLE, "context_id": "c"}
            await server.engine.commit(changes.create(f"t{number:02}", **fields))
            made.append(f"t{number:02}")
        assert (await admin.get(None, "me")).json()["innerAgents"] == ["one", "two"]
        for limit in (1, 3, 7, 20, 50):
            assert list(chain.from_iterable(await pages(admin, f"limit={limit}"))) == made[::-1]
        of_one = chain.from_iterable(await pages(admin, "limit=2&agent=one"))
        assert list(of_one) == [one for one in made[::-1] if int(one[1:]) % 2]
        assert (await admin.get(None, "tasks/t01")).json()["agent"] == "one"


@pytest.mark.parametrize(
    "query", ["before=x", "before=e30x", "limit=0", "limit=-1", "limit=x", "state=lost", "before=" + "A" * 30_000]
)
async def test_queries_that_make_no_sense_are_refused(query: str) -> None:
    async with open_site() as admin:
        assert reason(await admin.get(None, f"tasks?{query}")) == (400, "INVALID_PARAMS")


async def test_a_damaged_task_is_shown_as_failed_and_hides_no_other(storage: str) -> None:
    async with open_site(storage=storage) as admin:
        broken, whole = await admin.send(), await admin.send()
        for version in range((await admin.get(None, f"tasks/{broken}")).json()["version"] + 1):
            await damage_event(admin.server.engine, broken, version, GARBAGE)
        rows = {row["id"]: row for row in (await admin.get(None, "tasks")).json()["tasks"]}
        assert (rows[broken]["state"], rows[whole]["state"]) == ("failed", "completed")
        assert rows[broken]["damage"]
        shown = (await admin.get(None, f"tasks/{broken}")).json()
        assert (shown["task"]["status"]["state"], shown["children"]) == ("TASK_STATE_FAILED", [])
        timeline = (await admin.get(None, f"tasks/{broken}/timeline")).json()
        assert "an event that cannot be read" in [span["title"] for span in timeline["spans"]]
        events = (await admin.get(None, f"tasks/{broken}/events")).json()["events"]
        assert events
        assert all(event["unreadable"] and event["data"] is None for event in events)
        stream = await admin.get(None, f"tasks/{broken}/stream")
        assert stream.text.count('"unreadable":true') == len(events)
        assert "event: end" in stream.text


# One task


async def test_a_large_task_is_shown_without_what_would_make_the_answer_large(storage: str) -> None:
    class Large(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.emit_text_artifact("small", artifact_id="small")
            await ctx.emit_text_artifact("x" * 10_000_000, artifact_id="large")
            await ctx.complete("done")

    async with open_site(Large(), storage=storage) as admin:
        task_id = await admin.send()
        answer = await admin.get(None, f"tasks/{task_id}")
        shown = answer.json()
        assert len(answer.content) < 10_000
        assert [one["artifactId"] for one in shown["leftOut"]["artifacts"]] == ["large"]
        assert shown["leftOut"]["artifacts"][0]["bytes"] > 10_000_000
        assert [artifact.get("parts") for artifact in shown["task"]["artifacts"][:2]] == [[{"text": "small"}], []]
        events = (await admin.get(None, f"tasks/{task_id}/events")).json()
        large = [event for event in events["events"] if event.get("leftOut")]
        assert [event["bytes"] > 10_000_000 for event in large] == [True]
        stream = await admin.get(None, f"tasks/{task_id}/stream")
        assert len(stream.content) < 100_000
        assert len((await admin.get(None, f"tasks/{task_id}/timeline")).content) < 10_000


def test_a_task_that_is_cut_keeps_its_newest_messages() -> None:
    def message(number: int, size: int) -> core.Message:
        return core.Message(message_id=f"m{number}", role=core.Role.USER, parts=[core.Part(text="x" * size)])

    status = core.TaskStatus(state=TaskState.WORKING, message=message(99, 100_000))
    task = core.Task(
        id="t", status=status, history=[message(n, 10_000) for n in range(20)], metadata={"x": "y" * 90_000}
    )
    cut, left_out = bounded_task(task, 100_000)
    assert [one.message_id for one in cut.history or ()] == [f"m{n}" for n in range(16, 20)]
    assert left_out == {"artifacts": [], "messages": 16, "statusMessage": True, "metadata": True}
    assert len(encode(cut)) < 100_000
    assert bounded_task(task, 10**7) == (task, {})


def test_a_task_with_very_many_artifacts_is_cut_too() -> None:
    artifacts = [
        core.Artifact(artifact_id=f"{n}-{'x' * 500}", parts=[core.Part(text="y" * 100)]) for n in range(10_000)
    ]
    task = core.Task(id="t", status=core.TaskStatus(state=TaskState.WORKING), artifacts=artifacts)
    cut, left_out = bounded_task(task, 200_000)
    assert len(encode(cut)) < 200_000
    assert len(left_out["artifacts"]) == 100
    assert len(cut.artifacts or ()) + left_out["moreArtifacts"] == 10_000


async def test_ten_thousand_chunks_are_answered_soon_in_few_spans_and_leave_the_loop_free(storage: str) -> None:
    async with open_site(storage=storage) as admin:
        await write_chunks(admin.server, 10_000)
        longest, stopped = 0.0, asyncio.Event()

        async def watch() -> None:
            nonlocal longest
            while not stopped.is_set():
                before = time.perf_counter()
                await asyncio.sleep(0)
                longest = max(longest, time.perf_counter() - before)

        watcher = asyncio.create_task(watch())
        began = time.perf_counter()
        answer = await admin.get(None, "tasks/t/timeline")
        took = time.perf_counter() - began
        stopped.set()
        await watcher
        timeline = answer.json()
        assert len(timeline["spans"]) < 10
        [output] = [span for span in timeline["spans"] if span["lane"] == "output"]
        assert output["detail"]["count"] == 10_000
        assert len(answer.content) < 10_000
        assert took < 5.0
        assert longest < 0.25
        part = (await admin.get(None, "tasks/t/timeline?from=5000&to=5099")).json()
        assert [span["detail"]["count"] for span in part["spans"]] == [100]
        assert part["version"] == 5099


async def write_chunks(server: A2AServer, count: int) -> None:
    """Write a task `t` that streams."""
    changes = Changes(server.engine.clock)
    await server.engine.commit(changes.start(scope=SCOPE, due_at=2**50))
    update = core.TaskArtifactUpdateEvent(
        "t", "context of t", core.Artifact(artifact_id="a", parts=[core.Part(text="word ")]), append=True
    )
    draft = Draft("artifact", encode(StreamResponse(artifact_update=update)))
    for _ in range(count // 500):
        await server.engine.commit(changes.move(scope=SCOPE, fence=1, events=(draft,) * 500))


async def test_of_a_very_long_log_the_timeline_shows_the_newest_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin_module, "MOST_EVENTS", 1000)
    async with open_site() as admin:
        await write_chunks(admin.server, 5000)
        timeline = (await admin.get(None, "tasks/t/timeline")).json()
        assert timeline["leftOut"] == {"events": 4002}
        assert [span["detail"]["count"] for span in timeline["spans"]] == [1000]
        older = (await admin.get(None, "tasks/t/timeline?to=1000")).json()
        assert (older["leftOut"], older["spans"][-1]["to"]) == ({}, 1000)


async def test_records_are_in_the_timeline_even_where_other_events_are_no_longer_kept() -> None:
    engine = MemoryEngine(retention=Retention(events_per_task=5))
    async with open_site(storage=engine) as admin:
        changes = Changes(engine.clock)
        called = records.encode(records.ModelCalled(at="", model="m", prompt=7))
        await engine.commit(changes.start(scope=SCOPE, due_at=2**50))
        await engine.commit(changes.move(scope=SCOPE, events=(Draft("record", called),)))
        for _ in range(20):
            await engine.commit(changes.chunk(scope=SCOPE))
        await engine.sweep()
        timeline = (await admin.get(None, "tasks/t/timeline")).json()
        assert timeline["gap"]
        assert [span["lane"] for span in timeline["spans"]] == ["model", "output"]
        events = (await admin.get(None, "tasks/t/events")).json()
        assert events["gap"]
        assert events["events"][0]["version"] > 3


async def test_the_log_is_read_page_by_page(storage: str) -> None:
    async with open_site(storage=storage) as admin:
        await write_chunks(admin.server, 500)
        found: list[int] = []
        after: int | None = 0
        while after is not None:
            page = (await admin.get(None, f"tasks/t/events?after={after}&limit=99")).json()
            found += [event["version"] for event in page["events"]]
            assert page["version"] == 502
            after = page["next"]
        assert found == list(range(1, 503))
        between = (await admin.get(None, "tasks/t/events?after=10&before=13")).json()
        assert ([event["version"] for event in between["events"]], between["next"]) == ([11, 12], None)
        states = (await admin.get(None, "tasks/t/events?kind=status,task")).json()["events"]
        assert [(event["version"], event["kind"]) for event in states] == [(1, "task"), (2, "status")]
        assert states[0]["lease"] == {"attempt": 1, "worker": "worker", "until": 2**50, "cause": "new"}
        assert states[0]["data"]["task"]["id"] == "t"
        assert reason(await admin.get(None, "tasks/t/events?kind=secret")) == (400, "INVALID_PARAMS")


async def test_a_task_names_the_tasks_that_it_has_delegated_to_and_those_their_parent() -> None:
    async with open_site() as admin:
        engine, changes = admin.server.engine, Changes(admin.server.engine.clock)
        await engine.commit(changes.start(scope=SCOPE, due_at=2**50))
        began = records.encode(records.DelegationBegan(at="", call="c", task_id="child"))
        await engine.commit(changes.move(scope=SCOPE, events=(Draft("record", began),)))
        options = Draft("request", b'{"message_id":"m","parent":"t","depth":1}')
        child = changes.create("child", scope=SCOPE, due_at=2**50)
        await engine.commit(changes.create("child", scope=SCOPE, due_at=2**50, events=(*child.events, options)))
        parent, child_row = [(await admin.get(None, f"tasks/{one}")).json() for one in ("t", "child")]
    assert (parent["children"], parent["parent"], parent["depth"]) == (["child"], "", 0)
    assert (child_row["children"], child_row["parent"], child_row["depth"]) == ([], "t", 1)
