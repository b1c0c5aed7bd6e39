"""The tool port: what the loop asks of the backend of an action, and what it may rely on.

    Initialize   once per tool and task, before its first action: `Backend.initialize`. Its result is plain JSON that is
                 kept in the task's log and passed to every later invocation, in this process or another.
    Invoke       each execution: `Backend.invoke`. After a crash it may be repeated with the same `call`.
    Teardown     when the task has ended: `Backend.teardown`.

A backend object lives for one turn of one task; `close` ends its connections and processes with the turn. What should
outlive turns goes into `Equipment.shared`. `toolbox` puts settings, secrets and backends together.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar

import httpx
import msgspec

from errands.agents.manifests.documents import Agent, Document, Tool
from errands.agents.manifests.functions import DISCOVERING, backend
from errands.agents.manifests.schemas import Schema
from errands.agents.mounts import Files
from errands.errors import ErrandsError
from errands.policy.cel import Perform, Session
from errands.policy.cel.values import Json

T = TypeVar("T")
D = TypeVar("D", bound=Document)

#: The result of `initialize`.
State = dict[str, Any]


class ToolError(ErrandsError):
    """The call failed: a bad status, an error of the tool, a timeout.

    The message goes to the model. It contains no secret.
    """


class BrokenToolError(ErrandsError):
    """The tool cannot work: its configuration is wrong, or nothing answers at its address. The task ends.

    The message goes to the caller of the agent. It contains no secret.
    """


class Invocation(msgspec.Struct, frozen=True, kw_only=True):
    """One execution of an action."""

    #: The same when an execution is repeated after a crash: for services that recognise a repeated request.
    call: str
    #: The action's name; None for a tool that has only discovered actions.
    action: str | None
    #: The name of a discovered operation on its server; None for an action of the manifest.
    operation: str | None = None
    arguments: dict[str, Json]
    #: As expressions see it.
    context: Mapping[str, Json]
    #: `now`, and the finished calls of expressions.
    session: Session
    #: Performs the calls of expressions: `review`, `mount.read`, `mount.write`.
    perform: Perform
    state: State = {}


class Discovered(msgspec.Struct, frozen=True, kw_only=True):
    """An operation that a server offers: one more function."""

    name: str
    description: str
    #: By name; a parameter without a default is required. See `optional`.
    parameters: dict[str, Schema]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on the time and size of answers."""

    #: Seconds for one request, from resolving the name to the last byte.
    timeout: float = 30.0
    #: Seconds for a server to start and to be ready.
    start: float = 60.0
    #: Bytes of one answer.
    max_bytes: int = 5 * 1024 * 1024

    @property
    def most_read(self) -> int:
        """Bytes that are read before an answer can be measured: JSON may need six for one character."""
        return 6 * self.max_bytes + 1024 * 1024


class Once:
    """Finds values by key, once. Concurrent callers share one attempt; a failed attempt is repeated."""

    def __init__(self) -> None:
        self._found: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """Return the value, or raise what `find` raises. A caller that is cancelled does not cancel the others."""
        task = self._found.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):

            async def attempt() -> T:
                return await find()

            task = self._found[key] = asyncio.create_task(attempt())
            # All callers may be gone when it fails.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        found: T = await asyncio.shield(task)
        return found


class Equipment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the backends of one tool work with, in one turn of one task."""

    tool: Tool
    agent: Agent
    task_id: str
    #: The operator's values, with defaults, by the names that the manifest declares.
    settings: Mapping[str, Json]
    #: `version`, `dashboard_url` and `api_root`.
    runtime: Mapping[str, Json]
    #: The values of `{auth.name}`.
    auth: Mapping[str, str]
    #: Sends requests through the outbound guard and keeps connections for this turn; closed by its owner.
    transport: httpx.AsyncBaseTransport
    bounds: Bounds
    #: None if the agent has no mount.
    files: Files | None
    #: What is found once per process, such as a fetched document.
    shared: Once
    #: Removes secrets from a text. Results and errors lose them anyway; this is for texts that are cut before.
    hide: Callable[[str], str]

    def __repr__(self) -> str:
        # The settings contain secrets.
        return f"<equipment of {self.tool.name}>"


class Backend(ABC):
    """Runs the actions of one tool that have one kind of `execute`, for one turn of one task."""

    def __init__(self, equipment: Equipment) -> None:
        self.equipment = equipment

    @classmethod  # noqa: B027 - most have nothing to do
    def check(cls, tool: Tool) -> None:
        """Raises `ConfigurationError` for what is known at the start and is not covered by the rules of manifests."""

    async def initialize(self, invocation: Invocation) -> State:
        """Return what all invocations of the task need. A backend that needs nothing does not override this.

        Raises `BrokenToolError`, and `ToolError` for what may work at the next call.
        """
        return {}

    @abstractmethod
    async def invoke(self, invocation: Invocation) -> Json:
        """Return the result. Raises `ToolError`, `BrokenToolError`, and `Suspended` while a call waits."""

    async def teardown(self, state: State) -> None:  # noqa: B027 - most have nothing to do
        """Clean up after the task has ended. The toolbox logs errors and continues."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Clean up after the turn has ended."""

    async def discover(self, action: str | None) -> list[Discovered]:
        """Return what the server offers, for an action that represents all or one of it. Raises `BrokenToolError`."""
        return []


def execution(tool: Tool, action: str | None) -> tuple[str, Document]:
    """Return the backend of an action and its configuration; without an action, of what provides the tool's actions.

    Raises `BrokenToolError` for an action that the tool no longer has.
    """
    if found := next((one for one in tool.actions if one.name == action), None):
        return backend(tool, found)
    for name in DISCOVERING if action is None else ():
        document = getattr(tool, name)
        if document is not None:
            return name, document
    raise BrokenToolError(f"the tool {tool.name} has no action {action}")


def configuration(tool: Tool, action: str | None, kind: type[D]) -> D:
    """Return the configuration of an action for the backend of `kind`."""
    _, document = execution(tool, action)
    if not isinstance(document, kind):
        raise BrokenToolError(f"the action {action} of {tool.name} is not run by this backend")
    return document


def optional(parameter: Schema) -> Schema:
    """Return the schema of an optional parameter: without a default of its own, null means "not given"."""
    if "default" in parameter:
        return parameter
    kind = parameter.get("type")
    if isinstance(kind, str) and "enum" not in parameter and "const" not in parameter:
        return {**parameter, "type": kind if kind == "null" else [kind, "null"], "default": None}
    described = {"description": parameter["description"]} if "description" in parameter else {}
    return {**described, "anyOf": [parameter, {"type": "null"}], "default": None}
