"""One turn of one task that uses tools: which backend runs what, with which state, and without telling secrets."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import msgspec

from errands.agents.manifests import Function, Tool
from errands.agents.tools.actions import execution
from errands.agents.tools.base import (
    Backend,
    BrokenToolError,
    Discovered,
    Equipment,
    Invocation,
    State,
    ToolError,
)
from errands.agents.tools.registry import backend_class, keeps_state
from errands.agents.tools.secrets import Secrets
from errands.policy.cel.values import Json

logger = logging.getLogger(__name__)

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
