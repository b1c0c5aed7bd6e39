"""Callbacks after a state change has become durable. A hook that fails is logged and changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from errands.model.core import PAUSED_STATES, TERMINAL_STATES, Message, TaskState

logger = logging.getLogger(__name__)

StateHook = Callable[[str, TaskState, Message | None], Awaitable[None]]


@dataclass
class LifecycleHooks:
    """Set only what you need. Each is called with the task's id, the new state and the status message."""

    #: After every change of state.
    on_state_change: StateHook | None = None
    #: When a worker takes the task up; only the task's id is given.
    on_working: Callable[[str], Awaitable[None]] | None = None
    #: When the task pauses for input or credentials.
    on_turn_end: StateHook | None = None
    #: When the task has ended.
    on_terminal: StateHook | None = None

    async def run(self, task_id: str, state: TaskState, message: Message | None) -> None:
        """Calls those that concern this change."""
        if self.on_state_change:
            await _guarded(self.on_state_change(task_id, state, message))
        if state in TERMINAL_STATES and self.on_terminal:
            await _guarded(self.on_terminal(task_id, state, message))
        elif state in PAUSED_STATES and self.on_turn_end:
            await _guarded(self.on_turn_end(task_id, state, message))
        elif state is TaskState.WORKING and self.on_working:
            await _guarded(self.on_working(task_id))


async def _guarded(call: Awaitable[None]) -> None:
    try:
        await call
    except Exception:
        logger.exception("a lifecycle hook failed")
