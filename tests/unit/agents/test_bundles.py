"""Files with several documents, and findings about several."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from errands.agents.manifests import examine
from tests.unit.agents.support import VALID, Documents, Spoil, loaded, put, report, text_report, told, written

DESCRIPTOR = {"kind": "commonagents.info/v1/bundledescription", "name": "Support", "requiredSettings": ["any", "key"]}


def test_a_descriptor_comes_first(tmp_path: Path) -> None:
    found = examine(written(tmp_path, {"descriptor": DESCRIPTOR, **VALID}))
    assert found.findings == []
    assert found.manifests is not None
    assert [descriptor.required_settings for descriptor in found.manifests.descriptors] == [["any", "key"]]


@pytest.mark.parametrize(
    "documents",
    [{**VALID, "last": DESCRIPTOR}, {"first": DESCRIPTOR, "second": DESCRIPTOR, **VALID}],
    ids=["last", "twice"],
)
def test_a_descriptor_elsewhere_is_refused(tmp_path: Path, documents: Documents) -> None:
    # Deep copies, as YAML would write what is there twice as an alias.
    found = examine(written(tmp_path, {name: copy.deepcopy(document) for name, document in documents.items()}))
    assert told(found) == [": describes the bundle and is not the first document; put it first, and only once"]


def test_a_descriptor_needs_a_name(tmp_path: Path) -> None:
    found = examine(written(tmp_path, {"descriptor": {"kind": DESCRIPTOR["kind"]}, **VALID}))
    assert told(found) == ["name: is missing; add name: Support desk"]


def test_a_version_that_is_none_is_worth_a_warning(tmp_path: Path) -> None:
    found = examine(written(tmp_path, {"descriptor": {**DESCRIPTOR, "version": "new"}, **VALID}))
    assert told(found, "warning") == ["version: is 'new'; write a version such as 1.0.0"]


def test_documents_of_unknown_kinds_are_skipped(tmp_path: Path) -> None:
    def spoil(documents: Documents) -> None:
        documents["other"] = {"kind": "example.com/v1/widget", "whatever": 1}
        documents["compose"] = {"services": {}}

    found = report(tmp_path, spoil)
    assert found.valid
    assert [finding.problem for finding in found.findings] == [
        "is 'example.com/v1/widget', so the document is skipped",
        "has no kind, so the document is skipped",
    ]


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        ("commonagents.info/v9/entirely-different", "did you mean commonagents.info/v1/agent?"),
        ("commonagents.info/v1beta3/agent", "did you mean commonagents.info/v1beta2/agent?"),
        ("commonagents.info/v1/schedule", "remove the document, or run it elsewhere"),
        ("commonagents.info/v1beta2/trigger", "remove the document, or run it elsewhere"),
    ],
)
def test_documents_of_kinds_that_errands_does_not_run_leave_the_others_valid(
    kind: str, remedy: str, tmp_path: Path
) -> None:
    def spoil(documents: Documents) -> None:
        documents["other"] = {"kind": kind, "name": "other", "whatever": 1}

    found = report(tmp_path, spoil)
    assert found.valid
    [finding] = found.findings
    assert kind in finding.problem
    assert "so the document is skipped" in finding.problem
    assert finding.remedy == remedy


def test_a_bundle_of_which_nothing_can_be_used_is_not_valid(tmp_path: Path) -> None:
    (tmp_path / "bundle.yaml").write_text("kind: commonagents.info/v1/schedule\nname: nightly\n")
    found = examine(tmp_path)
    assert not found.valid
    assert told(found) == [": has no agent, tool or mount; name a file or folder with manifests"]


@pytest.mark.parametrize("include", [[], ["read-chunk"]])
def test_a_required_binding_is_required_whatever_is_included(include: list[str], tmp_path: Path) -> None:
    def spoil(documents: Documents) -> None:
        capability = documents["agent"]["capabilities"]["github-file"]
        capability["include"] = include
        capability["before"] = []
        del capability["bindings"]["repo"]

    assert "does not bind repo, and github-file requires it" in told(report(tmp_path, spoil))[0]


@pytest.mark.parametrize("bucket", ["{mount.bucket}", "mount.bucket", "gs://{mount.bucket}{mount.prefix}"])
def test_a_binding_may_name_the_mount(bucket: str, tmp_path: Path) -> None:
    def bind(documents: Documents) -> None:
        documents["agent"]["capabilities"]["github-file"]["bindings"]["repo"] = bucket

    def without_mount(documents: Documents) -> None:
        bind(documents)
        documents["agent"]["mount"] = "none"

    assert report(tmp_path, bind).findings == []
    assert "'mount' is not available in a binding" in "".join(told(report(tmp_path, without_mount)))


def test_what_is_skipped_does_not_hide_what_is_missing(tmp_path: Path) -> None:
    def spoil(documents: Documents) -> None:
        documents["audit"] = {"kind": "example.com/v1/widget"}

    assert "names 'audit', which is not a tool of the namespace" in told(report(tmp_path, spoil))[0]


def test_what_no_action_uses_is_worth_a_warning(tmp_path: Path) -> None:
    found = report(tmp_path, put("audit", "mcp", value={"transport": "stdio", "command": "x"}))
    assert told(found, "warning") == ["mcp: is used by no action; remove it, or write mcp in an execute"]


def test_an_item_that_is_empty_is_told(tmp_path: Path) -> None:
    assert told(report(tmp_path, put("audit", "actions", value=[None])))[-1] == (
        "actions[0]: is empty, not an object; write an object with name, description, execute"
    )


def test_a_second_mount_is_refused(tmp_path: Path) -> None:
    found = report(tmp_path, lambda documents: documents.update(second={"name": "more", "s3": {"bucket": "b"}}))
    assert told(found) == [": is a second mount beside 'files'; keep one: all agents share it"]


def test_a_mount_may_be_in_a_bucket(tmp_path: Path) -> None:
    manifests = loaded(tmp_path, lambda documents: documents.update(mount={"name": "m", "gcs": {"bucket": "b"}}))
    assert manifests.mount is not None
    assert manifests.mount.gcs is not None


def test_a_prefix_that_everybody_shares_is_worth_a_warning(tmp_path: Path) -> None:
    found = report(tmp_path, put("mount", "path_prefixes", value={"task": "/{agent}/"}))
    assert told(found, "warning") == ["path_prefixes.task: lacks {task}, so every task has the same files; add {task}"]


def test_agents_that_come_back_to_themselves_are_worth_a_warning(tmp_path: Path) -> None:
    found = report(tmp_path, put("analyst", "capabilities", value={"support": "*"}))
    assert found.valid
    assert told(found, "warning") == [
        (
            "capabilities.support: is a cycle: support → analyst → support; make sure that it ends; "
            "errands limits the depth"
        )
    ]


def test_an_agent_may_ask_itself(tmp_path: Path) -> None:
    found = report(tmp_path, put("agent", "capabilities", "support", value="*"))
    assert "support → support" in told(found, "warning")[0]


@pytest.mark.parametrize(
    "expression",
    ["context.capabilities.github_file_wirte.count_successful > 0", "c.cap['github_file_wirte'].count_errored == 0"],
)
def test_a_record_that_is_not_there_is_an_error(tmp_path: Path, expression: str) -> None:
    found = report(tmp_path, put("agent", "guardrails", "after", 0, "assert", value=expression))
    assert told(found) == [
        (
            "guardrails.after[0].assert: reads context.capabilities.github_file_wirte, but there is no such function; "
            "did you mean github_file_write?"
        )
    ]


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("context.capabilites._meta.count > 0", "context has no field 'capabilites'; did you mean capabilities?"),
        ("context.usrs.id == ''", "context has no field 'usrs'; did you mean user?"),
        ("has(context.usrs.id)", "context has no field 'usrs'; did you mean user?"),
        ("context.user.name == ''", "context.user has no field 'name'; it has id, email"),
        ("c.llm.tokens.totl > 0", "context.llm.tokens has no field 'totl'; did you mean total?"),
        (
            "context.input.region == ''",
            "context.input is a list and has no field 'region'; write context.input[0].region",
        ),
        ("c.cap.audit.succesful[0]", "context.capabilities.audit has no field 'succesful'; did you mean successful?"),
        (
            "c.cap._meta.invocation == []",
            "context.capabilities._meta has no field 'invocation'; did you mean invocations?",
        ),
        (
            "context.input[0].regoin == ''",
            "reads context.input[…].regoin, but the agent has no such parameter; did you mean r",
        ),
        (
            "context.input.last().regoin == ''",
            "reads context.input[…].regoin, but the agent has no such parameter; did you me",
        ),
        (
            "context.output[0].raeds == 1",
            "reads context.output[…].raeds, but the agent exposes nothing of that name; did you",
        ),
        ("c.cap.audit.task_ids[0] == ''", "reads context.capabilities.audit.task_ids, but there is no such field; "),
    ],
)
def test_a_part_of_the_context_that_is_not_there_is_an_error(tmp_path: Path, expression: str, problem: str) -> None:
    found = report(tmp_path, put("agent", "guardrails", "after", 0, "assert", value=expression))
    [error] = told(found)
    assert error.startswith(f"guardrails.after[0].assert: {problem}")


@pytest.mark.parametrize(
    "expression",
    [
        "!has(c.input[0].regoin) || c.input[0].regoin == 'eu'",
        "output.message.exists(c, c.name == 'a')",
        "context.input[0].message[0].anything == 1 && context.input[0].region != ''",
        "context.capabilities.github_file_write.inputs.last().path == context.output[0].reads",
        "context.capabilities.analyst.task_ids.size() == c.cap['audit'].outputs.size()",
        "output.context.nothing == 'context.nothing'",
        "context.agent.started_at < now && c._history.turns[0] == 'input'",
        "c.cap['''audit'''].count_errored == 0 && c.cap[\"\"\"audit\"\"\"].count_errored == 0",
        "c.cap['\\u0061udit'].count_errored == 0 && size('''it's context.nothing''') > 0",
    ],
)
def test_a_part_of_the_context_that_may_be_there_is_no_error(tmp_path: Path, expression: str) -> None:
    assert report(tmp_path, put("agent", "guardrails", "after", 0, "assert", value=expression)).findings == []


def test_templates_are_looked_through_for_parts_of_the_context_that_are_not_there(tmp_path: Path) -> None:
    found = report(tmp_path, put("agent", "prompt", value="You are {context.agent.nam} in {context.input[0].regoin}."))
    assert told(found) == ["prompt: context.agent has no field 'nam'; did you mean name?"]
    found = report(tmp_path, put("agent", "prompt", value="You are in {context.input[0].regoin}."))
    assert told(found)[0].startswith("prompt: reads context.input[…].regoin")


def test_a_model_without_a_provider_is_worth_a_warning(tmp_path: Path) -> None:
    assert told(report(tmp_path, put("agent", "model", value="gpt-4o")), "warning") == [
        "model: is 'gpt-4o', which names no provider; write provider/model, such as openai/gpt-4o-mini"
    ]
    for model in ("scripted", "scripted/support", "openrouter/qwen/qwen3-coder"):
        assert report(tmp_path, put("agent", "model", value=model)).findings == []


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (
            put("agent", "capabilities", "github-file", "before", 0, "assert", value="input.pth == i.path"),
            "capabilities.github-file.before[0].assert: reads input.pth, but there is no such parameter; did you mean",
        ),
        (
            put("agent", "capabilities", "github-file", "before", 0, "error_message", value="{input.lines}"),
            "capabilities.github-file.before[0].error_message: reads input.lines, but there is no such parameter; ",
        ),
        (
            put("agent", "guardrails", "before", 0, "assert", value="input.regoin == 'eu'"),
            "guardrails.before[0].assert: reads input.regoin, but there is no such parameter; did you mean region?",
        ),
        (
            put("agent", "capabilities", "analyst", "before", value=[{"assert": "size(input.mesage) > 0"}]),
            "capabilities.analyst.before[0].assert: reads input.mesage, but there is no such parameter; did you mean",
        ),
    ],
)
def test_an_argument_that_is_never_there_is_an_error(tmp_path: Path, spoil: Spoil, error: str) -> None:
    [told_of] = told(report(tmp_path, spoil))
    assert told_of.startswith(error)


MARKED = [{"transform": "input.put('mark', 1)"}, {"assert": "input.mark == 1", "error_message": "{input.mark}"}]


@pytest.mark.parametrize(
    "path",
    [
        ("agent", "guardrails", "before"),
        ("agent", "capabilities", "github-file", "before"),
        ("agent", "capabilities", "github-file", "before_first"),
    ],
)
def test_what_a_transform_may_have_made_is_no_error(tmp_path: Path, path: tuple[str, ...]) -> None:
    assert report(tmp_path, put(*path, value=MARKED)).findings == []
    [told_of] = told(report(tmp_path, put(*path, value=MARKED[::-1])))[:1]
    assert "reads input.mark, but there is no such parameter" in told_of


def test_what_is_transformed_first_is_seen_by_all_steps_before_the_call_and_by_none_after_it(tmp_path: Path) -> None:
    capability = VALID["agent"]["capabilities"]["github-file"]
    around = {**capability, "before_first": MARKED[:1], "before": MARKED[1:]}
    assert report(tmp_path, put("agent", "capabilities", "github-file", value=around)).findings == []
    after = [{"transform": "output"}, {"assert": "input.mark == 1"}]
    around = {**capability, "before": MARKED[:1], "after": after}
    [told_of] = told(report(tmp_path, put("agent", "capabilities", "github-file", value=around)))
    assert told_of.startswith("capabilities.github-file.after[1].assert: reads input.mark")


@pytest.mark.parametrize(
    ("spoil", "warning"),
    [
        (
            put("tool", "parameters", "properties", "owner", "defualt", value="us"),
            (
                "parameters.properties.owner.defualt: is not a keyword of JSON Schema and has no effect; "
                "did you mean default"
            ),
        ),
        (
            put("tool", "parameters", "properties", "owner", "optional", value=True),
            "parameters.properties.owner.optional: is not a keyword of JSON Schema and has no effect; remove it; a",
        ),
        (
            put("agent", "prompt", value="You help {{context.user.id}} with {{this}}."),
            "prompt: has {{context.user.id}}, which is kept as text with single braces; write {context.user.id}",
        ),
        (
            put("audit", "actions", 0, "execute", "cel", "expression", value="{'kept': input.txt}"),
            "actions[0].execute.cel.expression: reads input.txt, but there is no such parameter; did you mean text?",
        ),
        (
            put("agent", "guardrails", "before", 0, "assert", value="size(input.message) < 50000"),
            "guardrails.before[0].assert: compares the number of parts in input.message with a large number; write",
        ),
        (
            put("audit", "actions", 0, "execute", value={"mcp": {"transport": "stdio", "command": "npx -y notes"}}),
            "actions[0].execute.mcp.command: contains arguments, but is run as one name; put the arguments",
        ),
    ],
)
def test_what_is_probably_meant_otherwise_is_worth_a_warning(tmp_path: Path, spoil: Spoil, warning: str) -> None:
    [told_of] = told(report(tmp_path, spoil), "warning")
    assert told_of.startswith(warning)


def test_a_tool_of_two_servers_needs_actions(tmp_path: Path) -> None:
    both = {"openapi": {"url": "https://a.example"}, "mcp": {"transport": "stdio", "command": "notes"}}
    audit = {name: value for name, value in VALID["audit"].items() if name != "actions"}
    found = examine(written(tmp_path, {**VALID, "audit": {**audit, **both}}))
    assert told(found)[0] == ": has openapi and mcp, and no actions; keep one of the two, or write actions"


def test_one_mistake_is_told_once(tmp_path: Path) -> None:
    """A parameter that is declared wrongly is declared, and a backend that is unknown is none that is missing."""
    wrong = report(tmp_path, put("tool", "actions", 0, "parameters", "properties", "path", value="string"))
    assert len(told(wrong)) == 1
    for backend in ("celll", "kubernetes_job"):
        assert len(told(report(tmp_path, put("audit", "actions", 0, "execute", value={backend: {"a": 1}})))) == 1
    before = ("agent", "capabilities", "github-file", "before", 0)
    assert len(told(report(tmp_path, put(*before, value={"asert": "true"})))) == 1
    twice = put("tool", "actions", 1, "name", value="read_chunk")
    assert len([told_of for told_of in told(report(tmp_path, twice)) if "read" in told_of.partition(";")[0]]) == 1
    message = put("agent", "parameters", "properties", "message", value="Hello")
    assert len(told(report(tmp_path, message))) == 1


def test_a_default_that_is_never_used_is_worth_a_warning(tmp_path: Path) -> None:
    found = report(tmp_path, put("tool", "parameters", "properties", "repo", "default", value="x"))
    assert told(found, "warning") == [
        "parameters.properties.repo.default: is never used because a binding is required; remove it, or require_binding"
    ]


def test_a_parameter_that_is_declared_twice_is_worth_a_warning(tmp_path: Path) -> None:
    found = report(tmp_path, put("tool", "parameters", "properties", "path", value={"type": "string"}))
    assert len(told(found, "warning")) == 2


# Lines

_AGENT = """\
kind: commonagents.info/v1beta2/agent
namespace: shop
name: support
description: Helps.
prompt: |
  You help
  {context.user.id}
  at {noon}.
guardrails:
  before:
    - assert: >-
        true
      condition: |
        true &&
        outptu
    - on_fail: continue
      assert: "'a' ==
        b"
"""


def test_a_finding_has_the_line_of_the_field(tmp_path: Path) -> None:
    found = text_report(tmp_path, _AGENT + "limits:\n  max_turns: 3\n  max_age: long\n  max_trns: 3\n")
    assert [(finding.line, finding.field) for finding in found.findings][-2:] == [
        (21, "limits.max_age"),
        (22, "limits.max_trns"),
    ]


def test_a_wrong_expression_has_its_own_line(tmp_path: Path) -> None:
    found = [(finding.line, finding.field) for finding in text_report(tmp_path, _AGENT).findings]
    assert found[1] == (15, "guardrails.before[0].condition")
    assert found[0] == (8, "prompt")
    assert found[2] == (17, "guardrails.before[1].assert")


def test_what_is_missing_has_the_line_of_what_lacks_it(tmp_path: Path) -> None:
    text = "# a comment\nkind: commonagents.info/v1beta2/agent\n---\n\nkind: commonagents.info/v1beta2/tool\n"
    assert {finding.line for finding in text_report(tmp_path, text).findings} == {2, 5}
