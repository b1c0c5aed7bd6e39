"""The state machine: every task follows it, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from errands import lifecycle
from errands.engines.urls import engine_from_url
from errands.errors import IllegalTransitionError, TaskTerminalStateError
from errands.model.core import PAUSED_STATES, TERMINAL_STATES, TaskState
from errands.model.log import Head, Work
from tests.cells import every_engine
from tests.unit.support import ANYBODY, bring, opening, step

pytestmark = pytest.mark.anyio

#: The diagram of the founding document, `[*]` on the left being no task yet.
DIAGRAM = """
    [*] --> submitted: message:send / message:stream
    submitted --> working: Worker picks up task
    working --> completed: ctx.complete() / ctx.respond() / ctx.reply_directly()
    working --> failed: ctx.fail() / unhandled exception
    working --> canceled: ctx.is_cancelled + cooperative cancel
    working --> rejected: ctx.reject()
    working --> input_required: ctx.request_input()
    working --> auth_required: ctx.request_auth()
    input_required --> submitted: User sends follow-up message
    auth_required --> submitted: User sends auth credentials
    submitted --> canceled: Cancel before worker picks up
"""
#: What the document leaves out: a paused task can be canceled and can grow too old for its policy, and a progress
#: update stays in working.
BEYOND = """
    input_required --> canceled
    auth_required --> canceled
    input_required --> failed: past max_age
    auth_required --> failed: past max_age
    working --> working: ctx.send_status()
    submitted --> failed: past task_timeout
"""

STATES = list(TaskState)
REAL_STATES = [state for state in STATES if state is not TaskState.UNSPECIFIED]


def arrows(diagram: str) -> set[tuple[TaskState, TaskState]]:
    pairs: set[tuple[TaskState, TaskState]] = set()
    for line in diagram.strip().splitlines():
        left, _, right = line.partition(":")[0].partition("-->")
        pairs.add((state_named(left), state_named(right)))
    return pairs


def state_named(name: str) -> TaskState:
    return TaskState.UNSPECIFIED if name.strip() == "[*]" else TaskState.parse(name)


LEGAL = arrows(DIAGRAM) | arrows(BEYOND)


def name_of(value: object) -> str:
    return value.short if isinstance(value, TaskState) else str(value)


def test_the_table_is_exactly_the_diagram_and_what_it_leaves_out() -> None:
    table = {(left, right) for left, rights in lifecycle.TRANSITIONS.items() for right in rights}
    assert table == LEGAL


@pytest.mark.parametrize(("left", "right"), list(itertools.product(REAL_STATES, REAL_STATES)), ids=name_of)
def test_whoever_holds_the_lease_may_go_from_any_live_state_to_any_other(left: TaskState, right: TaskState) -> None:
    head = Head(version=1, state=left, attempt=1, worker="here")
    change = step("t", right, fence=1)
    if left in TERMINAL_STATES:
        with pytest.raises(TaskTerminalStateError):
            lifecycle.accept(head, change)
    else:
        lifecycle.accept(head, change)


def test_the_terminal_states_are_those_without_a_way_on() -> None:
    assert {TaskState.COMPLETED, TaskState.FAILED, TaskState.CANCELED, TaskState.REJECTED} == TERMINAL_STATES
    assert {state for state in STATES if not lifecycle.TRANSITIONS.get(state)} == TERMINAL_STATES


def test_the_paused_states_are_those_from_which_a_follow_up_resubmits() -> None:
    assert {TaskState.INPUT_REQUIRED, TaskState.AUTH_REQUIRED} == PAUSED_STATES
    assert {state for state in PAUSED_STATES if TaskState.SUBMITTED in lifecycle.TRANSITIONS[state]} == PAUSED_STATES


@pytest.mark.parametrize(("left", "right"), list(itertools.product(STATES, REAL_STATES)), ids=name_of)
def test_a_pair_of_states_is_legal_or_refused_as_the_table_says(left: TaskState, right: TaskState) -> None:
    head = Head(version=0 if left is TaskState.UNSPECIFIED else 1, state=left)
    change = step("t", right)
    if (left, right) in LEGAL:
        lifecycle.accept(head, change)
    else:
        expected = TaskTerminalStateError if left in TERMINAL_STATES else IllegalTransitionError
        with pytest.raises(expected):
            lifecycle.accept(head, change)


@pytest.mark.parametrize("right", [state for state in REAL_STATES if state is not TaskState.SUBMITTED], ids=name_of)
def test_a_task_cannot_be_created_in_any_other_state_than_submitted(right: TaskState) -> None:
    with pytest.raises(IllegalTransitionError):
        lifecycle.accept(None, opening(state=right))


@pytest.mark.parametrize("left", [TaskState.UNSPECIFIED, *sorted(PAUSED_STATES)], ids=name_of)
def test_a_task_that_is_claimed_in_the_commit_that_submits_it_may_be_working_after_it(left: TaskState) -> None:
    lifecycle.accept(Head(state=left), step("t", TaskState.WORKING, work=Work.LEASE, worker="here"))
    with pytest.raises(IllegalTransitionError):
        lifecycle.accept(Head(state=left), step("t", TaskState.WORKING))


@every_engine
@pytest.mark.parametrize("left", REAL_STATES, ids=name_of)
async def test_every_engine_keeps_to_the_table(left: TaskState, storage: str) -> None:
    async with engine_from_url(storage) as engine:
        for number, right in enumerate(REAL_STATES):
            task_id = f"t{number}"
            before = await bring(engine, left, task_id)
            if (left, right) in LEGAL:
                await engine.commit(step(task_id, right))
                assert (await engine.load(task_id, ANYBODY)).state is right
            else:
                with pytest.raises((TaskTerminalStateError, IllegalTransitionError)):
                    await engine.commit(step(task_id, right))
                assert await engine.load(task_id, ANYBODY) == before
