"""`ManifestWorker`: an agent that is written down, as the worker it is to the rest of the runtime.

A turn goes on wherever the records say that the task stands: after a message, a review, or a crash.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from errands.agents.delegation.base import Delegate
from errands.agents.loop.course import LIMIT_EXCEEDED
from errands.agents.loop.plan import Plan, Repertoire
from errands.agents.loop.turn import TaskTurn
from errands.agents.manifests import Agent, Manifests
from errands.agents.models.base import Model
from errands.agents.mounts import Mounts
from errands.agents.tools.toolbox import Toolbox
from errands.policy.cel.evaluators import Evaluators, use_evaluators
from errands.policy.document import POLICY, CompiledPolicy
from errands.policy.enforcement import RuledWorker
from errands.policy.limits import AgeLimit
from errands.runtime.context import TaskContext


class ManifestWorker(RuledWorker):
    """Works on the tasks of one agent. Made once; `delegates` are the other agents it may use, by capability.

    `evaluators` run scripts of the model, in place of those of the server; whoever gives them closes them.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        manifests: Manifests,
        toolbox: Toolbox,
        model: Model,
        model_name: str,
        mounts: Mounts | None,
        delegates: Mapping[str, Delegate],
        runtime: Mapping[str, str],
        evaluators: Evaluators | None = None,
    ) -> None:
        self.agent = agent
        self.plan = Plan(agent, manifests)
        self.toolbox = toolbox
        self.model = model
        self.model_name = model_name
        self.mounts = mounts
        self.delegates = delegates
        self.runtime = runtime
        self.evaluators = evaluators
        self._manifests = manifests
        self._known: Repertoire | None = None
        self.hears_cancel = toolbox.keeps_state or bool(delegates)

    def function_names(self) -> tuple[set[str], tuple[str, ...]]:
        functions = self._manifests.functions(self.agent)
        discovering = tuple(f"{function.name}_" for function in functions if function.discovers)
        return {function.name for function in functions if not function.discovers}, discovering

    def hold_to(self, policy: CompiledPolicy, elsewhere: Collection[str] = ()) -> None:
        self.plan = Plan(self.agent, self._manifests, policy, elsewhere)
        self._known = None

    def age_limit(self) -> AgeLimit | None:
        plan = self.plan
        is_of_policy = "max_age" in plan.limits_of_policy
        return AgeLimit.of(
            plan.limits,
            step=f"{POLICY if is_of_policy else ''}limits.max_age",
            policy=plan.policy.version if is_of_policy else "",
            told=LIMIT_EXCEEDED,
        )

    def use_evaluators(self, evaluators: Evaluators) -> None:
        self.evaluators = self.evaluators or evaluators

    async def handle(self, ctx: TaskContext) -> None:
        if self.evaluators is not None:
            use_evaluators(self.evaluators)
        turn = TaskTurn(self, ctx)
        if not ctx.is_cancelled:
            await ctx._turn.until_cancelled(turn.work())
        if ctx.is_cancelled:
            await turn.let_go()

    async def repertoire(self) -> Repertoire:
        """All functions, found out once. Raises `BrokenToolError`."""
        if self._known is None:
            functions = await self.toolbox.functions()
            self._known = Repertoire(self.plan, functions, refused=self.plan.unruled(functions))
        return self._known

    def declared(self) -> Repertoire:
        """The functions that are written down, when the others cannot be found out."""
        return Repertoire(self.plan, self._manifests.functions(self.agent))
