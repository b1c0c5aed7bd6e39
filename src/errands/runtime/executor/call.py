"""Who makes the request an executor works on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from errands.model.core import Task


@dataclass(frozen=True)
class User:
    """The caller as middleware has named it; without a name it is not authenticated."""

    user_name: str = ""

    @property
    def is_authenticated(self) -> bool:
        """Whether the caller has a name."""
        return bool(self.user_name)


async def _no_task(task_id: str) -> Task | None:
    return None


@dataclass
class ServerCallContext:
    """The call behind a request: made anew for every execution."""

    #: What middleware put aside for this request: never stored, empty after a restart.
    state: dict[str, Any] = field(default_factory=dict, repr=False)
    user: User = field(default_factory=User)
    tenant: str = ""
    #: The extensions the client declared.
    requested_extensions: set[str] = field(default_factory=set)
    #: Those of them that the agent's card has.
    activated_extensions: set[str] = field(default_factory=set)
    #: Another task of the same caller, or None: `await call_context.get_task(task_id)`.
    get_task: Callable[[str], Awaitable[Task | None]] = field(default=_no_task, repr=False)
