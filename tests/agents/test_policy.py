"""The policy of a server around an agent that is written down, and around its own limits, guardrails and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from errands import A2AServer, Policy
from errands.agents.models.base import UserSaid
from errands.agents.tools.python import tool
from errands.model.core import SETTLED_STATES
from errands.policy.limits import DEFAULT_LIMITS, Limits, stricter, with_defaults
from errands.policy.records import Decided
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from errands.testing import connect
from tests.agents.rig import ADDING, AGENT, Replies, at_work, call, reason, told
from tests.unit.oversight.support import after, around, before, policy

pytestmark = pytest.mark.anyio


def under(rules: Policy) -> dict[str, Any]:
    return {"server": {"policy": rules}}


async def test_guardrails_look_first_at_what_goes_in(tmp_path: Path) -> None:
    text = f"{AGENT}\nguardrails: {{before: [{{assert: \"input.message[0].text == 'redacted'\"}}]}}"
    redact = before({"transform": "input.put('message', [{'mimeType': 'text/plain', 'text': 'redacted'}])"})
    async with at_work(tmp_path, text, "Fine.", **under(redact)) as desk:
        assert told(await desk.say("my number is 12")) == "Fine."
        decided = [record for record in await desk.records() if isinstance(record, Decided)]
        assert [(record.step, record.outcome, record.policy) for record in decided] == [
            ("policy.guardrails.before[0]", "passed", "v1"),
            ("guardrails.before[0]", "passed", ""),
        ]


async def test_a_text_may_stand_for_a_part_as_it_may_for_any_agent(tmp_path: Path) -> None:
    shout = "{'message': [%s.message[0].text + '!']}"
    rules = policy(guardrails={"before": [{"transform": shout % "input"}], "after": [{"transform": shout % "output"}]})
    async with at_work(tmp_path, AGENT, "Hello", **under(rules)) as desk:
        assert told(await desk.say("Hi")) == "Hello!"
        assert desk.model.questions[0].said == (UserSaid([{"mimeType": "text/plain", "text": "Hi!"}]),)


async def test_guardrails_look_last_at_what_comes_out(tmp_path: Path) -> None:
    text = f"{AGENT}\nguardrails: {{after: [{{transform: \"'made ' + output.message[0].text\"}}]}}"
    refuse = after({"assert": "!output.message[0].text.startsWith('made')", "error_message": "No."})
    async with at_work(tmp_path, text, "up", **under(refuse)) as desk:
        task = await desk.say("hi")
        assert (task.status.state.short, told(task), reason(task)) == ("rejected", "No.", "restricted")


async def test_steps_stand_around_the_calls_of_functions(tmp_path: Path) -> None:
    paid: list[int] = []

    @tool
    async def pay(amount: int) -> str:
        """Pays."""
        paid.append(amount)
        return "paid"

    rule = around("pay", before=[{"assert": "input.amount <= 100", "error_message": "Too much."}])
    replies = (call(("pay", {"amount": 500})), call(("pay", {"amount": 5})), "Done.")
    text = f"{AGENT}\ncapabilities: {{pay: '*'}}"
    async with at_work(tmp_path, text, *replies, tools=[pay], **under(rule)) as desk:
        assert told(await desk.say("pay")) == "Done."
        assert paid == [5]
        assert desk.model.results(1) == [{"error": "Too much."}]


async def test_of_each_limit_the_lower_one_counts(tmp_path: Path) -> None:
    text = f"{AGENT}\nlimits: {{max_turns: 5}}"
    async with at_work(tmp_path, text, "One.", "Two.", **under(policy(limits={"max_turns": 1}))) as desk:
        await desk.say("one")
        task = await desk.say("two")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
        [decided] = [one for one in await desk.records() if isinstance(one, Decided)]
        assert (decided.step, decided.outcome, decided.policy) == ("policy.limits.max_turns", "exceeded", "v1")


async def test_a_model_that_loops_is_stopped_by_the_default_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("errands.policy.limits.DEFAULT_LIMITS", Limits(max_turns=3, max_age="720h"))
    replies = [call(("adder", {"a": number})) for number in range(10)]
    async with at_work(tmp_path, ADDING, *replies) as desk:
        task = await desk.say("add")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
        assert len(desk.model.questions) == 3


def test_default_limits_apply_where_an_agent_sets_none() -> None:
    assert with_defaults(Limits()) == DEFAULT_LIMITS
    assert with_defaults(Limits(max_turns=7, max_prompt_tokens=5)) == Limits(
        max_turns=7, max_prompt_tokens=5, max_tool_calls=DEFAULT_LIMITS.max_tool_calls, max_age=DEFAULT_LIMITS.max_age
    )


def test_limits_are_joined() -> None:
    one = Limits(max_turns=3, max_age="90s", max_tool_calls=7)
    other = Limits(max_turns=5, max_age="1m", max_prompt_tokens=10)
    assert stricter(one, other) == Limits(max_turns=3, max_age="1m", max_tool_calls=7, max_prompt_tokens=10)


HELPED = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: A clerk.
prompt: You are a clerk.
model: test/model
capabilities: {helper: "*"}
---
kind: commonagents.info/v1beta2/agent
namespace: shop
name: helper
description: Helps a clerk.
prompt: You help a clerk.
model: test/model
"""


async def test_agents_that_work_is_handed_to_are_held_to_it_too(tmp_path: Path) -> None:
    (tmp_path / "agents.yaml").write_text(HELPED, "utf-8")
    no_secrets = before({"assert": "!input.message.exists(part, part.text.contains('secret'))", "error_message": "No."})
    model = Replies(call(("helper", {"message": "a secret"})), "It said no.")
    server = A2AServer.from_manifest(tmp_path, model=model, policy=no_secrets, storage="memory")
    async with connect(server) as client:
        result = await client.send("ask your helper")
        assert result.text == "It said no."
        assert "No." in str(model.results(1))


async def test_another_version_decides_anew_what_waits_for_a_review(tmp_path: Path) -> None:
    noted: list[str] = []

    @tool
    async def note(what: str) -> str:
        """Notes something."""
        noted.append(what)
        return "noted"

    text = f"""{AGENT}
capabilities: {{note: "*"}}
guardrails:
  after:
    - invoke: note:note
      bindings: {{what: "'an answer'"}}
"""
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    asks = after({"assert": "size(output.message) > 0"}, {"assert": "review('carol')"})
    refuses = after({"assert": "false", "error_message": "No more."}, {"assert": "review('carol')"}, version="v2")
    async with at_work(tmp_path, text, "A secret.", tools=[note], storage=storage, **under(asks)) as desk:
        task = await desk.say("Hi")
    async with at_work(tmp_path, text, tools=[note], storage=storage, **under(refuses)) as desk:
        await ReviewDesk(Journal(desk.server.engine)).answer(task.id, True, by="carol")
        stored = await desk.server.engine.wait_for_state(task.id, desk.server.scope(), SETTLED_STATES, None)
        assert (stored.state.short, told(stored.task)) == ("rejected", "No more.")
        assert noted == ["an answer"]
