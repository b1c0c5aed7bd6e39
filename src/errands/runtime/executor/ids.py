"""Where the identifiers of tasks, contexts, messages and artifacts come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from errands.runtime.journal import new_id


class IDGeneratorContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the new identifier belongs to, as far as it is known."""

    task_id: str | None = None
    context_id: str | None = None


class IDGenerator(ABC):
    """Makes identifiers; subclass it for ids of another form than UUIDs."""

    @abstractmethod
    def generate(self, context: IDGeneratorContext) -> str:
        """An identifier that was never given out before."""


class UUIDGenerator(IDGenerator):
    """Random UUIDs."""

    def generate(self, context: IDGeneratorContext) -> str:
        return new_id()


class Identifiers:
    """The identifiers of new tasks and new contexts."""

    def __init__(self, tasks: IDGenerator | None = None, contexts: IDGenerator | None = None) -> None:
        self._tasks = tasks or UUIDGenerator()
        self._contexts = contexts or UUIDGenerator()

    def new_task(self, context_id: str | None) -> str:
        return self._tasks.generate(IDGeneratorContext(context_id=context_id))

    def new_context(self, task_id: str) -> str:
        return self._contexts.generate(IDGeneratorContext(task_id=task_id))
