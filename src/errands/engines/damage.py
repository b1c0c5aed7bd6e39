"""Decoding stored tasks, and quarantining those that are damaged: the one place where every engine reads heads,
snapshots and logs.

Stored data may be unreadable: a damaged file, a bug, another release. One such task must not keep an engine from
reading the others, so it is not an error here. It becomes a task that has failed and says so, marked by
`StoredTask.damage`, and is logged once. What is stored stays as it is, for the operator to look at.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache
from operator import attrgetter
from typing import Any, TypeVar

import msgspec

from errands import lifecycle
from errands.clock import stored_to_iso
from errands.model import core
from errands.model.base import UNREADABLE, encode
from errands.model.log import AccessEntry, Draft, Event, Head, LeaseRecord, ProcessReport, Scope, StoredTask

logger = logging.getLogger(__name__)

R = TypeVar("R")
V = TypeVar("V")

#: The message to the owner of a damaged task.
EXPLANATION = "The stored data of this task cannot be read, so it has failed. The log of the server says why."

_read_task = msgspec.json.Decoder(core.Task).decode
_read_lease = msgspec.json.Decoder(LeaseRecord).decode
_read_access = msgspec.json.Decoder(AccessEntry).decode
_read_report = msgspec.json.Decoder(ProcessReport).decode


def stored_task(task_id: str, context_id: str, scope: Scope, head: Head, content: Sequence[Event]) -> StoredTask:
    """Return a task from its head and its content: a snapshot, if any, as version 0, and the tail of the log."""
    try:
        if head.state is core.UNSPECIFIED:
            raise ValueError("its state cannot be read")
        if not content or content[0].version:
            task = lifecycle.fold(None, content)
        else:
            task = _read_task(content[0].data)
            if len(content) > 1:
                task = lifecycle.fold(task, content[1:])
        if task.id != task_id:
            raise ValueError(f"its content is that of task {task.id}")
    except UNREADABLE as error:
        return damaged_task(task_id, context_id, scope, head, error)
    return StoredTask(task=task, head=head, scope=scope)


def read_reports(found: Iterable[bytes]) -> list[ProcessReport]:
    """Return reports of processes without those that cannot be read, such as those of a newer release."""
    reports: list[ProcessReport] = []
    for data in found:
        with suppress(*UNREADABLE):
            reports.append(_read_report(data))
    return sorted(reports, key=attrgetter("id"))


def bare_task(task_id: str, context_id: str, scope: Scope, head: Head) -> StoredTask:
    """Return a task from its head alone."""
    if head.state is core.UNSPECIFIED:
        return damaged_task(task_id, context_id, scope, head, ValueError("its state cannot be read"))
    status = core.TaskStatus(state=head.state, timestamp=stored_to_iso(head.status_at))
    return StoredTask(task=core.Task(id=task_id, context_id=context_id or None, status=status), head=head, scope=scope)


def read_access(at: Any, data: Any) -> AccessEntry:
    """Return an entry of the access log; one that cannot be read is an entry that says so.

    The arguments are a number and bytes, but in a damaged file of SQLite they may be of any type.
    """
    try:
        return _read_access(data)
    except UNREADABLE:
        digest = hashlib.sha256(data if isinstance(data, bytes) else str(data).encode()).hexdigest()
        return AccessEntry(id=digest, at=at if isinstance(at, int) else 0, action="unreadable", outcome="")


def damaged_task(task_id: str, context_id: str, scope: Scope, head: Head, error: Exception) -> StoredTask:
    """Return what is shown of a task that cannot be read: a failed task that does not wait for an answer."""
    reason = f"{type(error).__name__}: {error}"
    _log_once(
        "the stored data of task %s cannot be read, so it is shown as failed: %s. "
        "`errands db damaged` lists such tasks and deletes them",
        task_id,
        reason,
    )
    status = _failed(task_id, context_id, head.status_at)
    return StoredTask(
        task=core.Task(id=task_id, context_id=context_id or None, status=status),
        head=msgspec.structs.replace(head, state=core.FAILED, asks="", direct=False),
        scope=scope,
        damage=reason,
    )


def failed_draft(stored: StoredTask, at: int) -> Draft:
    """Return the event that ends a task whose stored data cannot be used."""
    context_id = stored.task.context_id or ""
    status = _failed(stored.task.id, context_id, at)
    update = core.TaskStatusUpdateEvent(task_id=stored.task.id, context_id=context_id, status=status)
    return Draft("status", encode(core.StreamResponse(status_update=update)))


def _failed(task_id: str, context_id: str, at: int) -> core.TaskStatus:
    message = core.Message(
        message_id=f"damaged-{task_id}",
        role=core.Role.AGENT,
        parts=[core.Part(text=EXPLANATION)],
        task_id=task_id,
        context_id=context_id or None,
    )
    return core.TaskStatus(state=core.FAILED, message=message, timestamp=stored_to_iso(at))


@lru_cache(maxsize=10_000)
def _log_once(message: str, *arguments: str) -> None:
    logger.error(message, *arguments)


def read_lease(text: str | bytes | None) -> LeaseRecord | None:
    """Return the lease that is stored with an event; None without one, or if it cannot be read."""
    try:
        return _read_lease(text) if text else None
    except UNREADABLE:
        return None


def readable_pushes(read: Callable[[R], V | None], rows: Iterable[R]) -> list[V]:
    """Return what `read` makes of rows of the outbox, without those that cannot be read."""
    found: list[V] = []
    for row in rows:
        try:
            value = read(row)
        except UNREADABLE as error:
            # Not the text of the error, nor the row: they may contain a secret of the webhook.
            message = "a push notification config in the store cannot be read (%s); its webhook is not called"
            _log_once(message, type(error).__name__)
            continue
        if value is not None:
            found.append(value)
    return found


def salvaged_head(fields: Any) -> Head:
    """Return the readable fields of a head that is damaged, without a state, which marks the task as damaged."""
    readable: dict[str, Any] = {}
    for field in msgspec.structs.fields(Head):
        try:
            readable[field.name] = msgspec.convert(fields[field.name], field.type, strict=False)
        except (KeyError, *UNREADABLE):
            continue
    return Head(**readable | {"state": core.UNSPECIFIED})
