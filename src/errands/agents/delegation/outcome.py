"""What a child task amounts to for its parent. The same for a local and a remote child."""

from __future__ import annotations

from typing import Any

from errands.agents.delegation.base import DelegationError
from errands.agents.exposed import INCOMPLETE, exposed_values, incomplete_reason
from errands.model.core import (
    AUTH_REQUIRED,
    COMPLETED,
    INPUT_REQUIRED,
    TERMINAL_STATES,
    Message,
    Part,
    Task,
    text_of,
)
from errands.policy.run import content_part

_ENDINGS = {"failed": "failed", "rejected": "refused", "canceled": "was canceled"}


def outcome(task: Task, agent: str, *, is_reviewed: bool) -> dict[str, Any] | None:
    """The output: `message` and what the agent exposes. None while the child goes on, or waits for a review.

    A question to whoever asked is an output. Beside an answer that is not whole stands why, as `incomplete`. Raises
    `DelegationError`.
    """
    state, said = task.status.state, task.status.message
    reason = incomplete_reason(said)
    cut = {INCOMPLETE: reason} if reason else {}
    if state is COMPLETED:
        return {**cut, **output_of(said.parts if said else [], task)}
    if state in TERMINAL_STATES:
        raise DelegationError(_told(f"{agent} {_ENDINGS.get(state.short, 'ended')}", said), task.id)
    if state is AUTH_REQUIRED:
        raise DelegationError(_told(f"{agent} wants an authorization that only a person can give", said), task.id)
    if state is INPUT_REQUIRED and not is_reviewed:
        return {**cut, **output_of(said.parts if said else [])}
    return None


def output_of(said: list[Part], task: Task | None = None) -> dict[str, Any]:
    """What was said, the artifacts that say something else, and beside it what the agent exposes."""
    exposed: dict[str, Any] = {}
    message: list[dict[str, Any]] = []
    artifacts = (task.artifacts or []) if task else []
    for part in (*said, *(part for artifact in artifacts for part in artifact.parts)):
        if (values := exposed_values(part)) is not None:
            exposed |= values
        # A text that was streamed as an artifact is the answer, too.
        elif (content := content_part(part)) not in message:
            message.append(content)
    return {**exposed, "message": message}


def _told(what: str, said: Message | None) -> str:
    text = text_of(said.parts).strip() if said else ""
    return f"{what}: {text}" if text else what
