"""Records: what a run has come to. They stand in the log, say nothing about the task, and outlive what is trimmed."""

from __future__ import annotations

from typing import Any

import pytest

from errands.engines.base import Engine, Retention
from errands.errors import LeaseLostError, TaskNotFoundError
from errands.model.log import Change, Draft, Event
from tests.contract.changes import ME, SOMEBODY_ELSE, Changes, ManualClock, log_of, text_in
from tests.contract.conftest import OpenEngine

pytestmark = pytest.mark.anyio


def note(changes: Changes, *texts: str, **fields: Any) -> Change:
    return changes.move(events=tuple(Draft("record", text.encode()) for text in texts), **fields)


async def texts_of(engine: Engine) -> list[str]:
    return [event.data.decode() for event in await engine.records("t", ME)]


async def test_records_have_their_places_in_the_log(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    await engine.commit(note(changes, "one", "two"))
    await engine.commit(changes.chunk(text="x"))
    await engine.commit(note(changes, "three"))
    assert await engine.records("t", ME) == [
        Event(3, "record", b"one", clock()),
        Event(4, "record", b"two", clock()),
        Event(6, "record", b"three", clock()),
    ]
    assert [event.kind for event in await log_of(engine)] == ["task", "status", *["record"] * 2, "artifact", "record"]


async def test_a_record_says_nothing_about_the_task(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    before = (await engine.load("t", ME)).task
    await engine.commit(note(changes, "no JSON at all"))
    assert (await engine.load("t", ME)).task == before


async def test_a_task_without_records_has_none(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    assert await engine.records("t", ME) == []


async def test_records_of_an_ended_task_can_be_read(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(note(changes, "one"))
    await engine.commit(changes.complete())
    assert await texts_of(engine) == ["one"]


async def test_records_of_somebody_else_are_not_found(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    for task_id, scope in (("t", SOMEBODY_ELSE), ("another", ME)):
        with pytest.raises(TaskNotFoundError):
            await engine.records(task_id, scope)


async def test_a_record_of_a_superseded_attempt_is_refused(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    with pytest.raises(LeaseLostError):
        await engine.commit(note(changes, "late", fence=7))
    assert await texts_of(engine) == []


async def test_records_outlive_the_events_around_them(open_engine: OpenEngine, changes: Changes) -> None:
    engine = await open_engine(Retention(events_per_task=20))
    await engine.commit(changes.start())
    for number in range(60):
        await engine.commit(changes.chunk(text=f"{number} "))
        await engine.commit(note(changes, str(number)))
    await engine.sweep()
    assert await texts_of(engine) == [str(number) for number in range(60)]
    assert text_in(await engine.load("t", ME)) == "".join(f"{number} " for number in range(60))
    early = await engine.read("t", ME, 0)
    assert early.gap
    assert [event.version for event in early.events] == list(range(103, 123))


async def test_records_go_with_their_task(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(note(changes, "one"))
    await engine.commit(changes.complete())
    await engine.delete("t", ME)
    with pytest.raises(TaskNotFoundError):
        await engine.records("t", ME)
    await engine.commit(changes.start())
    assert await texts_of(engine) == []
