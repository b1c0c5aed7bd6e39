"""Agents, tools and mounts as they are written: the resources of the Common Agent Specification.

The structs are the only declaration of the fields; those of steps and limits are in `errands.policy`. `reading` takes
types, defaults and examples from here, and the tables of docs/manifests.md are compared with it. What one field says
about another is checked in `rules`.
"""

from __future__ import annotations

import enum
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from errands.policy.limits import Limits
from errands.policy.steps import StepConfig

AGENT_KIND = "commonagents.info/v1beta2/agent"
TOOL_KIND = "commonagents.info/v1beta2/tool"
DESCRIPTOR_KIND = "commonagents.info/v1/bundledescription"

Text = Annotated[str, Meta(min_length=1)]
#: Who shares files: the turns of a task, the tasks of an agent, or the agents of a namespace.
MountScope = Literal["none", "task", "agent", "workspace"]


class Document(msgspec.Struct, frozen=True, omit_defaults=True):
    """A part of a manifest. Unknown fields are errors."""

    #: Fields of the specification that errands does not support yet, as the beginning of a sentence.
    NOT_YET: ClassVar[dict[str, str]] = {}


# Agents


class Capability(Document, frozen=True):
    """How an agent uses a tool or another agent. `"*"` is short for one without any fields."""

    SHORTHAND: ClassVar[str] = "*"
    NOT_YET = {"event_timeout": "tool events are"}

    include: list[Text] | None = None
    bindings: dict[str, Text] | None = None
    before_first: list[StepConfig] | None = None
    before: list[StepConfig] | None = None
    after: list[StepConfig] | None = None
    #: Not in the specification: the address of a remote A2A agent, whose name is the key.
    url: Text | None = None


class Guardrails(Document, frozen=True):
    """Steps around every input and output of an agent."""

    before: list[StepConfig] | None = None
    after: list[StepConfig] | None = None


class Agent(Document, frozen=True):
    """An agent: its prompt, its model, and what it may do."""

    kind: Annotated[str, Meta(examples=[AGENT_KIND])]
    namespace: Annotated[str, Meta(examples=["default"])]
    name: Annotated[str, Meta(examples=["support"])]
    description: Annotated[str, Meta(examples=["Answers questions about orders."])]
    prompt: Annotated[str, Meta(examples=["You help customers with their orders."])]
    model: Text | None = None
    priority: int | None = None
    mount: MountScope = "none"
    limits: Limits = Limits()
    parameters: dict[str, Any] | None = None
    capabilities: dict[str, Capability] = {}
    model_capabilities: list[Text] | None = None
    guardrails: Guardrails = Guardrails()
    exposes: dict[str, Text] | None = None
    #: Not in the specification: whether the model may call several functions in one expression; see
    #: `errands.agents.script`.
    script: bool = False
    #: Not in the specification: the number of answers that completes a task; by default it waits for more input.
    close_after: Annotated[int, Meta(ge=1)] | None = None


# Tools


class Cel(Document, frozen=True):
    expression: Annotated[str, Meta(examples=["input.a + input.b"])]


class HttpRequest(Document, frozen=True):
    """An HTTP request; its strings are templates."""

    method: Text | None = None
    url: Text | None = None
    headers: dict[str, str] | None = None
    body: Any = None


class StatelessHttp(HttpRequest, frozen=True):
    response_path: Text | None = None


class StatefulSession(Document, frozen=True):
    create: HttpRequest | None = None
    extract: dict[str, Text] | None = None
    execute: HttpRequest | None = None
    destroy: HttpRequest | None = None


class OpenApi(Document, frozen=True):
    url: Text | None = None
    #: Not in the specification: the `operationId` of the only operation; by default every operation is an action.
    operation: Text | None = None


class Mcp(Document, frozen=True):
    transport: Literal["stdio", "sse", "http"] | None = None
    command: Text | None = None
    args: list[str] | None = None
    url: Text | None = None
    env: dict[str, str] | None = None
    #: Not in the specification: sent with every request to `url`.
    headers: dict[str, str] | None = None
    #: From a later draft: the only tool of the server to use; by default every tool is an action.
    tool_name: Text | None = None


class Execute(Document, frozen=True):
    """The backend of an action: exactly one of the fields."""

    NOT_YET = {"kubernetes_job": "kubernetes_job is"}

    cel: Cel | None = None
    stateless_http: StatelessHttp | None = None
    stateful_session: StatefulSession | None = None
    openapi: OpenApi | None = None
    mcp: Mcp | None = None


class Python(Document, frozen=True):
    """A function of the program."""

    #: A `errands.agents.tools.python.PythonTool`.
    tool: Any


class Programmed(Execute, frozen=True):
    """The backend of an action that the program defines, which no manifest can name."""

    python: Python | None = None


class Action(Document, frozen=True):
    name: Annotated[str, Meta(examples=["find-order"])]
    description: Annotated[str, Meta(examples=["Finds an order by its number."])]
    execute: Annotated[Execute, Meta(examples=[{"cel": {"expression": "input.a + input.b"}}])]
    parameters: dict[str, Any] | None = None


class Tool(Document, frozen=True):
    """A tool: its settings and actions, and how they are executed."""

    NOT_YET = {"events": "tool events are"}

    kind: Annotated[str, Meta(examples=[TOOL_KIND])]
    namespace: Annotated[str, Meta(examples=["default"])]
    name: Annotated[str, Meta(examples=["crm"])]
    description: Annotated[str, Meta(examples=["Looks up customers and their orders."])]
    synchronous: bool = False
    settings: dict[str, Any] | None = None
    parameters: dict[str, Any] | None = None
    actions: list[Action] = []
    stateless_http: StatelessHttp | None = None
    stateful_session: StatefulSession | None = None
    openapi: OpenApi | None = None
    mcp: Mcp | None = None


# Mounts and bundles


class PathPrefixes(Document, frozen=True):
    """The path of each kind of mount; the tokens are `{namespace}`, `{agent}` and `{task}`."""

    workspace: Text = "/{namespace}/"
    agent: Text = "/{namespace}/{agent}/"
    task: Text = "/{namespace}/{agent}/{task}/"


class Local(Document, frozen=True):
    """Not in the specification: a folder of this machine."""

    path: Annotated[str, Meta(examples=["./files"])]


class Gcs(Document, frozen=True):
    bucket: Annotated[str, Meta(examples=["our-files"])]
    sa: Text | None = None


class S3(Document, frozen=True):
    bucket: Annotated[str, Meta(examples=["our-files"])]
    profile: Text | None = None
    region: Text | None = None


class Mount(Document, frozen=True):
    """The storage for the files of all agents. Its document has no kind."""

    name: Annotated[str, Meta(examples=["files"])]
    path_prefixes: PathPrefixes = PathPrefixes()
    local: Local | None = None
    gcs: Gcs | None = None
    s3: S3 | None = None


class Descriptor(Document, frozen=True, rename={"required_settings": "requiredSettings"}):
    """The description of a bundle."""

    kind: Annotated[str, Meta(examples=[DESCRIPTOR_KIND])]
    name: Annotated[str, Meta(examples=["Support desk"])]
    description: str | None = None
    author: str | None = None
    version: Annotated[str, Meta(examples=["1.0.0"])] | None = None
    url: str | None = None
    required_settings: list[str] | None = None


# The JSON Schema for editors: completion, and marks where a field is misspelled or of the wrong type

_KINDS = {AGENT_KIND: Agent, TOOL_KIND: Tool, DESCRIPTOR_KIND: Descriptor}


def editor_schema() -> dict[str, Any]:
    """Return a JSON Schema, draft 2020-12, that every document of a valid manifest satisfies.

    It is derived from the structs, so it knows their fields and types. What one field says about another, and
    expressions, are checked by `errands agents validate` alone.
    """
    documents = (*_KINDS.values(), Mount)
    references, components = msgspec.json.schema_components(documents)
    definitions: dict[str, Any] = {name: _written(schema) for name, schema in components.items()}
    for kind, document in _KINDS.items():
        # `const` offers the whole text in editors.
        definitions[document.__name__]["properties"]["kind"] = {"const": kind}
    capability = definitions[Capability.__name__]
    definitions[Capability.__name__] = {
        "description": capability.pop("description"),
        "anyOf": [{"const": Capability.SHORTHAND}, capability],
    }
    *of_kinds, mount = references
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A manifest of errands",
        "type": "object",
        "properties": {"kind": {"enum": list(_KINDS)}},
        # Conditions rather than `oneOf`: an editor then completes the fields of the kind that is written.
        "allOf": [
            {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": reference}
            for kind, reference in zip(_KINDS, of_kinds, strict=True)
        ],
        "if": {"not": {"required": ["kind"]}},
        "then": mount,
        "$defs": definitions,
    }


def _written(schema: Any) -> Any:
    """Return a part of a schema as manifests are written: unknown fields are errors, and so are empty ones."""
    if isinstance(schema, enum.Enum):
        return schema.value
    if isinstance(schema, list):
        return [_written(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _written(value) for name, value in schema.items() if name not in ("default", "title")}
    if isinstance(schema.get("default"), str | bool):
        found["default"] = schema["default"]
    if options := [option for option in found.get("anyOf", ()) if option != {"type": "null"}]:
        del found["anyOf"]
        found |= options[0] if len(options) == 1 else {"anyOf": options}
    if "properties" in found:
        found["additionalProperties"] = False
    return found
