"""Tasks in the process's own memory."""

from errands.engines.memory.engine import DEFAULT_RETENTION, MemoryEngine

__all__ = ["DEFAULT_RETENTION", "MemoryEngine"]
