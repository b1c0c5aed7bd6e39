"""Where the identifiers of tasks, contexts, messages and artifacts come from."""

from __future__ import annotations

from abc import ABC, abstractmethod

import msgspec

from errands.runtime.journal import new_id
from errands.runtime.validation import text

#: Characters that an identifier may have: stores find tasks by it.
MAX_LENGTH = 250


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
        return generated(self._tasks, IDGeneratorContext(context_id=context_id))

    def new_context(self, task_id: str) -> str:
        return generated(self._contexts, IDGeneratorContext(task_id=task_id))


def generated(generator: IDGenerator, context: IDGeneratorContext) -> str:
    """Return an identifier that stores can hold. Raise `TypeError` or `ValueError` for any other."""
    name = f"what {type(generator).__name__}.generate returns"
    identifier = text(name, generator.generate(context))
    if not 0 < len(identifier) <= MAX_LENGTH or not identifier.isprintable():
        raise ValueError(f"{name} must have 1 to {MAX_LENGTH} printable characters, not {identifier[:50]!r}")
    return identifier
