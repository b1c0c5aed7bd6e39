"""Answers that are not A2A, or are so only by a generous reading."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import httpx
import pytest

from errands.client import A2AClient, AgentNotFoundError, ProtocolError
from errands.errors import A2AError, AuthenticationRequiredError, InternalError, PermissionDeniedError
from errands.model.core import Part, TaskState
from errands.outbound import Meter
from tests.unit.client.agent import Bytes, ScriptedAgent, snapshot, status, streaming, task

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"null",
        b"[]",
        b"42",
        b'"text"',
        b"{",
        b'{"a": "\xff"}',
        b'{"detail": "Not Found"}',
        b"[" * 100_000,
        b'{"jsonrpc":"2.0","id":"1"}',
        b'{"jsonrpc":"2.0","id":"1","result":{"kind":"task","id":"t"}}',
        b'{"jsonrpc":"2.0","id":"1","result":"ok"}',
        b'{"jsonrpc":"2.0","id":"1","error":"no"}',
    ],
)
async def test_an_answer_that_is_no_task_is_a_protocol_error(agent: ScriptedAgent, body: bytes) -> None:
    agent.plays(httpx.Response(200, content=body))
    async with agent.client() as client:
        with pytest.raises(ProtocolError):
            await client.get_task("t1")


async def test_an_answer_with_neither_task_nor_message_is_a_protocol_error(agent: ScriptedAgent) -> None:
    agent.plays(httpx.Response(200, content=agent.enveloped(b"{}")))
    async with agent.client() as client:
        with pytest.raises(ProtocolError, match="a SendMessageResponse with neither task nor message"):
            await client.send("x")


@pytest.mark.parametrize("status_code", [400, 404, 405, 418])
async def test_a_wrong_address_is_not_taken_for_a_missing_task(agent: ScriptedAgent, status_code: int) -> None:
    agent.plays(httpx.Response(status_code, text="<html>nothing here</html>"))
    async with agent.client() as client:
        with pytest.raises(ProtocolError, match=f"HTTP {status_code}"):
            await client.get_task("t1")


@pytest.mark.parametrize(
    ("status_code", "kind"),
    [(401, AuthenticationRequiredError), (403, PermissionDeniedError), (500, InternalError)],
)
async def test_a_plain_http_refusal_is_understood(
    agent: ScriptedAgent, status_code: int, kind: type[Exception]
) -> None:
    agent.plays(httpx.Response(status_code))
    async with agent.client() as client:
        with pytest.raises(kind):
            await client.get_task("t1")


async def test_a_redirect_is_not_followed(agent: ScriptedAgent) -> None:
    agent.plays(httpx.Response(307, headers={"Location": "https://evil.test/"}))
    async with agent.client(headers={"Authorization": "Bearer secret"}) as client:
        with pytest.raises(ProtocolError, match=r"evil\.test"):
            await client.send("x")
    assert len(agent.calls) == 1


@pytest.mark.parametrize(
    "error",
    [
        b'{"code": 404, "message": 7, "details": [[], {"reason": ["x"]}, {"fieldViolations": [1]}]}',
        b'{"details": [{"reason": "TASK_NOT_FOUND", "metadata": {"self": "1", "message": "2"}}]}',
        b'{"code": "x", "data": {"reason": 1}, "details": {}}',
        b"{}",
    ],
)
async def test_a_malformed_error_is_still_an_error(agent: ScriptedAgent, error: bytes) -> None:
    agent.plays(httpx.Response(404, content=b'{"id":"1","error":%b}' % error))
    async with agent.client() as client:
        with pytest.raises(A2AError):
            await client.get_task("t1")


async def test_something_else_altogether_is_not_taken_for_an_empty_answer(agent: ScriptedAgent) -> None:
    agent.plays(httpx.Response(200, content=agent.enveloped(b'{"detail":"what?"}')))
    async with agent.client() as client:
        with pytest.raises(ProtocolError):
            await client.list_tasks()


async def test_empty_fields_that_were_left_out_are_empty(agent: ScriptedAgent) -> None:
    body = b'{"id":"t1","status":{"state":"TASK_STATE_WORKING"},"artifacts":[{"artifactId":"a"}]}'
    agent.plays(
        httpx.Response(200, content=agent.enveloped(body)),
        httpx.Response(200, content=agent.enveloped(b"{}")),
        httpx.Response(200, content=agent.enveloped(b"{}")),
    )
    async with agent.client() as client:
        assert (await client.get_task("t1")).artifacts[0].parts == []
        assert (await client.list_tasks()).tasks == []
        assert await client.list_push_configs("t1") == []


async def test_snake_case_and_unknown_fields_are_read(agent: ScriptedAgent) -> None:
    body = (
        b'{"id":"t1","context_id":"c1","status":{"state":"TASK_STATE_WORKING"},"novelty":1,'
        b'"artifacts":[{"artifact_id":"a","parts":[{"text":"x","media_type":"text/plain"}]}]}'
    )
    agent.plays(httpx.Response(200, content=agent.enveloped(body)))
    async with agent.client() as client:
        result = await client.get_task("t1")
    assert result.artifacts[0].parts == [Part(text="x", media_type="text/plain")]


async def test_values_arrive_as_they_were_sent(agent: ScriptedAgent) -> None:
    body = b'{"id":"t1","status":{"state":"TASK_STATE_WORKING"},"metadata":{"big":9007199254740993,"one":1,"f":1.0}}'
    agent.plays(httpx.Response(200, content=agent.enveloped(body)))
    async with agent.client() as client:
        task = (await client.get_task("t1")).raw_task
    assert task is not None
    assert task.metadata is not None
    assert [(type(value), value) for value in task.metadata.values()] == [(int, 2**53 + 1), (int, 1), (float, 1.0)]


@pytest.mark.parametrize(
    "event", [b"data: {\n\n", b"data: {}\n\n", b"data: []\n\n", b'data: {"result":{}}\n\n', b"data: [DONE]\n\n"]
)
async def test_an_event_that_is_none_is_a_protocol_error(agent: ScriptedAgent, event: bytes) -> None:
    agent.plays(streaming([event]))
    async with agent.client() as client:
        with pytest.raises(ProtocolError):
            async for _ in client.stream("x"):
                pass


async def test_a_stream_that_is_no_stream_is_a_protocol_error(agent: ScriptedAgent) -> None:
    agent.plays(agent.result(status(TaskState.WORKING)), httpx.Response(200, text="<html>"))
    async with agent.client() as client:
        with pytest.raises(ProtocolError, match="text/event-stream"):
            async for _ in client.stream("x"):
                pass
        with pytest.raises(ProtocolError):
            async for _ in client.stream("x"):
                pass


async def test_pages_that_go_round_in_a_circle_end_in_an_error(agent: ScriptedAgent) -> None:
    page = b'{"tasks":[],"nextPageToken":"%b"}'
    agent.plays(*(httpx.Response(200, content=agent.enveloped(page % token)) for token in (b"a", b"b", b"a")))
    async with agent.client() as client:
        with pytest.raises(ProtocolError, match="repeat"):
            async for _ in client.list_tasks():
                pass


async def test_a_body_that_cannot_be_unpacked_is_a_protocol_error(agent: ScriptedAgent) -> None:
    agent.plays(
        lambda _: httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=streaming([b"not gzip"]).stream)
    )
    async with agent.client() as client:
        with pytest.raises(ProtocolError):
            await client.get_task("t1")


async def test_an_id_that_cannot_be_a_header_is_not_sent_back(agent: ScriptedAgent) -> None:
    frames = [agent.frame("a\x01b", status(TaskState.WORKING)), agent.frame("ключ", status(TaskState.WORKING))]
    agent.plays(streaming(frames, httpx.ReadError("cut")), agent.result(task()))
    agent.plays(streaming(frames, httpx.ReadError("cut")), streaming(agent.frames(status(TaskState.COMPLETED))))
    async with agent.client() as client:
        events = [event async for event in client.stream("x")]
    assert [event.state for event in events] == ["working", "working", "completed"]
    assert "Last-Event-ID" not in agent.calls[1].headers


async def test_a_last_event_id_of_the_caller_cannot_smuggle_in_a_header(agent: ScriptedAgent) -> None:
    async with agent.client() as client:
        with pytest.raises(ValueError, match="line breaks"):
            client.subscribe("t1", last_event_id="1\r\nX-Evil: 1")


def endless(piece: bytes, sent: list[int]) -> Iterator[bytes]:
    """Yields `piece` for ever, and notes how many bytes were taken."""
    while True:
        sent[0] += len(piece)
        yield piece


async def test_an_answer_without_an_end_is_not_kept(agent: ScriptedAgent) -> None:
    sent = [0]
    agent.plays(httpx.Response(200, stream=Bytes(endless(b" " * 1000, sent))))
    async with agent.client(max_answer_bytes=50_000) as client:
        with pytest.raises(ProtocolError, match="the answer has more than 50,000 bytes"):
            await client.get_task("t1")
    assert sent[0] < 60_000


async def test_an_answer_that_says_it_is_a_stream_has_the_same_bound(agent: ScriptedAgent) -> None:
    agent.plays(streaming([b"data: x\n\n" * 1000] * 100))
    async with agent.client(max_answer_bytes=50_000) as client:
        with pytest.raises(ProtocolError, match="the answer has more than 50,000 bytes"):
            await client.get_task("t1")


async def test_what_is_compressed_counts_as_what_it_unpacks_to(agent: ScriptedAgent) -> None:
    packed = gzip.compress(b" " * 10_000_000)
    agent.plays(httpx.Response(200, headers={"Content-Encoding": "gzip"}, stream=Bytes([packed])))
    async with agent.client(max_answer_bytes=50_000) as client:
        with pytest.raises(ProtocolError, match="the answer has more than 50,000 bytes"):
            await client.get_task("t1")


@pytest.mark.parametrize("piece", [b"data: x\n", b": a comment\n", b"x" * 1000], ids=["lines", "comments", "line"])
async def test_an_event_without_an_end_is_not_kept(agent: ScriptedAgent, piece: bytes) -> None:
    sent = [0]
    agent.plays(streaming(endless(piece, sent)))
    async with agent.client(max_answer_bytes=50_000) as client:
        with pytest.raises(ProtocolError, match="one event of the answer has more than 50,000 bytes"):
            [event async for event in client.stream("x")]
    assert sent[0] < 60_000


async def test_a_stream_may_be_longer_than_each_of_its_events(agent: ScriptedAgent) -> None:
    updates = [status(TaskState.WORKING, "x" * 1000) for _ in range(100)]
    agent.plays(streaming(agent.frames(snapshot(), *updates, status(TaskState.COMPLETED))))
    async with agent.client(max_answer_bytes=5_000) as client:
        assert [event async for event in client.stream("x")][-1].state == "completed"


@pytest.mark.parametrize("end", ["\n\n", "\r\n\r\n", "\r\r", "\n\r\n", "\r\n\n", "\r\r\n", "\n\r"])
@pytest.mark.parametrize("size", [1, 7, 100])
def test_every_blank_line_ends_an_event(end: str, size: int) -> None:
    meter, stream = Meter(50, "text/event-stream"), f"data: x{end}".encode() * 50
    for start in range(0, len(stream), size):
        meter.count(stream[start : start + size])


async def test_a_card_without_an_end_is_no_card() -> None:
    sent = [0]
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Bytes(endless(b" " * 1_000_000, sent))))
    async with httpx.AsyncClient(transport=transport) as http:
        with pytest.raises(AgentNotFoundError, match=r"agent-card\.json: the answer has more than 10,485,760 bytes"):
            await A2AClient("http://agent.test", httpx_client=http).connect()
    assert sent[0] < 50_000_000
