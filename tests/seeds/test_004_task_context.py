"""Founding document 004, line by line: the life of a task, its context, the ways to read it, and the scopes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from errands import A2AMiddleware, A2AServer, RequestEnvelope
from errands.agents.manifests import ManifestError, load
from errands.agents.models.base import Answer, Question
from errands.agents.tools.base import BrokenToolError, ToolError
from errands.agents.tools.python import tool
from errands.model.core import Part, Task, TaskState
from errands.policy import cel
from errands.policy.cel import Session, Variables, scopes
from errands.policy.context_object import replay
from errands.policy.records import AnyRecord
from errands.policy.run import stored_records
from errands.testing import connect
from tests.agents.rig import Replies, call, say

pytestmark = pytest.mark.anyio

NOW = "2026-05-20T03:45:00Z"

AGENT = """
kind: commonagents.info/v1beta2/agent
namespace: engineering
name: coder
description: Looks after tickets.
model: gemini/gemini-2.5-flash
prompt: You look after ticket {context.input[0].ticket_id} of {context.user.email}.
parameters:
  properties:
    ticket_id: {type: string}
    repo_name: {type: string, default: errands}
    project_name: {type: string, default: demo}
capabilities:
  slack-post: "*"
  github-file: "*"
  zendesk: "*"
  research-agent: "*"
exposes:
  posts: context.capabilities.slack_post.count_successful
---
kind: commonagents.info/v1beta2/agent
namespace: engineering
name: research-agent
description: Finds things out.
model: gemini/gemini-2.5-flash
prompt: You find things out.
---
kind: commonagents.info/v1beta2/tool
namespace: engineering
name: slack-post
description: Posts.
actions:
  - name: post
    description: Posts a text.
    parameters: {properties: {text: {type: string}}}
    execute: {cel: {expression: "{'posted': input.text}"}}
---
kind: commonagents.info/v1beta2/tool
namespace: engineering
name: github-file
description: Files of a repository.
actions:
  - name: read-chunk
    description: Reads a piece of a file.
    parameters: {properties: {path: {type: string}}}
    execute: {cel: {expression: "{'text': 'chunk of ' + input.path}"}}
  - name: write-file
    description: Writes a file.
    execute: {cel: {expression: "{}"}}
---
kind: commonagents.info/v1beta2/tool
namespace: engineering
name: zendesk
description: Tickets.
actions:
  - name: fetch-ticket
    description: Fetches a ticket.
    execute: {cel: {expression: "{'id': context.input[0].ticket_id, 'by': context.user.id}"}}
  - name: close-ticket
    description: Closes a ticket.
    execute: {cel: {expression: "{}"}}
"""


class Ann(A2AMiddleware):
    async def before_dispatch(self, envelope: RequestEnvelope, request: Any) -> None:
        envelope.owner, envelope.email = "ann", "ann@example.com"


class Run:
    """A real run, over the wire: one task, and everything that its log says about it."""

    def __init__(self, task: Task, records: list[AnyRecord], child: str) -> None:
        self.task = task
        self.records = records
        self.child = child
        self.context = replay(records).plain()

    def read(self, source: str, scope: cel.NameScope = scopes.AFTER, **values: Any) -> Any:
        """What an expression gives in this run."""
        return cel.run(cel.compile(scope, source), Variables(self.context, **values), Session(NOW))


@pytest.fixture
async def run(tmp_path: Path) -> AsyncIterator[Run]:
    (tmp_path / "agent.yaml").write_text(AGENT, "utf-8")
    replies = iter(
        [
            call(("github_file_read_chunk", {"path": "README.md"}), prompt_tokens=4000, completion_tokens=10),
            call(("zendesk_fetch_ticket", {}), ("slack_post", {"text": "on it"}), prompt_tokens=1000),
            call(("research_agent", {"message": "What is known?"})),
            call(("slack_post", {"wrong": 1})),
            say("All done.", completion_tokens=3),
            say("You are welcome."),
        ]
    )

    def answer(question: Question) -> Answer:
        return say("It is known.") if question.agent == "research-agent" else next(replies)

    server = A2AServer.from_manifest(
        tmp_path, agent="coder", model=Replies(*[answer] * 7), middlewares=[Ann()], storage="memory"
    )
    async with connect(server) as client:
        first = await client.send([Part(text="Please help"), Part(data={"ticket_id": "T-7"})])
        second = await client.send([Part(text="Thanks"), Part(data={"project_name": "other"})], task_id=first.task_id)
        assert second.raw_task is not None
        scope = server.scope("ann")
        records = await stored_records(server.engine, first.task_id, scope)
        [child] = replay(records).plain()["capabilities"]["research_agent"]["task_ids"]
        yield Run(second.raw_task, records, child)


# Task lifecycle


async def test_a_task_does_not_terminate_when_the_agent_responds_but_waits_for_further_input(run: Run) -> None:
    assert run.task.status.state is TaskState.INPUT_REQUIRED
    assert [entry["message"][0]["text"] for entry in run.context["output"]] == ["All done.", "You are welcome."]


ONE_TOOL = """
kind: commonagents.info/v1beta2/agent
namespace: n
name: a
description: d
prompt: p
model: m/m
LIMITS
capabilities: {it: "*"}
"""


@tool
async def it() -> None:
    """Does something."""


async def outcome(folder: Path, limits: str, made: Any, *replies: Any) -> tuple[str, dict[str, Any] | None, Replies]:
    (folder / "agent.yaml").write_text(ONE_TOOL.replace("LIMITS", limits), "utf-8")
    model = Replies(*replies)
    server = A2AServer.from_manifest(folder, model=model, tools=[made], storage="memory")
    async with connect(server) as client:
        task = (await client.send("Go")).raw_task
        assert task is not None
        assert task.status.message is not None
        return task.status.state.short, task.status.message.metadata, model


async def test_an_unrecoverable_error_terminates_the_task(tmp_path: Path) -> None:
    @tool(name="it")
    async def unreachable() -> None:
        """Cannot be reached."""
        raise BrokenToolError("nobody answers")

    state, metadata, _ = await outcome(tmp_path, "", unreachable, call(("it", {})))
    assert (state, metadata) == ("failed", {"reason": "errored"})


@pytest.mark.parametrize(
    ("limit", "replies"),
    [
        ("max_turns: 1", [call(("it", {})), "Never."]),
        ("max_prompt_tokens: 5", [say("Hi.", prompt_tokens=6)]),
        ("max_completion_tokens: 5", [say("Hi.", completion_tokens=6)]),
        ("max_tool_calls: 0", [call(("it", {}))]),
        ("max_age: 0s", [call(("it", {}))]),
    ],
)
async def test_a_limit_that_is_exceeded_terminates_the_task_with_its_reason(
    tmp_path: Path, limit: str, replies: list[Any]
) -> None:
    state, metadata, _ = await outcome(tmp_path, f"limits: {{{limit}}}", it, *replies)
    assert (state, metadata) == ("failed", {"reason": "limit_exceeded"})


async def test_an_operational_error_is_reported_back_to_the_model_and_terminates_nothing(tmp_path: Path) -> None:
    @tool(name="it")
    async def failing() -> None:
        """Fails."""
        raise ToolError("HTTP 503")

    state, _, model = await outcome(tmp_path, "", failing, call(("it", {})), "Sorry.")
    assert (state, model.results()) == ("input-required", [{"error": "HTTP 503"}])


# Context object: structure


async def test_the_context_has_exactly_the_structure_of_the_page(run: Run) -> None:
    assert set(run.context) == {"agent", "user", "llm", "_history", "input", "output", "capabilities"}
    assert set(run.context["agent"]) == {"name", "namespace", "started_at"}
    assert run.context["user"] == {"id": "ann", "email": "ann@example.com"}
    assert set(run.context["llm"]) == {"model", "tokens"}
    assert set(run.context["llm"]["tokens"]) == {"total", "prompt", "completion"}
    assert set(run.context["_history"]) == {"turns", "turn_count"}
    assert set(run.context["capabilities"]["_meta"]) == {"invocations", "count", "delegation_count"}


async def test_the_agent_and_when_its_task_was_created(run: Run) -> None:
    assert (run.context["agent"]["name"], run.context["agent"]["namespace"]) == ("coder", "engineering")
    assert run.read("timestamp(context.agent.started_at) < timestamp('2100-01-01T00:00:00Z')")
    assert run.context["agent"]["started_at"].endswith("Z")


async def test_the_context_has_the_model_and_its_tokens(run: Run) -> None:
    tokens = run.context["llm"]["tokens"]
    assert run.context["llm"]["model"] == "test/model"
    assert (tokens["prompt"], tokens["completion"], tokens["total"]) == (5000, 13, 5013)


async def test_the_context_has_the_turns_in_order(run: Run) -> None:
    turns = ["input", "llm", "capability", "llm", "capability", "capability", "llm", "capability"]
    turns += ["llm", "capability", "llm", "input", "llm"]
    assert run.context["_history"] == {"turns": turns, "turn_count": len(turns)}


async def test_the_context_has_the_calls_in_order(run: Run) -> None:
    assert run.context["capabilities"]["_meta"] == {
        "invocations": [
            "github_file_read_chunk",
            "zendesk_fetch_ticket",
            "slack_post",
            "research_agent",
            "slack_post",
        ],
        "count": 5,
        "delegation_count": 1,
    }


async def test_the_context_has_the_record_of_a_function(run: Run) -> None:
    record = run.context["capabilities"]["slack_post"]
    assert [len(record[name]) for name in ("timestamps", "inputs", "outputs")] == [2, 2, 2]
    assert {name: value for name, value in record.items() if name != "timestamps"} == {
        "count_successful": 1,
        "count_errored": 1,
        "count_restricted": 0,
        "inputs": [{"text": "on it"}, {"wrong": 1}],
        "outputs": [{"posted": "on it"}, None],
        "successful": [True, False],
        "errored": [False, True],
        "restricted": [False, False],
    }


async def test_task_ids_are_there_for_delegations_only(run: Run) -> None:
    records = {name: record for name, record in run.context["capabilities"].items() if name != "_meta"}
    assert [name for name, record in records.items() if "task_ids" in record] == ["research_agent"]
    assert records["research_agent"]["task_ids"] == [run.child]


async def test_a_function_that_was_never_called_has_a_record_of_zeros(run: Run) -> None:
    assert run.read("context.capabilities.github_file_write_file.count_successful") == 0
    assert run.read("context.capabilities.zendesk_close_ticket.outputs") == []


# TaskIO


async def test_every_input_has_a_message_and_its_own_snapshot_of_the_parameters(run: Run) -> None:
    first, second = run.context["input"]
    assert first == {
        "message": [{"mimeType": "text/plain", "text": "Please help"}],
        "ticket_id": "T-7",
        "repo_name": "errands",
        "project_name": "demo",
    }
    assert (second["project_name"], second["ticket_id"]) == ("other", "T-7")


async def test_outputs_have_a_message_and_what_the_agent_exposes(run: Run) -> None:
    assert run.context["output"][0] == {"message": [{"mimeType": "text/plain", "text": "All done."}], "posts": 1}


async def test_bindings_refer_to_parameters_of_an_input(run: Run) -> None:
    assert run.read("context.input[0].ticket_id", scopes.BINDING) == "T-7"
    assert run.read("context.input[0].project_name", scopes.BINDING) == "demo"


# Capability keys


@pytest.mark.parametrize(
    "key",
    [
        pytest.param("slack_post", id="single-capability tool: the reference"),
        pytest.param("github_file_read_chunk", id="multi-capability tool: the reference and the capability"),
        pytest.param("research_agent", id="sub-agent: its name"),
    ],
)
async def test_capabilities_are_keyed_by_their_function_name(run: Run, key: str) -> None:
    assert run.read(f"context.capabilities.{key}.count_successful") == 1


# Shorthand aliases


@pytest.mark.parametrize(
    ("alias", "meaning"),
    [
        ("c.user.id", "context.user.id"),
        ("c.cap.slack_post", "context.capabilities.slack_post"),
        ("i.amount", "input.amount"),
        ("o.paid", "output.paid"),
    ],
)
async def test_an_alias_stands_for_its_name(run: Run, alias: str, meaning: str) -> None:
    values: dict[str, Any] = {"input": {"amount": 5}, "output": {"paid": 6}}
    assert run.read(alias, **values) == run.read(meaning, **values)


# Common patterns


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        ("context.user.id", "ann"),
        ("context.user.email", "ann@example.com"),
        ("context.input[0].ticket_id", "T-7"),
        ("context.input[0].repo_name", "errands"),
        ("context.output[0].message[0].text", "All done."),
        ("context.capabilities.github_file_read_chunk.count_successful > 0", True),
        ("context.capabilities.zendesk_fetch_ticket.outputs[0]", {"id": "T-7", "by": "ann"}),
        ("context.llm.tokens.total", 5013),
        ("context.llm.tokens.total > 5000 && context._history.turn_count > 8", True),
    ],
)
async def test_a_common_pattern_reads_what_it_says(run: Run, pattern: str, value: Any) -> None:
    assert run.read(pattern) == value


# Available scopes

NAMES = {"context": "context", "input": "input", "output": "output", "now": "now"}
CALLS = {"mount.read": "mount.read('a')", "mount.write": "mount.write('a', 'b')"}

AGENT_WITH = """
kind: commonagents.info/v1beta2/agent
namespace: n
name: a
description: d
prompt: "PROMPT"
mount: task
guardrails: {before: [BEFORE_INPUT], after: [AFTER_OUTPUT]}
capabilities:
  t: {bindings: {p: "BINDING"}, before: [BEFORE], after: [AFTER]}
---
kind: commonagents.info/v1beta2/tool
namespace: n
name: t
description: d
actions:
  - name: t
    description: d
    parameters: {properties: {p: {}}}
    execute: {cel: {expression: "TOOL"}}
"""
FILLED = {
    "PROMPT": "p",
    "BEFORE_INPUT": "{assert: 'true'}",
    "AFTER_OUTPUT": "{assert: 'true'}",
    "BINDING": "1",
    "BEFORE": "{assert: 'true'}",
    "AFTER": "{assert: 'true'}",
    "TOOL": "1",
}
TRANSFORM = "{{transform: \"{{'it': {}}}\"}}"

#: Each row of the page: the place, how an expression stands there, and the names that it has.
ROWS = {
    "Middleware before steps": ("BEFORE", TRANSFORM, {"context", "input", "now"}),
    "Middleware after steps": ("AFTER", TRANSFORM, {"context", "input", "output", "now"}),
    "Guardrail before steps": ("BEFORE_INPUT", TRANSFORM, {"context", "input", "now"}),
    "Guardrail after steps": ("AFTER_OUTPUT", TRANSFORM, {"context", "output", "now"}),
    # Companion pages give bindings and prompts `now` (and `runtime`), too: see docs/policy.md.
    "Agent bindings": ("BINDING", "{}", {"context", "now"}),
    "CEL tool expression": ("TOOL", "{}", {"context", "input", "now", "mount.read", "mount.write"}),
    "Agent prompt interpolation": ("PROMPT", "{{{}}}", {"context", "now"}),
}


@pytest.mark.parametrize("name", [*NAMES, *CALLS])
@pytest.mark.parametrize("row", ROWS)
def test_a_scope_has_the_names_of_its_row_and_no_others(tmp_path: Path, row: str, name: str) -> None:
    place, shape, allowed = ROWS[row]
    text = AGENT_WITH
    for word, filled in sorted(FILLED.items(), key=lambda item: -len(item[0])):
        source = {**NAMES, **CALLS}[name]
        text = text.replace(word, shape.format(source) if word == place else filled)
    (tmp_path / "agent.yaml").write_text(text, "utf-8")
    if name in allowed:
        assert load(tmp_path).agents
    else:
        with pytest.raises(ManifestError, match="is not available in"):
            load(tmp_path)


@pytest.mark.parametrize("source", ["post({'text': 'x'})", "file('a.txt')"])
def test_a_script_has_its_capabilities_and_file(source: str) -> None:
    assert cel.compile(scopes.script(["post"], mount=True), source).source == source


@pytest.mark.parametrize("source", ["context", "c", "input", "output", "now", "settings", "auth", "other({})"])
def test_a_script_has_no_access_to_anything_else(source: str) -> None:
    with pytest.raises(cel.CelError, match="is not available in a capability script"):
        cel.compile(scopes.script(["post"], mount=True), source)
