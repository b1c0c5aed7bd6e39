"""The tools of one agent: their settings, secrets, backends and functions, and a turn of a task that uses them."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

import msgspec

from errands.agents.manifests import Agent, Capability, Function, Manifests, Tool
from errands.agents.manifests.documents import Cel
from errands.agents.manifests.expressions import references
from errands.agents.manifests.functions import DISCOVERING, distinct
from errands.agents.mounts import Files
from errands.agents.tools import base, tool_settings
from errands.agents.tools.base import Backend, BrokenToolError, Discovered, Equipment, Invocation, State, ToolError
from errands.agents.tools.http_actions import HttpBackend, SessionBackend
from errands.agents.tools.mcp import McpBackend
from errands.agents.tools.openapi import OpenApiBackend
from errands.agents.tools.python import PythonBackend
from errands.errors import ConfigurationError
from errands.outbound import Outbound
from errands.policy import cel
from errands.policy.cel import CelError, Variables, scopes
from errands.policy.cel.values import Json
from errands.policy.steps import CAPABILITY_PHASES, capability_name

logger = logging.getLogger(__name__)

#: What replaces a secret.
HIDDEN = "[secret]"
#: Characters of an error message.
_MAX_ERROR = 2_000
#: The name of a tool's own expression in the session of an invocation.
_PLACE = "execute"


class CelBackend(Backend):
    """Runs actions that are one expression."""

    async def invoke(self, invocation: Invocation) -> Json:
        equipment = self.equipment
        scope = scopes.TOOL if equipment.agent.mount == "none" else scopes.TOOL_WITH_MOUNT
        document = base.configuration(equipment.tool, invocation.action, Cel)
        try:
            program = cel.compile(scope, document.expression)
        except CelError as error:
            raise BrokenToolError(f"the expression of {equipment.tool.name} cannot be used: {error}") from None
        variables = Variables(invocation.context, input=invocation.arguments, runtime=dict(equipment.runtime))
        try:
            return await cel.evaluate(program, variables, invocation.session, perform=invocation.perform, place=_PLACE)
        except CelError as error:
            # Without the expression itself, which the model does not need to know.
            raise ToolError(f"{error.problem}: {error.hint}" if error.hint else error.problem) from None


#: By their names in `execute`.
BACKENDS: dict[str, type[Backend]] = {
    "cel": CelBackend,
    "stateless_http": HttpBackend,
    "stateful_session": SessionBackend,
    "mcp": McpBackend,
    "python": PythonBackend,
    "openapi": OpenApiBackend,
}


def _keeps_state(kind: type[Backend]) -> bool:
    """Return whether a backend keeps something from its first invocation to the end of the task."""
    return kind.initialize is not Backend.initialize


class Toolbox:
    """The tools of one agent. Made once per process and agent.

    `settings` are the operator's, by the name of the tool; `auth` has the tokens for `{auth.name}` by name.
    """

    def __init__(
        self,
        manifests: Manifests,
        agent: Agent,
        *,
        settings: Mapping[str, Mapping[str, Any]],
        outbound: Outbound,
        runtime: Mapping[str, Json],
        auth: Mapping[str, str],
        bounds: base.Bounds | None = None,
    ) -> None:
        self._agent = agent
        self._given = settings
        self._outbound = outbound
        self._runtime = runtime
        self._auth = auth
        self._bounds = bounds or base.Bounds()
        self._declared = manifests.functions(agent)
        found = {function.ref: manifests.find(agent, function.ref) for function in self._declared}
        self._tools = {ref: tool for ref, tool in found.items() if isinstance(tool, Tool)}
        #: The auth that each tool names, by its name: the service of one must not get the tokens of another.
        self._named_auth = {
            tool.name: {reference.steps[0] for reference in references(tool) if reference.root == "auth"}
            for tool in self._tools.values()
        }
        self._shared = base.Once()

    @property
    def keeps_state(self) -> bool:
        """Return whether some tool has something to clean up when a task has ended."""
        return any(_keeps_state(kind) for tool in self._tools.values() for kind in _backends(tool))

    def check(self) -> None:
        """Raises `ConfigurationError` for what would keep a tool from ever working: to be called at the start."""
        problems: list[str] = []
        for tool in self._tools.values():
            try:
                self._settings(tool)
                for kind in _backends(tool):
                    kind.check(tool)
                if missing := sorted(self._named_auth[tool.name] - self._auth.keys()):
                    problems.append(
                        f"the tool {tool.name} needs auth for {', '.join(missing)}: "
                        "write it under auth in the tool settings"
                    )
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("; ".join(problems))

    async def functions(self) -> list[Function]:
        """Return all functions of the agent, with those that servers and documents offer. Raises `BrokenToolError`."""
        names = {function.name for function in self._declared if not function.discovers}
        found: list[Function] = []
        offered = await asyncio.gather(*map(self._offered, self._declared))
        for function, items in zip(self._declared, offered, strict=True):
            if function.discovers:
                include = self._capability(function.ref).include
                discovered = discovered_functions(function, items, include, names)
                names.update(one.name for one in discovered)
                found += discovered
            elif items:
                # An action that is one operation of a server has the parameters of that operation.
                [item] = items
                found.append(msgspec.structs.replace(function, declared={**item.parameters, **function.declared}))
            else:
                found.append(function)
        for ref in dict.fromkeys(function.ref for function in self._declared if function.discovers):
            known = _operation_names(function for function in found if function.ref == ref)
            for name in sorted(set(self._capability(ref).include or ())):
                if capability_name(name) not in known:
                    logger.warning("%s: include names %r, which does not exist", ref, name)
        return found

    @asynccontextmanager
    async def turn(self, *, task_id: str, files: Files | None = None) -> AsyncIterator[ToolTurn]:
        """Use the tools in one turn of a task; connections and processes are closed with it."""
        transport = self._outbound.transport(max_bytes=self._bounds.most_read)

        def equip(tool: Tool) -> Equipment:
            return Equipment(
                tool=tool,
                agent=self._agent,
                task_id=task_id,
                settings=self._settings(tool),
                runtime=self._runtime,
                auth={name: self._auth[name] for name in self._named_auth[tool.name] if name in self._auth},
                transport=transport,
                bounds=self._bounds,
                files=files,
                shared=self._shared,
                hide=self._secrets.hide_in,
            )

        turn = ToolTurn(self._tools, equip, self._secrets)
        try:
            yield turn
        finally:
            await turn.close()
            await transport.aclose()

    def _capability(self, ref: str) -> Capability:
        # A tool that only steps invoke is not a capability itself.
        return self._agent.capabilities.get(ref, Capability())

    def _settings(self, tool: Tool) -> dict[str, Any]:
        return tool_settings.resolved(tool, self._given.get(tool.name, {}))

    async def _offered(self, function: Function) -> list[Discovered]:
        """Return what the server of a function offers: found once, and tried again if that failed."""
        if function.target != "tool":
            return []
        name, document = base.execution(self._tools[function.ref], function.action)
        if name not in DISCOVERING:
            return []

        async def discover() -> list[Discovered]:
            async with self.turn(task_id="") as turn:
                return await turn.discover(function)

        found = await self._shared.get(("discovered", function.ref, function.action), discover)
        wanted = getattr(document, DISCOVERING[name])
        selected = found if wanted is None else [item for item in found if item.name == wanted]
        if wanted is not None and not selected:
            names = [item.name for item in found[:20]]
            more = " and more" if len(found) > len(names) else ""
            offer = f"it has {', '.join(names)}{more}" if names else "it has none"
            raise BrokenToolError(f"{function.ref} has no {DISCOVERING[name]} {wanted}; {offer}")
        return selected

    @cached_property
    def _secrets(self) -> Secrets:
        """The secrets of all tools, because a service may repeat what another tool has sent it."""
        settings = [tool_settings.secrets(tool, self._settings(tool)) for tool in self._tools.values()]
        return Secrets([*self._auth.values(), *settings])


def _backends(tool: Tool) -> list[type[Backend]]:
    actions: list[str | None] = [action.name for action in tool.actions]
    return [BACKENDS[name] for name in sorted({base.execution(tool, action)[0] for action in actions or [None]})]


# Discovered functions


def discovered_functions(
    function: Function, items: Sequence[Discovered], include: Collection[str] | None, taken: Collection[str]
) -> list[Function]:
    """Return a function for each item, in place of the one for all. Names in `taken` belong to others."""
    functions: dict[str, Function] = {}
    for item in items:
        # The manifest may improve a parameter, for example with a default or a better description.
        declared = {name: function.declared.get(name, schema) for name, schema in item.parameters.items()}
        names = {capability_name(name) for name in (function.action, item.name) if name}
        is_included = include is None or not names.isdisjoint(map(capability_name, include))
        name = function.discovered_name(item.name)
        if name in functions or name in taken:
            name = distinct(name, item.name)
        functions[name] = msgspec.structs.replace(
            function,
            name=name,
            description=item.description,
            declared=declared,
            bindings={name: source for name, source in function.bindings.items() if name in declared},
            offered=function.offered and is_included,
            discovers=False,
            operation=item.name,
        )
    return list(functions.values())


def unapplied(ref: str, capability: Capability, functions: Iterable[Function]) -> list[str]:
    """Return the rules of a capability that match nothing that was discovered: it is unknown what they guard."""
    found = [function for function in functions if function.ref == ref]
    known = _operation_names(found)
    steps = [step for phase in CAPABILITY_PHASES for step in getattr(capability, phase.value) or []]
    matches = {step.match for step in steps if step.match is not None and capability_name(step.match) not in known}
    bound = (capability.bindings or {}).keys() - {name for one in found for name in one.declared}
    return [f"a step has match {name!r}, which is not an operation" for name in sorted(matches)] + [
        f"the binding {name!r} matches no parameter" for name in sorted(bound)
    ]


def _operation_names(functions: Iterable[Function]) -> set[str]:
    """Return the names that `match` and `include` may use."""
    return {capability_name(name) for one in functions for name in (one.action, one.operation) if name}


# Turns


class ToolTurn:
    """Uses tools in one turn of one task. Made by `Toolbox.turn`."""

    def __init__(self, tools: Mapping[str, Tool], equip: Callable[[Tool], Equipment], secrets: Secrets) -> None:
        self._tools = tools
        self._equip = equip
        self._secrets = secrets
        #: By tool and name.
        self._backends: dict[tuple[str, str], Backend] = {}
        #: What was initialized in this turn, by tool.
        self._states: dict[str, State] = defaultdict(dict)
        #: Held while a state of a tool is made: several first calls at the same time share one.
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    def is_synchronous(self, function: Function) -> bool:
        """Return whether the calls of its tool must run one after the other."""
        return self._tools[function.ref].synchronous

    async def initialize(self, function: Function, invocation: Invocation) -> State | None:
        """Return the tool's new state, to be kept before `invoke`; None if there is nothing new to keep.

        Of several first calls at the same time one returns the state, and the others find it in `invoke`. Raises
        `BrokenToolError` and `ToolError`.
        """
        name, backend = self._backend(function)
        states = self._states[function.ref]
        if not _keeps_state(type(backend)) or name in invocation.state:
            return None
        async with self._locks[function.ref]:
            if name in states:
                return None
            with self._hiding():
                own = await backend.initialize(_for(function, invocation, {}))
                if self._secrets.are_in(own):
                    raise BrokenToolError(
                        f"the session of {function.ref} contains a secret setting, and a session is kept in the task's "
                        "log; extract something else, and write the setting where it is needed"
                    )
            states[name] = own
            return {**invocation.state, **states}

    async def invoke(self, function: Function, invocation: Invocation) -> Json:
        """Return the result, without secrets. Raises `ToolError`, `BrokenToolError`, and `Suspended` while waiting."""
        name, backend = self._backend(function)
        state = {**self._states[function.ref], **invocation.state}.get(name, {})
        with self._hiding():
            return self._secrets.hide(await backend.invoke(_for(function, invocation, state)))

    async def discover(self, function: Function) -> list[Discovered]:
        """Return what the server of a function offers. Raises `BrokenToolError`."""
        _, backend = self._backend(function)
        try:
            with self._hiding():
                return await backend.discover(function.action)
        except ToolError as error:
            raise BrokenToolError(f"the operations of {function.ref} cannot be listed: {error}") from None

    async def teardown(self, states: Mapping[str, State]) -> None:
        """Clean up after the task; `states` are those of its tools, by name. Errors are logged."""
        for ref, state in states.items():
            if ref not in self._tools:
                logger.warning("%s: nothing is cleaned up, because the agent no longer has this tool", ref)
                continue
            for name, own in state.items():
                with self._logging(ref, "cleaning up after the task failed"):
                    await self._opened(ref, name).teardown(own)

    async def close(self) -> None:
        for (ref, name), backend in self._backends.items():
            with self._logging(ref, f"{name} could not be closed"):
                await backend.close()

    def _backend(self, function: Function) -> tuple[str, Backend]:
        name, _ = base.execution(self._tools[function.ref], function.action)
        return name, self._opened(function.ref, name)

    def _opened(self, ref: str, name: str) -> Backend:
        if (ref, name) not in self._backends:
            self._backends[ref, name] = BACKENDS[name](self._equip(self._tools[ref]))
        return self._backends[ref, name]

    @contextmanager
    def _hiding(self) -> Iterator[None]:
        """Remove secrets from errors."""
        try:
            yield
        except (ToolError, BrokenToolError) as error:
            # Cut afterwards, so that no part of a secret is left.
            text = self._secrets.hide_in(str(error))
            raise type(error)(text if len(text) <= _MAX_ERROR else f"{text[:_MAX_ERROR]}…") from None

    @contextmanager
    def _logging(self, ref: str, what: str) -> Iterator[None]:
        """Log errors, without a traceback, which may contain anything."""
        try:
            yield
        except Exception as error:
            logger.warning("%s: %s (%s)", ref, what, self._secrets.hide_in(f"{type(error).__name__}: {error}"))


def _for(function: Function, invocation: Invocation, state: State) -> Invocation:
    return msgspec.structs.replace(invocation, action=function.action, operation=function.operation, state=state)


# Secrets


class Secrets:
    """Hides secrets, and all strings and numbers inside them, in everything that is stored or shown."""

    def __init__(self, values: Iterable[Json]) -> None:
        forms: set[str] = set()
        waiting = list(values)
        while waiting:
            value = waiting.pop()
            if isinstance(value, dict | list):
                waiting += value.values() if isinstance(value, dict) else value
            elif value not in (None, "") and not isinstance(value, bool):
                forms |= _forms(str(value))
        # The longest first: one may be a part of another.
        self._forms = sorted(forms, key=len, reverse=True)

    def hide(self, value: Json) -> Json:
        """Return the value without secrets, in strings and in keys at any depth."""
        if isinstance(value, dict | list):
            # Searched as one JSON text first: an answer may have a million values, and seldom a secret.
            try:
                text = msgspec.json.encode(value)
                if not any(msgspec.json.encode(form)[1:-1] in text for form in self._forms):
                    return value
            except (TypeError, UnicodeEncodeError):
                pass
        return self._hidden(value)

    def _hidden(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.hide_in(value)
        if isinstance(value, dict):
            return {self.hide_in(str(key)): self._hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value

    def hide_in(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def are_in(self, value: Any) -> bool:
        return bool(self.hide(value) != value)


def _forms(secret: str) -> set[str]:
    """Return a secret as it looks in texts, in addresses, in JSON, and as a whole in base64."""
    raw = secret.encode("utf-8", "replace")
    escaped = msgspec.json.encode(raw.decode()).decode()[1:-1]
    quoted = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    return {secret, *quoted, escaped, repr(secret)[1:-1], base64.b64encode(raw).decode()}
