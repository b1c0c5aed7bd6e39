"""`Processes`: each process that uses a store has its newest report there, until it stops or is silent."""

from __future__ import annotations

import pytest

from errands.engines.base import Engine
from errands.engines.memory import MemoryEngine
from errands.model.log import SILENT_AFTER, ProcessReport
from tests.contract.changes import ManualClock
from tests.contract.conftest import OpenEngine
from tests.damage import damage_report

pytestmark = pytest.mark.anyio

SILENCE = int(SILENT_AFTER * 1000)


def report(name: str, at: int) -> ProcessReport:
    return ProcessReport(
        id=name,
        agent="Echo \0\U0001f600",
        role="all",
        version="0.1.0",
        started_at=1,
        at=at,
        figures=b'[{"name":"errands_turns_running","value":3.0}]',
    )


async def ids(engine: Engine) -> list[str]:
    return [one.id for one in await engine.processes()]


async def test_the_newest_report_of_each_process_is_kept_whole(engine: Engine, clock: ManualClock) -> None:
    assert await engine.processes() == []
    for name in ("b", "a \0", "b", "c"):
        clock.advance(5000)
        await engine.report(report(name, clock()))
    found = await engine.processes()
    assert found == [report("a \0", clock() - 10_000), report("b", clock() - 5000), report("c", clock())]


async def test_a_process_that_is_silent_is_left_out_and_its_report_deleted(engine: Engine, clock: ManualClock) -> None:
    await engine.report(report("a", clock()))
    await engine.report(report("b", clock.advance(1)))
    clock.advance(SILENCE - 1)
    assert await ids(engine) == ["b"]
    await engine.report(report("c", clock.advance(1)))
    assert await ids(engine) == ["c"]
    # Time goes back: what was deleted does not return.
    clock.advance(-SILENCE)
    assert await ids(engine) == ["c"]


async def test_a_silent_process_returns_with_its_next_report(engine: Engine, clock: ManualClock) -> None:
    await engine.report(report("a", clock()))
    await engine.report(report("a", clock.advance(2 * SILENCE)))
    assert await ids(engine) == ["a"]


async def test_a_process_that_stops_is_forgotten(engine: Engine, clock: ManualClock) -> None:
    for name in ("a", "b"):
        await engine.report(report(name, clock()))
    await engine.forget_process("a")
    await engine.forget_process("unknown")
    assert await ids(engine) == ["b"]


async def test_reports_survive_the_engine(open_engine: OpenEngine, clock: ManualClock) -> None:
    engine = await open_engine()
    await engine.report(report("a", clock()))
    if engine.durable:
        await engine.close()
        await engine.open()
    assert await ids(engine) == ["a"]


async def test_a_report_that_cannot_be_read_hides_no_other(engine: Engine, clock: ManualClock) -> None:
    for name in ("a", "b", "c"):
        await engine.report(report(name, clock()))
    if isinstance(engine, MemoryEngine):
        pytest.skip("it keeps objects")
    await damage_report(engine, "b")
    assert await ids(engine) == ["a", "c"]
