"""Receipts: the same message is accepted once, whatever became of its task."""

from __future__ import annotations

import asyncio

import pytest

from errands.engines.base import Engine
from errands.errors import ConcurrencyError, DuplicateMessageError
from errands.model.core import TaskState
from errands.model.log import Work
from tests.contract.changes import ME, SOMEBODY_ELSE, Changes, ManualClock, log_of, versions

pytestmark = pytest.mark.anyio

RECEIPT = b"\x00\xff digest of a message"


async def test_the_same_message_is_accepted_once(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create("first", receipt=RECEIPT))
    with pytest.raises(DuplicateMessageError) as duplicate:
        await engine.commit(changes.create("second", receipt=RECEIPT))
    assert duplicate.value.task_id == "first"


async def test_of_50_concurrent_sends_of_one_message_exactly_one_is_accepted(engine: Engine, changes: Changes) -> None:
    results = await asyncio.gather(
        *(engine.commit(changes.create(f"t{n}", receipt=RECEIPT)) for n in range(50)), return_exceptions=True
    )
    assert versions(results[:1]) == [1]
    assert all(isinstance(result, DuplicateMessageError) and result.task_id == "t0" for result in results[1:])


async def test_another_message_is_another_receipt(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create("first", receipt=b"one"))
    assert (await engine.commit(changes.create("second", receipt=b"two"))).version == 1


async def test_a_receipt_is_checked_before_everything_else(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(receipt=RECEIPT))
    await engine.commit(changes.complete())
    for refused in (
        changes.create(receipt=RECEIPT),
        changes.answer(receipt=RECEIPT),
        changes.chunk(receipt=RECEIPT, expected=17),
        changes.chunk(receipt=RECEIPT, fence=17),
        changes.chunk("nobody's", receipt=RECEIPT),
    ):
        with pytest.raises(DuplicateMessageError):
            await engine.commit(refused)


@pytest.mark.parametrize("state", [TaskState.COMPLETED, TaskState.CANCELED, TaskState.FAILED])
async def test_a_repeated_message_is_recognised_after_its_task_has_ended(
    engine: Engine, changes: Changes, state: TaskState
) -> None:
    await engine.commit(changes.start(receipt=RECEIPT))
    await engine.commit(changes.status("t", state, work=Work.IDLE))
    with pytest.raises(DuplicateMessageError):
        await engine.commit(changes.create("again", receipt=RECEIPT))


async def test_a_message_that_continued_a_task_is_recognised_too(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.ask())
    await engine.commit(changes.answer(receipt=RECEIPT))
    with pytest.raises(DuplicateMessageError) as duplicate:
        await engine.commit(changes.answer(receipt=RECEIPT))
    assert duplicate.value.task_id == "t"


async def test_the_receipt_of_a_refused_change_is_not_kept(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create())
    with pytest.raises(ConcurrencyError):
        await engine.commit(changes.create(receipt=RECEIPT))
    assert (await engine.commit(changes.create("another", receipt=RECEIPT))).version == 1


async def test_a_receipt_counts_only_in_its_own_scope(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create("mine", receipt=RECEIPT))
    assert (await engine.commit(changes.create("theirs", receipt=RECEIPT, scope=SOMEBODY_ELSE))).version == 1
    for scope, known in ((ME, "mine"), (SOMEBODY_ELSE, "theirs")):
        with pytest.raises(DuplicateMessageError) as duplicate:
            await engine.commit(changes.create("again", receipt=RECEIPT, scope=scope))
        assert duplicate.value.task_id == known


async def test_an_expired_receipt_is_replaced(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.create("old", receipt=RECEIPT))
    accepted_at = clock()
    clock.advance(1000)
    with pytest.raises(DuplicateMessageError):
        await engine.commit(changes.create("new", receipt=RECEIPT, receipt_since=accepted_at))
    assert (await engine.commit(changes.create("new", receipt=RECEIPT, receipt_since=accepted_at + 1))).version == 1
    with pytest.raises(DuplicateMessageError) as duplicate:
        await engine.commit(changes.create("newest", receipt=RECEIPT, receipt_since=accepted_at + 1))
    assert duplicate.value.task_id == "new"


async def test_an_expired_message_that_comes_to_the_same_task_again_counts_from_then_on(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start(receipt=RECEIPT))
    await engine.commit(changes.ask())
    now = clock.advance(1000)
    await engine.commit(changes.answer(receipt=RECEIPT, receipt_since=now))
    with pytest.raises(DuplicateMessageError):
        await engine.commit(changes.chunk(receipt=RECEIPT, receipt_since=now))
    assert len(await log_of(engine)) == 5


async def test_a_receipt_dies_with_its_task(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(receipt=RECEIPT))
    await engine.commit(changes.complete())
    await engine.delete("t", ME)
    assert (await engine.commit(changes.create("again", receipt=RECEIPT))).version == 1


async def test_the_receipt_of_a_deleted_task_does_not_pass_to_the_next_one(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start(receipt=RECEIPT))
    await engine.commit(changes.complete())
    await engine.delete("t", ME)
    await engine.commit(changes.create("next", receipt=b"another"))
    assert (await engine.commit(changes.create("again", receipt=RECEIPT))).version == 1


async def test_a_receipt_outlives_the_task_whose_expired_one_it_replaced(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start("old", receipt=RECEIPT))
    await engine.commit(changes.complete("old"))
    now = clock.advance(1000)
    await engine.commit(changes.start("new", receipt=RECEIPT, receipt_since=now))
    await engine.delete("old", ME)
    with pytest.raises(DuplicateMessageError) as duplicate:
        await engine.commit(changes.create("newest", receipt=RECEIPT, receipt_since=now))
    assert duplicate.value.task_id == "new"
