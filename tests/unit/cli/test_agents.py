"""`errands agents`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.agents.support import VALID, put, spoiled, written
from tests.unit.cli.conftest import Errands

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "support-agent")


def test_valid_manifests_are_told_to_be_so(errands: Errands) -> None:
    result = errands("agents", "validate", EXAMPLE)
    assert (result.exit_code, result.stdout) == (
        0,
        (
            "shop/analyst: max_turns 3, max_age 720h (default), max_tool_calls 1000 (default)\n"
            "shop/support: max_turns 20, max_age 24h, max_tool_calls 30\n"
            f"{EXAMPLE} is valid: 2 agents and 2 tools\n"
        ),
    )


def test_limits_are_told_of_every_agent_though_namespaces_share_a_name(errands: Errands, tmp_path: Path) -> None:
    agent = "kind: commonagents.info/v1beta2/agent\nnamespace: {}\nname: a\ndescription: A.\nprompt: Hello.\n"
    (tmp_path / "agents.yaml").write_text(agent.format("one") + "limits: {max_turns: 3}\n---\n" + agent.format("two"))
    lines = errands("agents", "validate", str(tmp_path)).stdout.splitlines()
    assert [line.partition(",")[0] for line in lines[:-1]] == ["one/a: max_turns 3", "two/a: max_turns 500 (default)"]


def test_each_finding_is_a_line_with_its_place(errands: Errands, tmp_path: Path) -> None:
    file = written(tmp_path, spoiled(put("agent", "limits", "max_turns", value=-1)))
    file.write_text(file.read_text().replace("on_fail: continue", "on_fail: goon"))
    result = errands("agents", "validate", str(file))
    assert result.exit_code == 1
    first, second, third, verdict = result.stdout.splitlines()
    assert first == f"error    {file}:9: limits.max_turns: max_turns is -1; a limit cannot be negative"
    assert second.endswith("before[1].on_fail: is 'goon'; write one of block, continue, lock_task")
    assert third.endswith("guardrails.after[0].on_fail: is 'goon'; write one of block, continue, lock_task")
    assert verdict == f"{file} is not valid: 3 errors"


def test_a_misspelled_part_of_the_context_is_an_error(errands: Errands, tmp_path: Path) -> None:
    file = written(tmp_path, spoiled(put("agent", "guardrails", "after", 0, "assert", value="context.usrs.id != ''")))
    result = errands("agents", "validate", str(file))
    assert result.exit_code == 1
    assert "guardrails.after[0].assert: context has no field 'usrs'; did you mean user?" in result.stdout


def test_findings_are_given_to_programs(errands: Errands, tmp_path: Path) -> None:
    file = written(tmp_path, spoiled(put("agent", "mount", value="disk")))
    result = errands("agents", "validate", str(file), "--json")
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["valid"]) == (1, False)
    assert answer["findings"][0] == {
        "severity": "error",
        "file": str(file),
        "line": 7,
        "field": "mount",
        "problem": "is 'disk'",
        "remedy": "write one of agent, none, task, workspace",
    }


def test_control_characters_of_a_manifest_do_not_reach_the_terminal(errands: Errands, tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text('kind: "commonagents.info/\\e[2J"\n')
    assert errands("agents", "validate", str(file)).exit_code == 1


def test_a_path_that_is_not_there_is_told(errands: Errands) -> None:
    result = errands("agents", "validate", "nowhere.yaml")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (
        1,
        "error    nowhere.yaml: is neither a file nor a folder; check the path",
    )


def test_an_agent_is_shown_as_its_model_sees_it(errands: Errands) -> None:
    shown = errands("agents", "show", EXAMPLE).stdout
    assert "  refunds_pay(number: string, amount: number)\n" in shown
    assert "bound         customer = context.user.id\n" in shown
    assert "before        assert input.amount <= 100 || review('supervisor@example.com'), else block\n" in shown
    assert "guard before  assert input.message.all(part," in shown
    assert "limits        max_turns 20, max_age 24h, max_tool_calls 30\n" in shown


def test_what_the_model_does_not_see_is_marked(errands: Errands, tmp_path: Path) -> None:
    shown = errands("agents", "show", str(written(tmp_path, VALID))).stdout
    assert "  audit(text: string)\n      Keeps a note.\n      tool          audit:note\n      hidden " in shown
    assert "github_file_read_chunk(path: string, lines: integer = 100)" in shown


def test_an_agent_with_scripts_is_shown_to_have_them(errands: Errands, tmp_path: Path) -> None:
    result = errands("agents", "show", str(written(tmp_path, spoiled(put("agent", "script", value=True)))))
    assert "  scripts       several functions in one expression, with run_script\n" in result.stdout


def test_what_stands_around_functions_that_are_yet_to_be_discovered_is_shown(errands: Errands, tmp_path: Path) -> None:
    (tmp_path / "agent.yaml").write_text(
        """kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: A clerk.
prompt: You are a clerk.
close_after: 1
model_capabilities: [web-search]
capabilities:
  api:
    include: [getPet, addPet]
    before:
      - match: addPet
        invoke: audit:note
        bindings: {text: input.name}
        condition: size(input.name) > 3
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: api
description: The pets.
openapi: {url: "https://example.com/openapi.json"}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: audit
description: Notes.
actions:
  - name: note
    description: Notes.
    parameters: {properties: {text: {type: string}}}
    execute: {cel: {expression: input.text}}
"""
    )
    shown = errands("agents", "show", str(tmp_path)).stdout
    assert "  built in      web-search\n  close after   1 answer\n" in shown
    assert "      include       getPet, addPet\n" in shown
    told = "addPet: invoke audit:note with text = input.name, when size(input.name) > 3, else block"
    assert f"      before        {told}\n" in shown


def test_functions_are_given_to_programs(errands: Errands) -> None:
    _, support = json.loads(errands("agents", "show", EXAMPLE, "--json").stdout)
    [orders, *_] = support["functions"]
    assert (orders["name"], orders["ref"], orders["action"]) == ("orders", "orders", "find")
    assert orders["parameters"]["required"] == ["number"]


def test_what_is_not_valid_is_not_shown(errands: Errands, tmp_path: Path) -> None:
    file = written(tmp_path, spoiled(put("agent", "mount", value="disk")))
    result = errands("agents", "show", str(file))
    assert (result.exit_code, result.stdout) == (1, "")
    assert "mount: is 'disk'" in result.stderr
    assert "cannot be shown because it is not valid" in result.stderr


def test_without_the_extra_it_is_named(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    result = errands("agents", "validate", EXAMPLE)
    assert result.exit_code == 2
    assert "pip install 'errands[agents]'" in result.stderr


def test_the_command_line_starts_without_the_extra() -> None:
    program = (
        "import errands.cli.main, sys; print({'yaml', 'jsonschema_rs', 're2', 'cel_expr_python'} & sys.modules.keys())"
    )
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=30)
    assert loaded.stdout.strip() == "set()"
