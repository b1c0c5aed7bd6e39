"""What the steps of capabilities and guardrails must be like."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any
from urllib.parse import urlsplit

from errands.agents.manifests import schemas
from errands.agents.manifests.documents import (
    Action,
    Agent,
    Capability,
    Cel,
    Mcp,
    Mount,
    OpenApi,
    Python,
    Request,
    StatefulSession,
    StatelessHttp,
    Tool,
)
from errands.agents.manifests.expressions import (
    Check,
    Role,
    Roots,
    check_expression,
    check_paths,
    check_reads,
    check_template,
    filled,
    references,
    uses_mount,
)
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.functions import (
    DISCOVERING,
    MESSAGE,
    Function,
    Key,
    Library,
    backend,
    backends,
    check_function_name,
    check_resource_name,
    declared_by,
    is_discovering,
)
from errands.agents.manifests.patterns import JsonPathError, compile_path
from errands.agents.manifests.schemas import check_nesting, check_schema, properties
from errands.policy.cel import Scope, scopes
from errands.policy.cel.scopes import binding
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, capability_name

# step_rules


class StepForm:
    """The rules for steps that stand anywhere."""

    def __init__(self, check: Check) -> None:
        self._check = check

    def scope(self, phase: Phase) -> Scope:
        """What the expressions of a phase may use."""
        return phase.scope

    def check(self, steps: list[StepConfig] | None, phase: Phase, place: Place) -> None:
        for index, step in enumerate(steps or []):
            self._check_step(step, phase, place / index)

    def _check_step(self, step: StepConfig, phase: Phase, place: Place) -> None:
        scope = self.scope(phase)
        check_expression(step.assert_, scope, self._check, place / "assert", "assert")
        check_expression(step.condition, scope, self._check, place / "condition", "condition")
        role: Role = "map" if phase.subject == "input" else "value"
        check_expression(step.transform, scope, self._check, place / "transform", role)
        if step.error_message is not None:
            check_template(step.error_message, scope, {}, self._check, place / "error_message")
        for key, source in (step.bindings or {}).items():
            check_expression(source, scope, self._check, place / "bindings" / key)
        if phase.guards:
            self._check_guardrail(step, place)
        self._check_doing(step, place)

    def _check_guardrail(self, step: StepConfig, place: Place) -> None:
        if step.on_fail == "block":
            remedy = "write lock_task, which is the default, or continue"
            (place / "on_fail").error("is block, and a guardrail has no call to block", remedy)
        if step.match is not None:
            (place / "match").error("means nothing in a guardrail", "take it away, or use condition")

    def _check_doing(self, step: StepConfig, place: Place) -> None:
        said = {"assert": step.assert_, "invoke": step.invoke, "transform": step.transform}
        found = [name for name, value in said.items() if value is not None]
        if not found and place.is_wrong_inside:
            return None
        if len(found) != 1:
            problem = f"has {' and '.join(found)}" if found else "has none of assert, invoke and transform"
            return place.error(problem, "write exactly one of assert, invoke and transform in each step")
        if step.invoke is not None:
            return self.check_invoke(step.invoke, step.bindings or {}, place)
        if step.bindings is not None:
            return (place / "bindings").error(f"means nothing beside {found[0]}", "take it away, or use invoke")
        return None

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        """Says what is wrong with an invoke."""
        raise NotImplementedError


class StepRules(StepForm):
    """The rules for the steps of one agent."""

    def __init__(self, agent: Agent, library: Library, check: Check) -> None:
        super().__init__(check)
        self._agent = agent
        self._library = library

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        name, colon, action_name = invoke.partition(":")
        if not colon or not name or not action_name:
            return (place / "invoke").error(f"is {quoted(invoke)}", "write TOOL:ACTION, such as crm:find-customer")
        tool = self._library.tool(self._agent, name)
        if tool is None:
            if self._library.is_complete:
                tools = [tool for namespace, tool in self._library.tools if namespace == self._agent.namespace]
                problem = f"names {quoted(name)}, which is no tool of the namespace"
                (place / "invoke").error(problem, suggestion(name, tools, "load the tool, too"))
            return None
        action = action_of(tool, action_name)
        if action is None and not is_discovering(tool):
            problem = f"names {quoted(action_name)}, which is no action of {name}"
            names = [action.name for action in tool.actions]
            return (place / "invoke").error(problem, suggestion(action_name, names, "change the name"))
        return self._check_arguments(tool, action, bindings, place)

    def _check_arguments(self, tool: Tool, action: Action | None, bindings: dict[str, str], place: Place) -> None:
        """Nobody but the manifest can give what an invoked action needs."""
        if action is None:
            return
        if self._agent.mount == "none" and needs_mount(tool, action):
            problem = f"uses files, as {tool.name}:{action.name} does, and the agent's mount is none"
            (place / "invoke").error(problem, "add mount: task")
        declared = declared_by(tool, action)
        check_declared(bindings, declared, tool, place / "bindings")
        given = bindings.keys() | (self._agent.capabilities.get(tool.name, Capability()).bindings or {}).keys()
        for name, parameter in declared.items():
            if name not in given and (schemas.is_required(parameter) or schemas.needs_binding(parameter)):
                remedy = f"add bindings: {{{name}: input.{name}}}, or what it should be"
                (place / "bindings").error(f"lacks {name}, which {tool.name} needs and nobody else gives", remedy)


def action_of(tool: Tool, name: str) -> Action | None:
    return next((action for action in tool.actions if action.name == name), None)


def check_declared(bindings: dict[str, str], declared: dict[str, schemas.Schema], tool: Tool, place: Place) -> None:
    """Only what a tool declares can be bound; what it discovers when it runs is checked then."""
    if is_discovering(tool):
        return
    for name in bindings:
        if name not in declared:
            problem = f"is no parameter of {tool.name}"
            (place / name).error(problem, suggestion(name, declared, "take it away, or declare it there"))


# capability_rules

_MISSING = "load it, too; a function in Python is given as A2AServer.from_manifest(..., tools=[...])"


class CapabilityRules:
    """The rules for the capabilities of one agent."""

    def __init__(self, agent: Agent, library: Library, check: Check, steps: StepRules) -> None:
        self._agent = agent
        self._library = library
        self._check = check
        self._steps = steps

    def check(self, ref: str, capability: Capability, place: Place) -> None:
        scope = binding(mount=self._agent.mount != "none")
        for key, source in (capability.bindings or {}).items():
            check_expression(source, scope, self._check, place / "bindings" / key, "binding")
        for phase in CAPABILITY_PHASES:
            self._steps.check(getattr(capability, phase.value), phase, place / phase.value)
        if capability.url is not None:
            self._check_remote(ref, capability, place)
        elif tool := self._library.tool(self._agent, ref):
            self._check_tool(tool, capability, place)
        elif other := self._library.agent(self._agent, ref):
            self._check_agent(other, capability, place)
        elif self._library.is_complete:
            problem = f"is neither a tool nor an agent of the namespace {self._agent.namespace}"
            elsewhere = self._library.namespaces_of(ref)
            remedy = f"{ref} is in {' and '.join(elsewhere)}; put both into one namespace" if elsewhere else ""
            place.error(problem, remedy or suggestion(ref, self._library.names(self._agent), _MISSING))

    # Tools

    def _check_tool(self, tool: Tool, capability: Capability, place: Place) -> None:
        names = [action.name for action in tool.actions]
        if not is_discovering(tool):
            for index, name in enumerate(capability.include or []):
                if name not in names:
                    problem = f"is {quoted(name)}, which is no action of {tool.name}"
                    (place / "include" / index).error(problem, suggestion(name, names, "take it away"))
            self._check_matches(tool, capability, names, place)
        declared = {name: one for action in tool.actions for name, one in declared_by(tool, action).items()}
        check_declared(capability.bindings or {}, declared, tool, place / "bindings")
        self._check_bound(tool, capability.bindings or {}, place)
        for action in tool.actions:
            if self._agent.mount == "none" and needs_mount(tool, action) and _includes(capability, action):
                problem = f"uses files, as {tool.name}:{action.name} does, and the agent's mount is none"
                place.error(problem, "add mount: task")

    def _check_matches(self, tool: Tool, capability: Capability, names: list[str], place: Place) -> None:
        known = set(map(capability_name, names))
        for name, index, step in _steps(capability):
            if step.match is not None and capability_name(step.match) not in known:
                problem = f"is {quoted(step.match)}, which is no action of {tool.name}"
                (place / name / index / "match").error(problem, suggestion(step.match, names, "take it away"))

    def _check_bound(self, tool: Tool, bound: dict[str, str], place: Place) -> None:
        """Require bindings for an agent that uses the tool at all: `include` decides only what the model sees."""
        declared = declared_by(tool, None)
        for action in tool.actions:
            declared.update(declared_by(tool, action))
        for name, parameter in declared.items():
            if schemas.needs_binding(parameter) and name not in bound:
                _lacks_binding(name, tool.name, place)

    # Agents

    def _check_agent(self, other: Agent, capability: Capability, place: Place) -> None:
        self._refuse_actions(other.name, capability, place)
        declared = schemas.properties(other.parameters)
        for name in capability.bindings or {}:
            if name not in declared and name != MESSAGE:
                remedy = suggestion(name, [*declared, MESSAGE], "take it away, or declare it there")
                (place / "bindings" / name).error(f"is no parameter of {other.name}", remedy)
        for name, parameter in declared.items():
            if name == MESSAGE or name in (capability.bindings or {}):
                continue
            if schemas.needs_binding(parameter):
                _lacks_binding(name, other.name, place)
            elif schemas.is_required(parameter):
                problem = f"gives {other.name} no {name}, which it needs; the model can only give it a message"
                place.error(problem, f"add bindings: {{{name}: ...}}, or give it a default there")

    def _check_remote(self, ref: str, capability: Capability, place: Place) -> None:
        check_address(capability.url or "", place / "url")
        if ref in self._library.names(self._agent):
            place.error("has a url, and is a tool or an agent of the namespace, too", "take the url away, or rename it")
        self._refuse_actions(ref, capability, place)

    def _refuse_actions(self, name: str, capability: Capability, place: Place) -> None:
        if capability.include is not None:
            (place / "include").error(f"means nothing, as {name} is an agent and has no actions", "take it away")
        for field, index, step in _steps(capability):
            if step.match is not None:
                problem = f"means nothing, as {name} is an agent and has no actions"
                (place / field / index / "match").error(problem, "take it away")


def _includes(capability: Capability, action: Action) -> bool:
    return capability.include is None or action.name in capability.include


def _steps(capability: Capability) -> list[tuple[str, int, StepConfig]]:
    fields = [phase.value for phase in CAPABILITY_PHASES]
    return [(name, index, step) for name in fields for index, step in enumerate(getattr(capability, name) or [])]


def _lacks_binding(name: str, target: str, place: Place) -> None:
    problem = f"does not bind {name}, and {target} requires it"
    place.error(problem, f"add bindings: {{{name}: ...}} with an expression such as context.user.id")


# agent_rules

#: A provider and its model; only the scripted model has no provider.
_MODEL = re.compile(r"scripted|[^/\s]+/\S+")

#: Given by model providers; those that make something need a place for it.
MODEL_CAPABILITIES = {
    "web-search": False,
    "image-generation": True,
    "audio-generation": True,
    "video-generation": True,
}


def check_agent(agent: Agent, place: Place, library: Library, check: Check) -> None:
    check_resource_name(agent.name, place / "name")
    check_resource_name(agent.namespace, place / "namespace")
    check_template(agent.prompt, scopes.PROMPT, {}, check, place / "prompt")
    if agent.priority is not None:
        problem = "has no effect: every agent has a queue of its own"
        (place / "priority").warn(problem, "take it away, or leave it for other runtimes")
    if agent.model is not None and not _MODEL.fullmatch(agent.model):
        remedy = "write provider/model, such as openai/gpt-4o-mini"
        (place / "model").warn(f"is {quoted(agent.model)}, which names no provider", remedy)
    _check_parameters(agent, place / "parameters")
    _check_model_capabilities(agent, place / "model_capabilities")
    _check_exposes(agent, place / "exposes", check)
    steps = StepRules(agent, library, check)
    steps.check(agent.guardrails.before, Phase.GUARDRAIL_BEFORE, place / "guardrails" / "before")
    steps.check(agent.guardrails.after, Phase.GUARDRAIL_AFTER, place / "guardrails" / "after")
    capabilities = CapabilityRules(agent, library, check, steps)
    for ref, capability in agent.capabilities.items():
        capabilities.check(ref, capability, place / "capabilities" / ref)
    functions = library.functions(agent)
    _check_functions(functions, place / "capabilities")
    if agent.script:
        _check_script(functions, place / "capabilities")
    check_paths(agent, functions, library, place)


def _check_parameters(agent: Agent, place: Place) -> None:
    schema = agent.parameters
    message = schemas.properties(schema).get(MESSAGE)
    if schema is not None and message is not None and schema["properties"][MESSAGE] is message:
        schemas.check_message(message, place / "properties" / MESSAGE)
        others = {name: parameter for name, parameter in schema["properties"].items() if name != MESSAGE}
        schema = {**schema, "properties": others}
    schemas.check_schema(schema, place)


def _check_model_capabilities(agent: Agent, place: Place) -> None:
    for index, name in enumerate(agent.model_capabilities or []):
        inner = place / index
        if name in agent.capabilities:
            inner.error(f"is {quoted(name)}, which stands among the capabilities, too", "rename one of the two")
        elif name not in MODEL_CAPABILITIES:
            inner.warn(f"is {quoted(name)}, which few providers know", suggestion(name, MODEL_CAPABILITIES, "check it"))
        elif MODEL_CAPABILITIES[name] and agent.mount == "none":
            inner.error(f"is {name}, and there is no mount for what it makes", "add mount: task")


def _check_exposes(agent: Agent, place: Place, check: Check) -> None:
    for key, source in (agent.exposes or {}).items():
        if key == MESSAGE:
            (place / key).error("is what the agent says, in every output", "expose it under another name")
        check_expression(source, scopes.EXPOSES, check, place / key)


def _check_functions(functions: list[Function], place: Place) -> None:
    seen: dict[str, Function] = {}
    for function in functions:
        inner = place / function.ref
        check_function_name(function.name, inner)
        other = seen.setdefault(function.name, function)
        # Two actions of one tool have their finding there.
        if other.ref != function.ref:
            problem = f"becomes the function {function.name}, like {_told(other)}"
            inner.error(problem, "rename one of the two: '-' and '_' are the same in a function's name")


def _check_script(functions: list[Function], place: Place) -> None:
    for function in functions:
        if function.name == scopes.SCRIPT or (function.offered and not scopes.is_script_name(function.name)):
            problem = f"becomes the function {function.name}, which a script cannot call, and script is true"
            (place / function.ref).error(problem, "rename it, or take script away")


def _told(function: Function) -> str:
    return f"{function.ref}:{function.action}" if function.action else function.ref


# cycles


def check_cycles(library: Library) -> None:
    done: set[Key] = set()
    for key in library.agents:
        _follow(key, done, library)


def _follow(key: Key, done: set[Key], library: Library) -> None:
    """Depth first; beside each agent stands how we came to it."""
    stack: list[tuple[Key, list[Key]]] = [(key, [])]
    while stack:
        current, path = stack.pop()
        if current in done:
            continue
        done.add(current)
        agent = library.agents[current].document
        for ref, capability in agent.capabilities.items():
            target = (agent.namespace, ref)
            if target not in library.agents or capability.url is not None:
                continue
            if target in [*path, current]:
                names = [name for _, name in [*path, current, target]]
                round_trip = " → ".join(names[names.index(ref) :])
                place = library.agents[current].place / "capabilities" / ref
                place.warn(f"comes back to itself: {round_trip}", "see that it ends; errands bounds the depth")
            else:
                stack.append((target, [*path, current]))


# tool_rules

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


# mount_rules

BACKENDS = ("local", "gcs", "s3")
_TOKENS = ("namespace", "agent", "task")


def check_mount(mount: Mount, place: Place) -> None:
    check_resource_name(mount.name, place / "name")
    found = [name for name in BACKENDS if getattr(mount, name) is not None]
    if len(found) != 1:
        problem = f"has the backends {' and '.join(found)}" if found else "has no backend"
        place.error(problem, f"write exactly one of {', '.join(BACKENDS)}")
    for scope in mount.path_prefixes.__struct_fields__:
        _check_prefix(getattr(mount.path_prefixes, scope), scope, place / "path_prefixes" / scope)


def _check_prefix(prefix: str, scope: str, place: Place) -> None:
    for token in re.findall(r"\{([^}]*)\}?", prefix):
        if token not in _TOKENS:
            place.error(f"has the token {quoted('{' + token + '}')}", "use {namespace}, {agent} and {task}")
    if ".." in prefix.split("/"):
        place.error("leads out of the mount with ..", "write the path without ..")
    if scope in _TOKENS and f"{{{scope}}}" not in prefix:
        place.warn(f"lacks {{{scope}}}, so every {scope} has the same files", f"add {{{scope}}}")
