"""Hearing of other processes: notifications over `NOTIFY`, and a look from time to time in case one was lost.

A task's row names the process that has readers of it, so that a writer notifies others only when one of them wants to
know. A notification says that a task has changed; its events are read once, whatever the number of readers.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import msgspec

from errands.engines.postgres.connection import (
    FIRST_PAUSE,
    LONGEST_PAUSE,
    Connection,
    PostgresOptions,
    connect,
    is_lost,
)
from errands.engines.postgres.queries import QUERIES, PostgresQueries, are_texts, readable, storable
from errands.engines.subscriptions import may_go_on
from errands.errors import ErrandsError

logger = logging.getLogger(__name__)

#: PostgreSQL takes less than 8000 bytes per notification.
_MAX_BYTES = 7900
#: Seconds after which the row of a task with readers says so. A task that this process writes to until then, as it
#: mostly does, says so by that write.
MARK_DELAY = 0.05


class ChangedTask(NamedTuple):
    """A task with new events that other processes watch."""

    task_id: str
    #: The version before the first of them.
    before: int


class Notification(msgspec.Struct, array_like=True):
    sender: str
    #: A task may be due, or a cancel wanted.
    work: bool = False
    tasks: list[ChangedTask] = []
    #: More tasks than could be named have new events.
    more: bool = False


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Notification).decode


def payloads(sender: str, work: bool, tasks: Sequence[ChangedTask]) -> list[str]:
    """Return the notifications to send, as few as possible."""
    if not tasks:
        return [_encode(Notification(sender, work)).decode()] if work else []
    payload = _encode(Notification(sender, work, list(tasks)))
    if len(payload) <= _MAX_BYTES:
        return [payload.decode()]
    if len(tasks) == 1:
        return [_encode(Notification(sender, work, more=True)).decode()]
    half = len(tasks) // 2
    return payloads(sender, work, tasks[:half]) + payloads(sender, False, tasks[half:])


class Notifications:
    """Marks the rows of tasks that have readers here, and shows the readers what other processes have written."""

    def __init__(self, engine: PostgresQueries, options: PostgresOptions, process: str, poll_interval: float) -> None:
        self._engine = engine
        self._subscribers = engine.subscribers
        self._options = options
        #: The name of this process in notifications and rows.
        self._process = process
        self._poll_interval = poll_interval
        #: Watched tasks whose row says so, and up to which version this process has seen their events.
        self._seen: dict[str, int] = {}
        #: Watched tasks whose row may not say so yet.
        self._unmarked: set[str] = set()
        self._marking: asyncio.TimerHandle | None = None
        #: Tasks whose new events are being read, and whether there are more.
        self._following: dict[str, bool] = {}
        self._background: set[asyncio.Task[Any]] = set()
        self._broken = asyncio.Event()
        self.is_listening = asyncio.Event()
        self._stopped = False

    def start(self) -> None:
        self._spawn(self._listen)

    async def stop(self) -> None:
        # A reader that comes now hears nothing more, and must not leave anything behind in the loop.
        self._stopped = True
        if self._marking is not None:
            self._marking.cancel()
        tasks = list(self._background)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _spawn(self, work: Callable[[], Awaitable[None]]) -> None:
        # Called inside, so that a task that is canceled before it begins leaves no coroutine behind.
        async def run() -> None:
            try:
                await work()
            except ErrandsError as error:
                logger.info("looking for changes of other processes failed and will be done again: %s", error)

        task = asyncio.get_running_loop().create_task(run(), name="errands-postgres-notifications")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    # Marking rows

    def watch(self, task_id: str) -> None:
        """Note that a task has a reader here."""
        if task_id not in self._seen and not self._stopped:
            self._unmarked.add(task_id)
            if self._marking is None:
                loop = asyncio.get_running_loop()
                self._marking = loop.call_later(MARK_DELAY, self._spawn, self._mark)

    def note(self, task_id: str, version: int) -> None:
        """Note that this process has written to a task with readers, and that the row says so by now."""
        self._seen[task_id] = version
        self._unmarked.discard(task_id)

    async def _mark(self) -> None:
        self._marking = None
        watched = [task_id for task_id in self._unmarked if self._subscribers.watches(task_id) and are_texts(task_id)]
        self._unmarked.clear()
        if not watched:
            return
        ids = [storable(task_id) for task_id in watched]
        rows = await self._engine.readers.call(
            lambda connection: connection.fetch(QUERIES["watch"], ids, self._process)
        )
        marked = {readable(key): version for key, version in rows}
        for task_id, version in marked.items():
            self._seen[task_id] = max(version, self._seen.get(task_id, 0))
        # No notification came for what was written before the row was marked.
        self._subscribers.nudge(marked)

    # Listening

    async def _listen(self) -> None:
        """Keep one connection listening, whatever happens to it."""
        pause, was_heard = FIRST_PAUSE, False
        while True:
            connection: Connection | None = None
            try:
                connection = await connect(self._options)
                connection.add_termination_listener(lambda _: self._broken.set())
                self._broken.clear()
                await connection.add_listener(self._options.schema, self._hear)
                if was_heard:
                    # After a failover the others may have been made again too soon, and lead to a standby.
                    await self._engine.readers.renew()
                was_heard = True
                self.is_listening.set()
                pause = FIRST_PAUSE
                while not self._broken.is_set():
                    await self._poll(connection)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(self._poll_interval):
                            await self._broken.wait()
            except Exception as error:
                log = logger.info if is_lost(error) else logger.error
                log("the connection that listens for notifications broke and is made again: %s", error)
            finally:
                self.is_listening.clear()
                if connection is not None:
                    connection.terminate()
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def _hear(self, connection: Connection, pid: int, channel: str, payload: str) -> None:
        try:
            notification = _decode(payload)
        except msgspec.MsgspecError:
            # Of another release, perhaps.
            notification = Notification("", work=True, more=True)
        if notification.sender == self._process:
            return
        for task_id, before in notification.tasks:
            if self._subscribers.watches(task_id):
                self._follow(task_id, before)
        if notification.more:
            self._subscribers.nudge(self._subscribers.watched())
        if notification.work:
            self._engine.wake_workers()

    async def _poll(self, connection: Connection) -> None:
        """Look for changes of which no notification came; also the proof that the connection works."""
        watched = self._subscribers.watched()
        self._seen = {task_id: self._seen[task_id] for task_id in watched if task_id in self._seen}
        seen = list(self._seen)
        ids = [storable(task_id) for task_id in watched if are_texts(task_id)]
        rows = await connection.fetch(QUERIES["versions"], ids) if ids else ()
        found = {readable(key): version for key, version in rows}
        for task_id, version in found.items():
            if task_id not in self._seen:
                self.watch(task_id)
            elif version > self._seen[task_id]:
                self._follow(task_id, self._seen[task_id])
        # Lost in a failover, perhaps: its readers find out.
        self._subscribers.nudge(task_id for task_id in seen if task_id not in found)
        await self._engine.compare_clock(connection, self._options.name)
        if await connection.fetchval(QUERIES["has_work"], self._engine.clock()):
            self._engine.wake_workers()

    def _follow(self, task_id: str, before: int) -> None:
        """Read the new events of a task, once for all of its readers."""
        if task_id not in self._following:
            self._spawn(partial(self._publish, task_id, before))
        self._following[task_id] = True

    async def _publish(self, task_id: str, after: int) -> None:
        try:
            while self._following[task_id]:
                self._following[task_id] = False
                (events, gap), state = await self._engine.tail(task_id, None, after)
                if gap:
                    # Its events are gone: its readers find out.
                    self._subscribers.nudge([task_id])
                    continue
                if events:
                    after = events[-1].version
                    self._seen[task_id] = max(after, self._seen.get(task_id, 0))
                stored = await self._engine.load(task_id, None) if self._subscribers.awaits(task_id, state) else None
                self._subscribers.publish(task_id, events, state if stored is None else stored.state, stored)
                if may_go_on(events):
                    self._following[task_id] = True
        except ErrandsError as error:
            logger.info("new events of task %s could not be read: %s", task_id, error)
            self._subscribers.nudge([task_id])
        finally:
            del self._following[task_id]
