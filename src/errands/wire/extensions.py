"""The header in which a client declares extensions, and an agent says which of them are active."""

from __future__ import annotations

#: By protocol version; over gRPC they are keys of the metadata.
HEADERS = {"1.0": "A2A-Extensions", "0.3": "X-A2A-Extensions"}
EXTENSIONS = HEADERS["1.0"]
