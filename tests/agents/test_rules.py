"""Rules cannot be slipped past: they apply under every spelling and to every kind of agent, or are refused."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from errands import (
    A2AServer,
    AgentExecutor,
    CapabilityBlockedError,
    EventQueue,
    Message,
    Part,
    Policy,
    RequestContext,
    Role,
    TaskContext,
    TaskUpdater,
    agent,
)
from errands.agents.manifests.loading import load_policy
from errands.agents.tools.base import Backend, Discovered, Invocation
from errands.agents.tools.toolbox import BACKENDS
from errands.client import ClientResult
from errands.errors import ConfigurationError
from errands.policy.context_object import Context, replay
from errands.policy.run import stored_records
from errands.testing import connect, serve
from tests.agents.rig import AGENT, TOOL, Replies, at_work, call, reason, told, worker
from tests.unit.oversight.support import after, around, policy
from tests.unit.support import Agent

pytestmark = pytest.mark.anyio

KINDS = ("worker", "function", "executor", "manifest")
EXAMPLE = Path(__file__).parents[2] / "examples" / "policy.yaml"
CARD = "4111111111111111"

POSTING = f"""{AGENT}
capabilities: {{slack-post: "*"}}
{TOOL}
name: slack-post
description: Posts.
actions:
  - name: post
    description: Posts a text.
    parameters: {{properties: {{text: {{type: string}}}}}}
    execute: {{cel: {{expression: "'posted'"}}}}
"""


async def post(ctx: Any, name: str, text: str) -> str:
    """Calls the capability, and says how that ended."""
    try:
        async with ctx.capability(name, {"text": text}) as called:
            called.output = "posted"
    except CapabilityBlockedError as blocked:
        return str(blocked)
    return str(called.output)


class Poster(AgentExecutor):
    def __init__(self, name: str) -> None:
        self._name = name

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        said = await post(context, self._name, context.get_user_input())
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.add_artifact([Part(text=said)], "answer")
        await updater.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        pass


def poster(kind: str, folder: Path, name: str, answer: str) -> Any:
    """An agent that calls a capability and then answers; an agent in Python with what the call gave."""

    async def handle(ctx: TaskContext) -> None:
        await ctx.complete(await post(ctx, name, ctx.user_text))

    @agent(name="Test agent")
    async def function(text: str, ctx: TaskContext) -> str:
        return await post(ctx, name, text)

    if kind == "manifest":
        replies = Replies(call((name.replace("-", "_"), {"text": "hi"})), answer)
        return worker(folder, POSTING.replace("slack-post", name), replies)
    return {"worker": Agent(handle), "function": function, "executor": Poster(name)}[kind]


class Scene:
    def __init__(self, server: A2AServer, client: Any) -> None:
        self._server = server
        self.client = client

    async def context(self, result: ClientResult) -> Context:
        assert result.task_id is not None
        return replay(await stored_records(self._server.engine, result.task_id, self._server.scope()))


@asynccontextmanager
async def posting(
    kind: str, folder: Path, rules: Policy, *, name: str = "slack-post", answer: str = "Done."
) -> AsyncIterator[Scene]:
    server = serve(poster(kind, folder, name, answer), policy=rules)
    async with connect(server) as client:
        yield Scene(server, client)


# Names


@pytest.mark.parametrize("spelled", ["slack-post", "slack_post", "\uff53lack-post"])
@pytest.mark.parametrize("called", ["slack-post", "slack_post"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_rule_applies_however_the_name_is_spelled(kind: str, called: str, spelled: str, tmp_path: Path) -> None:
    rules = around(spelled, before=[{"assert": "false", "error_message": "Not here."}])
    async with posting(kind, tmp_path, rules, name=called) as scene:
        result = await scene.client.send("hi")
        record = (await scene.context(result)).capabilities["slack_post"]
        assert (record.count_restricted, record.count_successful) == (1, 0)


@pytest.mark.parametrize("kind", KINDS)
async def test_an_expression_counts_calls_under_the_one_name(kind: str, tmp_path: Path) -> None:
    rules = policy(
        capabilities={"slack-post": {}},
        guardrails={"after": [{"assert": "c.cap.slack_post.count_successful == 0", "error_message": "Posted!"}]},
    )
    async with posting(kind, tmp_path, rules) as scene:
        result = await scene.client.send("hi")
        assert (result.state, result.text) == ("rejected", "Posted!")


def test_two_spellings_of_one_name_are_an_error(tmp_path: Path) -> None:
    rules = policy(capabilities={"slack-post": {}, "slack_post": {}})
    with pytest.raises(ConfigurationError, match=r"capabilities.slack_post: is the same name as another"):
        serve(Agent(lambda ctx: ctx.complete("ok")), policy=rules)
    (tmp_path / "policy.yaml").write_text('version: "1"\ncapabilities:\n  slack-post: {}\n  slack_post: {}\n', "utf-8")
    with pytest.raises(ConfigurationError, match=r"capabilities.slack_post: is the same name as another; keep one"):
        load_policy(tmp_path / "policy.yaml")


@pytest.mark.parametrize("name", ["", "_meta", " pay", "pa\u200by", "pay\n"])
def test_what_no_reader_could_tell_from_another_name_is_no_name(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be the name of a capability"):
        serve(Agent(lambda ctx: ctx.complete("ok")), policy=policy(capabilities={name: {}}))


@pytest.mark.parametrize("kind", ["worker", "function", "executor"])
async def test_a_name_that_differs_only_in_case_is_refused(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rules = around("slack_post", before=[{"assert": "true"}])
    async with posting(kind, tmp_path, rules, name="Slack_Post") as scene:
        result = await scene.client.send("hi")
        assert result.state == "failed"
        assert "has rules for 'slack_post', and the agent calls 'Slack_Post'" in caplog.text


@pytest.mark.parametrize("kind", KINDS)
async def test_a_policy_may_refuse_all_that_it_does_not_name(kind: str, tmp_path: Path) -> None:
    rules = policy(capabilities={"slack_pots": {}}, other_capabilities="refuse")
    async with posting(kind, tmp_path, rules) as scene:
        context = await scene.context(await scene.client.send("hi"))
        assert context.capabilities["slack_post"].count_restricted == 1


# Functions that are not there


@pytest.mark.parametrize(
    "rules",
    [
        around("slack_pots", before=[{"assert": "false"}]),
        around("run_script", before=[{"assert": "false"}]),
        after({"assert": "context.capabilities.slack_pots.count_successful == 0", "on_fail": "continue"}),
    ],
)
def test_a_policy_about_a_function_that_no_agent_has_is_refused_at_the_start(tmp_path: Path, rules: Policy) -> None:
    with pytest.raises(ConfigurationError, match=r"does not have: (slack_pots|run_script); it has slack_post"):
        serve(poster("manifest", tmp_path, "slack-post", ""), policy=rules)


def test_a_policy_may_ask_whether_there_is_a_function(tmp_path: Path) -> None:
    rule = "!has(c.cap.search) || c.cap.search.count_successful < 3"
    serve(poster("manifest", tmp_path, "slack-post", ""), policy=after({"assert": rule}))


@pytest.mark.parametrize("step", [{"assert": "false", "match": "post"}, {"assert": "false", "match": ""}])
def test_a_policy_has_no_match(tmp_path: Path, step: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match=r"before\[0\].match: has no meaning in a policy"):
        serve(Agent(lambda ctx: ctx.complete("ok")), policy=around("slack-post", before=[step]))


class Server(Backend):
    """Offers one operation."""

    async def discover(self, action: str | None) -> list[Discovered]:
        return [Discovered(name="delete-pet", description="Deletes.", parameters={"pet": {"type": "string"}})]

    async def invoke(self, invocation: Invocation) -> Any:
        return "gone"


@pytest.fixture(params=["mcp", "openapi"])
def discovering(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tool of a server whose operations are known only when the agent runs."""
    monkeypatch.setitem(BACKENDS, request.param, Server)
    transport = "transport: http, " if request.param == "mcp" else ""
    server = f"{request.param}: {{{transport}url: 'https://example.com/x'}}"
    return f"{TOOL}name: pets\ndescription: Pets.\n{server}\n"


def of_pets(tool: str, **capability: Any) -> str:
    return f"{AGENT}\n{yaml.safe_dump({'capabilities': {'pets': capability or '*'}})}{tool}"


@pytest.mark.parametrize("match", ["delete-pet", "delete_pet"])
async def test_a_step_matches_a_discovered_operation_however_it_is_spelled(
    tmp_path: Path, discovering: str, match: str
) -> None:
    text = of_pets(discovering, before=[{"match": match, "assert": "false", "error_message": "No."}])
    async with at_work(tmp_path, text, call(("pets_delete_pet", {"pet": "Rex"})), "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [{"error": "No."}]


@pytest.mark.parametrize(
    ("capability", "rules", "problem"),
    [
        (
            {"before": [{"match": "remove-pet", "assert": "false"}]},
            None,
            "pets: a step has match 'remove-pet', which is not an operation; its calls are refused",
        ),
        (
            {"before": [{"match": "", "assert": "false"}]},
            None,
            "pets: a step has match '', which is not an operation",
        ),
        ({"bindings": {"owner": "context.user.id"}}, None, "pets: the binding 'owner' matches no parameter"),
        (
            {},
            around("pets_remove_pet", before=[{"assert": "false"}]),
            "pets: the policy has rules for pets_remove_pet, which is not a function",
        ),
    ],
)
async def test_calls_are_refused_when_a_rule_fits_nothing_that_was_discovered(
    tmp_path: Path,
    discovering: str,
    caplog: pytest.LogCaptureFixture,
    capability: dict[str, Any],
    rules: Policy | None,
    problem: str,
) -> None:
    replies = (call(("pets_delete_pet", {"pet": "Rex"})), "Done.")
    options: dict[str, Any] = {"server": {"policy": rules}} if rules else {}
    with caplog.at_level(logging.ERROR):
        async with at_work(tmp_path, of_pets(discovering, **capability), *replies, **options) as desk:
            assert told(await desk.say("Go")) == "Done."
            [result] = desk.model.results()
            assert result == {
                "error": "pets_delete_pet is switched off: its rules do not fit what its service offers now"
            }
            assert (await desk.context()).capabilities["pets_delete_pet"].count_restricted == 1
    assert problem in caplog.text


@pytest.fixture
def helped(tmp_path: Path, discovering: str) -> Path:
    """A clerk with discovered functions, and a helper that it hands work to."""
    helper = POSTING.replace("name: clerk", "name: helper").replace("slack-post", "pets-post")
    clerk = of_pets(discovering).replace("pets: '*'", "pets: '*'\n  helper: '*'")
    (tmp_path / "agents.yaml").write_text(f"{clerk}---{helper}", "utf-8")
    return tmp_path


@pytest.mark.parametrize("spelled", ["pets_post", "pets-post"])
async def test_a_rule_applies_to_the_calls_of_an_agent_that_work_is_handed_to(helped: Path, spelled: str) -> None:
    rules = around(spelled, before=[{"assert": "false", "error_message": "Not here."}])
    model = Replies(
        call(("pets_delete_pet", {"pet": "Rex"}), ("helper", {"message": "Post it."})),
        call(("pets_post", {"text": "hi"})),
        "Never mind.",
        "Done.",
    )
    server = A2AServer.from_manifest(helped, agent="clerk", model=model, policy=rules, storage="memory")
    async with connect(server) as client:
        await client.send("Go")
    assert model.results(2) == [{"error": "Not here."}]
    # The rule is about the helper's function, and switches nothing of the clerk's off.
    assert model.results(3)[0] == "gone"


async def test_a_rule_applies_to_the_calls_of_a_script(tmp_path: Path) -> None:
    rules = around("slack-post", before=[{"assert": "false", "error_message": "Not here."}])
    script = call(("run_script", {"expression": "slack_post({'text': 'hi'})"}))
    async with at_work(tmp_path, f"script: true{POSTING}", script, "Done.", server={"policy": rules}) as desk:
        await desk.say("Go")
        assert "Not here." in str(desk.model.results())
        assert (await desk.context()).capabilities["slack_post"].count_restricted == 1


# What the next step sees


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("made", ["'Found: ' + output.message[0].text", "{'message': ['Found it.']}"])
async def test_a_step_after_a_transform_sees_parts(kind: str, made: str, tmp_path: Path) -> None:
    example = load_policy(EXAMPLE).guardrails.after[0]
    rules = after({"transform": made}, {"assert": str(example.assert_), "error_message": "A card."})
    async with posting(kind, tmp_path, rules, answer="posted") as scene:
        result = await scene.client.send("hi")
        assert result.text in ("Found: posted", "Found it.")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("on_fail", ["lock_task", "continue"])
async def test_a_redaction_after_a_transform_redacts(kind: str, on_fail: str, tmp_path: Path) -> None:
    found = "output.message.exists(part, part.text.matches('[0-9]{16}'))"
    rules = after(
        {"transform": f"'{CARD}'"},
        {"transform": "'(hidden)'", "condition": found, "on_fail": on_fail},
    )
    async with posting(kind, tmp_path, rules) as scene:
        assert (await scene.client.send("hi")).text == "(hidden)"


@pytest.mark.parametrize("kind", ["worker", "function", "executor"])
async def test_what_a_transform_does_not_give_is_still_seen(kind: str, tmp_path: Path) -> None:
    look = "!has(input.metadata) || input.metadata.trace != 'secret'"
    rules = policy(
        guardrails={"before": [{"transform": "{'message': ['hi']}"}, {"assert": look, "error_message": "No."}]}
    )
    async with posting(kind, tmp_path, rules) as scene:
        message = Message(message_id="m", role=Role.USER, parts=[Part(text="hi")], metadata={"trace": "secret"})
        result = await scene.client.send(message)
        assert (result.state, result.text) == ("rejected", "No.")


EXPOSING = f"""{AGENT}
exposes:
  answer: output.message[0].text
  asked: input.message[0].text
"""


def exposed(task: Any) -> Any:
    return task.status.message.parts[1].data["exposes"]


@pytest.mark.parametrize(
    "steps",
    [
        [{"transform": "'(hidden)'"}],
        [{"transform": "{'message': ['(hidden)']}"}],
        [{"transform": "output.put('message', ['(hidden)'])"}],
        [{"transform": "'(hidden)'"}, {"assert": "output.answer == '(hidden)'"}],
    ],
)
async def test_exposed_values_follow_the_transformed_output(tmp_path: Path, steps: list[dict[str, str]]) -> None:
    async with at_work(tmp_path, EXPOSING, f"It is {CARD}.", server={"policy": after(*steps)}) as desk:
        task = await desk.say("hello")
        assert (task.status.state.short, told(task)) == ("input-required", "(hidden)")
        assert exposed(task) == {"answer": "(hidden)", "asked": "hello"}
        assert CARD not in str(await desk.client.get_task(task.id))


async def test_an_exposed_value_that_a_transform_has_chosen_stays(tmp_path: Path) -> None:
    rules = after({"transform": "output.put('asked', null)"}, {"transform": "'(hidden)'"})
    async with at_work(tmp_path, EXPOSING, f"It is {CARD}.", server={"policy": rules}) as desk:
        assert exposed(await desk.say(CARD)) == {"answer": "(hidden)", "asked": None}


async def test_what_a_transform_has_chosen_outlasts_a_review(tmp_path: Path) -> None:
    rules = after(
        {"transform": "output.put('asked', null)"},
        {"assert": "review('boss@example.com')"},
        {"transform": "'(hidden)'"},
    )
    async with at_work(tmp_path, EXPOSING, f"It is {CARD}.", server={"policy": rules}) as desk:
        await desk.say(CARD)
        assert await desk.answer(True) == "input-required"
        assert exposed(desk.task) == {"answer": "(hidden)", "asked": None}


# Errors at load


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        ("size(input[0].message) < 50000", "input is a map, not a list"),
        ("context.usrs.id != ''", "context has no field 'usrs'"),
        ("input.message[0].text.matches('(a+')", "matches cannot read '(a+'"),
        ("timestamp(now) < timestamp('tomorrow')", "timestamp cannot read 'tomorrow'"),
        ("duration('soon') > duration('1s')", "duration cannot read 'soon'"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_that_would_always_fail_is_refused_at_the_start(
    kind: str, rule: str, problem: str, tmp_path: Path
) -> None:
    rules = policy(guardrails={"before": [{"assert": rule}]})
    with pytest.raises(ConfigurationError) as caught:
        serve(poster(kind, tmp_path, "slack-post", ""), policy=rules)
    assert problem in str(caught.value)


async def test_the_length_of_texts_is_bounded_as_the_error_says(tmp_path: Path) -> None:
    rule = "input.message.all(part, !has(part.text) || size(part.text) < 50000)"
    rules = policy(guardrails={"before": [{"assert": rule, "error_message": "Input too large."}]})
    async with posting("worker", tmp_path, rules) as scene:
        assert (await scene.client.send("hi")).state == "completed"
        assert (await scene.client.send("x" * 50_000)).text == "Input too large."


async def test_the_reason_is_restricted_when_a_transform_makes_no_message(tmp_path: Path) -> None:
    async with at_work(tmp_path, AGENT, "Hello", server={"policy": after({"transform": "{'message': [{}]}"})}) as desk:
        task = await desk.say("Hi")
        assert (task.status.state.short, reason(task)) == ("rejected", "restricted")
