"""The capability script: one expression of the model that calls several of its functions and combines the results.

It is not trusted, so it is evaluated in a child process. It sees its functions and `file()`, and nothing else: no
context, no settings, no credentials. Each of its calls is performed here, like any call of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from errands.agents.manifests.functions import Function
from errands.agents.manifests.schemas import Schema, is_required
from errands.agents.models.base import Offer
from errands.agents.mounts import Files, MountedFile, MountError
from errands.policy.cel import Call, CallFailed, Perform, Session, Suspended, finish, scopes
from errands.policy.cel.child import Request
from errands.policy.cel.evaluators import Evaluators, ask
from errands.policy.cel.values import Json

#: Its only parameter.
EXPRESSION = "expression"

_FILE = frozenset({"path", "mimeType", "size"})
_MAX_LINE = 80

_DESCRIPTION = """\
Evaluates one CEL expression that calls several functions and puts their results together, and returns its value. \
Use it instead of many single calls. A function takes one map of arguments, and a failed call fails the script. \
There are no variables but those of macros such as map, filter, all and exists; lists have last(), maps put(key, value).
Example: [1, 2].map(n, {example}({{'key': n}}))
What may be called:
{functions}"""


async def run_script(
    source: str,
    capabilities: Iterable[str],
    session: Session,
    perform: Perform,
    *,
    mount: bool,
    evaluators: Evaluators,
) -> Json:
    """Return the value of a script, as the model sees it.

    `perform` makes each call, one after the other, and its result goes into the session. What it raises, such as
    `Suspended`, is raised here, and the script can be run again with the same session. Raises `CelError`, whose message
    is for the model.
    """
    scope = scopes.script(capabilities, mount=mount)
    while True:
        request = Request(scope=scope, source=source, session=session, seconds=evaluators.timeout)
        try:
            return _shown(await ask(evaluators, request, hint="do less in one script"))
        except Suspended as suspended:
            await finish(suspended.call, session, perform)


# Files


async def find_file(files: Files, call: Call) -> Json:
    """Perform a call of `file()`. Raises `CallFailed`."""
    try:
        info = await files.info(str(call.arguments[0]))
    except MountError as error:
        raise CallFailed(str(error)) from None
    return {"path": info.path, "mimeType": info.mime_type, "size": info.size}


def _shown(value: Json) -> Json:
    """Replace each file by a line that describes it."""
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if not isinstance(value, dict):
        return value
    if value.keys() == _FILE and isinstance(value["size"], int):
        return str(MountedFile(str(value["path"]), str(value["mimeType"]), value["size"]))
    return {key: _shown(item) for key, item in value.items()}


# The offer to the model


def offer(functions: Sequence[Function], *, mount: bool) -> Offer:
    """Return the script as a function that is offered to the model."""
    lines = [f"- {_signature(function)}: {_first_line(function.description)}" for function in functions]
    if mount:
        lines.append("- file(path): a file of yours, to be passed on as an argument")
    expression = {"type": "string", "description": "The CEL expression."}
    return Offer(
        name=scopes.SCRIPT,
        description=_DESCRIPTION.format(
            example=functions[0].name if functions else "name", functions="\n".join(lines) or "- nothing"
        ),
        parameters={
            "type": "object",
            "properties": {EXPRESSION: expression},
            "required": [EXPRESSION],
            "additionalProperties": False,
        },
    )


def _signature(function: Function) -> str:
    shown: dict[str, Schema] = function.parameters["properties"]
    names = [f"'{name}'{'' if is_required(schema) else '?'}: {_type(schema)}" for name, schema in shown.items()]
    return f"{function.name}({{{', '.join(names)}}})"


def _type(schema: Schema) -> str:
    kind = schema.get("type", "any")
    return kind if isinstance(kind, str) else "any"


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _MAX_LINE else f"{line[:_MAX_LINE]}…"
