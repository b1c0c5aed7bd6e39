"""Streams that are not cut: what is yielded, and where a stream ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from errands import TaskContext, Worker
from errands.client import AnswerLostError, StreamInterruptedError
from errands.errors import InternalError, InvalidParamsError, TaskNotFoundError, UnsupportedOperationError
from errands.model.core import SETTLED_STATES, StreamResponse, TaskState
from errands.testing import connect, serve
from tests.unit.client.agent import (
    BINDINGS,
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


async def test_a_stream_tells_a_task_from_its_beginning_to_its_end(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(
            agent.frames(
                snapshot(TaskState.SUBMITTED),
                status(WORKING, "on it"),
                chunk("Hel", append=False),
                chunk("lo", last=True),
                status(COMPLETED),
            )
        )
    )
    async with agent.client() as client:
        events = [event async for event in client.stream("x")]
    assert [(e.kind, e.state, e.text, e.is_final) for e in events] == [
        ("task", "submitted", None, False),
        ("status", "working", "on it", False),
        ("artifact", None, "Hel", False),
        ("artifact", None, "lo", True),
        ("status", "completed", None, True),
    ]
    assert [(e.append, e.last_chunk, e.artifact_id) for e in events[2:4]] == [(False, False, "a"), (True, True, "a")]
    assert [e.event_id for e in events] == ["1", "2", "3", "4", "5"]
    assert {(e.task_id, e.context_id) for e in events} == {("t1", "c1")}
    assert events[1].raw == status(WORKING, "on it").status_update
    assert not any(e.gap for e in events)
    assert agent.operations == ["SendStreamingMessage"]
    assert agent.calls[0].headers["Accept"] == "text/event-stream"
    assert agent.calls[0].read_timeout is None


async def test_a_direct_message_is_the_whole_stream(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(StreamResponse(message=message("hi")))))
    async with agent.client() as client:
        events = [event async for event in client.stream("x")]
    assert [(e.kind, e.text, e.is_final) for e in events] == [("message", "hi", True)]


def never_closed(frames: list[bytes]) -> Iterator[bytes]:
    yield from frames
    raise AssertionError("the client reads on after the end")


@pytest.mark.parametrize("state", sorted(SETTLED_STATES))
async def test_a_turn_is_over_when_the_task_ends_or_pauses_even_if_the_agent_keeps_the_stream_open(
    agent: ScriptedAgent, state: TaskState
) -> None:
    response = streaming(never_closed(agent.frames(snapshot(), status(state))))
    agent.plays(response)
    async with agent.client() as client:
        assert [event.state async for event in client.stream("x")] == ["working", state.short]
    assert response.is_closed


async def test_a_paused_snapshot_of_a_continued_task_does_not_end_the_turn(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(never_closed(agent.frames(snapshot(TaskState.INPUT_REQUIRED), status(WORKING), status(COMPLETED))))
    )
    async with agent.client() as client:
        events = [event async for event in client.stream("yes", task_id="t1")]
    assert [(e.state, e.is_final) for e in events] == [
        ("input-required", False),
        ("working", False),
        ("completed", True),
    ]


async def test_a_continued_task_that_pauses_again_at_once_ends_with_the_stream(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(TaskState.INPUT_REQUIRED))))
    async with agent.client() as client:
        assert [event.state async for event in client.stream("yes", task_id="t1")] == ["input-required"]


async def test_leaving_a_stream_early_closes_the_connection(agent: ScriptedAgent) -> None:
    response = streaming(never_closed(agent.frames(snapshot())))
    agent.plays(response)
    async with agent.client() as client:
        events = client.stream("x")
        await anext(events)
        await events.aclose()
    assert response.is_closed


async def test_keep_alives_and_odd_line_ends_are_no_events(agent: ScriptedAgent) -> None:
    first, second = agent.frames(snapshot(), status(COMPLETED))
    body = b": keep-alive\n\n%b: keep-alive\r\rdata:\n\n%b" % (
        first.replace(b"\n", b"\r\n"),
        second.replace(b"\n", b"\r\n"),
    )
    agent.plays(streaming(body[i : i + 1] for i in range(len(body))))
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["1", "2"]


async def test_an_event_without_an_id_is_not_taken_for_the_one_before(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(
            [agent.frame(5, snapshot()), agent.frame(None, status(WORKING, "still")), agent.frame(6, status(COMPLETED))]
        )
    )
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["5", None, "6"]


async def test_an_event_that_is_sent_twice_is_yielded_once(agent: ScriptedAgent) -> None:
    frames = agent.frames(snapshot(), chunk("a", append=False), chunk("b"), status(COMPLETED))
    agent.plays(streaming(frame for frame in frames for _ in range(2)))
    async with agent.client() as client:
        assert [event.event_id async for event in client.stream("x")] == ["1", "2", "3", "4"]


async def test_a_gap_is_a_task_event_that_says_so(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(
            [agent.gap_frame(90, snapshot(text="later")), *agent.frames(chunk("!"), status(COMPLETED), first_id=91)]
        )
    )
    async with agent.client() as client:
        events = [event async for event in client.subscribe("t1", last_event_id="3")]
    assert [(e.kind, e.gap, e.event_id) for e in events] == [
        ("task", True, "90"),
        ("artifact", False, "91"),
        ("status", False, "92"),
    ]
    assert agent.calls[0].headers["Last-Event-ID"] == "3"


async def test_a_refused_stream_raises_the_agents_error(agent: ScriptedAgent) -> None:
    agent.plays(
        agent.refusal(TaskNotFoundError("no such task")), agent.refusal(UnsupportedOperationError("it has ended"))
    )
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError, match="no such task"):
            await anext(client.stream("x", task_id="t9"))
        with pytest.raises(UnsupportedOperationError, match="it has ended"):
            await anext(client.stream("x", task_id="t1"))
    assert len(agent.calls) == 2


async def test_an_error_as_the_first_event_is_the_agents_answer(agent: ScriptedAgent) -> None:
    agent.plays(streaming([agent.error_event(InternalError("broken"))]))
    async with agent.client() as client:
        with pytest.raises(InternalError, match="broken"):
            await anext(client.stream("x"))


@pytest.mark.parametrize("then", [None, httpx.ReadError("reset")])
async def test_a_stream_that_breaks_before_its_first_event_gives_back_the_messages_id(
    agent: ScriptedAgent, then: Exception | None
) -> None:
    agent.plays(streaming([agent.frames(snapshot())[0][:-1]], then))
    async with agent.client() as client:
        with pytest.raises(AnswerLostError) as caught:
            await anext(client.stream("x", message_id="m1"))
    assert caught.value.message_id == "m1"
    assert len(agent.calls) == 1


async def test_subscribing_follows_a_task_through_a_pause_to_its_end(agent: ScriptedAgent) -> None:
    agent.plays(
        streaming(
            never_closed(
                agent.frames(
                    snapshot(), status(TaskState.AUTH_REQUIRED), status(WORKING), status(COMPLETED), first_id=7
                )
            )
        )
    )
    async with agent.client() as client:
        states = [event.state async for event in client.subscribe("t1")]
    assert states == ["working", "auth-required", "working", "completed"]
    assert agent.operations == ["SubscribeToTask"]
    assert "Last-Event-ID" not in agent.calls[0].headers


async def test_subscribing_ends_when_the_agent_closes_the_stream_of_a_paused_task(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(), status(TaskState.INPUT_REQUIRED))))
    async with agent.client() as client:
        assert [event.state async for event in client.subscribe("t1")] == ["working", "input-required"]


async def test_subscribing_to_an_ended_task_yields_the_task(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(UnsupportedOperationError("it has ended")), agent.result(task(COMPLETED, text="all")))
    async with agent.client() as client:
        events = [event async for event in client.subscribe("t1")]
    assert [(e.kind, e.state, e.text, e.is_final) for e in events] == [("task", "completed", "all", True)]
    assert agent.operations == ["SubscribeToTask", "GetTask"]


async def test_an_agent_that_refuses_an_ended_task_in_another_way_is_understood(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(InvalidParamsError("it has ended")), agent.result(task(COMPLETED)))
    async with agent.client() as client:
        assert [event.state async for event in client.subscribe("t1")] == ["completed"]
    agent.plays(streaming([], then=cut()), agent.result(task(COMPLETED)))
    async with agent.client() as client:
        assert [event.state async for event in client.subscribe("t1")] == ["completed"]


async def test_an_agent_that_cuts_the_connection_of_an_unknown_task_is_not_asked_again(agent: ScriptedAgent) -> None:
    agent.plays(streaming([], then=cut()), agent.refusal(TaskNotFoundError("no such task")))
    async with agent.client() as client:
        with pytest.raises(TaskNotFoundError):
            [event async for event in client.subscribe("t1")]
    assert agent.operations == ["SubscribeToTask", "GetTask"]


async def test_a_refusal_that_has_another_reason_is_raised(agent: ScriptedAgent) -> None:
    agent.plays(agent.refusal(InvalidParamsError("id is too long")), agent.result(task(WORKING)))
    async with agent.client() as client:
        with pytest.raises(InvalidParamsError):
            [event async for event in client.subscribe("t1")]


async def test_subscribing_after_the_last_event_of_an_ended_task_yields_the_task(agent: ScriptedAgent) -> None:
    agent.plays(streaming([]), agent.result(task(COMPLETED)))
    async with agent.client() as client:
        assert [event.state async for event in client.subscribe("t1", last_event_id="9")] == ["completed"]


async def test_the_silence_between_events_can_be_bounded(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(COMPLETED))), streaming(agent.frames(snapshot(COMPLETED))))
    async with agent.client() as client:
        await anext(client.stream("x", timeout=9))
        await anext(client.subscribe("t1", timeout=8))
    assert [call.read_timeout for call in agent.calls] == [9, 8]


@pytest.mark.parametrize(
    ("responses", "pieces"),
    [
        ([snapshot(), chunk("a", append=False), chunk("b"), status(COMPLETED, "done")], ["a", "b"]),
        ([snapshot(), status(WORKING, "hm"), status(COMPLETED, "done")], ["done"]),
        ([snapshot(), status(TaskState.INPUT_REQUIRED, "which?")], ["which?"]),
        ([StreamResponse(message=message("hi"))], ["hi"]),
        ([snapshot(COMPLETED, text="all at once")], ["all at once"]),
        ([snapshot(text="begun "), chunk("and done"), status(COMPLETED)], ["begun ", "and done"]),
        ([StreamResponse(task=task(COMPLETED, said="short"))], ["short"]),
        ([snapshot(), chunk("a", append=False), chunk("B", append=False), status(COMPLETED)], ["a", "B"]),
        ([snapshot(), status(COMPLETED)], []),
    ],
)
async def test_the_text_of_a_stream_is_told_in_its_pieces(
    agent: ScriptedAgent, responses: list[StreamResponse], pieces: list[str]
) -> None:
    agent.plays(streaming(agent.frames(*responses)))
    async with agent.client() as client:
        assert [piece async for piece in client.stream_text("x")] == pieces


async def test_text_from_before_is_not_told_again_when_a_task_is_continued(agent: ScriptedAgent) -> None:
    agent.plays(streaming(agent.frames(snapshot(text="old "), chunk("new"), status(COMPLETED))))
    async with agent.client() as client:
        assert [piece async for piece in client.stream_text("x", task_id="t1")] == ["new"]


@pytest.mark.parametrize(
    ("protocol", "version"), [(binding, version) for binding in BINDINGS for version in ("1.0", "0.3")]
)
async def test_a_server_that_stops_while_it_streams_is_told_as_that(protocol: str, version: str) -> None:
    class Waits(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.emit_text_artifact("working")
            await asyncio.Event().wait()

    server = serve(Waits(), cancel_force_timeout=0.1, drain_timeout=0.1)
    options = {"protocol": protocol, "version": version, "max_retries": 0}
    async with connect(server, client=options) as client:
        events = client.stream("x")
        while not (await anext(events)).artifact_id:
            pass
        server.engine.disconnect()
        with pytest.raises(StreamInterruptedError, match="shutting down"):
            await anext(events)
