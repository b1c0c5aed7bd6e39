"""A policy from a file: everything that is wrong with it is told, with its line and how to fix it."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from errands import A2AServer, AgentCardConfig, TaskContext, Worker
from errands.agents.manifests import ManifestError
from errands.agents.manifests.loading import examine_policy, load_policy
from errands.policy.document import compile_policy


def written(folder: Path, text: str) -> Path:
    file = folder / "policy.yaml"
    file.write_text(dedent(text))
    return file


def findings(folder: Path, text: str) -> list[str]:
    return [str(finding).partition("policy.yaml")[2] for finding in examine_policy(written(folder, text)).findings]


GOOD = """
    version: "2026-05"
    limits: {max_turns: 5, max_age: 1h}
    guardrails:
      before:
        - assert: size(input.message) < 10
          error_message: Too much.
      after:
        - transform: output.put('message', [])
          condition: context.user.id == ''
    capabilities:
      pay:
        before:
          - assert: input.amount <= 100
            on_fail: lock_task
      search: {}
"""


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    policy = load_policy(written(tmp_path, GOOD))
    assert (policy.version, policy.limits.max_turns, policy.limits.max_age) == ("2026-05", 5, "1h")
    assert policy.guardrails.before[0].error_message == "Too much."
    assert list(policy.capabilities) == ["pay", "search"]
    assert compile_policy(policy).version == "2026-05"


def test_a_warning_does_not_keep_a_policy_from_being_used(tmp_path: Path) -> None:
    text = GOOD.replace("Too much.", '"Too much, {{context.user.id}}."')
    [told] = findings(tmp_path, text)
    assert told.startswith(":7: guardrails.before[0].error_message: has {{context.user.id}}, which is kept as text")
    assert load_policy(written(tmp_path, text)).guardrails.before[0].error_message == "Too much, {{context.user.id}}."


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    found = findings(
        tmp_path,
        """\
        version: 3
        limits: {max_age: soon, max_turn: 1}
        guardrails:
          before:
            - assert: output == 1
            - invoke: crm:find
          after:
            - assert: "true"
              on_fail: block
              match: pay
        capabilities:
          pay:
            before:
              - assert: review('bob')
              - asert: "true"
          _meta: {}
        """,
    )
    assert [finding.partition("; ")[0] for finding in found] == [
        ":1: version: is a number, not a string",
        ":2: limits.max_turn: is unknown",
        ":2: limits.max_age: 'soon' is not a duration",
        ":5: guardrails.before[0].assert: 'output' is not available in a guardrail before step",
        ":6: guardrails.before[1].invoke: cannot be used: a policy has no tools",
        ":9: guardrails.after[0].on_fail: is block, and a guardrail has no call to block",
        ":10: guardrails.after[0].match: has no effect in a guardrail",
        ":14: capabilities.pay.before[0].assert: 'review' is not available in a before step",
        ":15: capabilities.pay.before[1].asert: is unknown",
        ":16: capabilities._meta: cannot be the name of a capability",
    ]
    assert found[0].endswith('put it in quotes: "3"')
    assert found[4].endswith("use assert or transform, or write the agent as a manifest")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", ': has 0 documents; write one policy, which begins with version: "1"'),
        ("- 1\n", ':1: is not an object; write one policy, which begins with version: "1"'),
        ("version: a\n---\nversion: b\n", ': has 2 documents; write one policy, which begins with version: "1"'),
        ("limits: {}\n", ":1: version: is missing; add version: 2026-01-31"),
        ("version: 'a\n", ":2: is not valid YAML (found unexpected end of stream)"),
        ("version: a\nversion: b\n", ":2: has the key 'version' twice"),
        ("version: a\nkind: x\n", ":2: kind: is unknown"),
    ],
)
def test_a_file_that_is_no_policy_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    [finding] = findings(tmp_path, text)
    assert finding.startswith(problem)


def test_a_path_without_a_policy_is_refused(tmp_path: Path) -> None:
    assert "is a folder" in str(examine_policy(tmp_path).findings[0])
    with pytest.raises(ManifestError, match="neither a file nor a folder"):
        load_policy(tmp_path / "none.yaml")


class Silent(Worker):
    async def handle(self, ctx: TaskContext) -> None: ...


def test_a_server_tells_what_is_wrong_before_it_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = AgentCardConfig(name="Silent", description="Says nothing.")
    wrong = written(tmp_path, "version: a\nlimit: {}\n")
    with pytest.raises(ManifestError, match=r"policy.yaml:2: limit: is unknown; did you mean limits\?"):
        A2AServer(worker=Silent(), agent_card=card, policy=wrong)
    monkeypatch.setenv("ERRANDS_POLICY", str(wrong))
    with pytest.raises(ManifestError, match="did you mean limits"):
        A2AServer(worker=Silent(), agent_card=card)
