"""Machines whose clocks are wrong: replicas go by the clock of the store that they share."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from errands.clock import system_clock
from errands.engines.base import Engine
from errands.engines.connection import TOLERATED, StoreClock, store_clock
from errands.engines.postgres import PostgresEngine
from errands.engines.redis import RedisEngine
from tests.contract.changes import AGENT, LEASE_MS, WORKER, Changes, ManualClock
from tests.postgres import url_for
from tests.redis_server import shared_url

MINUTES = 5 * 60_000

ENGINES: dict[str, Callable[[Path, StoreClock], Engine]] = {
    "postgresql": lambda folder, clock: PostgresEngine(url_for(folder), clock=clock, poll_interval=0.02),
    "redis": lambda folder, clock: RedisEngine(shared_url(folder), clock=clock),
}
Build = Callable[[StoreClock], Engine]


@pytest.fixture(params=ENGINES)
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    return lambda clock: ENGINES[request.param](tmp_path, clock)


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", [MINUTES, -MINUTES], ids=["ahead", "behind"])
async def test_who_has_a_wrong_clock_neither_takes_nor_loses_tasks(
    build: Build, wrong: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with build(StoreClock()) as right, build(StoreClock(lambda: system_clock() + wrong)) as other:
        (told,) = re.findall(rf"is (\S+) s {'ahead of' if wrong > 0 else 'behind'} that of", caplog.text)
        # A store that is slow to answer says little about the seconds.
        assert 200 < float(told) < 400
        for one, two in ((right, other), (other, right)):
            await one.commit(Changes(one.clock).create(one.name + str(one is right)))
            assert len(await one.claim(WORKER, [AGENT], 1, one.clock() + LEASE_MS)) == 1
            assert await two.claim("another", [AGENT], 10, two.clock() + LEASE_MS) == []
            assert len(await two.running()) == len(await one.running())


@pytest.mark.anyio
async def test_a_clock_that_jumps_is_noticed(build: Build, caplog: pytest.LogCaptureFixture) -> None:
    jump = ManualClock(0)
    async with build(StoreClock(lambda: system_clock() + jump())) as engine:
        assert not caplog.records
        for now in (MINUTES, 0, -MINUTES):
            jump.now = now
            while abs(engine.clock() - system_clock()) > TOLERATED:
                await engine.sweep()
                await asyncio.sleep(0)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) == 2


def test_the_difference_is_told_to_a_tenth_of_a_second(caplog: pytest.LogCaptureFixture) -> None:
    own = ManualClock(1_000_000)
    StoreClock(own).compare(own() - 10, own() - MINUTES - 5, own(), "the store")
    StoreClock(own).compare(own() - 10, own() + MINUTES + 95, own(), "the store")
    said = [record.getMessage() for record in caplog.records]
    assert "300.0 s ahead of that of the store" in said[0]
    assert "300.1 s behind that of the store" in said[1]


def test_a_clock_that_is_set_back_while_the_store_is_asked_waits_for_the_next_answer() -> None:
    own = ManualClock(1_000_000)
    clock = StoreClock(own)
    clock.compare(own() + MINUTES, own(), own(), "the store")
    assert clock() == own()
    # One that is set forward seems to have waited for long.
    clock.compare(own() - MINUTES, own() - MINUTES, own(), "the store")
    assert clock() == own()


def test_a_small_difference_is_left_alone_and_a_slow_answer_says_little() -> None:
    own = ManualClock(1_000_000)
    clock = StoreClock(own)
    clock.compare(own() - 10, own() + TOLERATED - 10, own(), "the store")
    assert clock() == own()
    clock.compare(own() - 20_000, own() - 20_500, own(), "the store")
    assert clock() == own()


def test_who_is_put_right_stays_so_while_the_difference_wavers() -> None:
    own = ManualClock(1_000_000)
    clock = StoreClock(own)
    clock.compare(own(), own() + TOLERATED + 1, own(), "the store")
    corrected = clock()
    assert corrected == own() + TOLERATED + 1
    clock.compare(own(), own() + TOLERATED - 1, own(), "the store")
    assert clock() == corrected


def test_only_the_clock_of_the_machine_is_put_right() -> None:
    given = ManualClock()
    assert store_clock(given) is given
    assert isinstance(store_clock(system_clock), StoreClock)
