"""Delegation to an agent of the same server. Its task is one like any other, on the same store.

Everything goes through the store, so the child may be worked on by any process, and the parent's turn may be run again
by another: it finds the child that its first try had begun, because the parent and the call determine the child's id.
"""

from __future__ import annotations

import uuid
from contextlib import suppress

from errands.agents.delegation.base import Delegate, Delegated, DelegationError, Errand
from errands.agents.delegation.outcome import outcome
from errands.agents.delegation.unbroken import Cancels, unbroken
from errands.errors import TaskNotCancelableError, TaskNotFoundError
from errands.model.core import Message, Part, Role
from errands.model.log import Scope
from errands.runtime.call import CallContext
from errands.runtime.inner import InnerAgents

#: How many agents may hand work down, one to the next.
MAX_DEPTH = 5

_CHILDREN = uuid.UUID("5b0c2f3e-6d0f-4c39-9f5b-6a3f3d9a7c11")


class LocalDelegate(Delegate):
    def __init__(self, agent: str, agents: InnerAgents, *, max_depth: int = MAX_DEPTH) -> None:
        self._agent = agent
        self._agents = agents
        self._max_depth = max_depth
        self._cancels = Cancels()

    async def run(self, errand: Errand) -> Delegated:
        check_depth(errand, self._max_depth)
        call = CallContext(
            scope=errand.scope._replace(agent=self._agent),
            email=errand.email,
            parent=errand.parent,
            depth=errand.depth,
        )
        async with self._agents.waiting(errand.parent):
            task_id = errand.task_id
            if task_id is None:
                # A child that nobody has noted would not be canceled with its parent.
                task_id = await unbroken(self._begin(errand, call))
            return Delegated(task_id=task_id, output=await self._output(task_id, call))

    async def _begin(self, errand: Errand, call: CallContext) -> str:
        task_id = child_id(errand.parent, errand.call)
        await self._agents.begin(first_message(errand), call, task_id)
        await errand.began(task_id)
        return task_id

    async def _output(self, task_id: str, call: CallContext) -> dict[str, object]:
        version = 0
        while True:
            try:
                stored = await self._agents.wait_until_settled(task_id, call, after=version)
            except TaskNotFoundError:
                raise DelegationError(f"the task of {self._agent} is no longer there", task_id) from None
            output = outcome(stored.task, self._agent, is_reviewed=bool(stored.head.asks))
            if output is not None:
                return output
            version = stored.version

    async def cancel_errand(self, errand: Errand) -> None:
        await self.cancel(child_id(errand.parent, errand.call), errand.scope)

    async def cancel(self, task_id: str, scope: Scope) -> None:
        await self._cancels.wait_for(self._cancel(task_id, scope))

    async def _cancel(self, task_id: str, scope: Scope) -> None:
        call = CallContext(scope=scope._replace(agent=self._agent))
        with suppress(TaskNotCancelableError, TaskNotFoundError):
            await self._agents.cancel(task_id, call)


def check_depth(errand: Errand, max_depth: int) -> None:
    """Raises `DelegationError` when work has been handed down too often."""
    if errand.depth > max_depth:
        raise DelegationError(
            f"work has been handed down {max_depth} times already, which is as far as it goes; do it without the agent"
        )


def child_id(parent: str, call: str) -> str:
    """The same for the same call of the same parent."""
    return str(uuid.uuid5(_CHILDREN, f"{parent}\n{call}"))


def first_message(errand: Errand) -> Message:
    """What the child is told: the text, its parameters as data, and from which task it comes."""
    parts = [Part(text=errand.message)]
    if errand.parameters:
        parts.append(Part(data=errand.parameters, media_type="application/json"))
    return Message(
        message_id=str(uuid.uuid5(_CHILDREN, f"message\n{errand.parent}\n{errand.call}")),
        role=Role.USER,
        parts=parts,
        reference_task_ids=[errand.parent],
    )
