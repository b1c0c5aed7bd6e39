"""Validate values against JSON Schemas (draft 2020-12) without holding the event loop.

Everything that errands checks against a schema is checked here. The validator, jsonschema-rs, matches patterns and
compares unique items in linear time, and refuses patterns that would need backtracking. What remains grows with the
size of the value times that of the schema. Where this product is large, a child process does the work and is killed
when it takes too long.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from errands.agents.manifests.extra import from_extra
from errands.errors import ErrandsError
from errands.policy.cel.effort import pattern_size
from errands.policy.cel.evaluators import EvaluationStopped, current_evaluators

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
