"""Damaging what is stored of a task, in each store in its own way."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

import asyncpg
import msgspec

from errands.engines.base import Engine
from errands.engines.memory import MemoryEngine
from errands.engines.postgres import PostgresEngine
from errands.engines.redis import RedisEngine
from errands.engines.sqlite import SQLiteEngine
from errands.model.core import TERMINAL_STATES
from errands.model.log import Event
from tests.postgres import shared_server

#: JSON that is no event: a text must be a string.
MISFIT = (
    b'{"statusUpdate":{"taskId":"t","contextId":"c","status":{"state":"TASK_STATE_WORKING",'
    b'"message":{"messageId":"m","role":"ROLE_AGENT","parts":[{"text":42}]}}}}'
)
#: Not even JSON.
GARBAGE = b'\xff\x00{"\n'


async def damage_event(engine: Engine, task_id: str, version: int, data: bytes = MISFIT) -> None:
    """Replaces one event of a task's log; version 0 is the snapshot."""
    if isinstance(engine, MemoryEngine):
        row = engine._tasks[task_id]
        row.unpack()
        if version:
            row.events = [
                Event(event.version, event.kind, data) if event.version == version else event for event in row.events
            ]
            # It keeps what it has read, as other engines do not.
            row.snapshot, row.folded = None, 0
        else:
            row.snapshot, row.folded = data, row.head.version
        if row.head.state in TERMINAL_STATES:
            row.pack(None)
    elif isinstance(engine, SQLiteEngine):
        _sqlite(
            engine,
            "UPDATE events SET data = ? WHERE place = (SELECT no FROM tasks WHERE id = ?) << 28 | ?",
            data,
            task_id,
            version,
        )
    elif isinstance(engine, PostgresEngine):
        await _postgres(
            engine,
            "UPDATE events SET data = $1 WHERE task = (SELECT no FROM tasks WHERE id = $2) AND version = $3",
            data,
            task_id,
            version,
        )
    elif isinstance(engine, RedisEngine):
        client: Any = engine.parts.server.client
        keys = engine.keys
        if not version:
            await client.hset(keys("task", task_id), "snapshot", data)
            return
        log = await client.xrange(keys("log", task_id))
        await client.delete(keys("log", task_id))
        for place, fields in log:
            kind = next(iter(fields))
            new = data if int(place.partition(b"-")[0]) == version else fields[kind]
            await client.xadd(keys("log", task_id), {kind: new}, id=place)


async def damage_head(engine: Engine, task_id: str) -> None:
    """Gives a task a state that this release does not know, or, where its head is one value, leaves half of that."""
    if isinstance(engine, SQLiteEngine):
        _sqlite(engine, "UPDATE tasks SET state = 'TASK_STATE_DREAMING', unread = 'many' WHERE id = ?", task_id)
    elif isinstance(engine, PostgresEngine):
        await _postgres(engine, "UPDATE tasks SET state = 'TASK_STATE_DREAMING' WHERE id = $1", task_id)
    elif isinstance(engine, RedisEngine):
        client: Any = engine.parts.server.client
        key = engine.keys("task", task_id)
        record = await client.hget(key, "record")
        await client.hset(key, "record", record[: len(record) // 2])


async def damage_push(engine: Engine, task_id: str, config_id: str, data: bytes = GARBAGE) -> None:
    """Replaces a push config of a task."""
    if isinstance(engine, SQLiteEngine):
        statement = "UPDATE pushes SET config = ? WHERE task = (SELECT no FROM tasks WHERE id = ?) AND id = ?"
        _sqlite(engine, statement, data, task_id, config_id)
    elif isinstance(engine, PostgresEngine):
        text = data.decode("latin-1").replace("\0", "")
        statement = "UPDATE pushes SET config = $1 WHERE task_id = $2 AND id = $3"
        await _postgres(engine, statement, text, task_id, config_id)
        if data == GARBAGE:
            await _postgres(engine, "UPDATE tasks SET pushes = $1 WHERE id = $2", text, task_id)
    elif isinstance(engine, RedisEngine):
        client: Any = engine.parts.server.client
        key = engine.keys("pushes", task_id)
        if data != GARBAGE:
            entry = msgspec.msgpack.decode(await client.hget(key, config_id))
            data = msgspec.msgpack.encode({**entry, "config": data.decode()})
        await client.hset(key, config_id, data)


async def damage_access(engine: Engine, entry_id: str) -> None:
    """Replaces an entry of the access log."""
    if isinstance(engine, SQLiteEngine):
        _sqlite(engine, "UPDATE accesses SET data = ? WHERE id = ?", GARBAGE, entry_id)
    elif isinstance(engine, PostgresEngine):
        await _postgres(engine, "UPDATE accesses SET data = $1 WHERE id = $2", GARBAGE, entry_id)
    elif isinstance(engine, RedisEngine):
        client: Any = engine.parts.server.client
        key = engine.keys("accesses")
        for data, at in await client.zrange(key, 0, -1, withscores=True):
            if f'"id":"{entry_id}"'.encode() in data:
                await client.zrem(key, data)
                await client.zadd(key, {GARBAGE: at})


async def damage_report(engine: Engine, process_id: str) -> None:
    """Replaces the report of a process."""
    if isinstance(engine, SQLiteEngine):
        _sqlite(engine, "UPDATE processes SET data = ? WHERE id = ?", GARBAGE, process_id)
    elif isinstance(engine, PostgresEngine):
        await _postgres(engine, "UPDATE processes SET data = $1 WHERE id = $2", GARBAGE, process_id)
    elif isinstance(engine, RedisEngine):
        client: Any = engine.parts.server.client
        await client.hset(engine.keys("processes"), process_id, GARBAGE)


def _sqlite(engine: SQLiteEngine, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(engine.path)) as connection, connection:
        assert connection.execute(statement, values).rowcount == 1


async def _postgres(engine: PostgresEngine, statement: str, *values: object) -> None:
    connection = await asyncpg.connect(shared_server().url())
    try:
        await connection.execute(f'SET search_path TO "{engine._options.schema}"')
        assert await connection.execute(statement, *values) == "UPDATE 1"
    finally:
        await connection.close()
