"""The schemas of parameters and settings: what they must look like, and what is made of them.

A schema is an object with `properties`. A parameter without a `default` is required; `require_binding` is for the
specification alone and is seen neither by JSON Schema nor by the model.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

from errands.agents.manifests import validation
from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.validation import VALUES

Schema = validation.Schema

_FIELDS = ("type", "title", "description", "properties", "required", "additionalProperties")
#: What may be said of a parameter.
_KEYWORDS = frozenset(
    """
    type enum const minLength maxLength pattern format minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    items prefixItems contains minContains maxContains minItems maxItems uniqueItems unevaluatedItems
    properties required additionalProperties patternProperties propertyNames minProperties maxProperties
    dependentRequired dependentSchemas unevaluatedProperties allOf anyOf oneOf not if then else
    title description default examples deprecated readOnly writeOnly contentEncoding contentMediaType contentSchema
    $ref $dynamicRef $comment $defs $schema $id $anchor require_binding
    """.split()  # noqa: SIM905 - it reads as a list of words
)
_TYPES = ("array", "boolean", "integer", "null", "number", "object", "string")
_MESSAGE_FIELDS = ("default", "description", "type", "items")


def properties(schema: Schema | None) -> dict[str, Schema]:
    """The parameters that are declared; one that is declared wrongly, which has its own finding, allows anything."""
    declared = (schema or {}).get("properties")
    if not isinstance(declared, dict):
        return {}
    return {name: one if isinstance(one, dict) else {} for name, one in declared.items()}


def needs_binding(parameter: Schema) -> bool:
    return parameter.get("require_binding") is True


def is_required(parameter: Schema) -> bool:
    return "default" not in parameter


def defaults(declared: dict[str, Schema]) -> dict[str, Any]:
    return {name: parameter["default"] for name, parameter in declared.items() if "default" in parameter}


def object_of(declared: dict[str, Schema], without: Iterable[str] = ()) -> Schema:
    """The JSON Schema of an object with these parameters."""
    shown = {name: parameter for name, parameter in declared.items() if name not in set(without)}
    return {
        "type": "object",
        "properties": {name: _standard(parameter) for name, parameter in shown.items()},
        "required": [name for name, parameter in shown.items() if is_required(parameter)],
        "additionalProperties": False,
    }


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as templates read them: `github.token` is `token` in `github`."""
    root: dict[str, Any] = {}
    for name, value in settings.items():
        *outer, last = name.split(".")
        holder = root
        for step in outer:
            holder = holder.setdefault(step, {})
        holder[last] = value
    return root


def _standard(parameter: Schema) -> Schema:
    return {key: value for key, value in parameter.items() if key != "require_binding"}


# Checking


def check_schema(schema: Schema | None, place: Place, *, bindable: bool = True) -> None:
    """`bindable` is false for settings, which no agent can bind."""
    if schema is None:
        return None
    for key in schema:
        if key not in _FIELDS:
            (place / key).error("is unknown", suggestion(key, _FIELDS, "put parameters below properties"))
    if schema.get("type", "object") != "object":
        (place / "type").error(f"is {quoted(schema['type'])}", "write object")
    if schema.get("additionalProperties", False) is not False:
        (place / "additionalProperties").error("is not false", "declare every parameter, and take this away")
    declared = schema.get("properties", {})
    if not isinstance(declared, dict):
        return (place / "properties").error("is no object", "write NAME: {type: string} for each parameter")
    for name, parameter in declared.items():
        _check_parameter(parameter, place / "properties" / name, bindable)
    return _check_required(schema, place / "required")


def check_nesting(settings: Schema | None, place: Place) -> None:
    """No setting may stand where another has something below it; see `nested`."""
    names = properties(settings)
    for name in names:
        if other := next((other for other in names if name.startswith(f"{other}.")), None):
            problem = f"stands below {other}, which is a setting of its own"
            (place / "properties" / name).error(problem, "rename one of the two")


def _check_required(schema: Schema, place: Place) -> None:
    if "required" not in schema:
        return
    wanted = sorted(name for name, parameter in properties(schema).items() if is_required(parameter))
    if not isinstance(schema["required"], list) or sorted(map(str, schema["required"])) != wanted:
        problem = "does not name exactly the parameters without a default"
        place.error(problem, "take it away: a parameter is required if it has no default")


def _check_parameter(parameter: Any, place: Place, bindable: bool) -> None:
    if not isinstance(parameter, dict):
        return place.error("is no object", "write a JSON Schema such as {type: string}")
    flag = parameter.get("require_binding", False)
    if not isinstance(flag, bool):
        (place / "require_binding").error(f"is {quoted(flag)}", "write true or false")
    elif flag and not bindable:
        (place / "require_binding").error("cannot be true: settings are given by the operator", "take it away")
    elif flag and "default" in parameter:
        (place / "default").warn("is never used, as a binding is required", "take it away, or require_binding")
    for key in parameter.keys() - _KEYWORDS:
        if not key.startswith("x-"):
            close = difflib.get_close_matches(key, _KEYWORDS, 1)
            remedy = f"did you mean {close[0]}?" if close else "take it away; a parameter with a default is optional"
            (place / key).warn("is no keyword of JSON Schema and has no effect", remedy)
    if not _has_references(parameter, place):
        _check_by_metaschema(_standard(parameter), place)
    return None


def _has_references(schema: Any, place: Place) -> bool:
    """Whether a schema needs others. They would have to be fetched, or found again where only a part is used."""
    found = False
    if isinstance(schema, dict):
        for key, inner in schema.items():
            if key.startswith("$"):
                (place / key).error("cannot be used in a manifest", "write the schema out where it is needed")
                found = True
            elif key not in VALUES:
                found |= _has_references(inner, place / key)
    elif isinstance(schema, list):
        for index, inner in enumerate(schema):
            found |= _has_references(inner, place / index)
    return found


def _check_by_metaschema(schema: Schema, place: Place) -> None:
    wrong = False
    for path, message, value in validation.flaws(schema):
        wrong = True
        inner = place
        for step in path:
            inner = inner / step
        if inner.path[-1] == "required" and isinstance(value, bool):
            inner.error("says nothing about a parameter", "take it away: a parameter is required if it has no default")
        elif inner.path[-1] == "type":
            inner.error(f"is {quoted(value)}", f"write one of {', '.join(_TYPES)}")
        else:
            inner.error(f"is no JSON Schema ({message[:200]})", "see json-schema.org, draft 2020-12")
    if wrong or not _patterns_compile(schema, place) or "default" not in schema:
        return
    if problem := validation.problem(schema, schema["default"]):
        (place / "default").error(f"does not fit its own schema ({problem.message[:200]})", "change one of the two")


def _patterns_compile(schema: Any, place: Place) -> bool:
    for pattern in validation.patterns(schema):
        if not validation.is_usable({"pattern": pattern}):
            try:
                re.compile(pattern)
                reason, remedy = "it looks around, refers back or repeats too often", "write it without that"
            except (re.error, OverflowError, RecursionError) as error:
                reason, remedy = str(error), "correct the pattern"
            place.error(f"has the pattern {quoted(pattern)}, which cannot be matched ({reason})", remedy)
            return False
    return True


def check_message(parameter: Any, place: Place) -> None:
    """`message` is part of every input; an agent declares it only to give it a default."""
    if not isinstance(parameter, dict):
        return
    for key in parameter:
        if key not in _MESSAGE_FIELDS:
            problem = "cannot be said of message, which is always a list of content parts"
            (place / key).error(problem, "declare message only to give it a default")
    if parameter.get("type", "array") != "array":
        (place / "type").error(f"is {quoted(parameter['type'])}", "write array, or take it away")
    if "default" in parameter and not _is_message(parameter["default"]):
        example = "write a list of content parts such as [{mimeType: text/plain, text: Hello}]"
        (place / "default").error("is no list of content parts", example)


def _is_message(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in value)
    )
