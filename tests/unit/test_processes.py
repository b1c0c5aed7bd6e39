"""`ProcessReporter`: a process measures itself, keeps its samples for a while, and reports through the store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands.engines.memory import MemoryEngine
from errands.errors import StorageError
from errands.model.log import OutboxBacklog, ProcessReport
from errands.runtime.figures import Figures
from errands.runtime.processes import KEPT, ProcessReporter, samples_of
from errands.testing import ManualClock
from errands.version import __version__
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Store(MemoryEngine):
    """A store that may be away, with a queue and an outbox that wait."""

    is_away = False
    asked = 0

    async def queue_age(self, agents: Any) -> int | None:
        self.asked += 1
        if self.is_away:
            raise StorageError("away")
        return 1500

    async def outbox_backlog(self, agent: str) -> OutboxBacklog:
        return OutboxBacklog(self.clock() - 2500, 3)

    async def forget_process(self, process_id: str) -> None:
        if self.is_away:
            await asyncio.Event().wait()
        await super().forget_process(process_id)


def reporter(engine: MemoryEngine, name: str = "host:17:abc", **options: Any) -> ProcessReporter:
    figures = Figures()
    figures.read_from("errands_turns_running", lambda: 5)
    defaults = {"agent": "Echo", "role": "all", "agents": ["Echo"], "every": 0.001}
    return ProcessReporter(engine, figures, process_id=name, **{**defaults, **options})


def values(report: ProcessReport) -> dict[str, float]:
    return {sample.name: sample.value for sample in samples_of(report) if not sample.labels}


async def test_a_process_reports_what_it_counts_and_what_the_store_answers() -> None:
    clock = ManualClock()
    async with MemoryEngine(clock=clock) as plain, Store(clock=clock) as engine:
        assert await plain.processes() == []
        clock.advance(seconds=1)
        async with reporter(engine, loop_lag=lambda: 0.25):
            await until(lambda: engine.asked > 2)
            [report] = await engine.processes()
        assert (report.id, report.agent, report.role) == ("host:17:abc", "Echo", "all")
        assert (report.version, report.started_at, report.at, report.group) == (__version__, clock(), clock(), "")
        found = values(report)
        assert found["errands_turns_running"] == 5
        assert found["errands_queue_age_seconds"] == 1.5
        assert (found["errands_outbox_lag_seconds"], found["errands_outbox_dead"]) == (2.5, 3)
        assert found["errands_loop_lag_seconds"] == 0.25
        # It stopped in good order.
        assert await engine.processes() == []


async def test_while_the_store_is_away_the_process_keeps_its_own_samples_and_calls_the_rest_unknown() -> None:
    async with Store() as engine, reporter(engine) as reporting:
        await until(lambda: engine.asked > 1)
        assert "errands_queue_age_seconds" in values(reporting.current())
        engine.is_away, engine.asked = True, 0
        await until(lambda: engine.asked > 3)
        last = {sample.name for sample in reporting.history()[-1].samples}
        unknown = {"errands_queue_age_seconds", "errands_outbox_lag_seconds", "errands_outbox_dead"}
        assert not last & unknown
        assert "errands_turns_running" in last
        assert not values(reporting.current()).keys() & unknown
        # A store that does not answer holds up no stop for long.


async def test_samples_of_a_quarter_of_an_hour_are_kept() -> None:
    clock = ManualClock()
    async with Store(clock=clock) as engine, reporter(engine, every=0.0) as reporting:
        await until(lambda: engine.asked > KEPT + 20)
        history = reporting.history()
        assert len(history) == KEPT
        assert [one.value for one in history[0].samples if one.name == "errands_turns_running"] == [5]


async def test_the_history_is_thinned_and_continued() -> None:
    clock = ManualClock(0)
    async with Store(clock=clock) as engine, reporter(engine, every=0.0) as reporting:
        await until(lambda: engine.asked > 10)
        clock.advance(seconds=5)
        await until(lambda: {moment.at for moment in reporting.history()} >= {5_000})
        clock.advance(seconds=25)
        await until(lambda: {moment.at for moment in reporting.history()} >= {5_000, 30_000})
        whole = {moment.at for moment in reporting.history()}
        thinned = [moment.at for moment in reporting.history(step=15_000)]
        assert thinned == [min(whole), 30_000]
        assert {moment.at for moment in reporting.history(since=5_000)} == {30_000}


async def test_processes_that_share_their_ports_show_each_other() -> None:
    clock = ManualClock()
    async with (
        Store(clock=clock) as engine,
        reporter(engine, "host:1:a", group="host:99") as first,
        reporter(engine, "host:2:b", group="host:99"),
        reporter(engine, "host:3:c", group="host:98"),
        reporter(engine, "host:4:d"),
    ):
        await until(lambda: len(first.exposed()) == 2)
        assert [one.labels for one in first.exposed()] == [{"process": "1"}, {"process": "2"}]
        assert all(one.samples for one in first.exposed())
        # One that died is not shown for ever.
        others = first.exposed()[1:]
        clock.advance(seconds=31)
        assert first.exposed()[1:] != others
