"""Hearing of other processes: one connection that is subscribed to channels.

The channel `work` is always heard, the channel of a task while it has readers here. The channel of a task that has
readers only for a moment, like one that a blocking send waits for, is never subscribed to: what this process writes it
knows anyway. Whatever was sent before a channel was heard, or while the connection was away, is looked up: when a
subscription begins, the readers look into the log, and as long as there is no connection they do so at every poll
interval. The server does not report tasks that it has lost, in a failover or by FLUSHALL: they are looked for from
time to time.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any

import msgspec
from redis import exceptions as redis_errors
from redis.asyncio import Connection

from errands.engines.damage import read_lease
from errands.engines.redis.connection import RedisServer
from errands.engines.redis.queries import LOOK, RedisQueries
from errands.errors import StorageError
from errands.model.core import TaskState
from errands.model.log import Event

logger = logging.getLogger(__name__)

#: Seconds for which a task must have readers before its channel is subscribed to.
SETTLE_AFTER = 0.02
#: Seconds between two looks for tasks without readers, and for tasks that the server has lost.
TIDY_AFTER = 1.0
#: Seconds of silence after which the connection is tested, and again after which it is given up.
SILENCE = 2.0

#: Who wrote, the first version, the state after it, the time, the lease, and kinds and data in turn.
_read_message = msgspec.msgpack.Decoder(tuple[str, int, TaskState, str, str, list[str]]).decode


class RedisNotifications:
    def __init__(self, engine: RedisQueries, server: RedisServer, origin: str, poll_interval: float) -> None:
        self._engine = engine
        self._subscribers = engine.subscribers
        self._server = server
        #: The channel for "a task may be due, or is to be canceled", and the beginning of those of tasks.
        self._work, self._events = engine.keys("work"), engine.keys("events", "")
        self._origin = origin
        self._poll_interval = poll_interval
        self._connection: Connection | None = None
        #: The tasks whose channels are subscribed to.
        self._heard: set[str] = set()
        #: The tasks that had readers at the last look.
        self._seen: set[str] = set()
        self._watching = asyncio.Event()
        self._tasks = [
            asyncio.create_task(self._listen(), name="errands-redis-listener"),
            asyncio.create_task(self._follow_watchers(), name="errands-redis-watchers"),
            asyncio.create_task(self._look_for_losses(), name="errands-redis-losses"),
        ]

    def watch(self) -> None:
        """Note that a task has a new reader."""
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
            # Not the library's own `PubSub`: that one connects again by itself without saying that it missed
            # something.
            pool: Any = self._server.client.connection_pool
            connection: Connection = pool.make_connection()
            try:
                await connection.connect()  # type: ignore[no-untyped-call]
                self._connection = connection
                await self._say("SUBSCRIBE", self._work, *map(self._channel, self._heard))
                heard = True
                await self._hear(connection)
            except (redis_errors.RedisError, OSError) as error:
                if heard:  # logged once for the whole absence
                    logger.warning("Redis at %s cannot be listened to (%s): polling", self._server.name, error)
                heard = False
            finally:
                self._connection = None
                with suppress(redis_errors.RedisError, OSError):
                    await connection.disconnect(nowait=True)
            self._subscribers.nudge(self._subscribers.watched())
            self._engine.wake_workers()
            await asyncio.sleep(self._poll_interval)

    def _channel(self, task_id: str) -> str:
        return self._events + task_id

    async def _say(self, *command: str) -> None:
        """Send a command if there is a connection; its answer is heard like everything else."""
        if self._connection is not None and self._connection.is_connected:
            await self._connection.send_command(*command, check_health=False)

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
        name = channel.decode()
        task_id = name.removeprefix(self._events)
        if name == self._work:
            if kind == b"subscribe" or data != self._origin.encode():
                self._engine.wake_workers()
        elif kind == b"subscribe":
            # From here on everything is heard; what was written before may have been missed.
            self._subscribers.nudge([task_id])
        elif kind == b"message":
            try:
                origin, first, state, at, lease, flat = _read_message(data)
            except (msgspec.MsgspecError, ValueError):
                # From another release: readers look into the log instead.
                self._subscribers.nudge([task_id])
                return
            if origin != self._origin:
                events: list[Event] = []
                for number, (kind_, content) in enumerate(zip(flat[::2], flat[1::2], strict=True)):
                    taken = None if number else read_lease(lease)
                    events.append(Event(first + number, kind_, content.encode(), int(at), taken))  # type: ignore[arg-type]
                self._subscribers.publish(task_id, events, state, None)

    # Watching

    async def _follow_watchers(self) -> None:
        """Subscribe to the channels of tasks that keep their readers, and unsubscribe from the others."""
        while True:
            await self._watching.wait()
            self._watching.clear()
            while self._subscribers.watched() or self._heard:
                watched = set(self._subscribers.watched())
                wanted = watched & (self._seen | self._heard)
                added, dropped = wanted - self._heard, self._heard - wanted
                self._seen, self._heard = watched, wanted
                # A connection that is away subscribes to all of them when it is back.
                with suppress(redis_errors.RedisError, OSError):
                    if added:
                        await self._say("SUBSCRIBE", *map(self._channel, added))
                    if dropped:
                        await self._say("UNSUBSCRIBE", *map(self._channel, dropped))
                if self._watching.is_set() or self._seen - self._heard:
                    self._watching.clear()
                    await asyncio.sleep(SETTLE_AFTER)
                else:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(TIDY_AFTER):
                            await self._watching.wait()

    async def _look_for_losses(self) -> None:
        """Let the readers of a task that the server no longer has find out."""
        while True:
            await asyncio.sleep(TIDY_AFTER)
            heard = list(self._heard)
            # A server that is away is dealt with by others.
            with suppress(StorageError):
                for start in range(0, len(heard), LOOK):
                    ids = heard[start : start + LOOK]
                    keys = [self._engine.keys("task", task_id) for task_id in ids]
                    there = await self._server.do("exists", *keys, patience=0)
                    if there < len(keys):
                        found = await self._engine.look(ids)
                        self._subscribers.nudge(task_id for task_id in ids if task_id not in found)
