"""The server inside a FastAPI application (extra `fastapi`)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI

if TYPE_CHECKING:
    from errands.server.app import A2AServer


def wrap(server: A2AServer, *, debug: bool, **fastapi_kwargs: Any) -> FastAPI:
    """A FastAPI application with the agent at its root; routes added to it before the first request come first."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await server.start()
        try:
            yield
        finally:
            await server.stop()

    card = server.agent_card
    fastapi_kwargs = {
        "title": card.name,
        "version": card.version,
        "description": card.description,
        "debug": debug,
        **fastapi_kwargs,
    }
    app = FastAPI(lifespan=lifespan, **fastapi_kwargs)
    # Last of all routes: whatever FastAPI does not know is the agent's.
    app.router.default = server.app
    return app
