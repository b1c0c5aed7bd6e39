"""Engines on a machine that may be slow: what has no time to answer is asked again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from errands.engines.base import Engine
from errands.errors import StorageError
from tests.waiting import SOON

AnyEngine = TypeVar("AnyEngine", bound=Engine)


async def trouble_of(engine: Engine) -> str:
    """What is wrong with the store; nothing when it is well.

    Silence counts as trouble after a second, which a store on a busy machine may need.
    """
    while True:
        try:
            await engine.check()
        except StorageError as error:
            if "does not answer" not in str(error):
                return str(error)
        else:
            return ""


async def until_trouble(engine: Engine, text: str) -> None:
    """Waits until the store is not well, in these words."""
    async with asyncio.timeout(SOON):
        while text not in await trouble_of(engine):
            await asyncio.sleep(0.01)


@asynccontextmanager
async def impatient(engine: AnyEngine) -> AsyncIterator[AnyEngine]:
    """Opens an engine that waits for no answer as long as a busy machine may need to give one."""
    is_open = False
    while not is_open:
        try:
            await engine.open()
            is_open = True
        except StorageError:
            pass
    try:
        yield engine
    finally:
        await engine.close()
