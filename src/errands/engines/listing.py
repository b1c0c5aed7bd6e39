"""Listing tasks page by page: the driver that every engine uses, and its page tokens.

The order is by status time, and that changes while a client turns pages. So a listing remembers when it began
(`as_of`): the first phase walks back from there; the second one gives out, in the order of their ids, the tasks that
changed since, because those have left the part of the order that is still to be walked.

A page is found before it is read, and may turn out to be too large: then it ends earlier, and its token continues after
the last task that was read. With some filters tasks can only be counted one by one. Such a listing is counted when it
begins, and its tokens carry the total.

No index has the tasks of several owners in order, because every task would pay for it: a page of such a listing, which
is for operators, looks at all tasks of the agent.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Annotated, Protocol

import msgspec

from errands.engines.base import LargeReadError
from errands.errors import InvalidParamsError
from errands.model.log import ListPage, ListQuery, StoredTask, is_reached

#: Later than every time, and still a number that every store holds exactly.
FAR = 2**53


class Cursor(msgspec.Struct, frozen=True, array_like=True):
    """A page token, decoded."""

    #: When the listing began.
    as_of: int
    #: The last task given out: its status time (first phase) and id.
    status_at: int
    task_id: str
    #: The second phase: changed since `as_of`.
    changed: bool = False
    #: How many tasks there were when the listing began; None: they are counted again for each page.
    total: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] | None = None

    def after(self, status_at: int, task_id: str, *, changed: bool) -> Cursor:
        """Return the cursor that continues after this task."""
        return Cursor(self.as_of, status_at, task_id, changed, self.total)

    @classmethod
    def read(cls, token: str) -> Cursor:
        """Raises `InvalidParamsError` for a token that `write` did not make."""
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            cursor = msgspec.json.decode(raw, type=Cursor)
        except (binascii.Error, ValueError, msgspec.MsgspecError):
            message = "The page token is not valid; start again without one"
            raise InvalidParamsError(message, field="pageToken") from None
        # A token may hold any number; one that a store cannot hold compares like the farthest that it can.
        return msgspec.structs.replace(cursor, as_of=bounded(cursor.as_of), status_at=bounded(cursor.status_at))

    def write(self) -> str:
        """Return the token for the client."""
        return base64.urlsafe_b64encode(msgspec.json.encode(self)).rstrip(b"=").decode()


class Listing(Protocol):
    """The queries of one listing: what an engine knows about its filters."""

    async def count(self) -> int:
        """Return how many tasks match."""

    async def in_order(self, cursor: Cursor, limit: int) -> Sequence[tuple[int, str]]:
        """Return the next status times and ids of the first phase: newest first, none newer than `cursor.as_of`."""

    async def since_changed(self, cursor: Cursor, limit: int) -> Sequence[str]:
        """Return the next ids of the second phase: tasks older than `cursor.as_of` whose status is newer."""

    async def load(self, task_ids: list[str]) -> Sequence[StoredTask | None]:
        """Load tasks in this order, None for one that is gone.

        The list ends before the first task that exceeds `ListQuery.page_bytes`, but never before the first of all,
        unless `ListQuery.only_small` is set.
        """


async def list_page(listing: Listing, query: ListQuery, now: int) -> ListPage:
    """Return the page that `query` asks for."""
    cursor = Cursor.read(query.page_token) if query.page_token else Cursor(now, FAR, "")
    total = await listing.count() if cursor.total is None else cursor.total
    if query.context_id is not None or query.status_after is not None or query.reach != "scope":
        cursor = msgspec.structs.replace(cursor, total=total)
    # One more than fits on the page shows whether there are more.
    wanted = query.page_size + 1
    walked = [] if cursor.changed else await listing.in_order(cursor, wanted)
    places = [cursor.after(status_at, task_id, changed=False) for status_at, task_id in walked[:wanted]]
    if len(places) < wanted:
        second = cursor if cursor.changed else cursor.after(0, "", changed=True)
        changed = await listing.since_changed(second, wanted - len(places))
        places += [cursor.after(0, task_id, changed=True) for task_id in changed[: wanted - len(places)]]
    loaded = await listing.load([place.task_id for place in places[: query.page_size]])
    if query.only_small and len(loaded) < min(len(places), query.page_size):
        raise LargeReadError(query.page_bytes)
    # A task was found before it was read, and may have changed in between.
    tasks = [
        stored
        for stored in loaded
        if stored is not None
        and is_reached(stored.scope, query.scope, query.reach)
        and (query.state is None or stored.state is query.state)
        and (query.status_after is None or stored.head.status_at >= query.status_after)
    ]
    if not query.with_artifacts:
        leave_out_artifacts(tasks)
    token = places[len(loaded) - 1].write() if len(loaded) < len(places) else ""
    return ListPage(tasks=tasks, next_page_token=token, total_size=total)


def leave_out_artifacts(tasks: Iterable[StoredTask]) -> None:
    """Remove the artifacts of tasks that were loaded."""
    for stored in tasks:
        if stored.task.artifacts is not None:
            stored.task = msgspec.structs.replace(stored.task, artifacts=None)


def fitting(sizes: Iterable[int], query: ListQuery) -> int:
    """Return how many tasks of these sizes are read for one page: always the first, so that a listing continues."""
    count, most = 0, query.page_bytes
    for size in sizes:
        most -= size
        if most < 0 and (count or query.only_small):
            break
        count += 1
    return count


def bounded(time: int) -> int:
    """Return a time that every store can hold."""
    return max(-FAR, min(time, FAR))


def earliest(query: ListQuery) -> int:
    """Return the status time from which on tasks match."""
    return -FAR if query.status_after is None else bounded(query.status_after)
