"""`errands tasks list|get|watch|cancel`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from errands.cli.tasks import task_table
from errands.client import ClientResult
from errands.model.core import Task, TaskState, TaskStatus
from tests.unit.cli.agent import Gate
from tests.unit.cli.conftest import Errands
from tests.unit.cli.processes import Running


def send(errands: Errands, url: str, text: str, context: str) -> str:
    """The id of a new task that has come as far as it will."""
    task: dict[str, str] = json.loads(errands("send", url, text, "--context", context, "--json").stdout)
    return task["id"]


def rows(text: str) -> list[list[str]]:
    """The cells of a table; columns are two spaces apart."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in text.splitlines()]


# list


def test_a_list_has_a_row_for_each_task_the_newest_first(errands: Errands, url: str) -> None:
    older = send(errands, url, "hello there", "list-1")
    newer = send(errands, url, "ask", "list-1")
    header, *tasks = rows(errands("tasks", "list", url, "--context", "list-1").stdout)
    assert header == ["TASK", "STATE", "UPDATED", "CONTEXT", "FIRST WORDS"]
    assert [task[:2] + task[3:] for task in tasks] == [
        [newer, "input-required", "list-1", "ask"],
        [older, "completed", "list-1", "hello there"],
    ]


def test_a_narrow_terminal_still_shows_ids_and_states_whole() -> None:
    state = TaskState.INPUT_REQUIRED
    task = Task(id="i" * 36, context_id="c" * 36, status=TaskStatus(state=state, timestamp="2020-01-31T12:00:00Z"))
    console = Console(width=80, file=io.StringIO())
    console.print(task_table([ClientResult.from_task(task)], console.width))
    assert isinstance(console.file, io.StringIO)
    header, row = console.file.getvalue().splitlines()
    assert header.split()[:4] == ["TASK", "STATE", "UPDATED", "CONTEXT"]
    assert row.split()[:2] == ["i" * 36, "input-required"]
    assert row.rstrip().endswith("c…")


def test_a_list_can_be_of_one_state(errands: Errands, url: str) -> None:
    send(errands, url, "hello", "list-2")
    failed = send(errands, url, "fail", "list-2")
    result = errands("tasks", "list", url, "--context", "list-2", "--state", "failed", "--json")
    assert [task["id"] for task in json.loads(result.stdout)] == [failed]


def test_a_list_can_be_of_what_changed_since_a_time(errands: Errands, url: str) -> None:
    send(errands, url, "hello", "list-3")
    past = errands("tasks", "list", url, "--context", "list-3", "--since", "2020-01-31", "--json")
    future = errands("tasks", "list", url, "--context", "list-3", "--since", "2999-01-31T12:00:00Z", "--json")
    assert (len(json.loads(past.stdout)), json.loads(future.stdout)) == (1, [])


def test_a_list_stops_at_its_limit_and_says_that_there_is_more(errands: Errands, url: str) -> None:
    for number in range(3):
        send(errands, url, f"hello {number}", "list-4")
    two = errands("tasks", "list", url, "--context", "list-4", "--limit", "2")
    assert len(rows(two.stdout)) == 1 + 2
    assert "There are more" in two.stderr
    three = errands("tasks", "list", url, "--context", "list-4", "--limit", "3")
    assert (len(rows(three.stdout)), three.stderr) == (1 + 3, "")


def test_an_empty_list_says_so_on_stderr(errands: Errands, url: str) -> None:
    result = errands("tasks", "list", url, "--context", "nobody's")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "No tasks.\n")


@pytest.mark.parametrize("wrong", [["--state", "sleeping"], ["--since", "yesterday"], ["--limit", "0"]])
def test_a_filter_that_makes_no_sense_exits_with_2(errands: Errands, url: str, wrong: list[str]) -> None:
    result = errands("tasks", "list", url, *wrong)
    assert (result.exit_code, result.stdout) == (2, "")


# get


def test_get_shows_the_state_what_was_said_and_what_was_made(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "stream one two", "get-1")
    shown = errands("tasks", "get", url, task_id).stdout
    for words in (task_id, "completed", "get-1", "stream one two", "artifact answer\none two", '{"points":2}'):
        assert words in shown


def test_get_shows_the_question_of_a_paused_task_once(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "ask", "get-2")
    assert errands("tasks", "get", url, task_id).stdout.count("Which colour?") == 1


def test_get_as_json_is_the_task_with_as_much_history_as_wanted(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "hello", "get-3")
    task = json.loads(errands("tasks", "get", url, task_id, "--json").stdout)
    assert (task["id"], len(task["history"])) == (task_id, 1)
    assert "history" not in json.loads(errands("tasks", "get", url, task_id, "--json", "--history", "0").stdout)


@pytest.mark.parametrize("command", ["get", "watch", "cancel"])
def test_a_task_that_does_not_exist_exits_with_3_and_says_what_to_do(errands: Errands, url: str, command: str) -> None:
    result = errands("tasks", command, url, "no-such-task")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "errands tasks list" in result.stderr


# watch


def test_watch_shows_the_whole_log_with_its_versions(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "stream one", "watch-1")
    lines = [line.split() for line in errands("tasks", "watch", url, task_id, "--after", "0").stdout.splitlines()]
    assert [line[0] for line in lines] == [str(number + 1) for number in range(len(lines))]
    assert lines[0][1:] == ["task", "submitted"]
    assert ["status", "working", "Thinking"] in [line[1:] for line in lines]
    assert ["artifact", "answer", "one"] in [line[1:] for line in lines]
    assert lines[-1][1:] == ["status", "completed"]


def test_watch_goes_on_after_a_version(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "stream one", "watch-2")
    everything = errands("tasks", "watch", url, task_id, "--after", "0", "--json").stdout.splitlines()
    rest = errands("tasks", "watch", url, task_id, "--after", "3", "--json").stdout.splitlines()
    assert rest == everything[3:]


def test_watch_shows_what_happens_while_it_happens(errands: Errands, url: str, gate: Gate, tmp_path: Path) -> None:
    task_id = errands("send", url, "hold", "--no-wait").stdout.strip()
    with Running("tasks", "watch", url, task_id, "--after", "0", cwd=tmp_path) as process:
        process.read_until("before")
        gate.open()
        result = process.finish()
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].split()[1:] == ["status", "completed"]


def test_watch_of_an_ended_task_shows_its_end_and_exits_by_it(errands: Errands, url: str) -> None:
    completed = errands("tasks", "watch", url, send(errands, url, "hello", "watch-3"))
    failed = errands("tasks", "watch", url, send(errands, url, "fail", "watch-3"))
    assert (completed.exit_code, failed.exit_code) == (0, 1)
    assert "failed" in failed.stdout


def test_watch_of_an_agent_that_does_not_stream_exits_with_3(errands: Errands, plain_url: str) -> None:
    task_id = send(errands, plain_url, "hello", "watch-4")
    result = errands("tasks", "watch", plain_url, task_id)
    assert result.exit_code == 3
    assert "does not offer streaming" in result.stderr


# cancel


def test_cancel_stops_a_running_task(errands: Errands, url: str) -> None:
    task_id = errands("send", url, "wait", "--no-wait").stdout.strip()
    result = errands("tasks", "cancel", url, task_id)
    assert (result.exit_code, result.stdout) == (0, f"Task {task_id} is canceled.\n")


def test_cancel_as_json_is_the_canceled_task(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "ask", "cancel-1")
    task = json.loads(errands("tasks", "cancel", url, task_id, "--json").stdout)
    assert task["status"]["state"] == "TASK_STATE_CANCELED"


def test_a_task_that_has_ended_cannot_be_canceled_and_exits_with_3(errands: Errands, url: str) -> None:
    result = errands("tasks", "cancel", url, send(errands, url, "hello", "cancel-2"))
    assert result.exit_code == 3
    assert "already completed" in result.stderr


def test_task_is_another_word_for_tasks(errands: Errands, url: str) -> None:
    task_id = send(errands, url, "hello", "alias")
    assert errands("task", "get", url, task_id).stdout == errands("tasks", "get", url, task_id).stdout
