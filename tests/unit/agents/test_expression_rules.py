"""Every rule about expressions and templates has its message: which field, what is wrong, how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.support import Spoil, assert_told, put

CAPABILITY = ("agent", "capabilities", "github-file")
HTTP = ("tool", "actions", 0, "execute", "stateless_http")

#: What is done to the valid manifests, and the one error that is told.
RULES: dict[str, tuple[Spoil, str]] = {
    # Expressions
    "an assert that is no CEL": (
        put("agent", "guardrails", "before", 0, "assert", value="size("),
        "guardrails.before[0].assert: STARTS Syntax error",
    ),
    "a transform that is no CEL": (
        put(*CAPABILITY, "after", 0, "transform", value="output +"),
        "capabilities.github-file.after[0].transform: STARTS Syntax error",
    ),
    "an assert that is no truth": (
        put("agent", "guardrails", "before", 0, "assert", value="1 + 1"),
        "guardrails.before[0].assert: a condition must be true or false, not int; compare the value with something",
    ),
    "output before it is there": (
        put(*CAPABILITY, "before", 0, "assert", value="output.x"),
        (
            "capabilities.github-file.before[0].assert: STARTS 'output' is not available in a before "
            "step; available are "
        ),
    ),
    "input in the last guardrail": (
        put("agent", "guardrails", "after", 0, "assert", value="input.x"),
        "guardrails.after[0].assert: STARTS 'input' is not available in a guardrail after step",
    ),
    "files in middleware": (
        put(*CAPABILITY, "after", 0, "transform", value="mount.read('a')"),
        "capabilities.github-file.after[0].transform: STARTS 'mount",
    ),
    "input in a binding": (
        put(*CAPABILITY, "bindings", "owner", value="input.owner"),
        "capabilities.github-file.bindings.owner: STARTS 'input' is not available in a binding",
    ),
    "review in a binding": (
        put(*CAPABILITY, "bindings", "owner", value="review('a')"),
        "capabilities.github-file.bindings.owner: STARTS 'review' is not available in a binding",
    ),
    "review in a condition": (
        put(*CAPABILITY, "before", 0, "condition", value="review('a')"),
        "capabilities.github-file.before[0].condition: STARTS 'review' is not available",
    ),
    "output in a tool": (
        put("audit", "actions", 0, "execute", "cel", "expression", value="output"),
        "actions[0].execute.cel.expression: STARTS 'output' is not available in a CEL tool",
    ),
    "settings in what is exposed": (
        put("agent", "exposes", "secret", value="settings.key"),
        "exposes.secret: STARTS 'settings' is not available in an exposed value",
    ),
    "the message is exposed already": (
        put("agent", "exposes", "message", value="now"),
        "exposes.message: is the answer itself, which every output has; expose it under another name",
    ),
    # Templates
    "a prompt with an unknown name": (
        put("agent", "prompt", value="Hello {usr.name}"),
        "prompt: STARTS 'usr' is not available in a prompt",
    ),
    "a prompt with an unknown part of the context": (
        put("agent", "prompt", value="Hello {context.usr.name}"),
        "prompt: context has no field 'usr'; did you mean user?",
    ),
    "a prompt with an open brace": (
        put("agent", "prompt", value="Hello {context.user.id"),
        "prompt: `{` without `}`; write {{ and }} for braces that are text",
    ),
    "an error message with an unknown name": (
        put("agent", "guardrails", "before", 0, "error_message", value="No {output.x}"),
        "guardrails.before[0].error_message: STARTS 'output' is not available in a guardrail before step",
    ),
    "a parameter that is not declared": (
        put(*HTTP, "url", value="https://example.com/{parameters.pth}"),
        ("actions[0].execute.stateless_http.url: uses {parameters.pth}, but parameters has no pth; did you mean path?"),
    ),
    "a setting that is not declared": (
        put(*HTTP, "headers", value={"X-Key": "{settings.github.key}"}),
        (
            "actions[0].execute.stateless_http.headers.X-Key: uses {settings.github.key}, but settings has no "
            "github.key; did you mean github.token?"
        ),
    ),
    "a session where there is none": (
        put(*HTTP, "body", value={"id": ["{session.id}"]}),
        (
            "actions[0].execute.stateless_http.body.id[0]: uses {session.id}, but session has no id; declare "
            "it, or remove {session.id}"
        ),
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_message(rule: str, tmp_path: Path) -> None:
    assert_told(tmp_path, *RULES[rule])
