"""`Storage.load`: the snapshot with the tail folded in is the log, however it was cut and folded."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from errands import lifecycle
from errands.engines.base import Engine, LargeReadError
from errands.errors import TaskNotFoundError
from errands.model.core import TERMINAL_STATES, Artifact, Part, TaskState
from errands.model.log import Change, Draft, ListQuery, Scope
from tests.contract.changes import (
    ME,
    OTHER_AGENT,
    OTHER_TENANT,
    SOMEBODY_ELSE,
    Changes,
    ManualClock,
    artifact_draft,
    log_of,
    text_in,
)
from tests.soak import examples

pytestmark = pytest.mark.anyio

plain_texts = st.builds(lambda text: Part(text=text), st.text(max_size=8))
odd_parts = st.one_of(
    st.builds(lambda data: Part(data=data), st.recursive(st.none() | st.booleans() | st.integers(), st.lists)),
    st.builds(lambda raw: Part(raw=raw, filename="f"), st.binary(max_size=8)),
    st.builds(lambda text: Part(text=text, metadata={"k": 1}), st.text(max_size=8)),
    st.just(Part(url="https://example.org/x", media_type="image/png")),
)
artifacts = st.builds(
    Artifact,
    artifact_id=st.sampled_from(["a", "b", "c"]),
    parts=st.lists(plain_texts | odd_parts, max_size=4),
    name=st.none() | st.sampled_from(["one", "two"]),
    metadata=st.none() | st.dictionaries(st.sampled_from("xyz"), st.integers(), min_size=1),
)
#: Chunks of several artifacts, in commits of several chunks; the boolean says whether the commit brings a fold.
commits = st.lists(
    st.tuples(st.lists(st.tuples(artifacts, st.booleans()), min_size=1, max_size=4), st.booleans()), max_size=8
)

_ids = iter(range(1_000_000))


def _with_fold(change: Change, log: list[Draft], version: int) -> Change:
    fold = lifecycle.fold(None, [*log, *change.events])
    return msgspec.structs.replace(change, fold=fold, expected=version)


@given(commits=commits)
@settings(max_examples=examples(50), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_snapshot_and_tail_amount_to_the_whole_log(
    engine: Engine, clock: ManualClock, commits: list[tuple[list[tuple[Artifact, bool]], bool]]
) -> None:
    task_id = f"t{next(_ids)}"
    first = Changes(clock).start(task_id)
    log = list(first.events)
    version = (await engine.commit(first)).version
    for chunks, folds in commits:
        drafts = tuple(artifact_draft(task_id, artifact, append=append) for artifact, append in chunks)
        change = Change(task_id=task_id, scope=ME, at=clock(), events=drafts)
        version = (await engine.commit(_with_fold(change, log, version) if folds else change)).version
        log += drafts
    stored = await engine.load(task_id, ME)
    assert stored.version == len(log)
    assert stored.task == lifecycle.fold(None, log)
    assert stored.task == lifecycle.fold(None, await log_of(engine, task_id))


async def test_a_task_without_a_snapshot_is_read_from_its_log(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    for text in ("one ", "two ", "three"):
        await engine.commit(changes.chunk(text=text))
    stored = await engine.load("t", ME)
    assert text_in(stored) == "one two three"
    assert stored.task.status.state is TaskState.WORKING


async def test_what_is_written_after_a_fold_is_on_top_of_it(engine: Engine, changes: Changes) -> None:
    start = changes.start()
    await engine.commit(start)
    chunk = changes.chunk(text="folded ")
    await engine.commit(_with_fold(chunk, list(start.events), 2))
    await engine.commit(changes.chunk(text="tail"))
    stored = await engine.load("t", ME)
    assert (stored.version, text_in(stored)) == (4, "folded tail")


async def test_a_second_fold_replaces_the_first(engine: Engine, changes: Changes) -> None:
    start = changes.start()
    await engine.commit(start)
    log = list(start.events)
    for version, text in ((2, "one "), (3, "two")):
        change = changes.chunk(text=text)
        await engine.commit(_with_fold(change, log, version))
        log += change.events
    assert text_in(await engine.load("t", ME)) == "one two"


async def test_a_long_tail_is_folded_whole(engine: Engine, changes: Changes, clock: ManualClock) -> None:
    await engine.commit(changes.start())
    drafts = tuple(changes.chunk(text=f"{n} ").events[0] for n in range(2500))
    await engine.commit(changes.chunk(events=drafts))
    assert text_in(await engine.load("t", ME)) == "".join(f"{n} " for n in range(2500))
    assert [event.version for event in await log_of(engine)] == list(range(1, 2503))


async def test_the_question_stands_in_the_history_before_its_answer(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.ask())
    await engine.commit(changes.answer())
    history = (await engine.load("t", ME)).task.history
    assert history is not None
    assert [message.message_id for message in history] == ["m-hello", "m-which?", "m-this one"]


async def test_events_that_say_nothing_about_the_task_leave_it_as_it_is(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    before = await engine.load("t", ME)
    await engine.commit(changes.cancel())
    after = await engine.load("t", ME)
    assert (after.task, after.version, after.head.cancel_requested) == (before.task, 3, True)


async def test_a_task_that_does_not_exist_is_not_found(engine: Engine) -> None:
    with pytest.raises(TaskNotFoundError) as error:
        await engine.load("t", ME)
    assert error.value.metadata == {"taskId": "t"}


@pytest.mark.parametrize("scope", [SOMEBODY_ELSE, OTHER_TENANT, OTHER_AGENT], ids=str)
async def test_somebody_elses_task_is_not_found_by_any_call(engine: Engine, changes: Changes, scope: Scope) -> None:
    await engine.commit(changes.start())
    await engine.commit(changes.complete())
    for call in (
        engine.load("t", scope),
        engine.read("t", scope, 0),
        engine.delete("t", scope),
        engine.wait_for_state("t", scope, TERMINAL_STATES, None),
    ):
        with pytest.raises(TaskNotFoundError):
            await call
    assert (await engine.list(ListQuery(scope=scope))).total_size == 0
    assert (await engine.load("t", ME)).version == 3


async def test_operators_find_a_task_of_any_scope_by_its_id(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    assert await engine.load("t", None) == await engine.load("t", ME)
    with pytest.raises(TaskNotFoundError):
        await engine.load("another", None)


async def test_large_events_and_snapshots_come_back_whole(engine: Engine, changes: Changes) -> None:
    await engine.commit(changes.start())
    for letter in "abc":
        await engine.commit(changes.chunk(text=letter * 3_000_000))
    stored = await engine.load("t", ME)
    assert text_in(stored) == "a" * 3_000_000 + "b" * 3_000_000 + "c" * 3_000_000
    await engine.commit(changes.complete(fold=stored.task, expected=5))
    assert text_in(await engine.load("t", ME)) == text_in(stored)
    assert [len(event.data) > 3_000_000 for event in await log_of(engine)] == [False, False, True, True, True, False]


@pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
async def test_the_size_of_a_task_is_known_before_it_is_read(
    engine: Engine, changes: Changes, clock: ManualClock, ended: bool
) -> None:
    for task_id in ("small", "large"):
        await engine.commit(changes.start(task_id))
    await engine.commit(changes.chunk("large", "x" * 2_000_000))
    if ended:
        await engine.commit(changes.complete("small", at=clock.advance(1)))
        await engine.commit(changes.complete("large", at=clock.advance(1)))
    assert await engine.load_small("small", ME, 100_000) == await engine.load("small", ME)
    assert await engine.load_small("large", ME, 10_000_000) == await engine.load("large", ME)
    tracemalloc.start()
    try:
        with pytest.raises(LargeReadError) as large:
            await engine.load_small("large", ME, 100_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 2_000_000 <= large.value.size < 5_000_000
    assert peak < 1_000_000
    for task_id, scope in (("none", ME), ("small", SOMEBODY_ELSE)):
        with pytest.raises(TaskNotFoundError):
            await engine.load_small(task_id, scope, 100_000)


async def test_a_head_is_loaded_whatever_the_size_of_the_task(
    engine: Engine, changes: Changes, clock: ManualClock
) -> None:
    await engine.commit(changes.start())
    for _ in range(4):
        await engine.commit(changes.chunk(text="x" * 500_000))
    tracemalloc.start()
    try:
        found = await engine.load_head("t", ME)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 500_000
    whole = await engine.load("t", ME)
    assert (found.head, found.scope, found.task.id) == (whole.head, whole.scope, "t")
    assert (found.task.context_id, found.task.status.state) == (whole.task.context_id, whole.task.status.state)
    assert (found.task.artifacts, found.task.history, found.damage) == (None, None, "")
    assert await engine.load_head("t", None) == found
    for task_id, scope in (("none", ME), ("none", None), ("\x00", None), ("t", SOMEBODY_ELSE)):
        with pytest.raises(TaskNotFoundError):
            await engine.load_head(task_id, scope)
