"""The table of tasks that the operator API lists: its rows, its filters, and the scan over one or more agents.

Filters that an engine does not know are applied while its pages are read. So one answer reads at most
`MOST_SCANNED` tasks, and its cursor says where to continue.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import heapq
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from errands.errors import InvalidParamsError
from errands.model.core import FAILED, PAUSED_STATES, REJECTED, UNSPECIFIED, Role, TaskState, text_of
from errands.model.log import ListPage, ListQuery, Reach, Scope, StoredTask
from errands.model.marks import is_review

#: The most tasks that are read for one answer.
MOST_SCANNED = 1000
#: The most tasks in one answer.
PAGE = 100
#: Tasks that are read at a time when most of them may not match.
SCANNED_AT_ONCE = 200
#: The number of states up to which each is listed by itself. For more, all tasks are listed and filtered.
MOST_LISTINGS = 4
#: Characters of the words and the reason of a row.
_WORDS = 200
_MAX_CURSOR = 20_000


class TableRow(msgspec.Struct, kw_only=True, rename="camel"):
    """A row about a task. Times are in milliseconds since 1970."""

    id: str
    context_id: str | None
    agent: str
    owner: str
    tenant: str
    state: str
    #: The first words of its input.
    words: str
    #: Why it failed or what it waits for: the text of its last status.
    reason: str
    created_at: int
    updated_at: int
    status_at: int
    #: The attempt of the current turn, without those that a stopping process gave back; how often it was leased.
    attempt: int
    leases: int
    #: The process that holds it, and until when; "" and None if no process does.
    worker: str
    lease_until: int | None
    #: Since when it has been ready, while it is in the queue.
    due_at: int | None
    unread: int
    #: The user who is asked for a review; "" if none is.
    asks: str
    cancel_requested: bool
    version: int
    #: How many artifacts it has; None where they were not read.
    artifacts: int | None
    #: How many webhooks it has.
    push: int
    #: Why its stored data cannot be read; "" for a task that can.
    damage: str

    @classmethod
    def of(cls, stored: StoredTask, *, is_operator: bool, with_artifacts: bool = False) -> TableRow:
        """Return the row of a task. Only operators see which machine works on it, and how it is damaged."""
        task, head = stored.task, stored.head
        is_held = bool(head.worker)
        message = task.status.message if stored.state in PAUSED_STATES | {FAILED, REJECTED} else None
        return cls(
            id=task.id,
            context_id=task.context_id,
            agent=stored.scope.agent,
            owner=stored.scope.owner,
            tenant=stored.scope.tenant,
            state=stored.state.short,
            words=first_words(stored),
            reason=one_line(text_of(message.parts)) if message is not None else "",
            created_at=head.created_at,
            updated_at=head.updated_at,
            status_at=head.status_at,
            attempt=head.attempt - head.attempt_base - head.given_back,
            leases=head.attempt,
            worker=head.worker if is_operator else "",
            lease_until=head.due_at if is_held else None,
            due_at=None if is_held else head.due_at,
            unread=head.unread,
            asks=head.asks,
            cancel_requested=head.cancel_requested,
            version=head.version,
            artifacts=len(task.artifacts or ()) if with_artifacts else None,
            push=len(head.pushes),
            damage=stored.damage if is_operator or not stored.damage else "its data cannot be read",
        )


def first_words(stored: StoredTask) -> str:
    """Return the first words of the input."""
    for message in stored.task.history or ():
        if message.role is not Role.AGENT:
            if words := one_line(text_of(message.parts)):
                return words
            return f"{len(message.parts)} parts without a text"
    return ""


def one_line(text: str, most: int = _WORDS) -> str:
    """Return the beginning of a text on one line."""
    words = " ".join(text[: 4 * most].split())
    return words if len(words) <= most and len(text) <= 4 * most else f"{words[:most]}…"


def tries_again(stored: StoredTask) -> bool:
    """Return whether the current turn of the task was tried more than once."""
    head = stored.head
    messages = sum(message.role is not Role.AGENT for message in stored.task.history or ())
    leases = head.attempt - head.given_back
    return leases - head.attempt_base > 1 or leases > max(messages, 1)


class TaskFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A filter for tasks. A field that is empty or None matches every task."""

    states: frozenset[TaskState] = frozenset()
    #: The beginning of an id, or words of the input.
    text: str = ""
    context_id: str | None = None
    owner: str | None = None
    retried: bool = False
    #: Only tasks that wait for a person.
    waiting: bool = False

    @classmethod
    def read(cls, query: Mapping[str, str]) -> TaskFilter:
        """Return the filter in a query. Raises `InvalidParamsError`."""
        states = set()
        for name in filter(None, query.get("state", "").split(",")):
            try:
                states.add(TaskState.parse(name[:40]))
            except ValueError:
                known = ", ".join(state.short for state in TaskState if state is not UNSPECIFIED)
                raise InvalidParamsError(f"unknown state {name[:40]!r}: expected {known}", field="state") from None
        return cls(
            states=frozenset(states),
            text=query.get("q", "").strip()[:200],
            context_id=query.get("context") or None,
            owner=query.get("owner"),
            retried=query.get("retried", "") not in ("", "0"),
            waiting=query.get("waiting", "") not in ("", "0"),
        )

    @property
    def listed_states(self) -> Sequence[TaskState | None]:
        """The states that are listed one by one, because an engine lists one state or all; None for all of them."""
        states = self.states & PAUSED_STATES if self.waiting and self.states else self.states
        states = states or (PAUSED_STATES if self.waiting else frozenset())
        return sorted(states) if 0 < len(states) <= MOST_LISTINGS else [None]

    @property
    def is_simple(self) -> bool:
        """True if the listings of the engine have exactly the tasks that match."""
        others = self.text or self.owner is not None or self.retried
        return not others and (None not in self.listed_states or not (self.states or self.waiting))

    def matches(self, stored: StoredTask) -> bool:
        """Return whether a task matches."""
        return (
            (not self.states or stored.state in self.states)
            and (self.owner is None or stored.scope.owner == self.owner)
            and (self.context_id is None or stored.task.context_id == self.context_id)
            and (not self.waiting or stored.state in PAUSED_STATES)
            and (not self.retried or tries_again(stored))
            and (not self.text or stored.task.id.startswith(self.text) or _input_has(stored, self.text))
        )


def _input_has(stored: StoredTask, text: str) -> bool:
    wanted = text.casefold()
    return any(
        wanted in text_of(message.parts).casefold()
        for message in stored.task.history or ()
        if message.role is not Role.AGENT and not is_review(message)
    )


class TablePage(NamedTuple):
    """A page of the table, the newest status first."""

    tasks: list[StoredTask]
    #: Where the next page begins; "" at the end.
    cursor: str
    #: How many tasks were read.
    scanned: int


#: `CallContext.list` of the caller.
ListTasks = Callable[[ListQuery], Awaitable[ListPage]]


class TaskScan:
    """Walks through the tasks of some agents within a reach, the newest status first.

    The listings of several agents and states are merged.
    """

    def __init__(
        self, list_tasks: ListTasks, scope: Scope, reach: Reach, agents: Sequence[str], wanted: TaskFilter
    ) -> None:
        self._list = list_tasks
        self._scope = scope
        self._reach = reach
        self._wanted = wanted
        #: Each walks through the tasks of one agent, in one state or in all, by its name in cursors.
        self._listings = {
            f"{'' if state is None else state.short}:{agent}": (agent, state)
            for agent in agents
            for state in wanted.listed_states
        }

    async def page(self, limit: int, cursor: str = "") -> TablePage:
        """Return up to `limit` tasks that match. Raises `InvalidParamsError` for an invalid cursor."""
        tokens = _read_cursor(cursor) if cursor else dict.fromkeys(self._listings, "")
        tokens = {name: token for name, token in tokens.items() if name in self._listings}
        found: list[StoredTask] = []
        scanned = 0
        while tokens and len(found) < limit and scanned < MOST_SCANNED:
            # If every task matches, no more are read than are returned.
            count = limit - len(found) if self._wanted.is_simple else SCANNED_AT_ONCE
            taken, after = await self._take(tokens, min(count, MOST_SCANNED - scanned))
            matching = [stored for stored in taken if self._wanted.matches(stored)]
            if len(found) + len(matching) > limit:
                # Read again up to the last task that fits, so that the cursor continues after it.
                places = [number for number, stored in enumerate(taken, 1) if self._wanted.matches(stored)]
                taken, after = await self._take(tokens, places[limit - len(found) - 1])
                matching = [stored for stored in taken if self._wanted.matches(stored)]
            found += matching
            scanned += max(len(taken), 1)
            tokens = after
            await asyncio.sleep(0)  # an engine in memory does not wait
        following = base64.urlsafe_b64encode(msgspec.json.encode(tokens)).rstrip(b"=").decode() if tokens else ""
        return TablePage(found[:limit], following, scanned)

    async def _take(self, tokens: dict[str, str], count: int) -> tuple[list[StoredTask], dict[str, str]]:
        """Return the next tasks of all listings, `count` at most, and the token with which each listing continues."""
        pages = {name: await self._read(name, token, count) for name, token in tokens.items()}
        if len(pages) > 1:
            merged = heapq.merge(*(_in_order(name, page) for name, page in pages.items()), key=lambda one: -one[0])
            shares = dict.fromkeys(pages, 0)
            for number, (_, name) in enumerate(merged):
                if number == count:
                    break
                shares[name] += 1
            # If only a part of a page is used, that part is read again, and its token continues after it.
            for name, share in shares.items():
                if share == 0 and pages[name].tasks:
                    pages[name] = ListPage(tasks=[], next_page_token=tokens[name] or _BEGINNING, total_size=0)
                elif share < len(pages[name].tasks):
                    pages[name] = await self._read(name, tokens[name], share)
        after = {name: page.next_page_token for name, page in pages.items() if page.next_page_token}
        taken = [stored for page in pages.values() for stored in page.tasks]
        if len(pages) > 1:
            taken.sort(key=lambda stored: -stored.head.status_at)
        return taken, after

    async def _read(self, name: str, token: str, count: int) -> ListPage:
        agent, state = self._listings[name]
        query = ListQuery(
            scope=self._scope._replace(agent=agent),
            reach=self._reach,
            context_id=self._wanted.context_id,
            state=state,
            page_size=count,
            page_token="" if token == _BEGINNING else token,
        )
        return await self._list(query)


#: In cursors, the token of a listing that has not returned a task yet.
_BEGINNING = "-"


def _in_order(name: str, page: ListPage) -> Iterable[tuple[int, str]]:
    """Yield a time for each task of a page, none later than the one before: at its end, a listing begins again."""
    latest = 2**62
    for stored in page.tasks:
        latest = min(latest, stored.head.status_at)
        yield latest, name


def _read_cursor(cursor: str) -> dict[str, str]:
    try:
        if len(cursor) > _MAX_CURSOR:
            raise ValueError("too long")
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        tokens: dict[str, str] = msgspec.json.decode(raw, type=dict[str, str])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise InvalidParamsError("The cursor is not valid; start again without one", field="before") from None
    return tokens


def page_size(values: dict[str, Any], default: int = 50, most: int = PAGE) -> int:
    """Return the number of items that a query asks for. Raises `InvalidParamsError`."""
    return whole_number(values, "limit", default, 1, most)


def whole_number(values: dict[str, Any], name: str, default: int, least: int, most: int) -> int:
    """Return a number in a query, at most `most`. Raises `InvalidParamsError`."""
    text = values.get(name, "")
    if text == "":
        return default
    if not (text.isascii() and text.isdigit()) or len(text) > 18 or int(text) < least:
        raise InvalidParamsError(f"{name} must be a whole number from {least} on, not {text[:20]!r}", field=name)
    return min(int(text), most)
