"""An agent whose every message is reviewed before it is worked on, as a policy with `review(user)` has it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from errands import A2AClient, A2AServer, BearerTokenMiddleware, TaskContext, Worker
from errands.engines.base import Engine
from errands.model.base import encode as encode_event
from errands.model.core import INPUT_REQUIRED, WORKING
from errands.model.log import Draft, Scope, StoredTask, Work
from errands.policy.cel.session import Call, Session
from errands.policy.records import Answered, Started, Waiting, encode
from errands.policy.reviews import ReviewDesk, review_message, reviewer
from errands.policy.run import Run, stored_records
from errands.runtime.journal import Journal, status_update
from errands.testing import BASE_URL, http_client, serve
from tests.unit.support import opening, step

BOB = "bob@example.com"


class Reviewed(Worker):
    """Does what it is told once everybody in `users` has approved it."""

    def __init__(self, *users: str) -> None:
        self.users = users or (BOB,)
        #: What the handler was shown in each of its turns.
        self.turns: list[tuple[str, int]] = []
        self.seen: list[TaskContext] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.turns.append((ctx.user_text, ctx.attempt))
        self.seen.append(ctx)
        run = await Run.open(ctx._turn, ctx._turn.stored)
        if not run.started:
            await run.append(Started(at=run.now(), agent="Test agent"))
        for user in self.users:
            call = Call("review", (user,))
            answer = _answer(run.records, ctx.message_id, call)
            if answer is None:
                session = Session(now=run.now())
                await run.append(Waiting(at=run.now(), call=call, session=session, key=ctx.message_id))
                question = review_message(
                    call, {"message": ctx.user_text}, task_id=ctx.task_id, context_id=ctx.context_id
                )
                await ctx._turn.end(INPUT_REQUIRED, message=question, asks=reviewer(user))
                return
            if not answer.value:
                await ctx.reject(f"{answer.by} denied {ctx.user_text}")
                return
        await ctx.complete(f"did {ctx.user_text}")


def _answer(known: list[Any], key: str, call: Call) -> Answered | None:
    answers = (record for record in known if isinstance(record, Answered))
    return next((answer for answer in answers if (answer.key, answer.call) == (key, call)), None)


async def verify(token: str) -> dict[str, Any] | None:
    """The bearer token says who it is; `name+unverified` has an address that nobody has checked."""
    name, _, unverified = token.partition("+")
    return {"sub": f"id-of-{name}", "email": f"{name.title()}@example.com", "email_verified": not unverified}


def reviewed_server(agent: Worker, storage: str, **options: Any) -> A2AServer:
    return serve(agent, storage=storage, middlewares=[BearerTokenMiddleware(verify)], **options)


class People:
    """Clients of one server, each under a name."""

    def __init__(self, server: A2AServer, **wishes: Any) -> None:
        self.server = server
        self._wishes = wishes

    @asynccontextmanager
    async def __call__(self, *names: str) -> AsyncIterator[list[A2AClient]]:
        async with http_client(self.server) as http:
            # gRPC has a real address, and the server's own one is made up.
            options: dict[str, Any] = {
                "httpx_client": http,
                "allow_origins": [f"http://127.0.0.1:{self.server.grpc_port}"],
            }
            clients = [
                A2AClient(BASE_URL, headers={"Authorization": f"Bearer {name}"}, **options, **self._wishes)
                for name in names
            ]
            for client in clients:
                await client.connect()
            try:
                yield clients
            finally:
                for client in clients:
                    await client.close()


ALICE = Scope("", "id-of-alice", "Test agent")


def desk_of(engine: Engine) -> ReviewDesk:
    return ReviewDesk(Journal(engine))


async def suspend(engine: Engine, task_id: str, user: str) -> None:
    """A task of nobody in particular that waits for a review, without an agent."""
    call = Call("review", (user,))
    waiting = Waiting(at="2026-01-31T12:00:00Z", call=call, session=Session(now="2026-01-31T12:00:00Z"))
    question = review_message(call, {"amount": 500}, task_id=task_id, context_id="c")
    asks = status_update(task_id, "c", INPUT_REQUIRED, 2, question)
    await engine.commit(opening(task_id, work=Work.IDLE))
    await engine.commit(step(task_id, WORKING))
    started = Started(at="2026-01-31T12:00:00Z", agent="Test agent")
    records = [Draft("record", encode(record)) for record in (started, waiting)]
    drafts = (*records, Draft("status", encode_event(asks)))
    await engine.commit(step(task_id, INPUT_REQUIRED, events=drafts, asks=user))


async def answers(engine: Engine, stored: StoredTask) -> list[Answered]:
    known = await stored_records(engine, stored.task.id, stored.scope)
    return [record for record in known if isinstance(record, Answered)]
