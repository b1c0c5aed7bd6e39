"""Measure claim, list and commit on PostgreSQL by the number of stored tasks: `python benchmarks/growth.py [URL]`.

Fills the schema `errands_growth` of the database at URL with 1 k, 100 k and 1 M tasks of ten owners, one of whom has a
single conversation; prints the median latency of each operation and the plans of a claim and of listings; and drops the
schema again. Without a URL it starts a server. Fails if a claim or a page of a listing takes more than twice as long
with the most tasks.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import asyncpg
import msgspec

from errands.clock import system_clock
from errands.engines.base import Engine
from errands.engines.postgres import PostgresEngine
from errands.engines.postgres.connection import PostgresOptions, connect
from errands.engines.postgres.queries import QUERIES, scope_key
from errands.model.base import encode
from errands.model.core import UNSPECIFIED, StreamResponse, Task, TaskState, TaskStatus
from errands.model.log import Change, Draft, ListQuery, Scope, Work

SCHEMA = "errands_growth"
SIZES = (1_000, 100_000, 1_000_000)
#: Each owns a tenth of the tasks; the first one asks.
SCOPES = [Scope("", f"owner {number}", "agent") for number in range(10)]
SCOPE = SCOPES[0]
#: The owner whose tasks all belong to one conversation.
TALKER = SCOPES[1]
#: An owner with only a few tasks.
NEWCOMER = Scope("", "newcomer", "agent")
FEW = 5
ROUNDS = 200
STATES = [state.value for state in TaskState if state is not UNSPECIFIED]

FILL = """
INSERT INTO tasks (
    id, no, scope, tenant, owner, agent, context_id, version, state, attempt, attempt_base, given_back, worker, due_at,
    claimed, unread, cancel_requested, direct, asks, created_at, updated_at, status_at, folded, trimmed, watcher,
    is_long
)
SELECT 'stored ' || n, -n, ($3::bigint[])[n % 10 + 1], '', 'owner ' || n % 10, 'agent',
    CASE WHEN n % 10 = 1 THEN 'long' ELSE 'context ' || n / 100 * 10 + n % 10 END, 1,
    CASE WHEN n / 10 % 2 = 0 THEN 'TASK_STATE_INPUT_REQUIRED' ELSE 'TASK_STATE_COMPLETED' END, 1, 1, 0, '', NULL,
    '', 0, false, false, '', n, n, n, 0, 0, '', false
FROM generate_series($1::bigint, $2::bigint) AS n
"""
FILL_EVENTS = """
INSERT INTO events (task, version, kind, data, at)
SELECT -n, 1, 'task', $3, n FROM generate_series($1::bigint, $2::bigint) AS n
"""
TALLY = """
INSERT INTO tallies SELECT scope, state, 0, count(*) FROM tasks GROUP BY scope, state
ON CONFLICT (scope, state, shard) DO UPDATE SET tasks = excluded.tasks
"""


def created(task_id: str) -> tuple[Draft, ...]:
    task = Task(id=task_id, context_id="context", status=TaskStatus(state=TaskState.SUBMITTED))
    return (Draft("task", encode(StreamResponse(task=task))),)


async def median_ms(operation: Callable[[int], Awaitable[Any]]) -> float:
    times = []
    for number in range(ROUNDS):
        start = perf_counter()
        await operation(number)
        times.append(perf_counter() - start)
    return statistics.median(times) * 1000


async def measure(engine: Engine, stored: int, ids: Sequence[str]) -> dict[str, float]:
    """`ids` are some of the stored tasks of `SCOPE`."""
    now = system_clock()

    async def create(number: int, scope: Scope = SCOPE) -> None:
        task_id = f"{stored} {scope.owner} {number}"
        await engine.commit(
            Change(
                task_id=task_id,
                scope=scope,
                events=created(task_id),
                expected=0,
                at=now,
                state=TaskState.SUBMITTED,
                work=Work.READY,
                due_at=now,
                unread=1,
                context_id="context",
            )
        )

    async def claim(number: int) -> None:
        assert len(await engine.claim("worker", ["agent"], 1, now + 10**9)) == 1

    async def list_all(number: int) -> None:
        assert (await engine.list(ListQuery(scope=SCOPE))).total_size >= stored / len(SCOPES)

    async def list_state(number: int) -> None:
        await engine.list(ListQuery(scope=SCOPE, state=TaskState.INPUT_REQUIRED))

    async def list_context(number: int) -> None:
        assert (await engine.list(ListQuery(scope=SCOPE, context_id="context 10"))).total_size == 10

    conversation = ListQuery(scope=TALKER, context_id="long")
    following = (await engine.list(conversation)).next_page_token

    async def begin_conversation(number: int) -> None:
        assert (await engine.list(conversation)).total_size == stored / len(SCOPES)

    async def list_conversation(number: int) -> None:
        assert len((await engine.list(msgspec.structs.replace(conversation, page_token=following))).tasks) == 50

    async def list_few(number: int) -> None:
        assert (await engine.list(ListQuery(scope=NEWCOMER))).total_size % FEW == 0

    async def list_none(number: int) -> None:
        assert (await engine.list(ListQuery(scope=SCOPE, state=TaskState.FAILED))).total_size == 0

    async def load(number: int) -> None:
        await engine.load(ids[number % len(ids)], SCOPE)

    for number in range(FEW):
        await create(number, NEWCOMER)
        await claim(number)

    operations = {
        "create": create,
        "claim": claim,
        "load": load,
        "list": list_all,
        "list by state": list_state,
        "list by context": list_context,
        "list on in a long one": list_conversation,
        "begin a list of that": begin_conversation,
        "list of a few": list_few,
        "list of none": list_none,
    }
    return {name: await median_ms(operation) for name, operation in operations.items()}


#: The statements to plan, with values for a claim of ten tasks and the first page of a listing.
PLANNED: dict[str, tuple[Any, ...]] = {
    "due": ("agent", 2**62, 10),
    "list_scope_in_order": (scope_key(SCOPE), STATES, 0, *SCOPE, 2**62, 2**62, "", 51),
    "list_scope_since_changed": (scope_key(NEWCOMER), STATES, 0, *NEWCOMER, 2**61, "", 51),
    "list_context_in_order": (scope_key(TALKER), STATES, 0, *TALKER, 2**62, 2**62, "", 51, "long"),
    "count_context": (scope_key(TALKER), STATES, 0, "long"),
}


async def plans(url: str) -> str:
    """Plan these statements with the settings of the engine's connections."""
    connection = await connect(PostgresOptions.parse(url))
    lines: list[str] = []
    for name, values in PLANNED.items():
        await connection.execute(f"PREPARE {name} AS {QUERIES[name]}")
        query = f"EXPLAIN (ANALYZE, COSTS OFF, TIMING OFF, SUMMARY OFF, BUFFERS OFF) EXECUTE {name}"
        rows = await connection.fetch(f"{query} ({', '.join(map(literal, values))})")
        lines += [f"\n{name}", *(row[0] for row in rows)]
    await connection.close()
    return "\n".join(lines)


def literal(value: object) -> str:
    if isinstance(value, list):
        return f"ARRAY[{', '.join(map(literal, value))}]"
    return f"'{value}'" if isinstance(value, str) else str(value)


async def main(url: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    separator = "&" if "?" in url else "?"
    results: dict[int, dict[str, float]] = {}
    own_url = f"{url}{separator}schema={SCHEMA}"
    async with PostgresEngine(own_url) as engine:
        await connection.execute(f"SET search_path TO {SCHEMA}")
        filled = 0
        for size in SIZES:
            await connection.execute(FILL, filled + 1, size, [scope_key(scope) for scope in SCOPES])
            await connection.execute(FILL_EVENTS, filled + 1, size, created("stored")[0].data)
            await connection.execute(TALLY)
            await connection.execute("VACUUM ANALYZE")
            filled = size
            results[size] = await measure(engine, size, [f"stored {number}" for number in range(10, 1_001, 10)])
        planned = await plans(own_url)
    await connection.execute(f"DROP SCHEMA {SCHEMA} CASCADE")
    await connection.close()
    show(results)
    print(planned)
    check(results)


def show(results: dict[int, dict[str, float]]) -> None:
    print(f"{'median ms, tasks stored':24}" + "".join(f"{size:>12,}" for size in results))
    for name in next(iter(results.values())):
        print(f"{name:24}" + "".join(f"{result[name]:12.2f}" for result in results.values()))


def check(results: dict[int, dict[str, float]]) -> None:
    """Fail if the latency grows."""
    least, most = results[min(results)], results[max(results)]
    for name in ("claim", *(name for name in least if name.startswith("list"))):
        if most[name] > 2 * least[name]:
            raise SystemExit(f"{name} takes more than twice as long with {max(results):,} tasks")


if __name__ == "__main__":
    if len(sys.argv) > 1 and "://" not in sys.argv[1]:
        raise SystemExit(__doc__)
    if len(sys.argv) > 1:
        asyncio.run(main(sys.argv[1]))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
        from tests.postgres import Server

        with TemporaryDirectory() as folder:
            asyncio.run(main(Server(Path(folder) / "data").url()))
