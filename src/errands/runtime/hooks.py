"""Callbacks after a state change has become durable. A hook that fails is logged and changes nothing."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, fields
from typing import Any

from errands.model.core import PAUSED_STATES, TERMINAL_STATES, Message, TaskState
from errands.runtime.validation import own_message

logger = logging.getLogger(__name__)

StateHook = Callable[[str, TaskState, Message | None], Awaitable[None]]


@dataclass
class LifecycleHooks:
    """Set only what you need. Each is called with the task's id, the new state and the status message."""

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

    async def run(self, task_id: str, state: TaskState, message: Message | None, *, is_report: bool = False) -> None:
        """Call the hooks that concern this status. `is_report` says that the state is the one before."""
        await _call(self.on_state_change, task_id, state, message)
        if is_report:
            return
        if state in TERMINAL_STATES:
            await _call(self.on_terminal, task_id, state, message)
        elif state in PAUSED_STATES:
            await _call(self.on_turn_end, task_id, state, message)
        elif state is TaskState.WORKING:
            await _call(self.on_working, task_id)


async def _call(hook: Callable[..., Any] | None, task_id: str, *told: Any) -> None:
    """Call a hook with a copy of the message. One that fails, or is called wrongly, is logged and changes nothing."""
    if hook is None:
        return
    try:
        result = hook(task_id, *(own_message(one) if isinstance(one, Message) else one for one in told))
        if inspect.isawaitable(result):
            await result
    except Exception:
        logger.exception("the lifecycle hook %s failed for task %s", getattr(hook, "__name__", hook), task_id)
