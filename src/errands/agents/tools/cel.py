"""`cel`: an action that is one expression."""

from __future__ import annotations

from errands.agents.manifests.documents import Cel
from errands.agents.tools.actions import configuration
from errands.agents.tools.base import Backend, BrokenToolError, Invocation, ToolError
from errands.policy import cel
from errands.policy.cel import CelError, Variables, scopes
from errands.policy.cel.values import Json

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
