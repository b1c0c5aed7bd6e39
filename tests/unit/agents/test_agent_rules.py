"""Every rule about agents has its message: which field, what is wrong, how to fix it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.agents.support import Spoil, assert_told, drop, put

ACTION = ("tool", "actions", 0)

#: What is done to the valid manifests, and the one error that is told.
RULES: dict[str, tuple[Spoil, str]] = {
    # Fields
    "a kind that is not a string": (
        put("agent", "kind", value=7),
        "kind: is not a string; write kind: commonagents.info/v1beta2/agent",
    ),
    "a kind that is missing": (
        drop("agent", "kind"),
        "kind: is missing; add kind: commonagents.info/v1beta2/agent or kind: commonagents.info/v1beta2/tool",
    ),
    "an unknown field": (put("agent", "promt", value="x"), "promt: is unknown; did you mean prompt?"),
    "an unknown field of a step": (
        put("agent", "guardrails", "before", 0, "onfail", value="continue"),
        "guardrails.before[0].onfail: is unknown; did you mean on_fail?",
    ),
    "a field that is missing": (
        drop("agent", "description"),
        "description: is missing; add description: Answers questions about orders.",
    ),
    "a field that is empty": (
        put("agent", "prompt", value=" "),
        "prompt: is empty; write something, such as You help customers with their orders.",
    ),
    "a mount that there is not": (
        put("agent", "mount", value="disk"),
        "mount: is 'disk'; write one of agent, none, task, workspace",
    ),
    "a name with a slash": (
        put("mount", "name", value="shop/eu"),
        "name: is 'shop/eu'; use up to 100 of a-z, A-Z, 0-9, '-', '_' and '.', and begin with a letter or a digit",
    ),
    "a name that leads upwards": (
        put("mount", "name", value="a..b"),
        "name: is 'a..b'; use up to 100 of a-z, A-Z, 0-9, '-', '_' and '.', and begin with a letter or a digit",
    ),
    # Forms
    "a choice that is a list": (
        put("agent", "mount", value=["task"]),
        "mount: is a list; write one of agent, none, task, workspace",
    ),
    "a choice that is a flag": (
        put("agent", "mount", value=True),
        "mount: is true; write one of agent, none, task, workspace",
    ),
    "a text in place of a list": (
        put("agent", "capabilities", "github-file", "include", value="write"),
        "capabilities.github-file.include: is a string, not a list; write a list: [write]",
    ),
    "an object in place of a list": (
        put("agent", "guardrails", "before", value={"assert": "true"}),
        "guardrails.before: is an object, not a list; write a list: each item begins with -",
    ),
    "an object in place of an expression": (
        put("agent", "capabilities", "github-file", "after", 0, "transform", value={"a": "output"}),
        (
            "capabilities.github-file.after[0].transform: is an object, not a string; write a string, in quotes if it "
            "begins with a bracket"
        ),
    ),
    "arguments that a transform makes a text": (
        put("agent", "capabilities", "github-file", "before", 0, value={"transform": "'x' + input.path"}),
        (
            "capabilities.github-file.before[0].transform: does not return a map; write "
            "input.put('name', ...), or a map such as {'name': input.name}"
        ),
    ),
    "a text in place of a backend": (
        put("audit", "actions", 0, "execute", "cel", value="input.text"),
        "actions[0].execute.cel: is a string, not an object; write an object with expression",
    ),
    "a parameter that says that it is required": (
        put("audit", "actions", 0, "parameters", "properties", "text", "required", value=True),
        (
            "actions[0].parameters.properties.text.required: does not apply to a single parameter; "
            "remove it: a parameter is required if it has no default"
        ),
    ),
    "a task that closes before its first answer": (
        put("agent", "close_after", value=0),
        "close_after: is 0; write 1 or more",
    ),
    # Limits
    "an age without a unit": (
        put("agent", "limits", "max_age", value=30),
        "limits.max_age: is a number, not a string; write a string such as 30m",
    ),
    "a limit that is negative": (
        put("agent", "limits", "max_turns", value=-1),
        "limits.max_turns: max_turns is -1; a limit cannot be negative",
    ),
    "an age that is no duration": (
        put("agent", "limits", "max_age", value="2 days"),
        (
            "limits.max_age: '2 days' is not a duration; write numbers with units, such as 30s, 1h30m or 1.5h "
            "(ns, us, ms, s, m, h)"
        ),
    ),
    # Parameters
    "parameters that are no object": (
        put("agent", "parameters", "type", value="array"),
        "parameters.type: is 'array'; write object",
    ),
    "parameters beside properties": (
        put("agent", "parameters", "region", value={"type": "string"}),
        (
            "parameters.region: is unknown; put parameters below properties; known: additionalProperties, "
            "description, properties, required, title, type"
        ),
    ),
    "a parameter that is no schema": (
        put("agent", "parameters", "properties", "region", value="string"),
        "parameters.properties.region: is not an object; write a JSON Schema such as {type: string}",
    ),
    "a parameter of an unknown type": (
        put("audit", "actions", 0, "parameters", "properties", "text", "type", value="text"),
        (
            "actions[0].parameters.properties.text.type: is 'text'; write one of array, boolean, integer, null, "
            "number, object, string"
        ),
    ),
    "a default that does not fit": (
        put(*ACTION, "parameters", "properties", "lines", "default", value="many"),
        (
            'actions[0].parameters.properties.lines.default: does not fit its own schema ("many" is not of type '
            '"integer"); change one of the two'
        ),
    ),
    "a pattern that is none": (
        put(*ACTION, "parameters", "properties", "path", "pattern", value="("),
        (
            "actions[0].parameters.properties.path: has the pattern '(', which cannot be matched (missing ), "
            "unterminated subpattern at position 0); correct the pattern"
        ),
    ),
    "a pattern that looks ahead": (
        put(*ACTION, "parameters", "properties", "path", "pattern", value="^(?=a)b"),
        (
            "actions[0].parameters.properties.path: has the pattern '^(?=a)b', which cannot be matched (it has "
            "look-around, back-references or too many repetitions); write it without them"
        ),
    ),
    "a name pattern that refers back": (
        put(*ACTION, "parameters", "properties", "path", "patternProperties", value={r"(a)\1": {}}),
        (
            "actions[0].parameters.properties.path: has the pattern '(a)\\\\1', which cannot be matched (it has "
            "look-around, back-references or too many repetitions); write it without them"
        ),
    ),
    "a reference to another schema": (
        put(*ACTION, "parameters", "properties", "path", "$ref", value="https://example.com/schema"),
        (
            "actions[0].parameters.properties.path.$ref: cannot be used in a manifest; write the schema out where it "
            "is needed"
        ),
    ),
    "required against the defaults": (
        put(*ACTION, "parameters", "required", value=["path", "lines"]),
        (
            "actions[0].parameters.required: does not name exactly the parameters without a default; remove it: a "
            "parameter is required if it has no default"
        ),
    ),
    "require_binding that is no flag": (
        put("tool", "parameters", "properties", "owner", "require_binding", value="yes"),
        "parameters.properties.owner.require_binding: is 'yes'; write true or false",
    ),
    "require_binding on a setting": (
        put("tool", "settings", "properties", "github.token", "require_binding", value=True),
        (
            "settings.properties.github.token.require_binding: cannot be true: settings are given by the operator; "
            "remove it"
        ),
    ),
    "additional properties": (
        put("agent", "parameters", "additionalProperties", value=True),
        "parameters.additionalProperties: is not false; declare every parameter, and remove this",
    ),
    "a message that is more than a default": (
        put("agent", "parameters", "properties", "message", value={"require_binding": True}),
        (
            "parameters.properties.message.require_binding: cannot be set for message, which is always a list of "
            "content parts; declare message only to give it a default"
        ),
    ),
    "a message whose default is a string": (
        put("agent", "parameters", "properties", "message", value={"default": "Hello"}),
        (
            "parameters.properties.message.default: is not a list of content parts; write a list of "
            "content parts such as [{mimeType: text/plain, text: Hello}]"
        ),
    ),
    # Names of functions
    "the name of the context": (
        put("agent", "capabilities", "-meta", value={"url": "https://agents.example.com"}),
        "capabilities.-meta: becomes the function _meta, which is reserved; rename it",
    ),
    "a reserved word of CEL": (
        put("agent", "capabilities", "import", value={"url": "https://agents.example.com"}),
        "capabilities.import: becomes the function import, a reserved word of CEL; rename it",
    ),
    "a function that begins with a digit": (
        put("agent", "capabilities", "3d", value={"url": "https://agents.example.com"}),
        (
            "capabilities.3d: becomes the function '3d', which is not a valid function name; use letters, digits, "
            "'-' and '_' only, and begin with a letter"
        ),
    ),
    "a function with a long name": (
        put("agent", "capabilities", "a" * 65, value={"url": "https://agents.example.com"}),
        (
            f"capabilities.{'a' * 65}: becomes the function '{'a' * 65}' of 65 characters; models take 64; use shorter "
            "names"
        ),
    ),
    "two functions of one name": (
        put("agent", "capabilities", "github-file_write", value={"url": "https://agents.example.com"}),
        (
            "capabilities.github-file_write: becomes the function github_file_write, like github-file:write; rename "
            "one of the two: '-' and '_' are the same in a function's name"
        ),
    ),
    "two resources of one name": (
        lambda documents: documents.update(mount={**documents["audit"], "name": "analyst"}),
        "name: STARTS is 'analyst', which the namespace shop already has at ",
    ),
    # Model capabilities
    "a generator without a mount": (
        put("analyst", "model_capabilities", value=["image-generation"]),
        "model_capabilities[0]: is image-generation, but the agent has no mount for what it makes; add mount: task",
    ),
    "a model capability that is a capability": (
        put("agent", "model_capabilities", value=["analyst"]),
        "model_capabilities[0]: is 'analyst', which is also a capability; rename one of the two",
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_its_message(rule: str, tmp_path: Path) -> None:
    assert_told(tmp_path, *RULES[rule])
