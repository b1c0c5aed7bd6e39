"""What a policy would have decided about a task that has run."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.policy.document import Policy, compile_policy
from errands.policy.records import (
    AnyRecord,
    CapabilityBegan,
    CapabilityErrored,
    CapabilityFinished,
    CapabilityRestricted,
    Decided,
    InputArrived,
    ModelCalled,
    OutputGiven,
    OutputHeld,
    Started,
)
from errands.policy.replay import RuleVerdict, replay_policy

pytestmark = pytest.mark.anyio


def at(seconds: int) -> str:
    return f"2026-05-20T03:00:{seconds:02}.000Z"


def said(text: str) -> dict[str, Any]:
    return {"message": [{"mimeType": "text/plain", "text": text}]}


def called(call: str, second: int, **arguments: Any) -> dict[str, Any]:
    return {"at": at(second), "call": call, "function": "pay", "arguments": arguments}


def decided(step: str, outcome: str, **fields: Any) -> Decided:
    return Decided(at=at(3), step=step, action="assert", outcome=outcome, **fields)


RECORDS: list[AnyRecord] = [
    Started(at=at(0), agent="clerk", user="ann"),
    InputArrived(at=at(1), values=said("pay bob"), message_id="m1"),
    ModelCalled(at=at(2), model="acme/large", prompt=100, completion=10),
    CapabilityBegan(**called("c1", 3, amount=50)),
    CapabilityFinished(**called("c1", 3, amount=50), output="paid"),
    ModelCalled(at=at(5), model="acme/large", prompt=150, completion=10),
    CapabilityBegan(**called("c2", 6, amount=500)),
    CapabilityErrored(**called("c2", 6, amount=500), error="no money"),
    OutputGiven(at=at(9), values=said("I paid 50.")),
]


async def verdicts(records: list[AnyRecord] = RECORDS, **fields: Any) -> list[RuleVerdict]:
    return await replay_policy(compile_policy(msgspec.convert({"version": "2", **fields}, Policy)), records)


async def told(records: list[AnyRecord] = RECORDS, **fields: Any) -> list[tuple[str, str, str]]:
    return [(verdict.moment, verdict.step, verdict.outcome) for verdict in await verdicts(records, **fields)]


async def test_guardrails_are_asked_about_inputs_and_answers() -> None:
    assert await told(
        guardrails={
            "before": [{"assert": "input.message[0].text.startsWith('pay') && size(context.input) == 1"}],
            "after": [{"assert": "size(context.output) == 0"}, {"assert": "output.message[0].text == ''"}],
        }
    ) == [
        ("input", "guardrails.before[0]", "passed"),
        ("output", "guardrails.after[0]", "passed"),
        ("output", "guardrails.after[1]", "failed: lock_task"),
    ]


async def test_steps_around_calls_see_the_context_of_that_moment() -> None:
    assert await told(
        capabilities={
            "pay": {
                "before_first": [{"assert": "context.capabilities.pay.count_successful == 0"}],
                "before": [{"assert": "input.amount <= 100"}],
                "after": [{"assert": "output == 'paid' && context.capabilities.pay.count_successful == 1"}],
            }
        }
    ) == [
        ("pay", "capabilities.pay.before_first[0]", "passed"),
        ("pay", "capabilities.pay.before[0]", "passed"),
        ("pay", "capabilities.pay.after[0]", "passed"),
        ("pay", "capabilities.pay.before[0]", "failed: block"),
    ]


@pytest.mark.parametrize(("caller", "count"), [("model", 2), ("script", 2), ("step", 0)])
async def test_calls_of_scripts_have_steps_around_them_and_those_of_steps_have_none(caller: str, count: int) -> None:
    fields = {**called("c1", 3, amount=500), "caller": caller}
    records = [*RECORDS[:3], CapabilityBegan(**fields), CapabilityFinished(**fields, output="paid")]
    steps = {"before": [{"assert": "input.amount <= 100"}], "after": [{"assert": "output == ''"}]}
    assert len(await told(records, capabilities={"pay": steps})) == count


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({"max_turns": 1}, [("model acme/large", "limits.max_turns")]),
        ({"max_prompt_tokens": 200}, [("model acme/large", "limits.max_prompt_tokens")]),
        ({"max_completion_tokens": 20}, []),
        ({"max_tool_calls": 1}, [("pay", "limits.max_tool_calls")]),
        ({"max_age": "8s"}, [("output", "limits.max_age")]),
    ],
)
async def test_limits_are_checked_at_their_moments(limits: dict[str, Any], expected: list[tuple[str, str]]) -> None:
    found = await verdicts(limits=limits)
    assert [(verdict.moment, verdict.step) for verdict in found] == expected
    assert all(verdict.outcome == "exceeded" and verdict.stops for verdict in found)


async def test_a_review_is_shown_and_taken_as_approved() -> None:
    assert await told(guardrails={"before": [{"assert": "review('bob') && review('carol')"}]}) == [
        ("input", "guardrails.before[0]", "would ask bob"),
        ("input", "guardrails.before[0]", "would ask carol"),
        ("input", "guardrails.before[0]", "passed"),
    ]


async def test_what_was_decided_stands_beside_it() -> None:
    records = [
        *RECORDS[:2],
        decided("guardrails.before[0]", "passed", policy="1"),
        CapabilityRestricted(**called("c1", 3, amount=50), reason="no"),
        decided("policy.capabilities.pay.before[0]", "failed: block", policy="1", call="c1"),
        decided("guardrails.before[1]", "passed"),
    ]
    found = await verdicts(
        records,
        guardrails={"before": [{"assert": "true"}, {"assert": "true"}]},
        capabilities={"pay": {"before": [{"assert": "true"}]}},
    )
    assert [(verdict.step, verdict.was, verdict.differs) for verdict in found] == [
        ("guardrails.before[0]", "passed", False),
        ("guardrails.before[1]", None, True),
        ("capabilities.pay.before[0]", "failed: block", True),
    ]


async def test_an_answer_that_was_held_back_is_looked_at_once() -> None:
    held = OutputHeld(at=at(8), values=said("I paid 50."), turn={})
    records = [*RECORDS[:-1], held, RECORDS[-1]]
    assert await told(records, guardrails={"after": [{"assert": "true"}]}) == [
        ("output", "guardrails.after[0]", "passed")
    ]


async def test_a_task_without_records_cannot_be_replayed() -> None:
    with pytest.raises(ValueError, match="no records"):
        await verdicts([])


async def test_a_call_that_began_twice_counts_once() -> None:
    """It was decided anew, because the agent had been rewritten in between."""
    anew = [*RECORDS[:4], CapabilityBegan(**called("c1", 4, amount=50), form="f"), RECORDS[4]]
    assert await told(anew, limits={"max_tool_calls": 1}) == []
