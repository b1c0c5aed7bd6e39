"""What a caller may see and do who is asked to review somebody else's task: its status, and the answer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

import msgspec

from errands.errors import TaskNotFoundError
from errands.model.base import encode
from errands.model.core import Message, StreamResponse, Task, TaskStatus
from errands.model.log import AskingQuery, StoredTask
from errands.runtime.call import CallContext, EventStream, StreamItem
from errands.runtime.journal import Journal
from errands.runtime.review_messages import read_verdict, reviewer
from errands.runtime.reviews import ReviewDesk, revealed

_decode = msgspec.json.Decoder(StreamResponse).decode


def is_guest(stored: StoredTask, call: CallContext) -> bool:
    """Whether the task is somebody else's, and the caller sees no more of it than a reviewer needs."""
    return stored.scope != call.scope


def shown(task: Task) -> Task:
    """What a reviewer sees of a task: what was said to others and what it made stays with its owner."""
    return Task(id=task.id, context_id=task.context_id, status=task.status)


class Reviewers:
    """`agents` are those beside the one that is asked whose tasks can be reviewed here: nobody outside reaches them."""

    def __init__(self, journal: Journal, agents: Collection[str] = ()) -> None:
        self._engine = journal.engine
        self._agents = agents
        self._desk = ReviewDesk(journal)

    async def load(self, task_id: str, call: CallContext) -> StoredTask:
        """The caller's own task, or somebody else's that waits for the caller's review, without its artifacts.

        Whoever is asked sees what it is about. Raises `TaskNotFoundError`.
        """
        try:
            stored = await self._engine.load(task_id, call.scope)
            return await revealed(self._engine, stored) if self.is_asked(stored, call) else stored
        except TaskNotFoundError:
            if users := _users(call):
                for found in await self._engine.asking(_asked(task_id, None, call, users)):
                    if found.scope.agent == call.scope.agent or found.scope.agent in self._agents:
                        return await revealed(self._engine, found)
            raise

    def is_asked(self, stored: StoredTask, call: CallContext) -> bool:
        """Whether it is the caller's review that the task waits for."""
        return bool(stored.head.asks) and stored.head.asks in _users(call)

    async def answer(
        self, stored: StoredTask, message: Message, call: CallContext, receipt: bytes, receipt_since: int
    ) -> StoredTask:
        """The task after the caller's answer. Raises `InvalidParamsError` when the message is none."""
        verdict = read_verdict(message)
        mine = not is_guest(stored, call)
        answered = await self._desk.settle(
            _asked(stored.task.id, stored.scope.agent, call, _users(call)),
            verdict,
            message_id=message.message_id,
            # Receipts are kept apart by owner.
            receipt=receipt if mine else None,
            receipt_since=receipt_since,
        )
        return await self._engine.load(stored.task.id, call.scope) if mine else answered


def reduced(stream: EventStream) -> EventStream:
    """A stream as a reviewer sees it: the question, and then which states the task goes through."""

    async def batches() -> AsyncIterator[list[StreamItem]]:
        is_first = True
        async for items in stream:
            shown_items = [item for item in (_reduced(item, is_first) for item in items) if item is not None]
            if shown_items or not items:
                yield shown_items
            is_first = False

    return EventStream(batches(), stream.close)


def _reduced(item: StreamItem, is_first: bool) -> StreamItem | None:
    response = _decode(item.data)
    if response.task is not None:
        task = shown(response.task)
        task = task if is_first else msgspec.structs.replace(task, status=_without_message(task.status))
        return item._replace(data=encode(StreamResponse(task=task)))
    if response.status_update is not None:
        status = _without_message(response.status_update.status)
        update = msgspec.structs.replace(response.status_update, status=status, metadata=None)
        return item._replace(data=encode(StreamResponse(status_update=update)))
    return None


def _without_message(status: TaskStatus) -> TaskStatus:
    return TaskStatus(state=status.state, timestamp=status.timestamp)


def _users(call: CallContext) -> tuple[str, ...]:
    """The names under which the caller may be asked."""
    return tuple(reviewer(name) for name in (call.scope.owner, call.email) if name)


def _asked(task_id: str, agent: str | None, call: CallContext, users: tuple[str, ...]) -> AskingQuery:
    return AskingQuery(task_id=task_id, tenant=call.scope.tenant, agent=agent, users=users)
