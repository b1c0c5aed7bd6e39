"""errands' own client over gRPC, in both versions: against errands, and against agents that are less careful."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from msgspec import UNSET

from errands import A2AMiddleware, AgentCardConfig, BearerTokenMiddleware, RequestEnvelope
from errands.client.errors import AgentTimeoutError, AgentUnreachableError, ProtocolError
from errands.client.following import Follower
from errands.client.grpc_transport import GrpcTransport, target_of
from errands.client.retry import RetryPolicy
from errands.client.session import Session
from errands.client.transport import TransientError
from errands.errors import (
    A2AError,
    AuthenticationRequiredError,
    ConfigurationError,
    InternalError,
    InvalidParamsError,
    PermissionDeniedError,
    PushNotificationNotSupportedError,
    TaskNotCancelableError,
    TaskNotFoundError,
    UnavailableError,
    UnsupportedOperationError,
)
from errands.model.card import AgentCapabilities, AgentCard
from errands.model.core import Message, Part, Role, TaskState
from errands.model.requests import (
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTasksRequest,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS
from tests.grpc_binding.serving import over_grpc, pb
from tests.grpc_binding.test_lifetime import until, watched
from tests.interaction.agents import Asks, Direct, Echo, Gated, Parrot, Patient, card

pytestmark = pytest.mark.anyio

PUSH = {
    "CreateTaskPushNotificationConfig": TaskPushNotificationConfig(url="https://example.com", task_id="t", id="c"),
    "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest(task_id="t", id="c"),
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest(task_id="t"),
    "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest(task_id="t", id="c"),
}


@pytest.fixture(params=["1.0", "0.3"])
def version(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


@asynccontextmanager
async def transport_to(address: str, version: str = "1.0", **headers: str) -> AsyncIterator[GrpcTransport]:
    transport = GrpcTransport(address, version, headers=headers, timeout=5.0)
    try:
        yield transport
    finally:
        await transport.close()


def sending(text: str = "hi", *, immediately: bool = False, parts: list[Part] | None = None) -> SendMessageRequest:
    message = Message(message_id=f"m-{text}", role=Role.USER, parts=parts or [Part(text=text)])
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(return_immediately=immediately))


async def ask(transport: GrpcTransport, operation: str, request: Any, timeout: float | None = None) -> Any:
    return await transport.call(OPERATIONS[operation], request, read_timeout=timeout)


def stream(transport: GrpcTransport, operation: str, request: Any, **options: Any) -> Any:
    options = {"last_event_id": None, "read_timeout": None, **options}
    return transport.stream(OPERATIONS[operation], request, **options)


def session_of(transport: GrpcTransport) -> Session:
    offered = AgentCard(
        name="Agent",
        description="",
        version="1",
        supported_interfaces=[],
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=[],
        default_output_modes=[],
        skills=[],
    )
    return Session(offered, transport, RetryPolicy(delay=0.01), version="1.0", tenant=None, timeout=5.0)


# Against errands


async def test_a_message_is_sent_and_its_task_is_got(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending())).task
        assert task.status.state is TaskState.COMPLETED
        assert task.artifacts[0].parts == [Part(text="Echo: hi")]
        assert await ask(transport, "GetTask", GetTaskRequest(id=task.id)) == task


async def test_a_direct_answer_is_a_message(version: str) -> None:
    async with over_grpc(Direct()) as served, transport_to(served.address, version) as transport:
        assert (await ask(transport, "SendMessage", sending())).message.parts == [Part(text="You said hi")]


async def test_every_kind_of_part_comes_back(version: str) -> None:
    parts = [
        Part(text="text"),
        Part(raw=b"\x00\xff", filename="a.bin", media_type="application/octet-stream"),
        Part(url="https://example.com/a.txt", filename="a.txt", media_type="text/plain"),
        Part(data={"count": 42, "deep": [1, 2.5, None]}),
        Part(data=[1, "two"]),
    ]
    agent_card = card(input_modes=["*/*"])
    async with (
        over_grpc(Parrot(), agent_card=agent_card) as served,
        transport_to(served.address, version) as transport,
    ):
        task = (await ask(transport, "SendMessage", sending(parts=parts))).task
        returned = [artifact.parts[0] for artifact in task.artifacts]
        assert returned[:3] == parts[:3]
        assert [part.data for part in returned[3:]] == [part.data for part in parts[3:]]
        assert all(part.data is not UNSET for part in returned[3:])


async def test_a_stream_is_followed_to_its_end(version: str) -> None:
    worker = Gated()
    worker.gate.set()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        received = [one async for one in stream(transport, "SendStreamingMessage", sending())]
        assert received[0].response.task is not None
        assert received[-1].response.status_update is not None
        assert [one.event_id for one in received] == ["1", "2", "3", "4", "5"]


async def test_a_task_is_subscribed_to_and_canceled(version: str) -> None:
    worker = Patient()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending(immediately=True))).task
        await worker.started.wait()
        events = stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id))
        assert (await anext(events)).response.task.id == task.id
        canceled = await ask(transport, "CancelTask", CancelTaskRequest(id=task.id))
        assert canceled.status.state is TaskState.CANCELED
        rest = [one.response async for one in events]
        assert rest[-1].status_update.status.state is TaskState.CANCELED


async def test_a_subscription_goes_on_after_an_event_that_is_named(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        task = (await ask(transport, "SendMessage", sending())).task
        events = stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id), last_event_id="3")
        [last] = [one async for one in events]
        assert last.response.status_update.status.state is TaskState.COMPLETED
        assert (last.event_id, last.gap) == ("4", False)


async def test_tasks_are_listed_over_1_0_and_not_over_0_3(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        await ask(transport, "SendMessage", sending())
        if version == "1.0":
            assert (await ask(transport, "ListTasks", ListTasksRequest())).total_size == 1
        else:
            with pytest.raises(UnsupportedOperationError, match="has no ListTasks over gRPC"):
                await ask(transport, "ListTasks", ListTasksRequest())


async def test_the_extended_card_is_read(version: str) -> None:
    async def provider(_: object) -> AgentCardConfig:
        return AgentCardConfig(name="Extended", description="More.")

    async with (
        over_grpc(Echo(), extended_card_provider=provider) as served,
        transport_to(served.address, version) as transport,
    ):
        extended = await ask(transport, "GetExtendedAgentCard", GetExtendedAgentCardRequest())
        assert (extended.name, extended.skills[0].id) == ("Extended", "extended")


@pytest.mark.parametrize("operation", PUSH)
async def test_what_the_agent_does_not_offer_is_its_error(version: str, operation: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        with pytest.raises(PushNotificationNotSupportedError):
            await ask(transport, operation, PUSH[operation])


async def test_the_agents_errors_arrive_as_they_were_raised(version: str) -> None:
    async with over_grpc(Echo()) as served, transport_to(served.address, version) as transport:
        with pytest.raises(TaskNotFoundError, match=r"^Task not found$") as not_found:
            await ask(transport, "GetTask", GetTaskRequest(id="nobody"))
        assert not_found.value.metadata == {"taskId": "nobody"}
        with pytest.raises(InvalidParamsError) as invalid:
            await ask(transport, "GetTask", GetTaskRequest(id="x", history_length=-1))
        assert invalid.value.field == "historyLength"
        task = (await ask(transport, "SendMessage", sending())).task
        with pytest.raises(TaskNotCancelableError, match="already completed"):
            await ask(transport, "CancelTask", CancelTaskRequest(id=task.id))
        with pytest.raises(UnsupportedOperationError):
            await anext(stream(transport, "SubscribeToTask", SubscribeToTaskRequest(id=task.id)))


async def test_headers_are_sent_as_metadata(version: str) -> None:
    async def verify(token: str) -> dict[str, Any] | None:
        return {"sub": token} if token == "anna" else None

    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        credentials = {"Authorization": "Bearer anna", "Content-Type": "text/plain", "Host": "elsewhere"}
        async with transport_to(served.address, version, **credentials) as transport:
            assert (await ask(transport, "SendMessage", sending())).task is not None
        async with transport_to(served.address, version) as transport:
            with pytest.raises(AuthenticationRequiredError):
                await ask(transport, "SendMessage", sending())


async def test_not_now_is_tried_again_when_the_agent_says(version: str) -> None:
    class Busy(A2AMiddleware):
        left = 2

        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            if self.left:
                self.left -= 1
                raise UnavailableError(retry_after=0)

    async with over_grpc(Echo(), middlewares=[Busy()]) as served, transport_to(served.address, version) as transport:
        with pytest.raises(TransientError) as failure:
            await ask(transport, "SendMessage", sending())
        assert isinstance(failure.value.cause, UnavailableError)
        assert (failure.value.reached, failure.value.retry_after) == (False, 0)
        assert (await session_of(transport).call("SendMessage", sending())).task is not None


# Time


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


async def test_a_stream_that_is_left_is_given_up_on_the_server(version: str) -> None:
    worker = Gated()
    async with over_grpc(worker) as served, transport_to(served.address, version) as transport:
        async with aclosing(stream(transport, "SendStreamingMessage", sending())) as events:
            await anext(events)
            assert watched(served.server)
        await until(lambda: not watched(served.server))
        worker.gate.set()


# Connections that break


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
            follower = Follower(session_of(transport), request=sending())
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


# Agents that are less careful


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


# Addresses


@pytest.mark.parametrize(
    ("url", "target", "is_secure"),
    [
        ("localhost:50051", "localhost:50051", False),
        ("127.0.0.1:50051", "127.0.0.1:50051", False),
        ("[::1]:50051", "[::1]:50051", False),
        ("http://agent.example.com:50051", "agent.example.com:50051", False),
        ("grpc://agent.example.com:50051/", "agent.example.com:50051", False),
        ("https://agent.example.com/a2a/grpc", "agent.example.com:443", True),
        ("grpcs://agent.example.com:8443", "agent.example.com:8443", True),
        ("dns:///agent.example.com:50051", "dns:///agent.example.com:50051", False),
        ("unix:/run/agent.sock", "unix:/run/agent.sock", False),
    ],
)
def test_an_address_says_where_and_whether_by_tls(url: str, target: str, is_secure: bool) -> None:
    assert target_of(url) == (target, is_secure)


@pytest.mark.parametrize("url", ["", "ftp://agent.example.com", "https://", "agent:port", "http://[::1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="HOST:PORT"):
        target_of(url)


async def test_a_version_that_is_not_spoken_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"possible are 1\.0, 0\.3"):
        GrpcTransport("localhost:1", "2.0", headers={}, timeout=None)


async def test_the_agent_that_asks_ends_the_followed_turn(version: str) -> None:
    async with over_grpc(Asks()) as served, transport_to(served.address, version) as transport:
        follower = Follower(session_of(transport), request=sending())
        states = [event.state async for event in follower.events()]
        assert states[-1] == "input-required"
