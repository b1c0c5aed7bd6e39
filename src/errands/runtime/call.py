"""The call behind an operation: who makes it, and what is kept of it until its turn begins.

Options of the request are stored in the log. Request contexts are kept in memory and nowhere else.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Any, Protocol

import msgspec

from errands.engines.base import Engine, LargeReadError
from errands.errors import DamagedTaskError
from errands.model.base import UNREADABLE
from errands.model.log import ListPage, ListQuery, Reach, RequestOptions, Scope, StoredTask
from errands.runtime.turn import current_position

#: Tasks whose request contexts are kept, the newest ones: of those that another process runs, nothing is asked for.
MAX_TASKS = 10_000
#: Tasks and pages of more bytes are read one at a time.
LARGE = 1024 * 1024

_decode_options = msgspec.json.Decoder(RequestOptions).decode


class LargeReads(Protocol):
    """Makes requests that read large values wait for each other."""

    def one_at_a_time(self, size: int) -> AbstractAsyncContextManager[object]:
        """Return a block in which `size` bytes may be read. Entering it waits, and may raise `A2AError`."""


class CallContext(msgspec.Struct):
    """The caller of an operation, and what came with the request. Made by a binding, read by the task manager."""

    scope: Scope = Scope()
    #: Extensions the client declared in `A2A-Extensions`.
    extensions: list[str] = []
    #: For the worker; never stored, never logged.
    request_context: dict[str, Any] = {}
    #: The version after which a subscriber wants to continue (`Last-Event-ID`).
    last_event_id: int | None = None
    #: Whether a subscription is over when the task pauses, and not only when it has ended.
    ends_at_pause: bool = False
    #: Called when a message is in the log and only the end of its turn is waited for.
    on_accepted: Callable[[], object] | None = None
    #: Whether a message with only a contextId answers the one task of that context that waits for input.
    answers_by_context: bool = False
    #: The caller's e-mail address, if middleware knows it. Reviews may name users by it.
    email: str = ""
    #: The caller's own name, if it may use tasks of other owners and the scope is that of another; else None.
    acting: str | None = None
    #: Whose tasks the caller may list; see `ListQuery.reach`.
    reach: Reach = "scope"
    #: Whether an access rule lets the caller do this with tasks of others.
    is_operator: bool = False
    #: Whether the tenant is only named by the request, and not given to the caller by authentication or middleware.
    names_tenant: bool = False
    #: The address of the client, for the audit trail; "" without one.
    address: str = ""
    #: See `RequestOptions`; set by delegation and by no binding.
    parent: str = ""
    depth: int = 0
    #: Called with the task that a repeated message is about to show; no log has that.
    on_repeated: Callable[[str], Awaitable[object]] | None = None
    #: The version of A2A that the caller speaks.
    protocol: str = "1.0"
    #: Where the call waits before it reads more than `LARGE` bytes; None: it does not wait.
    large_reads: LargeReads | None = None

    @property
    def caller(self) -> str:
        """Return the name of the caller. The scope has another owner if the caller acts for one."""
        return self.scope.owner if self.acting is None else self.acting

    async def load(self, engine: Engine, task_id: str) -> StoredTask:
        """Load a task for the caller. Raises `TaskNotFoundError`."""
        if self.large_reads is None:
            return await engine.load(task_id, self.scope)
        try:
            return await engine.load_small(task_id, self.scope, LARGE)
        except LargeReadError as error:
            size = error.size
        async with self.large_reads.one_at_a_time(size):
            return await engine.load(task_id, self.scope)

    async def list(self, engine: Engine, query: ListQuery) -> ListPage:
        """List tasks for the caller. Raises `InvalidParamsError` for an invalid token."""
        if self.large_reads is None:
            return await engine.list(query)
        try:
            return await engine.list(msgspec.structs.replace(query, page_bytes=LARGE, only_small=True))
        except LargeReadError:
            pass
        async with self.large_reads.one_at_a_time(query.page_bytes):
            return await engine.list(query)


class WaitingContexts(dict[str, dict[str, dict[str, Any]]]):
    """The request contexts of messages that wait for their turn in this process, by task and message."""

    @contextmanager
    def keeping(self, task_id: str, message_id: str, request_context: dict[str, Any]) -> Iterator[None]:
        """Keep a context for a message whose commit is the body of the block; its turn may begin at once."""
        # A message that is sent again must leave the context of its first sending as it is.
        if not request_context or message_id in self.get(task_id, ()):
            yield
            return
        self.setdefault(task_id, {})[message_id] = request_context
        if len(self) > MAX_TASKS:
            del self[next(iter(self))]
        try:
            yield
        except BaseException:
            self.take(task_id, message_id)
            raise

    def take(self, task_id: str, message_id: str) -> dict[str, Any] | None:
        """Return the context of this message for its turn, and forget it."""
        waiting = self.get(task_id)
        if waiting is None:
            return None
        request_context = waiting.pop(message_id, None)
        if not waiting:
            del self[task_id]
        return request_context

    def forget(self, task_id: str) -> None:
        """Forget the contexts of a task that has ended, or that another process runs."""
        self.pop(task_id, None)


async def stored_options(engine: Engine, stored: StoredTask) -> RequestOptions:
    """Read from the log what the sender asked for beside the message, after a queue or a crash."""
    current = current_message_id(stored)
    after = 0
    while True:
        log = await engine.read(stored.task.id, stored.scope, after)
        for event in log.events:
            if event.kind != "request":
                continue
            try:
                options = _decode_options(event.data)
            except UNREADABLE as error:
                raise DamagedTaskError(f"event {event.version} of its log cannot be read: {error}") from error
            if options.message_id == current:
                return options
        if not log.events:
            return RequestOptions()
        after = log.events[-1].version


def current_message_id(stored: StoredTask) -> str:
    """Return the id of the message that the next turn is about."""
    return (stored.task.history or [])[current_position(stored)].message_id
