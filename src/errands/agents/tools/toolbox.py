"""Keeping secrets out of everything that is told, stored or shown."""

from __future__ import annotations

import asyncio
import base64
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import cached_property
from typing import Any
from urllib.parse import quote, quote_plus

import httpx
import msgspec

from errands.agents.manifests import Agent, Manifests, Tool
from errands.agents.manifests.documents import Capability, Cel
from errands.agents.manifests.expressions import references
from errands.agents.manifests.functions import DISCOVERING, Function, distinct
from errands.agents.mounts import Files
from errands.agents.tools import settings as tool_settings
from errands.agents.tools.base import (
    Auth,
    Backend,
    Bounds,
    BrokenToolError,
    Discovered,
    Equipment,
    Invocation,
    Once,
    State,
    ToolError,
    configuration,
    execution,
)
from errands.agents.tools.functions import PythonBackend
from errands.agents.tools.http import HttpBackend, SessionBackend
from errands.agents.tools.mcp import McpBackend
from errands.agents.tools.openapi import OpenApiBackend
from errands.errors import ConfigurationError
from errands.outbound import Outbound
from errands.policy import cel
from errands.policy.cel import CelError, Variables, scopes
from errands.policy.cel.values import Json
from errands.policy.steps import CAPABILITY_PHASES, capability_name

# secrets

#: What stands in place of a secret.
HIDDEN = "[secret]"


class Secrets:
    """Secrets to be hidden. New ones, such as tokens that were just fetched, can be added."""

    def __init__(self, values: Iterable[Json] = ()) -> None:
        self._forms: list[str] = []
        for value in values:
            self.add(value)

    def add(self, value: Json) -> None:
        """A secret, or all texts and numbers inside of it."""
        if isinstance(value, dict | list):
            for item in value.values() if isinstance(value, dict) else value:
                self.add(item)
        elif value not in (None, "") and not isinstance(value, bool):
            forms = {*self._forms, *_forms(str(value))}
            # One may be a part of another.
            self._forms = sorted(forms, key=len, reverse=True)

    def hide(self, value: Json) -> Json:
        """The same without secrets, in texts and in keys at any depth."""
        if isinstance(value, str):
            return self.hide_in(value)
        if isinstance(value, dict | list) and not self._may_be_in(value):
            return value
        return self._hidden(value)

    def _hidden(self, value: Json) -> Json:
        if isinstance(value, str):
            return self.hide_in(value)
        if isinstance(value, dict):
            return {self.hide_in(str(key)): self._hidden(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._hidden(item) for item in value]
        return value

    def _may_be_in(self, value: Json) -> bool:
        """Look at it as one JSON text: an answer may have a million values, and seldom a secret."""
        try:
            text = msgspec.json.encode(value)
        except (TypeError, UnicodeEncodeError):
            return True
        return any(msgspec.json.encode(form)[1:-1] in text for form in self._forms)

    def hide_in(self, text: str) -> str:
        for form in self._forms:
            text = text.replace(form, HIDDEN)
        return text

    def are_in(self, value: Any) -> bool:
        return bool(self.hide(value) != value)


def _forms(secret: str) -> set[str]:
    """A secret as it looks in texts, in addresses, in JSON, and as a whole in base64."""
    raw = secret.encode("utf-8", "replace")
    escaped = msgspec.json.encode(raw.decode()).decode()[1:-1]
    quoted = {quote(raw), quote(raw, safe=""), quote_plus(raw)}
    return {secret, *quoted, escaped, repr(secret)[1:-1], base64.b64encode(raw).decode()}


# cel

#: Whose calls they are, in the session of the invocation.
_PLACE = "execute"


class CelBackend(Backend):
    async def invoke(self, invocation: Invocation) -> Json:
        equipment = self.equipment
        scope = scopes.TOOL if equipment.agent.mount == "none" else scopes.TOOL_WITH_MOUNT
        document = configuration(equipment.tool, invocation.action, Cel)
        try:
            program = cel.compile(scope, document.expression)
        except CelError as error:
            raise BrokenToolError(f"the expression of {equipment.tool.name} cannot be used: {error}") from None
        variables = Variables(invocation.context, input=invocation.arguments, runtime=dict(equipment.runtime))
        try:
            return await cel.evaluate(program, variables, invocation.session, perform=invocation.perform, place=_PLACE)
        except CelError as error:
            # The expression itself is none of the model's business.
            raise ToolError(f"{error.problem}: {error.hint}" if error.hint else error.problem) from None


# registry

BACKENDS: dict[str, type[Backend]] = {
    "cel": CelBackend,
    "stateless_http": HttpBackend,
    "stateful_session": SessionBackend,
    "mcp": McpBackend,
    "python": PythonBackend,
    "openapi": OpenApiBackend,
}


def backend_class(name: str) -> type[Backend]:
    """Raises `ConfigurationError` for a backend that errands does not have."""
    try:
        return BACKENDS[name]
    except KeyError:
        raise ConfigurationError(
            f"the backend {name} is not in this version of errands; it has {', '.join(BACKENDS)}"
        ) from None


def keeps_state(kind: type[Backend]) -> bool:
    """Whether a backend has something to keep from its first invocation to the end of the task."""
    return kind.initialize is not Backend.initialize


# discovery

logger = logging.getLogger(__name__)


def discovered_functions(
    function: Function, items: Sequence[Discovered], capability: Capability, taken: Collection[str]
) -> list[Function]:
    """One function for each thing that was found, in place of the one that stands for all of them.

    Names in `taken` belong to others.
    """
    functions: dict[str, Function] = {}
    for item in items:
        made = _made(function, item, capability.include)
        if made.name in functions or made.name in taken:
            made = msgspec.structs.replace(made, name=distinct(made.name, item.name))
        functions[made.name] = made
    return list(functions.values())


def _made(function: Function, item: Discovered, include: Collection[str] | None) -> Function:
    # What the manifest says about a parameter wins, for example a default or a better description.
    declared = {name: function.declared.get(name, schema) for name, schema in item.parameters.items()}
    names = {capability_name(name) for name in (function.action, item.name) if name}
    is_included = include is None or not names.isdisjoint(map(capability_name, include))
    return msgspec.structs.replace(
        function,
        name=function.discovered_name(item.name),
        description=item.description,
        declared=declared,
        bindings={name: source for name, source in function.bindings.items() if name in declared},
        offered=function.offered and is_included,
        discovers=False,
        operation=item.name,
    )


def described(function: Function, items: Sequence[Discovered]) -> Function:
    """A function that is one thing of a server has the parameters that it has there; others stay as they are."""
    if not items:
        return function
    [item] = items
    return msgspec.structs.replace(function, declared={**item.parameters, **function.declared})


def note_unknown(ref: str, capability: Capability, functions: Iterable[Function]) -> None:
    """Logs what `include` names and nothing that was discovered has: the model is not offered it."""
    known = _names([function for function in functions if function.ref == ref])
    for name in sorted(set(capability.include or ())):
        if capability_name(name) not in known:
            logger.warning("%s: include names %r, and there is no such thing", ref, name)


def unapplied(ref: str, capability: Capability, functions: Iterable[Function]) -> list[str]:
    """Return the rules of a capability that fit nothing that was discovered: what they guard is unknown."""
    found = [function for function in functions if function.ref == ref]
    steps = [step for phase in CAPABILITY_PHASES for step in getattr(capability, phase.value) or []]
    matches = {
        step.match for step in steps if step.match is not None and capability_name(step.match) not in _names(found)
    }
    bound = (capability.bindings or {}).keys() - {name for one in found for name in one.declared}
    return [f"a step has match {name!r}, and there is no such operation" for name in sorted(matches)] + [
        f"the binding {name!r} fits no parameter" for name in sorted(bound)
    ]


def _names(functions: Iterable[Function]) -> set[str]:
    """The names that `match` and `include` may mean."""
    return {capability_name(name) for one in functions for name in (one.action, one.operation) if name}


# turn


#: Characters of an error that are told.
_LONGEST = 2_000


class Bench:
    """One tool in one turn: its equipment, its backends as far as they were needed, and its state."""

    def __init__(self, equipment: Equipment, secrets: Secrets) -> None:
        self.equipment = equipment
        self.secrets = secrets
        #: Held while a state is made: several first calls at the same time share one.
        self.lock = asyncio.Lock()
        #: What was initialized in this turn, by the name of the backend.
        self.state: State = {}
        self._backends: dict[str, Backend] = {}

    def backend(self, name: str) -> Backend:
        if name not in self._backends:
            self._backends[name] = backend_class(name)(self.equipment)
        return self._backends[name]

    @contextmanager
    def hiding(self) -> Iterator[None]:
        """Takes secrets out of what goes wrong."""
        try:
            yield
        except (ToolError, BrokenToolError) as error:
            # Cut afterwards, so that nothing is left of a secret.
            raise type(error)(_cut(self.secrets.hide_in(str(error)))) from None

    async def close(self) -> None:
        for name, backend in self._backends.items():
            try:
                await backend.close()
            except Exception as error:
                self.log(f"{name} could not be closed", error)

    def log(self, what: str, error: Exception) -> None:
        # Without a traceback: nobody knows what stands in one.
        text = self.secrets.hide_in(f"{type(error).__name__}: {error}")
        logger.warning("%s: %s (%s)", self.equipment.tool.name, what, text)


class ToolTurn:
    """Made by `Toolbox.turn`. `bench` makes what a tool needs in this turn."""

    def __init__(self, tools: Mapping[str, Tool], bench: Callable[[Tool], Bench]) -> None:
        self._tools = tools
        self._make = bench
        self._benches: dict[str, Bench] = {}

    def tool(self, function: Function) -> Tool:
        """The tool of a function. Raises `KeyError` for a function that is an agent."""
        return self._tools[function.ref]

    def is_synchronous(self, function: Function) -> bool:
        """Whether the calls of its tool must run one after the other."""
        return self.tool(function).synchronous

    async def initialize(self, function: Function, invocation: Invocation) -> State | None:
        """The tool's new state, to be kept before `invoke`; None when there is nothing new to keep.

        Of several first calls at the same time one gets the state, and the others find it in `invoke`. Raises
        `BrokenToolError` and `ToolError`.
        """
        bench, name, backend = self._place(function)
        if not keeps_state(type(backend)) or name in invocation.state:
            return None
        async with bench.lock:
            if name in bench.state:
                return None
            with bench.hiding():
                own = await backend.initialize(_for(function, invocation, {}))
                _refuse_secrets(function, own, bench.secrets)
            bench.state[name] = own
            return {**invocation.state, **bench.state}

    async def invoke(self, function: Function, invocation: Invocation) -> Json:
        """The result, without secrets. Raises `ToolError`, `BrokenToolError`, and `Suspended` while a call waits."""
        bench, name, backend = self._place(function)
        state = {**bench.state, **invocation.state}.get(name, {})
        with bench.hiding():
            result = await backend.invoke(_for(function, invocation, state))
        return bench.secrets.hide(result)

    async def discover(self, function: Function) -> list[Discovered]:
        """What stands behind a function. Raises `BrokenToolError`."""
        bench, _, backend = self._place(function)
        try:
            with bench.hiding():
                return await backend.discover(function.action)
        except ToolError as error:
            raise BrokenToolError(f"what {function.ref} offers cannot be found out: {error}") from None

    async def teardown(self, states: Mapping[str, State]) -> None:
        """The task has ended; `states` are those of its tools, by name. What goes wrong is logged."""
        for ref, state in states.items():
            if ref not in self._tools:
                logger.warning("%s: nothing is tidied up, because the agent no longer has this tool", ref)
                continue
            bench = self._bench(ref)
            for name, own in state.items():
                try:
                    await bench.backend(name).teardown(own)
                except Exception as error:
                    bench.log("it could not be tidied up after the task", error)

    async def close(self) -> None:
        for bench in self._benches.values():
            await bench.close()

    def _place(self, function: Function) -> tuple[Bench, str, Backend]:
        name, _ = execution(self.tool(function), function.action)
        bench = self._bench(function.ref)
        return bench, name, bench.backend(name)

    def _bench(self, ref: str) -> Bench:
        if ref not in self._benches:
            self._benches[ref] = self._make(self._tools[ref])
        return self._benches[ref]


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _for(function: Function, invocation: Invocation, state: State) -> Invocation:
    return msgspec.structs.replace(invocation, action=function.action, operation=function.operation, state=state)


def _refuse_secrets(function: Function, state: State, secrets: Secrets) -> None:
    if secrets.are_in(state):
        raise BrokenToolError(
            f"the session of {function.ref} has a secret setting in it, and a session is kept in the task's log; "
            "extract something else, and write the setting where it is needed"
        )


# toolbox


class Toolbox:
    """Made once per process and agent.

    `settings` are the operator's, by the name of the tool; `auth` gives the tokens that `{auth.name}` stands for, by
    name, or is asked for them.
    """

    def __init__(
        self,
        manifests: Manifests,
        agent: Agent,
        *,
        settings: Mapping[str, Mapping[str, Any]],
        outbound: Outbound,
        runtime: Mapping[str, Json],
        auth: Mapping[str, str] | Auth,
        bounds: Bounds | None = None,
    ) -> None:
        self._agent = agent
        self._given = settings
        self._outbound = outbound
        self._runtime = runtime
        self._auth = auth
        self._bounds = bounds or Bounds()
        self._declared = manifests.functions(agent)
        self._tools = {
            function.ref: manifests.tool(agent, function.ref)
            for function in self._declared
            if function.target == "tool"
        }
        self._shared = Once()

    @property
    def keeps_state(self) -> bool:
        """Whether some tool has something to let go of when a task has ended."""
        names = {execution(tool, action)[0] for tool in self._tools.values() for action in _actions(tool)}
        return any(keeps_state(backend_class(name)) for name in names)

    def check(self) -> None:
        """Raises `ConfigurationError` for what would keep a tool from ever working: to be called at the start."""
        problems: list[str] = []
        for tool in self._tools.values():
            try:
                tool_settings.resolved(tool, self._given.get(tool.name, {}))
                for name in sorted({execution(tool, action)[0] for action in _actions(tool)}):
                    backend_class(name).check(tool)
                self._check_auth(tool)
            except ConfigurationError as error:
                problems.append(str(error))
        if problems:
            raise ConfigurationError("; ".join(problems))

    def _check_auth(self, tool: Tool) -> None:
        if not isinstance(self._auth, Mapping):
            return
        used = {reference.steps[0] for reference in references(tool) if reference.root == "auth"}
        if missing := sorted(used - self._auth.keys()):
            names = ", ".join(missing)
            raise ConfigurationError(
                f"the tool {tool.name} needs auth for {names}: write it under auth in the tool settings"
            )

    async def functions(self) -> list[Function]:
        """All functions of the agent, with those that servers and documents bring. Raises `BrokenToolError`."""
        names = {function.name for function in self._declared if not function.discovers}
        found: list[Function] = []
        for function, items in zip(
            self._declared, await asyncio.gather(*map(self._items, self._declared)), strict=True
        ):
            if not function.discovers:
                found.append(described(function, items))
                continue
            discovered = discovered_functions(function, items, self._capability(function.ref), names)
            names.update(one.name for one in discovered)
            found += discovered
        for ref in dict.fromkeys(function.ref for function in self._declared if function.discovers):
            note_unknown(ref, self._capability(ref), found)
        return found

    def _capability(self, ref: str) -> Capability:
        # What only steps invoke is no capability of its own.
        return self._agent.capabilities.get(ref, Capability())

    async def _items(self, function: Function) -> list[Discovered]:
        """What stands behind a function: found out once, and tried again when that failed."""
        if function.target != "tool":
            return []
        name, document = execution(self._tools[function.ref], function.action)
        if name not in DISCOVERING:
            return []
        found = await self._shared.get(("discovered", function.ref, function.action), lambda: self._discover(function))
        wanted = getattr(document, DISCOVERING[name])
        if wanted is None:
            return found
        selected = [item for item in found if item.name == wanted]
        if not selected:
            raise BrokenToolError(f"{function.ref} has no {DISCOVERING[name]} {wanted}; {_offer(found)}")
        return selected

    async def _discover(self, function: Function) -> list[Discovered]:
        async with self.turn(task_id="") as turn:
            return await turn.discover(function)

    @asynccontextmanager
    async def turn(self, *, task_id: str, files: Files | None = None) -> AsyncIterator[ToolTurn]:
        """One turn of a task; connections and processes live as long as it."""
        transport = self._outbound.transport(max_bytes=self._bounds.most_read)
        turn = ToolTurn(self._tools, lambda tool: self._bench(tool, task_id, files, transport))
        try:
            yield turn
        finally:
            await turn.close()
            await transport.aclose()

    def _bench(self, tool: Tool, task_id: str, files: Files | None, transport: httpx.AsyncBaseTransport) -> Bench:
        values = tool_settings.resolved(tool, self._given.get(tool.name, {}))
        secrets = Secrets(self._secrets)
        equipment = Equipment(
            tool=tool,
            agent=self._agent,
            task_id=task_id,
            settings=values,
            runtime=self._runtime,
            auth=self._token(secrets),
            outbound=self._outbound,
            transport=transport,
            bounds=self._bounds,
            files=files,
            shared=self._shared,
            hide=secrets.hide_in,
        )
        return Bench(equipment, secrets)

    @cached_property
    def _secrets(self) -> list[Json]:
        """Those of all tools, because a service may repeat what another tool has sent it."""
        known: list[Json] = list(self._auth.values()) if isinstance(self._auth, Mapping) else []
        for tool in self._tools.values():
            values = tool_settings.resolved(tool, self._given.get(tool.name, {}))
            known += tool_settings.secrets(tool, values)
        return known

    def _token(self, secrets: Secrets) -> Auth:
        """Tokens are secrets, too, from the moment that they are known."""

        async def token(name: str, context: Mapping[str, Json]) -> str:
            source = self._auth
            value = source[name] if isinstance(source, Mapping) else await source(name, context)
            secrets.add(value)
            return value

        return token


def _actions(tool: Tool) -> list[str | None]:
    return [action.name for action in tool.actions] or [None]


def _offer(found: list[Discovered]) -> str:
    names = [item.name for item in found[:20]]
    return f"it has {', '.join(names)}" + (" and more" if len(found) > len(names) else "") if names else "it has none"
