"""A process that begins to apply a retention policy and is killed when it has removed a few pieces."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from errands.engines.base import Retention
from errands.engines.postgres import retention as postgres_retention
from errands.engines.postgres.retention import PostgresSweep
from errands.engines.redis import retention as redis_retention
from errands.engines.redis.store import CommandBuilder
from errands.engines.sqlite import retention as sqlite_retention
from errands.engines.urls import engine_from_url

#: What one piece is, instead of thousands.
BATCH = 30
#: Pieces that are removed before the end.
PIECES = 3
KEPT = 2 * BATCH
EVERYTHING_ENDED = Retention(ended_after=0)
TRIMMED = Retention(events_per_task=KEPT, ended_after=math.inf)

POLICIES = {"delete": EVERYTHING_ENDED, "trim": TRIMMED}
#: What removes a piece.
STEPS: dict[str, list[tuple[Any, str]]] = {
    "delete": [(sqlite_retention, "clear_remains"), (PostgresSweep, "clear_remains")],
    "trim": [(sqlite_retention, "trim"), (PostgresSweep, "trim"), (CommandBuilder, "trim")],
}


def deadly(step: Callable[..., Any]) -> Callable[..., Any]:
    """The step, the first few times."""
    taken = 0

    def take(*arguments: Any, **options: Any) -> Any:
        nonlocal taken
        taken += 1
        if taken > PIECES:
            os.kill(os.getpid(), signal.SIGKILL)
        return step(*arguments, **options)

    return take


async def main(storage: str, what: str) -> None:
    for module in (sqlite_retention, postgres_retention, redis_retention):
        module.SWEEP_EVENTS = BATCH  # type: ignore[attr-defined]
    for place, name in STEPS[what]:
        setattr(place, name, deadly(getattr(place, name)))
    async with engine_from_url(storage, POLICIES[what]) as engine:
        await engine.sweep()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
