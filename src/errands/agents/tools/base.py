"""Things that are found out once per process."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar

import httpx
import msgspec

from errands.agents.manifests.documents import Action, Agent, Document, Tool
from errands.agents.manifests.functions import DISCOVERING, backend
from errands.agents.manifests.schemas import Schema
from errands.agents.mounts import Files
from errands.errors import ErrandsError
from errands.outbound import Outbound
from errands.policy.cel import Perform, Session
from errands.policy.cel.values import Json

# once

T = TypeVar("T")


class Once:
    """Remembers values by key. Those who ask at the same time share one attempt; one that failed is made again."""

    def __init__(self) -> None:
        self._found: dict[Hashable, asyncio.Task[Any]] = {}

    async def get(self, key: Hashable, find: Callable[[], Awaitable[T]]) -> T:
        """The value, or what `find` raises. Whoever stops waiting stops nobody else."""
        task = self._found.get(key)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.ensure_future(_awaited(find))
            task.add_done_callback(_seen)
            self._found[key] = task
        found: T = await asyncio.shield(task)
        return found


async def _awaited(find: Callable[[], Awaitable[T]]) -> T:
    return await find()


def _seen(task: asyncio.Task[Any]) -> None:
    """A failure is no loose end, also when those who asked have gone."""
    if not task.cancelled():
        task.exception()


# base

#: What `initialize` gave.
State = dict[str, Any]

#: The token of a provider, for the task with this context: what `{auth.name}` stands for. Raises `KeyError` for a
#: provider that it does not have.
Auth = Callable[[str, Mapping[str, Json]], Awaitable[str]]


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
    #: By name; one without a default is required, as everywhere. See `optional`.
    parameters: dict[str, Schema]


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """How long and how much a tool may answer."""

    #: Seconds for one request, from the look-up of the name to the last byte.
    timeout: float = 30.0
    #: Seconds for a server to start and to be ready.
    start: float = 60.0
    #: Bytes of one answer.
    max_bytes: int = 5 * 1024 * 1024

    @property
    def most_read(self) -> int:
        """Bytes that are read at most before an answer can be measured: JSON may write a character with six."""
        return 6 * self.max_bytes + 1024 * 1024


class Equipment(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What the backends of one tool work with, in one turn of one task."""

    tool: Tool
    agent: Agent
    task_id: str
    #: What the operator gave, with defaults, by the names that the manifest declares.
    settings: Mapping[str, Json]
    #: `version`, `dashboard_url` and `api_root`.
    runtime: Mapping[str, Json]
    auth: Auth
    outbound: Outbound
    #: Sends requests through `outbound` and keeps connections for this turn; whoever made this closes it.
    transport: httpx.AsyncBaseTransport
    bounds: Bounds
    #: None when the agent has no mount.
    files: Files | None
    #: What is found out once per process, such as a fetched document.
    shared: Once
    #: Takes secrets out of a text. Results and errors lose them in any case; this is for texts that are cut before.
    hide: Callable[[str], str]

    def __repr__(self) -> str:
        # There are secrets among the settings.
        return f"<equipment of {self.tool.name}>"


class Backend(ABC):
    """Runs the actions of one tool that have one kind of `execute`, for one turn of one task."""

    def __init__(self, equipment: Equipment) -> None:
        self.equipment = equipment

    @classmethod  # noqa: B027 - most have nothing to do
    def check(cls, tool: Tool) -> None:
        """Raises `ConfigurationError` for what can be known at the start and no rule of manifests looks at."""

    async def initialize(self, invocation: Invocation) -> State:
        """What this and all later invocations of the task need. A backend that needs nothing leaves this as it is.

        Raises `BrokenToolError`, and `ToolError` for what may work at the next call.
        """
        return {}

    @abstractmethod
    async def invoke(self, invocation: Invocation) -> Json:
        """The result, as plain JSON. Raises `ToolError`, `BrokenToolError`, and `Suspended` while a call waits."""

    async def teardown(self, state: State) -> None:  # noqa: B027 - most have nothing to do
        """The task has ended. What goes wrong is logged by the toolbox and nothing else."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to do
        """The turn has ended."""

    async def discover(self, action: str | None) -> list[Discovered]:
        """What the server has, for an action that stands for all of it or for one of them. Raises `BrokenToolError`."""
        return []


def optional(parameter: Schema) -> Schema:
    """A parameter that need not be given, which has no default of its own: null stands for "not given"."""
    if "default" in parameter:
        return parameter
    kind = parameter.get("type")
    if isinstance(kind, str) and "enum" not in parameter and "const" not in parameter:
        return {**parameter, "type": kind if kind == "null" else [kind, "null"], "default": None}
    described = {"description": parameter["description"]} if "description" in parameter else {}
    return {**described, "anyOf": [parameter, {"type": "null"}], "default": None}


# actions

D = TypeVar("D", bound=Document)


def action_named(tool: Tool, name: str | None) -> Action | None:
    return next((action for action in tool.actions if action.name == name), None)


def execution(tool: Tool, action: str | None) -> tuple[str, Document]:
    """The backend of an action and its configuration; without an action, of what brings the tool's actions.

    Raises `BrokenToolError` for an action that the tool no longer has.
    """
    if found := action_named(tool, action):
        return backend(tool, found)
    for name in DISCOVERING if action is None else ():
        document = getattr(tool, name)
        if document is not None:
            return name, document
    raise BrokenToolError(f"the tool {tool.name} has no action {action}")


def configuration(tool: Tool, action: str | None, kind: type[D]) -> D:
    """What the manifest says about an action, for the backend of `kind`."""
    _, document = execution(tool, action)
    if not isinstance(document, kind):
        raise BrokenToolError(f"the action {action} of {tool.name} is not run by this backend")
    return document
