"""Turns that wait for delegated tasks, where there is one slot only, on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands import Settings
from errands.agents.delegation import Delegate, LocalDelegate, RemoteDelegate
from errands.client import A2AClient
from errands.engines.urls import engine_from_url
from errands.errors import OverloadedError
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig
from errands.model.core import COMPLETED, SUBMITTED, WORKING, Message, Part, Role
from errands.policy.run import Run
from errands.runtime.context import TaskContext
from errands.runtime.inner import InnerAgents
from errands.runtime.pool import Slots
from errands.runtime.submission import DELEGATION_DEPTH
from errands.runtime.worker import Worker
from errands.server.app import A2AServer
from errands.testing import ManualClock, connect
from tests.ports import free_port
from tests.unit.client.serving import serving
from tests.unit.delegation.support import Held, delegation_of, started_run

pytestmark = pytest.mark.anyio

DEPTH = 3


class Matryoshka(Worker):
    """Hands its message down until it is deep enough; the innermost waits for the gate."""

    def __init__(self, delegate: Delegate | None = None) -> None:
        self.delegate = delegate
        self.begun: list[int] = []
        self.deepest = asyncio.Event()
        self.gate = asyncio.Event()

    async def handle(self, ctx: TaskContext) -> None:
        depth = ctx._turn.options.depth
        self.begun.append(depth)
        if depth >= DEPTH:
            self.deepest.set()
            await self.gate.wait()
            await ctx.complete("innermost")
            return
        assert self.delegate is not None
        delegated = await self.delegate.run(delegation_of(ctx, await started_run(ctx)))
        await ctx.complete(f"{depth}({delegated.output['message'][0]['text']})")


def settings(**fields: float) -> Settings:
    return Settings(max_concurrent_tasks=1, poll_interval=0.1, **fields)  # type: ignore[arg-type]


def alone(storage: str, **fields: float) -> tuple[A2AServer, Matryoshka]:
    """An agent that hands work to itself."""
    inner = InnerAgents()
    doll = Matryoshka(LocalDelegate("Doll", inner))
    card = AgentCardConfig(name="Doll", description=".")
    return A2AServer(worker=doll, agent_card=card, inner=inner, storage=storage, settings=settings(**fields)), doll


async def test_an_agent_that_delegates_to_itself_does_not_wait_for_its_own_slot(storage: str) -> None:
    server, doll = alone(storage)
    doll.gate.set()
    async with asyncio.timeout(30), connect(server) as client:
        assert (await client.send("go")).text == "0(1(2(innermost)))"
        assert doll.begun == [0, 1, 2, 3]
        # Every slot is given back.
        assert (await client.send("again")).text == "0(1(2(innermost)))"


async def test_agents_that_delegate_to_each_other_do_not_wait_for_each_others_slots(storage: str) -> None:
    inner = InnerAgents()
    ping, pong = Matryoshka(LocalDelegate("pong", inner)), Matryoshka(LocalDelegate("Ping", inner))
    ping.gate.set()
    pong.gate.set()
    inner.workers["pong"] = pong
    card = AgentCardConfig(name="Ping", description=".")
    server = A2AServer(worker=ping, agent_card=card, inner=inner, storage=storage, settings=settings())
    async with asyncio.timeout(30), connect(server) as client:
        assert (await client.send("go")).text == "0(1(2(innermost)))"
        assert (ping.begun, pong.begun) == ([0, 2], [1, 3])


async def test_a_turn_that_waits_takes_no_more_than_the_slot_it_had(storage: str) -> None:
    server, doll = alone(storage)
    async with asyncio.timeout(30), connect(server) as client:
        first = asyncio.create_task(client.send("first"))
        await doll.deepest.wait()
        # The innermost turn has the only slot, and three turns wait without one.
        second = await client.send("second", blocking=False)
        await server.pool.poll()
        assert doll.begun == [0, 1, 2, 3]
        assert second.state == "submitted"
        doll.gate.set()
        assert (await first).text == "0(1(2(innermost)))"
        await server.engine.wait_for_state(second.task_id, server.scope(), frozenset({COMPLETED}), 20)
        assert doll.begun == [0, 1, 2, 3] * 2


async def test_no_new_task_begins_in_the_place_of_a_turn_that_waits(storage: str) -> None:
    server, doll = alone(storage)
    doll.gate.set()
    async with asyncio.timeout(60), connect(server) as client:
        tasks = [(await client.send(f"go {number}", blocking=False)).task_id for number in range(10)]
        for task_id in tasks:
            await server.engine.wait_for_state(task_id, server.scope(), frozenset({COMPLETED}), 30)
        assert doll.begun == [0, 1, 2, 3] * 10


class Careless(Worker):
    """Ends its turn while what it has delegated still runs."""

    def __init__(self, delegate: LocalDelegate) -> None:
        self.delegate = delegate
        self.gate = asyncio.Event()
        self.delegations: list[asyncio.Task[object]] = []

    async def handle(self, ctx: TaskContext) -> None:
        if ctx._turn.options.depth:
            await self.gate.wait()
        else:
            delegation = delegation_of(ctx, await started_run(ctx))
            self.delegations.append(asyncio.create_task(self.delegate.run(delegation)))
            await asyncio.sleep(0)
        await ctx.complete("done")


async def test_a_delegation_that_outlives_its_turn_takes_no_slot(storage: str) -> None:
    inner = InnerAgents()
    careless = Careless(LocalDelegate("Careless", inner))
    card = AgentCardConfig(name="Careless", description=".")
    server = A2AServer(worker=careless, agent_card=card, inner=inner, storage=storage, settings=settings())
    async with asyncio.timeout(30), connect(server) as client:
        for _ in range(3):
            careless.gate.clear()
            assert (await client.send("go")).text == "done"
            careless.gate.set()
            # The turn has ended, so what was delegated cannot be recorded any more.
            await asyncio.gather(*careless.delegations, return_exceptions=True)


async def test_tasks_that_wait_for_each_other_are_taken_up_again_after_a_restart(storage: str) -> None:
    if storage == "memory":
        return  # nothing is left of it when the server has stopped
    server, doll = alone(storage, drain_timeout=0)
    async with asyncio.timeout(30), connect(server) as client:
        task_id = (await client.send("go", blocking=False)).task_id
        await doll.deepest.wait()
    # All four were given back to the queue, and one can be taken up at a time.
    server, doll = alone(storage)
    doll.gate.set()
    async with asyncio.timeout(30), connect(server) as client:
        while (result := await client.get_task(task_id)).state != "completed":
            await asyncio.sleep(0.05)
        assert result.text == "0(1(2(innermost)))"


class Twins(Worker):
    """Hands its message down twice, the second time when it is told to; what it is handed waits for the gate."""

    def __init__(self, delegate: LocalDelegate) -> None:
        self.delegate = delegate
        self.first, self.second, self.gate = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.children: list[str] = []

    async def handle(self, ctx: TaskContext) -> None:
        if ctx._turn.options.depth:
            self.first.set()
            await self.gate.wait()
            await ctx.complete("child")
        elif ctx.user_text == "go":
            run = await started_run(ctx)
            answers = await asyncio.gather(self._hand_down(ctx, run, "a"), self._hand_down(ctx, run, "b", self.second))
            await ctx.complete(" and ".join(answers))
        else:
            await ctx.complete("stranger")

    async def _hand_down(self, ctx: TaskContext, run: Run, call: str, when: asyncio.Event | None = None) -> str:
        if when is not None:
            await when.wait()

        async def began(task_id: str) -> None:
            self.children.append(task_id)

        delegation = delegation_of(ctx, run, call=call, began=began)
        return str((await self.delegate.run(delegation)).output["message"][0]["text"])


async def test_a_delegated_task_waits_in_a_queue_that_takes_nothing_else(storage: str) -> None:
    inner, clock, engine = InnerAgents(), ManualClock(), engine_from_url(storage)
    engine.clock = clock
    twins = Twins(LocalDelegate("Twins", inner))
    card = AgentCardConfig(name="Twins", description=".")
    server = A2AServer(
        worker=twins, agent_card=card, inner=inner, storage=engine, settings=settings(max_queue_age=60.0)
    )
    async with connect(server, client={"max_retries": 0}) as client:
        parent = asyncio.create_task(client.send("go"))
        await twins.first.wait()
        waits = await client.send("stranger", blocking=False)
        clock.advance(seconds=3600)
        with pytest.raises(OverloadedError):
            await client.send("another")
        twins.second.set()
        while len(twins.children) < 2 and not parent.done():
            await asyncio.sleep(0.01)
        states = [(await server.tasks.get(task_id)).status.state for task_id in twins.children]
        assert states == [WORKING, SUBMITTED]
        twins.gate.set()
        assert (await parent).text == "child and child"
        await server.engine.wait_for_state(waits.task_id, server.scope(), frozenset({COMPLETED}), 20)


# Servers that wait for each other


def remote(name: str, doll: Worker, storage: str, url: str = "", **fields: float) -> A2AServer:
    """A server with room for one turn, whose agent hands work to the one at this address."""
    inner = InnerAgents()
    if url:
        doll.delegate = RemoteDelegate("other", url, agents=inner, patience=600)  # type: ignore[attr-defined]
    card = AgentCardConfig(name=name, description=".", capabilities=CapabilitiesConfig(streaming=True))
    return A2AServer(worker=doll, agent_card=card, inner=inner, storage=storage, settings=settings(**fields))


async def test_servers_that_delegate_to_each_other_do_not_wait_for_each_others_slots(storage: str) -> None:
    ping, pong, port = Matryoshka(), Matryoshka(), free_port()
    ping.gate.set()
    pong.gate.set()
    pongs = remote("Pong", pong, "memory", f"http://127.0.0.1:{port}")
    async with serving(pongs.app) as there:
        pings = remote("Ping", ping, storage, there)
        async with serving(pings.app, port) as here, A2AClient(here) as client:
            assert (await client.send("go")).text == "0(1(2(innermost)))"
            assert (ping.begun, pong.begun) == ([0, 2], [1, 3])
            # Every slot is given back.
            assert (await client.send("again")).text == "0(1(2(innermost)))"


async def test_what_another_server_waits_for_is_taken_up_again_after_a_restart(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    ping, pong, port = Matryoshka(), Matryoshka(), free_port()
    pongs = remote("Pong", pong, "memory", f"http://127.0.0.1:{port}")
    async with serving(pongs.app) as there:
        pings = remote("Ping", ping, storage, there, drain_timeout=0)
        async with serving(pings.app, port) as here, A2AClient(here) as client:
            task_id = (await client.send("go", blocking=False)).task_id
            await pong.deepest.wait()
        # Both of its tasks are in the queue, and one can be taken up at a time.
        pong.gate.set()
        pings = remote("Ping", Matryoshka(), storage, there)
        async with serving(pings.app, port) as here, A2AClient(here) as client:
            while (result := await client.get_task(task_id)).state != "completed":
                await asyncio.sleep(0.05)
            assert result.text == "0(1(2(innermost)))"


async def test_what_a_sender_says_about_delegation_gives_it_no_slot(storage: str) -> None:
    held = Held()
    server = remote("Held", held, storage)
    metadata = {DELEGATION_DEPTH: 3}
    message = Message(message_id="m", role=Role.USER, parts=[Part(text="mine")], metadata=metadata)
    async with asyncio.timeout(30), connect(server) as client:
        await client.send("first", blocking=False)
        await held.started.wait()
        task_id = (await client.send(message, blocking=False)).task_id
        following = asyncio.create_task(anext(client.subscribe(task_id)))
        await server.pool.poll()
        assert (await following).state == "submitted"
        assert len(server.pool.running) == 1
        held.gate.set()
        await server.engine.wait_for_state(task_id, server.scope(), frozenset({COMPLETED}), 20)


# Slots


async def test_a_turn_that_comes_back_goes_before_new_ones() -> None:
    slots = Slots(1)
    assert slots.take_many(5) == 1
    back = asyncio.create_task(slots.take_again())
    await asyncio.sleep(0)
    slots.give_back()
    assert not slots.take(is_new=True)
    await back
    slots.give_back()
    assert slots.take(is_new=True)


async def test_a_turn_that_is_canceled_while_it_waits_for_a_slot_takes_none() -> None:
    slots = Slots(1)
    slots.take(is_new=True)
    waits, has_got_it = asyncio.create_task(slots.take_again()), asyncio.create_task(slots.take_again())
    await asyncio.sleep(0)
    waits.cancel()
    await asyncio.sleep(0)
    slots.give_back()
    has_got_it.cancel()
    await asyncio.wait([waits, has_got_it])
    assert slots.take(is_new=True)


def test_an_interrupted_turn_does_not_wait_for_a_slot() -> None:
    slots = Slots(1)
    slots.take(is_new=True)
    slots.take_regardless()
    slots.give_back()
    assert not slots.take(is_new=True)
    slots.give_back()
    assert slots.take(is_new=True)
