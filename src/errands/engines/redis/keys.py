"""The names of keys and channels. What is behind them is said at the head of `lua/1_keys.lua`."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote

from errands.model.core import TaskState
from errands.model.log import Scope


@lru_cache(maxsize=1024)
def scope_name(scope: Scope) -> str:
    """A scope as one word: different scopes never have the same, whatever characters they are made of."""
    return "/".join(quote(part, safe="") for part in scope)


class Keys:
    """All names of one store. The braces make a cluster keep them in one slot."""

    def __init__(self, prefix: str) -> None:
        self.base = f"{{{prefix}}}:"
        self.agents = f"{self.base}agents"
        self.canceling = f"{self.base}canceling"
        self.asking = f"{self.base}asking"
        self.long = f"{self.base}long"
        self.contexts = f"{self.base}contexts"
        self.schema = f"{self.base}schema"
        self.sweeper = f"{self.base}sweeper"
        self.swept = f"{self.base}swept"
        self.probe = f"{self.base}probe"
        #: The channel that says: a task may be due, or a cancel may be wanted.
        self.work = f"{self.base}work"
        self._events = f"{self.base}events:"

    def task(self, task_id: str) -> str:
        return f"{self.base}task:{task_id}"

    def log(self, task_id: str) -> str:
        return f"{self.base}log:{task_id}"

    def records(self, task_id: str) -> str:
        return f"{self.base}records:{task_id}"

    def queue(self, agent: str) -> str:
        return f"{self.base}queue:{agent}"

    def paused(self, agent: str) -> str:
        return f"{self.base}paused:{agent}"

    def aging(self, agent: str) -> str:
        return f"{self.base}aging:{agent}"

    def ended(self, state: TaskState) -> str:
        return f"{self.base}ended:{state.short}"

    def listing(self, scope: Scope, context_id: str | None = None, state: TaskState | None = None) -> str:
        """The sorted set that answers a listing with these filters."""
        name = f"{self.base}list:{scope_name(scope)}"
        if state is not None:
            name = f"{name}:{state.short}"
        # Last, because it may hold any character.
        return name if context_id is None else f"{name}::{context_id}"

    def listings(self, scope: Scope, context_id: str, state: TaskState) -> list[str]:
        """Every listing that a task in this state is in."""
        every, of_state = self.listing(scope), self.listing(scope, state=state)
        return [every, of_state, f"{every}::{context_id}", f"{of_state}::{context_id}"]

    @staticmethod
    def receipt_name(scope: Scope, digest: bytes) -> str:
        return f"{scope_name(scope)}:{digest.hex()}"

    def receipt(self, name: str) -> str:
        return f"{self.base}receipt:{name}"

    @staticmethod
    def context_name(scope: Scope, context_id: str) -> str:
        return f"{scope_name(scope)}:{context_id}"

    def context(self, name: str) -> str:
        return f"{self.base}context:{name}"

    def answer(self, process: str) -> str:
        return f"{self.base}answer:{process}"

    def events(self, task_id: str) -> str:
        """The channel on which a task's events are told to other processes."""
        return self._events + task_id

    def task_of(self, channel: str) -> str | None:
        """The task whose events a channel tells."""
        return channel.removeprefix(self._events) if channel.startswith(self._events) else None
