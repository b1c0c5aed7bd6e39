"""The backend: which operations there are, and a call of one."""

from __future__ import annotations

import asyncio

from errands.agents.manifests.documents import OpenApi
from errands.agents.manifests.findings import suggestion
from errands.agents.tools.actions import configuration
from errands.agents.tools.base import Backend, BrokenToolError, Discovered, Invocation
from errands.agents.tools.exchange import send
from errands.agents.tools.openapi.calling import request
from errands.agents.tools.openapi.document import fetch_document
from errands.agents.tools.openapi.operations import Catalogue, Operation
from errands.policy.cel.values import Json

#: No model chooses among more.
MAX_OPERATIONS = 300
_SHOWN = 50


class OpenApiBackend(Backend):
    async def discover(self, action: str | None) -> list[Discovered]:
        catalogue, wanted = await self._catalogue(action)
        names = catalogue.names if wanted is None else [wanted]
        if len(names) > MAX_OPERATIONS:
            raise BrokenToolError(
                f"{catalogue.document.url} has {len(names)} operations, and at most {MAX_OPERATIONS} can be offered "
                "at once; write actions that each name their operation"
            )
        # A large document takes its time.
        found = await asyncio.to_thread(lambda: [catalogue.operation(name) for name in names])
        if wanted is not None:
            _expect(catalogue, wanted)
        return [operation.discovered for operation in found if operation is not None]

    async def invoke(self, invocation: Invocation) -> Json:
        catalogue, wanted = await self._catalogue(invocation.action)
        operation = _expect(catalogue, invocation.operation or wanted or "")
        made = request(operation, invocation.arguments, self.equipment.settings, key=invocation.call)
        return await (await send(self.equipment, made)).result()

    async def _catalogue(self, action: str | None) -> tuple[Catalogue, str | None]:
        """The operations there are, found out once per process, and the one that the action is."""
        configured = configuration(self.equipment.tool, action, OpenApi)
        url = configured.url or ""

        async def fetch() -> Catalogue:
            return Catalogue(await fetch_document(self.equipment, url))

        return await self.equipment.shared.get(("openapi", url), fetch), configured.operation


def _expect(catalogue: Catalogue, name: str) -> Operation:
    operation = catalogue.operation(name)
    if operation is None:
        problem = "needs a body that cannot be sent" if name in catalogue.names else "is not there"
        remedy = suggestion(name, catalogue.names[:_SHOWN], "name another one")
        raise BrokenToolError(f"{catalogue.document.url}: the operation {name} {problem}; {remedy}")
    return operation
