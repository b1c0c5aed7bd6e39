"""The base of every struct that travels: camelCase on the wire, absent fields left out."""

from __future__ import annotations

from typing import Any

import msgspec


# gc=False: these are trees, never cycles, and a server holds very many of them.
class Model(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A protocol object in v1.0 spelling. Attributes are snake_case, JSON keys camelCase."""


Metadata = dict[str, Any]

#: What values of JSON are called when people are told about them.
JSON_NAMES: dict[type, str] = {
    str: "a text",
    bool: "true or false",
    int: "a number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}

#: One encoder for the whole process: msgspec encoders hold no state between calls.
ENCODER = msgspec.json.Encoder()
encode = ENCODER.encode
