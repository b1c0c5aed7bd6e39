"""The Python snippets of the founding page on tasks that use PraisonAI's classes, after a change of the import."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import msgspec
import pytest

from errands import praisonai
from errands.praisonai import Message, Role, Task, TaskState, TaskStatus, TaskStore, TextPart
from errands.wire.praisonai import STATES

STATES_SNIPPET = """
from errands.praisonai import TaskState

print(TaskState.SUBMITTED.value)  # "submitted"
print(TaskState.WORKING.value)  # "working"
print(TaskState.COMPLETED.value)  # "completed"
print(TaskState.FAILED.value)  # "failed"
print(TaskState.CANCELLED.value)  # "cancelled"
print(TaskState.INPUT_REQUIRED.value)  # "input_required"
print(TaskState.AUTH_REQUIRED.value)  # "auth_required"
"""

# The page forgets to import TextPart.
TASK_SNIPPET = """
from errands.praisonai import Task, TaskStatus, TaskState, Message, Artifact, TextPart

task = Task(
    id="task-uuid-123",
    context_id="ctx-uuid-456",
    status=TaskStatus(state=TaskState.COMPLETED),
    history=[
        Message(role="user", parts=[TextPart(text="Hello")]),
        Message(role="agent", parts=[TextPart(text="Hi there!")]),
    ],
    artifacts=[
        Artifact(
            artifact_id="art-001",
            parts=[TextPart(text="Response content")],
        )
    ],
)
"""

STORE_SNIPPET = """
from errands.praisonai import TaskStore

store = TaskStore()
# List all tasks
all_tasks = store.list_tasks()
# Filter by context
context_tasks = store.list_tasks(context_id="ctx-uuid-456")
"""


def run(snippet: str) -> tuple[dict[str, Any], list[str]]:
    """What a snippet has defined and printed."""
    names: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(snippet, names)
    return names, printed.getvalue().splitlines()


def test_the_states_have_the_values_of_the_page() -> None:
    _, printed = run(STATES_SNIPPET)
    assert printed == [line.partition('# "')[2][:-1] for line in STATES_SNIPPET.splitlines() if "# " in line]
    assert {state.value for state in TaskState} == set(STATES.values())


def test_the_task_of_the_page_has_its_fields() -> None:
    task = run(TASK_SNIPPET)[0]["task"]
    assert (task.id, task.context_id, task.status.state) == ("task-uuid-123", "ctx-uuid-456", "completed")
    said = [(message.role, message.parts[0].text) for message in task.history]
    assert said == [("user", "Hello"), ("agent", "Hi there!")]
    assert all(message.message_id for message in task.history)
    assert task.artifacts[0].artifact_id == "art-001"
    document = msgspec.to_builtins(task)
    assert (document["contextId"], document["artifacts"][0]["artifactId"]) == ("ctx-uuid-456", "art-001")


def test_the_store_of_the_page_lists_tasks() -> None:
    names, _ = run(STORE_SNIPPET)
    assert (names["all_tasks"], names["context_tasks"]) == ([], [])


def test_a_store_keeps_what_happens_to_a_task() -> None:
    store = TaskStore()
    first = store.create_task(Message(role=Role.USER, parts=[TextPart(text="Hello")]), context_id="c")
    other = store.create_task(Message(role=Role.USER, parts=[TextPart(text="Hello")]))
    assert (first.status.state, other.context_id not in (None, "c")) == (TaskState.SUBMITTED, True)
    store.update_status(first.id, TaskState.WORKING)
    store.add_to_history(first.id, Message(role=Role.AGENT, parts=[TextPart(text="Hi")]))
    store.add_artifact(first.id, praisonai.Artifact(parts=[TextPart(text="Done")]))
    task = store.get_task(first.id)
    assert task is not None
    assert (task.status.state, len(task.history), len(task.artifacts)) == (TaskState.WORKING, 2, 1)
    assert store.list_tasks(context_id="c") == [task]
    assert [one.id for one in store.list_tasks()] == [first.id, other.id]
    canceled = store.cancel_task(first.id)
    assert canceled is not None
    assert canceled.status.state is TaskState.CANCELLED
    store.update_status(other.id, TaskState.COMPLETED)
    ended = store.cancel_task(other.id)
    assert ended is not None
    assert ended.status.state is TaskState.COMPLETED
    store.clear()
    assert store.list_tasks() == []


def test_an_unknown_task_is_none() -> None:
    store = TaskStore()
    message = Message(role=Role.USER, parts=[TextPart(text="Hello")])
    artifact = praisonai.Artifact(parts=[])
    assert store.get_task("nowhere") is store.cancel_task("nowhere") is store.add_artifact("nowhere", artifact) is None
    assert store.update_status("nowhere", TaskState.WORKING) is store.add_to_history("nowhere", message) is None


@pytest.mark.parametrize(
    ("cls", "fields", "says"),
    [
        (TaskStatus, {"state": "canceled"}, "TaskStatus.state"),
        (Message, {"role": "system", "parts": []}, "Message.role"),
        (TextPart, {"text": 5}, "TextPart.text"),
        (Task, {"status": "completed"}, "Task.status"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(cls: type, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        cls(**fields)
