"""Reading the database: the engine's methods that read, and the functions that decode rows."""

from __future__ import annotations

import re
import sqlite3
from abc import abstractmethod
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from operator import attrgetter, itemgetter
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from errands.engines.base import (
    MOST_LOOKED_AT,
    Abandoned,
    Configs,
    Entries,
    Events,
    Ids,
    LargeReadError,
    Reports,
    Running,
    Tasks,
)
from errands.engines.commit import HOSTS, LocalEngine, TaskRow
from errands.engines.damage import (
    bare_task,
    read_access,
    read_lease,
    read_reports,
    readable_pushes,
    salvaged_head,
    stored_task,
)
from errands.engines.listing import FAR, Cursor, earliest, fitting, leave_out_artifacts, list_page
from errands.engines.sqlite.connection import ReaderThreads
from errands.engines.statements import read_queries
from errands.engines.subscriptions import READ_BYTES, READ_SIZE
from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.log import (
    AccessEntry,
    AskingQuery,
    Event,
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

_E = TypeVar("_E", bound="SQLiteQueries")
_P = ParamSpec("_P")
_T = TypeVar("_T")

#: The statements of `queries.sql` by name.
QUERIES = read_queries(files(__package__))

#: How many bits of `events.place` are the version; the rest is the task's number.
VERSION_BITS = 28
MAX_VERSION = (1 << VERSION_BITS) - 1
#: The same for `pack`, which names a run of 64 places.
PACK_BITS = VERSION_BITS - 6
#: Tasks that are read at a time when all are.
_STEP = 100

_EACH = re.compile(r"/\*each\*/ (\([^)]*\)|\?)")


@cache
def repeated(name: str, rows: int) -> str:
    """Return the query with its repeated piece written `rows` times: many rows in one step of SQLite.

    Every step gives up the interpreter's lock and has to win it back from a busy event loop.
    """
    return _EACH.sub(lambda match: ", ".join([match[1]] * rows), QUERIES[name])


def json_text(value: Any) -> str:
    """Return a value as JSON, the way lists are passed to statements."""
    return encode(value).decode()


# Rows

# Not strict: SQLite has 0 and 1 instead of booleans.
_read_rows = msgspec.json.Decoder(list[TaskRow], strict=False).decode
_read_labels = msgspec.json.Decoder(list[tuple[int, str, int, Any, Any]]).decode
_read_sizes = msgspec.json.Decoder(dict[int, int]).decode
_version = attrgetter("version")
read_entry = msgspec.json.Decoder(OutboxEntry, strict=False).decode
_read_config = msgspec.json.Decoder(PushConfig).decode
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode

#: A row of the fragment `packed`: several events at once.
Pack = tuple[int, str, bytes]


def read_rows(text: str) -> list[TaskRow]:
    """Return rows of `tasks`; one that cannot be read has no state."""
    try:
        rows = _read_rows(text)
        # Retention relies on these numbers, step by step.
        if all(
            0 <= row.trimmed <= row.head.version <= MAX_VERSION and 0 <= row.folded <= row.head.version for row in rows
        ):
            return rows
    except msgspec.MsgspecError:
        pass
    salvaged: list[TaskRow] = []
    for no, task_id, scope, context_id, *_, head_columns in msgspec.json.decode(text):
        head = salvaged_head(head_columns)
        if not 0 <= head.version <= MAX_VERSION:
            head.version = 0
        salvaged.append(TaskRow(no, task_id, Scope(*scope), context_id, 0, 0, head))
    return salvaged


def fetch_rows(connection: sqlite3.Connection, query: str, values: Any) -> list[TaskRow]:
    """Return the rows of `tasks` that a query finds."""
    # Each by itself, so that one that is damaged leaves the others whole.
    return [read_rows(f"[{row[0]}]")[0] for row in connection.execute(QUERIES[query], values).fetchall()]


def unpack(packs: Iterable[Pack]) -> list[Event]:
    """Return the events of packed rows in the order of their places; a snapshot, of version 0, comes first."""
    events: list[Event] = []
    for _, labels, data in packs:
        end = 0
        for place, kind, length, at, lease in _read_labels(labels):
            start, end = end, end + length
            # In a damaged file these two may be anything.
            at, lease = at if isinstance(at, int) else 0, read_lease(lease) if isinstance(lease, str) else None
            events.append(Event(place & MAX_VERSION, kind, data[start:end], at, lease))  # type: ignore[arg-type]
    events.sort(key=_version)
    return events


def load_rows(
    connection: sqlite3.Connection, rows: Sequence[TaskRow], *, with_artifacts: bool = True
) -> list[StoredTask]:
    """Return these tasks with their content."""
    packs: dict[int, list[Pack]] = {row.no: [] for row in rows}
    parameters = {"nos": json_text(list(packs)), "with_artifacts": int(with_artifacts)}
    for pack in connection.execute(QUERIES["contents"], parameters).fetchall():
        packs[pack[0] >> PACK_BITS].append(pack)
    return [stored_task(row.id, row.context_id, row.scope, row.head, unpack(packs[row.no])) for row in rows]


@contextmanager
def _one_look(connection: sqlite3.Connection) -> Iterator[None]:
    """Have several queries see the same state of the database."""
    connection.execute("BEGIN")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")


def reading(
    query: Callable[Concatenate[_E, sqlite3.Connection, _P], _T],
) -> Callable[Concatenate[_E, _P], Coroutine[Any, Any, _T]]:
    """Have a method run in one of the threads that read, with the connection of that thread."""

    async def read(self: _E, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        return await self.readers.submit(lambda connection: query(self, connection, *args, **kwargs))

    return read


class SQLiteQueries(LocalEngine):
    """The methods of the engine that read."""

    @property
    @abstractmethod
    def readers(self) -> ReaderThreads:
        """The threads that read. Raises `StorageError` when the engine is not open."""

    # One task

    @reading
    def load(self, connection: sqlite3.Connection, task_id: str, scope: Scope | None) -> StoredTask:
        return _load(connection, task_id, scope, FAR)

    @reading
    def load_head(self, connection: sqlite3.Connection, task_id: str, scope: Scope | None) -> StoredTask:
        rows = fetch_rows(connection, "load_head", (task_id,))
        if not rows or scope not in (None, rows[0].scope):
            raise TaskNotFoundError(taskId=task_id)
        return bare_task(rows[0].id, rows[0].context_id, rows[0].scope, rows[0].head)

    @reading
    def load_small(self, connection: sqlite3.Connection, task_id: str, scope: Scope, most: int) -> StoredTask:
        return _load(connection, task_id, scope, most)

    @reading
    def read(
        self, connection: sqlite3.Connection, task_id: str, scope: Scope, after: int, limit: int = READ_SIZE
    ) -> LogSlice:
        position = {"after": min(max(after, 0), MAX_VERSION), "limit": limit, "bytes": READ_BYTES}
        trimmed, events = _log_of(connection, "read", task_id, scope, **position)
        return LogSlice(events, gap=after < trimmed)

    @reading
    def records(self, connection: sqlite3.Connection, task_id: str, scope: Scope) -> Events:
        return _log_of(connection, "records", task_id, scope)[1]

    @reading
    def load_context(self, connection: sqlite3.Connection, scope: Scope, context_id: str) -> bytes | None:
        row = connection.execute(QUERIES["load_context"], (*scope, context_id)).fetchone()
        return None if row is None else row[0]

    # Several tasks

    @reading
    def _some_tasks(self, connection: sqlite3.Connection, after: int) -> tuple[Tasks, int | None]:
        """Return the next tasks of any scope after a number, and the last one's number; None when none is left."""
        with _one_look(connection):
            rows = fetch_rows(connection, "some_tasks", (after, _STEP))
            return load_rows(connection, rows), rows[-1].no if rows else None

    async def every_task(self) -> AsyncIterator[StoredTask]:
        last: int | None = 0
        while last is not None:
            tasks, last = await self._some_tasks(last)
            for stored in tasks:
                yield stored

    @reading
    def asking(self, connection: sqlite3.Connection, query: AskingQuery) -> Tasks:
        parameters = {
            "id": query.task_id,
            "tenant": query.tenant,
            "agent": query.agent,
            "users": None if query.users is None else json_text(query.users),
            "limit": query.limit,
        }
        with _one_look(connection):
            rows = fetch_rows(connection, "asking" if query.task_id is None else "asking_by_id", parameters)
            tasks = load_rows(connection, rows, with_artifacts=False)
        leave_out_artifacts(tasks)
        return [stored for stored in tasks if not stored.damage]

    @reading
    def abandoned(
        self,
        connection: sqlite3.Connection,
        agent: str,
        paused_by: int,
        created_by: int,
        limit: int,
        unfinished_by: int = -1,
    ) -> Abandoned:
        created_by = max(created_by, unfinished_by)
        parameters = {
            "agent": agent,
            "paused_by": paused_by,
            "created_by": created_by,
            # Without a bound on the age, only those that paused long ago are looked at.
            "newest": paused_by if created_by < 0 else FAR,
            "unfinished_by": unfinished_by,
            "limit": limit,
        }
        rows = connection.execute(QUERIES["abandoned"], parameters).fetchall()
        if unfinished_by >= 0:
            rows += connection.execute(QUERIES["unfinished"], parameters).fetchall()
        return [(task_id, Scope(*scope)) for task_id, *scope in rows[:limit]]

    @reading
    def count_live(self, connection: sqlite3.Connection, scope: Scope, reach: Reach = "scope") -> int:
        count: int = connection.execute(QUERIES["count_live"], _names(scope, reach)).fetchone()[0]
        return count

    @reading
    def stored_bytes(self, connection: sqlite3.Connection, scope: Scope, reach: Reach = "scope") -> int:
        query = QUERIES["stored_bytes" if reach == "scope" else "stored_bytes_of_owners"]
        size: int = connection.execute(query, _names(scope, reach)).fetchone()[0]
        return size

    @reading
    def list(self, connection: sqlite3.Connection, query: ListQuery) -> ListPage:
        with _one_look(connection):
            try:
                list_page(_SQLiteListing(connection, query), query, self.clock()).send(None)
            except StopIteration as end:
                page: ListPage = end.value
                return page
        raise AssertionError("the queries of a listing do not wait, and so does the listing")

    # The queue

    @reading
    def wanted_canceled(self, connection: sqlite3.Connection, worker: str) -> Ids:
        return [row[0] for row in connection.execute(QUERIES["wanted_canceled"], (worker,)).fetchall()]

    @reading
    def running(self, connection: sqlite3.Connection) -> Running:
        return [row.running() for row in fetch_rows(connection, "running", (self.clock(),))]

    @reading
    def queue_age(self, connection: sqlite3.Connection, agents: Sequence[str]) -> int | None:
        now = self.clock()
        oldest = [connection.execute(QUERIES["longest_due"], (agent, now)).fetchone()[0] for agent in set(agents)]
        return max((now - due_at for due_at in oldest if due_at is not None), default=None)

    # The outbox

    @reading
    def push_configs(self, connection: sqlite3.Connection, task_id: str, scope: Scope) -> Configs:
        row = connection.execute(QUERIES["push_configs"], (task_id, *scope)).fetchone()
        if row is None:
            raise TaskNotFoundError(taskId=task_id)
        return readable_pushes(_read_config, _read_list(row[0]))

    @reading
    def _due_hosts(self, connection: sqlite3.Connection, agent: str, now: int, after: str) -> Ids:
        return [row[0] for row in connection.execute(QUERIES["due_hosts"], (agent, after, now, HOSTS)).fetchall()]

    @reading
    def _some_entries(
        self, connection: sqlite3.Connection, agent: str | None, after: int
    ) -> tuple[Entries, int | None]:
        """Return the entries of the next tasks after a number, and the last one's number; None when none is left."""
        with _one_look(connection):
            parameters = {"agent": agent, "after": after, "limit": _STEP}
            rows = connection.execute(QUERIES["some_entries"], parameters).fetchall()
            last = connection.execute(QUERIES["last_task_with_entries"], (after, _STEP)).fetchone()[0]
        return readable_pushes(read_entry, [text for _, text in rows]), last

    async def outbox(self, agent: str | None = None) -> AsyncIterator[OutboxEntry]:
        last: int | None = 0
        while last is not None:
            entries, last = await self._some_entries(agent, last)
            for entry in entries:
                yield entry

    @reading
    def _backlog(self, connection: sqlite3.Connection, agent: str) -> tuple[int | None, int]:
        found = connection.execute(QUERIES["outbox_backlog"], {"agent": agent, "most": MOST_LOOKED_AT}).fetchone()
        return found[0], found[1]

    async def outbox_backlog(self, agent: str) -> OutboxBacklog:
        due_at, dead = await self._backlog(agent)
        return OutboxBacklog(None if due_at is None or due_at > self.clock() else due_at, dead)

    # The access log

    @reading
    def _some_accesses(
        self, connection: sqlite3.Connection, at: int, entry_id: str
    ) -> Sequence[tuple[int, str, bytes]]:
        return connection.execute(QUERIES["some_accesses"], (at, entry_id, _STEP)).fetchall()

    async def accesses(self) -> AsyncIterator[AccessEntry]:
        last = -FAR, ""
        while rows := await self._some_accesses(*last):
            for at, _, data in rows:
                yield read_access(at, data)
            last = rows[-1][:2]

    # Processes

    @reading
    def _reports(self, connection: sqlite3.Connection, since: int) -> Reports:
        return read_reports(data for (data,) in connection.execute(QUERIES["reports"], (since,)))

    async def processes(self) -> Reports:
        return await self._reports(silent_since(self.clock()))


def _load(connection: sqlite3.Connection, task_id: str, scope: Scope | None, most: int) -> StoredTask:
    rows = connection.execute(QUERIES["load"], {"id": task_id, "most": most}).fetchall()
    rows.sort(key=itemgetter(0))  # the task's own row has the lowest number; sorting in SQL would copy the content
    row = read_rows(f"[{rows[0][1]}]")[0] if rows else None
    if row is None or scope not in (None, row.scope):
        raise TaskNotFoundError(taskId=task_id)
    if rows[0][2] > most:
        raise LargeReadError(rows[0][2])
    return stored_task(row.id, row.context_id, row.scope, row.head, unpack(rows[1:]))


def _names(scope: Scope, reach: Reach) -> dict[str, str | None]:
    """Return the tenant, owner and agent that a query is about; None means every one."""
    tenant, owner = reached(scope, reach)
    return {"tenant": tenant, "owner": owner, "agent": scope.agent}


def _log_of(
    connection: sqlite3.Connection, query: str, task_id: str, scope: Scope, **more: int
) -> tuple[int, list[Event]]:
    """Return up to which version a log is trimmed, if the query says so, and the events that it finds."""
    rows = connection.execute(QUERIES[query], {"id": task_id, **scope._asdict(), **more}).fetchall()
    if not rows:
        raise TaskNotFoundError(taskId=task_id)
    return rows[0][1], unpack(rows[1:])


class _SQLiteListing:
    """The queries of one listing; see `errands.engines.listing.Listing`."""

    def __init__(self, connection: sqlite3.Connection, query: ListQuery) -> None:
        self._connection = connection
        self._query = query
        if query.reach != "scope":
            self._subject = "owners"
        else:
            self._subject = "scope" if query.context_id is None else "context"
        self._filters: dict[str, object] = {
            **_names(query.scope, query.reach),
            "context_id": query.context_id,
            "state": None if query.state is None else query.state.value,
            "status_after": earliest(query),
        }
        #: What was found so far, by id.
        self._found: dict[str, TaskRow] = {}

    async def count(self) -> int:
        total: int = self._connection.execute(QUERIES[f"count_{self._subject}"], self._filters).fetchone()[0]
        return total

    async def in_order(self, cursor: Cursor, limit: int) -> list[tuple[int, str]]:
        return [(row.head.status_at, row.id) for row in self._find("in_order", cursor, limit)]

    async def since_changed(self, cursor: Cursor, limit: int) -> list[str]:
        return [row.id for row in self._find("since_changed", cursor, limit)]

    def _find(self, phase: str, cursor: Cursor, limit: int) -> list[TaskRow]:
        position = {"as_of": cursor.as_of, "status_at": cursor.status_at, "id": cursor.task_id, "limit": limit}
        rows = fetch_rows(self._connection, f"list_{self._subject}_{phase}", {**self._filters, **position})
        self._found |= {row.id: row for row in rows}
        return rows

    async def load(self, task_ids: list[str]) -> list[StoredTask]:
        rows = [self._found[task_id] for task_id in task_ids]
        with_artifacts = self._query.with_artifacts
        parameters = {"nos": json_text([row.no for row in rows]), "with_artifacts": int(with_artifacts)}
        sizes = _read_sizes(self._connection.execute(QUERIES["sizes"], parameters).fetchone()[0])
        del rows[fitting((sizes.get(row.no, 0) for row in rows), self._query) :]
        return load_rows(self._connection, rows, with_artifacts=with_artifacts)
