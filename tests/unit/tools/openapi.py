"""Tools that are discovered from an OpenAPI document, which a service of the test serves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from errands.agents.manifests import Function
from errands.agents.tools.toolbox import Toolbox
from tests.unit.tools.support import Json, Service, calling, manifests, tool, toolbox

ID = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
SECURITY = {
    "properties": {
        name: {"type": "string", "format": "password", "default": ""}
        for name in ("shopKey", "queryKey", "token", "login", "authorization")
    }
}


def discovering(folder: Path, url: str, capability: Json | None = None, **fields: Any) -> Any:
    document = tool("pets", openapi={"url": f"{url}/openapi.json"}, **fields)
    return manifests(folder, document, capabilities={"pets": capability or "*"})


async def functions(box: Toolbox) -> dict[str, Function]:
    return {function.name: function for function in await box.functions()}


def serving(service: Service, document: Any, *, kind: str = "application/json") -> None:
    service.sends((document if isinstance(document, str) else json.dumps(document)).encode(), kind)


def operation(**fields: Any) -> Json:
    return {"openapi": "3.0.3", "paths": {"/things/{id}": {"post": {"operationId": "make", **fields}}}}


async def declared(folder: Path, service: Service, document: Any) -> Json:
    """The parameters that the function `make` has."""
    serving(service, document)
    found = await functions(toolbox(discovering(folder, service.url)))
    return found["pets_make"].declared


async def called(folder: Path, service: Service, document: Any, arguments: Json, **options: Any) -> str:
    """What was asked for, when the function `make` is called."""
    serving(service, document)
    async with calling(toolbox(discovering(folder, service.url), **options)) as caller:
        await caller.call("pets_make", arguments)
    return service.seen[-1].target


def of_query(**fields: Any) -> Json:
    return {"name": "q", "in": "query", **fields}
