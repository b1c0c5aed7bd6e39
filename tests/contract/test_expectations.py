"""Waiting for a state: `expect` and `wait_for_state`."""

from __future__ import annotations

import asyncio

import pytest

from errands import lifecycle
from errands.engines.base import Engine
from errands.errors import TaskNotFoundError
from errands.model.core import SETTLED_STATES, TERMINAL_STATES, TaskState
from errands.model.log import StoredTask
from tests.contract.changes import ME, Changes, text_in

pytestmark = pytest.mark.anyio


async def completed_with_fold(engine: Engine, changes: Changes) -> int:
    """Ends a task as the runtime does: with the whole task at hand."""
    log = (await engine.read("t", ME, 0)).events
    change = changes.complete()
    fold = lifecycle.fold(None, [*log, *change.events])
    return (await engine.commit(changes.complete(fold=fold, expected=len(log)))).version


async def test_waiting_for_a_state_that_is_there_returns_at_once(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    assert (await engine.wait_for_state("t", ME, frozenset({TaskState.WORKING}), None)).version == 2


@pytest.mark.parametrize("with_fold", [True, False], ids=["with a fold", "without"])
async def test_a_waiter_gets_the_task_when_it_has_come_to_the_state(
    engine: Engine, changes: Changes, with_fold: bool
) -> None:
    await engine.commit(changes.start())
    waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, SETTLED_STATES, None))
    await engine.commit(changes.chunk(text="the answer"))
    await (completed_with_fold(engine, changes) if with_fold else engine.commit(changes.complete()))
    stored = await waiting
    assert (stored.version, stored.state, text_in(stored)) == (4, TaskState.COMPLETED, "the answer")
    assert stored == await engine.load("t", ME)


async def test_a_waiter_gets_the_task_as_it_stands_when_the_time_is_over(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    stored = await engine.wait_for_state("t", ME, TERMINAL_STATES, 0.01)
    assert (stored.state, stored.version) == (TaskState.WORKING, 2)


async def test_waiting_for_a_task_that_does_not_exist_is_refused(engine: Engine) -> None:
    with pytest.raises(TaskNotFoundError):
        await engine.wait_for_state("t", ME, TERMINAL_STATES, None)


async def test_other_states_do_not_wake_a_waiter(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    waiting = asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None))
    await engine.commit(changes.ask())
    await engine.commit(changes.answer())
    assert not waiting.done()
    await engine.commit(changes.status("t", TaskState.CANCELED))
    assert (await waiting).state is TaskState.CANCELED


async def test_an_expectation_misses_no_change_made_before_the_wait(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    with engine.expect("t", ME, SETTLED_STATES) as expectation:
        await completed_with_fold(engine, changes)
        stored = await expectation.wait(2, None)
    assert stored is not None
    assert stored.state is TaskState.COMPLETED


async def test_an_expectation_can_be_registered_before_its_task_exists(engine: Engine, changes: Changes) -> None:
    with engine.expect("t", ME, SETTLED_STATES) as expectation:
        version = (await engine.commit(changes.start())).version
        await engine.commit(changes.complete())
        stored = await expectation.wait(version, None)
    assert stored is not None
    assert stored.version == 3


async def test_only_a_state_after_the_given_version_fulfils_an_expectation(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    with engine.expect("t", ME, SETTLED_STATES) as expectation:
        asked = (await engine.commit(changes.ask())).version
        assert await expectation.wait(asked, 0.01) is None
        await engine.commit(changes.answer())
        await engine.commit(changes.status("t", TaskState.CANCELED))
        stored = await expectation.wait(asked, None)
    assert stored is not None
    assert stored.state is TaskState.CANCELED


async def test_the_newest_of_several_fitting_changes_counts(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    with engine.expect("t", ME, SETTLED_STATES) as expectation:
        asked = (await engine.commit(changes.ask())).version
        await engine.commit(changes.answer())
        await engine.commit(changes.status("t", TaskState.CANCELED))
        stored = await expectation.wait(asked, None)
    assert stored is not None
    assert stored.state is TaskState.CANCELED


async def test_a_wait_that_timed_out_can_be_repeated(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    with engine.expect("t", ME, SETTLED_STATES) as expectation:
        assert await expectation.wait(2, 0.01) is None
        assert await expectation.wait(2, 0.01) is None
        waiting = asyncio.ensure_future(expectation.wait(2, None))
        await engine.commit(changes.complete())
        stored = await waiting
    assert stored is not None
    assert stored.state is TaskState.COMPLETED


async def test_many_waiters_get_the_same_task(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    waiting = [asyncio.ensure_future(engine.wait_for_state("t", ME, TERMINAL_STATES, None)) for _ in range(20)]
    await asyncio.sleep(0)
    await completed_with_fold(engine, changes)
    tasks: list[StoredTask] = await asyncio.gather(*waiting)
    assert {stored.version for stored in tasks} == {3}
