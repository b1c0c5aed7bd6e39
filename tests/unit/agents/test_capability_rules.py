"""Every rule about capabilities and steps has its message: which field, what is wrong, how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.support import Spoil, assert_told, drop, put

CAPABILITY = ("agent", "capabilities", "github-file")

#: What is done to the valid manifests, and the one error that is told.
RULES: dict[str, tuple[Spoil, str]] = {
    # Capabilities
    "a capability that is empty": (
        put(*CAPABILITY, value={}),
        'capabilities.github-file: is empty; write "*" to use it without conditions',
    ),
    "a capability that is a string": (
        put(*CAPABILITY, value="all"),
        'capabilities.github-file: is a string, not an object; write "*", or an object with at least one field',
    ),
    "a capability that is nothing": (
        put("agent", "capabilities", "github-fil", value="*"),
        "capabilities.github-fil: is neither a tool nor an agent of the namespace shop; did you mean github-file?",
    ),
    "a capability of another namespace": (
        put("analyst", "namespace", value="lab"),
        (
            "capabilities.analyst: is neither a tool nor an agent of the namespace shop; analyst is in lab; put both "
            "into one namespace"
        ),
    ),
    "include of an unknown action": (
        put(*CAPABILITY, "include", value=["read-chunk", "wirte"]),
        "capabilities.github-file.include[1]: is 'wirte', which is not an action of github-file; did you mean write?",
    ),
    "include of an agent": (
        put("agent", "capabilities", "analyst", "include", value=["x"]),
        "capabilities.analyst.include: has no effect: analyst is an agent and has no actions; remove it",
    ),
    "a binding of an unknown parameter": (
        put(*CAPABILITY, "bindings", "rep", value="'x'"),
        "capabilities.github-file.bindings.rep: is not a parameter of github-file; did you mean repo?",
    ),
    "a binding of an unknown parameter of an agent": (
        put("agent", "capabilities", "analyst", "bindings", "client", value="'x'"),
        (
            "capabilities.analyst.bindings.client: is not a parameter of analyst; remove it, or declare it there; "
            "known: customer, message"
        ),
    ),
    "a required binding that is missing": (
        drop(*CAPABILITY, "bindings", "repo"),
        (
            "capabilities.github-file: does not bind repo, and github-file requires it; add bindings: {repo: ...} with "
            "an expression such as context.user.id"
        ),
    ),
    "a required binding of an agent that is missing": (
        put("agent", "capabilities", "analyst", value="*"),
        (
            "capabilities.analyst: does not bind customer, and analyst requires it; add bindings: {customer: ...} with "
            "an expression such as context.user.id"
        ),
    ),
    "a parameter of an agent that nobody gives": (
        put("analyst", "parameters", "properties", "topic", value={"type": "string"}),
        (
            "capabilities.analyst: does not bind topic, which analyst requires; the model can only "
            "give it a message; add bindings: {topic: ...}, or give it a default there"
        ),
    ),
    "a binding that is a plain text": (
        put(*CAPABILITY, "bindings", "owner", value="production"),
        (
            "capabilities.github-file.bindings.owner: 'production' is not available in a binding; a fixed string needs "
            "its own quotes: \"'production'\""
        ),
    ),
    "a binding that is a template": (
        put(*CAPABILITY, "bindings", "owner", value="{context.user.id}"),
        (
            "capabilities.github-file.bindings.owner: Syntax error: mismatched input '}' expecting ':'; write it "
            "without braces: this is CEL, not a template"
        ),
    ),
    "a remote agent without an address": (
        put("agent", "capabilities", "remote", value={"url": "agents.example.com"}),
        "capabilities.remote.url: is 'agents.example.com'; write an address such as https://example.com/api",
    ),
    "a remote agent with a name that is taken": (
        put("agent", "capabilities", "audit", value={"url": "https://agents.example.com"}),
        (
            "capabilities.audit: has a url, and is also a tool or an agent of the namespace; remove the url, or "
            "rename it"
        ),
    ),
    "files without a mount": (
        put("agent", "mount", value="none"),
        (
            "capabilities.github-file: uses files, as github-file:write does, but the agent's mount is none; add "
            "mount: task"
        ),
    ),
    "files for an invoked action without a mount": (
        lambda documents: (
            put("agent", "mount", value="none")(documents),
            put("audit", "actions", 0, "execute", "cel", "expression", value="mount.read(input.text)")(documents),
            put(*CAPABILITY, "include", value=["read-chunk"])(documents),
        ),
        (
            "capabilities.github-file.before[1].invoke: uses files, as audit:note does, but the agent's mount is none; "
            "add mount: task"
        ),
    ),
    # Steps
    "a step that does nothing": (
        drop("agent", "guardrails", "before", 0, "assert"),
        (
            "guardrails.before[0]: has none of assert, invoke and transform; write exactly one of assert, invoke and "
            "transform in each step"
        ),
    ),
    "a step that does two things": (
        put(*CAPABILITY, "after", 0, "assert", value="true"),
        (
            "capabilities.github-file.after[0]: has assert and transform; write exactly one of assert, invoke and "
            "transform in each step"
        ),
    ),
    "bindings without invoke": (
        put(*CAPABILITY, "after", 0, "bindings", value={"a": "now"}),
        "capabilities.github-file.after[0].bindings: has no effect beside transform; remove it, or use invoke",
    ),
    "block in a guardrail": (
        put("agent", "guardrails", "after", 0, "on_fail", value="block"),
        (
            "guardrails.after[0].on_fail: is block, and a guardrail has no call to block; write lock_task, which is "
            "the default, or continue"
        ),
    ),
    "an unknown policy": (
        put(*CAPABILITY, "before", 1, "on_fail", value="blok"),
        "capabilities.github-file.before[1].on_fail: is 'blok'; write one of block, continue, lock_task",
    ),
    "match in a guardrail": (
        put("agent", "guardrails", "before", 0, "match", value="write"),
        "guardrails.before[0].match: has no effect in a guardrail; remove it, or use condition",
    ),
    "match of an unknown action": (
        put(*CAPABILITY, "before", 0, "match", value="wrte"),
        (
            "capabilities.github-file.before[0].match: is 'wrte', which is not an action of github-file; "
            "did you mean write?"
        ),
    ),
    "match on an agent": (
        put("agent", "capabilities", "analyst", "before", value=[{"assert": "true", "match": "x"}]),
        "capabilities.analyst.before[0].match: has no effect: analyst is an agent and has no actions; remove it",
    ),
    "invoke that names no action": (
        put(*CAPABILITY, "before", 1, "invoke", value="audit"),
        "capabilities.github-file.before[1].invoke: is 'audit'; write TOOL:ACTION, such as crm:find-customer",
    ),
    "invoke of an unknown tool": (
        put(*CAPABILITY, "before", 1, "invoke", value="audits:note"),
        (
            "capabilities.github-file.before[1].invoke: names 'audits', which is not a tool of the namespace; did you "
            "mean audit?"
        ),
    ),
    "invoke of an unknown action": (
        put(*CAPABILITY, "before", 1, "invoke", value="audit:notes"),
        "capabilities.github-file.before[1].invoke: names 'notes', which is not an action of audit; did you mean note?",
    ),
    "invoke without what the action needs": (
        put(*CAPABILITY, "before", 1, "bindings", value={}),
        (
            "capabilities.github-file.before[1].bindings: lacks text, which audit requires; add "
            "bindings: {text: input.text}, or what it should be"
        ),
    ),
    "invoke with an unknown parameter": (
        put(*CAPABILITY, "before", 1, "bindings", "txt", value="now"),
        "capabilities.github-file.before[1].bindings.txt: is not a parameter of audit; did you mean text?",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_message(rule: str, tmp_path: Path) -> None:
    assert_told(tmp_path, *RULES[rule])
