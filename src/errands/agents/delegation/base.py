"""The delegation port: another agent takes work on, in a task of its own, here or far away."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from errands.errors import ErrandsError
from errands.model.log import Scope


class DelegationError(ErrandsError):
    """The other agent failed, refused or cannot be reached; the model is told so."""

    def __init__(self, message: str, task_id: str | None = None) -> None:
        super().__init__(message)
        #: The child task, if it came to be.
        self.task_id = task_id


class Errand(msgspec.Struct, frozen=True, kw_only=True):
    """What the other agent is to do."""

    #: The same after a crash: an errand that was taken on is not taken on twice.
    call: str
    message: str
    #: The other agent's parameters, as the parent's bindings have them.
    parameters: dict[str, Any] = {}
    parent: str
    #: Whose task the parent's is: the child belongs to the same.
    scope: Scope
    #: Of the user whose task it is, if it is known.
    email: str = ""
    #: How many agents hand work down above the child.
    depth: int
    #: The child task, when the errand had been taken on before a crash.
    task_id: str | None = None
    #: To be told the child's task id as soon as there is one; it is durable when this returns.
    began: Callable[[str], Awaitable[None]]


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: the child's task and its output, which is a message and what the agent exposes."""

    task_id: str
    output: dict[str, Any]


class Delegate(ABC):
    """Another agent, as one that hands work to it sees it."""

    @abstractmethod
    async def run(self, errand: Errand) -> Delegated:
        """Waits until the child has answered. Raises `DelegationError`.

        When it is canceled the child goes on, because the parent may only have been interrupted: see `cancel`.
        """

    @abstractmethod
    async def cancel_errand(self, errand: Errand) -> None:
        """The parent was canceled after a crash, and nobody knows whether there is a child: if there is, it is, too."""

    @abstractmethod
    async def cancel(self, task_id: str, scope: Scope) -> None:
        """The parent was canceled, so the child is. A child that has ended stays as it is."""
