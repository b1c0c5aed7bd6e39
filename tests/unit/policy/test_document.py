"""A policy as Python has it: what can be compiled, and what is refused."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.errors import ConfigurationError
from errands.policy.document import Policy, compile_policy
from errands.policy.steps import Phase


def policy(**fields: Any) -> Policy:
    return msgspec.convert({"version": "1", **fields}, Policy)


def test_steps_are_named_by_their_places() -> None:
    step = {"assert": "true"}
    compiled = compile_policy(
        policy(
            guardrails={"before": [step, step], "after": [step]},
            capabilities={"pay": {"before_first": [step], "before": [step], "after": [step]}},
        )
    )
    assert [found.name for found in compiled.before.steps] == ["guardrails.before[0]", "guardrails.before[1]"]
    assert [found.name for found in compiled.after.steps] == ["guardrails.after[0]"]
    assert [
        found.name
        for phase in (Phase.BEFORE_FIRST, Phase.BEFORE, Phase.AFTER)
        for found in compiled.steps("pay", phase).steps
    ] == ["capabilities.pay.before_first[0]", "capabilities.pay.before[0]", "capabilities.pay.after[0]"]
    assert compiled.steps("search", Phase.BEFORE).steps == ()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"version": " "}, "version: is empty"),
        ({"guardrails": {"before": [{"invoke": "a:b"}]}}, "guardrails.before[0].invoke: a policy has no tools"),
        ({"guardrails": {"after": [{"assert": "true", "match": "x"}]}}, "guardrails.after[0].match: has no meaning"),
        ({"guardrails": {"after": [{"assert": "input == 1"}]}}, "guardrails.after[0].assert: 'input' is not available"),
        (
            {"capabilities": {"pay": {"before": [{"assert": "review('bob')"}]}}},
            "capabilities.pay.before[0].assert: 'review' is not available",
        ),
        ({"guardrails": {"before": [{}]}}, "guardrails.before[0]: a step has exactly one of"),
    ],
)
def test_what_cannot_be_used_is_refused(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        compile_policy(policy(**fields))
    assert str(refused.value).startswith(problem)
