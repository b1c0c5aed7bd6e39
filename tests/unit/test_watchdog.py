"""Code that holds the event loop is named, whatever it does there, and nothing else is."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import Callable

import pytest

from errands import A2AServer, AgentCardConfig, Settings
from errands.runtime.watchdog import Hold, Watchdog
from tests.interaction.agents import Echo
from tests.waiting import SOON, until

pytestmark = [pytest.mark.anyio, pytest.mark.holds_the_loop("that is what it is about")]

LONGEST = 0.1


def busy() -> None:
    """Runs Python code."""
    end = time.thread_time() + 3 * LONGEST
    while time.thread_time() < end:
        small()


def small() -> None:
    sum(range(100))


def native() -> None:
    """Makes one call that lets no other thread run."""
    begin, letters = time.thread_time(), 18
    while time.thread_time() - begin < 2 * LONGEST:
        begin, letters = time.thread_time(), letters + 1
        re.match(r"(a+)+b", "a" * letters)


def waiting() -> None:
    """Waits for something else than the loop."""
    time.sleep(3 * LONGEST)


@pytest.mark.parametrize("hold", [busy, native, waiting])
async def test_code_that_holds_the_loop_is_named(hold: Callable[[], None]) -> None:
    held: list[Hold] = []
    with Watchdog(LONGEST, held.append):
        await asyncio.sleep(0)
        hold()
        await until(lambda: held)
    assert hold.__name__ in held[0].place
    assert __file__ in held[0].place
    assert held[0].seconds >= LONGEST
    if hold is waiting:
        assert held[0].processor < LONGEST


def test_code_is_named_when_the_loop_is_run_again_with_fewer_calls_below_it() -> None:
    held: list[Hold] = []
    watchdog = Watchdog(LONGEST, held.append)

    async def begin() -> None:
        watchdog.__enter__()
        await asyncio.sleep(0)

    def busy_until_named() -> None:
        end = time.monotonic() + SOON
        while not held and time.monotonic() < end:
            small()

    async def end() -> None:
        busy_until_named()
        watchdog.__exit__()

    def run_from_afar(runner: asyncio.Runner, calls: int) -> None:
        if calls:
            run_from_afar(runner, calls - 1)
        else:
            runner.run(begin())

    with asyncio.Runner() as runner:
        run_from_afar(runner, 50)
        runner.run(end())
    [hold] = held
    assert busy_until_named.__name__ in hold.place


async def test_many_short_callbacks_are_not_blamed() -> None:
    held: list[Hold] = []
    with Watchdog(LONGEST, held.append):
        for _ in range(200):
            asyncio.get_running_loop().call_soon(sum, range(100_000))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert held == []


async def test_a_loop_that_waits_is_not_held() -> None:
    held: list[Hold] = []
    with Watchdog(LONGEST, held.append):
        await asyncio.sleep(3 * LONGEST)
    assert held == []


async def test_a_server_warns_and_not_too_often(caplog: pytest.LogCaptureFixture) -> None:
    settings = Settings(storage="memory", loop_hold_warning=LONGEST)
    card = AgentCardConfig(name="echo", description="Echoes.")
    with caplog.at_level(logging.WARNING, "errands.runtime.watchdog"):
        async with A2AServer(worker=Echo(), agent_card=card, settings=settings):
            for _ in range(3):
                busy()
                await asyncio.sleep(0)
            await until(lambda: caplog.records)
    [record] = caplog.records
    assert "the event loop was held for" in record.getMessage()
    assert "busy" in record.getMessage()
    assert not [thread for thread in threading.enumerate() if thread.name == "errands-watchdog"]


async def test_warnings_can_be_turned_off() -> None:
    settings = Settings(storage="memory", loop_hold_warning=None)
    async with A2AServer(worker=Echo(), agent_card=AgentCardConfig(name="e", description="E."), settings=settings):
        assert not [thread for thread in threading.enumerate() if thread.name == "errands-watchdog"]


async def test_the_longest_hold_since_the_last_look_is_the_lag() -> None:
    with Watchdog(LONGEST, lambda _: None) as watchdog:
        waiting()
        waiting()
        await asyncio.sleep(LONGEST)
        assert 2 * LONGEST < watchdog.take_lag() < 6 * LONGEST
        assert watchdog.take_lag() == 0
