"""A stream of events as server-sent events, until it is over or the client has gone."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from errands.errors import A2AError
from errands.runtime.call import EventStream, StreamItem
from errands.server.exchange import Exchange
from errands.server.refusing import refusal
from errands.wire.dialect import Dialect
from errands.wire.sse import ERROR_EVENT, GAP_EVENT, KEEP_ALIVE, frame, named, plain_frame

#: Puts an error into the binding's envelope.
ErrorEnvelope = Callable[[A2AError], bytes]


async def send_stream(
    exchange: Exchange,
    stream: EventStream,
    dialect: Dialect,
    error_envelope: ErrorEnvelope,
    *,
    before: bytes = b"",
    after: bytes = b"",
) -> None:
    """Send each event as the dialect writes it, with what its envelope has `before` and `after` it."""
    await send_frames(
        exchange,
        stream,
        _framing(dialect, before, after),
        lambda error: named(ERROR_EVENT, plain_frame(error_envelope(error))),
    )


async def send_frames(
    exchange: Exchange,
    stream: EventStream,
    frame_of: Callable[[StreamItem], bytes],
    error_frame: ErrorEnvelope,
    *,
    end: Callable[[], bytes] = bytes,
) -> None:
    """Sends each item as `frame_of` writes it, and what `end` gives when the stream is over."""
    await exchange.begin_stream()
    # Closing the stream wakes the loop below, so a client that has gone is noticed at once.
    watcher = asyncio.ensure_future(exchange.disconnected())
    watcher.add_done_callback(lambda _: stream.close())
    try:
        async for items in stream:
            if watcher.done():
                return
            frames = b"".join(map(frame_of, items)) or KEEP_ALIVE
            del items  # not held while the client does not read, or while nothing happens
            await exchange.write(frames)
            del frames
    except Exception as error:
        end = partial(error_frame, refusal(error, "a stream"))
    finally:
        watcher.cancel()
    await exchange.write(end(), more=False)


def _framing(dialect: Dialect, before: bytes, after: bytes) -> Callable[[StreamItem], bytes]:
    """Return what writes an item as a frame: one function, because it is called for every piece of every stream."""
    write = None if dialect.copies_events else dialect.write_event
    is_plain = before.isascii()

    def frame_of(item: StreamItem) -> bytes:
        version, data, gap = item
        if write is not None:
            data = write(data)
        if is_plain and version and not gap and data.isascii():
            return b"id: %d\ndata: %b%b%b\n\n" % (version, before, data, after)
        event = frame(version, before + data + after)
        return named(GAP_EVENT, event) if gap else event

    return frame_of
