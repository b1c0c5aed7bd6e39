"""Handing work to an agent of the same server, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from errands import BearerTokenMiddleware
from errands.agents.delegation import DelegationError, LocalDelegate, child_id
from errands.client import A2AClient
from errands.errors import TaskNotFoundError
from errands.model.core import COMPLETED, Message, Part, Role, TaskState
from errands.model.log import ListQuery, Scope, StoredTask
from errands.model.requests import SendMessageRequest
from errands.runtime.call import CallContext
from errands.runtime.context import TaskContext
from errands.runtime.inner import InnerAgents
from errands.runtime.settings import Settings
from errands.runtime.worker import Worker
from errands.server.app import A2AServer
from errands.testing import connect
from tests.unit.delegation.support import (
    CALL,
    CHILD,
    Answers,
    Does,
    Exposing,
    Held,
    Parent,
    Reviewed,
    bare_delegation,
    delegation_of,
    family,
    said,
    started_run,
)
from tests.unit.reviews.support import People, desk_of, verify
from tests.unit.support import until_cancelled

pytestmark = pytest.mark.anyio


async def children(server: A2AServer, scope: Scope = CHILD) -> list[StoredTask]:
    return (await server.engine.list(ListQuery(scope=scope))).tasks


async def only_child(server: A2AServer, scope: Scope = CHILD) -> StoredTask:
    [child] = await children(server, scope)
    return child


async def test_the_answer_of_a_child_is_the_output(storage: str) -> None:
    child = Answers()
    async with connect(family(child, storage=storage)) as client:
        result = await client.send("hello")
        assert result.state == "completed"
        assert result.data == {"message": [{"mimeType": "text/plain", "text": "child: hello"}]}


async def test_parent_and_child_are_linked_both_ways(storage: str) -> None:
    child = Answers()
    server = family(child, storage=storage)
    async with connect(server) as client:
        result = await client.send("hello")
        [ctx] = child.seen
        assert (ctx._turn.options.parent, ctx._turn.options.depth) == (result.task_id, 1)
        assert ctx.reference_task_ids == [result.task_id]
        records = await server.engine.records(result.task_id, server.scope())
        assert any(ctx.task_id.encode() in event.data for event in records)


async def test_what_the_child_exposes_stands_beside_its_message_and_a_streamed_answer_is_there_once(
    storage: str,
) -> None:
    async with connect(family(Exposing(), storage=storage)) as client:
        result = await client.send("hello")
        assert result.data == {"pages": 3, "message": [{"mimeType": "text/plain", "text": "read it"}]}


async def test_what_a_child_leaves_as_an_artifact_is_its_output(storage: str) -> None:
    async with connect(family(Does(lambda ctx: ctx.complete("a report")), storage=storage)) as client:
        assert (await client.send("hello")).data == {"message": [{"mimeType": "text/plain", "text": "a report"}]}


async def test_an_answer_of_a_child_that_is_not_whole_says_so(storage: str) -> None:
    cut = said([Part(text="It is")], metadata={"incomplete": "length"})
    async with connect(family(Does(lambda ctx: ctx._turn.end(COMPLETED, message=cut)), storage=storage)) as client:
        message = [{"mimeType": "text/plain", "text": "It is"}]
        assert (await client.send("Is it?")).data == {"incomplete": "length", "message": message}


async def test_parameters_reach_the_child_as_data(storage: str) -> None:
    child = Answers()
    server = family(child, storage=storage, parent=lambda delegate: Parent(delegate, customer="c-1"))
    async with connect(server) as client:
        await client.send("hello")
        [ctx] = child.seen
        assert (ctx.user_text, ctx.data_parts) == ("hello", [{"customer": "c-1"}])


async def test_a_child_belongs_to_whom_its_parent_belongs(storage: str) -> None:
    server = family(Answers(), storage=storage)
    async with server:
        message = Message(message_id="m", role=Role.USER, parts=[Part(text="hello")])
        call = CallContext(scope=server.scope(owner="ann", tenant="acme"))
        await server.task_manager.send_message(SendMessageRequest(message=message), call)
        assert (await only_child(server, Scope("acme", "ann", "child"))).state is TaskState.COMPLETED
        assert await children(server) == []


@pytest.mark.parametrize(
    ("child", "told"),
    [
        (Does(lambda ctx: ctx.fail("no such page")), "child failed: no such page"),
        (Does(lambda ctx: ctx.reject("not for me")), "child refused: not for me"),
        (Does(lambda ctx: ctx.reject()), "child refused"),
        (Does(lambda ctx: ctx.request_auth("sign in")), "child needs an authorization that only a person can give"),
    ],
)
async def test_a_child_that_does_not_do_it_is_an_error_with_its_words(storage: str, child: Worker, told: str) -> None:
    async with connect(family(child, storage=storage)) as client:
        result = await client.send("hello")
        assert result.state == "failed"
        assert (result.text or "").startswith(told)


async def test_a_question_of_the_child_is_its_output(storage: str) -> None:
    async with connect(family(Does(lambda ctx: ctx.request_input("Which one?")), storage=storage)) as client:
        result = await client.send("hello")
        assert result.data == {"message": [{"mimeType": "text/plain", "text": "Which one?"}]}


async def test_a_child_that_is_reviewed_keeps_its_parent_waiting(storage: str) -> None:
    child = Reviewed()
    server = family(child, storage=storage)
    async with connect(server) as client:
        task = await client.send("hello", blocking=False)
        await child.waits.wait()
        stored = await only_child(server)
        assert (await client.get_task(task.task_id)).state == "working"
        await desk_of(server.engine).answer(stored.task.id, True, by="boss@example.com")
        result = await settled(client, task.task_id)
        assert result.data == {"message": [{"mimeType": "text/plain", "text": "did hello"}]}


async def test_a_child_is_reviewed_at_the_address_of_the_served_agent(storage: str) -> None:
    child = Reviewed()
    server = family(child, storage=storage, middlewares=[BearerTokenMiddleware(verify)])
    async with server, People(server)("alice", "boss", "carol") as (alice, boss, carol):
        task = await alice.send("hello", blocking=False)
        await child.waits.wait()
        (review,) = await desk_of(server.engine).list()
        assert (review.agent, review.owner) == ("child", "id-of-alice")
        with pytest.raises(TaskNotFoundError):
            await carol.send("approve", task_id=review.task_id)
        with pytest.raises(TaskNotFoundError):
            await alice.get_task(review.task_id)
        assert (await boss.get_task(review.task_id)).state == "input-required"
        await boss.send("approve", task_id=review.task_id)
        result = await settled(alice, task.task_id)
        assert result.data == {"message": [{"mimeType": "text/plain", "text": "did hello"}]}


async def settled(client: A2AClient, task_id: str) -> Any:
    async for event in client.subscribe(task_id):
        if event.kind == "status" and event.is_final:
            break
    return await client.get_task(task_id)


async def test_a_cancel_goes_down(storage: str) -> None:
    child = Held()
    server = family(child, storage=storage, cancel_force_timeout=0.05)
    async with connect(server) as client:
        task = await client.send("hello", blocking=False)
        await child.started.wait()
        assert (await client.cancel(task.task_id)).state == "canceled"
        stored = await server.engine.wait_for_state(
            (await only_child(server)).task.id, CHILD, frozenset({TaskState.CANCELED}), None
        )
        assert stored.state is TaskState.CANCELED


async def test_a_child_is_noted_even_when_its_parent_is_stopped_while_it_begins(storage: str) -> None:
    noting, gate, noted = asyncio.Event(), asyncio.Event(), []

    async def began(task_id: str) -> None:
        noting.set()
        await gate.wait()
        noted.append(task_id)

    server = family(Answers(), storage=storage)
    async with server:
        delegation = bare_delegation("p", server.scope(), began=began)
        running = asyncio.create_task(LocalDelegate("child", server._inner).run(delegation))
        await noting.wait()
        running.cancel()
        asyncio.get_running_loop().call_soon(gate.set)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert noted == [child_id("p", CALL)]


async def test_a_child_that_a_crash_kept_from_being_noted_is_canceled_all_the_same(storage: str) -> None:
    started = asyncio.Event()

    async def work(ctx: TaskContext) -> None:
        started.set()
        await until_cancelled(ctx)

    class Forgetful(Parent):
        """Is interrupted as soon as its child has begun, and knows nothing of it afterwards."""

        async def _hand_down(self, ctx: Any, run: Any) -> None:
            if ctx.attempt == 1:
                delegation = bare_delegation(ctx.task_id, ctx._turn.stored.scope)
                running = asyncio.create_task(self.delegate.run(delegation))
                await started.wait()
                running.cancel()
            await ctx.request_input("Go on?")

    server = family(Does(work), storage=storage, parent=Forgetful)
    async with connect(server) as client:
        task = await client.send("hello")
        assert (await client.cancel(task.task_id)).state == "canceled"
        stored = await only_child(server)
        ended = await server.engine.wait_for_state(stored.task.id, CHILD, frozenset({TaskState.CANCELED}), None)
        assert ended.state is TaskState.CANCELED


async def test_a_child_that_was_canceled_alone_is_an_error(storage: str) -> None:
    child = Held()
    server = family(child, storage=storage, cancel_force_timeout=0.05)
    async with connect(server) as client:
        task = await client.send("hello", blocking=False)
        await child.started.wait()
        known = bare_delegation("p", server.scope(), task_id=(await only_child(server)).task.id)
        await LocalDelegate("child", server._inner).cancel(known)
        result = await settled(client, task.task_id)
        assert (result.state, result.text) == ("failed", "child was canceled")


async def test_canceling_a_child_that_has_ended_or_is_gone_does_nothing(storage: str) -> None:
    server = family(Answers(), storage=storage)
    async with connect(server) as client:
        await client.send("hello")
        stored = await only_child(server)
        delegate = LocalDelegate("child", server._inner)
        await delegate.cancel(bare_delegation("p", server.scope(), task_id=stored.task.id))
        await delegate.cancel(bare_delegation("p", server.scope(), task_id="no-such-task"))
        assert (await only_child(server)).state is TaskState.COMPLETED


async def test_the_same_delegation_finds_the_same_child(storage: str) -> None:
    child = Answers()
    server = family(child, storage=storage)
    async with server:
        delegate = LocalDelegate("child", server._inner)
        delegation = bare_delegation("p", server.scope())
        first = await delegate.run(delegation)
        # As after a crash before `began` was durable; then, as after one that came later.
        assert await delegate.run(delegation) == first
        assert await delegate.run(bare_delegation("p", server.scope(), task_id=first.task_id)) == first
        assert first.task_id == child_id("p", CALL) == (await only_child(server)).task.id
        assert len(child.seen) == 1
        other = await delegate.run(bare_delegation("p", server.scope(), call="call-2"))
        assert other.task_id != first.task_id


async def test_the_same_delegation_finds_its_child_when_receipts_are_no_longer_kept(storage: str) -> None:
    server = family(Answers(), storage=storage, settings=Settings(storage=storage, idempotency_window=-1))
    async with server:
        delegate = LocalDelegate("child", server._inner)
        delegation = bare_delegation("p", server.scope())
        assert await delegate.run(delegation) == await delegate.run(delegation)


async def test_a_child_that_is_no_longer_kept_is_an_error(storage: str) -> None:
    server = family(Answers(), storage=storage)
    async with server:
        with pytest.raises(DelegationError, match="no longer there") as caught:
            await LocalDelegate("child", server._inner).run(bare_delegation("p", server.scope(), task_id="gone"))
        assert caught.value.task_id == "gone"


async def test_agents_that_hand_work_down_without_end_are_stopped(storage: str) -> None:
    inner = InnerAgents()

    async def hand_down(ctx: Any) -> None:
        delegation = delegation_of(ctx, await started_run(ctx))
        try:
            await LocalDelegate("loop", inner).run(delegation)
        except DelegationError as error:
            await ctx.fail(str(error))

    inner.workers["loop"] = Does(hand_down)
    server = family(Answers(), storage=storage, parent=lambda _: Does(hand_down))
    server._inner = inner
    async with connect(server) as client:
        result = await client.send("go")
        assert result.state == "failed"
        assert "delegated 5 times" in (result.text or "")
        assert len(await children(server, Scope("", "", "loop"))) == 5


async def test_an_agent_can_hand_work_to_itself(storage: str) -> None:
    inner = InnerAgents()

    async def once(ctx: Any) -> None:
        if ctx._turn.options.depth:
            await ctx.respond("done")
        else:
            await Parent(LocalDelegate("Parent", inner)).handle(ctx)

    server = family(Answers(), storage=storage, parent=lambda _: Does(once))
    server._inner = inner
    async with connect(server) as client:
        assert (await client.send("go")).data == {"message": [{"mimeType": "text/plain", "text": "done"}]}


async def test_nobody_outside_reaches_a_child_or_claims_to_be_one(storage: str) -> None:
    child = Answers()
    server = family(child, storage=storage)
    async with connect(server) as client:
        await client.send("hello", metadata={"parent": "x", "depth": 3, "parentTaskId": "x"})
        stored = await only_child(server)
        with pytest.raises(TaskNotFoundError):
            await client.get_task(stored.task.id)
        [ctx] = child.seen
        assert ctx._turn.options.depth == 1
        assert len((await client.list_tasks()).tasks) == 1


async def test_a_server_that_stops_lets_parent_and_child_finish(tmp_path: Path) -> None:
    child = Held()
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    server = family(child, storage=storage)
    async with connect(server) as client:
        task = await client.send("hello", blocking=False)
        await child.started.wait()
        asyncio.get_running_loop().call_later(0.05, child.gate.set)
    async with connect(family(Held(), storage=storage)) as client:
        assert (await client.get_task(task.task_id)).state == "completed"


async def test_a_parent_and_a_child_that_were_given_back_go_on_elsewhere(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    first, second = Held(), Held()
    server = family(first, storage=storage, settings=Settings(storage=storage, drain_timeout=0.01))
    async with connect(server) as client:
        task = await client.send("hello", blocking=False)
        await first.started.wait()
    second.gate.set()
    server = family(second, storage=storage)
    async with connect(server) as client:
        result = await settled(client, task.task_id)
        assert result.data == {"message": [{"mimeType": "text/plain", "text": "child: hello"}]}
        assert (await only_child(server)).state is TaskState.COMPLETED


async def test_a_child_that_another_process_holds_is_waited_for(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    there, here = Held(), Held()
    first, second = family(there, storage=storage), family(here, storage=storage)
    async with first, second:
        delegation = bare_delegation("p", first.scope())
        begun = asyncio.create_task(LocalDelegate("child", first._inner).run(delegation))
        await there.started.wait()
        found = asyncio.create_task(LocalDelegate("child", second._inner).run(delegation))
        there.gate.set()
        assert await found == await begun
        assert not here.started.is_set()
