"""What other processes write, as this one hears of it: one connection that is subscribed to channels.

The channel `work` is always heard, the channel of a task while somebody here watches it. A task that is watched only
for a moment, like one that a blocking send waits for, is never asked for: what this process writes it knows anyway.
Whatever was told before a channel was heard, or while the connection was away, is looked up: a subscription that begins
makes the watchers look into the log, and as long as there is no connection they do so at every poll interval.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from redis import exceptions as redis_errors
from redis.asyncio.client import PubSub

from errands.engines.fanout import Fanout
from errands.engines.redis.connection import Link
from errands.engines.redis.keys import Keys
from errands.model.core import TaskState
from errands.model.log import Event

logger = logging.getLogger(__name__)

#: Seconds a task must have been watched before its channel is asked for.
SETTLE_AFTER = 0.02
#: Seconds between two looks at what is no longer watched.
TIDY_AFTER = 1.0
#: Seconds of silence after which the connection is tried, and again after which it is given up.
SILENCE = 5.0

#: Who wrote, the first version, the state after it, and kinds and data in turn.
_read_news = msgspec.msgpack.Decoder(tuple[str, int, TaskState, list[str]]).decode


class Listener:
    def __init__(
        self, link: Link, keys: Keys, fanout: Fanout, *, origin: str, wake: Callable[[], None], poll_interval: float
    ) -> None:
        self._link = link
        self._keys = keys
        self._fanout = fanout
        self._origin = origin
        self._wake = wake
        self._poll_interval = poll_interval
        self._pubsub: PubSub | None = None
        #: The tasks whose channels are asked for.
        self._heard: set[str] = set()
        #: What was watched at the last look.
        self._seen: set[str] = set()
        self._watching = asyncio.Event()
        #: Set while the server is heard.
        self.connected = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._listen(), name="errands-redis-listener"),
            asyncio.create_task(self._follow_watchers(), name="errands-redis-watchers"),
        ]

    def watch(self) -> None:
        """Somebody watches a task."""
        self._watching.set()

    async def stop(self) -> None:
        pending = set(self._tasks)
        while pending:
            # More than once: the client library can swallow a cancellation on Python 3.11 (`asyncio.wait_for`).
            for task in pending:
                task.cancel()
            _, pending = await asyncio.wait(pending, timeout=0.1)

    # Hearing

    async def _listen(self) -> None:
        while True:
            pubsub = self._link.client.pubsub()
            try:
                await pubsub.subscribe(self._keys.work, *map(self._keys.events, self._heard))
                self._pubsub = pubsub
                self.connected.set()
                await self._hear(pubsub)
            except (redis_errors.RedisError, OSError) as error:
                logger.warning("Redis at %s is not heard (%s); looking every moment", self._link.server, error)
            finally:
                self._pubsub = None
                self.connected.clear()
                with suppress(redis_errors.RedisError, OSError):
                    await pubsub.aclose()  # type: ignore[no-untyped-call]
            self._look()
            await asyncio.sleep(self._poll_interval)

    def _look(self) -> None:
        self._fanout.nudge(self._fanout.watched())
        self._wake()

    async def _hear(self, pubsub: PubSub) -> None:
        asked = False
        while True:
            message = await pubsub.get_message(timeout=SILENCE)
            if message is not None:
                asked = False
                self._pass_on(message)
            elif asked:
                raise redis_errors.ConnectionError("the server fell silent")
            else:
                asked = True
                await pubsub.ping()

    def _pass_on(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind not in ("message", "subscribe"):
            return
        task_id = self._keys.task_of(message["channel"].decode())
        if kind == "subscribe":
            # From here on everything is heard; what was written before may have been missed.
            self._wake() if task_id is None else self._fanout.nudge([task_id])
        elif task_id is None:
            if message["data"].decode() != self._origin:
                self._wake()
        else:
            self._publish(task_id, message["data"])

    def _publish(self, task_id: str, data: bytes) -> None:
        origin, first, state, flat = _read_news(data)
        if origin == self._origin:
            return
        events = [
            Event(first + n // 2, flat[n], flat[n + 1].encode())  # type: ignore[arg-type]
            for n in range(0, len(flat), 2)
        ]
        self._fanout.publish(task_id, events, state, None)

    # Watching

    async def _follow_watchers(self) -> None:
        while True:
            await self._watching.wait()
            self._watching.clear()
            while not self._fanout.idle or self._heard:
                await self._adjust()
                pause = SETTLE_AFTER if self._watching.is_set() or self._seen - self._heard else TIDY_AFTER
                self._watching.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        if pause == TIDY_AFTER:
                            await self._watching.wait()
                        else:
                            await asyncio.sleep(pause)

    async def _adjust(self) -> None:
        """Asks for the channels of what is still watched, and lets go of the others."""
        watched = set(self._fanout.watched())
        wanted = watched & (self._seen | self._heard)
        self._seen = watched
        added, dropped = wanted - self._heard, self._heard - wanted
        self._heard = wanted
        if self._pubsub is None:
            return  # the next connection asks for all of them
        with suppress(redis_errors.RedisError, OSError):
            if added:
                await self._pubsub.subscribe(*map(self._keys.events, added))
            if dropped and self._pubsub is not None:
                await self._pubsub.unsubscribe(*map(self._keys.events, dropped))
