"""The judgement of a change, as far as it goes beyond the transitions: receipts, ids, versions, leases, waking."""

from __future__ import annotations

from typing import Any

import pytest

from errands.errors import ConcurrencyError, DuplicateMessageError
from errands.lifecycle import Receipt, advance, judge
from errands.model.core import COMPLETED, SUBMITTED, WORKING, Task, TaskStatus
from errands.model.log import IDLE, LEASE, READY, Change, Draft, Head, LeaseRecord, Scope

ME, OTHER = Scope("", "me", "agent"), Scope("", "other", "agent")
EVENT = Draft("status", b"{}")


def change(**fields: Any) -> Change:
    return Change(**{"task_id": "t", "scope": ME, "at": 100, **fields})


def running(**fields: Any) -> Head:
    return Head(**{"version": 2, "state": WORKING, "attempt": 1, "worker": "w", "due_at": 200, **fields})


def test_a_repeated_message_is_recognised_before_anything_else() -> None:
    with pytest.raises(DuplicateMessageError) as caught:
        judge(ME, running(), Receipt("before", 50), change(expected=0, receipt=b"r", receipt_since=50))
    assert "before" in str(caught.value)


def test_a_receipt_from_before_the_window_does_not_count() -> None:
    again = change(expected=0, state=SUBMITTED, receipt=b"r", receipt_since=50)
    assert judge(None, None, Receipt("before", 49), again).head.state is SUBMITTED


def test_the_id_of_a_task_in_another_scope_is_taken() -> None:
    with pytest.raises(ConcurrencyError, match="the id t is taken"):
        judge(OTHER, running(), None, change(expected=0, state=SUBMITTED))


def test_a_task_in_another_scope_does_not_exist_for_other_changes() -> None:
    with pytest.raises(ConcurrencyError, match="does not exist"):
        judge(OTHER, running(), None, change(state=COMPLETED))


def test_events_get_the_next_versions_and_the_time_of_the_change() -> None:
    judged = judge(ME, running(), None, change(events=(EVENT, EVENT)))
    assert [(event.version, event.at) for event in judged.events] == [(3, 100), (4, 100)]
    assert judged.head == advance(running(), judged.change)
    assert judged.before == running()


def test_a_change_brings_the_whole_task_along() -> None:
    task = Task(id="t", status=TaskStatus(state=COMPLETED))
    judged = judge(ME, running(), None, change(expected=2, state=COMPLETED, work=IDLE, fold=task))
    assert judged.stored is not None
    assert (judged.stored.task, judged.stored.head, judged.stored.scope) == (task, judged.head, ME)


@pytest.mark.parametrize(
    ("fields", "wakes"),
    [({}, False), ({"work": READY}, True), ({"cancel_requested": True}, True), ({"cancel_requested": False}, False)],
)
def test_workers_are_woken_by_due_tasks_and_cancels(fields: dict[str, Any], wakes: bool) -> None:
    assert judge(ME, running(), None, change(**fields)).wakes_workers is wakes


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        (Head(version=1, state=SUBMITTED), "new"),
        (running(), "expired"),
        (running(worker="", given_back=1), "given back"),
    ],
)
def test_the_first_event_records_a_lease(before: Head, cause: Any) -> None:
    lease = change(events=(EVENT, EVENT), work=LEASE, worker="next", due_at=300)
    first, second = judge(ME, before, None, lease).events
    assert first.lease == LeaseRecord(before.attempt + 1, "next", 300, cause)
    assert second.lease is None


def test_a_lease_without_events_is_recorded_by_the_next_event() -> None:
    leased = judge(ME, running(), None, change(work=LEASE, worker="next", due_at=300)).head
    assert leased.claimed == "expired"
    judged = judge(ME, leased, None, change(fence=2, events=(EVENT,)))
    assert judged.events[0].lease == LeaseRecord(2, "next", 300, "expired")
    assert judged.head.claimed == ""


@pytest.mark.parametrize(
    "fields",
    [{"state": WORKING}, {"work": READY}, {"unread": 1}, {"direct": True}, {"receipt": b"r"}, {"context": b""}],
)
def test_only_chunks_and_their_like_only_append(fields: dict[str, Any]) -> None:
    assert judge(ME, running(), None, change(events=(EVENT,))).only_appends
    assert not judge(ME, running(), None, change(events=(EVENT,), **fields)).only_appends
    assert not judge(ME, running(claimed="ready"), None, change(events=(EVENT,))).only_appends
