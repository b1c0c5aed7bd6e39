"""Validate values against JSON Schemas (draft 2020-12) without holding the event loop.

Everything that errands checks against a schema is checked here. The validator, jsonschema-rs, matches patterns and
compares unique items in linear time, and refuses patterns that would need backtracking. What remains grows with the
size of the value times that of the schema. Where this product is large, a child process does the work and is killed
when it takes too long.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.nodes import from_extra
from errands.errors import ErrandsError
from errands.policy.cel.effort import pattern_size
from errands.policy.cel.evaluators import EvaluationStopped, current_evaluators

# validation

Schema = dict[str, Any]

#: Keywords with values in them, not schemas.
VALUES = frozenset({"default", "enum", "const", "examples", "required", "dependentRequired"})
#: Checks that others may have to wait for; one takes 50 to 200 ns.
_LONG = 1_000_000
#: What comparing with a fraction takes, in checks, and so does `contains` for each item.
_FRACTION = 20
#: Characters that a pattern of length 1 passes over in the time of a check, at the worst.
_PASSED = 4
#: Bytes that a compiled pattern may take.
_PATTERN_BYTES = 1024 * 1024
_METASCHEMA = {"$ref": "https://json-schema.org/draft/2020-12/schema"}


class ValidationStoppedError(ErrandsError):
    """The values could not be checked in the time that there is."""


class Problem(NamedTuple):
    """Where a value breaks its schema, by which keyword, and how."""

    path: list[str | int]
    keyword: str
    message: str


def problem(schema: Schema, value: Any) -> Problem | None:
    """Return the first problem of a value. For values of the operator; see `Parameters` for those of others."""
    return _first(_compiled(schema), value)


def flaws(schema: Schema) -> Iterator[tuple[list[str | int], str, Any]]:
    """Yield what makes this no JSON Schema: path, message and the value there. Patterns are not looked at."""
    for error in _compiled(_METASCHEMA).iter_errors(schema):
        yield error.instance_path, error.message, error.instance


def is_usable(schema: Schema) -> bool:
    """Return whether values can be checked against this schema."""
    try:
        _compiled(schema)
    except ValueError:
        return False
    return True


class Parameters:
    """The schemas of named values. Made once, used for all of them."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = dict(schemas)

    async def problems(self, values: Mapping[str, Any]) -> list[tuple[str, Problem]]:
        """Return the first problem of each value that has one. Raises `ValidationStoppedError`."""
        given = {name: values[name] for name in self._schemas if name in values}
        evaluators = current_evaluators()
        if evaluators is None or self._work(given) <= _LONG:
            return list(self._found(given))
        try:
            found = await evaluators.run(found_in_child, self._schemas, given)
        except EvaluationStopped as error:
            raise ValidationStoppedError(f"the values cannot be checked: {error}; send less at once") from None
        return [(name, Problem(*rest)) for name, rest in found]

    def _found(self, given: Mapping[str, Any]) -> Iterator[tuple[str, Problem]]:
        for name, value in given.items():
            if first := _first(self._validators[name], value):
                yield name, first

    def _work(self, given: Mapping[str, Any]) -> int:
        """Estimate how many checks there are at most; a value has two bytes of JSON or more."""
        size = len(msgspec.json.encode(given))
        return size // 2 * self._weight + size * self._patterns // _PASSED

    @functools.cached_property
    def _validators(self) -> dict[str, Any]:
        return {name: _compiled(schema) for name, schema in self._schemas.items()}

    @functools.cached_property
    def _weight(self) -> int:
        return max(map(_weight, self._schemas.values()), default=0)

    @functools.cached_property
    def _patterns(self) -> int:
        return sum(map(pattern_size, patterns(list(self._schemas.values()))))


def found_in_child(schemas: dict[str, Schema], given: dict[str, Any]) -> list[tuple[str, Problem]]:
    return list(Parameters(schemas)._found(given))


def patterns(schema: Any) -> Iterator[str]:
    """Yield all regular expressions of a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
        schema = [inner for key, inner in schema.items() if key not in VALUES]
    if isinstance(schema, list):
        for inner in schema:
            yield from patterns(inner)


def _compiled(schema: Schema) -> Any:
    """Raises `ValueError` for what is no schema."""
    library = from_extra("jsonschema_rs")
    options = library.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    return library.Draft202012Validator(schema, pattern_options=options, retriever=_no_other_document)


def _no_other_document(address: str) -> Any:
    raise ValueError(f"{address} is not fetched")


def _first(validator: Any, value: Any) -> Problem | None:
    try:
        validator.validate(value)
    except from_extra("jsonschema_rs").ValidationError as error:
        keyword = error.schema_path[-1] if error.schema_path else ""
        return Problem(error.instance_path, str(keyword), error.message)
    except ValueError as error:
        # Lone surrogates, numbers of thousands of digits, hundreds of levels.
        return Problem([], "", f"cannot be checked ({error})")
    return None


def _weight(schema: Any) -> int:
    """Estimate how many checks one value takes: those of one place add up, those of different properties do not."""
    if isinstance(schema, list):
        return sum(map(_weight, schema))
    if not isinstance(schema, dict):
        return _FRACTION if isinstance(schema, float) else 0
    total = 1
    for key, inner in schema.items():
        if key == "properties":
            total += max(map(_weight, inner.values()), default=0)
        elif key == "patternProperties":
            total += sum(map(_weight, inner.values()))
        elif key in ("enum", "const"):
            # Texts and integers are looked up; anything else is compared with each.
            items = inner if key == "enum" else [inner]
            total += sum(
                _FRACTION if isinstance(item, float) else 1 for item in items if not isinstance(item, str | int)
            )
        elif key not in VALUES:
            total += _weight(inner) + (_FRACTION if key == "contains" else 0)
    return total


# schemas

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
    for path, message, value in flaws(schema):
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
    if found := problem(schema, schema["default"]):
        (place / "default").error(f"does not fit its own schema ({found.message[:200]})", "change one of the two")


def _patterns_compile(schema: Any, place: Place) -> bool:
    for pattern in patterns(schema):
        if not is_usable({"pattern": pattern}):
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
