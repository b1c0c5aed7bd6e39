"""The base of every struct that travels: camelCase on the wire, absent fields left out."""

from __future__ import annotations

from typing import Any

import msgspec


class Model(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True):
    """A protocol object in v1.0 spelling. Attributes are snake_case, JSON keys camelCase."""


Metadata = dict[str, Any]

#: One encoder for the whole process: msgspec encoders hold no state between calls.
ENCODER = msgspec.json.Encoder()
encode = ENCODER.encode
