"""The rules for agents, tools and mounts, beyond the form of their fields: what one field says about another."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from urllib.parse import urlsplit

from errands.agents.manifests import documents, expressions, functions, schemas
from errands.agents.manifests.documents import Action, Agent, Capability, Document, Mount, Tool
from errands.agents.manifests.expressions import Readable, Role, Roots, check_expression, check_template, filled
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.functions import DISCOVERING, MESSAGE, Function, Manifests, backend, backends
from errands.agents.manifests.patterns import JsonPathError, compile_path
from errands.policy.cel import NameScope, scopes
from errands.policy.cel.syntax import CONTEXT, RECORD, Shape
from errands.policy.steps import CAPABILITY_PHASES, Phase, StepConfig, capability_name

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
#: Capabilities of model providers, and whether they produce files, which need a mount.
MODEL_CAPABILITIES = {
    "web-search": False,
    "image-generation": True,
    "audio-generation": True,
    "video-generation": True,
}

#: A provider and its model; only the scripted model has no provider.
_MODEL = re.compile(r"scripted|[^/\s]+/\S+")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_TEXT = re.compile(r"[^\x00-\x08\x0a-\x1f\x7f]*")
#: Headers of the connection, which the HTTP client sets.
_CONNECTION_HEADERS = frozenset(
    {"connection", "content-length", "host", "transfer-encoding", "upgrade", "te", "trailer"}
)
#: Backends that a tool may configure for all of its actions.
_SHARED_BACKENDS = ("stateless_http", "stateful_session", "openapi", "mcp")
_MOUNT_BACKENDS = ("local", "gcs", "s3")
_PREFIX_TOKENS = ("namespace", "agent", "task")
_UNLOADED = "load it as well; a function in Python is given as A2AServer.from_manifest(..., tools=[...])"


# Steps


class StepRules:
    """The rules for steps anywhere. Subclasses say which calls are possible."""

    def scope(self, phase: Phase) -> NameScope:
        return phase.scope

    def check(
        self,
        steps: Sequence[StepConfig] | None,
        phase: Phase,
        place: Place,
        readable: Callable[[StepConfig], Readable] = lambda step: Readable(),
    ) -> None:
        """`readable` says what the expressions of a step may read."""
        for index, step in enumerate(steps or []):
            self.check_step(step, phase, place / index, readable(step))

    def check_step(self, step: StepConfig, phase: Phase, place: Place, readable: Readable) -> None:
        scope = self.scope(phase)
        transform: Role = "map" if phase.subject == "input" else "value"
        check_expression(step.assert_, scope, place / "assert", "assert", readable)
        check_expression(step.condition, scope, place / "condition", "condition", readable)
        check_expression(step.transform, scope, place / "transform", transform, readable)
        check_template(step.error_message, scope, place / "error_message", readable=readable)
        for key, source in (step.bindings or {}).items():
            check_expression(source, scope, place / "bindings" / key, readable=readable)
        if phase.guards and step.on_fail == "block":
            remedy = "write lock_task, which is the default, or continue"
            (place / "on_fail").error("is block, and a guardrail has no call to block", remedy)
        if phase.guards and step.match is not None:
            (place / "match").error("has no effect in a guardrail", "remove it, or use condition")
        said = {"assert": step.assert_, "invoke": step.invoke, "transform": step.transform}
        found = [name for name, value in said.items() if value is not None]
        if len(found) != 1:
            if found or not place.is_wrong_inside:
                problem = f"has {' and '.join(found)}" if found else "has none of assert, invoke and transform"
                place.error(problem, "write exactly one of assert, invoke and transform in each step")
        elif step.invoke is not None:
            self.check_invoke(step.invoke, step.bindings or {}, place)
        elif step.bindings is not None:
            (place / "bindings").error(f"has no effect beside {found[0]}", "remove it, or use invoke")

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        """Report what is wrong with an invoke."""
        raise NotImplementedError


# Agents


def check_agent(agent: Agent, place: Place, manifests: Manifests) -> None:
    functions.check_resource_name(agent.name, place / "name")
    functions.check_resource_name(agent.namespace, place / "namespace")
    if agent.priority is not None:
        problem = "has no effect: every agent has its own queue"
        (place / "priority").warn(problem, "remove it, or leave it for other runtimes")
    if agent.model is not None and not _MODEL.fullmatch(agent.model):
        remedy = "write provider/model, such as openai/gpt-4o-mini"
        (place / "model").warn(f"is {quoted(agent.model)}, which names no provider", remedy)
    schema, inner = agent.parameters, place / "parameters"
    message = schemas.properties(schema).get(MESSAGE)
    if schema is not None and message is not None and schema["properties"][MESSAGE] is message:
        schemas.check_message(message, inner / "properties" / MESSAGE)
        others = {name: parameter for name, parameter in schema["properties"].items() if name != MESSAGE}
        schema = {**schema, "properties": others}
    schemas.check_schema(schema, inner)
    for index, name in enumerate(agent.model_capabilities or []):
        inner = place / "model_capabilities" / index
        if name in agent.capabilities:
            inner.error(f"is {quoted(name)}, which is also a capability", "rename one of the two")
        elif name not in MODEL_CAPABILITIES:
            remedy = suggestion(name, MODEL_CAPABILITIES, "check it")
            inner.warn(f"is {quoted(name)}, which few providers support", remedy)
        elif MODEL_CAPABILITIES[name] and agent.mount == "none":
            inner.error(f"is {name}, but the agent has no mount for what it makes", "add mount: task")
    _AgentRules(agent, manifests).check_expressions(place)


class _AgentRules(StepRules):
    """The rules for what an agent's expressions read and call."""

    def __init__(self, agent: Agent, manifests: Manifests) -> None:
        self._agent = agent
        self._manifests = manifests
        self._functions = manifests.functions(agent)
        self._prefixes = tuple(function.name + "_" for function in self._functions if function.discovers)
        parameters = (MESSAGE, *schemas.properties(agent.parameters))
        # A capability that names nothing has its own finding, and so has a file that cannot be read.
        is_known = manifests.is_complete and all(
            manifests.capability_functions(agent, ref, capability) for ref, capability in agent.capabilities.items()
        )
        # Only delegations have the ids of tasks.
        tool_record = {name: shape for name, shape in RECORD.items() if name != "task_ids"}
        records = {one.name: tool_record if one.target == "tool" else RECORD for one in self._functions}
        self._context: Shape = {
            **CONTEXT,
            "input": [dict.fromkeys(parameters)],
            "output": [dict.fromkeys((MESSAGE, *(agent.exposes or {})))],
            "capabilities": {"_meta": None, **records} if is_known else None,
        }
        self._arriving = self._readable(dict.fromkeys(parameters))

    def _readable(self, arguments: Shape) -> Readable:
        return Readable(self._context, arguments, self._prefixes)

    def _until_transformed(self, readable: Callable[[StepConfig], Readable]) -> Callable[[StepConfig], Readable]:
        """Return what steps before a call may read: after a transform, its result is the input of the next step."""
        is_transformed = False

        def choose(step: StepConfig) -> Readable:
            nonlocal is_transformed
            found = self._readable(None) if is_transformed else readable(step)
            is_transformed |= step.transform is not None
            return found

        return choose

    def check_expressions(self, place: Place) -> None:
        agent, guardrails = self._agent, place / "guardrails"
        check_template(agent.prompt, scopes.PROMPT, place / "prompt", readable=self._readable(None))
        for key, source in (agent.exposes or {}).items():
            if key == MESSAGE:
                problem = "is the answer itself, which every output has"
                (place / "exposes" / key).error(problem, "expose it under another name")
            check_expression(source, scopes.EXPOSES, place / "exposes" / key, readable=self._arriving)
        arriving = self._until_transformed(lambda step: self._arriving)
        self.check(agent.guardrails.before, Phase.GUARDRAIL_BEFORE, guardrails / "before", arriving)
        self.check(agent.guardrails.after, Phase.GUARDRAIL_AFTER, guardrails / "after", lambda step: self._arriving)
        for ref, capability in agent.capabilities.items():
            self._check_capability(ref, capability, place / "capabilities" / ref)
        seen: dict[str, Function] = {}
        for function in self._functions:
            inner = place / "capabilities" / function.ref
            functions.check_function_name(function.name, inner)
            other = seen.setdefault(function.name, function)
            # Two actions of one tool are reported there.
            if other.ref != function.ref:
                like = f"{other.ref}:{other.action}" if other.action else other.ref
                problem = f"becomes the function {function.name}, like {like}"
                inner.error(problem, "rename one of the two: '-' and '_' are the same in a function's name")
            is_callable = not function.offered or scopes.is_script_name(function.name)
            if agent.script and (function.name == scopes.SCRIPT or not is_callable):
                problem = f"becomes the function {function.name}, which a script cannot call, and script is true"
                inner.error(problem, "rename it, or remove script")

    # Capabilities

    def _check_capability(self, ref: str, capability: Capability, place: Place) -> None:
        agent, manifests = self._agent, self._manifests
        scope = scopes.binding(mount=agent.mount != "none")
        for key, source in (capability.bindings or {}).items():
            check_expression(source, scope, place / "bindings" / key, "binding", self._readable(None))
        before = self._until_transformed(lambda step: self._call_input(ref, step))
        for phase in CAPABILITY_PHASES:
            readable = before if phase.subject == "input" else lambda step: self._call_input(ref, step)
            self.check(getattr(capability, phase.value), phase, place / phase.value, readable)
        found = manifests.find(agent, ref)
        if capability.url is not None:
            check_address(capability.url, place / "url")
            if found is not None:
                problem = "has a url, and is also a tool or an agent of the namespace"
                place.error(problem, "remove the url, or rename it")
            _refuse_actions(ref, capability, place)
        elif isinstance(found, Tool):
            self._check_tool_capability(found, capability, place)
        elif found is not None:
            _check_agent_capability(found, capability, place)
        elif manifests.is_complete:
            problem = f"is neither a tool nor an agent of the namespace {agent.namespace}"
            elsewhere = sorted(namespace for namespace, name in manifests.named if name == ref)
            remedy = f"{ref} is in {' and '.join(elsewhere)}; put both into one namespace" if elsewhere else ""
            known = [name for namespace, name in manifests.named if namespace == agent.namespace]
            place.error(problem, remedy or suggestion(ref, known, _UNLOADED))

    def _call_input(self, ref: str, step: StepConfig) -> Readable:
        """Return what a step around calls may read: the arguments of its functions, if they are declared."""
        around = [
            function
            for function in self._functions
            if function.ref == ref
            and (step.match is None or capability_name(step.match) == capability_name(function.action or ""))
        ]
        if not around or any(function.discovers or function.target == "remote" for function in around):
            return self._readable(None)
        return self._readable(dict.fromkeys(name for function in around for name in function.declared))

    def _check_tool_capability(self, tool: Tool, capability: Capability, place: Place) -> None:
        bindings = capability.bindings or {}
        names = [action.name for action in tool.actions]
        declared = functions.declared_by(tool, None)
        for action in tool.actions:
            declared.update(functions.declared_by(tool, action))
        if not functions.is_discovering(tool):
            listed = [(place / "include" / index, name) for index, name in enumerate(capability.include or [])]
            known = set(map(capability_name, names))
            unknown = [(inner, name) for inner, name in listed if name not in names]
            unknown += [
                (inner, name) for inner, name in _matches(capability, place) if capability_name(name) not in known
            ]
            for inner, name in unknown:
                problem = f"is {quoted(name)}, which is not an action of {tool.name}"
                inner.error(problem, suggestion(name, names, "remove it"))
            _check_bound(bindings, declared, tool.name, place / "bindings")
        # An agent that uses the tool at all must bind them: `include` decides only what the model sees.
        for name, parameter in declared.items():
            if schemas.needs_binding(parameter) and name not in bindings:
                _report_unbound(name, tool.name, place)
        for action in tool.actions:
            if capability.include is None or action.name in capability.include:
                self._check_mount(tool, action, place)

    def _check_mount(self, tool: Tool, action: Action, place: Place) -> None:
        if self._agent.mount != "none" or len(backends(action)) != 1:
            return
        _, document = backend(tool, action)
        expression = document.expression if isinstance(document, documents.Cel) else ""
        if expressions.uses_mount(expression) or any(
            reference.root == "mount" for reference in expressions.references(document)
        ):
            problem = f"uses files, as {tool.name}:{action.name} does, but the agent's mount is none"
            place.error(problem, "add mount: task")

    def check_invoke(self, invoke: str, bindings: dict[str, str], place: Place) -> None:
        agent, inner = self._agent, place / "invoke"
        name, _, action_name = invoke.partition(":")
        if not name or not action_name:
            return inner.error(f"is {quoted(invoke)}", "write TOOL:ACTION, such as crm:find-customer")
        tool = self._manifests.find(agent, name)
        if not isinstance(tool, Tool):
            if self._manifests.is_complete:
                tools = [tool.name for tool in self._manifests.tools if tool.namespace == agent.namespace]
                problem = f"names {quoted(name)}, which is not a tool of the namespace"
                inner.error(problem, suggestion(name, tools, "load the tool as well"))
            return None
        action = next((action for action in tool.actions if action.name == action_name), None)
        if action is None:
            if not functions.is_discovering(tool):
                names = [action.name for action in tool.actions]
                problem = f"names {quoted(action_name)}, which is not an action of {name}"
                inner.error(problem, suggestion(action_name, names, "change the name"))
            return None
        self._check_mount(tool, action, inner)
        declared = functions.declared_by(tool, action)
        if not functions.is_discovering(tool):
            _check_bound(bindings, declared, tool.name, place / "bindings")
        given = bindings.keys() | (agent.capabilities.get(tool.name, Capability()).bindings or {}).keys()
        for name, parameter in declared.items():
            if name not in given and (schemas.is_required(parameter) or schemas.needs_binding(parameter)):
                remedy = f"add bindings: {{{name}: input.{name}}}, or what it should be"
                (place / "bindings").error(f"lacks {name}, which {tool.name} requires", remedy)
        return None


def _check_agent_capability(other: Agent, capability: Capability, place: Place) -> None:
    _refuse_actions(other.name, capability, place)
    bindings = capability.bindings or {}
    declared = schemas.properties(other.parameters)
    _check_bound(bindings, {**declared, MESSAGE: {}}, other.name, place / "bindings")
    for name, parameter in declared.items():
        if name == MESSAGE or name in bindings:
            continue
        if schemas.needs_binding(parameter):
            _report_unbound(name, other.name, place)
        elif schemas.is_required(parameter):
            problem = f"does not bind {name}, which {other.name} requires; the model can only give it a message"
            place.error(problem, f"add bindings: {{{name}: ...}}, or give it a default there")


def _refuse_actions(name: str, capability: Capability, place: Place) -> None:
    found = [place / "include"] if capability.include is not None else []
    for inner in (*found, *(inner for inner, _ in _matches(capability, place))):
        inner.error(f"has no effect: {name} is an agent and has no actions", "remove it")


def _matches(capability: Capability, place: Place) -> list[tuple[Place, str]]:
    """Return the operation that each step is for, if it is for one."""
    return [
        (place / phase.value / index / "match", step.match)
        for phase in CAPABILITY_PHASES
        for index, step in enumerate(getattr(capability, phase.value) or [])
        if step.match is not None
    ]


def _check_bound(bindings: Collection[str], declared: Collection[str], owner: str, place: Place) -> None:
    for name in bindings:
        if name not in declared:
            remedy = suggestion(name, declared, "remove it, or declare it there")
            (place / name).error(f"is not a parameter of {owner}", remedy)


def _report_unbound(name: str, target: str, place: Place) -> None:
    problem = f"does not bind {name}, and {target} requires it"
    place.error(problem, f"add bindings: {{{name}: ...}} with an expression such as context.user.id")


def check_cycles(manifests: Manifests) -> None:
    """Warn about agents that can reach themselves by delegation: allowed, and bounded when they run."""
    done: set[int] = set()
    for first in manifests.agents:
        # Depth first, each agent with the path that led to it.
        stack: list[tuple[Agent, list[Agent]]] = [(first, [])]
        while stack:
            agent, path = stack.pop()
            if id(agent) in done:
                continue
            done.add(id(agent))
            path = [*path, agent]
            for ref, capability in agent.capabilities.items():
                target = manifests.find(agent, ref)
                if not isinstance(target, Agent) or capability.url is not None:
                    continue
                names = [one.name for one in path]
                if ref in names:
                    cycle = " → ".join([*names[names.index(ref) :], ref])
                    place = manifests.place(agent) / "capabilities" / ref
                    place.warn(f"is a cycle: {cycle}", "make sure that it ends; errands limits the depth")
                else:
                    stack.append((target, path))


# Tools


def check_tool(tool: Tool, place: Place) -> None:
    functions.check_resource_name(tool.name, place / "name")
    functions.check_resource_name(tool.namespace, place / "namespace")
    schemas.check_schema(tool.settings, place / "settings", bindable=False)
    schemas.check_nesting(tool.settings, place / "settings")
    schemas.check_schema(tool.parameters, place / "parameters")
    if not tool.actions:
        # One server must provide the actions.
        found = [name for name in DISCOVERING if getattr(tool, name) is not None]
        if len(found) > 1:
            place.error(f"has {' and '.join(found)}, and no actions", "keep one of the two, or write actions")
        elif not found:
            (place / "actions").error("is missing or empty", "add at least one action, or either openapi or mcp")
        else:
            _check_backend(getattr(tool, found[0]), tool, None, place / found[0])
    used = {name for action in tool.actions for name, _ in backends(action)}
    is_known = bool(tool.actions) and all(backends(action) for action in tool.actions)
    for name in _SHARED_BACKENDS:
        if is_known and getattr(tool, name) is not None and name not in used:
            (place / name).warn("is used by no action", f"remove it, or write {name} in an execute")
    seen: dict[str, str] = {}
    for index, action in enumerate(tool.actions):
        inner = place / "actions" / index
        functions.check_resource_name(action.name, inner / "name")
        name = capability_name(action.name)
        if name in seen:
            problem = f"is {quoted(action.name)}, the same function as the action {quoted(seen[name])}"
            (inner / "name").error(problem, "give it another name")
        seen.setdefault(name, action.name)
        schemas.check_schema(action.parameters, inner / "parameters")
        for name in schemas.properties(action.parameters).keys() & schemas.properties(tool.parameters).keys():
            problem = "is also declared for all actions; this one is used here"
            (inner / "parameters" / "properties" / name).warn(problem, "remove one of the two")
        written = [name for name, _ in backends(action)]
        if len(written) == 1:
            name, document = backend(tool, action)
            _check_backend(document, tool, action, inner / "execute" / name)
        elif written or not (inner / "execute").is_wrong_inside:
            problem = f"has {' and '.join(written)}" if written else "has no backend"
            choices = ", ".join(action.execute.__struct_fields__)
            (inner / "execute").error(problem, f"write exactly one of {choices}")


def is_header_name(name: str) -> bool:
    """Return whether a tool may send a header of this name."""
    return _HEADER_NAME.fullmatch(name) is not None and name.lower() not in _CONNECTION_HEADERS


def is_header_text(text: str) -> bool:
    """Return whether it can be the value of one header."""
    return _HEADER_TEXT.fullmatch(text) is not None


def _check_headers(headers: dict[str, str] | None, place: Place) -> None:
    for name, text in (headers or {}).items():
        if not is_header_name(name):
            (place / name).error("is a header that a tool cannot send", "remove it, or use another name")
        elif not is_header_text(filled(text)):
            (place / name).error("contains line breaks or control characters", "write it on one line")


def check_address(url: str, place: Place) -> None:
    try:
        parts = urlsplit(filled(url))
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if is_address and "@" in parts.netloc:
        place.error("contains a user name or a password", "put credentials into headers")
    elif not is_address:
        place.error(f"is {quoted(url)}", "write an address such as https://example.com/api")


def _check_json_path(path: str | None, place: Place) -> None:
    if path is None:
        return None
    if not path.startswith("$"):
        return place.error(f"is {quoted(path)}, not a JSONPath", "begin with $, such as $.data.id")
    try:
        compile_path(path)
    except JsonPathError as error:
        remedy = "write a path such as $.data.id or $.items[*].id"
        place.error(f"is {quoted(path)}, not a JSONPath ({error})", remedy)


def _refuse_template(text: str, place: Place) -> None:
    if "{" in text:
        place.error("contains a brace, but is not a template", "write the whole text")


def _check_backend(document: Document, tool: Tool, action: Action | None, place: Place) -> None:
    """Check the backend of an action, with what the tool says for all of its actions."""
    parameters = functions.declared_by(tool, action)
    roots: Roots = {
        "parameters": parameters,
        "settings": schemas.properties(tool.settings),
        "agent": ["name", "namespace"],
        "mount": ["bucket", "prefix", "backend"],
        "session": [],
    }
    match document:
        case documents.Cel(expression):
            expressions.check_reads(expression, Readable(input=dict.fromkeys(parameters)), (place / "expression").warn)
            check_expression(expression, scopes.TOOL_WITH_MOUNT, place / "expression")
        case documents.StatelessHttp():
            _check_request(document, roots, place)
            _check_json_path(document.response_path, place / "response_path")
        case documents.StatefulSession():
            keys = document.extract or {}
            for key, path in keys.items():
                _check_json_path(path, place / "extract" / key)
            for name, known in (("create", ()), ("execute", keys), ("destroy", keys)):
                if (request := getattr(document, name)) is not None:
                    _check_request(request, {**roots, "session": known}, place / name)
                elif name != "destroy":
                    remedy = f"add {name}: {{method: POST, url: https://example.com/sessions}}"
                    (place / name).error("is missing", remedy)
        case documents.OpenApi(None):
            (place / "url").error("is missing", "add url: https://example.com/openapi.json")
        case documents.OpenApi(str(url)):
            _refuse_template(url, place / "url")
            check_address(url, place / "url")
        case documents.Mcp():
            _check_mcp(document, roots, place)


def _check_request(request: documents.HttpRequest, roots: Roots, place: Place) -> None:
    for name, example in (("method", "GET"), ("url", "https://example.com/orders/{parameters.id}")):
        if getattr(request, name) is None:
            (place / name).error("is missing", f"add {name}: {example}")
    if request.method and "{" not in request.method and request.method not in METHODS:
        (place / "method").error(f"is {quoted(request.method)}", f"write one of {', '.join(METHODS)}")
    if request.url and not request.url.startswith("{"):
        check_address(request.url, place / "url")
    _check_headers(request.headers, place / "headers")
    for name in ("method", "url", "headers", "body"):
        check_template(getattr(request, name), scopes.REQUEST, place / name, roots)


def _check_mcp(mcp: documents.Mcp, roots: Roots, place: Place) -> None:
    if mcp.transport is None:
        return (place / "transport").error("is missing", "add transport: stdio, sse or http")
    if (place / "transport").is_wrong:
        return None
    is_process = mcp.transport == "stdio"
    wanted = "command" if is_process else "url"
    if getattr(mcp, wanted) is None:
        (place / wanted).error(f"is missing, and {mcp.transport} needs it", f"add {wanted}")
    for name in ("url", "headers") if is_process else ("command", "args", "env"):
        if getattr(mcp, name):
            (place / name).error(f"has no effect with {mcp.transport}", "remove it, or change transport")
    for name in ("command", "url"):
        _refuse_template(getattr(mcp, name) or "", place / name)
    if mcp.command is not None and re.search(r"\s-", mcp.command):
        (place / "command").warn("contains arguments, but is run as one name", "put the arguments into args")
    if mcp.url is not None:
        check_address(mcp.url, place / "url")
    _check_headers(mcp.headers, place / "headers")
    for name in ("args", "env", "headers"):
        check_template(getattr(mcp, name), scopes.REQUEST, place / name, roots)
    return None


# Mounts


def check_mount(mount: Mount, place: Place) -> None:
    functions.check_resource_name(mount.name, place / "name")
    found = [name for name in _MOUNT_BACKENDS if getattr(mount, name) is not None]
    if len(found) != 1:
        problem = f"has the backends {' and '.join(found)}" if found else "has no backend"
        place.error(problem, f"write exactly one of {', '.join(_MOUNT_BACKENDS)}")
    for scope in mount.path_prefixes.__struct_fields__:
        prefix, inner = getattr(mount.path_prefixes, scope), place / "path_prefixes" / scope
        for token in re.findall(r"\{([^}]*)\}?", prefix):
            if token not in _PREFIX_TOKENS:
                inner.error(f"has the token {quoted('{' + token + '}')}", "use {namespace}, {agent} and {task}")
        if ".." in prefix.split("/"):
            inner.error("leads out of the mount with ..", "write the path without ..")
        if scope in _PREFIX_TOKENS and f"{{{scope}}}" not in prefix:
            inner.warn(f"lacks {{{scope}}}, so every {scope} has the same files", f"add {{{scope}}}")
