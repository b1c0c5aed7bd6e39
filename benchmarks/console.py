"""Measure what an open console costs: `benchmarks/console.py [--engine ...]`.

A server has 50 live tasks, each of which writes twice a second. Bursts of blocking sends reach it in pairs: one while
no console is open, one while its pages are: they read the list of tasks every two seconds, the figures every five, the
reviews every ten, and one task whose timeline is read again after changes in its stream. As in the browser, a read
that takes long is repeated less often. Printed are the medians over the pairs: the rate with the console as a
percentage of that without, and the same for the processor time of the server per request.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from uuid import uuid4

import httpx
import uvloop
from compare import BENCH_DIR, WARMUP_S, burst
from contenders import CONTENDERS, pin, serving
from stores import storing
from workloads import STORAGES, WORKLOADS

LIVE = 50
#: Seconds between two reads of a page, as in `console/static`.
TASKS, FIGURES, REVIEWS, TIMELINE = 2.0, 5.0, 10.0, 3.0
#: A read takes at most one part in so many of the time.
SHARE = 15


async def begin_live_tasks(http: httpx.AsyncClient) -> list[str]:
    ids = []
    for _ in range(LIVE):
        message = {"messageId": str(uuid4()), "role": "ROLE_USER", "parts": [{"text": "live"}]}
        answer = await http.post(
            "/message:send", json={"message": message, "configuration": {"returnImmediately": True}}
        )
        ids.append(answer.json()["task"]["id"])
    return ids


class Console:
    """The requests of an open console, and how many of them were answered."""

    def __init__(self, http: httpx.AsyncClient, task_id: str) -> None:
        self._http, self._task = http, task_id
        self.answers = 0

    async def _read(self, path: str, **parameters: str | int) -> Any:
        answer = await self._http.get(f"/admin/{path}", params=parameters)
        answer.raise_for_status()
        self.answers += 1
        return answer.json()

    async def _again(self, every: float, path: str, **parameters: str | int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self._read(path, **parameters)
            await asyncio.sleep(max(every, SHARE * (loop.time() - began)))

    async def _follow(self) -> None:
        """Read the timeline of a task, and again after events of its stream, at most once in `TIMELINE` seconds."""
        version = (await self._read(f"tasks/{self._task}/timeline"))["version"]
        async with self._http.stream("GET", f"/admin/tasks/{self._task}/stream", params={"after": version}) as stream:
            read_at = asyncio.get_running_loop().time()
            async for line in stream.aiter_lines():
                if line.startswith("data:"):
                    self.answers += 1
                    if asyncio.get_running_loop().time() - read_at >= TIMELINE:
                        await self._read(f"tasks/{self._task}/timeline")
                        read_at = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        await self._read("me")
        work: list[Callable[[], Coroutine[Any, Any, None]]] = [
            lambda: self._again(TASKS, "tasks", limit=50),
            lambda: self._again(FIGURES, "figures"),
            lambda: self._again(REVIEWS, "reviews"),
            self._follow,
        ]
        tasks = [asyncio.create_task(one()) for one in work]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for error in ended:
                if not isinstance(error, asyncio.CancelledError):
                    raise RuntimeError("the console could not read") from (
                        error if isinstance(error, Exception) else None
                    )


async def measure(server: Any, pairs: int, seconds: float) -> str:
    workload = next(one for one in WORKLOADS if one.name == "send-32")
    rates: list[float] = []
    costs: list[float] = []
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.port}", timeout=30, trust_env=False) as http:
        ids = await begin_live_tasks(http)
        console = Console(http, ids[0])
        await burst(server, workload, WARMUP_S)
        for number in range(pairs):
            found: dict[bool, tuple[float, float]] = {}
            for is_open in (False, True) if number % 2 else (True, False):
                async with console.opened() if is_open else contextlib.nullcontext():
                    found[is_open] = await burst(server, workload, seconds)
            rates.append(100 * found[True][0] / found[False][0])
            costs.append(100 * found[False][1] / found[True][1])
        for task_id in ids:
            (await http.post(f"/tasks/{task_id}:cancel", json={})).raise_for_status()
    low, _, high = quantiles(costs, n=4)
    return (
        f"rate {median(rates):6.1f} %   by processor time {median(costs):6.1f} %   "
        f"(middle half {low:.1f} to {high:.1f}; {console.answers} answers to the console)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", nargs="+", default=["memory", "sqlite"], choices=STORAGES)
    parser.add_argument("--pairs", type=int, default=6, help="pairs of bursts")
    # Long enough for every page to be read again at its own pace.
    parser.add_argument("--seconds", type=float, default=8.0, help="the length of one burst")
    arguments = parser.parse_args()
    BENCH_DIR.mkdir(exist_ok=True)
    gc.disable()
    contender = replace(CONTENDERS[0], module="live_server")
    for storage in arguments.engine:
        directory = Path(tempfile.mkdtemp(prefix="run-", dir=BENCH_DIR))
        try:
            with (
                storing(storage, directory) as store,
                serving(contender, Path(sys.executable), storage, store, directory, tuned=False) as server,
            ):
                pin(0, 1)
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    print(f"{storage:10} {runner.run(measure(server, arguments.pairs, arguments.seconds))}", flush=True)
        finally:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main()
