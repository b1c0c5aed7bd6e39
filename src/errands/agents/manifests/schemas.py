"""JSON Schemas (draft 2020-12) of parameters and settings: checked when they are loaded, and used to validate values.

A schema is an object with `properties`. A parameter without a `default` is required; `require_binding` belongs to the
specification and is seen neither by JSON Schema nor by the model.

Validating values never holds the event loop for long. The validator, jsonschema-rs, matches patterns and compares
unique items in linear time, and refuses patterns that need backtracking. The rest grows with the size of the value
times that of the schema. Where this product is large, a child process validates and is killed when it takes too long.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from errands.agents.manifests.findings import Place, quoted, suggestion
from errands.agents.manifests.patterns import pattern_size
from errands.agents.manifests.yaml_nodes import from_extra
from errands.errors import ErrandsError
from errands.policy.cel.evaluators import EvaluationStopped, current_evaluators

Schema = dict[str, Any]

#: Keywords that contain values, not schemas.
VALUES = frozenset({"default", "enum", "const", "examples", "required", "dependentRequired"})

_FIELDS = ("type", "title", "description", "properties", "required", "additionalProperties")
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
_METASCHEMA = {"$ref": "https://json-schema.org/draft/2020-12/schema"}

#: The product of the sizes of values and schemas, in bytes, up to which values are validated in the event loop.
_MAX_PRODUCT = 1_000_000
#: Bytes that a compiled pattern may take.
_PATTERN_BYTES = 1024 * 1024

#: A few definitions that use each other twice expand to millions; from here on everything is allowed.
_MAX_SCHEMAS = 5_000
_MAX_DEPTH = 24
#: Keywords that only serve references.
_REFERRING = frozenset({"$ref", "$defs", "definitions", "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor"})
_PATTERNS = frozenset({"pattern", "patternProperties"})
#: Keywords about the properties that match no pattern.
_EXCLUDING = frozenset({"additionalProperties", "unevaluatedProperties"})
#: Keywords whose values have names as keys.
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})


# Parameters


def properties(schema: Schema | None) -> dict[str, Schema]:
    """Return the declared parameters; one that is declared wrongly, which has its own finding, allows anything."""
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
    """Return the JSON Schema of an object with these parameters."""
    shown = {name: parameter for name, parameter in declared.items() if name not in set(without)}
    return {
        "type": "object",
        "properties": {name: _standard(parameter) for name, parameter in shown.items()},
        "required": [name for name, parameter in shown.items() if is_required(parameter)],
        "additionalProperties": False,
    }


def nested(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as templates read them: `github.token` is `token` in `github`."""
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


# Validating values


class ValidationStoppedError(ErrandsError):
    """The values could not be validated in time."""


class SchemaProblem(NamedTuple):
    """Where a value violates its schema, by which keyword, and how."""

    path: list[str | int]
    keyword: str
    message: str


def problem(schema: Schema, value: Any) -> SchemaProblem | None:
    """Return the first problem of a value of the operator; see `Parameters` for the values of others."""
    return _first_problem(_validator(schema), value)


def is_usable(schema: Schema) -> bool:
    """Return whether values can be validated against this schema."""
    try:
        _validator(schema)
    except ValueError:
        return False
    return True


class Parameters:
    """Validates named values against their schemas. Made once, used for all values."""

    def __init__(self, schemas: Mapping[str, Schema]) -> None:
        self._schemas = dict(schemas)

    async def problems(self, values: Mapping[str, Any]) -> list[tuple[str, SchemaProblem]]:
        """Return the first problem of each value that has one. Raises `ValidationStoppedError`."""
        given = {name: values[name] for name in self._schemas if name in values}
        evaluators = current_evaluators()
        if evaluators is None or len(msgspec.json.encode(given)) * self._size <= _MAX_PRODUCT:
            return self.problems_here(given)
        try:
            found = await evaluators.run(problems_in_child, self._schemas, given)
        except EvaluationStopped as error:
            raise ValidationStoppedError(f"the values cannot be checked: {error}; send less at once") from None
        return [(name, SchemaProblem(*rest)) for name, rest in found]

    def problems_here(self, given: Mapping[str, Any]) -> list[tuple[str, SchemaProblem]]:
        """Return the same without a bound on the time."""
        found = ((name, _first_problem(self._validators[name], value)) for name, value in given.items())
        return [(name, first) for name, first in found if first is not None]

    @functools.cached_property
    def _validators(self) -> dict[str, Any]:
        return {name: _validator(schema) for name, schema in self._schemas.items()}

    @functools.cached_property
    def _size(self) -> int:
        """The size of the schemas, in which a pattern counts as if its repetitions were written out."""
        patterns = _patterns(list(self._schemas.values()))
        return len(msgspec.json.encode(self._schemas)) + sum(map(pattern_size, patterns))


def problems_in_child(schemas: dict[str, Schema], given: dict[str, Any]) -> list[tuple[str, SchemaProblem]]:
    return Parameters(schemas).problems_here(given)


def _validator(schema: Schema) -> Any:
    """Raises `ValueError` for an invalid schema."""
    library = from_extra("jsonschema_rs")
    options = library.RegexOptions(size_limit=_PATTERN_BYTES, dfa_size_limit=_PATTERN_BYTES)
    return library.Draft202012Validator(schema, pattern_options=options, retriever=_refuse_to_fetch)


def _refuse_to_fetch(address: str) -> Any:
    raise ValueError(f"{address} is not fetched")


def _first_problem(validator: Any, value: Any) -> SchemaProblem | None:
    try:
        validator.validate(value)
    except from_extra("jsonschema_rs").ValidationError as error:
        keyword = error.schema_path[-1] if error.schema_path else ""
        return SchemaProblem(error.instance_path, str(keyword), error.message)
    except ValueError as error:
        # Lone surrogates, numbers with thousands of digits, hundreds of nested levels.
        return SchemaProblem([], "", f"cannot be checked ({error})")
    return None


def _patterns(schema: Any) -> Iterator[str]:
    """Yield all regular expressions of a schema."""
    if isinstance(schema, dict):
        if isinstance(schema.get("pattern"), str):
            yield schema["pattern"]
        if isinstance(schema.get("patternProperties"), dict):
            yield from schema["patternProperties"]
        schema = [inner for key, inner in schema.items() if key not in VALUES]
    if isinstance(schema, list):
        for inner in schema:
            yield from _patterns(inner)


# Schemas of others, written out without references


def pointed(root: Any, reference: str) -> Any:
    """Return what a reference such as `#/$defs/Order` points to; None if it points to nothing in this document."""
    if not reference.startswith("#"):
        return None
    node = root
    for step in filter(None, reference[1:].split("/")):
        name = unquote(step).replace("~1", "/").replace("~0", "~")
        if isinstance(node, dict):
            node = node.get(name)
        elif isinstance(node, list) and name.isdigit() and int(name) < len(node):
            node = node[int(name)]
        else:
            return None
    return node


def usable(schema: Any) -> Schema:
    """Return a foreign schema without a default that violates it; one that allows everything if it is invalid."""
    if not isinstance(schema, dict):
        return {}
    if not is_usable(schema):
        description = schema.get("description")
        return {"description": description} if isinstance(description, str) else {}
    if "default" in schema and problem(schema, schema["default"]):
        return {key: value for key, value in schema.items() if key != "default"}
    return schema


def written_out(schema: Schema, root: Schema, *, patterns: bool = True, max_schemas: int = _MAX_SCHEMAS) -> Schema:
    """Return `schema` without references into `root`.

    A reference to itself or to nothing becomes a schema that allows everything, and so does everything after
    `max_schemas` schemas. With `patterns=False`, patterns are left out, and what excludes names that match none of
    them.
    """
    removed = _REFERRING if patterns else _REFERRING | _PATTERNS
    left = max_schemas

    def write(schema: Any, inside: tuple[str, ...], depth: int) -> Any:
        """`inside` has the references that led here."""
        nonlocal left
        if not isinstance(schema, dict):
            return schema
        left -= 1
        if left < 0 or depth > _MAX_DEPTH:
            return {}
        dropped = removed | _EXCLUDING if not patterns and "patternProperties" in schema else removed
        own: Schema = {}
        for key, value in schema.items():
            if key in dropped:
                continue
            if key in VALUES:
                own[key] = value
            elif key in _NAMED and isinstance(value, dict):
                own[key] = {name: write(inner, inside, depth + 1) for name, inner in value.items()}
            elif isinstance(value, list):
                own[key] = [write(inner, inside, depth + 1) for inner in value]
            else:
                own[key] = write(value, inside, depth + 1)
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in inside:
            return own
        target = write(pointed(root, reference), (*inside, reference), depth + 1)
        return {**target, **own} if isinstance(target, dict) else own

    written: Schema = write(schema, (), 0)
    return written


# Rules for schemas


def check_schema(schema: Schema | None, place: Place, *, bindable: bool = True) -> None:
    """Report what is wrong with a schema. `bindable` is false for settings, which agents cannot bind."""
    if schema is None:
        return
    for key in schema:
        if key not in _FIELDS:
            (place / key).error("is unknown", suggestion(key, _FIELDS, "put parameters below properties"))
    if schema.get("type", "object") != "object":
        (place / "type").error(f"is {quoted(schema['type'])}", "write object")
    if schema.get("additionalProperties", False) is not False:
        (place / "additionalProperties").error("is not false", "declare every parameter, and remove this")
    declared = schema.get("properties", {})
    if not isinstance(declared, dict):
        (place / "properties").error("is not an object", "write NAME: {type: string} for each parameter")
        return
    for name, parameter in declared.items():
        _check_parameter(parameter, place / "properties" / name, bindable)
    if "required" in schema:
        wanted = sorted(name for name, parameter in properties(schema).items() if is_required(parameter))
        if not isinstance(schema["required"], list) or sorted(map(str, schema["required"])) != wanted:
            problem = "does not name exactly the parameters without a default"
            (place / "required").error(problem, "remove it: a parameter is required if it has no default")


def check_nesting(settings: Schema | None, place: Place) -> None:
    """Report a setting below another setting; see `nested`."""
    names = properties(settings)
    for name in names:
        if other := next((other for other in names if name.startswith(f"{other}.")), None):
            problem = f"is below {other}, which is itself a setting"
            (place / "properties" / name).error(problem, "rename one of the two")


def check_message(parameter: Schema, place: Place) -> None:
    """`message` is part of every input; an agent declares it only to give it a default."""
    for key in parameter:
        if key not in _MESSAGE_FIELDS:
            problem = "cannot be set for message, which is always a list of content parts"
            (place / key).error(problem, "declare message only to give it a default")
    if parameter.get("type", "array") != "array":
        (place / "type").error(f"is {quoted(parameter['type'])}", "write array, or remove it")
    default = parameter.get("default", [{"text": ""}])
    is_message = isinstance(default, list) and all(
        isinstance(part, dict) and isinstance(part.get("text"), str) for part in default
    )
    if not is_message or not default:
        example = "write a list of content parts such as [{mimeType: text/plain, text: Hello}]"
        (place / "default").error("is not a list of content parts", example)


def _check_parameter(parameter: Any, place: Place, bindable: bool) -> None:
    if not isinstance(parameter, dict):
        return place.error("is not an object", "write a JSON Schema such as {type: string}")
    flag = parameter.get("require_binding", False)
    if not isinstance(flag, bool):
        (place / "require_binding").error(f"is {quoted(flag)}", "write true or false")
    elif flag and not bindable:
        (place / "require_binding").error("cannot be true: settings are given by the operator", "remove it")
    elif flag and "default" in parameter:
        (place / "default").warn("is never used because a binding is required", "remove it, or require_binding")
    for key in parameter.keys() - _KEYWORDS:
        if not key.startswith("x-"):
            close = difflib.get_close_matches(key, _KEYWORDS, 1)
            remedy = f"did you mean {close[0]}?" if close else "remove it; a parameter with a default is optional"
            (place / key).warn("is not a keyword of JSON Schema and has no effect", remedy)
    if _has_references(parameter, place):
        return None
    schema = _standard(parameter)
    errors = list(_validator(_METASCHEMA).iter_errors(schema))
    for error in errors:
        inner = functools.reduce(lambda above, step: above / step, error.instance_path, place)
        if inner.path[-1] == "required" and isinstance(error.instance, bool):
            remedy = "remove it: a parameter is required if it has no default"
            inner.error("does not apply to a single parameter", remedy)
        elif inner.path[-1] == "type":
            inner.error(f"is {quoted(error.instance)}", f"write one of {', '.join(_TYPES)}")
        else:
            inner.error(f"is not a valid JSON Schema ({error.message[:200]})", "see json-schema.org, draft 2020-12")
    for pattern in _patterns(schema) if not errors else ():
        if not is_usable({"pattern": pattern}):
            try:
                re.compile(pattern)
                reason, remedy = "it has look-around, back-references or too many repetitions", "write it without them"
            except (re.error, OverflowError, RecursionError) as invalid:
                reason, remedy = str(invalid), "correct the pattern"
            return place.error(f"has the pattern {quoted(pattern)}, which cannot be matched ({reason})", remedy)
    if not errors and "default" in schema and (found := problem(schema, schema["default"])):
        (place / "default").error(f"does not fit its own schema ({found.message[:200]})", "change one of the two")
    return None


def _has_references(schema: Any, place: Place) -> bool:
    """Report references: they would have to be fetched, or to be found again where only a part is used."""
    found = False
    if isinstance(schema, dict | list):
        for key, inner in schema.items() if isinstance(schema, dict) else enumerate(schema):
            if isinstance(key, str) and key.startswith("$"):
                (place / key).error("cannot be used in a manifest", "write the schema out where it is needed")
                found = True
            elif key not in VALUES:
                found |= _has_references(inner, place / key)
    return found
