"""Streams that are cut at every byte, against every kind of agent: each event is yielded exactly once."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errands import lifecycle
from errands.client import AnswerLostError
from errands.errors import UnsupportedOperationError
from errands.model.core import StreamResponse, Task
from tests.unit.client.agent import BINDINGS, LOG, ScriptedAgent, cut, streaming

pytestmark = pytest.mark.anyio

LENGTH = sum(len(frame) for frame in ScriptedAgent().frames(*LOG))
CUTS = st.lists(st.integers(0, LENGTH + 50), max_size=6)

#: Events with their ids.
Told = list[tuple[int | None, StreamResponse]]
#: What a connection tells when so many events have happened and the client gives this `Last-Event-ID`.
Teller = Callable[[int, int], Told]


def by_position(happened: int, last_event_id: int) -> Told:
    """As errands does: ids are positions in the log, with holes, and what was missed is told."""
    return [(3 * n, response) for n, response in enumerate(LOG, 1) if 3 * n > last_event_id]


def from_the_beginning(happened: int, last_event_id: int) -> Told:
    """Ids are positions in the log, and the whole log is told every time."""
    return list(enumerate(LOG, 1))


def snapshot_without_ids(happened: int, last_event_id: int) -> Told:
    """As the official SDK does: a snapshot and what comes after it."""
    return [(None, StreamResponse(task=folded(LOG[:happened]))), *((None, response) for response in LOG[happened:])]


def snapshot_with_position(happened: int, last_event_id: int) -> Told:
    """A snapshot whose id says which events are in it."""
    return [(n, response) for n, (_, response) in enumerate(snapshot_without_ids(happened, 0), happened)]


def numbered_per_connection(happened: int, last_event_id: int) -> Told:
    """As a2a-rs does: every connection counts from one."""
    return [(n, response) for n, (_, response) in enumerate(snapshot_without_ids(happened, 0), 1)]


LOGS: list[Teller] = [by_position, from_the_beginning]
SNAPSHOTS: list[Teller] = [snapshot_without_ids, snapshot_with_position, numbered_per_connection]


class CuttingAgent(ScriptedAgent):
    """Tells LOG over connections that break off after so many bytes each; when these run out, to the end."""

    def __init__(self, binding: str, cuts: list[int], tell: Teller, *, unseen: int = 1) -> None:
        """`unseen` events happen between two connections."""
        super().__init__(binding)
        self._unseen = unseen
        self._cuts = list(cuts)
        self._tell = tell
        self._happened = 1
        self.first_bytes: bytes | None = None

    def _answer(self, request: httpx.Request) -> httpx.Response:
        call = self._understand(request)
        self.calls.append(call)
        if call.operation == "GetTask":
            return self.result(folded(LOG))
        if self._happened == len(LOG) and self._tell in SNAPSHOTS:
            return self.refusal(UnsupportedOperationError("it has ended"))
        events = self._tell(self._happened, int(call.headers.get("Last-Event-ID", "0")))
        body = b"".join(self.frame(event_id, response) for event_id, response in events)
        sent = body[: self._cuts.pop(0)] if self._cuts else body
        self.first_bytes = sent if self.first_bytes is None else self.first_bytes
        # The first event of a connection is the snapshot of those before.
        told = max(0, sent.count(b"\n\n") - 1)
        self._happened = min(len(LOG), self._happened + told + self._unseen)
        return streaming([sent], None if sent == body else cut())


def folded(responses: list[StreamResponse]) -> Task:
    first, *others = responses
    assert first.task is not None
    result = first.task
    for response in others:
        result = response.task or lifecycle.fold_updates(result, [response])
    return result


def essence(task: Task) -> tuple[object, ...]:
    return task.status, {artifact.artifact_id: artifact.parts for artifact in task.artifacts or ()}


async def followed(agent: CuttingAgent) -> list[StreamResponse] | None:
    """What a stream yields, or None when it was rightly given up before its first event."""
    async with agent.client(max_retries=10) as client:
        try:
            events = [event async for event in client.stream("x", message_id="m1")]
        except AnswerLostError:
            assert b"\n\n" not in (agent.first_bytes or b"")
            return None
    assert agent.operations.count("SendStreamingMessage") == 1
    return [event.response for event in events]


@pytest.mark.parametrize("tell", LOGS)
@pytest.mark.parametrize("binding", BINDINGS)
@settings(deadline=None)
@given(cuts=CUTS)
async def test_wherever_it_is_cut_a_stream_with_positions_yields_the_log_exactly_once(
    binding: str, tell: Teller, cuts: list[int]
) -> None:
    assert await followed(CuttingAgent(binding, cuts, tell)) in (None, LOG)


@pytest.mark.parametrize("tell", SNAPSHOTS)
@pytest.mark.parametrize("binding", BINDINGS)
@settings(deadline=None)
@given(cuts=CUTS, unseen=st.integers(0, 2))
async def test_wherever_it_is_cut_a_stream_with_snapshots_loses_nothing_and_repeats_nothing(
    binding: str, tell: Teller, cuts: list[int], unseen: int
) -> None:
    seen = await followed(CuttingAgent(binding, cuts, tell, unseen=unseen))
    if seen is None:
        return
    assert essence(folded(seen)) == essence(folded(LOG))
    for place, response in enumerate(seen[1:], 1):
        assert response.task is None or essence(response.task) != essence(folded(seen[:place]))


@pytest.mark.parametrize("tell", LOGS + SNAPSHOTS)
@pytest.mark.parametrize("binding", BINDINGS)
@settings(deadline=None)
@given(cuts=CUTS, unseen=st.integers(0, 2))
async def test_wherever_it_is_cut_the_text_is_whole(binding: str, tell: Teller, cuts: list[int], unseen: int) -> None:
    agent = CuttingAgent(binding, cuts, tell, unseen=unseen)
    async with agent.client(max_retries=10) as client:
        try:
            pieces = [piece async for piece in client.stream_text("x")]
        except AnswerLostError:
            return
    text = "".join(pieces)
    assert text.replace("other", "") == "één twee drie"
    assert text.count("other") == 1


async def test_every_single_cut_is_survived(agent: ScriptedAgent) -> None:
    for position in range(LENGTH):
        assert await followed(CuttingAgent(agent.binding, [position], by_position)) in (None, LOG)
