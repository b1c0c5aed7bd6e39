"""Lifecycle hooks: functions of the program that are called after a status has become durable.

Hooks read the log. Nothing waits for them: not the commit, not the turn, not the client. For one task they are called
one after the other in the order of the log; tasks do not wait for each other. They are called at most once for each
status, by the process that wrote it: if that process dies first, no other one calls them. When too many statuses wait
for slow hooks, further ones are left out.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from errands.model.core import PAUSED_STATES, TERMINAL_STATES, WORKING, Message, StreamResponse, TaskState
from errands.model.log import Draft
from errands.runtime.validation import own_message

logger = logging.getLogger(__name__)

StateHook = Callable[[str, TaskState, Message | None], Awaitable[None]]

#: Statuses that wait for hooks at most, of all tasks together.
MAX_UNREAD = 10_000

_decode = msgspec.json.Decoder(StreamResponse).decode


@dataclass
class LifecycleHooks:
    """Functions that are called when a task changes; set only what you need.

    Each is called with the task's id, the new state and the status message.
    """

    #: After every change of state, and with every progress report.
    on_state_change: StateHook | None = None
    #: When a worker takes the task up; only the task's id is given.
    on_working: Callable[[str], Awaitable[None]] | None = None
    #: When the task pauses for input or credentials.
    on_turn_end: StateHook | None = None
    #: When the task has ended.
    on_terminal: StateHook | None = None

    def __post_init__(self) -> None:
        for hook in fields(self):
            if (value := getattr(self, hook.name)) is not None and not callable(value):
                raise TypeError(f"{hook.name} must be an async function or None, not {type(value).__name__}")


class HookReader:
    """Calls the hooks with what is committed. An async context manager: leaving it waits for calls that are due."""

    def __init__(self, hooks: LifecycleHooks, patience: float) -> None:
        """Hooks that are due when the server stops have `patience` seconds."""
        self._hooks = hooks
        self._patience = patience
        #: Committed events by task, while hooks have not been called with all of them, each with the state before it.
        self._unread: dict[str, deque[tuple[Draft, TaskState | None]]] = {}
        self._unread_count = 0
        self._leaves_out = False
        self._reading: set[asyncio.Task[None]] = set()

    def read(self, task_id: str, events: Sequence[Draft], previous: TaskState | None) -> None:
        """Have the hooks called with the statuses among events that were just committed.

        `previous` is the state before them, None if it was another one than theirs.
        """
        statuses = [event for event in events if event.kind in ("status", "task")]
        if not statuses:
            return
        behind = self._unread_count + len(self._reading)
        if behind + len(statuses) > MAX_UNREAD:
            if not self._leaves_out:
                logger.error("lifecycle hooks are %d statuses behind, and are not called for further ones", behind)
            self._leaves_out = True
            return
        self._leaves_out = self._leaves_out and behind > MAX_UNREAD // 2
        self._unread_count += len(statuses)
        is_read = task_id in self._unread
        unread = self._unread.setdefault(task_id, deque())
        unread.extend((event, previous if number == 0 else None) for number, event in enumerate(statuses))
        if not is_read:
            reading = asyncio.get_running_loop().create_task(self._call_hooks(task_id, unread))
            self._reading.add(reading)
            reading.add_done_callback(self._reading.discard)

    async def __aenter__(self) -> HookReader:
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._reading:
            _, late = await asyncio.wait(self._reading, timeout=self._patience)
            for reading in late:
                reading.cancel()
            if late:
                logger.warning("the server stops; lifecycle hooks of %d tasks were not called to the end", len(late))

    async def _call_hooks(self, task_id: str, unread: deque[tuple[Draft, TaskState | None]]) -> None:
        hooks, state = self._hooks, None
        while unread:
            event, previous = unread.popleft()
            self._unread_count -= 1
            update = _decode(event.data)
            changed = update.status_update or update.task
            assert changed is not None
            status, state = changed.status, previous or state
            is_report, state = status.state is state, status.state
            if is_report and status.message is None:
                continue
            await _call(hooks.on_state_change, task_id, state, status.message)
            if is_report:
                continue
            if state in TERMINAL_STATES:
                await _call(hooks.on_terminal, task_id, state, status.message)
            elif state in PAUSED_STATES:
                await _call(hooks.on_turn_end, task_id, state, status.message)
            elif state is WORKING:
                await _call(hooks.on_working, task_id)
        del self._unread[task_id]


async def _call(hook: Callable[..., Any] | None, task_id: str, *arguments: Any) -> None:
    """Call a hook with a copy of the message. One that fails, or cannot be called so, is logged."""
    if hook is None:
        return
    try:
        result = hook(task_id, *(own_message(one) if isinstance(one, Message) else one for one in arguments))
        if inspect.isawaitable(result):
            await result
    except Exception:
        logger.exception("the lifecycle hook %s failed for task %s", getattr(hook, "__name__", hook), task_id)
