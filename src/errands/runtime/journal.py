"""The runtime's one pen: every change of a task goes through `Journal.commit`, and hooks hear of it after."""

from __future__ import annotations

import os
from collections.abc import Coroutine, Sequence
from typing import Any

from errands.clock import to_iso
from errands.engines.base import Engine
from errands.model.base import encode
from errands.model.core import Message, StreamResponse, TaskState, TaskStatus, TaskStatusUpdateEvent
from errands.model.log import Change, Draft
from errands.runtime.hooks import LifecycleHooks


class Journal:
    def __init__(self, engine: Engine, hooks: LifecycleHooks | None = None) -> None:
        self.engine = engine
        self._hooks = hooks
        #: The time, in milliseconds.
        self.now = engine.clock

    def commit(self, change: Change, states: Sequence[TaskStatus] = ()) -> Coroutine[Any, Any, int]:
        """Writes the change; `states` are the statuses it passes through, for the hooks."""
        if self._hooks is None:
            return self.engine.commit(change)
        return self._commit_and_tell(change, states, self._hooks)

    async def _commit_and_tell(self, change: Change, states: Sequence[TaskStatus], hooks: LifecycleHooks) -> int:
        version = await self.engine.commit(change)
        for status in states:
            await hooks.run(change.task_id, status.state, status.message)
        return version


def new_id() -> str:
    """A random UUID (version 4); `uuid.uuid4` takes many times as long."""
    if not _random:
        _draw()
    digits = _random.pop()
    return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-a{digits[17:20]}-{digits[20:]}"


#: Randomness drawn ahead: asking the system for each id costs more than the rest of it.
_random: list[str] = []


def _draw() -> None:
    block = os.urandom(16 * 64).hex()
    _random.extend(block[start : start + 32] for start in range(0, len(block), 32))


# A forked process must not hand out its parent's ids.
os.register_at_fork(after_in_child=_random.clear)


def status_update(
    task_id: str, context_id: str, state: TaskState, at: int, message: Message | None = None
) -> StreamResponse:
    status = TaskStatus(state=state, message=message, timestamp=to_iso(at))
    return StreamResponse(status_update=TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=status))


def status_draft(update: StreamResponse) -> Draft:
    return Draft("status", encode(update))
