"""A policy of the operator on agents that are written down: its steps come first, and the tighter limits hold."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from errands.agents.tools.functions import tool
from errands.policy.document import CapabilitySteps, GuardrailSteps, Policy
from errands.policy.limits import Limits, tighter
from errands.policy.records import Decided
from errands.policy.steps import StepConfig
from tests.agents.rig import AGENT, at_work, call

pytestmark = pytest.mark.anyio

PAYING = AGENT + "\nlimits: {max_turns: 9}\ncapabilities:\n  pay: {before: [{assert: input.amount < 100}]}\n"


@tool
async def pay(amount: int) -> int:
    """Pays."""
    return amount


def policy(source: str, max_turns: int | None = None) -> Policy:
    step = StepConfig(assert_=source, error_message="Not today.")
    return Policy(version="7", limits=Limits(max_turns=max_turns), capabilities={"pay": CapabilitySteps(before=[step])})


async def test_steps_of_a_policy_come_before_those_of_the_manifest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "errands.policy")
    replies = (call(("pay", {"amount": 60})), call(("pay", {"amount": 40})), "Done.")
    server = {"policy": policy("input.amount < 50")}
    async with at_work(tmp_path, PAYING, *replies, tools=[pay], server=server) as desk:
        await desk.say("Pay")
        assert desk.model.results() == [{"error": "Not today."}, 40]
        decided = [record for record in await desk.records() if isinstance(record, Decided)]
        assert [(one.step, one.outcome, one.policy) for one in decided] == [
            ("policy.before[0]", "failed: block", "7"),
            ("policy.before[0]", "passed", "7"),
            ("before[0]", "passed", ""),
        ]
    assert any("policy.before[0] failed: block, policy 7" in record.message for record in caplog.records)


async def test_guardrails_of_a_policy_hold_for_a_manifest(tmp_path: Path) -> None:
    step = StepConfig(assert_="size(input.message[0].text) < 5", error_message="Shorter.")
    server = {"policy": Policy(version="1", guardrails=GuardrailSteps(before=[step]))}
    async with at_work(tmp_path, PAYING, tools=[pay], server=server) as desk:
        task = await desk.say("Far too long")
        assert task.status.state.short == "rejected"


async def test_the_tighter_limit_holds(tmp_path: Path) -> None:
    replies = (call(("pay", {"amount": 1})), "Never.")
    async with at_work(tmp_path, PAYING, *replies, tools=[pay], server={"policy": policy("true", max_turns=1)}) as desk:
        task = await desk.say("Pay")
        assert task.status.state.short == "failed"
        assert len(desk.model.questions) == 1


def test_of_two_limits_the_tighter_one_is_kept() -> None:
    one, other = Limits(max_turns=3, max_age="1h"), Limits(max_turns=5, max_age="90s", max_tool_calls=2)
    assert tighter(one, other) == Limits(max_turns=3, max_age="90s", max_tool_calls=2)
    assert tighter(Limits(), Limits()) == Limits()
