"""Random interleavings of senders, workers, cancels, crashes, the reaper and subscribers over every engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings

from errands.engines.base import Engine
from errands.engines.postgres import PostgresEngine
from errands.engines.redis import RedisEngine
from errands.engines.sqlite import SQLiteEngine
from tests.postgres import url_for
from tests.redis_server import shared_url
from tests.soak import examples
from tests.unit.interleavings import Lifecycle, common


class LifecycleInMemory(Lifecycle):
    pass


class LifecycleInSQLite(Lifecycle):
    reopens = True

    def make_engine(self) -> Engine:
        return SQLiteEngine(Path(self.folder.name) / "tasks.db", clock=self.clock)


class LifecycleInPostgreSQL(Lifecycle):
    reopens = True

    def make_engine(self) -> Engine:
        return PostgresEngine(url_for(Path(self.folder.name)), clock=self.clock)


class LifecycleInRedis(Lifecycle):
    reopens = True

    def make_engine(self) -> Engine:
        return RedisEngine(shared_url(Path(self.folder.name)), clock=self.clock)


TestLifecycleInMemory = pytest.mark.timeout(240)(LifecycleInMemory.TestCase)
TestLifecycleInMemory.settings = settings(max_examples=examples(100), stateful_step_count=50, **common)  # type: ignore[arg-type]
TestLifecycleInSQLite = pytest.mark.timeout(240)(LifecycleInSQLite.TestCase)
TestLifecycleInSQLite.settings = settings(max_examples=examples(30), stateful_step_count=40, **common)  # type: ignore[arg-type]
TestLifecycleInPostgreSQL = pytest.mark.timeout(240)(LifecycleInPostgreSQL.TestCase)
TestLifecycleInPostgreSQL.settings = settings(max_examples=examples(15), stateful_step_count=40, **common)  # type: ignore[arg-type]
TestLifecycleInRedis = pytest.mark.timeout(240)(LifecycleInRedis.TestCase)
TestLifecycleInRedis.settings = settings(max_examples=examples(20), stateful_step_count=40, **common)  # type: ignore[arg-type]
