"""errands' own client over gRPC: agents that are silent, cut off, or less careful."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest

from errands.client.agent_session import TransientError
from errands.client.errors import AgentTimeoutError, AgentUnreachableError, ProtocolError
from errands.client.task_stream import TaskStream
from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    InternalError,
    InvalidParamsError,
    PayloadTooLargeError,
    PermissionDeniedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnsupportedOperationError,
)
from errands.model.requests import GetTaskRequest
from tests.grpc_binding.serving import over_grpc, pb, watched
from tests.grpc_binding.transport import ask, sending, session_of, stream, transport_to
from tests.interaction.agents import Echo, Gated
from tests.waiting import until

pytestmark = pytest.mark.anyio


async def test_an_answer_that_does_not_come_in_time_is_a_timeout(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        with pytest.raises(TransientError) as failure:
            await ask(transport, "SendMessage", sending(), timeout=0.2)
        assert isinstance(failure.value.cause, httpx.ReadTimeout)
        assert failure.value.reached
        with pytest.raises(AgentTimeoutError):
            await session_of(transport).call_within(0.2, "SendMessage", sending("again"), message_id="m")
        worker.gate.set()


async def test_silence_on_a_stream_is_bounded(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        events = stream(transport, "SendStreamingMessage", sending(), read_timeout=0.2)
        with pytest.raises(TransientError, match="no event within"):
            [one async for one in events]
        worker.gate.set()


async def test_an_answer_or_an_event_that_is_too_large_is_not_read(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version, 5_000) as transport:
        with pytest.raises(ProtocolError, match="larger than allowed"):
            await ask(transport, "SendMessage", sending("x" * 10_000))
        with pytest.raises(ProtocolError, match="larger than allowed"):
            [one async for one in stream(transport, "SendStreamingMessage", sending("y" * 10_000))]
        assert (await ask(transport, "SendMessage", sending("z"))).task is not None


async def test_a_request_that_is_too_large_for_the_server_is_not_called_a_wrong_answer(version: str) -> None:
    async with over_grpc(Echo(), max_body_bytes=5_000) as served, transport_to(served.address, version) as transport:
        with pytest.raises(PayloadTooLargeError, match="larger than max"):
            await ask(transport, "SendMessage", sending("x" * 10_000))


async def test_a_stream_that_is_left_is_given_up_on_the_server(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        async with aclosing(stream(transport, "SendStreamingMessage", sending())) as events:
            await anext(events)
            assert watched(served.server)
        await until(lambda: not watched(served.server))
        worker.gate.set()


class Wire:
    """A piece of wire before an agent, which can be cut."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._writers: list[asyncio.StreamWriter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Wire:
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.address = f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._port)
        self._writers += [writer, far_writer]
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                target.write(data)
        except ConnectionError:
            pass
        finally:
            target.close()

    def cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()


async def test_a_cut_stream_goes_on_and_shows_everything_once(version: str, storage: str) -> None:
    worker = Gated()
    async with over_grpc(worker, storage=storage) as served:
        assert served.server.grpc_port is not None
        async with Wire(served.server.grpc_port) as wire, transport_to(wire.address, version) as transport:
            follower = TaskStream(session_of(transport), request=sending())
            seen: list[str] = []
            async for event in follower.events():
                if event.kind == "artifact":
                    seen.append(event.text or "")
                if seen == ["first "]:
                    wire.cut()
                    worker.gate.set()
            assert seen == ["first ", "second"]
            assert event.state == "completed"


async def test_a_call_whose_connection_is_cut_may_have_been_received(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served:
        assert served.server.grpc_port is not None
        async with Wire(served.server.grpc_port) as wire, transport_to(wire.address, version) as transport:
            call = asyncio.ensure_future(ask(transport, "SendMessage", sending()))
            await worker.started.wait()
            wire.cut()
            with pytest.raises(TransientError) as failure:
                await call
            assert failure.value.reached
            assert isinstance(failure.value.cause, httpx.NetworkError)
            worker.gate.set()


async def test_an_agent_that_is_not_there_cannot_be_reached(version: str) -> None:
    async with transport_to("127.0.0.1:1", version) as transport:
        with pytest.raises(TransientError) as failure:
            await ask(transport, "GetTask", GetTaskRequest(id="t"))
        assert isinstance(failure.value.cause, httpx.ConnectError)
        assert not failure.value.reached
        with pytest.raises(AgentUnreachableError):
            await session_of(transport).call("GetTask", GetTaskRequest(id="t"))
        with pytest.raises(TransientError) as failure:
            await anext(stream(transport, "SendStreamingMessage", sending()))
        assert not failure.value.reached


@asynccontextmanager
async def careless(behaviour: Any) -> AsyncIterator[str]:
    """A server that does `behaviour(context)` whatever it is asked."""

    class Anything(grpc.GenericRpcHandler):  # type: ignore[misc]
        def service(self, details: Any) -> Any:
            is_stream = details.method.endswith(("SendStreamingMessage", "SubscribeToTask", "TaskSubscription"))
            make = grpc.unary_stream_rpc_method_handler if is_stream else grpc.unary_unary_rpc_method_handler

            async def answer(_: bytes, context: Any) -> Any:
                result = await behaviour(context)
                return await context.write(result) if is_stream else result

            return make(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Anything()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


PLAIN: dict[str, tuple[grpc.StatusCode, str, type[A2AError]]] = {
    "not found": (grpc.StatusCode.NOT_FOUND, "gone", TaskNotFoundError),
    "unauthenticated": (grpc.StatusCode.UNAUTHENTICATED, "who?", AuthenticationRequiredError),
    "permission": (grpc.StatusCode.PERMISSION_DENIED, "no", PermissionDeniedError),
    "argument": (grpc.StatusCode.INVALID_ARGUMENT, "what?", InvalidParamsError),
    "precondition": (grpc.StatusCode.FAILED_PRECONDITION, "not now", UnsupportedOperationError),
    "internal": (grpc.StatusCode.INTERNAL, "oops", InternalError),
    "named": (grpc.StatusCode.UNKNOWN, "TaskNotCancelableError: it has ended", TaskNotCancelableError),
}


@pytest.mark.parametrize("case", PLAIN)
async def test_an_error_without_details_is_known_by_its_name_or_code(case: str, version: str) -> None:
    code, details, expected = PLAIN[case]

    async def refuse(context: Any) -> None:
        await context.abort(code, details)

    async with careless(refuse) as address, transport_to(address, version) as transport:
        with pytest.raises(expected) as raised:
            await ask(transport, "GetTask", GetTaskRequest(id="t"))
        assert raised.value.message == details.removeprefix("TaskNotCancelableError: ")


async def test_details_that_cannot_be_read_are_passed_over(version: str) -> None:
    async def refuse(context: Any) -> None:
        await context.abort(grpc.StatusCode.NOT_FOUND, "gone", (("grpc-status-details-bin", b"\xff\xff"),))

    async with careless(refuse) as address, transport_to(address, version) as transport:
        with pytest.raises(TaskNotFoundError, match="gone"):
            await ask(transport, "GetTask", GetTaskRequest(id="t"))


async def test_a_service_that_is_not_there_is_no_a2a(version: str) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with transport_to(f"127.0.0.1:{port}", version) as transport:
        with pytest.raises(ProtocolError, match="UNIMPLEMENTED"):
            await ask(transport, "GetTask", GetTaskRequest(id="t"))
    await server.stop(None)


@pytest.mark.parametrize("content", [b"\xff\xff", b"\x0a\x7f"], ids=["tag", "cut"])
async def test_an_answer_that_is_no_message_is_no_a2a(content: bytes, version: str) -> None:
    async def mumble(_: Any) -> bytes:
        return content

    async with careless(mumble) as address, transport_to(address, version) as transport:
        with pytest.raises(ProtocolError):
            await ask(transport, "GetTask", GetTaskRequest(id="t"))
        with pytest.raises(ProtocolError):
            await anext(stream(transport, "SendStreamingMessage", sending()))


async def test_an_event_without_content_is_no_a2a(version: str) -> None:
    async def silence(_: Any) -> bytes:
        return b""

    async with careless(silence) as address, transport_to(address, version) as transport:
        with pytest.raises(ProtocolError, match="without content"):
            await anext(stream(transport, "SendStreamingMessage", sending()))


async def test_a_fault_in_the_middle_of_a_stream_is_about_the_stream(version: str) -> None:
    async def begin(context: Any) -> None:
        await context.write(pb.StreamResponse(message=pb.Message(message_id="m", role=2)).SerializeToString())
        await context.abort(grpc.StatusCode.INTERNAL, "broken")

    async with careless(begin) as address, transport_to(address, version) as transport:
        events = stream(transport, "SendStreamingMessage", sending())
        await anext(events)
        with pytest.raises(TransientError) as failure:
            await anext(events)
        assert isinstance(failure.value.cause, InternalError)
        assert failure.value.reached
