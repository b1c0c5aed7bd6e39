"""The bytes of files in A2A 0.3 over HTTP+JSON and gRPC, where the official SDKs disagree.

The schema has a field for the bytes themselves. The JavaScript SDK puts them there: in JSON they are base64 once. The
SDKs for Python, Go and Java put the base64 text of the file there: it is base64 twice. These are the rules:

1. A peer that says it runs JavaScript (`is_once`) reads and writes once. So does one whose own request has a file that
   is not base64 inside.
2. Every other peer is answered as the majority of SDKs expects it: twice. What it sends is decoded a second time if it
   is base64 to the last byte, and otherwise taken as it is.

By these rules a file goes wrong only if a peer that is not known to run JavaScript writes it once, and the whole file
happens to be base64 text.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable
from typing import NamedTuple

#: How JavaScript names itself: `fetch` of Node.js, Deno, Bun and browsers, gRPC for Node.js, and Express, with which
#: agents of the JavaScript SDK are served.
_JAVASCRIPT = (b"node", b"undici", b"deno/", b"bun/", b"mozilla/", b"grpc-node-js/", b"express")


class FileBytes(NamedTuple):
    """Between a file and the field that carries it."""

    read: Callable[[bytes], bytes]
    write: Callable[[bytes], bytes]


def decoded_again(content: bytes) -> bytes | None:
    """Return the file of which `content` is the base64 text, or None when it is not base64."""
    try:
        return binascii.a2b_base64(content, strict_mode=True)
    except binascii.Error:
        return None


def _read_twice(content: bytes) -> bytes:
    file = decoded_again(content)
    return content if file is None else file


TWICE = FileBytes(read=_read_twice, write=lambda file: binascii.b2a_base64(file, newline=False))
ONCE = FileBytes(read=bytes, write=bytes)


def is_once(software: bytes) -> bool:
    """Whether the peer that names itself so in `User-Agent` or `X-Powered-By` runs JavaScript."""
    return software.lower().startswith(_JAVASCRIPT)
