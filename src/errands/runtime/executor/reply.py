"""What a send is answered with when the agent decides it: its message alone, or a task. See `Worker.chooses_reply`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import msgspec

from errands.engines.base import Engine
from errands.errors import UnavailableError
from errands.model.core import COMPLETED, StreamResponse
from errands.model.log import STREAMED_KINDS, StoredTask
from errands.runtime.call import EventStream, StreamItem
from errands.runtime.streams import answer

Shape = Callable[[StreamItem], StreamItem]

_decode = msgspec.json.Decoder(StreamResponse).decode


async def first_published(engine: Engine, stored: StoredTask, timeout: float | None) -> StoredTask:
    """The task once the agent has published something about it, or as it is after `timeout` seconds of silence."""
    subscription = engine.subscribe(stored.task.id, stored.scope, stored.version, caught_up=True)
    try:
        while (events := await subscription.next(timeout)) and not any(e.kind in STREAMED_KINDS for e in events):
            pass
    finally:
        subscription.close()
    return await engine.load(stored.task.id, stored.scope)


def chosen(engine: Engine, stored: StoredTask, stream: EventStream, shape: Shape | None) -> EventStream:
    """The same stream; its first batch, our task, waits until the agent has published something.

    `shape` is how tasks are shown.
    """

    async def batches() -> AsyncIterator[list[StreamItem]]:
        held: list[StreamItem] | None = None
        try:
            async for batch in stream:
                if shape is not None:
                    batch = [shape(item) for item in batch]
                if held is None:
                    held = batch
                elif held and batch:
                    yield await _choice(engine, stored, held, batch)
                    held = []
                else:
                    yield batch
        except UnavailableError:
            # The server stops before the agent has published anything.
            if held:
                yield held
            raise
        finally:
            stream.close()

    return EventStream(batches(), stream.close)


async def _choice(
    engine: Engine, stored: StoredTask, held: list[StreamItem], batch: list[StreamItem]
) -> list[StreamItem]:
    first = _decode(batch[0].data)
    if first.task is not None:
        return batch  # the agent's own task stands for ours
    if first.status_update is not None and first.status_update.status.state is COMPLETED:
        current = await engine.load(stored.task.id, stored.scope)
        if current.head.direct:
            return [answer(current)]
    return [*held, *batch]
