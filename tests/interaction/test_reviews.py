"""A task that waits for a review, over every dialect: the reviewer answers, the owner waits, others see nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from errands import A2AClient, A2AError, TaskNotFoundError
from errands.errors import ContextMismatchError, InvalidParamsError, UnsupportedOperationError
from errands.model.core import COMPLETED, SETTLED_STATES, Part, TaskState
from errands.testing import serve
from tests.cells import one_engine
from tests.interaction.conftest import Dialect, one_dialect
from tests.unit.reviews.support import ALICE, BOB, People, Reviewed, answers, desk_of, reviewed_server
from tests.unit.support import said, spoken

pytestmark = pytest.mark.anyio

QUESTION = f'Waiting for a review by {BOB}: {{"message":"pay 500"}}'


@pytest.fixture
def agent() -> Reviewed:
    return Reviewed()


@pytest.fixture
async def people(agent: Reviewed, dialect: Dialect, storage: str) -> AsyncIterator[People]:
    """Clients of an agent whose messages Bob reviews."""
    options = {"grpc_port": 0} if dialect.binding == "grpc" else {}
    async with reviewed_server(agent, storage, **options) as server:
        yield People(server, protocol=dialect.binding, version=dialect.version)


async def state_of(people: People, task_id: str, *states: TaskState) -> str:
    wanted = frozenset(states) or SETTLED_STATES - {TaskState.INPUT_REQUIRED}
    return (await people.server.engine.wait_for_state(task_id, ALICE, wanted, None)).state.short


@one_engine
async def test_the_owner_sees_what_the_task_waits_for(people: People) -> None:
    async with people("alice") as (alice,):
        waiting = await alice.send("pay 500")
        assert waiting.state == "input-required"
        assert (said(waiting) or "").startswith(QUESTION)
        task = waiting.raw_task
        assert task is not None
        assert task.status.message is not None
        assert task.status.message.parts[1].data == {"review": {"user": BOB, "subject": {"message": "pay 500"}}}


@one_engine
async def test_the_reviewer_is_shown_the_question_and_nothing_else(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        waiting = await alice.send("pay 500")
        seen = (await bob.get_task(waiting.task_id)).raw_task
        owned = waiting.raw_task
        assert seen is not None
        assert owned is not None
        assert (seen.id, seen.context_id, seen.status) == (owned.id, owned.context_id, owned.status)
        assert not seen.history
        assert not seen.artifacts
        assert not seen.metadata


@pytest.mark.parametrize(
    ("answer", "kept", "state"),
    [
        ("approve", "approved", "completed"),
        ("Yes, go ahead", "approved: go ahead", "completed"),
        ({"approved": True, "comment": "fine"}, "approved: fine", "completed"),
        ("deny: too much", "denied: too much", "rejected"),
        ({"approved": False}, "denied", "rejected"),
    ],
)
@one_engine
async def test_a_message_of_the_reviewer_is_the_answer(
    people: People, agent: Reviewed, answer: Any, kept: str, state: str
) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        response = (await say(bob, task_id, answer)).raw_task
        assert response is not None
        assert response.status.state in (TaskState.SUBMITTED, TaskState.WORKING)
        assert (response.status.message, response.history or None, response.artifacts or None) == (None, None, None)
        assert await state_of(people, task_id) == state
        assert spoken(await alice.get_task(task_id))[2] == kept
        (given,) = await answers(people.server.engine, await people.server.engine.load(task_id, ALICE))
        assert (given.value, given.by) == (state == "completed", BOB)
    assert agent.turns == [("pay 500", 1), ("pay 500", 1)]


async def say(client: A2AClient, task_id: str, answer: Any, **options: Any) -> Any:
    if isinstance(answer, str):
        return await client.send(answer, task_id=task_id, **options)
    return await client.send_parts([Part(data=answer)], task_id=task_id, **options)


@pytest.mark.parametrize("answer", ["what is it about?", {"approved": "yes"}])
@one_engine
async def test_what_is_no_answer_is_refused_with_how_to_answer_and_changes_nothing(people: People, answer: Any) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        before = await people.server.engine.load(task_id, ALICE)
        with pytest.raises(InvalidParamsError, match='begins with "approve" or "deny"'):
            await say(bob, task_id, answer)
        assert await people.server.engine.load(task_id, ALICE) == before


@one_engine
async def test_nobody_else_sees_it_or_may_answer(people: People) -> None:
    async with people("alice", "carol", "bob+unverified") as (alice, *others):
        task_id = (await alice.send("pay 500")).task_id
        before = await people.server.engine.load(task_id, ALICE)
        for other in others:
            for attempt in (other.get_task(task_id), other.send("approve", task_id=task_id), other.cancel(task_id)):
                with pytest.raises(TaskNotFoundError):
                    await attempt
            with pytest.raises(TaskNotFoundError):
                await anext(other.subscribe(task_id))
        assert await people.server.engine.load(task_id, ALICE) == before


@one_engine
async def test_the_reviewer_may_neither_cancel_nor_list_it(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        with pytest.raises(TaskNotFoundError):
            await bob.cancel(task_id)
        if bob.version == "1.0":
            assert [task async for task in bob.list_tasks()] == []


@one_dialect
async def test_once_answered_it_is_not_found_by_the_reviewer(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        await bob.send("approve", task_id=task_id)
        with pytest.raises(TaskNotFoundError):
            await bob.get_task(task_id)
        with pytest.raises(TaskNotFoundError):
            await bob.send("deny", task_id=task_id)
        assert await state_of(people, task_id) == "completed"


@one_dialect
async def test_of_two_answers_at_once_one_counts(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        results = await asyncio.gather(
            bob.send("approve", task_id=task_id), bob.send("deny", task_id=task_id), return_exceptions=True
        )
        (refused,) = [result for result in results if isinstance(result, BaseException)]
        assert isinstance(refused, UnsupportedOperationError | TaskNotFoundError)
        await state_of(people, task_id)
        assert len(await answers(people.server.engine, await people.server.engine.load(task_id, ALICE))) == 1


@one_dialect
async def test_a_message_of_the_owner_waits_behind_the_review(people: People, agent: Reviewed) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        answered = await alice.send("approve", task_id=task_id)
        assert answered.state == "input-required"
        assert (said(answered) or "").startswith(QUESTION)
        events = [event async for event in alice.stream("and hurry", task_id=task_id)]
        assert events[-1].state == "input-required"
        assert agent.turns == [("pay 500", 1)]
        await bob.send("approve", task_id=task_id)
        for waiting in ("approve", "and hurry"):
            question = await until_asked(bob, task_id, waiting)
            assert question.state == "input-required"
            await bob.send("yes", task_id=task_id)
        assert await state_of(people, task_id, COMPLETED) == "completed"
    assert [text for text, _ in agent.turns] == ["pay 500"] * 2 + ["approve"] * 2 + ["and hurry"] * 2


async def until_asked(bob: A2AClient, task_id: str, about: str) -> Any:
    """The question about this message, once it is asked."""
    while True:
        try:
            question = await bob.get_task(task_id)
        except TaskNotFoundError:
            await asyncio.sleep(0)
            continue
        if f'"{about}"' in (said(question) or ""):
            return question


@one_engine
async def test_a_stream_of_the_reviewer_shows_the_question_and_then_nothing_but_states(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        events = bob.subscribe(task_id)
        first = await anext(events)
        assert (first.kind, first.state) == ("task", "input-required")
        assert (first.text or "").startswith(QUESTION)
        await desk_of(people.server.engine).answer(task_id, False, by=BOB)
        rest = [(event.kind, event.state, event.text) async for event in events]
        # Over 0.3 a subscription is over when the task pauses.
        states = ["submitted", "working", "rejected"] if bob.version == "1.0" else []
        assert rest == [("status", state, None) for state in states]


async def test_an_answer_may_be_streamed_and_shows_no_more_than_states(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        events = [event async for event in bob.stream("approve", task_id=task_id)]
        assert [(event.kind, event.state) for event in events] == [
            ("task", "submitted"),
            ("status", "working"),
            ("status", "completed"),
        ]
        assert all(event.text is None for event in events)


@one_engine
async def test_another_context_is_refused(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        with pytest.raises((ContextMismatchError, InvalidParamsError), match="another context"):
            await bob.send("approve", task_id=task_id, context_id="another")


@one_engine
async def test_an_owner_who_is_the_reviewer_answers_and_sees_everything(people: People, agent: Reviewed) -> None:
    agent.users = ("id-of-alice",)
    async with people("alice") as (alice,):
        waiting = await alice.send("pay 500")
        with pytest.raises(InvalidParamsError, match="waits for your review"):
            await alice.send("hm", task_id=waiting.task_id)
        done = await alice.send("approve", task_id=waiting.task_id)
        assert (done.state, done.text) == ("completed", "did pay 500")
        assert spoken(done)[0] == "pay 500"
        assert spoken(done)[2] == "approved"


@one_dialect
async def test_an_owner_who_is_the_reviewer_may_send_the_answer_again(people: People, agent: Reviewed) -> None:
    agent.users = ("alice@example.com",)
    async with people("alice") as (alice,):
        task_id = (await alice.send("pay 500")).task_id
        answers = [await alice.send("approve", task_id=task_id, message_id="answer-1") for _ in range(2)]
        assert [answer.state for answer in answers] == ["completed", "completed"]
        assert spoken(answers[1]).count("approved") == 1


@one_dialect
async def test_a_task_that_waits_for_a_review_can_be_canceled(people: People) -> None:
    async with people("alice", "bob") as (alice, bob):
        task_id = (await alice.send("pay 500")).task_id
        assert (await alice.cancel(task_id)).state == "canceled"
        with pytest.raises(TaskNotFoundError):
            await bob.send("approve", task_id=task_id)


@one_engine
async def test_the_mark_of_a_review_cannot_be_forged(people: People) -> None:
    async with people("alice") as (alice,):
        with pytest.raises(InvalidParamsError, match="errands/review"):
            await alice.send("pay 500", metadata={"errands/review": {}})


async def test_without_a_name_nobody_is_a_reviewer(storage: str) -> None:
    server = serve(Reviewed("bob"), storage=storage)
    async with server, People(server)("anybody") as (anybody,):
        waiting = await anybody.send("pay 500")
        assert (await anybody.send("approve", task_id=waiting.task_id)).state == "input-required"
        assert (await desk_of(server.engine).answer(waiting.task_id, True, by="bob")).state is TaskState.SUBMITTED


async def test_tenants_are_kept_apart(storage: str) -> None:
    async with reviewed_server(Reviewed(), storage) as server:
        async with People(server)("alice") as (alice,):
            task_id = (await alice.send("pay 500")).task_id
        async with People(server, tenant="other")("bob") as (bob,):
            with pytest.raises(A2AError, match="not found"):
                await bob.get_task(task_id)
