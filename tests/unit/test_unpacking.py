"""What is packed is unpacked in small pieces, and the bound holds for what comes out."""

from __future__ import annotations

import gzip
import itertools
import tracemalloc
import zlib
from collections.abc import Callable

import pytest

from errands.outbound import AnswerTooLargeError, Meter, Unpacking, UnpackingError, ask_for_known

TEXT = b"".join(b"line %d of many\n" % number for number in range(20_000))


def raw_deflate(content: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(content) + packing.flush()


WAYS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "x-gzip": gzip.compress,
    "GZIP": gzip.compress,
    "deflate": zlib.compress,
    "deflate ": raw_deflate,
    "identity": bytes,
    "": bytes,
    # Seen in the wild: it says nothing about how to read the body.
    "utf-8": bytes,
}


def read(*sent: bytes, encoding: str = "gzip", meter: Meter | None = None) -> bytes:
    unpacking = Unpacking(encoding, meter)
    return b"".join(piece for chunk in sent for piece in unpacking.pieces(chunk))


@pytest.mark.parametrize("encoding", WAYS)
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_what_was_packed_comes_out_however_it_was_cut(encoding: str, size: int) -> None:
    packed = WAYS[encoding](TEXT[:20_000] if size == 1 else TEXT)
    sent = [packed[start : start + size] for start in range(0, len(packed), size)]
    came = read(*sent, encoding=encoding)
    assert came == (TEXT[:20_000] if size == 1 else TEXT)


def test_what_comes_first_is_told_before_the_rest_is_there() -> None:
    packing = zlib.compressobj(wbits=zlib.MAX_WBITS | 16)
    first = packing.compress(b"data: 1\n\n") + packing.flush(zlib.Z_SYNC_FLUSH)
    assert list(Unpacking("gzip").pieces(first)) == [b"data: 1\n\n"]


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_a_bomb_is_stopped_before_it_has_unfolded(encoding: str) -> None:
    bomb = WAYS[encoding](bytes(100_000_000))
    assert len(bomb) < 100_000
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLargeError, match="the answer has more than 1,000,000 bytes"):
            read(bomb, encoding=encoding, meter=Meter(1_000_000, "application/json"))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 10_000_000


def test_one_event_of_a_packed_stream_counts_for_itself() -> None:
    kind = "text/event-stream"
    events = b"data: x\n\n" * 1_000
    assert read(gzip.compress(events), meter=Meter(70_000, kind)) == events
    with pytest.raises(AnswerTooLargeError, match="one event of the answer has more than 70,000 bytes"):
        read(gzip.compress(events + bytes(200_000)), meter=Meter(70_000, kind))


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
def test_what_nothing_comes_of_has_an_end_too(kind: str) -> None:
    empty_block = b"\0\0\0\xff\xff"
    unpacking = Unpacking("deflate", Meter(1_000, kind))
    came = (unpacking.pieces(empty_block) for _ in itertools.count())
    with pytest.raises(AnswerTooLargeError):
        next(itertools.chain.from_iterable(came))


def test_what_comes_behind_the_end_has_an_end_too() -> None:
    unpacking = Unpacking("gzip", Meter(1_000, "text/plain"))
    assert list(unpacking.pieces(gzip.compress(b"all"))) == [b"all"]
    came = (unpacking.pieces(b"more") for _ in itertools.count())
    with pytest.raises(AnswerTooLargeError):
        next(itertools.chain.from_iterable(came))


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate, br"])
def test_what_nobody_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(UnpackingError, match="only gzip or deflate was asked for"):
        read(gzip.compress(gzip.compress(TEXT)), encoding=encoding)


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_what_is_not_packed_as_it_says_is_an_error(encoding: str) -> None:
    with pytest.raises(UnpackingError, match="it cannot be unpacked"):
        read(b"\xff\xff nothing of the kind", encoding=encoding)


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        ("gzip, deflate", "gzip, deflate"),
        ("gzip", "gzip"),
        ("identity", "identity"),
        ("gzip, deflate, br, zstd", "gzip, deflate"),
        ("br", "gzip, deflate"),
        ("*", "gzip, deflate"),
        (None, None),
    ],
)
def test_nothing_is_asked_for_that_cannot_be_unpacked(asked: str | None, sent: str | None) -> None:
    headers = {} if asked is None else {"accept-encoding": asked}
    ask_for_known(headers)
    assert headers.get("accept-encoding") == sent
