"""What official SDKs sent and answered is read as what it means, and written again as it was."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.errors import A2AError, TaskNotCancelableError, TaskNotFoundError
from errands.model.base import encode
from errands.model.card import AgentCard
from errands.model.core import Message, Part, Role, StreamResponse, TaskState
from errands.model.requests import (
    AuthenticationInfo,
    SendMessageConfiguration,
    SendMessageRequest,
    SendMessageResponse,
    TaskPushNotificationConfig,
)
from errands.wire.v0_3_card import from_v0_3, to_v0_3, union
from errands.wire.v1_0 import read_answer
from tests.unit.wire.golden import FAMILIES, RECORDINGS, Recording, normal

CARDS = {"card", "extended-card"}
CALLS = [recording for recording in RECORDINGS if recording.name != "card"]
ANSWERS = [r for r in CALLS if not r.is_stream and not r.is_error and r.name not in CARDS]
STREAMS = [r for r in CALLS if r.is_stream]
ERRORS = [r for r in CALLS if r.is_error]


def named(recording: Recording) -> str:
    return f"{recording.family}-{recording.name}"


def of(name: str) -> list[Recording]:
    return [recording for recording in RECORDINGS if recording.name == name]


def sent(words: str, number: int, *parts: Part, **configuration: Any) -> SendMessageRequest:
    message = Message(message_id=f"m-{number}", role=Role.user, parts=[Part(text=words), *parts])
    return SendMessageRequest(message=message, configuration=SendMessageConfiguration(**configuration))


def file_parts(metadata: dict[str, Any] | None) -> list[Part]:
    return [
        Part(raw=bytes(range(256)), filename="all.bin", media_type="application/octet-stream"),
        Part(url="https://files.example/a.png", filename="a.png", media_type="image/png", metadata=metadata),
        Part(data={"n": 3, "nested": {"list": [1, "two", None, True]}}),
    ]


OLD_PARTS = [Part(text="héllo \U0001f30d", metadata={"n": 1}), *file_parts({"k": "v"})]
NEW_PARTS = [Part(text="héllo \U0001f30d"), *file_parts(None), Part(data=["no", "object"])]


def test_every_family_has_been_recorded() -> None:
    names = {family: {r.name for r in RECORDINGS if r.family == family} for family in FAMILIES}
    wanted = {
        *("send", "send-parts", "send-input-required", "send-again", "send-direct", "send-at-once"),
        *("stream", "stream-input-required", "stream-direct", "resubscribe", "get", "get-not-found"),
        *("cancel", "cancel-not-cancelable", "cancel-not-found", "push-set", "push-get", "card", "extended-card"),
    }
    assert {family: wanted - found for family, found in names.items()} == {family: set() for family in FAMILIES}


@pytest.mark.parametrize("recording", of("send"), ids=named)
def test_a_message_is_read(recording: Recording) -> None:
    assert recording.read_request() == sent("copy", 1, history_length=5, accepted_output_modes=["text/plain"])


@pytest.mark.parametrize("recording", of("send-parts"), ids=named)
def test_all_kinds_of_parts_are_read(recording: Recording) -> None:
    parts = OLD_PARTS if recording.family.startswith("0.3") else NEW_PARTS
    assert recording.read_request().message == sent("copy", 2, *parts).message


@pytest.mark.parametrize("recording", of("send-at-once"), ids=named)
def test_a_message_that_wants_an_answer_at_once_is_read(recording: Recording) -> None:
    assert recording.read_request() == sent("wait", 6, return_immediately=True)


@pytest.mark.parametrize("recording", of("send-again"), ids=named)
def test_a_message_to_a_task_names_it(recording: Recording) -> None:
    answer = recording.dialect.read_response(recording.asked().operation, encode(recording.answer()))
    message = recording.read_request().message
    assert (message.task_id, message.context_id) == (answer.task.id, answer.task.context_id)


@pytest.mark.parametrize("recording", of("get") + of("cancel"), ids=named)
def test_a_request_about_a_task_names_it(recording: Recording) -> None:
    answer = recording.dialect.read_response(recording.asked().operation, encode(recording.answer()))
    request = recording.read_request()
    assert request.id == answer.id
    assert getattr(request, "history_length", None) == (1 if recording.name == "get" else None)


@pytest.mark.parametrize("recording", of("resubscribe"), ids=named)
def test_a_subscription_names_its_task(recording: Recording) -> None:
    last = recording.dialect.read_event(encode(recording.events()[-1])).status_update
    assert last is not None
    assert recording.read_request().id == last.task_id


@pytest.mark.parametrize("recording", of("push-set"), ids=named)
def test_a_push_config_is_read(recording: Recording) -> None:
    request = recording.read_request()
    assert request == TaskPushNotificationConfig(
        url="http://hook.example/",
        id="p-1",
        task_id=request.task_id,
        token="token",
        authentication=AuthenticationInfo(scheme="Bearer", credentials="c"),
    )
    assert request.task_id in str(recording.request)


@pytest.mark.parametrize("recording", of("push-get") + of("push-delete"), ids=named)
def test_a_request_about_a_push_config_names_it(recording: Recording) -> None:
    request = recording.read_request()
    assert request.id == "p-1"
    assert request.task_id in str(recording.request)


@pytest.mark.parametrize("recording", CALLS, ids=named)
def test_a_recorded_request_is_written_again_as_it_was(recording: Recording) -> None:
    dialect, request = recording.dialect, recording.read_request()
    operation, body, _ = recording.asked()
    if recording.is_jsonrpc:
        assert dialect.method_of(operation) == recording.request["body"]["method"]
        assert normal(msgspec.json.decode(dialect.write_request(operation, request))) == normal(body)
        return
    method, path, query, content = dialect.locate(operation, request)
    recorded_path, _, recorded_query = recording.request["path"].partition("?")
    assert path == recorded_path
    assert "&".join(f"{key}={value}" for key, value in query.items()) == recorded_query
    # To subscribe, one SDK says POST and the other GET; neither sends anything.
    if operation.name != "SubscribeToTask":
        assert method == recording.request["method"]
    if operation.name not in {"CancelTask", "SubscribeToTask"}:
        assert normal(msgspec.json.decode(content or b"null")) == normal(without_path(body, operation.name))


def without_path(body: Any, operation: str) -> Any:
    """What the path says need not be said again: a2a-sdk 1.x does when it creates a push config in 1.0."""
    if operation == "CreateTaskPushNotificationConfig" and "taskId" in body:
        return {key: value for key, value in body.items() if key != "taskId"}
    return body


@pytest.mark.parametrize("recording", [r for r in CALLS if r.request["body"] is not None], ids=named)
def test_the_body_of_an_sdk_is_recognised(recording: Recording) -> None:
    assert recording.dialect.variant(encode(recording.asked().body)) is recording.dialect


@pytest.mark.parametrize("recording", ANSWERS, ids=named)
def test_a_recorded_answer_is_written_again_as_it_was(recording: Recording) -> None:
    operation = recording.asked().operation
    read = recording.dialect.read_response(operation, encode(recording.answer()))
    assert isinstance(read, operation.response)
    written = recording.dialect.write_response(operation, read)
    # Nothing is `{}` or null.
    assert (normal(msgspec.json.decode(written)) or None) == (normal(recording.answer()) or None)


@pytest.mark.parametrize("recording", of("send-parts"), ids=named)
def test_all_kinds_of_parts_are_answered(recording: Recording) -> None:
    answer = recording.dialect.read_response(recording.asked().operation, encode(recording.answer()))
    parts = OLD_PARTS if recording.family.startswith("0.3") else NEW_PARTS
    assert answer.task.artifacts[0].parts == [Part(text="copy"), *parts]


@pytest.mark.parametrize("recording", of("send-input-required"), ids=named)
def test_a_question_is_read(recording: Recording) -> None:
    answer = recording.dialect.read_response(recording.asked().operation, encode(recording.answer()))
    assert answer.task.status.state is TaskState.input_required
    assert answer.task.status.message.parts == [Part(text="which one?")]


@pytest.mark.parametrize("recording", of("send-direct"), ids=named)
def test_a_direct_message_is_read(recording: Recording) -> None:
    answer = recording.dialect.read_response(recording.asked().operation, encode(recording.answer()))
    assert answer == SendMessageResponse(message=answer.message)
    assert (answer.message.role, answer.message.parts) == (Role.agent, [Part(text="here you are")])


@pytest.mark.parametrize("recording", STREAMS, ids=named)
def test_the_events_of_a_stream_are_written_again_as_they_were(recording: Recording) -> None:
    events = recording.events()
    read = [recording.dialect.read_event(encode(event)) for event in events]
    written = [recording.dialect.write_event(encode(event)) for event in read]
    assert [normal(msgspec.json.decode(event)) for event in written] == [normal(event) for event in events]


@pytest.mark.parametrize("recording", of("stream"), ids=named)
def test_a_stream_tells_the_whole_story(recording: Recording) -> None:
    events = [recording.dialect.read_event(encode(event)) for event in recording.events()]
    assert [kind(event) for event in events] == ["task", "status", "artifact", "artifact", "status"]
    chunks = [event.artifact_update for event in events if event.artifact_update is not None]
    assert [(c.artifact.parts, c.append, c.last_chunk) for c in chunks] == [
        ([Part(text="one ")], False, False),
        ([Part(text="two")], True, True),
    ]
    assert events[-1].status_update is not None
    assert events[-1].status_update.status.state is TaskState.completed


def kind(event: StreamResponse) -> str:
    if event.task is not None:
        return "task"
    return "status" if event.status_update is not None else "artifact" if event.artifact_update is not None else "?"


@pytest.mark.parametrize("recording", ERRORS, ids=named)
def test_an_error_is_read_as_what_it_is(recording: Recording) -> None:
    wanted = TaskNotCancelableError if recording.name == "cancel-not-cancelable" else TaskNotFoundError
    body, error = recording.response["body"], None
    if recording.is_jsonrpc:
        error = recording.dialect.read_jsonrpc_error(body["error"])
        assert recording.dialect.jsonrpc_error(error)["code"] == body["error"]["code"]
    else:
        error = recording.dialect.read_http_error(recording.response["status"], body)
        assert isinstance(error, A2AError)
        if recording.family != "1.3.0-rest-0.3":  # It answers 0.3 with the statuses of 1.0.
            assert recording.dialect.http_error(error)[0] == recording.response["status"]
    assert type(error) is wanted
    assert error.message in str(body)


@pytest.mark.parametrize("recording", of("card") + of("extended-card"), ids=named)
def test_a_card_is_read_and_written_again(recording: Recording) -> None:
    fields = recording.response["body"] if recording.name == "card" else recording.answer()
    if "supportedInterfaces" in fields:
        card = read_answer(AgentCard, encode(fields))
        written = union(card) if "url" in fields else encode(card)
    else:
        card = from_v0_3(encode(fields))
        written = to_v0_3(card)
        assert {interface.protocol_version for interface in card.supported_interfaces} == {"0.3"}
    assert comparable(msgspec.json.decode(written)) == comparable(fields)


def comparable(card: dict[str, Any]) -> Any:
    """We name the preferred interface among the others too, as 0.3 recommends, and write the version in full."""
    fields: dict[str, Any] = normal(card)
    others = [interface for interface in fields.get("additionalInterfaces", []) if interface["url"] != fields["url"]]
    return fields | {"additionalInterfaces": others, "protocolVersion": fields.get("protocolVersion", "")[:3]}
