"""Measure operations on Redis by the number of stored tasks: `python benchmarks/growth_redis.py [URL]`.

Fills the store at URL, under the prefix `errands_growth`, with 1 k, 10 k and 100 k finished tasks of ten owners.
Prints the median latency of each operation and the memory and processor time per task, and removes the tasks again.
Without a URL it starts a server. Fails if a claim or a listing takes more than twice as long with the most tasks.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from growth import SCOPE, SCOPES, check, measure, show
from redis.asyncio import Redis
from stores import storing
from workloads import REDIS

from errands import A2AServer, AgentCardConfig, Message, Part, Role, TaskContext, Worker
from errands.engines.redis import RedisEngine
from errands.model.requests import SendMessageRequest
from errands.runtime.call import CallContext

PREFIX = "errands_growth"
SIZES = (1_000, 10_000, 100_000)
AT_ONCE = 64


class Agent(Worker):
    async def handle(self, ctx: TaskContext) -> None:
        if ctx.user_text == "ask":
            await ctx.request_input("What?")
        else:
            await ctx.complete(f"Echo: {ctx.user_text}")


async def fill(url: str, first: int, last: int) -> list[str]:
    """Let an agent work on that many tasks, and return the ids of those of the owner who asks."""
    server = A2AServer(
        worker=Agent(), agent_card=AgentCardConfig(name=SCOPE.agent, description=""), storage=RedisEngine(url)
    )
    numbers = iter(range(first, last + 1))
    ids: list[str] = []

    async def send() -> None:
        for n in numbers:
            text = "ask" if n // 10 % 2 == 0 else "hello"
            context_id = "long" if n % 10 == 1 else f"context {n // 100 * 10 + n % 10}"
            message = Message(message_id=str(n), role=Role.USER, parts=[Part(text=text)], context_id=context_id)
            call = CallContext(SCOPES[n % 10])
            answer = await server.task_manager.send_message(SendMessageRequest(message=message), call)
            if n % 10 == 0 and answer.task is not None:
                ids.append(answer.task.id)

    async with server:
        await asyncio.gather(*(send() for _ in range(AT_ONCE)))
    return ids


async def main(url: str) -> None:
    own_url = f"{url}?prefix={PREFIX}"
    console: Any = Redis.from_url(url)
    results: dict[int, dict[str, float]] = {}
    empty = (await console.info("memory"))["used_memory"]
    filled = 0
    for size in SIZES:
        before = await processor_time(console)
        ids = await fill(own_url, filled + 1, size)
        spent = (await processor_time(console) - before) / (size - filled)
        memory = ((await console.info("memory"))["used_memory"] - empty) / size
        print(f"{size:>9,} tasks: {memory:,.0f} bytes of memory each, {spent:.0f} µs of the server's processor")
        filled = size
        async with RedisEngine(own_url) as engine:
            results[size] = await measure(engine, size, ids)
    async for key in console.scan_iter(f"{{{PREFIX}}}:*", count=1000):
        await console.unlink(key)
    await console.aclose()
    show(results)
    check(results)


async def processor_time(console: Any) -> float:
    """Return the processor time of the server so far, in microseconds."""
    info = await console.info("cpu")
    return float(info["used_cpu_sys"] + info["used_cpu_user"]) * 1e6


if __name__ == "__main__":
    if len(sys.argv) > 1 and "://" not in sys.argv[1]:
        raise SystemExit(__doc__)
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        with TemporaryDirectory() as folder, storing(REDIS, Path(folder)) as store:
            asyncio.run(main(store.url))
