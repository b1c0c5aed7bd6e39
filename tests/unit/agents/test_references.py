"""JSON Schemas with references, written out."""

from __future__ import annotations

from typing import Any

import msgspec

from errands.agents.manifests.schemas import usable, written_out


def test_references_are_written_out() -> None:
    root: dict[str, Any] = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "properties": {
            "order": {"$ref": "#/$defs/Order", "description": "Which one."},
            "$ref": {"type": "string"},
            "by": {"anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "null"}], "default": {"$ref": "is a value"}},
        },
        "$defs": {
            "Order": {"type": "object", "properties": {"items": {"items": {"$ref": "#/$defs/a~1b"}}}},
            "a/b": {"type": "integer", "description": "A number."},
        },
    }
    assert written_out(root, root) == {
        "properties": {
            "order": {
                "type": "object",
                "properties": {"items": {"items": {"type": "integer", "description": "A number."}}},
                "description": "Which one.",
            },
            "$ref": {"type": "string"},
            "by": {
                "anyOf": [{"type": "integer", "description": "A number."}, {"type": "null"}],
                "default": {"$ref": "is a value"},
            },
        }
    }


def test_what_refers_to_itself_or_to_nothing_takes_everything() -> None:
    root: dict[str, Any] = {
        "properties": {
            "self": {"$ref": "#/$defs/Node"},
            "root": {"$ref": "#"},
            "gone": {"$ref": "#/$defs/Gone"},
            "far": {"$ref": "https://example.com/schema.json", "type": "string"},
            "odd": {"$ref": "#/properties/odd/$ref"},
        },
        "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}},
    }
    written = written_out(root, root)["properties"]
    assert written["self"] == {"properties": {"next": {}}}
    assert written["gone"] == {}
    assert written["far"] == {"type": "string"}
    assert written["odd"] == {}


def test_patterns_of_somebody_else_are_left_to_them() -> None:
    schema = {"properties": {"pattern": {"type": "string", "pattern": "(a+)+$"}}, "patternProperties": {"(a+)+$": {}}}
    assert written_out(schema, schema) == schema
    assert written_out(schema, schema, patterns=False) == {"properties": {"pattern": {"type": "string"}}}


def test_a_schema_that_is_none_takes_everything() -> None:
    assert usable({"type": "wat", "description": "What."}) == {"description": "What."}
    assert usable({"pattern": "("}) == {}
    assert usable(True) == {}
    assert usable({"type": "integer", "default": "one"}) == {"type": "integer"}
    assert usable({"type": "integer", "default": 1}) == {"type": "integer", "default": 1}


def test_definitions_that_multiply_stop_somewhere() -> None:
    doubling = {
        f"D{n}": {"properties": {"a": {"$ref": f"#/$defs/D{n + 1}"}, "b": {"$ref": f"#/$defs/D{n + 1}"}}}
        for n in range(60)
    }
    root = {"properties": {"x": {"$ref": "#/$defs/D0"}}, "$defs": doubling}
    assert len(msgspec.json.encode(written_out(root, root))) < 500_000


def test_deep_schemas_stop_somewhere() -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"items": deep}
    assert len(msgspec.json.encode(written_out(deep, deep))) < 1000
