"""The base of every struct that travels: camelCase on the wire, absent fields left out."""

from __future__ import annotations

from typing import Any

import msgspec


# gc=False: these are trees, never cycles, and a server holds very many of them.
class Model(msgspec.Struct, rename="camel", omit_defaults=True, kw_only=True, gc=False):
    """A protocol object in v1.0 spelling. Attributes are snake_case, JSON keys camelCase."""


Metadata = dict[str, Any]

#: One encoder for the whole process: msgspec encoders hold no state between calls.
ENCODER = msgspec.json.Encoder()
encode = ENCODER.encode
