"""The JSON Schema of manifests, for editors: completion, and marks where a field is misspelled or of the wrong type.

It is derived from the structs in `documents`, so it knows their fields and types. What one field says about another,
and expressions, are checked by `errands agents validate` alone.
"""

from __future__ import annotations

import enum
from typing import Any

import msgspec

from errands.agents.manifests.documents import (
    AGENT_KIND,
    DESCRIPTOR_KIND,
    TOOL_KIND,
    Agent,
    Capability,
    Descriptor,
    Mount,
    Tool,
)

_KINDS = {AGENT_KIND: Agent, TOOL_KIND: Tool, DESCRIPTOR_KIND: Descriptor}


def editor_schema() -> dict[str, Any]:
    """Return a JSON Schema, draft 2020-12, that every document of a valid manifest satisfies."""
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
