"""Write out JSON Schemas that refer to each other: manifests and models take schemas without references."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

from errands.agents.manifests.schemas import VALUES, Schema, is_usable, problem

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
