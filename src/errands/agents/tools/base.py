"""The tool port: what the loop asks of whatever runs an action, and what it may rely on.

    Initialize   once per tool and task, before its first action: `Backend.initialize`. What it gives is plain JSON, is
                 kept in the task's log, and comes back in every later invocation, in this process or another.
    Invoke       each execution: `Backend.invoke`. After a crash it may be made again, with the same `call`.
    Teardown     when the task has ended: `Backend.teardown`.

A backend object lives for one turn of one task; `close` lets go of connections and processes at the turn's end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from errands.agents.manifests.schemas import Schema
from errands.errors import ErrandsError
from errands.policy.cel import Perform, Session
from errands.policy.cel.values import Json

#: What `initialize` gave.
State = dict[str, Any]


class ToolError(ErrandsError):
    """It did not work this time, and the model is told so: a bad status, an error of the tool, a time-out.

    The message goes to the model. It has no secret in it.
    """


class BrokenToolError(ErrandsError):
    """The tool cannot work: its configuration is wrong, or nobody answers at its address. The task ends.

    The message goes to the caller of the agent. It has no secret in it.
    """


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an action."""

    #: The same when an execution is repeated after a crash: for services that recognise a repeated request.
    call: str
    #: The action's name; None for a tool that has only what it discovers.
    action: str | None
    #: What was discovered, by the name it has there; None for an action that is written down.
    operation: str | None = None
    arguments: dict[str, Json]
    #: As expressions see it.
    context: Mapping[str, Json]
    #: `now`, and the calls of expressions that have finished.
    session: Session
    #: Makes the calls of expressions: `review`, `mount.read`, `mount.write`.
    perform: Perform
    state: State = {}


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a server offers: one function more."""

    name: str
    description: str
    #: By name; one without a default is required, as everywhere.
    parameters: dict[str, Schema]


class Backend(ABC):
    """Runs the actions of one tool that have one kind of `execute`, for one turn of one task."""

    async def initialize(self, invocation: Invocation) -> State:
        """What this and all later invocations of the task need. Raises `BrokenToolError`."""
        return {}

    @abstractmethod
    async def invoke(self, invocation: Invocation) -> Json:
        """The result, as plain JSON. Raises `ToolError`, `BrokenToolError`, and `Suspended` while a call waits."""

    async def teardown(self, state: State) -> None:  # noqa: B027 - most have nothing to do
        """The task has ended. What goes wrong is logged by the backend and nothing else."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to do
        """The turn has ended."""

    async def discover(self, action: str | None) -> list[Discovered]:
        """What the server has, for an action that stands for all of it. Raises `BrokenToolError`."""
        return []
