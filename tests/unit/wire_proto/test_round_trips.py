"""Whatever the model holds goes through protobuf and comes back, in both versions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from errands.errors import InvalidParamsError, UnsupportedOperationError
from errands.model.card import (
    AgentCapabilities,
    AgentCard,
    AgentExtension,
    AgentInterface,
    AgentProvider,
    AgentSkill,
    HTTPAuthSecurityScheme,
    SecurityRequirement,
    SecurityScheme,
    StringList,
)
from errands.model.core import (
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from errands.model.requests import (
    AuthenticationInfo,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    Empty,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    SubscribeToTaskRequest,
    TaskPushNotificationConfig,
)
from errands.operations import OPERATIONS
from errands.wire.proto.codec import (
    CODECS,
    Codec,
    Position,
    mark,
    position_of,
    read_request,
    read_response,
    write_request,
)
from errands.wire.proto.json_values import MAX_DEPTH, MAX_EXACT
from tests.soak import examples
from tests.unit.wire_proto.strategies import (
    events,
    messages,
    requests,
    tasks,
    values,
)

BOTH = pytest.mark.parametrize("codec", CODECS.values(), ids=lambda codec: codec.version)

few = settings(max_examples=examples(30), deadline=None)


def answered(codec: Codec, operation: str, response: Any) -> Any:
    """What the client reads of what the server wrote."""
    rpc = codec.rpcs[operation]
    return read_response(rpc, rpc.write(response).SerializeToString())


def asked(codec: Codec, operation: str, request: Any) -> Any:
    """What the server reads of what the client wrote."""
    rpc = codec.rpcs[operation]
    return read_request(rpc, write_request(rpc, request), 100_000)


@BOTH
@few
@given(event=events)
def test_an_event_comes_back_as_it_was(codec: Codec, event: StreamResponse) -> None:
    assert answered(codec, "SendStreamingMessage", event) == event


@BOTH
@few
@given(task=tasks)
def test_a_task_comes_back_as_it_was(codec: Codec, task: Task) -> None:
    assert answered(codec, "GetTask", task) == task
    assert answered(codec, "SendMessage", SendMessageResponse(task=task)).task == task


@BOTH
@few
@given(message=messages)
def test_a_direct_answer_comes_back_as_it_was(codec: Codec, message: Message) -> None:
    assert answered(codec, "SendMessage", SendMessageResponse(message=message)).message == message


@BOTH
@few
@given(request=requests)
def test_a_message_arrives_as_it_was_sent(codec: Codec, request: SendMessageRequest) -> None:
    assert asked(codec, "SendMessage", request) == request


@BOTH
@few
@given(value=values)
def test_data_keeps_the_types_of_its_values(codec: Codec, value: Any) -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(data=value)])
    data = asked(codec, "SendMessage", SendMessageRequest(message=message)).message.parts[0].data
    assert data == value
    # A float without a fraction is the one that cannot be told apart.
    assert types_of(data) == types_of(value)


def types_of(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: types_of(item) for key, item in value.items()}
    if isinstance(value, list):
        return [types_of(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_EXACT:
        return int
    return type(value)


REQUESTS: dict[str, Any] = {
    "GetTask": GetTaskRequest(id="t", history_length=3),
    "CancelTask": CancelTaskRequest(id="t"),
    "SubscribeToTask": SubscribeToTaskRequest(id="t"),
    "CreateTaskPushNotificationConfig": TaskPushNotificationConfig(
        url="https://example.com/hook",
        id="c",
        task_id="t",
        token="secret",
        authentication=AuthenticationInfo(scheme="Bearer", credentials="x"),
    ),
    "GetTaskPushNotificationConfig": GetTaskPushNotificationConfigRequest(task_id="t", id="c"),
    "ListTaskPushNotificationConfigs": ListTaskPushNotificationConfigsRequest(
        task_id="t", page_size=5, page_token="next"
    ),
    "DeleteTaskPushNotificationConfig": DeleteTaskPushNotificationConfigRequest(task_id="t", id="c"),
    "GetExtendedAgentCard": GetExtendedAgentCardRequest(),
}
SENDING = SendMessageRequest(
    message=Message(message_id="m", role=Role.USER, parts=[Part(text="hi"), Part(data={"a": [1, {}]})]),
    configuration=SendMessageConfiguration(history_length=3),
    metadata={"limit": 7},
)
ONLY_1_0: dict[str, Any] = {
    "GetTask": GetTaskRequest(id="t", tenant="acme", history_length=0),
    "ListTasks": ListTasksRequest(
        tenant="acme",
        context_id="c",
        status=TaskState.WORKING,
        page_size=7,
        page_token="next",
        history_length=0,
        status_timestamp_after="2026-01-31T12:00:00.000Z",
        include_artifacts=False,
    ),
    "CancelTask": CancelTaskRequest(id="t", tenant="acme", metadata={"why": 1}),
}


@BOTH
@pytest.mark.parametrize("operation", REQUESTS)
def test_every_request_arrives_as_it_was_sent(codec: Codec, operation: str) -> None:
    assert asked(codec, operation, REQUESTS[operation]) == REQUESTS[operation]


@pytest.mark.parametrize("operation", ONLY_1_0)
def test_what_only_version_1_0_can_say_arrives_there(operation: str) -> None:
    assert asked(CODECS["1.0"], operation, ONLY_1_0[operation]) == ONLY_1_0[operation]


@BOTH
def test_every_operation_has_a_method_but_one_that_0_3_does_not_know(codec: Codec) -> None:
    expected = set(OPERATIONS) if codec.version == "1.0" else set(OPERATIONS) - {"ListTasks"}
    assert set(codec.rpcs) == expected


def test_listing_over_0_3_is_refused_by_the_client() -> None:
    with pytest.raises(UnsupportedOperationError, match=r"A2A 0\.3 has no ListTasks"):
        CODECS["0.3"].rpc_of(OPERATIONS["ListTasks"])


@pytest.mark.parametrize("operation", REQUESTS)
def test_a_tenant_is_never_dropped_without_a_word_in_0_3(operation: str) -> None:
    request = msgspec.structs.replace(REQUESTS[operation], tenant="acme")
    with pytest.raises(UnsupportedOperationError, match="no tenants"):
        write_request(CODECS["0.3"].rpcs[operation], request)


@BOTH
def test_push_configs_come_back_as_they_were(codec: Codec) -> None:
    config = REQUESTS["CreateTaskPushNotificationConfig"]
    assert answered(codec, "GetTaskPushNotificationConfig", config) == config
    page = ListTaskPushNotificationConfigsResponse(configs=[config], next_page_token="next")
    assert answered(codec, "ListTaskPushNotificationConfigs", page) == page
    assert answered(codec, "DeleteTaskPushNotificationConfig", Empty()) == Empty()


def test_a_page_of_tasks_comes_back_as_it_was() -> None:
    page = ListTasksResponse(
        tasks=[Task(id="t", status=TaskStatus(state=TaskState.WORKING))], next_page_token="", page_size=50, total_size=1
    )
    assert answered(CODECS["1.0"], "ListTasks", page) == page


@BOTH
def test_a_card_comes_back_as_it_was(codec: Codec) -> None:
    needs = [SecurityRequirement(schemes={"token": StringList(scopes=["read"])})]
    card = AgentCard(
        name="Agent",
        description="An agent.",
        version="1.0.0",
        supported_interfaces=[
            AgentInterface(url=url, protocol_binding=binding, protocol_version="0.3.0")
            for url, binding in (("http://example.com/", "JSONRPC"), ("example.com:50051", "GRPC"))
        ],
        capabilities=AgentCapabilities(
            streaming=True,
            extended_agent_card=True,
            extensions=[AgentExtension(uri="urn:x", description="X", required=True, params={"depth": 3})],
        ),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="s", name="S", description="Does.", tags=["a"], security_requirements=needs)],
        provider=AgentProvider(url="https://example.com", organization="Example"),
        security_schemes={"token": SecurityScheme(http_auth_security_scheme=HTTPAuthSecurityScheme(scheme="bearer"))},
        security_requirements=needs,
    )
    read = answered(codec, "GetExtendedAgentCard", card)
    # 0.3 cannot say that a capability is left open.
    read.capabilities.push_notifications = read.capabilities.push_notifications or None
    assert read == card


# What protobuf cannot carry


@BOTH
@pytest.mark.parametrize("number", [MAX_EXACT + 1, -MAX_EXACT - 1, 10**300])
def test_an_integer_beyond_2_to_the_53_arrives_as_the_nearest_double(codec: Codec, number: int) -> None:
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING), metadata={"n": number})
    arrived = answered(codec, "GetTask", task).metadata["n"]
    assert arrived == float(number)


def test_an_integer_beyond_every_double_keeps_its_digits_as_a_string() -> None:
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING), metadata={"n": 10**400})
    assert answered(CODECS["1.0"], "GetTask", task).metadata["n"] == str(10**400)


def nested(levels: int) -> Any:
    value: Any = "bottom"
    for _ in range(levels):
        value = {"deeper": value}
    return value


@BOTH
def test_json_as_deep_as_readers_can_follow_arrives(codec: Codec) -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(data=nested(MAX_DEPTH))])
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING, message=message), metadata=nested(MAX_DEPTH))
    assert answered(codec, "SendMessage", SendMessageResponse(task=task)).task == task


@BOTH
def test_json_that_is_deeper_is_refused_by_whoever_would_send_it(codec: Codec) -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(data=nested(MAX_DEPTH + 1))])
    with pytest.raises(InvalidParamsError, match="nested more than 30 levels"):
        write_request(codec.rpcs["SendMessage"], SendMessageRequest(message=message))


@BOTH
def test_what_is_deeper_in_an_answer_is_json_text(codec: Codec) -> None:
    message = Message(message_id="m", role=Role.AGENT, parts=[Part(data=nested(MAX_DEPTH + 2))])
    task = Task(id="t", status=TaskStatus(state=TaskState.WORKING, message=message))
    arrived = answered(codec, "SendMessage", SendMessageResponse(task=task)).task
    value = arrived.status.message.parts[0].data
    for _ in range(MAX_DEPTH):
        value = value["deeper"]
    assert json.loads(value) == nested(2)


# What the schema has no place for


@BOTH
@few
@given(event=events, version=st.integers(1, 2**62), gap=st.booleans())
def test_a_position_travels_with_its_event_and_disturbs_no_reader(
    codec: Codec, event: StreamResponse, version: int, gap: bool
) -> None:
    rpc = codec.rpcs["SendStreamingMessage"]
    raw = rpc.write(event).SerializeToString()
    assert position_of(raw) is None
    marked = mark(raw, Position(version, gap))
    assert position_of(marked) == (version, gap)
    assert read_response(rpc, marked) == event


@BOTH
@settings(max_examples=examples(200), deadline=None)
@given(data=st.data())
def test_whatever_the_bytes_are_a_request_is_read_or_refused(codec: Codec, data: st.DataObject) -> None:
    rpc = codec.rpcs[data.draw(st.sampled_from(sorted(codec.rpcs)))]
    good = write_request(rpc, REQUESTS.get(rpc.operation.name, SENDING)) if rpc.operation.name != "ListTasks" else b""
    cut = data.draw(st.integers(0, len(good)))
    raw = good[:cut] + data.draw(st.binary(max_size=20)) + good[data.draw(st.integers(cut, len(good))) :]
    try:
        assert isinstance(read_request(rpc, raw, 100_000), rpc.operation.request)
    except InvalidParamsError as error:
        assert error.message  # noqa: PT017


# What other agents write


def test_a_time_with_nanoseconds_keeps_them() -> None:
    status = TaskStatus(state=TaskState.WORKING, timestamp="2026-01-31T12:00:00.123456789Z")
    assert answered(CODECS["1.0"], "GetTask", Task(id="t", status=status)).status == status


def test_a_time_that_is_none_is_left_out() -> None:
    status = TaskStatus(state=TaskState.WORKING, timestamp="yesterday")
    assert answered(CODECS["1.0"], "GetTask", Task(id="t", status=status)).status.timestamp is None


def test_a_file_of_0_3_may_be_base64_as_the_sdks_write_it_or_bytes_as_the_schema_has_it() -> None:
    rpc = CODECS["0.3"].rpcs["SendMessage"]
    for content in (b"AP8=", b"\x00\xff"):
        raw = rpc.request()
        raw.request.message_id, raw.request.role = "m", 1
        raw.request.content.add().file.file_with_bytes = content
        message: Any = rpc.read(raw)
        assert message.message.parts[0].raw == b"\x00\xff"


def test_data_of_0_3_that_only_looks_wrapped_stays_as_it_is() -> None:
    message = Message(message_id="m", role=Role.USER, parts=[Part(data={"value": 1})])
    part = asked(CODECS["0.3"], "SendMessage", SendMessageRequest(message=message)).message.parts[0]
    assert (part.data, part.metadata) == ({"value": 1}, None)
    assert part.data is not UNSET


def test_a_send_of_0_3_without_a_configuration_waits_for_the_agent() -> None:
    rpc = CODECS["0.3"].rpcs["SendMessage"]
    raw = rpc.request()
    raw.request.message_id, raw.request.role = "m", 1
    raw.request.content.add().text = "hi"
    assert rpc.read(raw).configuration is None  # type: ignore[attr-defined]
    raw.configuration.SetInParent()
    assert rpc.read(raw).configuration.return_immediately  # type: ignore[attr-defined]


def test_only_status_updates_that_end_a_turn_are_final_in_0_3() -> None:
    rpc = CODECS["0.3"].rpcs["SendStreamingMessage"]
    finals = {
        state
        for state in TaskState
        if rpc.write(
            StreamResponse(
                status_update=TaskStatusUpdateEvent(task_id="t", context_id="c", status=TaskStatus(state=state))
            )
        ).status_update.final
    }
    assert {state.short for state in finals} == {
        "completed",
        "failed",
        "canceled",
        "rejected",
        "input-required",
        "auth-required",
    }
