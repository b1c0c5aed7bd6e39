"""`errands policy` and `errands tasks records`: from files and from a store."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from errands.policy.document import Policy
from tests.unit.cli.conftest import Errands
from tests.unit.cli.processes import errands as process
from tests.unit.oversight.support import before, echoes, serving

STRICT = """
version: strict
guardrails:
  before:
    - assert: size(input.message[0].text) < 5
    - assert: review('bob')
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


@pytest.fixture
def strict(tmp_path: Path) -> str:
    file = tmp_path / "strict.yaml"
    file.write_text(STRICT)
    return str(file)


def ran(store: str, text: str, policy: Policy | None = None) -> str:
    """The id of a task that has run; its server is gone."""

    async def run() -> str:
        async with serving(echoes([])["worker"], policy=policy, storage=store) as server:
            return (await server.client.send(text)).task_id or ""

    return asyncio.run(run())


LENIENT = before({"assert": "true"}, {"assert": "false", "on_fail": "continue"})


def test_it_says_whether_a_policy_is_valid(errands: Errands, strict: str, tmp_path: Path) -> None:
    result = errands("policy", "validate", strict)
    assert (result.exit_code, result.stdout) == (0, f"{strict} is valid\n")
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("version: a\nguardrails: {before: [{assert: context.usrs.id != ''}]}\n")
    result = errands("policy", "validate", str(wrong))
    assert result.exit_code == 1
    assert "guardrails.before[0].assert: context has no field 'usrs'; did you mean user?" in result.stdout
    wrong.write_text("version: a\nlimit: {}\n")
    result = errands("policy", "validate", str(wrong))
    assert result.exit_code == 1
    assert result.stdout.splitlines() == [
        f"error    {wrong}:2: limit: is unknown; did you mean limits?",
        f"{wrong} is not valid",
    ]
    found = json.loads(errands("policy", "validate", str(wrong), "--json").stdout)
    assert (found["valid"], found["findings"][0]["field"]) == (False, "limit")


def test_it_shows_what_was_decided(errands: Errands, store: str) -> None:
    task_id = ran(store, "hello", LENIENT)
    result = errands("policy", "decisions", task_id, "--storage", store)
    header, *rows = [line.split() for line in result.stdout.splitlines()]
    assert header == ["AT", "POLICY", "RULE", "OUTCOME", "DETAIL"]
    assert [row[1:4] for row in rows] == [
        ["v1", "guardrails.before[0]", "passed"],
        ["v1", "guardrails.before[1]", "failed:"],
    ]
    found = json.loads(errands("policy", "decisions", task_id, "--storage", store, "--json").stdout)
    assert [decided["outcome"] for decided in found] == ["passed", "failed: continue"]


def test_it_says_what_another_policy_would_have_decided(errands: Errands, store: str, strict: str) -> None:
    short, long = ran(store, "hi", LENIENT), ran(store, "a long text", LENIENT)
    result = errands("policy", "test", strict, short, "--storage", store)
    assert result.exit_code == 0
    assert "would ask bob" in result.stdout
    assert result.stdout.endswith("Nothing would have been stopped.\n")
    result = errands("policy", "test", strict, long, "--storage", store)
    assert result.exit_code == 1
    assert "failed: lock_task" in result.stdout
    assert result.stdout.endswith("The first stop would have been at input, by guardrails.before[0].\n")


def test_records_can_be_kept_in_a_file_and_replayed(errands: Errands, store: str, strict: str, tmp_path: Path) -> None:
    task_id = ran(store, "a long text", LENIENT)
    kept = tmp_path / "records.json"
    kept.write_text(errands("tasks", "records", task_id, "--storage", store, "--json").stdout)
    result = errands("policy", "test", strict, "--records", str(kept), "--json")
    assert result.exit_code == 1
    [verdict] = json.loads(result.stdout)
    assert (verdict["step"], verdict["outcome"], verdict["was"]) == (
        *("guardrails.before[0]", "failed: lock_task"),
        "passed",
    )
    shown = errands("tasks", "records", task_id, "--storage", store).stdout.splitlines()
    assert [line.split()[1] for line in shown[1:]] == ["started", "input", "decided", "decided", "passed", "output"]


def test_what_cannot_be_done_is_said(errands: Errands, store: str, strict: str, tmp_path: Path) -> None:
    task_id = ran(store, "quiet")
    for arguments, words in (
        (("policy", "test", strict), "expected either a TASK_ID in the store or a file with --records"),
        (("policy", "test", strict, task_id, "--storage", store), "the task has no records"),
        (("policy", "test", str(tmp_path / "none.yaml"), task_id, "--storage", store), "neither a file nor a folder"),
        (("policy", "test", strict, "--records", strict), "does not contain records"),
        (("policy", "test", strict, "no-such-task", "--storage", store), "Task not found"),
        (("policy", "decisions", task_id, "--storage", "memory"), "only the server itself can read"),
    ):
        result = errands(*arguments)
        assert result.exit_code != 0
        assert words in result.stderr
    assert "No policy has made decisions" in errands("policy", "decisions", task_id, "--storage", store).stderr


def test_a_server_is_started_with_a_policy_or_says_what_is_wrong_with_it(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(
        "from errands import agent\n\n\n@agent(name='Echo')\nasync def echo(text: str) -> str:\n    return text\n"
    )
    (tmp_path / "wrong.yaml").write_text("version: a\nlimit: {}\n")
    result = process("serve", "agent.py", "--policy", "wrong.yaml", "--port", "0", cwd=tmp_path)
    assert result.returncode == 2
    assert "wrong.yaml:2: limit: is unknown; did you mean limits?" in result.stderr
