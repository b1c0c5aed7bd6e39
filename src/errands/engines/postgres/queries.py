"""Reading the database: the engine's methods that read, and the functions that decode rows."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import Any

import msgspec

from errands.engines.base import (
    MOST_LOOKED_AT,
    Abandoned,
    Configs,
    Events,
    Ids,
    LargeReadError,
    Reports,
    Running,
    Tasks,
)
from errands.engines.commit import HOSTS, LocalEngine, TaskRow
from errands.engines.connection import StoreClock
from errands.engines.damage import bare_task, read_access, read_lease, read_reports, readable_pushes, stored_task
from errands.engines.listing import FAR, Cursor, earliest, leave_out_artifacts, list_page
from errands.engines.postgres.connection import Connection, ReaderPool
from errands.engines.statements import read_queries
from errands.engines.subscriptions import READ_BYTES, READ_SIZE
from errands.errors import TaskNotFoundError
from errands.model.base import UNREADABLE
from errands.model.core import TERMINAL_STATES, UNSPECIFIED, TaskState
from errands.model.log import (
    AccessEntry,
    AskingQuery,
    Event,
    Head,
    ListPage,
    ListQuery,
    LogSlice,
    OutboxBacklog,
    OutboxEntry,
    PushConfig,
    Reach,
    Scope,
    StoredTask,
    reached,
    silent_since,
)

#: The statements of `queries.sql` by name.
QUERIES = read_queries(files(__package__))

#: What an integer column holds; a log has no more events.
MAX_VERSION = 2**31 - 1
#: Tasks that are read at a time when all are.
_STEP = 100

# Texts

#: PostgreSQL's texts hold every character but NUL; it is written as this one and a digit.
_ESCAPE = "\x1a"


def storable(text: str) -> str:
    """Return a text as it is stored; `readable` is the inverse."""
    if "\0" in text or _ESCAPE in text:
        return text.replace(_ESCAPE, _ESCAPE + "1").replace("\0", _ESCAPE + "0")
    return text


def readable(text: str) -> str:
    if _ESCAPE in text:
        return text.replace(_ESCAPE + "0", "\0").replace(_ESCAPE + "1", _ESCAPE)
    return text


def are_texts(*texts: str | None) -> bool:
    """Return whether texts can be stored at all: half a surrogate pair cannot."""
    return all(
        text is None or text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)
        for text in texts
    )


@lru_cache(maxsize=4096)
def scope_key(scope: Scope) -> int:
    """Return the scope as one number, for indexes."""
    return int.from_bytes(_digest(scope, 8), "big", signed=True)


def receipt_key(scope: Scope, receipt: bytes) -> bytes:
    """Return the scope and the digest of a message as one."""
    return _digest(scope, 16, receipt)


def _digest(scope: Scope, size: int, more: bytes = b"") -> bytes:
    # The lengths keep apart what would read the same when put together.
    head = f"{len(scope.tenant)},{len(scope.owner)},{len(scope.agent)}:{scope.tenant}{scope.owner}{scope.agent}"
    return hashlib.blake2b(head.encode("utf-8", "surrogatepass") + b"\0" + more, digest_size=size).digest()


# Rows

#: asyncpg's record.
Row = Any

_read_pushes = msgspec.json.Decoder(tuple[str, ...]).decode
_read_config = msgspec.json.Decoder(PushConfig).decode

#: By their names; another release may know more.
_STATES = {state.value: state for state in TaskState}


def read_row(row: Row) -> TaskRow:
    """Return the columns of the fragment `record`, with which a row begins; those of the head are the last."""
    no, task_id, tenant, owner, agent, context_id, folded, trimmed, watcher, version, state = row[:11]
    head = Head(version, _STATES.get(state, UNSPECIFIED), *row[11:24])
    head.worker, head.asks = readable(head.worker), readable(head.asks)
    if pushes := row[24]:
        try:
            head.pushes = _read_pushes(readable(pushes))
        except UNREADABLE:
            head.state = UNSPECIFIED  # which marks the task as damaged
    scope = Scope(readable(tenant), readable(owner), readable(agent))
    return TaskRow(no, readable(task_id), scope, readable(context_id), folded, trimmed, head, watcher)


def read_events(row: Row) -> list[Event]:
    """Return the columns of the fragment `log`, after those of the task; a snapshot, of version 0, comes first."""
    versions, kinds, data, times, leases = row[25:30]
    if versions is None:
        return []
    return [
        Event(version, kind, content, at, lease and read_lease(readable(lease)))
        for version, kind, content, at, lease in zip(versions, kinds, data, times, leases, strict=True)
    ]


def read_entry(row: Row) -> OutboxEntry:
    """Return the columns of the fragment `entry`."""
    tenant, owner, agent, config, task_id, delivered, due_at, claim, attempts, failed_at, error, dead = row[:12]
    return OutboxEntry(
        task_id=readable(task_id),
        scope=Scope(readable(tenant), readable(owner), readable(agent)),
        config=_read_config(readable(config)),
        delivered=delivered,
        due_at=due_at,
        claim=claim,
        attempts=attempts,
        failed_at=failed_at,
        error=readable(error),
        dead=dead,
    )


def read_stored(row: Row) -> StoredTask:
    task = read_row(row)
    return stored_task(task.id, task.context_id, task.scope, task.head, read_events(row))


async def contents(connection: Connection, ids: Sequence[str]) -> dict[str, StoredTask]:
    """Load these tasks; ids are as they are stored."""
    return {row[1]: read_stored(row) for row in await connection.fetch(QUERIES["contents"], ids, True)}


class PostgresQueries(LocalEngine):
    """The methods of the engine that read."""

    @property
    @abstractmethod
    def readers(self) -> ReaderPool:
        """The connections that read. Raises `StorageError` when the engine is not open."""

    async def _fetch(self, query: str, *values: object) -> Sequence[Row]:
        return await self.readers.call(lambda connection: connection.fetch(QUERIES[query], *values))

    async def _fetch_value(self, query: str, *values: object) -> Any:
        return await self.readers.call(lambda connection: connection.fetchval(QUERIES[query], *values))

    async def _fetch_task(
        self, query: str, task_id: str, scope: Scope | None, *values: object
    ) -> tuple[TaskRow, Events]:
        """Return a task, of any scope when none is given, and events of its log. Raises `TaskNotFoundError`."""
        rows = await self._fetch(query, storable(task_id), *values) if are_texts(task_id) else ()
        row = read_row(rows[0]) if rows else None
        if row is None or scope not in (None, row.scope):
            raise TaskNotFoundError(taskId=task_id)
        return row, read_events(rows[0])

    # One task

    async def load(self, task_id: str, scope: Scope | None) -> StoredTask:
        row, content = await self._fetch_task("load", task_id, scope, True)
        return stored_task(row.id, row.context_id, row.scope, row.head, content)

    async def load_head(self, task_id: str, scope: Scope | None) -> StoredTask:
        rows = await self._fetch("load_head", storable(task_id)) if are_texts(task_id) else ()
        row = read_row(rows[0]) if rows else None
        if row is None or scope not in (None, row.scope):
            raise TaskNotFoundError(taskId=task_id)
        return bare_task(row.id, row.context_id, row.scope, row.head)

    async def load_small(self, task_id: str, scope: Scope, most: int) -> StoredTask:
        try:
            row, content = await self._fetch_task("load_small", task_id, scope, True, most)
        except TaskNotFoundError:
            size = None
            if are_texts(task_id, *scope):
                size = await self._fetch_value("size", storable(task_id), True, *map(storable, scope))
            if size is None or size <= most:
                raise
            raise LargeReadError(size) from None
        return stored_task(row.id, row.context_id, row.scope, row.head, content)

    async def read(self, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE) -> LogSlice:
        return (await self.tail(task_id, scope, after, limit))[0]

    async def tail(
        self, task_id: str, scope: Scope | None, after: int, limit: int = READ_SIZE
    ) -> tuple[LogSlice, TaskState]:
        """Do what `read` does, in any scope when none is given, and return the task's state as well."""
        position = min(max(after, 0), MAX_VERSION)
        row, events = await self._fetch_task("read", task_id, scope, position, limit, READ_BYTES)
        return LogSlice(events, gap=after < row.trimmed), row.head.state

    async def records(self, task_id: str, scope: Scope) -> Events:
        return (await self._fetch_task("records", task_id, scope))[1]

    async def load_context(self, scope: Scope, context_id: str) -> bytes | None:
        if not are_texts(*scope, context_id):
            return None
        value: bytes | None = await self._fetch_value("load_context", *map(storable, scope), storable(context_id))
        return value

    # Several tasks

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last = ""
        while rows := await self._fetch("some_tasks", last, True, _STEP):
            for row in rows:
                yield read_stored(row)
            last = rows[-1][1]

    async def asking(self, query: AskingQuery) -> Tasks:
        wanted = (query.task_id, query.tenant, query.agent)
        if not are_texts(*wanted):
            return []
        task_id, tenant, agent = (None if text is None else storable(text) for text in wanted)
        users = None if query.users is None else [storable(user) for user in query.users if are_texts(user)]
        rows = await self._fetch("asking", task_id, False, tenant, agent, users, query.limit)
        tasks = [stored for stored in map(read_stored, rows) if not stored.damage]
        leave_out_artifacts(tasks)
        return tasks

    async def abandoned(
        self, agent: str, paused_by: int, created_by: int, limit: int, unfinished_by: int = -1
    ) -> Abandoned:
        created_by = max(created_by, unfinished_by)
        # Without a bound on the age, only those that paused long ago are looked at.
        newest = paused_by if created_by < 0 else FAR
        rows = [*await self._fetch("abandoned", storable(agent), newest, paused_by, created_by, limit)]
        if unfinished_by >= 0:
            rows += await self._fetch("unfinished", storable(agent), unfinished_by, limit)
        return [(readable(key), Scope(*map(readable, scope))) for key, *scope in rows[:limit]]

    async def count_live(self, scope: Scope, reach: Reach = "scope") -> int:
        if reach != "scope":
            found: int = await self._fetch_value("count_live_of_owners", *_names(scope, reach))
            return found
        live = [state.value for state in TaskState if state not in TERMINAL_STATES]
        count: int = await self._fetch_value("tally", scope_key(scope), live)
        return count

    async def stored_bytes(self, scope: Scope, reach: Reach = "scope") -> int:
        if reach == "scope":
            size: int = await self._fetch_value("stored_bytes", scope_key(scope))
        else:
            size = await self._fetch_value("stored_bytes_of_owners", *_names(scope, reach))
        return size

    async def list(self, query: ListQuery) -> ListPage:
        if not are_texts(*query.scope, query.context_id):
            if query.page_token:
                Cursor.read(query.page_token)
            return ListPage(tasks=[], next_page_token="", total_size=0)
        now = self.clock()
        return await self.readers.call(lambda connection: list_page(_PostgresListing(connection, query), query, now))

    # The queue

    async def wanted_canceled(self, worker: str) -> Ids:
        return [readable(row[0]) for row in await self._fetch("wanted_canceled", storable(worker))]

    async def running(self) -> Running:
        return [read_row(row).running() for row in await self._fetch("running", self.clock())]

    async def queue_age(self, agents: Sequence[str]) -> int | None:
        now = self.clock()
        names = [storable(agent) for agent in agents if are_texts(agent)]
        due_at: int | None = await self._fetch_value("longest_due", names, now)
        return None if due_at is None else now - due_at

    # The outbox

    async def push_configs(self, task_id: str, scope: Scope) -> Configs:
        names = (task_id, *scope)
        rows = await self._fetch("push_configs", *map(storable, names)) if are_texts(*names) else ()
        if not rows:
            raise TaskNotFoundError(taskId=task_id)
        return readable_pushes(lambda config: _read_config(readable(config)), rows[0][0] or ())

    async def _due_hosts(self, agent: str, now: int, after: str) -> Ids:
        return [row[0] for row in await self._fetch("due_hosts", storable(agent), after, now, HOSTS)]

    async def outbox(self, agent: str | None = None) -> AsyncIterator[OutboxEntry]:
        last, of_agent = ("", ""), None if agent is None else storable(agent)
        while rows := await self._fetch("some_entries", *last, of_agent, _STEP):
            for entry in readable_pushes(read_entry, rows):
                yield entry
            last = rows[-1][4], rows[-1][12]

    async def outbox_backlog(self, agent: str) -> OutboxBacklog:
        ((due_at, dead),) = await self._fetch("outbox_backlog", storable(agent), MOST_LOOKED_AT)
        return OutboxBacklog(None if due_at is None or due_at > self.clock() else due_at, dead)

    # The access log

    async def accesses(self) -> AsyncIterator[AccessEntry]:
        last = -FAR, ""
        while rows := await self._fetch("some_accesses", *last, _STEP):
            for at, _, data in rows:
                yield read_access(at, data)
            last = rows[-1][0], rows[-1][1]

    # Processes

    async def processes(self) -> Reports:
        return read_reports(row[0] for row in await self._fetch("reports", silent_since(self.clock())))

    async def compare_clock(self, connection: Connection, name: str) -> None:
        """Correct a `StoreClock` by the server's time."""
        if isinstance(self.clock, StoreClock):
            asked = self.clock.own()
            theirs = await connection.fetchval(QUERIES["server_time"])
            self.clock.compare(asked, theirs, self.clock.own(), f"the database {name}")


class _PostgresListing:
    """The queries of one listing; see `errands.engines.listing.Listing`."""

    def __init__(self, connection: Connection, query: ListQuery) -> None:
        self._connection = connection
        self._query = query
        self._subject = "scope" if query.context_id is None else "context"
        self._context = () if query.context_id is None else (storable(query.context_id),)
        states = [state for state in _STATES if state != UNSPECIFIED] if query.state is None else [query.state.value]
        self._filters: tuple[object, ...]
        if query.reach == "scope":
            self._filters = (scope_key(query.scope), states, earliest(query), *map(storable, query.scope))
        else:
            self._subject = "owners"
            context_id = None if query.context_id is None else storable(query.context_id)
            self._filters = (*_names(query.scope, query.reach), states, earliest(query), context_id)
            self._context = ()

    async def count(self) -> int:
        if self._subject == "owners":
            total: int = await self._connection.fetchval(QUERIES["count_owners"], *self._filters)
        elif self._query.status_after is None and self._query.context_id is None:
            total = await self._connection.fetchval(QUERIES["tally"], *self._filters[:2])
        else:
            counting = QUERIES[f"count_{self._subject}"]
            total = await self._connection.fetchval(counting, *self._filters[:3], *self._context)
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        rows = await self._find("in_order", cursor.as_of, cursor.status_at, _position(cursor), limit)
        return [(status_at, readable(task_id)) for task_id, status_at in rows]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        rows = await self._find("since_changed", cursor.as_of, _position(cursor), limit)
        return [readable(row[0]) for row in rows]

    async def _find(self, phase: str, *position: object) -> Sequence[Row]:
        query = QUERIES[f"list_{self._subject}_{phase}"]
        rows: list[Row] = await self._connection.fetch(query, *self._filters, *position, *self._context)
        return rows

    async def load(self, task_ids: list[str]) -> list[StoredTask | None]:
        wanted = [storable(task_id) for task_id in task_ids]
        query = self._query
        rows = await self._connection.fetch(
            QUERIES["contents_within"], wanted, query.with_artifacts, query.page_bytes, query.only_small
        )
        # Without any row all are gone. If only those after the last row are, the next page finds that out.
        gone = 0 if query.only_small else len(wanted)
        loaded: list[StoredTask | None] = [None] * (rows[-1]["place"] if rows else gone)
        for row in rows:
            loaded[row["place"] - 1] = read_stored(row)
        return loaded


def _names(scope: Scope, reach: Reach) -> list[str | None]:
    """Return the agent, tenant and owner that a query is about; None means every one."""
    return [None if name is None else storable(name) for name in (scope.agent, *reached(scope, reach))]


def _position(cursor: Cursor) -> str:
    """Return the id in a token, which may be any text, without what cannot be stored."""
    return storable(cursor.task_id.encode("utf-8", "ignore").decode())
