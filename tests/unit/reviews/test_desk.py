"""The desk: what waits for a review is listed, and answered once."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands import A2AServer
from errands.engines.base import Engine
from errands.engines.sqlite import SQLiteEngine
from errands.errors import PermissionDeniedError, UnsupportedOperationError
from errands.model.core import FAILED, INPUT_REQUIRED, SETTLED_STATES, SUBMITTED, Role, text_of
from errands.model.log import AskingQuery, StoredTask
from errands.policy.reviews import Review
from tests.damage import GARBAGE, damage_event
from tests.unit.reviews.support import ALICE, BOB, People, Reviewed, answers, desk_of, reviewed_server

pytestmark = pytest.mark.anyio


async def asked(server: A2AServer, text: str = "pay 500") -> str:
    """The id of a task of Alice's that waits for a review."""
    async with People(server)("alice") as (alice,):
        return (await alice.send(text)).task_id


async def settled(engine: Engine, task_id: str) -> StoredTask:
    return await engine.wait_for_state(task_id, ALICE, SETTLED_STATES, None)


async def test_what_waits_is_listed_with_its_subject(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
        stored = await server.engine.load(task_id, ALICE)
        (review,) = await desk_of(server.engine).list()
    assert review == Review(
        task_id=task_id,
        context_id=stored.task.context_id,
        agent="Test agent",
        owner="id-of-alice",
        tenant="",
        user=BOB,
        since=stored.head.status_at,
        subject={"message": "pay 500"},
        text=review.text,
    )
    assert "pay 500" in review.text


async def test_a_list_may_be_of_one_agent_or_one_reviewer(storage: str) -> None:
    async with reviewed_server(Reviewed("Bob@Example.com"), storage) as server:
        await asked(server)
        desk = desk_of(server.engine)
        assert len(await desk.list(agent="Test agent", user="BOB@example.com")) == 1
        assert await desk.list(agent="Another") == []
        assert await desk.list(user="carol") == []
        await asked(server)
        assert len(await desk.list(limit=1)) == 1


async def test_nothing_waits_in_an_empty_store(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        assert await desk_of(server.engine).list() == []


async def test_an_approved_task_goes_on_with_the_message_that_was_reviewed(storage: str) -> None:
    agent = Reviewed()
    async with reviewed_server(agent, storage) as server:
        task_id = await asked(server)
        answered = await desk_of(server.engine).answer(task_id, True, by=BOB, comment="go ahead")
        assert (answered.state, answered.head.asks) == (SUBMITTED, "")
        done = await settled(server.engine, task_id)
        assert [text_of(artifact.parts) for artifact in done.task.artifacts or ()] == ["did pay 500"]
        (answer,) = await answers(server.engine, done)
        assert await desk_of(server.engine).list() == []
    assert agent.turns == [("pay 500", 1), ("pay 500", 1)]
    said = done.task.history or []
    assert [(message.role, text_of(message.parts).split("\n")[0]) for message in said] == [
        (Role.USER, "pay 500"),
        (Role.AGENT, f'Waiting for a review by {BOB}: {{"message":"pay 500"}}'),
        (Role.USER, "approved: go ahead"),
    ]
    assert (answer.value, answer.error, answer.by, answer.message_id) == (True, None, BOB, said[2].message_id)


async def test_a_denied_task_goes_on_with_a_denial(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
        await desk_of(server.engine).answer(task_id, False, by=BOB)
        done = await settled(server.engine, task_id)
        (answer,) = await answers(server.engine, done)
    assert done.state.short == "rejected"
    assert answer.value is False


async def test_the_answer_is_one_change_in_the_log(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
        before = (await server.engine.load(task_id, ALICE)).version
        answered = await desk_of(server.engine).answer(task_id, True, by=BOB)
        events = (await server.engine.read(task_id, ALICE, before)).events
    assert answered.version == before + 3
    assert [event.kind for event in events[:3]] == ["status", "message", "record"]


async def test_reviews_are_not_part_of_what_the_agent_is_shown(storage: str) -> None:
    agent = Reviewed()
    async with reviewed_server(agent, storage) as server:
        task_id = await asked(server)
        await desk_of(server.engine).answer(task_id, True, by=BOB)
        await settled(server.engine, task_id)
        first, second = agent.seen
    assert first.message == second.message
    assert first.history == second.history == []
    # The credentials of whoever answers are not the owner's.
    assert first.request_context["auth_token"] == "alice"
    assert second.request_context == {}


async def test_several_reviews_of_one_message_come_one_after_the_other(storage: str) -> None:
    agent = Reviewed(BOB, "carol")
    async with reviewed_server(agent, storage) as server:
        task_id = await asked(server)
        desk = desk_of(server.engine)
        await desk.answer(task_id, True, by=BOB)
        await settled(server.engine, task_id)
        (review,) = await desk.list()
        assert review.user == "carol"
        with pytest.raises(PermissionDeniedError, match=f"waits for a review by carol, not by {BOB}"):
            await desk.answer(task_id, True, by=BOB)
        await desk.answer(task_id, True, by="carol")
        done = await settled(server.engine, task_id)
        assert [answer.by for answer in await answers(server.engine, done)] == [BOB, "carol"]
    assert done.state.short == "completed"
    assert agent.turns == [("pay 500", 1)] * 3


async def test_only_the_one_who_is_asked_may_answer(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
        before = await server.engine.load(task_id, ALICE)
        for other in ("carol", "", "id-of-alice", "bob"):
            with pytest.raises(PermissionDeniedError, match=f"only {BOB} may answer"):
                await desk_of(server.engine).answer(task_id, True, by=other)
        assert await server.engine.load(task_id, ALICE) == before


async def test_of_two_answers_at_once_one_is_written_and_the_other_is_told(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
        desk = desk_of(server.engine)
        results = await asyncio.gather(
            *(desk.answer(task_id, approved, by=BOB) for approved in (True, False, True)), return_exceptions=True
        )
        done = await settled(server.engine, task_id)
        assert len(await answers(server.engine, done)) == 1
    assert [isinstance(result, StoredTask) for result in results].count(True) == 1
    refused = [result for result in results if not isinstance(result, StoredTask)]
    assert all(isinstance(error, UnsupportedOperationError) for error in refused)
    assert all("has been answered" in str(error) for error in refused)


async def test_an_answer_holds_when_the_owner_writes_at_the_same_time(storage: str) -> None:
    agent = Reviewed()
    async with reviewed_server(agent, storage) as server, People(server)("alice") as (alice,):
        task_id = (await alice.send("pay 500")).task_id
        desk = desk_of(server.engine)
        async with asyncio.TaskGroup() as group:
            for number in range(5):
                group.create_task(alice.send(f"and {number}", task_id=task_id, blocking=False))
            group.create_task(desk.answer(task_id, True, by=BOB))
        for _ in range(5):
            while not await server.engine.asking(AskingQuery(task_id=task_id)):
                await asyncio.sleep(0)
            await desk.answer(task_id, True, by=BOB)
        while (await server.engine.load(task_id, ALICE)).head.unread:
            await asyncio.sleep(0)
    assert agent.turns[0] == agent.turns[1] == ("pay 500", 1)
    later = [text for text, _ in agent.turns[2:]]
    assert sorted(later) == sorted([f"and {number}" for number in range(5)] * 2)


async def test_a_task_that_does_not_wait_cannot_be_answered(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server, People(server)("alice") as (alice,):
        task_id = (await alice.send("pay 500")).task_id
        await alice.cancel(task_id)
        for other in (task_id, "no-such-task", ""):
            with pytest.raises(UnsupportedOperationError, match="does not wait for a review"):
                await desk_of(server.engine).answer(other, True, by=BOB)
        assert (await server.engine.load(task_id, ALICE)).state.short == "canceled"


async def test_a_review_outlives_the_server(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    async with reviewed_server(Reviewed(), storage) as server:
        task_id = await asked(server)
    async with SQLiteEngine(tmp_path / "tasks.db") as engine:
        (review,) = await desk_of(engine).list()
        assert (review.task_id, review.subject) == (task_id, {"message": "pay 500"})
        await desk_of(engine).answer(task_id, True, by=BOB)
    agent = Reviewed()
    async with reviewed_server(agent, storage) as server:
        done = await settled(server.engine, task_id)
    assert done.state.short == "completed"
    assert agent.turns == [("pay 500", 1)]


async def test_an_answer_through_another_engine_on_the_same_file_reaches_the_server(tmp_path: Path) -> None:
    async with reviewed_server(Reviewed(), f"sqlite:///{tmp_path / 'tasks.db'}") as server:
        task_id = await asked(server)
        async with SQLiteEngine(tmp_path / "tasks.db") as engine:
            await desk_of(engine).answer(task_id, True, by=BOB)
        done = await server.engine.wait_for_state(task_id, ALICE, SETTLED_STATES - {INPUT_REQUIRED}, None)
    assert done.state.short == "completed"


async def test_a_task_whose_records_are_damaged_fails_when_it_is_answered_and_others_are_still_listed(
    storage: str,
) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        engine = server.engine
        bad, good = await asked(server), await asked(server)
        record = (await engine.records(bad, ALICE))[-1]
        await damage_event(engine, bad, record.version, GARBAGE)
        desk = desk_of(engine)
        assert {review.task_id for review in await desk.list()} == {bad, good}
        with pytest.raises(UnsupportedOperationError, match="has failed"):
            await desk.answer(bad, True, by=BOB)
        assert (await engine.load(bad, ALICE)).state is FAILED
        assert [review.task_id for review in await desk.list()] == [good]
