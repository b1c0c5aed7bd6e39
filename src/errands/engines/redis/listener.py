"""What other processes write, as this one hears of it: one connection that is subscribed to channels.

The channel `work` is always heard, the channel of a task while somebody here watches it. A task that is watched only
for a moment, like one that a blocking send waits for, is never asked for: what this process writes it knows anyway.
Whatever was told before a channel was heard, or while the connection was away, is looked up: a subscription that begins
makes the watchers look into the log, and as long as there is no connection they do so at every poll interval. Nobody
tells of a task that the server has lost, in a failover or by FLUSHALL: that is looked up from time to time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
from redis import exceptions as redis_errors
from redis.asyncio import Connection

from errands.engines.fanout import Fanout
from errands.engines.redis.connection import Link
from errands.engines.redis.jobs import Stands
from errands.engines.redis.keys import Keys
from errands.engines.redis.reading import LOOK
from errands.engines.redis.records import read_record
from errands.errors import StorageError
from errands.model.core import TaskState
from errands.model.log import Event

logger = logging.getLogger(__name__)

#: Seconds a task must have been watched before its channel is asked for.
SETTLE_AFTER = 0.02
#: Seconds between two looks at what is no longer watched, and at what the server may have lost.
TIDY_AFTER = 1.0
#: Seconds of silence after which the connection is tried, and again after which it is given up.
SILENCE = 2.0

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
        self._connection: Connection | None = None
        #: The tasks whose channels are asked for.
        self._heard: set[str] = set()
        #: What was watched at the last look.
        self._seen: set[str] = set()
        self._watching = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._listen(), name="errands-redis-listener"),
            asyncio.create_task(self._follow_watchers(), name="errands-redis-watchers"),
            asyncio.create_task(self._look_for_losses(), name="errands-redis-losses"),
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
        heard = True
        while True:
            # Not the library's own `PubSub`: that one connects again by itself, and nobody hears what it missed.
            connection = self._link.own_connection()
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection
                await self._say("SUBSCRIBE", self._keys.work, *map(self._keys.events, self._heard))
                heard = True
                await self._hear(connection)
            except (redis_errors.RedisError, OSError) as error:
                if heard:  # said once for the whole absence
                    logger.warning("Redis at %s is not heard (%s): polling", self._link.server, error)
                heard = False
            finally:
                self._connection = None
                with suppress(redis_errors.RedisError, OSError):
                    await connection.disconnect(nowait=True)
            self._look()
            await asyncio.sleep(self._poll_interval)

    async def _say(self, *command: str) -> None:
        """Sends a command if there is a connection; its answer is heard like everything else."""
        if self._connection is not None and self._connection.is_connected:
            await self._connection.send_command(*command, check_health=False)

    def _look(self) -> None:
        self._fanout.nudge(self._fanout.watched())
        self._wake()

    async def _hear(self, connection: Connection) -> None:
        asked = False
        while True:
            message = await connection.read_response(timeout=SILENCE)
            if message is not None:
                asked = False
                self._pass_on(*message)
            elif asked:
                raise redis_errors.ConnectionError("the server fell silent")
            else:
                asked = True
                await self._say("PING")

    def _pass_on(self, kind: bytes, channel: bytes, data: Any = b"") -> None:
        if kind not in (b"message", b"subscribe"):
            return
        task_id = self._keys.task_of(channel.decode())
        if kind == b"subscribe":
            # From here on everything is heard; what was written before may have been missed.
            self._wake() if task_id is None else self._fanout.nudge([task_id])
        elif task_id is None:
            if data.decode() != self._origin:
                self._wake()
        else:
            self._publish(task_id, data)

    def _publish(self, task_id: str, data: bytes) -> None:
        try:
            origin, first, state, flat = _read_news(data)
        except (msgspec.MsgspecError, ValueError):
            # Of another release: the log is what all agree on.
            self._fanout.nudge([task_id])
            return
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
                await self._rest()

    async def _rest(self) -> None:
        """Until there may be something to adjust."""
        if self._watching.is_set() or self._seen - self._heard:
            self._watching.clear()
            await asyncio.sleep(SETTLE_AFTER)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(TIDY_AFTER):
                await self._watching.wait()

    async def _adjust(self) -> None:
        """Asks for the channels of what is still watched, and lets go of the others."""
        watched = set(self._fanout.watched())
        wanted = watched & (self._seen | self._heard)
        self._seen = watched
        added, dropped = wanted - self._heard, self._heard - wanted
        self._heard = wanted
        # A connection that is away asks for all of them when it is back.
        with suppress(redis_errors.RedisError, OSError):
            if added:
                await self._say("SUBSCRIBE", *map(self._keys.events, added))
            if dropped:
                await self._say("UNSUBSCRIBE", *map(self._keys.events, dropped))

    async def _look_for_losses(self) -> None:
        """Whoever waits for a task that the server no longer has finds out."""
        while True:
            await asyncio.sleep(TIDY_AFTER)
            heard = list(self._heard)
            # A server that is away is the others' concern.
            with suppress(StorageError):
                for start in range(0, len(heard), LOOK):
                    await self._look_for(heard[start : start + LOOK])

    async def _look_for(self, task_ids: list[str]) -> None:
        keys = [self._keys.task(task_id) for task_id in task_ids]
        there = await self._link.guard(lambda: self._link.client.exists(*keys), patience=0)
        if there < len(keys):
            stands = await self._link.ask(Stands(ids=task_ids))
            self._fanout.nudge(
                task_id for task_id, stand in zip(task_ids, stands, strict=True) if read_record(stand) is None
            )
