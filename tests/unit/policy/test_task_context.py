"""The founding page "Task Context", line by line: structure, keys, aliases, common patterns and scopes."""

from __future__ import annotations

from typing import Any

import pytest

from errands.policy import cel
from errands.policy.cel import CelError, NameScope, Suspended, scopes
from errands.policy.context_object import Context
from tests.unit.policy.support import LATER, NOW, STARTED, a_run, said, value_of

LISTS = ["timestamps", "inputs", "outputs", "successful", "errored", "restricted"]


def test_the_structure_is_the_one_of_the_page() -> None:
    seen = a_run().plain()
    assert seen["agent"] == {"name": "support", "namespace": "desk", "started_at": NOW}
    assert seen["user"] == {"id": "ann", "email": "ann@example.com"}
    assert seen["llm"] == {
        "model": "gemini/gemini-2.5-flash",
        "tokens": {"total": 5930, "prompt": 5300, "completion": 630},
    }
    assert seen["_history"] == {
        "turns": ["input", "llm", "capability", "llm", "capability", "capability", "llm"],
        "turn_count": 7,
    }
    assert seen["input"] == [said("help", ticket_id="T-1", repo_name="web", project_name="site")]
    assert seen["output"] == [said("done", status="ok")]
    assert seen["capabilities"]["_meta"] == {
        "invocations": ["zendesk_fetch_ticket", "github_file_read_chunk", "research_agent"],
        "count": 3,
        "delegation_count": 1,
    }
    assert seen["capabilities"]["zendesk_fetch_ticket"] == {
        "count_successful": 1,
        "count_errored": 0,
        "count_restricted": 0,
        "timestamps": [LATER],
        "inputs": [{"id": "T-1"}],
        "outputs": [{"title": "Broken"}],
        "successful": [True],
        "errored": [False],
        "restricted": [False],
    }
    assert list(seen) == ["agent", "user", "llm", "_history", "input", "output", "capabilities"]


def test_every_declared_function_has_a_record_of_zeros_from_the_start() -> None:
    capabilities = Context(STARTED).plain()["capabilities"]
    zeros = {"count_successful": 0, "count_errored": 0, "count_restricted": 0, **{name: [] for name in LISTS}}
    assert capabilities["slack_post"] == zeros
    assert capabilities["research_agent"] == {**zeros, "task_ids": []}
    assert capabilities["_meta"] == {"invocations": [], "count": 0, "delegation_count": 0}


def test_task_ids_are_present_for_delegations_only() -> None:
    assert value_of("context.capabilities.research_agent.task_ids") == ["child-1"]
    assert value_of("has(context.capabilities.slack_post.task_ids)") is False


def test_an_unknown_email_is_null() -> None:
    context = Context(type(STARTED)(at=NOW, agent="a")).plain()
    assert value_of("context.user.email == null", context=context) is True


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("context.input[0].ticket_id", "T-1"),
        ("context.input[0].project_name", "site"),
        ("context.user.id", "ann"),
        ("context.user.email", "ann@example.com"),
        ("context.input[0].repo_name", "web"),
        ("context.output[0].message[0].text", "done"),
        ("context.capabilities.github_file_read_chunk.count_successful > 0", True),
        ("context.capabilities.zendesk_fetch_ticket.outputs[0]", {"title": "Broken"}),
        ("context.llm.tokens.total", 5930),
        ("context.llm.tokens.total > 5000 && context._history.turn_count > 8", False),
        ("context.llm.tokens.total > 5000 && context._history.turn_count > 6", True),
    ],
)
def test_every_common_pattern_of_the_page_works(source: str, value: Any) -> None:
    assert value_of(source) == value


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("c.user.id", "context.user.id"),
        ("c", "context"),
        ("c.cap", "context.capabilities"),
        ("c.cap.slack_post.count_errored", "context.capabilities.slack_post.count_errored"),
        ("context.cap._meta.count", "context.capabilities._meta.count"),
        ("c['cap'].slack_post", "context.capabilities.slack_post"),
        ("has(c.cap.nothing)", "has(context.capabilities.nothing)"),
        ("size(c.cap) + c.cap._meta.count", "size(context.capabilities) + context.capabilities._meta.count"),
        ("i.path", "input.path"),
        ("o.size", "output.size"),
    ],
)
def test_every_alias_stands_for_the_full_name(short: str, full: str) -> None:
    values = {"input": {"path": "/a"}, "output": {"size": 3}}
    assert value_of(short, scopes.AFTER, **values) == value_of(full, scopes.AFTER, **values)


def test_a_variable_of_a_macro_may_be_called_as_an_alias() -> None:
    assert value_of("[{'cap': 1}].map(c, c.cap)") == [1]
    assert value_of("['x'].map(i, i + i)") == ["xx"]


VARIABLES = ["context", "input", "output", "now", "runtime", "event", "settings", "session"]
ALIASES = ["c", "i", "o"]
CALLS = {
    "review": "review('bob')",
    "mount.read": "mount.read('a')",
    "mount.write": "mount.write('a', 'b')",
    "file": "file('a')",
    "search": "search({'q': 'x'})",
}
SCRIPT = scopes.script(["search"], mount=True)

#: The rows of the page. What other pages of the specification add is after the bar.
ROWS: list[tuple[NameScope, str]] = [
    (scopes.BEFORE, "context c input i now | event review"),
    (scopes.AFTER, "context c input i output o now | event review"),
    (scopes.GUARDRAIL_BEFORE, "context c input i now | review"),
    (scopes.GUARDRAIL_AFTER, "context c output o now | review"),
    (scopes.BINDING, "context c | runtime now"),
    (scopes.TOOL_WITH_MOUNT, "context c input i now mount.read mount.write | review runtime"),
    (scopes.TOOL, "context c input i now | review runtime"),
    (scopes.PROMPT, "context c | runtime now"),
    (SCRIPT, "search file"),
    (scopes.script(["search"]), "search"),
    (scopes.EXPOSES, "| context c input output now runtime"),
    (scopes.REQUEST, "| context c now runtime settings session"),
]
EXPRESSIONS = {**{name: name for name in VARIABLES + ALIASES}, **CALLS}
CASES = [(scope, name, name in allowed.split()) for scope, allowed in ROWS for name in EXPRESSIONS]


@pytest.mark.parametrize(
    ("scope", "name"), [pytest.param(s, n, id=f"{s.name}-{n}") for s, n, allowed in CASES if allowed]
)
def test_a_name_of_the_scope_works(scope: NameScope, name: str) -> None:
    values = dict.fromkeys([*VARIABLES, *ALIASES], "v")
    del values["context"], values["now"]
    if name in CALLS:
        with pytest.raises(Suspended) as caught:
            value_of(CALLS[name], scope, {}, **values)
        assert caught.value.call.function == name
    else:
        expected = {"context": {"user": {}}, "c": {"user": {}}, "now": NOW}.get(name, "v")
        assert value_of(name, scope, {"user": {}}, **values) == expected


@pytest.mark.parametrize(
    ("scope", "name"), [pytest.param(s, n, id=f"{s.name}-{n}") for s, n, allowed in CASES if not allowed]
)
def test_a_name_out_of_scope_is_refused_at_load_and_the_message_says_what_is_allowed(
    scope: NameScope, name: str
) -> None:
    with pytest.raises(CelError) as caught:
        cel.compile(scope, EXPRESSIONS[name])
    refused = caught.value.problem.removesuffix(f" is not available in {scope.name}").strip("'")
    assert refused in name.split(".")
    assert scope.describe() in caught.value.hint


def test_now_is_text_that_can_become_a_time() -> None:
    assert value_of("timestamp(now) - timestamp(context.agent.started_at) == duration('0s')") is True


def test_a_scope_describes_itself() -> None:
    assert scopes.AFTER.describe() == "context (c), event, input (i), now, output (o), review()"
    assert SCRIPT.describe() == "file(), search()"
    assert scopes.script([]).describe() == "nothing"
