"""`stateful_session`: a session that is created once per task, used by every action, and destroyed at the end.

The state has what `extract` found, and those arguments and parts of the context that `destroy` names, because they are
gone when the task has ended. It is kept in the log: a session's own token is, too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from errands.agents.manifests.documents import Request, StatefulSession, Tool
from errands.agents.manifests.functions import backend
from errands.agents.manifests.templates import references
from errands.agents.tools.actions import configuration
from errands.agents.tools.base import Backend, BrokenToolError, Invocation, State
from errands.agents.tools.exchange import Answer, send
from errands.agents.tools.json_path import select
from errands.agents.tools.requests import build, filling
from errands.clock import system_clock, to_iso
from errands.errors import ConfigurationError
from errands.policy.cel import Session
from errands.policy.cel.values import Json


class SessionBackend(Backend):
    @classmethod
    def check(cls, tool: Tool) -> None:
        if len(_sessions(tool)) > 1:
            raise ConfigurationError(
                f"the actions of the tool {tool.name} have different sessions, and a task has one per tool: "
                "write create, extract and destroy once, in stateful_session of the tool, or make two tools of it"
            )

    async def initialize(self, invocation: Invocation) -> State:
        document = configuration(self.equipment.tool, invocation.action, StatefulSession)
        created = await self._made(document.create, invocation, key=f"{invocation.call}-create")
        answer = created.json() if document.extract else None
        session = {name: await select(path, answer) for name, path in (document.extract or {}).items()}
        return {
            "session": session,
            "parameters": _part(invocation.arguments, _named(document.destroy, "parameters")),
            "context": _part(invocation.context, _named(document.destroy, "context", "c")),
        }

    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, StatefulSession)
        answer = await self._made(
            document.execute, invocation, key=invocation.call, values=invocation.state.get("session", {})
        )
        return await answer.result()

    async def teardown(self, state: State) -> None:
        document = next(iter(_sessions(self.equipment.tool)), None)
        if document is None or document.destroy is None:
            return
        filled = await filling(
            self.equipment,
            document.destroy,
            arguments=state["parameters"],
            context=state["context"],
            session=Session(now=to_iso(system_clock())),
            values=state["session"],
        )
        await send(self.equipment, await build(filled, document.destroy, key=f"{self.equipment.task_id}-destroy"))

    async def _made(
        self, request: Request | None, invocation: Invocation, *, key: str, values: Mapping[str, Json] | None = None
    ) -> Answer:
        if request is None:
            raise BrokenToolError(f"a request of the session of {self.equipment.tool.name} is missing")
        filled = await filling(
            self.equipment,
            request,
            arguments=invocation.arguments,
            context=invocation.context,
            session=invocation.session,
            values=values,
        )
        return await send(self.equipment, await build(filled, request, key=key))


def _sessions(tool: Tool) -> list[StatefulSession]:
    """What the actions say about their session, without what each does in it."""
    found: list[StatefulSession] = []
    for action in tool.actions:
        _, document = backend(tool, action)
        if isinstance(document, StatefulSession):
            session = StatefulSession(document.create, document.extract, None, document.destroy)
            if session not in found:
                found.append(session)
    return found


def _named(request: Request | None, *roots: str) -> set[str]:
    """The names below a root that a request uses."""
    names = {reference.steps[0] for reference in references(request) if reference.root in roots}
    return {"capabilities" if name == "cap" else name for name in names}


def _part(values: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    return {name: values[name] for name in names if name in values}
