"""Work grows in proportion to what strangers send: each of these took seconds when it grew with the square."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.agents.manifests.schemas import written_out
from errands.agents.models.scripted import _WORD
from errands.agents.tools.mcp import _parameters
from errands.agents.tools.toolbox import HIDDEN, Secrets
from errands.errors import InvalidParamsError
from errands.lifecycle import fold_updates
from errands.model.core import (
    Artifact,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
)
from errands.model.requests import SendMessageRequest
from errands.policy.agent_oversight import as_parts, as_values
from errands.runtime.validation import own_part
from errands.wire.sse import SSEParser
from errands.wire.v1_0 import invalid_params, read_body
from tests.unheld import unheld

TASK = Task(id="t", status=TaskStatus(state=TaskState.WORKING))


def test_a_text_of_underscores_is_read() -> None:
    body = b'{"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "%b"}]}}' % (b"_" * 200_000)
    with unheld():
        read_body(SendMessageRequest, body)


@pytest.mark.parametrize("key", ["message_id", "messageId", "_message_id_"])
def test_keys_in_snake_case_are_still_found(key: str) -> None:
    body = b'{"message": {"%b" : "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}}' % key.encode()
    if key.startswith("_"):
        with pytest.raises(InvalidParamsError, match="messageId"):
            read_body(SendMessageRequest, body)
    else:
        assert read_body(SendMessageRequest, body).message.message_id == "m"


def test_a_complaint_about_a_text_full_of_places_is_read() -> None:
    text = "no " + " - at `$" * 5_000 + "!"
    with unheld():
        assert str(invalid_params(msgspec.ValidationError(text))) == text
    error = msgspec.ValidationError(f"{text} - at `$.message.role`")
    assert str(invalid_params(error)) == f"{text} (at message.role)"


@pytest.mark.parametrize("size", [1_000, 65_536])
def test_one_long_event_is_read_however_it_is_cut(size: int) -> None:
    parser, found = SSEParser(), []
    stream = b"data: " + b"x" * 2_000_000 + b"\r\n\r\nid: 1\rdata: y\r\r"
    with unheld():
        for start in range(0, len(stream), size):
            found += parser.feed(stream[start : start + size])
    # A carriage return at the end may be half of a line break, and the next byte tells.
    found += parser.feed(b"\n")
    assert [(len(event.data), event.id) for event in found] == [(2_000_000, None), (1, "1")]


def test_many_published_tasks_are_folded() -> None:
    said = [Message(message_id=f"m{number // 2}", role=Role.AGENT, parts=[]) for number in range(10_000)]
    published = [Task(id="t", status=TASK.status, history=[message]) for message in said]
    with unheld():
        folded = fold_updates(TASK, [StreamResponse(task=task) for task in published])
    assert [message.message_id for message in folded.history or ()] == [f"m{number}" for number in range(5_000)]


def test_chunks_with_metadata_of_their_own_are_folded() -> None:
    chunks = [
        Artifact(artifact_id="a", name=f"n{number}", parts=[Part(text="x")], metadata={f"k{number}": number})
        for number in range(20_000)
    ]
    updates = [
        StreamResponse(
            artifact_update=TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=chunk, append=True)
        )
        for chunk in chunks
    ]
    with unheld():
        folded = fold_updates(TASK, updates)
    assert folded.artifacts is not None
    [artifact] = folded.artifacts
    assert artifact.parts == [Part(text="x" * 20_000)]
    assert artifact.name == "n19999"
    assert artifact.metadata == {f"k{number}": number for number in range(20_000)}


def test_parts_that_a_transform_changed_are_told_from_those_it_left_alone() -> None:
    originals = [Part(text=f"t{number}", filename=f"{number}.txt") for number in range(3_000)]
    values: dict[str, Any] = as_values(originals)
    for number, shown in enumerate(values["message"]):
        if number % 3:
            shown["text"] = "changed"
    with unheld():
        parts = as_parts(values, originals)
    assert parts[0] is originals[0]
    assert parts[1] == Part(text="changed")
    assert parts[3] is originals[3]


def test_a_text_of_spaces_is_cut_into_words() -> None:
    with unheld():
        assert _WORD.findall(" " * 50_000) == []
    assert _WORD.findall(" a b  c ") == [" a ", "b  ", "c "]


def test_a_large_answer_without_secrets_is_passed_on() -> None:
    secrets, answer = Secrets(['key/"42"', "another-token"]), ["ab"] * 500_000
    with unheld():
        assert secrets.hide(answer) is answer
    assert secrets.hide({"a": ['x key/"42"', 7]}) == {"a": [f"x {HIDDEN}", 7]}


def test_definitions_that_use_each_other_twice_are_written_out_within_bounds() -> None:
    definitions: dict[str, Any] = {"D0": {"type": "string"}}
    for number in range(1, 40):
        inner = {"$ref": f"#/$defs/D{number - 1}"}
        definitions[f"D{number}"] = {"type": "object", "properties": {"a": inner, "b": inner}}
    root = {"properties": {"x": {"$ref": "#/$defs/D39"}}, "$defs": definitions}
    with unheld():
        for _ in range(100):
            written_out(root, root, max_schemas=100)


def test_the_parameters_of_a_tool_with_very_many_are_told() -> None:
    names = [f"p{number}" for number in range(20_000)]
    with unheld():
        told = _parameters({"properties": {name: {"type": "string"} for name in names}, "required": names}, 100_000)
    assert list(told) == names


def test_data_is_copied_for_an_agent_no_slower_than_it_is_read() -> None:
    part = Part(data=list(range(2_000_000)))
    with unheld():
        assert own_part(part) == part
