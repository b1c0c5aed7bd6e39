"""What a service answers, unpacked and counted as it comes.

HTTP libraries unpack what they have received before anybody can look at it, and a few kilobytes may become gigabytes.
So this is done here for all of them, in small pieces, and a bound holds for what comes out. A library that is handed
the result must not find a `Content-Encoding` any more.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

from errands.errors import ErrandsError

#: What can be unpacked in pieces with what Python brings itself.
_KNOWN = ("gzip", "deflate")
#: What says that something is packed. Servers write other things into the header, too, which say nothing.
_PACKED = (*_KNOWN, "br", "zstd", "compress")
#: Bytes that are unpacked at a time.
_PIECE = 65_536


class AnswerTooLargeError(ErrandsError):
    """More came than was asked for, and the rest was not read."""


class UnpackingError(ErrandsError):
    """What came is not packed as it says, or in a way that nobody asked for."""


class Meter:
    """Counts what comes of one answer. Of a stream of events each one counts for itself: there may be any number."""

    def __init__(self, most: int, content_type: str) -> None:
        self._most = most
        self._is_stream = content_type.partition(";")[0].strip().lower() == "text/event-stream"
        self._count = 0
        #: The end of what came last: a blank line may come in two pieces.
        self._tail = b""

    def count(self, piece: bytes) -> None:
        """Raises `AnswerTooLargeError`."""
        self._count += len(piece)
        if self._is_stream:
            seen = self._tail + piece
            end = max(seen.rfind(blank) for blank in (b"\n\n", b"\r\n\r\n", b"\r\r"))
            if end >= 0:
                self._count = len(seen) - end
            self._tail = seen[-3:]
        self._check()

    def count_empty(self, packed: bytes) -> None:
        """Counts what nothing has come of, which may go on forever, too. Raises `AnswerTooLargeError`."""
        self._count += len(packed)
        self._check()

    def _check(self) -> None:
        if self._count > self._most:
            what = "one event of the answer" if self._is_stream else "the answer"
            raise AnswerTooLargeError(f"{what} has more than {self._most:,} bytes")


def ask_for_known(headers: Any) -> None:
    """Has a request, by its headers, ask for nothing that cannot be unpacked here."""
    asked = [name.strip().lower() for name in headers.get("accept-encoding", "identity").split(",")]
    if not {"identity", *_KNOWN}.issuperset(asked):
        headers["accept-encoding"] = ", ".join(_KNOWN)


class Unpacking:
    """The body of one answer on its way; `encoding` is its `Content-Encoding`."""

    def __init__(self, encoding: str, meter: Meter | None = None) -> None:
        names = [name.strip().lower().removeprefix("x-") for name in encoding.split(",")]
        self._packed = [name for name in names if name in _PACKED]
        self._meter = meter
        self._zlib = zlib.decompressobj(zlib.MAX_WBITS | 16) if self._packed == ["gzip"] else None
        #: What has come and is not unpacked yet.
        self._waiting = b""

    def pieces(self, chunk: bytes) -> Iterator[bytes]:
        """What comes of the next chunk. Raises `AnswerTooLargeError` and `UnpackingError`."""
        is_empty = True
        for piece in self._inflated(chunk) if self._packed else (chunk,):
            is_empty = False
            if self._meter is not None:
                self._meter.count(piece)
            yield piece
        if is_empty and self._meter is not None:
            self._meter.count_empty(chunk)

    def _inflated(self, chunk: bytes) -> Iterator[bytes]:
        if self._zlib is not None and self._zlib.eof:
            # What comes behind the end is passed over.
            return
        self._waiting += chunk
        inflating = self._zlib = self._zlib or self._deflate()
        while inflating is not None:
            try:
                piece = inflating.decompress(self._waiting, _PIECE)
            except zlib.error as error:
                raise UnpackingError(f"it cannot be unpacked ({error})") from None
            self._waiting = inflating.unconsumed_tail
            if piece:
                yield piece
            if inflating.eof or (not self._waiting and len(piece) < _PIECE):
                return

    def _deflate(self) -> Any:
        """Deflate is meant to have a header of two bytes, and some servers send it without."""
        if self._packed != ["deflate"]:
            packed = " and ".join(self._packed)
            raise UnpackingError(f"it is packed with {packed}, and only gzip or deflate was asked for")
        if len(self._waiting) < 2:
            return None
        first, second = self._waiting[:2]
        has_header = first & 0x0F == zlib.DEFLATED and (first * 256 + second) % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)
