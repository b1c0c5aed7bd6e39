"""Everything that was loaded together, and how one document finds another."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from errands.agents.manifests.documents import Agent, Capability, Descriptor, Document, Mount, Tool
from errands.agents.manifests.findings import Place
from errands.agents.manifests.functions import Function, agent_function, tool_functions
from errands.policy.steps import StepConfig

D = TypeVar("D", bound=Document)

#: Namespace and name.
Key = tuple[str, str]


class Loaded(Generic[D]):
    """A document and where it stands."""

    def __init__(self, document: D, place: Place) -> None:
        self.document = document
        self.place = place


class Library:
    def __init__(self) -> None:
        self.agents: dict[Key, Loaded[Agent]] = {}
        self.tools: dict[Key, Loaded[Tool]] = {}
        self.mounts: list[Loaded[Mount]] = []
        self.descriptors: list[Loaded[Descriptor]] = []
        #: Whether everything could be read. If not, there is an error about it, and what seems to be missing may
        #: stand in what could not.
        self.is_complete = True

    def tool(self, agent: Agent, name: str) -> Tool | None:
        """A tool in the agent's namespace."""
        found = self.tools.get((agent.namespace, name))
        return found.document if found else None

    def agent(self, agent: Agent, name: str) -> Agent | None:
        """Another agent in the agent's namespace."""
        found = self.agents.get((agent.namespace, name))
        return found.document if found else None

    def names(self, agent: Agent) -> list[str]:
        """What the agent's capabilities can name."""
        return [name for namespace, name in (*self.tools, *self.agents) if namespace == agent.namespace]

    def namespaces_of(self, name: str) -> list[str]:
        """Where there is something of this name."""
        return sorted({namespace for namespace, known in (*self.tools, *self.agents) if known == name})

    def capability_functions(self, agent: Agent, ref: str, capability: Capability) -> list[Function]:
        """The functions of one capability; none if it names nothing that is there."""
        if capability.url is not None:
            return [agent_function(ref, None, capability)]
        if tool := self.tool(agent, ref):
            return tool_functions(ref, tool, capability)
        if other := self.agent(agent, ref):
            return [agent_function(ref, other, capability)]
        return []

    def functions(self, agent: Agent) -> list[Function]:
        """All that have a record on the context: those of the capabilities, and those that only steps invoke."""
        found = [
            function
            for ref, capability in agent.capabilities.items()
            for function in self.capability_functions(agent, ref, capability)
        ]
        invoked = {step.invoke.partition(":")[0] for step in steps_of(agent) if step.invoke}
        for name in sorted(invoked - agent.capabilities.keys()):
            if tool := self.tool(agent, name):
                found += tool_functions(name, tool, Capability(), offered=False)
        return found


def steps_of(agent: Agent) -> Iterator[StepConfig]:
    """Every step that stands in an agent."""
    yield from agent.guardrails.before or []
    yield from agent.guardrails.after or []
    for capability in agent.capabilities.values():
        for steps in (capability.before_first, capability.before, capability.after):
            yield from steps or []
