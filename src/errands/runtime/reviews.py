"""The desk: which tasks wait for a review, and the one way to answer them.

Used by the task manager for answers over A2A, and by the command line, which has nothing but the store.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from errands import lifecycle
from errands.clock import to_iso
from errands.engines.base import Engine
from errands.errors import ConcurrencyError, DamagedTaskError, PermissionDeniedError, UnsupportedOperationError
from errands.model.core import SUBMITTED, Part, StreamResponse, text_of
from errands.model.log import READY, AskingQuery, Change, StoredTask
from errands.policy import records
from errands.policy.cel.session import Call
from errands.policy.records import Answered, AnyRecord, OutputHeld, Waiting
from errands.runtime.journal import Batch, Journal, status_update
from errands.runtime.review_messages import (
    Verdict,
    is_held,
    review_message,
    reviewer,
    reviewer_of,
    verdict_message,
)
from errands.runtime.run import stored_records

logger = logging.getLogger(__name__)


class Review(msgspec.Struct, frozen=True, kw_only=True):
    """A task that waits for a review, for people to look at."""

    task_id: str
    context_id: str | None
    agent: str
    owner: str
    tenant: str
    #: Who alone may answer.
    user: str
    #: Since when it waits, in milliseconds.
    since: int
    #: What is to be called, if it is a call; empty otherwise.
    function: str = ""
    #: What is to be judged, such as the arguments of the call; None when the task does not say.
    subject: Any
    text: str

    @classmethod
    def of(cls, stored: StoredTask) -> Review:
        """The task as the one who is asked sees it."""
        message = stored.task.status.message
        parts = [] if message is None else message.parts
        asked = _asked(parts)
        return cls(
            task_id=stored.task.id,
            context_id=stored.task.context_id,
            agent=stored.scope.agent,
            owner=stored.scope.owner,
            tenant=stored.scope.tenant,
            user=stored.head.asks,
            since=stored.head.status_at,
            function=asked.get("function", ""),
            subject=asked.get("subject"),
            text=text_of(parts),
        )


Reviews = list[Review]


class ReviewDesk:
    """Finds the tasks that wait for a review, and writes the answers."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._engine = journal.engine

    async def list(self, *, agent: str | None = None, user: str | None = None, limit: int = 1000) -> Reviews:
        """What waits, whoever owns it, the longest waiting first."""
        users = None if user is None else (reviewer(user),)
        query = AskingQuery(agent=agent, users=users, limit=limit)
        return [Review.of(await revealed(self._engine, stored)) for stored in await self._engine.asking(query)]

    async def answer(self, task_id: str, approved: bool, *, by: str, comment: str = "") -> StoredTask:
        """Answers the review that `task_id` waits for, as `by`, who must be the one that is asked.

        Raises `PermissionDeniedError` when that is somebody else, and `UnsupportedOperationError` when the task does
        not wait for a review, or no longer.
        """
        query = AskingQuery(task_id=task_id, users=(reviewer(by),))
        if not await self._engine.asking(query) and (others := await self._engine.asking(AskingQuery(task_id=task_id))):
            asked = others[0].head.asks
            raise PermissionDeniedError(
                f"Task {task_id} waits for a review by {asked}, not by {by}; only {asked} may answer"
            )
        return await self.settle(query, Verdict(approved, comment.strip()))

    async def settle(
        self,
        query: AskingQuery,
        verdict: Verdict,
        *,
        message_id: str = "",
        receipt: bytes | None = None,
        receipt_since: int = 0,
    ) -> StoredTask:
        """Answers the one task that `query` finds: the task is submitted again, and its run finds the answer.

        Message, record, state and place in the queue are one commit, so of two answers one is written and the other
        raises `UnsupportedOperationError`, as one does that comes too late. The task comes without its artifacts.
        """
        while True:
            found = await self._engine.asking(query)
            if not found:
                raise UnsupportedOperationError(
                    f"Task {query.task_id} does not wait for a review: it has been answered, the task has ended, or "
                    "there is no such task",
                    taskId=query.task_id,
                )
            try:
                return await self._settle(found[0], verdict, message_id, receipt, receipt_since)
            except ConcurrencyError:
                # Its owner may have written meanwhile: then it still waits.
                continue

    async def _settle(
        self, stored: StoredTask, verdict: Verdict, message_id: str, receipt: bytes | None, receipt_since: int
    ) -> StoredTask:
        task, by, now = stored.task, stored.head.asks, self._journal.now()
        waiting = await self._waiting(stored)
        message = verdict_message(verdict, by, task_id=task.id, context_id=task.context_id, message_id=message_id)
        answered = Answered(
            at=to_iso(now),
            call=waiting.call,
            key=waiting.key,
            value=verdict.approved,
            by=by,
            message_id=message.message_id,
        )
        events = Batch()
        events.add("status", status_update(task.id, task.context_id or "", SUBMITTED, now))
        events.add("message", StreamResponse(message=message))
        events.note(records.encode(answered))
        change = Change(
            task_id=task.id,
            scope=stored.scope,
            events=events.drafts,
            expected=stored.version,
            receipt=receipt,
            receipt_since=receipt_since,
            at=now,
            state=SUBMITTED,
            work=READY,
            due_at=now,
        )
        await self._journal.commit(change, events.updates)
        return StoredTask(
            task=lifecycle.fold_updates(task, events.updates),
            head=lifecycle.advance(stored.head, change),
            scope=stored.scope,
        )

    async def _waiting(self, stored: StoredTask) -> Waiting:
        """What the task waits for, according to its log."""
        task, by = stored.task, stored.head.asks
        try:
            waiting = open_review(await stored_records(self._engine, task.id, stored.scope), by)
        except DamagedTaskError as error:
            await self._engine.set_aside(stored)
            logger.error("task %s waited for a review and ends as failed: %s", task.id, error)
            raise UnsupportedOperationError(
                f"What task {task.id} waits for cannot be read, so it has failed", taskId=task.id
            ) from None
        if waiting is not None:
            return waiting
        if (await self._engine.load(task.id, stored.scope)).version != stored.version:
            raise ConcurrencyError(f"task {task.id} was answered meanwhile")
        raise UnsupportedOperationError(
            f"Task {task.id} waits for {by}, but its log says not for what: it cannot go on. Cancel it",
            taskId=task.id,
        )


async def revealed(engine: Engine, stored: StoredTask) -> StoredTask:
    """The task as the one who is asked sees it: with what is held back from its owner."""
    question = stored.task.status.message
    if question is None or not is_held(question):
        return stored
    try:
        known = await stored_records(engine, stored.task.id, stored.scope)
    except DamagedTaskError:
        # Shown without it: the others that wait must be listed all the same. An answer is refused.
        return stored
    waiting = open_review(known, stored.head.asks)
    if waiting is None:
        return stored
    held = next((record.values for record in reversed(known) if isinstance(record, OutputHeld)), None)
    subject = held if waiting.subject is None else waiting.subject
    message = review_message(waiting.call, subject, task_id=stored.task.id, context_id=stored.task.context_id)
    message.message_id = question.message_id
    status = msgspec.structs.replace(stored.task.status, message=message)
    return msgspec.structs.replace(stored, task=msgspec.structs.replace(stored.task, status=status))


def open_review(known: Iterable[AnyRecord], user: str) -> Waiting | None:
    """The review by `user` that the run waits for: the first that has no answer."""
    waiting: dict[tuple[str, str], Waiting] = {}
    for record in known:
        if isinstance(record, Waiting) and _asks(record.call, user):
            waiting.setdefault((record.key, record.call.key), record)
        elif isinstance(record, Answered):
            waiting.pop((record.key, record.call.key), None)
    return next(iter(waiting.values()), None)


def _asks(call: Call, user: str) -> bool:
    try:
        return call.function == "review" and reviewer_of(call) == user
    except ValueError:
        return False


def _asked(parts: list[Part]) -> dict[str, Any]:
    """The question as data; empty when there is none."""
    for part in parts:
        if part.data is not UNSET and isinstance(part.data, dict) and isinstance(part.data.get("review"), dict):
            review: dict[str, Any] = part.data["review"]
            return review
    return {}
