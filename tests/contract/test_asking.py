"""`Head.asks` and `Storage.asking`: tasks that wait for one user's answer, found whoever owns them."""

from __future__ import annotations

from typing import Any

import pytest

from errands.engines.base import Engine
from errands.errors import TaskNotFoundError
from errands.model.core import TaskState
from errands.model.log import AskingQuery, Scope, StoredTask, Work
from tests.contract.changes import (
    AGENT,
    LEASE_MS,
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    SOMEBODY_ELSE,
    WORKER,
    Changes,
    ManualClock,
    message_draft,
    text_in,
)

pytestmark = pytest.mark.anyio

ANY = AskingQuery()
#: As a turn that waits for an answer ends: its message is not dealt with yet.
SUSPENDED: dict[str, Any] = {"unread": 0, "fence": 1}


async def ask(engine: Engine, changes: Changes, task_id: str = "t", user: str = "bob", scope: Scope = ME) -> None:
    """A task that runs and then waits for `user`."""
    await engine.commit(changes.start(task_id, scope=scope))
    await engine.commit(changes.ask(task_id, asks=user, scope=scope, **SUSPENDED))


async def asked(engine: Engine, query: AskingQuery = ANY) -> list[str]:
    return [stored.task.id for stored in await engine.asking(query)]


async def head_asks(engine: Engine) -> str:
    return (await engine.load("t", ME)).head.asks


async def test_a_task_that_asks_nobody_is_not_among_them(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    assert await head_asks(engine) == ""
    await engine.commit(changes.ask())
    assert await head_asks(engine) == ""
    assert await asked(engine) == []


async def test_a_task_that_asks_is_found_as_it_is_loaded(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    (found,) = await engine.asking(ANY)
    assert found == await engine.load("t", ME)
    assert found.head.asks == "bob"
    assert (found.scope, found.state, found.version) == (ME, TaskState.INPUT_REQUIRED, 3)
    assert found.task.status.message is not None


async def test_artifacts_are_left_out(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk(text="secret"))
    await engine.commit(changes.ask(asks="bob", **SUSPENDED))
    (found,) = await engine.asking(ANY)
    assert found.task.artifacts is None
    stored = await engine.load("t", ME)
    assert text_in(stored) == "secret"
    await engine.commit(changes.move(expected=stored.version, fold=stored.task))
    (found,) = await engine.asking(ANY)
    assert found.task.artifacts is None
    assert text_in(await engine.load("t", ME)) == "secret"


async def test_what_is_asked_stays_until_the_state_changes(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    await engine.commit(changes.move(events=(message_draft("t", "any news?"),), unread=1))
    await engine.commit(changes.cancel())
    assert await head_asks(engine) == "bob"
    (found,) = await engine.asking(ANY)
    assert (found.version, found.head.unread) == (5, 2)


async def test_an_answer_ends_what_is_asked(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    await engine.commit(changes.answer())
    assert await head_asks(engine) == ""
    assert await asked(engine) == []


@pytest.mark.parametrize("work", [Work.READY, Work.LEASE])
async def test_a_task_that_asked_before_may_ask_again(engine: Engine, changes: Changes, work: Work) -> None:
    await ask(engine, changes)
    await engine.commit(changes.answer(work=work, worker=WORKER if work is Work.LEASE else ""))
    if work is Work.READY:
        await engine.claim(WORKER, [AGENT], 1, 2**52)
    await engine.commit(changes.working(fence=2))
    assert await asked(engine) == []
    await engine.commit(changes.ask(asks="carol", unread=0, fence=2))
    assert await head_asks(engine) == "carol"
    assert await asked(engine, AskingQuery(users=("carol",))) == ["t"]
    assert await asked(engine, AskingQuery(users=("bob",))) == []


async def test_a_plain_question_after_a_review_asks_nobody(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    await engine.commit(changes.answer(work=Work.LEASE, worker=WORKER, due_at=2**52))
    await engine.commit(changes.working(fence=2))
    await engine.commit(changes.ask(fence=2))
    assert await asked(engine) == []


async def test_a_canceled_task_asks_nobody(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    await engine.commit(changes.status("t", TaskState.CANCELED))
    assert await head_asks(engine) == ""
    assert await asked(engine) == []
    await engine.delete("t", ME)
    assert await asked(engine) == []


async def test_a_change_may_say_that_nobody_is_asked_any_more(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes)
    await engine.commit(changes.move(asks=""))
    assert await head_asks(engine) == ""
    assert await asked(engine) == []


async def test_a_turn_that_waited_counts_its_attempts_afresh(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await ask(engine, changes)
    await engine.commit(changes.answer(unread=0))
    (claimed,) = await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS)
    assert (claimed.head.attempt, claimed.head.attempt_base, claimed.head.unread) == (2, 1, 1)


async def test_a_task_that_asks_is_nobodys_work(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await ask(engine, changes)
    clock.advance(10 * LEASE_MS)
    assert await engine.claim(WORKER, [AGENT], 1, clock() + LEASE_MS) == []


async def test_tasks_of_every_scope_are_found_and_only_those_that_are_meant(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes, "mine", "bob", ME)
    await ask(engine, changes, "theirs", "carol", SOMEBODY_ELSE)
    await ask(engine, changes, "other-tenant", "bob", OTHER_TENANT)
    await ask(engine, changes, "other-agent", "bob", OTHER_AGENT)
    assert await asked(engine) == ["mine", "other-agent", "other-tenant", "theirs"]
    assert await asked(engine, AskingQuery(agent=AGENT)) == ["mine", "other-tenant", "theirs"]
    assert await asked(engine, AskingQuery(tenant="tenant")) == ["mine", "other-agent", "theirs"]
    assert await asked(engine, AskingQuery(users=("carol", "dave"))) == ["theirs"]
    assert await asked(engine, AskingQuery(users=("bob",), agent=AGENT, tenant="tenant")) == ["mine"]
    assert await asked(engine, AskingQuery(users=())) == []
    assert await asked(engine, AskingQuery(users=("",))) == []


async def test_users_are_compared_as_they_are_written(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes, user="bob@example.com")
    assert await asked(engine, AskingQuery(users=("bob@example.com",))) == ["t"]
    for other in ("Bob@example.com", "bob@example.co", "bob", "%", "*", " bob@example.com"):
        assert await asked(engine, AskingQuery(users=(other,))) == []


async def test_one_task_is_found_by_its_id_if_it_asks_one_of_these_users(engine: Engine, changes: Changes) -> None:
    await ask(engine, changes, "t", "bob")
    await ask(engine, changes, "u", "bob")
    await engine.commit(changes.start("running"))
    for query, found in (
        (AskingQuery(task_id="t"), ["t"]),
        (AskingQuery(task_id="t", tenant="tenant", agent=AGENT, users=("b", "bob")), ["t"]),
        (AskingQuery(task_id="t", users=("carol",)), []),
        (AskingQuery(task_id="t", tenant="other tenant"), []),
        (AskingQuery(task_id="t", agent="another agent"), []),
        (AskingQuery(task_id="running"), []),
        (AskingQuery(task_id="nothing"), []),
        (AskingQuery(task_id=""), []),
    ):
        assert await asked(engine, query) == found
    with pytest.raises(TaskNotFoundError):
        await engine.load("t", SOMEBODY_ELSE)


async def test_the_longest_waiting_comes_first_and_a_limit_cuts_the_rest_off(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    for task_id in ("c", "a", "b"):
        clock.advance(1)
        await ask(engine, changes, task_id)
    await ask(engine, changes, "B")
    assert await asked(engine) == ["c", "a", "B", "b"]
    assert await asked(engine, AskingQuery(limit=2)) == ["c", "a"]
    clock.advance(1)
    await engine.commit(changes.chunk("c"))
    assert await asked(engine) == ["c", "a", "B", "b"]


async def test_many_tasks_that_ask_are_all_found(engine: Engine, changes: Changes) -> None:
    names = [f"t{number:03}" for number in range(150)]
    for number, task_id in enumerate(names):
        await ask(engine, changes, task_id, f"user {number % 3}")
    found: list[StoredTask] = await engine.asking(ANY)
    assert [stored.task.id for stored in found] == names
    assert all(stored.task.status.state is TaskState.INPUT_REQUIRED for stored in found)
    assert await asked(engine, AskingQuery(users=("user 1",))) == names[1::3]
