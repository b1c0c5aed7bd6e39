"""`ManifestWorker`: an agent from a manifest, as a worker like any other.

A turn goes on wherever the records say that the task stands: after a message, a review, or a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from errands.agents.delegation import Delegate
from errands.agents.loop.manifest_turn import ManifestTurn
from errands.agents.loop.overseer import ManifestOverseer, ManifestOversight
from errands.agents.loop.plan import Plan, Repertoire
from errands.agents.manifests import Agent, Manifests
from errands.agents.models.base import Model
from errands.agents.mounts import Mounts
from errands.agents.tools.toolbox import Toolbox
from errands.policy.cel.evaluators import Evaluators
from errands.policy.document import CompiledPolicy
from errands.policy.oversight import AgentOversight, RuledWorker
from errands.runtime.turn import Turn


class ManifestWorker(RuledWorker):
    """Works on the tasks of one agent; `delegates` are the other agents it may use, by capability.

    Scripts of the model run in `evaluators`, if given, instead of those of the server. The caller closes them.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        manifests: Manifests,
        toolbox: Toolbox,
        model: Model,
        model_name: str,
        mounts: Mounts,
        delegates: Mapping[str, Delegate],
        runtime: Mapping[str, str],
        evaluators: Evaluators | None = None,
    ) -> None:
        self.agent = agent
        self.toolbox = toolbox
        self.model = model
        self.model_name = model_name
        self.mounts = mounts
        self.delegates = delegates
        self.runtime = runtime
        self.evaluators = evaluators
        self._manifests = manifests
        self._declared = Repertoire(Plan(agent, manifests), manifests.functions(agent))
        self.hears_cancel = toolbox.keeps_state or bool(delegates)

    def declared(self) -> Repertoire:
        """Return the functions that the manifest names; others are discovered when the agent runs."""
        return self._declared

    def function_names(self) -> tuple[set[str], tuple[str, ...]]:
        functions = self._manifests.functions(self.agent)
        discovering = tuple(f"{function.name}_" for function in functions if function.discovers)
        return {function.name for function in functions if not function.discovers}, discovering

    def oversight(self, policy: CompiledPolicy, elsewhere: Collection[str], evaluators: Evaluators) -> AgentOversight:
        return ManifestOversight(self, Plan(self.agent, self._manifests, policy, elsewhere), evaluators)

    async def handle_turn(self, turn: Turn) -> None:
        overseer = turn.overseer
        assert isinstance(overseer, ManifestOverseer), "the server oversees every turn of a ruled worker"
        if not turn.is_cancelled:
            await turn.until_cancelled(ManifestTurn(overseer).work())
        if turn.is_cancelled and not turn.ended:
            await overseer.release()
