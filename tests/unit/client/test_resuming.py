"""Streams that are cut: how they go on, when they give up, and what is said then."""

from __future__ import annotations

import httpx
import pytest

from errands import lifecycle
from errands.client import StreamInterruptedError, task_stream
from errands.client.agent_session import STREAM_PATIENCE, Received
from errands.errors import InternalError, TaskNotFoundError, UnavailableError, UnsupportedOperationError
from errands.model.core import StreamResponse, Task, TaskState, TaskStatus
from tests.unit.client.agent import (
    LOG,
    ScriptedAgent,
    chunk,
    cut,
    message,
    snapshot,
    status,
    streaming,
    task,
)

pytestmark = pytest.mark.anyio

WORKING, COMPLETED = TaskState.WORKING, TaskState.COMPLETED


async def test_a_cut_stream_goes_on_after_the_last_event_that_was_seen(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    agent.plays(streaming(frames[:3], cut()), streaming(frames[3:]))
    async with agent.client() as client:
        assert [event.response async for event in client.stream("x")] == LOG
    assert agent.operations == ["SendStreamingMessage", "SubscribeToTask"]
    assert agent.calls[1].headers["Last-Event-ID"] == "3"
    assert agent.waits == [0.2]


async def test_a_stream_that_is_closed_before_the_task_has_ended_goes_on(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    agent.plays(streaming(frames[:4]), streaming(frames[4:]))
    async with agent.client() as client:
        assert [event.response async for event in client.stream("x")] == LOG


async def test_a_stream_outlasts_a_restart_of_the_agent(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    agent.plays(
        streaming(frames[:4], httpx.RemoteProtocolError("incomplete chunked read")),
        httpx.ConnectError("refused"),
        agent.refusal(UnavailableError("starting"), **{"Retry-After": "2"}),
        httpx.ReadTimeout(""),
        streaming(frames[4:]),
    )
    async with agent.client(max_retries=4) as client:
        assert [event.response async for event in client.stream("x")] == LOG
    assert agent.waits == [0.2, 0.4, 0.8 + 2, 1.6]


async def test_only_failures_in_a_row_count(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    agent.plays(*(streaming([frame], cut()) for frame in frames))
    async with agent.client(max_retries=1) as client:
        assert [event.response async for event in client.stream("x")] == LOG
    assert agent.waits == [0.2] * (len(LOG) - 1)


async def test_after_too_many_failures_in_a_row_the_error_says_where_to_go_on(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    agent.plays(streaming(frames[:3], cut()), *[httpx.ConnectError("refused")] * 2 * STREAM_PATIENCE)
    async with agent.client(max_retries=2) as client:
        stream = client.stream("x")
        seen = [(await anext(stream)).response for _ in range(3)]
        with pytest.raises(StreamInterruptedError, match="refused") as caught:
            await anext(stream)
        assert (caught.value.task_id, caught.value.last_event_id) == ("t1", "3")

        agent.plays(streaming(frames[3:]))
        seen += [event.response async for event in client.subscribe("t1", last_event_id="3")]
    assert seen == LOG


async def test_without_retries_a_cut_is_an_interruption(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(*LOG[:3]), cut()))
    async with agent.client(max_retries=0) as client:
        with pytest.raises(StreamInterruptedError):
            async for _ in client.stream("x"):
                pass
    assert len(agent.calls) == 1


async def test_a_snapshot_that_tells_nothing_new_is_no_progress(agent: ScriptedAgent) -> None:
    agent.plays(*(streaming(agent.frames(snapshot(), first_id=None), cut()) for _ in range(1 + 2 * STREAM_PATIENCE)))
    async with agent.client(max_retries=2) as client:
        with pytest.raises(StreamInterruptedError):
            async for _ in client.stream("x"):
                pass
    assert len(agent.calls) == 1 + 2 * STREAM_PATIENCE


async def test_a_task_that_ended_while_nobody_listened_is_fetched(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(agent.frames(*LOG[:3]), cut()),
        agent.refusal(UnsupportedOperationError("it has ended")),
        agent.result(task(COMPLETED, text="all of it")),
    )
    async with agent.client() as client:
        events = [event async for event in client.stream("x")]
    assert (events[-1].kind, events[-1].state, events[-1].text) == ("task", "completed", "all of it")
    assert events[-1].is_final


async def test_an_agent_that_cannot_resume_is_asked_how_the_task_is(agent: ScriptedAgent) -> None:
    refusal = UnsupportedOperationError("no resubscribing here")
    agent.plays(
        streaming(agent.frames(*LOG[:3], first_id=None), cut()),
        agent.refusal(refusal),
        agent.result(task(WORKING, text="half")),
        agent.refusal(refusal),
        agent.result(task(COMPLETED, text="half and half")),
    )
    async with agent.client() as client:
        pieces = [piece async for piece in client.stream_text("x")]
    assert pieces == ["half", " and half"]


async def test_a_task_that_is_gone_when_the_stream_resumes_is_not_found(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(*LOG[:3]), cut()), agent.refusal(TaskNotFoundError()))
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError):
            async for _ in client.stream("x"):
                pass


@pytest.mark.parametrize("error", [InternalError("broken"), UnavailableError("stopping")])
async def test_an_error_in_the_middle_is_about_the_stream_and_it_resumes(
    agent: ScriptedAgent, error: InternalError | UnavailableError
) -> None:
    frames = agent.frames(*LOG)
    agent.plays(streaming([*frames[:3], agent.error_event(error)]), streaming(frames[3:]))
    async with agent.client() as client:
        assert [event.response async for event in client.stream("x")] == LOG


async def test_a_gap_after_a_cut_is_told_and_the_text_is_whole(agent: ScriptedAgent) -> None:
    def answers() -> tuple[httpx.Response, httpx.Response]:
        later = [agent.gap_frame(50, snapshot(text="one two ")), *agent.frames(chunk("three"), first_id=51)]
        end = agent.frames(status(COMPLETED), first_id=52)
        return streaming(agent.frames(snapshot(), chunk("one ", append=False)), cut()), streaming(later + end)

    async with agent.client() as client:
        agent.plays(*answers())
        assert [event.gap async for event in client.stream("x")] == [False, False, True, False, False]
        agent.plays(*answers())
        assert [piece async for piece in client.stream_text("x")] == ["one ", "two ", "three"]


async def test_a_gap_in_the_middle_is_told_in_updates_and_the_text_is_whole(agent: ScriptedAgent) -> None:
    def answers() -> httpx.Response:
        frames = agent.frames(snapshot(), chunk("one ", append=False))
        missed = [agent.gap_frame(2, chunk("one two ", append=False)), agent.gap_frame(50, status(WORKING))]
        return streaming([*frames, *missed, *agent.frames(chunk("three"), status(COMPLETED), first_id=51)])

    async with agent.client() as client:
        agent.plays(answers())
        seen = [(event.event_id, event.gap) async for event in client.stream("x")]
        agent.plays(answers())
        assert [piece async for piece in client.stream_text("x")] == ["one ", "two ", "three"]
    assert seen == [("1", False), ("2", False), ("2", True), ("50", True), ("51", False), ("52", False)]


async def test_a_reader_who_is_told_at_once_that_the_server_stops_comes_back(agent: ScriptedAgent) -> None:
    frames = agent.frames(*LOG)
    stops = agent.error_event(UnavailableError("stopping"))
    agent.plays(streaming(frames[:3], cut()), streaming([stops]), streaming(frames[3:]))
    async with agent.client() as client:
        assert [event.response async for event in client.stream("x")] == LOG


async def test_a_gap_is_told_whatever_its_id(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(agent.frames(snapshot(), status(WORKING), first_id=8), cut()),
        streaming([agent.gap_frame(9, snapshot(text="one"))], cut()),
        streaming(agent.frames(status(COMPLETED), first_id=10)),
    )
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["8", "9", "9", "10"]


async def test_a_snapshot_that_tells_nothing_new_still_moves_the_place_to_go_on_from(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(agent.frames(snapshot()), cut()),
        streaming(agent.frames(snapshot(), first_id=5), cut()),
        streaming(agent.frames(status(COMPLETED), first_id=6)),
    )
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["1", "6"]
    assert [call.headers.get("Last-Event-ID") for call in agent.calls] == [None, "1", "5"]


async def test_the_text_of_an_artifact_that_was_replaced_before_the_cut_goes_on(agent: ScriptedAgent) -> None:
    begun = agent.frames(snapshot(), chunk("draft", append=False), chunk("final", append=False), first_id=None)
    agent.plays(streaming(begun, cut()), streaming(agent.frames(snapshot(COMPLETED, text="final text"), first_id=None)))
    async with agent.client() as client:
        assert [piece async for piece in client.stream_text("x")] == ["draft", "final", " text"]


async def test_a_cut_while_the_task_waits_is_survived_by_a_subscriber(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(agent.frames(snapshot(), status(TaskState.INPUT_REQUIRED)), cut()),
        streaming(agent.frames(status(WORKING), status(COMPLETED), first_id=3)),
    )
    async with agent.client() as client:
        states = [event.state async for event in client.subscribe("t1")]
    assert states == ["working", "input-required", "working", "completed"]


async def test_a_subscription_that_cannot_be_opened_gives_up_in_the_end(agent: ScriptedAgent) -> None:
    agent.plays(*[httpx.ConnectError("refused")] * (1 + 3 * STREAM_PATIENCE))
    async with agent.client() as client:
        with pytest.raises(StreamInterruptedError) as caught:
            await anext(client.subscribe("t1"))
    assert (caught.value.task_id, caught.value.last_event_id) == ("t1", None)


async def test_a_stream_that_goes_on_for_days_does_not_fill_the_memory() -> None:
    seen = task_stream.SeenTask()
    seen.admit(Received(snapshot()), opening=True)
    for n in range(30_000):
        seen.admit(Received(status(WORKING, f"still at it {n}"), f"id-{n}"), opening=False)
    assert len(seen._updates) <= 1024
    assert len(seen._opaque_ids) <= 10_000
    task = seen.task()
    assert task is not None
    assert task.status.message == message("still at it 29999")


def dated(second: int, text: str, state: TaskState = WORKING) -> StreamResponse:
    at = TaskStatus(state=state, timestamp=f"2026-01-01T00:00:{second:02d}.000Z")
    return StreamResponse(task=Task(id="t1", context_id="c1", status=at, artifacts=task(text=text).artifacts))


async def test_a_snapshot_with_a_lower_id_is_news_when_its_time_is_later(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(agent.frames(snapshot(), status(WORKING), dated(5, "a long draft")), cut()),
        streaming(agent.frames(dated(6, "short"), status(COMPLETED))),
    )
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["1", "2", "3", "1", "2"]


async def test_a_snapshot_with_a_lower_id_is_old_news_when_its_time_is_earlier(agent: ScriptedAgent) -> None:
    frames = agent.frames(dated(1, "aa"), dated(2, "b"), dated(3, "c"), status(COMPLETED))
    agent.plays(streaming(frames[:3], cut()), streaming(frames))
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["1", "2", "3", "4"]


async def test_ids_that_mean_nothing_are_told_apart_too(agent: ScriptedAgent) -> None:
    frames = [agent.frame(f"id-{n}", response) for n, response in enumerate(LOG)]
    agent.plays(streaming(frames[:4], cut()), streaming(frames))
    async with agent.client() as client:
        assert [event.response async for event in client.stream("x")] == LOG
    assert agent.calls[1].headers["Last-Event-ID"] == "id-3"


async def test_chunks_are_put_together_only_when_there_is_a_snapshot_to_compare(
    agent: ScriptedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    folds: list[int] = []

    def counting(base: Task, updates: list[StreamResponse]) -> Task:
        folds.append(len(updates))
        return lifecycle.fold_updates(base, updates)

    monkeypatch.setattr(task_stream, "fold_updates", counting)
    first = agent.frames(snapshot(), *(chunk("x", append=n > 0) for n in range(1_000)), first_id=None)
    agent.plays(streaming(first, cut()), streaming(agent.frames(snapshot(COMPLETED, text="x" * 1_000), first_id=None)))
    async with agent.client() as client:
        assert len([event async for event in client.stream("x")]) == 1_002
    assert folds == [1_000]
