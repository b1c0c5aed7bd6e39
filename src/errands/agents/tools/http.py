"""`stateless_http`: an action that is one request."""

from __future__ import annotations

from errands.agents.manifests.documents import StatelessHttp
from errands.agents.tools.actions import configuration
from errands.agents.tools.base import Backend, Invocation
from errands.agents.tools.exchange import send
from errands.agents.tools.requests import build, filling
from errands.policy.cel.values import Json


class HttpBackend(Backend):
    async def invoke(self, invocation: Invocation) -> Json:
        document = configuration(self.equipment.tool, invocation.action, StatelessHttp)
        filled = await filling(
            self.equipment,
            document,
            arguments=invocation.arguments,
            context=invocation.context,
            session=invocation.session,
        )
        answer = await send(self.equipment, await build(filled, document, key=invocation.call))
        return await answer.result(document.response_path)
