"""`Storage.list`: filters, order, pages, and what happens to a listing when tasks change under it."""

from __future__ import annotations

import base64
import json
import tracemalloc
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands.engines.base import Engine, LargeReadError
from errands.errors import InvalidParamsError
from errands.model.core import TaskState
from errands.model.log import ListPage, ListQuery, StoredTask, Work
from tests.contract.changes import (
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    SOMEBODY_ELSE,
    Changes,
    ManualClock,
    message_draft,
    text_in,
)
from tests.soak import examples

pytestmark = pytest.mark.anyio

MINE = ListQuery(scope=ME)


def ids(page: ListPage) -> list[str]:
    return [stored.task.id for stored in page.tasks]


async def walk(engine: Engine, query: ListQuery) -> list[StoredTask]:
    """All tasks of a listing."""
    return [stored for page in await pages(engine, query) for stored in page.tasks]


async def pages(engine: Engine, query: ListQuery) -> list[ListPage]:
    """All pages of a listing."""
    found: list[ListPage] = []
    while not found or query.page_token:
        page = await engine.list(query)
        assert len(page.tasks) <= query.page_size
        found.append(page)
        query = msgspec.structs.replace(query, page_token=page.next_page_token)
    return found


async def create_some(engine: Engine, changes: Changes, clock: ManualClock, count: int) -> list[str]:
    """Tasks t0, t1, … one millisecond apart; returned newest first."""
    for number in range(count):
        clock.advance(1)
        await engine.commit(changes.start(f"t{number}"))
    clock.advance(1)
    return [f"t{number}" for number in reversed(range(count))]


async def test_an_empty_scope_has_one_empty_page(engine: Engine) -> None:
    assert await engine.list(MINE) == ListPage(tasks=[], next_page_token="", total_size=0)


async def test_the_newest_status_comes_first(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    newest_first = await create_some(engine, changes, clock, 5)
    assert ids(await engine.list(MINE)) == newest_first
    await engine.commit(changes.complete("t1"))
    assert ids(await engine.list(MINE)) == ["t1", "t4", "t3", "t2", "t0"]


async def test_a_change_that_is_no_status_does_not_move_a_task(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    newest_first = await create_some(engine, changes, clock, 3)
    await engine.commit(changes.chunk("t0"))
    assert ids(await engine.list(MINE)) == newest_first


async def test_ties_are_broken_by_id(engine: Engine, changes: Changes) -> None:
    for task_id in ("b", "d", "a", "c"):
        await engine.commit(changes.start(task_id))
    assert ids(await engine.list(MINE)) == ["a", "b", "c", "d"]
    pages = [stored.task.id for stored in await walk(engine, ListQuery(scope=ME, page_size=1))]
    assert pages == ["a", "b", "c", "d"]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7, 8, 50])
async def test_pages_of_any_size_give_every_task_once_in_order(
    engine: Engine, changes: Changes, clock: ManualClock, size: int
) -> None:
    newest_first = await create_some(engine, changes, clock, 8)
    tasks = await walk(engine, ListQuery(scope=ME, page_size=size))
    assert [stored.task.id for stored in tasks] == newest_first


async def test_the_total_counts_all_matches_whatever_the_page(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_some(engine, changes, clock, 5)
    first = await engine.list(ListQuery(scope=ME, page_size=2))
    assert first.total_size == 5
    await engine.commit(changes.start("another"))
    assert (await engine.list(ListQuery(scope=ME, page_size=2, page_token=first.next_page_token))).total_size == 6


@pytest.mark.parametrize("filters", [{"context_id": "shared"}, {"status_after": 0}])
async def test_a_listing_that_is_filtered_is_counted_when_it_begins(
    engine: Engine, changes: Changes, clock: ManualClock, filters: dict[str, Any]
) -> None:
    for number in range(5):
        await engine.commit(changes.start(f"t{number}", context_id="shared"))
    query = ListQuery(scope=ME, page_size=2, **filters)
    first = await engine.list(query)
    assert first.total_size == 5
    await engine.commit(changes.start("another", context_id="shared"))
    then = await engine.list(msgspec.structs.replace(query, page_token=first.next_page_token))
    assert then.total_size == 5
    assert (await engine.list(query)).total_size == 6


@pytest.mark.parametrize("total", [-1, 2**31, "many"])
async def test_a_token_with_a_total_that_cannot_be_is_refused(engine: Engine, total: object) -> None:
    token = base64.urlsafe_b64encode(msgspec.json.encode([0, 0, "t", False, total])).decode()
    with pytest.raises(InvalidParamsError, match="page token"):
        await engine.list(ListQuery(scope=ME, page_token=token))


async def test_only_the_scopes_own_tasks_are_listed(engine: Engine, changes: Changes) -> None:
    for number, scope in enumerate((ME, SOMEBODY_ELSE, OTHER_TENANT, OTHER_AGENT)):
        await engine.commit(changes.start(f"t{number}", scope=scope))
    for number, scope in enumerate((ME, SOMEBODY_ELSE, OTHER_TENANT, OTHER_AGENT)):
        page = await engine.list(ListQuery(scope=scope))
        assert (ids(page), page.total_size) == ([f"t{number}"], 1)


ODD = ListQuery(scope=ME._replace(tenant="a/b:c*", owner="x:y"), reach="tenant")


async def test_operators_list_the_tasks_of_every_owner_of_a_tenant_or_of_an_agent(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    scopes = (ME, SOMEBODY_ELSE, OTHER_TENANT, OTHER_AGENT, ODD.scope)
    for number, scope in enumerate(scopes):
        clock.advance(1)
        # This context, in the name of a key, looks like a listing of the agent.
        await engine.commit(changes.start(f"t{number}", scope=scope, context_id=f"shared:x/{ME.agent}"))
    await engine.commit(changes.complete("t1", scope=SOMEBODY_ELSE))
    of_tenant, of_agent = ListQuery(scope=ME, reach="tenant"), ListQuery(scope=ME, reach="agent")
    for query, expected in (
        (of_tenant, ["t1", "t0"]),
        (of_agent, ["t1", "t4", "t2", "t0"]),
        (ODD, ["t4"]),
        (msgspec.structs.replace(of_agent, scope=OTHER_AGENT), ["t3"]),
        (msgspec.structs.replace(of_agent, state=TaskState.COMPLETED), ["t1"]),
        (msgspec.structs.replace(of_agent, context_id=f"shared:x/{ME.agent}"), ["t1", "t4", "t2", "t0"]),
        (msgspec.structs.replace(of_agent, context_id="other"), []),
        (msgspec.structs.replace(of_agent, status_after=clock()), ["t1", "t4"]),
    ):
        for size in (1, 50):
            found = await pages(engine, msgspec.structs.replace(query, page_size=size))
            # t4 and t1 have the same time.
            assert sorted(task_id for page in found for task_id in ids(page)) == sorted(expected)
            assert {page.total_size for page in found} == {len(expected)}
            assert [page.tasks[0].scope for page in found if ids(page) == ["t2"]] in ([], [OTHER_TENANT])
    assert ids(await engine.list(of_agent)) == ["t1", "t4", "t2", "t0"]


async def test_a_listing_of_several_owners_misses_no_task_that_changes_meanwhile(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    owners = [ME._replace(owner=f"o{number}") for number in range(4)]
    for number, scope in enumerate(owners):
        clock.advance(1)
        await engine.commit(changes.start(f"t{number}", scope=scope))
    query = ListQuery(scope=ME, reach="tenant", page_size=1)
    page = await engine.list(query)
    assert ids(page) == ["t3"]
    clock.advance(1)
    await engine.commit(changes.complete("t0", scope=owners[0]))
    await engine.commit(changes.complete("t2", scope=owners[2]))
    await engine.commit(changes.start("new", scope=owners[0]))
    rest = await walk(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [stored.task.id for stored in rest] == ["t1", "t0", "t2"]


async def test_a_token_of_another_scope_shows_nothing_of_that_scope(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_some(engine, changes, clock, 5)
    token = (await engine.list(ListQuery(scope=ME, page_size=2))).next_page_token
    page = await engine.list(ListQuery(scope=SOMEBODY_ELSE, page_token=token))
    assert (page.tasks, page.total_size) == ([], 0)


async def test_filters_narrow_the_listing_and_its_total(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_some(engine, changes, clock, 6)
    await engine.commit(changes.complete("t1"))
    await engine.commit(changes.complete("t3", at=clock.advance(10)))
    await engine.commit(changes.start("t9", context_id="shared"))
    await engine.commit(changes.start("t8", context_id="shared"))
    for query, expected in (
        (ListQuery(scope=ME, state=TaskState.COMPLETED), ["t3", "t1"]),
        (ListQuery(scope=ME, state=TaskState.FAILED), []),
        (ListQuery(scope=ME, context_id="shared"), ["t8", "t9"]),
        (ListQuery(scope=ME, context_id="nobody's"), []),
        (ListQuery(scope=SOMEBODY_ELSE, context_id="shared"), []),
        (ListQuery(scope=ME, status_after=clock()), ["t3", "t8", "t9"]),
        (ListQuery(scope=ME, status_after=clock(), state=TaskState.COMPLETED), ["t3"]),
        (ListQuery(scope=ME, status_after=clock() + 1), []),
        (ListQuery(scope=ME, status_after=2**80), []),
        (ListQuery(scope=ME, context_id="shared", state=TaskState.WORKING, status_after=0), ["t8", "t9"]),
    ):
        page = await engine.list(query)
        assert (ids(page), page.total_size) == (expected, len(expected))


async def test_pages_keep_to_the_filters(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_some(engine, changes, clock, 9)
    for number in (1, 4, 7):
        await engine.commit(changes.complete(f"t{number}", at=clock.advance(1)))
    query = ListQuery(scope=ME, state=TaskState.COMPLETED, page_size=1)
    assert [stored.task.id for stored in await walk(engine, query)] == ["t7", "t4", "t1"]


async def test_a_listed_task_is_the_task_as_it_loads(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_some(engine, changes, clock, 3)
    await engine.commit(changes.chunk("t1", "some text"))
    await engine.commit(changes.complete("t2"))
    page = await engine.list(ListQuery(scope=ME, with_artifacts=True))
    assert [await engine.load(task_id, ME) for task_id in ids(page)] == page.tasks
    assert [text_in(stored) for stored in page.tasks] == ["", "some text", ""]


async def test_artifacts_are_left_out_unless_asked_for(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.chunk())
    whole = await engine.load("t", ME)
    assert whole.task.artifacts
    # In the tail of the log first, then in the snapshot.
    for _ in range(2):
        (stored,) = (await engine.list(MINE)).tasks
        assert stored.task.artifacts is None
        assert stored.task.history
        await engine.commit(changes.move(fold=whole.task, expected=3))
    assert (await engine.load("t", ME)).task.artifacts


async def test_a_token_stays_good_when_its_task_is_deleted(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    newest_first = await create_some(engine, changes, clock, 4)
    for task_id in newest_first:
        await engine.commit(changes.complete(task_id))
    page = await engine.list(ListQuery(scope=ME, page_size=2))
    await engine.delete(ids(page)[-1], ME)
    rest = await engine.list(ListQuery(scope=ME, page_size=2, page_token=page.next_page_token))
    assert sorted(ids(page) + ids(rest)) == ["t0", "t1", "t2", "t3"]


async def test_a_task_that_changes_before_its_page_comes_after_the_last_in_order(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_some(engine, changes, clock, 4)
    query = ListQuery(scope=ME, page_size=2)
    page = await engine.list(query)
    assert ids(page) == ["t3", "t2"]
    await engine.commit(changes.complete("t0", at=clock.advance(1)))
    tasks = await walk(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [(stored.task.id, stored.state) for stored in tasks] == [
        ("t1", TaskState.WORKING),
        ("t0", TaskState.COMPLETED),
    ]


async def test_a_task_that_changes_after_its_page_appears_again_and_newer(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_some(engine, changes, clock, 3)
    query = ListQuery(scope=ME, page_size=1)
    page = await engine.list(query)
    assert ids(page) == ["t2"]
    await engine.commit(changes.complete("t2", at=clock.advance(1)))
    tasks = await walk(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [(stored.task.id, stored.version) for stored in tasks] == [("t1", 2), ("t0", 2), ("t2", 3)]


async def test_the_second_phase_has_pages_of_its_own(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_some(engine, changes, clock, 7)
    query = ListQuery(scope=ME, page_size=2)
    page = await engine.list(query)
    clock.advance(1)
    for number in range(7):
        await engine.commit(changes.complete(f"t{number}"))
    tasks = await walk(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [stored.task.id for stored in tasks] == [f"t{number}" for number in range(7)]
    assert all(stored.state is TaskState.COMPLETED for stored in tasks)


async def test_tasks_created_after_the_first_page_do_not_appear(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_some(engine, changes, clock, 3)
    query = ListQuery(scope=ME, page_size=1)
    page = await engine.list(query)
    clock.advance(1)
    await engine.commit(changes.start("later"))
    tasks = await walk(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [stored.task.id for stored in tasks] == ["t1", "t0"]


async def create_large(engine: Engine, changes: Changes, clock: ManualClock, *sizes: int) -> None:
    """Tasks t0, t1, … one millisecond apart, with an artifact of so many bytes."""
    await create_some(engine, changes, clock, len(sizes))
    for number, size in enumerate(sizes):
        await engine.commit(changes.chunk(f"t{number}", "x" * size))


@pytest.mark.parametrize("ended", [False, True])
async def test_a_page_ends_where_it_would_have_too_many_bytes(
    engine: Engine, changes: Changes, clock: ManualClock, ended: bool
) -> None:
    await create_large(engine, changes, clock, *[10_000] * 5)
    for number in range(5 if ended else 0):
        await engine.commit(changes.complete(f"t{number}", at=clock.advance(1)))
    found = await pages(engine, ListQuery(scope=ME, page_bytes=25_000, with_artifacts=True))
    assert [ids(page) for page in found] == [["t4", "t3"], ["t2", "t1"], ["t0"]]
    assert [page.total_size for page in found] == [5, 5, 5]
    assert {len(text_in(stored)) for page in found for stored in page.tasks} == {10_000}


async def test_a_page_has_no_more_tasks_than_asked_for_however_small_they_are(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_large(engine, changes, clock, *[10_000] * 5)
    found = await pages(engine, ListQuery(scope=ME, page_size=3, page_bytes=45_000, with_artifacts=True))
    assert [ids(page) for page in found] == [["t4", "t3", "t2"], ["t1", "t0"]]


async def test_a_task_that_is_too_large_for_any_page_has_one_of_its_own(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_large(engine, changes, clock, 1, 30_000, 30_000, 1, 1)
    found = await pages(engine, ListQuery(scope=ME, page_bytes=10_000, with_artifacts=True))
    assert [ids(page) for page in found] == [["t4", "t3"], ["t2"], ["t1"], ["t0"]]


async def test_messages_count_towards_the_bytes_of_a_page_and_artifacts_that_are_not_read_do_not(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_large(engine, changes, clock, *[50_000] * 4)
    query = ListQuery(scope=ME, page_bytes=50_000)
    assert [ids(page) for page in await pages(engine, query)] == [["t3", "t2", "t1", "t0"]]
    for number in range(4):
        await engine.commit(changes.move(f"t{number}", events=(message_draft(f"t{number}", "x" * 10_000),)))
    assert [ids(page) for page in await pages(engine, query)] == [["t3", "t2"], ["t1", "t0"]]


async def test_what_has_no_room_on_a_page_is_not_read(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_large(engine, changes, clock, *[1_000_000] * 20)
    tracemalloc.start()
    try:
        page = await engine.list(ListQuery(scope=ME, page_bytes=1_100_000, with_artifacts=True))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (ids(page), page.total_size) == (["t19"], 20)
    assert peak < 10_000_000


@pytest.mark.parametrize("sizes", [[30_000], [10_000] * 3])
async def test_a_page_that_would_be_shorter_for_its_size_can_be_refused(
    engine: Engine, changes: Changes, clock: ManualClock, sizes: list[int]
) -> None:
    await create_large(engine, changes, clock, *sizes)
    query = ListQuery(scope=ME, page_bytes=25_000, with_artifacts=True, only_small=True)
    with pytest.raises(LargeReadError):
        await engine.list(query)
    enough = msgspec.structs.replace(query, page_bytes=100_000)
    assert await engine.list(enough) == await engine.list(msgspec.structs.replace(enough, only_small=False))


async def test_short_pages_go_on_into_the_second_phase(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await create_large(engine, changes, clock, *[10_000] * 6)
    query = ListQuery(scope=ME, page_bytes=25_000, with_artifacts=True)
    page = await engine.list(query)
    assert ids(page) == ["t5", "t4"]
    clock.advance(1)
    for number in (1, 5, 2):
        await engine.commit(changes.complete(f"t{number}"))
    rest = await pages(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [ids(page) for page in rest] == [["t3", "t0"], ["t1", "t2"], ["t5"]]


async def test_a_short_page_whose_last_task_is_deleted_still_leads_on(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await create_large(engine, changes, clock, *[10_000] * 4)
    for number in range(4):
        await engine.commit(changes.complete(f"t{number}", at=clock.advance(1)))
    query = ListQuery(scope=ME, page_bytes=25_000, with_artifacts=True)
    page = await engine.list(query)
    assert ids(page) == ["t3", "t2"]
    for task_id in ("t2", "t1"):
        await engine.delete(task_id, ME)
    rest = await pages(engine, msgspec.structs.replace(query, page_token=page.next_page_token))
    assert [ids(page) for page in rest] == [["t0"]]


#: Between two pages: a number changes that task, "new" creates one.
happenings = st.lists(st.lists(st.integers(0, 9) | st.just("new"), max_size=3), max_size=12)


@given(size=st.integers(1, 4), most=st.sampled_from([1, 1000, 2**20]), count=st.integers(0, 10), between=happenings)
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_happens_between_pages_no_task_is_missed(
    engine: Engine, clock: ManualClock, size: int, most: int, count: int, between: list[list[int | str]]
) -> None:
    changes = Changes(clock)
    scope = ME._replace(owner=f"owner {clock.advance(1)}")
    prefix = f"{clock()}-"
    for number in range(count):
        await engine.commit(changes.start(f"{prefix}{number}", scope=scope, at=clock.advance(number % 2)))
    query = ListQuery(scope=scope, page_size=size, page_bytes=most)
    seen: set[str] = set()
    pending = list(between)
    while True:
        page = await engine.list(query)
        seen.update(ids(page))
        if not page.next_page_token:
            break
        query = msgspec.structs.replace(query, page_token=page.next_page_token)
        for happening in pending.pop(0) if pending else []:
            at = clock.advance(1)
            if happening == "new":
                await engine.commit(changes.create(f"{prefix}new {at}", scope=scope))
            elif isinstance(happening, int) and happening < count:
                await engine.commit(changes.working(f"{prefix}{happening}", scope=scope))
    assert seen == {f"{prefix}{number}" for number in range(count)}


def token_of(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")


numbers = st.integers() | st.integers(-(2**70), 2**70)
forged = st.builds(token_of, st.tuples(numbers, numbers, st.text(), st.booleans()).map(list))
almost = st.builds(token_of, st.recursive(st.none() | numbers | st.text() | st.floats(allow_nan=False), st.lists))


@given(token=st.text(min_size=1) | forged | almost)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_token_gives_a_page_or_is_refused(engine: Engine, token: str) -> None:
    with suppress(InvalidParamsError):
        assert (await engine.list(ListQuery(scope=ME, page_token=token))).tasks == []


@pytest.mark.parametrize("token", ["x", "not a token", "AAAA", token_of("x"), token_of({"as_of": 1}), token_of([1])])
async def test_a_token_that_is_not_ours_is_refused(engine: Engine, token: str) -> None:
    with pytest.raises(InvalidParamsError) as error:
        await engine.list(ListQuery(scope=ME, page_token=token))
    assert error.value.field == "pageToken"


async def test_an_idle_task_is_listed_like_any_other(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.create(work=Work.IDLE))
    assert ids(await engine.list(MINE)) == ["t"]
