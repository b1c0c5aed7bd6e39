"""What the adapter writes about a task before its handler is called: that it is held here, and that it is at work."""

from __future__ import annotations

from errands import lifecycle
from errands.model.core import WORKING
from errands.model.log import LEASE, Change, StoredTask
from errands.runtime.journal import Journal, status_draft, status_update


async def lease(journal: Journal, stored: StoredTask, worker: str, now: int, until: int) -> StoredTask:
    """Takes up a task that is due. Raises an `ErrandsError` when it was settled, or somebody else was faster."""
    change = Change(
        task_id=stored.task.id,
        scope=stored.scope,
        expected=stored.head.version,
        fence=stored.head.attempt,
        at=now,
        work=LEASE,
        due_at=until,
        worker=worker,
    )
    await journal.commit(change)
    return StoredTask(task=stored.task, head=lifecycle.advance(stored.head, change), scope=stored.scope)


async def begin(journal: Journal, stored: StoredTask) -> StoredTask:
    """Shows that the task is at work."""
    now = journal.now()
    update = status_update(stored.task.id, stored.task.context_id or "", WORKING, now)
    change = Change(
        task_id=stored.task.id,
        scope=stored.scope,
        events=(status_draft(update),),
        fence=stored.head.attempt,
        at=now,
        state=WORKING,
    )
    version = await journal.commit(change, [update])
    if version != stored.version + 1:
        return await journal.engine.load(stored.task.id, stored.scope)
    return StoredTask(
        task=lifecycle.fold_updates(stored.task, [update]),
        head=lifecycle.advance(stored.head, change),
        scope=stored.scope,
    )
