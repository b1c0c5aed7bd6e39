"""Compare errands with an older revision on a machine that is not quiet: `benchmarks/compare.py REVISION`.

Both servers run at the same time, and short bursts of the same load go to one and then to the other, so that whatever
else the machine does meets both. Printed for each work are the medians over the pairs of bursts: the rate as a
percentage of the old one, and the same for the processor time of the server per request, which waits for nothing.
`--set ERRANDS_OTEL=true` compares with tracing, whose spans are batched and then dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles

import load
import load_grpc
import uvloop
from contenders import CONTENDERS, Contender, ContenderError, Running, old_errands, pin, serving
from stores import storing
from workloads import STORAGES, WORKLOADS, Workload

BENCH_DIR = Path(__file__).resolve().parent.parent / ".bench"
WARMUP_S = 1.0
WORK = tuple(one for one in WORKLOADS if (not one.servers or "errands" in one.servers) and not one.is_chunk_cost)


def processor_seconds(pid: int) -> float:
    """Return the processor time of all threads of a process."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(one.read_text().split()[0]) for one in threads) / 1e9


async def burst(server: Running, workload: Workload, seconds: float) -> tuple[float, float]:
    """Return requests per second, and the server's processor seconds per request."""
    arguments = argparse.Namespace(
        port=server.grpc_port if workload.is_grpc else server.port,
        dialect=workload.dialect or "1.0",
        chunks=workload.chunks,
    )
    kind = load_grpc.GrpcConnection if workload.is_grpc else load.HttpConnection
    work = (load_grpc if workload.is_grpc else load).work_of(arguments)
    before = processor_seconds(server.pids[0])
    tally = await load.run_phase(kind, work, arguments.port, workload.connections, seconds)
    if tally.errors or not tally.latencies:
        raise ContenderError(f"{tally.errors} wrong answers, the first: {tally.first_error}")
    count = len(tally.latencies)
    return count / (tally.finished - tally.started), (processor_seconds(server.pids[0]) - before) / count


@contextmanager
def both(old: Contender, new: Contender, storage: str) -> Iterator[tuple[Running, Running]]:
    """Serve both revisions, each on a store of its own."""
    directories = [Path(tempfile.mkdtemp(prefix="run-", dir=BENCH_DIR)) for _ in range(2)]
    try:
        with ExitStack() as stack:
            running = []
            for contender, directory in zip((old, new), directories, strict=True):
                store = stack.enter_context(storing(storage, directory))
                python = Path(sys.executable)
                running.append(stack.enter_context(serving(contender, python, storage, store, directory, tuned=False)))
            yield running[0], running[1]
    finally:
        for directory in directories:
            shutil.rmtree(directory, ignore_errors=True)


async def compare(servers: tuple[Running, Running], workload: Workload, pairs: int, seconds: float) -> str:
    for server in servers:
        await burst(server, workload, WARMUP_S)
    rates: list[float] = []
    costs: list[float] = []
    for number in range(pairs):
        # Whichever comes first in a pair has no advantage over all pairs.
        order = (0, 1) if number % 2 else (1, 0)
        found = {which: await burst(servers[which], workload, seconds) for which in order}
        rates.append(100 * found[1][0] / found[0][0])
        costs.append(100 * found[0][1] / found[1][1])
    low, _, high = quantiles(costs, n=4)
    rate, cost = median(rates), median(costs)
    return f"rate {rate:6.1f} %   by processor time {cost:6.1f} %   (middle half {low:.1f} to {high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="the older revision, as git knows it")
    parser.add_argument("--engine", nargs="+", default=STORAGES, choices=STORAGES)
    parser.add_argument("--only", nargs="+", default=[one.name for one in WORK], choices=[one.name for one in WORK])
    parser.add_argument("--pairs", type=int, default=20, help="pairs of bursts for each work")
    parser.add_argument("--seconds", type=float, default=0.5, help="the length of one burst")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="variables of the new one alone")
    arguments = parser.parse_args()
    BENCH_DIR.mkdir(exist_ok=True)
    gc.disable()
    old = old_errands(arguments.revision, BENCH_DIR)
    new = replace(CONTENDERS[0], environment=dict(pair.split("=", 1) for pair in arguments.set))
    for storage in arguments.engine:
        chosen = [one for one in WORK if one.name in arguments.only and storage in one.storages]
        if not chosen:
            continue
        with both(old, new, storage) as servers:
            every_core = os.sched_getaffinity(0)
            pin(0, 1)
            for workload in chosen:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    row = runner.run(compare(servers, workload, arguments.pairs, arguments.seconds))
                print(f"{storage:10} {workload.name:16} {row}", flush=True)
                gc.collect()
            os.sched_setaffinity(0, every_core)  # the next store must not share the core of the load


if __name__ == "__main__":
    main()
