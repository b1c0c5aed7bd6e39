"""What is wrong gets a specified error with its details, on every method, and changes nothing."""

from __future__ import annotations

import math
from typing import Any

import grpc.aio
import pytest

from errands import (
    A2AMiddleware,
    BearerTokenMiddleware,
    ExtensionConfig,
    RequestEnvelope,
    Settings,
    TaskContext,
    Worker,
)
from errands.errors import UnavailableError
from errands.server import grpc as grpc_server
from errands.wire.proto.codec import CODECS, Codec
from tests.grpc_binding.serving import Served, old, old_send, over_grpc, pb, refusal, send
from tests.interaction.agents import Echo, Gated, card

pytestmark = pytest.mark.anyio

METHODS = [pytest.param(codec, name, id=f"{codec.version}-{name}") for codec in CODECS.values() for name in codec.rpcs]


def raw_call(served: Served, codec: Codec, operation: str, content: bytes, **options: Any) -> Any:
    """A call with whatever bytes."""
    rpc = codec.rpcs[operation]
    make = served.channel.unary_stream if rpc.operation.streams else served.channel.unary_unary
    return make(f"/{codec.service}/{rpc.name}")(content, **options)


async def tasks_of(served: Served) -> int:
    total: int = (await served.v1_0.ListTasks(pb.ListTasksRequest())).total_size
    return total


@pytest.mark.parametrize(("codec", "operation"), METHODS)
async def test_a_version_that_is_not_served_is_refused_on_every_method(codec: Codec, operation: str) -> None:
    async with over_grpc(Echo()) as served:
        refused = await refusal(raw_call(served, codec, operation, b"", metadata=(("a2a-version", "99.0"),)))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "VERSION_NOT_SUPPORTED")
        assert refused.domain == "a2a-protocol.org"
        assert "99.0" in refused.message


@pytest.mark.parametrize("version", ["1.0", "1.0.1", "0.3", ""])
async def test_a_version_that_is_served_is_taken(version: str) -> None:
    async with over_grpc(Echo()) as served:
        answer = await served.v1_0.SendMessage(send(), metadata=(("a2a-version", version),))
        assert answer.task.id


@pytest.mark.parametrize(("codec", "operation"), METHODS)
@pytest.mark.parametrize("content", [b"\xff", b"\x0a\x7fshort", b"\x0a\x02\xff\xfe" * 3], ids=["tag", "cut", "utf-8"])
async def test_bytes_that_are_no_message_are_an_invalid_argument(codec: Codec, operation: str, content: bytes) -> None:
    async with over_grpc(Echo(), extended_card_provider=None) as served:
        refused = await refusal(raw_call(served, codec, operation, content))
        assert refused.code in ("INVALID_ARGUMENT", "FAILED_PRECONDITION")
        if operation not in ("GetExtendedAgentCard",):
            assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMS")
        assert await tasks_of(served) == 0


NAN = pb.Part()
NAN.data.number_value = math.nan
BAD_1_0: dict[str, tuple[str, Any, str | None]] = {
    "no message": ("SendMessage", pb.SendMessageRequest(), "message"),
    "no message id": ("SendMessage", send(message_id=""), "message.messageId"),
    "no role": ("SendMessage", send(role=0), "message.role"),
    "an unknown role": ("SendMessage", send(role=9), "message.role"),
    "no parts": ("SendStreamingMessage", send(parts=[]), "message.parts"),
    "an empty part": ("SendMessage", send(parts=[pb.Part(text="x"), pb.Part()]), "message.parts[1]"),
    "no number": ("SendMessage", send(parts=[NAN]), "message.parts[0]"),
    "a negative history": (
        "SendMessage",
        pb.SendMessageRequest(message=send().message, configuration=pb.SendMessageConfiguration(history_length=-1)),
        "configuration.historyLength",
    ),
    "no task id": ("GetTask", pb.GetTaskRequest(), "id"),
    "nothing to cancel": ("CancelTask", pb.CancelTaskRequest(), "id"),
    "nothing to follow": ("SubscribeToTask", pb.SubscribeToTaskRequest(), "id"),
    "an empty page": ("ListTasks", pb.ListTasksRequest(page_size=0), "pageSize"),
    "a huge page": ("ListTasks", pb.ListTasksRequest(page_size=101), "pageSize"),
    "an unknown state": ("ListTasks", pb.ListTasksRequest(status=42), "status"),
    "no url": ("CreateTaskPushNotificationConfig", pb.TaskPushNotificationConfig(task_id="t"), "url"),
    "no config id": (
        "GetTaskPushNotificationConfig",
        pb.GetTaskPushNotificationConfigRequest(task_id="t"),
        "id",
    ),
}
BAD_0_3: dict[str, tuple[str, Any, str | None]] = {
    "no message": ("SendMessage", old.SendMessageRequest(), "message"),
    "no message id": ("SendMessage", old_send(message_id=""), "message.messageId"),
    "no parts": ("SendStreamingMessage", old_send(content=[]), "message.parts"),
    "an empty part": ("SendMessage", old_send(content=[old.Part()]), "message.parts[0]"),
    "no resource name": ("GetTask", old.GetTaskRequest(name="t-1"), "name"),
    "a name of something else": ("CancelTask", old.CancelTaskRequest(name="tasks/a/b"), "name"),
    "no config": ("GetTaskPushNotificationConfig", old.GetTaskPushNotificationConfigRequest(name="tasks/t"), "name"),
    "no parent": ("ListTaskPushNotificationConfig", old.ListTaskPushNotificationConfigRequest(), "parent"),
}


@pytest.mark.parametrize("case", BAD_1_0)
async def test_a_bad_request_is_refused_with_its_field(case: str) -> None:
    method, request, field = BAD_1_0[case]
    async with over_grpc(Echo()) as served:
        refused = await refusal(getattr(served.v1_0, method)(request))
        assert (refused.code, refused.reason) == ("INVALID_ARGUMENT", "INVALID_PARAMS")
        assert refused.fields == ([field] if field else [])
        assert await tasks_of(served) == 0


@pytest.mark.parametrize("case", BAD_0_3)
async def test_a_bad_request_of_0_3_is_refused_with_its_field(case: str) -> None:
    method, request, field = BAD_0_3[case]
    async with over_grpc(Echo()) as served:
        refused = await refusal(getattr(served.v0_3, method)(request))
        assert (refused.code, refused.reason, refused.fields) == ("INVALID_ARGUMENT", "INVALID_PARAMS", [field])
        assert refused.message.startswith("InvalidParamsError: ")


async def test_a_last_event_id_that_is_none_is_refused() -> None:
    async with over_grpc(Echo()) as served:
        stream = served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id="t"), metadata=(("last-event-id", "x"),))
        assert (await refusal(stream)).fields == ["Last-Event-ID"]


async def test_a_task_that_is_not_there_is_not_found_and_named() -> None:
    async with over_grpc(Echo()) as served:
        for call in (
            served.v1_0.GetTask(pb.GetTaskRequest(id="nobody")),
            served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id="nobody")),
            served.v0_3.GetTask(old.GetTaskRequest(name="tasks/nobody")),
        ):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == ("NOT_FOUND", "TASK_NOT_FOUND")


async def test_a_task_that_has_ended_is_neither_canceled_nor_followed() -> None:
    async with over_grpc(Echo()) as served:
        task = (await served.v1_0.SendMessage(send())).task
        canceled = await refusal(served.v1_0.CancelTask(pb.CancelTaskRequest(id=task.id)))
        assert (canceled.code, canceled.reason) == ("FAILED_PRECONDITION", "TASK_NOT_CANCELABLE")
        followed = await refusal(served.v1_0.SubscribeToTask(pb.SubscribeToTaskRequest(id=task.id)))
        assert (followed.code, followed.reason) == ("FAILED_PRECONDITION", "UNSUPPORTED_OPERATION")


async def test_a_message_that_is_too_large_is_refused() -> None:
    limit = 100_000
    async with over_grpc(Echo(), settings=Settings(storage="memory", max_body_bytes=limit)) as served:
        refused = await refusal(served.v1_0.SendMessage(send("x" * limit)))
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert await tasks_of(served) == 0
        assert (await served.v1_0.SendMessage(send("x" * (limit - 1000)))).task.id


async def test_a_method_that_does_not_exist_is_unimplemented() -> None:
    async with over_grpc(Echo()) as served:
        call = served.channel.unary_unary(f"/{CODECS['1.0'].service}/Nonsense")(b"")
        assert (await refusal(call)).code == "UNIMPLEMENTED"


async def test_an_extension_that_is_required_must_be_declared_and_is_acknowledged() -> None:
    needed = card(extensions=[ExtensionConfig(uri="urn:needed", required=True)])
    async with over_grpc(Echo(), agent_card=needed) as served:
        refused = await refusal(served.v1_0.SendMessage(send()))
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "EXTENSION_SUPPORT_REQUIRED")
        # As two entries: gRPC allows it, though the specification prefers one.
        declared = (("a2a-extensions", "urn:other"), ("a2a-extensions", "urn:needed"))
        call = served.v1_0.SendMessage(send(), metadata=declared)
        assert (await call).task.id
        assert dict([*await call.initial_metadata()])["a2a-extensions"] == "urn:needed"
        stream = served.v1_0.SendStreamingMessage(send(message_id="m-2"), metadata=declared)
        assert dict([*await stream.initial_metadata()])["a2a-extensions"] == "urn:needed"
        async for _ in stream:
            pass


async def test_clients_of_0_3_declare_extensions_under_their_own_name() -> None:
    needed = card(extensions=[ExtensionConfig(uri="urn:needed", required=True)])
    async with over_grpc(Echo(), agent_card=needed) as served:
        call = served.v0_3.SendMessage(old_send(), metadata=(("x-a2a-extensions", "urn:needed"),))
        assert (await call).task.id
        answered = dict([*await call.initial_metadata()])
        assert answered["x-a2a-extensions"] == "urn:needed"
        assert "a2a-extensions" not in answered


async def verify(token: str) -> dict[str, Any] | None:
    return {"sub": token} if token in ("anna", "ben") else None


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer nobody"),)], ids=["none", "wrong"])
async def test_who_has_no_good_token_is_unauthenticated(metadata: Any) -> None:
    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        for call in (
            served.v1_0.SendMessage(send(), metadata=metadata),
            served.v1_0.SendStreamingMessage(send(), metadata=metadata),
            served.v0_3.GetTask(old.GetTaskRequest(name="tasks/t"), metadata=metadata),
        ):
            refused = await refusal(call)
            assert (refused.code, refused.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            assert refused.metadata["www-authenticate"] == 'Bearer realm="a2a"'


async def test_a_token_makes_its_holder_the_owner_as_over_http() -> None:
    async with over_grpc(Echo(), middlewares=[BearerTokenMiddleware(verify)]) as served:
        anna, ben = ((("authorization", f"Bearer {name}"),) for name in ("anna", "ben"))
        task = (await served.v1_0.SendMessage(send(), metadata=anna)).task
        request = pb.GetTaskRequest(id=task.id)
        assert (await served.v1_0.GetTask(request, metadata=anna)).id == task.id
        assert (await refusal(served.v1_0.GetTask(request, metadata=ben))).reason == "TASK_NOT_FOUND"


async def test_middleware_sees_the_call_as_a_request() -> None:
    seen: list[Any] = []

    class Watching(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            seen.append((request.url.path, request.method, request.client.host, request.headers["x-trace"]))

    async with over_grpc(Echo(), middlewares=[Watching()]) as served:
        await served.v1_0.SendMessage(send(), metadata=(("x-trace", "abc"),))
    assert seen == [("/lf.a2a.v1.A2AService/SendMessage", "POST", "127.0.0.1", "abc")]


async def test_not_now_says_when_to_come_back() -> None:
    class Busy(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            raise UnavailableError("Too much to do", retry_after=7)

    async with over_grpc(Echo(), middlewares=[Busy()]) as served:
        refused = await refusal(served.v1_0.SendMessage(send()))
        assert (refused.code, refused.reason, refused.wait) == ("UNAVAILABLE", "UNAVAILABLE", 7)
        assert refused.metadata["retry-after"] == "7"


async def test_a_fault_inside_is_told_by_a_reference_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Faulty(A2AMiddleware):
        async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
            raise RuntimeError("the password is swordfish")

    async with over_grpc(Echo(), middlewares=[Faulty()]) as served:
        refused = await refusal(served.v1_0.SendMessage(send()))
        assert (refused.code, refused.reason) == ("INTERNAL", "INTERNAL")
        assert "swordfish" not in refused.message
    assert "swordfish" in caplog.text


class Deep(Worker):
    """Answers with JSON that readers of protobuf would not follow."""

    async def handle(self, ctx: TaskContext) -> None:
        value: Any = "bottom"
        for _ in range(60):
            value = {"deeper": value}
        await ctx.complete_json(value)


async def test_what_protobuf_cannot_carry_is_text_in_answers_and_does_not_spoil_a_listing() -> None:
    async with over_grpc(Deep()) as served:
        sent = (await served.v1_0.SendMessage(send())).task
        listed = await served.v1_0.ListTasks(pb.ListTasksRequest(include_artifacts=True))
        for task in (sent, *listed.tasks):
            value = task.artifacts[0].parts[0].data
            while value.WhichOneof("kind") == "struct_value":
                value = value.struct_value.fields["deeper"]
            assert value.string_value.endswith('{"deeper":"bottom"' + "}" * value.string_value.count("{"))
        assert len(listed.tasks) == 1


async def test_more_calls_than_can_be_open_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = Gated()
    async with over_grpc(agent) as served:
        # Once it listens: with the same bound for the streams of a connection, the third call would wait here.
        monkeypatch.setattr(grpc_server, "MOST_CALLS", 2)
        waiting = [served.v1_0.SendStreamingMessage(send(message_id=name)) for name in ("a", "b")]
        for call in waiting:
            await call.read()
        refused = await refusal(served.v1_0.ListTasks(pb.ListTasksRequest()))
        assert (refused.code, refused.reason) == ("UNAVAILABLE", "OVERLOADED")
        agent.gate.set()
        for call in waiting:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert await tasks_of(served) == 2
