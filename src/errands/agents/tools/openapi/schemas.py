"""Schemas of a document written out, as JSON Schema that a model and a validator understand."""

from __future__ import annotations

from typing import Any

from errands.agents.manifests.schemas import Schema
from errands.agents.tools.openapi.document import Document
from errands.agents.tools.references import usable

#: Schemas that one operation is made of, written out, and all of them; what comes after them is not described.
MAX_SCHEMAS = 2_000
MAX_SCHEMAS_IN_ALL = 100_000
_MAX_DEPTH = 12

_COPIED = frozenset(
    """
    type title description format default enum const minimum maximum exclusiveMinimum exclusiveMaximum multipleOf
    minLength maxLength minItems maxItems uniqueItems minProperties maxProperties
    """.split()  # noqa: SIM905 - it reads as a list of words
)
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE = ("items", "additionalProperties", "not")


class Schemas:
    """Writes out the schemas of one operation. What it does not know is left out, patterns as well.

    A pattern comes from somebody else and would run here; the service looks at it in any case.
    """

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_SCHEMAS

    def parameter(self, schema: Any, description: Any = None) -> Schema:
        """The schema of one parameter; anything at all is allowed by one that no validator can use."""
        built = self.plain(schema)
        if isinstance(description, str) and description:
            built["description"] = description
        return usable(built)

    def plain(self, schema: Any, trail: tuple[str, ...] = ()) -> Schema:
        """Written out; a schema inside of itself is not repeated."""
        self._left -= 1
        self._document.written_out += 1
        is_too_much = self._left < 0 or self._document.written_out > MAX_SCHEMAS_IN_ALL
        if not isinstance(schema, dict) or is_too_much or len(trail) > _MAX_DEPTH:
            return {}
        reference = schema.get("$ref")
        if isinstance(reference, str):
            beside = {key: schema[key] for key in ("description", "default") if key in schema}
            found = {} if reference in trail else self.plain(self._document.at(reference), (*trail, reference))
            return {**found, **beside}
        built = {key: value for key, value in schema.items() if key in _COPIED}
        self._properties(schema, built, trail)
        for key in _LISTS:
            if isinstance(schema.get(key), list):
                built[key] = [self.plain(inner, trail) for inner in schema[key]]
        for key in _SINGLE:
            if isinstance(schema.get(key), dict):
                built[key] = self.plain(schema[key], trail)
            elif isinstance(schema.get(key), bool):
                built[key] = schema[key]
        return _modern(built, nullable=schema.get("nullable") is True)

    def _properties(self, schema: Schema, built: Schema, trail: tuple[str, ...]) -> None:
        """Those that are sent."""
        declared = schema.get("properties")
        named = declared if isinstance(declared, dict) else {}
        unsent = {name for name, one in named.items() if self._document.resolved(one).get("readOnly")}
        if named:
            built["properties"] = {name: self.plain(one, trail) for name, one in named.items() if name not in unsent}
        if isinstance(required := schema.get("required"), list):
            built["required"] = [name for name in required if isinstance(name, str) and name not in unsent]


def _modern(schema: Schema, *, nullable: bool) -> Schema:
    """What OpenAPI 3.0 says in its own way."""
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(schema.get(exclusive), bool) and schema.pop(exclusive) and bound in schema:
            schema[exclusive] = schema.pop(bound)
    if nullable and isinstance(schema.get("type"), str):
        schema["type"] = [schema["type"], "null"]
        if isinstance(schema.get("enum"), list) and None not in schema["enum"]:
            schema["enum"] = [*schema["enum"], None]
    return schema


def as_object(schema: Schema) -> Schema | None:
    """A schema as one object, with the properties of its `allOf`; None when it is something else."""
    kind = schema.get("type", "object")
    if "anyOf" in schema or "oneOf" in schema or "object" not in (kind if isinstance(kind, list) else [kind]):
        return None
    properties: dict[str, Any] = dict(schema.get("properties", {}))
    required: list[str] = list(schema.get("required", []))
    for part in schema.get("allOf", []):
        inner = as_object(part)
        if inner is None:
            return None
        properties.update(inner["properties"])
        required += inner["required"]
    return {"properties": properties, "required": required}
