"""JSON Schemas that refer to each other, written out: manifests and models take schemas without references."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from errands.agents.manifests.schemas import VALUES, Schema, is_usable, problem

#: A few definitions that use each other twice stand for millions; from here on everything is allowed.
_MAX_SCHEMAS = 5_000
_MAX_DEPTH = 24
#: Keywords that only serve references.
_LEFT_OUT = frozenset({"$ref", "$defs", "definitions", "$schema", "$id", "$anchor", "$dynamicRef", "$dynamicAnchor"})
_PATTERNS = frozenset({"pattern", "patternProperties"})
#: Keywords that are about the names for which there is no pattern.
_EXCLUDING = frozenset({"additionalProperties", "unevaluatedProperties"})
#: Keywords whose values have names of somebody's own choice as keys.
_NAMED = frozenset({"properties", "patternProperties", "dependentSchemas"})


def written_out(schema: Schema, root: Schema, *, patterns: bool = True, most: int = _MAX_SCHEMAS) -> Schema:
    """`schema` without references into `root`. What refers to itself or to nothing ends in a schema that takes all.

    So does what comes after `most` schemas. With `patterns=False` patterns are left out, and what excludes names that
    fit none of them.
    """
    left_out = _LEFT_OUT if patterns else _LEFT_OUT | _PATTERNS
    written: Schema = _Writer(root, left_out, most).write(schema, ())
    return written


def usable(schema: Any) -> Schema:
    """A schema of somebody else, without a default that breaks it; one that takes all if no validator can use it."""
    if not isinstance(schema, dict):
        return {}
    if not is_usable(schema):
        description = schema.get("description")
        return {"description": description} if isinstance(description, str) else {}
    if "default" in schema and problem(schema, schema["default"]):
        return {key: value for key, value in schema.items() if key != "default"}
    return schema


class _Writer:
    def __init__(self, root: Schema, left_out: frozenset[str], most: int) -> None:
        self._root = root
        self._left_out = left_out
        self._left = most

    def write(self, schema: Any, inside: tuple[str, ...], depth: int = 0) -> Any:
        """`inside` has the references that led here."""
        if not isinstance(schema, dict):
            return schema
        self._left -= 1
        if self._left < 0 or depth > _MAX_DEPTH:
            return {}
        left_out = self._left_out
        if "patternProperties" in schema and "patternProperties" in left_out:
            left_out |= _EXCLUDING
        own = {key: self._value(key, value, inside, depth + 1) for key, value in schema.items() if key not in left_out}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or reference in inside:
            return own
        target = self.write(self._find(reference), (*inside, reference), depth + 1)
        return {**target, **own} if isinstance(target, dict) else own

    def _value(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key in VALUES:
            return value
        if key in _NAMED and isinstance(value, dict):
            return {name: self.write(inner, inside, depth) for name, inner in value.items()}
        if isinstance(value, list):
            return [self.write(inner, inside, depth) for inner in value]
        return self.write(value, inside, depth)

    def _find(self, reference: str) -> Any:
        """What a JSON Pointer such as `#/$defs/Order` leads to; other documents are not fetched."""
        if not reference.startswith("#"):
            return {}
        found: Any = self._root
        for step in filter(None, reference[1:].split("/")):
            found = found.get(unquote(step).replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
        return found if isinstance(found, dict) else {}
