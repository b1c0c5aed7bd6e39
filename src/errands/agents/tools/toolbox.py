"""The tools of one agent: their settings, secrets and functions, and a turn of a task that uses them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any

import httpx

from errands.agents.manifests import Agent, Capability, Function, Manifests, Tool
from errands.agents.manifests.functions import DISCOVERING
from errands.agents.manifests.templates import references
from errands.agents.mounts.base import Files
from errands.agents.tools import settings as tool_settings
from errands.agents.tools.actions import execution
from errands.agents.tools.base import Auth, Bounds, BrokenToolError, Discovered, Equipment
from errands.agents.tools.discovery import described, discovered_functions, note_unknown
from errands.agents.tools.once import Once
from errands.agents.tools.registry import backend_class, keeps_state
from errands.agents.tools.secrets import Secrets
from errands.agents.tools.turn import Bench, ToolTurn
from errands.errors import ConfigurationError
from errands.outbound import Outbound
from errands.policy.cel.values import Json


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
