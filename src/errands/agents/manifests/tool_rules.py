"""What a tool must be like beyond the form of its fields."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from errands.agents.manifests.documents import (
    Action,
    Cel,
    Mcp,
    OpenApi,
    Python,
    Request,
    StatefulSession,
    StatelessHttp,
    Tool,
)
from errands.agents.manifests.expressions import Check, check_expression, uses_mount
from errands.agents.manifests.findings import Place, quoted
from errands.agents.manifests.functions import DISCOVERING, backend, backends, declared_by
from errands.agents.manifests.json_path import JsonPathError, compile_path
from errands.agents.manifests.names import check_resource_name
from errands.agents.manifests.path_rules import check_reads
from errands.agents.manifests.schemas import check_nesting, check_schema, properties
from errands.agents.manifests.templates import Roots, check_template, filled, references
from errands.policy.cel import scopes
from errands.policy.steps import capability_name

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
#: These belong to the connection, and to whatever keeps it.
_OURS = frozenset({"connection", "content-length", "host", "transfer-encoding", "upgrade", "te", "trailer"})


def is_header_name(name: str) -> bool:
    """Return whether a tool may send a header of this name."""
    return _HEADER_NAME.fullmatch(name) is not None and name.lower() not in _OURS


def is_header_text(text: str) -> bool:
    """Return whether it can be the value of one header."""
    return _HEADER_TEXT.fullmatch(text) is not None


def check_tool(tool: Tool, place: Place, check: Check) -> None:
    check_resource_name(tool.name, place / "name")
    check_resource_name(tool.namespace, place / "namespace")
    check_schema(tool.settings, place / "settings", bindable=False)
    check_nesting(tool.settings, place / "settings")
    check_schema(tool.parameters, place / "parameters")
    if not tool.actions:
        _check_discovered(tool, place, check)
    _check_unused(tool, place)
    _check_names(tool, place / "actions")
    for index, action in enumerate(tool.actions):
        _check_action(tool, action, place / "actions" / index, check)


def _check_discovered(tool: Tool, place: Place, check: Check) -> None:
    """Without actions, one server must bring them."""
    found = [name for name in DISCOVERING if getattr(tool, name) is not None]
    if len(found) > 1:
        return place.error(f"has {' and '.join(found)}, and no actions", "keep one of the two, or write actions")
    if not found:
        remedy = "add at least one action, or either openapi or mcp"
        return (place / "actions").error("is missing or empty", remedy)
    return _BACKENDS[found[0]](getattr(tool, found[0]), _Templates(tool, None, check), place / found[0])


def _check_unused(tool: Tool, place: Place) -> None:
    used = {name for action in tool.actions for name, _ in backends(action)}
    is_known = bool(tool.actions) and all(backends(action) for action in tool.actions)
    for name in _BACKENDS:
        if is_known and getattr(tool, name) is not None and name not in used:
            (place / name).warn("is used by no action", f"take it away, or write {name} in an execute")


def _check_names(tool: Tool, place: Place) -> None:
    seen: dict[str, str] = {}
    for index, action in enumerate(tool.actions):
        check_resource_name(action.name, place / index / "name")
        name = capability_name(action.name)
        if name in seen:
            problem = f"is {quoted(action.name)}, the same function as the action {quoted(seen[name])}"
            (place / index / "name").error(problem, "give it a name of its own")
        seen.setdefault(name, action.name)


def _check_action(tool: Tool, action: Action, place: Place, check: Check) -> None:
    check_schema(action.parameters, place / "parameters")
    for name in properties(action.parameters).keys() & properties(tool.parameters).keys():
        problem = "is declared for all actions, too; this one is used here"
        (place / "parameters" / "properties" / name).warn(problem, "take one of the two away")
    found = [name for name, _ in backends(action)]
    if not found and (place / "execute").is_wrong_inside:
        return None
    if len(found) != 1:
        problem = f"has {' and '.join(found)}" if found else "has no backend"
        choices = ", ".join(action.execute.__struct_fields__)
        return (place / "execute").error(problem, f"write exactly one of {choices}")
    name, document = backend(tool, action)
    inner = place / "execute" / name
    if isinstance(document, Cel):
        shape = {"context": None, "input": dict.fromkeys(declared_by(tool, action))}
        check_reads(shape, document.expression, (inner / "expression").warn)
        return check_expression(document.expression, scopes.TOOL_WITH_MOUNT, check, inner / "expression")
    if isinstance(document, Python):
        return None
    return _BACKENDS[name](document, _Templates(tool, action, check), inner)


def needs_mount(tool: Tool, action: Action) -> bool:
    """Whether an action uses the files of the agent."""
    if len(backends(action)) != 1:
        return False
    _, document = backend(tool, action)
    if isinstance(document, Cel):
        return uses_mount(document.expression)
    return any(reference.root == "mount" for reference in references(document))


class _Templates:
    """Checks the templates of an action; `session` has the keys of a session, once there is one."""

    def __init__(self, tool: Tool, action: Action | None, check: Check) -> None:
        self._check = check
        self._roots: Roots = {
            "parameters": list(declared_by(tool, action)),
            "settings": list(properties(tool.settings)),
            "agent": ("name", "namespace"),
            "mount": ("bucket", "prefix", "backend"),
        }

    def check(self, value: Any, place: Place, session: Collection[str] = ()) -> None:
        check_template(value, scopes.REQUEST, {**self._roots, "session": session}, self._check, place)


# Backends, with what the tool says for all of its actions


def _check_request(request: Request, templates: _Templates, place: Place, session: Collection[str] = ()) -> None:
    for name in ("method", "url"):
        if getattr(request, name) is None:
            example = "GET" if name == "method" else "https://example.com/orders/{parameters.id}"
            (place / name).error("is missing", f"add {name}: {example}")
    if request.method and "{" not in request.method and request.method not in METHODS:
        (place / "method").error(f"is {quoted(request.method)}", f"write one of {', '.join(METHODS)}")
    if request.url and not request.url.startswith("{"):
        check_address(request.url, place / "url")
    _check_headers(request.headers, place / "headers")
    for name in ("method", "url", "headers", "body"):
        templates.check(getattr(request, name), place / name, session)


def _check_headers(headers: dict[str, str] | None, place: Place) -> None:
    for name, text in (headers or {}).items():
        if not is_header_name(name):
            (place / name).error("is a header that a tool cannot send", "take it away, or use another name")
        elif not is_header_text(filled(text)):
            (place / name).error("has line breaks or control characters in it", "write it on one line")


def check_address(url: str, place: Place) -> None:
    try:
        parts = urlsplit(filled(url))
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if is_address and "@" in parts.netloc:
        place.error("has a user or a password in it", "put credentials into headers")
    elif not is_address:
        place.error(f"is {quoted(url)}", "write an address such as https://example.com/api")


def _check_http(http: StatelessHttp, templates: _Templates, place: Place) -> None:
    _check_request(http, templates, place)
    _check_json_path(http.response_path, place / "response_path")


def _check_json_path(path: str | None, place: Place) -> None:
    if path is None:
        return None
    if not path.startswith("$"):
        return place.error(f"is {quoted(path)}, no JSONPath", "begin with $, such as $.data.id")
    try:
        compile_path(path)
    except JsonPathError as error:
        place.error(f"is {quoted(path)}, no JSONPath ({error})", "write a path such as $.data.id or $.items[*].id")


def _check_session(session: StatefulSession, templates: _Templates, place: Place) -> None:
    for key, path in (session.extract or {}).items():
        _check_json_path(path, place / "extract" / key)
    for name in ("create", "execute"):
        if getattr(session, name) is None:
            (place / name).error("is missing", f"add {name}: {{method: POST, url: https://example.com/sessions}}")
    keys = list(session.extract or {})
    for name, known in (("create", []), ("execute", keys), ("destroy", keys)):
        if (request := getattr(session, name)) is not None:
            _check_request(request, templates, place / name, known)


def _check_openapi(openapi: OpenApi, templates: _Templates, place: Place) -> None:
    if openapi.url is None:
        return (place / "url").error("is missing", "add url: https://example.com/openapi.json")
    _refuse_template(openapi.url, place / "url")
    return check_address(openapi.url, place / "url")


def _check_mcp(mcp: Mcp, templates: _Templates, place: Place) -> None:
    if mcp.transport is None:
        return (place / "transport").error("is missing", "add transport: stdio, sse or http")
    if (place / "transport").is_wrong:
        return None
    wanted, other = ("command", "url") if mcp.transport == "stdio" else ("url", "command")
    if getattr(mcp, wanted) is None:
        (place / wanted).error(f"is missing, and {mcp.transport} needs it", f"add {wanted}")
    if getattr(mcp, other) is not None:
        (place / other).error(f"means nothing to {mcp.transport}", "take it away, or change transport")
    for name in ("headers",) if mcp.transport == "stdio" else ("args", "env"):
        if getattr(mcp, name):
            (place / name).error(f"means nothing to {mcp.transport}", "take it away, or change transport")
    for name in ("command", "url"):
        if (text := getattr(mcp, name)) is not None:
            _refuse_template(text, place / name)
    if mcp.command is not None and re.search(r"\s-", mcp.command):
        (place / "command").warn("has arguments in it, and is started as one name", "put the arguments into args")
    if mcp.url is not None:
        check_address(mcp.url, place / "url")
    _check_headers(mcp.headers, place / "headers")
    for name in ("args", "env", "headers"):
        templates.check(getattr(mcp, name), place / name)
    return None


def _refuse_template(text: str, place: Place) -> None:
    if "{" in text:
        place.error("has a brace, and nothing is filled in there", "write the whole text")


_BACKENDS: dict[str, Callable[[Any, _Templates, Place], None]] = {
    "stateless_http": _check_http,
    "stateful_session": _check_session,
    "openapi": _check_openapi,
    "mcp": _check_mcp,
}
