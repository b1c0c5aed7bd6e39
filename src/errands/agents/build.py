"""Build what a server runs from manifests: the workers of the served agent and of the agents it uses, and its card."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from errands.agents.delegation import Delegate, LocalDelegate, RemoteDelegate
from errands.agents.loop.manifest_worker import ManifestWorker
from errands.agents.manifests import Agent, ManifestError, Manifests, examine
from errands.agents.manifests.loading import ToolSource
from errands.agents.models import model_from
from errands.agents.models.base import Model
from errands.agents.mounts import Mounts
from errands.agents.tools.base import Bounds
from errands.agents.tools.tool_settings import from_environment, read_settings, unused_variables
from errands.agents.tools.toolbox import Toolbox
from errands.client.http_requests import checked_headers
from errands.errors import ConfigurationError
from errands.model.card_config import AgentCardConfig, CapabilitiesConfig, SkillConfig
from errands.outbound import Outbound
from errands.runtime.dependencies import Dependency
from errands.runtime.inner import InnerAgents
from errands.runtime.settings import Settings
from errands.version import __version__

logger = logging.getLogger(__name__)

ToolSettings = Mapping[str, Mapping[str, Any]]

#: Keys of the tool settings: tokens by provider, and the headers to send to a remote agent.
_AUTH, _HEADERS = "auth", "headers"


class ModelDependency(Dependency):
    """Closes the model when the server stops."""

    def __init__(self, model: Model) -> None:
        self.model = model

    async def startup(self) -> None:
        pass

    async def shutdown(self) -> None:
        await self.model.close()


class ServedAgent(NamedTuple):
    """Everything that a server of one agent needs."""

    worker: ManifestWorker
    inner: InnerAgents
    card: AgentCardConfig
    model: Model

    @property
    def dependencies(self) -> dict[Any, Dependency]:
        """The dependencies that are closed with the server."""
        return {ModelDependency: ModelDependency(self.model)}

    @property
    def facts(self) -> dict[str, str]:
        """Facts for the banner that is printed when the agent is served."""
        offers = [offer.name for offer in self.worker.declared().offers]
        return {"model": self.worker.model_name, "tools": ", ".join(offers) or "none"}


def build(
    path: str | Path,
    *,
    agent: str | None,
    model: str | Model | None,
    tools: Iterable[ToolSource],
    tool_settings: ToolSettings | str | Path | None,
    settings: Settings,
    card: AgentCardConfig | None,
) -> ServedAgent:
    """Build the agent that a server serves. Raises `ManifestError` for invalid manifests, and `ConfigurationError`."""
    report = examine(path, tools=tools)
    if report.manifests is None:
        raise ManifestError(report.findings)
    for finding in report.findings:
        logger.warning("%s", finding)
    manifests = report.manifests
    served = choose_agent(manifests, agent)
    reached = agents_below(manifests, served)
    builder = _Builder(manifests, Path(path), model, _tool_settings(manifests, tool_settings, settings), settings)
    workers = {one.name: builder.worker(one) for one in (served, *reached)}
    card = card or card_of(served, manifests)
    if card.name != served.name and card.name in workers:
        raise ConfigurationError(
            f"the card has the name {card.name}, which is also the name of an agent that {served.name} uses; rename it"
        )
    # An agent that delegates to itself does so under the name by which it is served.
    hidden = [one.name for one in reached if one.name != card.name]
    builder.inner.workers.update({name: workers[name] for name in hidden})
    return ServedAgent(workers[served.name], builder.inner, card, builder.model)


# Choosing agents


def choose_agent(manifests: Manifests, name: str | None = None) -> Agent:
    """Return the agent called `name` or `namespace/name`; without a name, the only agent that no other agent uses."""
    agents = manifests.agents
    if not agents:
        raise ConfigurationError("the manifests have no agent; add one, or name the folder that has it")
    if name is not None:
        found = [one for one in agents if name in (one.name, _full_name(one))]
        if len(found) == 1:
            return found[0]
        if found:
            raise ConfigurationError(f"there are {len(found)} agents called {name}; choose one: {_listed(found)}")
        raise ConfigurationError(f"unknown agent {name!r}; available: {_listed(agents)}")
    used = {id(other) for one in agents for other in _agents_of(manifests, one) if other is not one}
    tops = [one for one in agents if id(one) not in used]
    if len(tops) == 1:
        return tops[0]
    choices = _listed(tops or agents)
    raise ConfigurationError(f"there are several agents; choose one with agent=... or --agent: {choices}")


def agents_below(manifests: Manifests, served: Agent) -> list[Agent]:
    """Return every local agent that the served one can reach, including itself if it can."""
    found: dict[str, Agent] = {}
    open_ = [served]
    while open_:
        for other in _agents_of(manifests, open_.pop()):
            if other.name not in found:
                found[other.name] = other
                open_.append(other)
    return list(found.values())


def _agents_of(manifests: Manifests, agent: Agent) -> list[Agent]:
    found = [manifests.find(agent, one.ref) for one in manifests.functions(agent) if one.target == "agent"]
    return [other for other in found if isinstance(other, Agent)]


def _listed(agents: Sequence[Agent]) -> str:
    names = [one.name for one in agents]
    return ", ".join(_full_name(one) if names.count(one.name) > 1 else one.name for one in agents)


def _full_name(agent: Agent) -> str:
    return f"{agent.namespace}/{agent.name}"


def card_of(agent: Agent, manifests: Manifests) -> AgentCardConfig:
    version = next((descriptor.version for descriptor in manifests.descriptors if descriptor.version), None)
    skill = SkillConfig(id=agent.name, name=agent.name, description=agent.description, tags=[agent.namespace])
    return AgentCardConfig(
        name=agent.name,
        description=agent.description,
        version=version or "1.0.0",
        skills=[skill],
        capabilities=CapabilitiesConfig(streaming=True),
        input_modes=["text/plain", "application/json"],
        output_modes=["text/plain", "application/json"],
    )


# Building workers


class _Builder:
    def __init__(
        self,
        manifests: Manifests,
        path: Path,
        model: str | Model | None,
        tool_settings: dict[str, dict[str, Any]],
        settings: Settings,
    ) -> None:
        self.inner = InnerAgents()
        self._manifests = manifests
        self._given = tool_settings
        self._settings = settings
        self._outbound = Outbound.from_setting(settings.outbound_allow)
        self._mounts = Mounts(manifests.mount)
        self._runtime = {"version": __version__, "dashboard_url": "", "api_root": settings.public_url or ""}
        #: Overrides the models that agents name.
        self._model_name = model if isinstance(model, str) else None
        if isinstance(model, Model):
            self.model = model
        else:
            self.model = model_from(
                model or settings.model,
                base_url=settings.model_base_url,
                api_key=settings.model_api_key,
                script=path if path.is_dir() else path.parent,
                timeout=settings.model_timeout,
                max_bytes=settings.model_max_bytes,
            )

    def worker(self, agent: Agent) -> ManifestWorker:
        toolbox = Toolbox(
            self._manifests,
            agent,
            settings=self._given,
            outbound=self._outbound,
            runtime=self._runtime,
            auth=self._given.get(_AUTH, {}),
            bounds=Bounds(timeout=self._settings.tool_timeout, max_bytes=self._settings.tool_max_bytes),
        )
        toolbox.check()
        builtins = tuple(agent.model_capabilities or ())
        try:
            model_name = self.model.resolve(self._model_name or agent.model, builtins)
        except ConfigurationError as error:
            raise ConfigurationError(f"{agent.name}: {error}") from None
        depth = self._settings.max_delegation_depth
        http = partial(self._outbound.client, max_bytes=self._settings.tool_max_bytes)
        delegates: dict[str, Delegate] = {}
        for ref in (function.ref for function in self._manifests.functions(agent) if function.target != "tool"):
            if (url := agent.capabilities[ref].url) is None:
                delegates[ref] = LocalDelegate(ref, self.inner, max_depth=depth)
            else:
                headers = _headers(ref, self._given.get(ref, {}))
                delegates[ref] = RemoteDelegate(
                    ref, url, headers=headers, http=http, max_depth=depth, agents=self.inner
                )
        return ManifestWorker(
            agent,
            manifests=self._manifests,
            toolbox=toolbox,
            model=self.model,
            model_name=model_name,
            mounts=self._mounts,
            delegates=delegates,
            runtime=self._runtime,
        )


def _headers(agent: str, given: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers to send to a remote agent. Raises `ConfigurationError`, which never contains a value."""
    headers = given.get(_HEADERS, {})
    if given.keys() - {_HEADERS} or not isinstance(headers, Mapping):
        raise ConfigurationError(f"{agent}: the settings of a remote agent are headers, with a string under each name")
    try:
        return dict(checked_headers(msgspec.convert(headers, dict[str, str])))
    except msgspec.ValidationError:
        raise ConfigurationError(f"{agent}: each header must be a string; put it in quotes") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{agent}: {error}") from None


def _tool_settings(
    manifests: Manifests, given: ToolSettings | str | Path | None, settings: Settings
) -> dict[str, dict[str, Any]]:
    """Merge the settings of the file, the environment and the program; each overrides those before it."""
    file = given if isinstance(given, str | Path) else settings.tool_settings
    layers: list[ToolSettings] = [read_settings(file, os.environ)] if file else []
    layers.append(from_environment(manifests.tools, os.environ))
    if isinstance(given, Mapping):
        layers.append(given)
    found: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, values in layer.items():
            found.setdefault(name, {}).update(values)
    remote = {ref for one in manifests.agents for ref, capability in one.capabilities.items() if capability.url}
    for name in unused_variables(manifests.tools, os.environ):
        # Not an error: the variable may be meant for another agent on this machine.
        logger.warning("unknown tool setting %s", name)
    for name in sorted(found.keys() - {tool.name for tool in manifests.tools} - remote - {_AUTH}):
        logger.warning("the tool settings contain %s, which is neither a tool nor a remote agent", name)
    return found
