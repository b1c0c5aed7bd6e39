"""Leases that change hands while somebody looks away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import pytest

from errands import TaskContext, Worker
from errands.engines.memory import MemoryEngine
from errands.model.log import Lease, LeaseSignal
from errands.testing import connect, serve
from tests.unit.support import Gate

pytestmark = pytest.mark.anyio


class Extending(MemoryEngine):
    """Something happens while leases are being extended."""

    meanwhile: Callable[[], Awaitable[object]] | None = None

    async def extend(self, worker: str, leases: Sequence[Lease], until: int) -> list[LeaseSignal]:
        if leases and self.meanwhile is not None:
            happens, self.meanwhile = self.meanwhile, None
            await happens()
        return await super().extend(worker, leases, until)


class Asks(Worker):
    """Asks back; the second message waits at a gate."""

    on_interrupted = "fail"

    def __init__(self) -> None:
        self.first, self.second = Gate(), Gate()

    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "one":
            await self.first()
            await ctx.request_input("?")
        else:
            await self.second()
            await ctx.complete("done")


async def test_a_turn_is_not_stopped_because_the_one_before_it_has_let_go_of_its_lease() -> None:
    worker, engine = Asks(), Extending()
    server = serve(worker, storage=engine)
    async with connect(server) as client:
        task_id = (await client.send("one", blocking=False)).task_id
        await worker.first.reached.wait()

        async def answer() -> None:
            worker.first.open()
            async for event in client.subscribe(task_id):
                if event.state == "input-required":
                    break
            await client.send("two", task_id=task_id, blocking=False)
            await worker.second.reached.wait()

        engine.meanwhile = answer
        await server.pool._extend()
        worker.second.open()
        states = [event.state async for event in client.subscribe(task_id)]
    assert states[-1] == "completed"
