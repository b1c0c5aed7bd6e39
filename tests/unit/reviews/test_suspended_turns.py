"""A turn that waits for a review is suspended: its message is dealt with when the answer has come, and others wait."""

from __future__ import annotations

from typing import Any

import pytest

from errands import A2AServer, BearerTokenMiddleware, TaskContext
from errands.model.core import SETTLED_STATES
from errands.policy.cel import Call, Session
from errands.policy.enforcement import ReviewPendingError
from errands.testing import http_client, serve
from tests.unit.reviews.support import ALICE, BOB, People, Reviewed, desk_of, reviewed_server
from tests.unit.support import Agent, Gate, heard

pytestmark = pytest.mark.anyio


class Gated(Reviewed):
    """Is reviewed after it has come through a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    async def handle(self, ctx: TaskContext) -> None:
        await self.gate()
        await super().handle(ctx)


async def approved(server: A2AServer, task_id: str, text: str) -> None:
    """Approves this message of the task, as soon as it is asked about, and waits for what comes of it."""
    desk = desk_of(server.engine)
    while [review.subject for review in await desk.list()] != [{"message": text}]:
        stored = await server.engine.load(task_id, ALICE)
        with server.engine.expect(task_id, ALICE, SETTLED_STATES) as settled:
            await settled.wait(stored.version, 0.05)
    await desk.answer(task_id, True, by=BOB)


def test_an_error_that_suspends_a_turn_does_not_repeat_what_is_reviewed() -> None:
    pending = ReviewPendingError("output:1", Call("review", ("bob",)), Session(now=""), "a secret", held=True)
    assert str(pending) == 'output:1 waits for review("bob")'
    assert "a secret" not in repr(pending)


async def test_a_message_that_came_while_the_turn_ran_waits_through_its_review(storage: str) -> None:
    agent = Gated()
    async with reviewed_server(agent, storage) as server, People(server)("alice") as (alice,):
        task_id = (await alice.send("one", blocking=False)).task_id
        await agent.gate.reached.wait()
        await alice.send("two", task_id=task_id, blocking=False)
        await heard(alice, task_id, "two")
        agent.gate.open()
        await approved(server, task_id, "one")
        await approved(server, task_id, "two")
        done = await server.engine.wait_for_state(task_id, ALICE, SETTLED_STATES, None)
    assert [text for text, _ in agent.turns] == ["one", "one", "two", "two"]
    assert done.head.unread == 0


async def test_a_task_with_messages_that_wait_is_rejected_all_the_same(storage: str) -> None:
    agent = Reviewed()
    async with reviewed_server(agent, storage) as server, People(server)("alice") as (alice,):
        task_id = (await alice.send("one")).task_id
        await alice.send("two", task_id=task_id)
        await desk_of(server.engine).answer(task_id, False, by=BOB)
        done = await server.engine.wait_for_state(task_id, ALICE, SETTLED_STATES, None)
    assert done.state.short == "rejected"
    assert [text for text, _ in agent.turns] == ["one", "one"]


@pytest.mark.parametrize(
    ("claims", "email"),
    [
        ({"email": "a@example.com"}, ""),
        ({"email": "a@example.com", "email_verified": True}, "a@example.com"),
        ({"email": "a@example.com", "email_verified": "true"}, "a@example.com"),
        ({"email": "a@example.com", "email_verified": False}, ""),
        ({"email": "a@example.com", "email_verified": "false"}, ""),
        ({"email": "a@example.com", "email_verified": None}, ""),
        ({"email": ""}, ""),
        ({"email": None}, ""),
        ({}, ""),
    ],
)
async def test_an_address_that_nobody_has_checked_is_nobodys(claims: dict[str, Any], email: str) -> None:
    async def verify(token: str) -> dict[str, Any]:
        return {"sub": "me", **claims}

    seen: list[str] = []

    class Look(BearerTokenMiddleware):
        async def after_dispatch(self, envelope: Any, result: Any = None) -> None:
            seen.append(envelope.email)

    server = serve(Agent(lambda ctx: ctx.complete()), middlewares=[Look(verify)])
    async with server, http_client(server, headers={"Authorization": "Bearer t"}) as http:
        assert (await http.get("/tasks", headers={"A2A-Version": "1.0"})).status_code == 200
    assert seen == [email]
