"""Which generation of the official SDK an object is of, told by its class alone: nothing is imported for it.

The types of 1.x are generated protobuf messages, those of 0.3 are pydantic models.
"""

from __future__ import annotations

import enum
import sys


class Generation(enum.Enum):
    V1 = "1.x"
    V0_3 = "0.3"


_CARD = "lf.a2a.v1.AgentCard"
#: The pydantic cards: those of 0.3 itself, and those that 1.x has for the sake of 0.3.
_OLD_CARDS = {"a2a.types", "a2a.compat.v0_3.types"}
_EXECUTORS = {"a2a.server.agent_execution.agent_executor"}
_BUILDERS = {"a2a.server.agent_execution.request_context_builder"}
_STORES = {"a2a.server.tasks.task_store"}


def generation_of_executor(cls: type) -> Generation | None:
    """None when it is no AgentExecutor of the a2a package."""
    if not _descends(cls, "AgentExecutor", _EXECUTORS):
        return None
    # Whoever has an executor has loaded the types it is written with.
    message = sys.modules["a2a.types"].Message
    return Generation.V1 if hasattr(message, "DESCRIPTOR") else Generation.V0_3


def is_builder(value: object) -> bool:
    """Return whether it is a RequestContextBuilder of the a2a package."""
    return _descends(type(value), "RequestContextBuilder", _BUILDERS)


def is_store(value: object) -> bool:
    """Return whether it is a TaskStore of the a2a package."""
    return _descends(type(value), "TaskStore", _STORES)


def generation_of_card(card: object) -> Generation | None:
    """None when it is no AgentCard of the a2a package."""
    descriptor = getattr(card, "DESCRIPTOR", None)
    if descriptor is not None and descriptor.full_name == _CARD:
        return Generation.V1
    return Generation.V0_3 if _descends(type(card), "AgentCard", _OLD_CARDS) else None


def _descends(cls: type, name: str, modules: set[str]) -> bool:
    return any(base.__name__ == name and base.__module__ in modules for base in cls.__mro__)
