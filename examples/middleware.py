"""An agent behind middleware: one authenticates callers, one adds a value to every request.

Run it:

    errands serve examples/middleware.py

Try:

    errands send http://localhost:8000 "hello"                  # refused: credentials are needed
    errands send http://localhost:8000 "hello" --token ada      # Hello, Ada. You said: hello (request 1)
    errands tasks list http://localhost:8000 --token alan       # empty: callers see only their own tasks
"""

import itertools
from typing import Any

from starlette.requests import Request

from errands import (
    A2AMiddleware,
    A2AServer,
    AgentCardConfig,
    BearerTokenMiddleware,
    RequestEnvelope,
    TaskContext,
    Worker,
)

PEOPLE = {"ada": "Ada", "alan": "Alan"}  # token to name; ask your identity provider instead


async def verify(token: str) -> dict[str, Any] | None:
    """Return the claims of a valid token; `sub` is the owner of the tasks."""
    return {"sub": PEOPLE[token]} if token in PEOPLE else None


class NumberRequests(A2AMiddleware):
    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    async def before_dispatch(self, envelope: RequestEnvelope, request: Request) -> None:
        if envelope.params is not None:  # only messages have params
            envelope.context["number"] = next(self._numbers)


class Greeter(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        name, number = ctx.request_context["auth_claims"]["sub"], ctx.request_context["number"]
        await ctx.complete(f"Hello, {name}. You said: {ctx.user_text} (request {number})")


server = A2AServer(
    worker=Greeter(),
    agent_card=AgentCardConfig(name="Greeter", description="Greets those it knows."),
    middlewares=[BearerTokenMiddleware(verify), NumberRequests()],
)
