"""The capability script: one expression of the model that calls several of its functions and combines the results.

It is not trusted, so it is evaluated in a child process. It sees its functions and `file()`, and nothing else: no
context, no settings, no credentials. Each of its calls is performed here, like any call of the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from errands.agents.manifests.functions import Function
from errands.agents.manifests.schemas import is_required, object_of
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
    source: str, capabilities: Iterable[str], session: Session, perform: Perform, *, mount: bool, evaluators: Evaluators
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
    lines = []
    for function in functions:
        described = function.description.strip().partition("\n")[0]
        described = described if len(described) <= _MAX_LINE else f"{described[:_MAX_LINE]}…"
        lines.append(f"- {_signature(function)}: {described}")
    if mount:
        lines.append("- file(path): a file of yours, to be passed on as an argument")
    example = functions[0].name if functions else "name"
    description = _DESCRIPTION.format(example=example, functions="\n".join(lines) or "- nothing")
    expression = {"type": "string", "description": "The CEL expression."}
    return Offer(scopes.SCRIPT, description, object_of({EXPRESSION: expression}))


def _signature(function: Function) -> str:
    parameters = []
    for name, schema in function.parameters["properties"].items():
        kind = schema.get("type")
        parameters.append(f"'{name}'{'' if is_required(schema) else '?'}: {kind if isinstance(kind, str) else 'any'}")
    return f"{function.name}({{{', '.join(parameters)}}})"
