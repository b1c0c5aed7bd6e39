"""Steps as they are written: every rule for them, with its message."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.policy.steps import Phase, Step, StepConfig, StepError, compile_steps

CAPABILITY = [Phase.BEFORE_FIRST, Phase.BEFORE, Phase.AFTER]
GUARDRAILS = [Phase.GUARDRAIL_BEFORE, Phase.GUARDRAIL_AFTER]


def compiled(phase: Phase = Phase.BEFORE, **fields: Any) -> Step:
    return compile_steps(phase, [msgspec.convert(fields, StepConfig)]).steps[0]


def refused(phase: Phase = Phase.BEFORE, **fields: Any) -> StepError:
    with pytest.raises(StepError) as caught:
        compiled(phase, **fields)
    return caught.value


@pytest.mark.parametrize("fields", [{"assert": "true"}, {"invoke": "git:pull"}, {"transform": "{}"}])
def test_a_step_has_one_action(fields: dict[str, Any]) -> None:
    assert compiled(**fields).action == next(iter(fields))


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, "none of them"),
        ({"condition": "true"}, "none of them"),
        ({"assert": "true", "transform": "1"}, "assert and transform"),
        ({"assert": "true", "invoke": "a:b", "transform": "1"}, "assert and invoke and transform"),
    ],
)
def test_no_action_or_several_are_refused(fields: dict[str, Any], found: str) -> None:
    error = refused(**fields)
    assert error.field == "before[0]"
    assert error.problem == f"a step has exactly one of assert, invoke and transform; this one has {found}"


@pytest.mark.parametrize("action", [{"assert": "true"}, {"transform": "1"}])
def test_bindings_are_for_invoke_only(action: dict[str, Any]) -> None:
    assert refused(**action, bindings={"a": "1"}).field == "before[0].bindings"
    assert set(compiled(invoke="git:pull", bindings={"a": "input.x"}).bindings) == {"a"}


@pytest.mark.parametrize("phase", GUARDRAILS)
def test_a_guardrail_cannot_block(phase: Phase) -> None:
    error = refused(phase, **{"assert": "true", "on_fail": "block"})
    assert str(error) == f"{phase.value}[0].on_fail: a guardrail cannot block; use lock_task or continue"


@pytest.mark.parametrize(
    ("phases", "default"), [(CAPABILITY, "block"), (GUARDRAILS, "lock_task")], ids=["capability", "guardrails"]
)
def test_what_a_failure_does_has_a_default(phases: list[Phase], default: str) -> None:
    assert {compiled(phase, **{"assert": "true"}).on_fail for phase in phases} == {default}
    assert {compiled(phase, **{"assert": "true", "on_fail": "continue"}).on_fail for phase in phases} == {"continue"}


@pytest.mark.parametrize("target", ["git", "git:", ":pull", ""])
def test_invoke_names_a_tool_and_a_capability(target: str) -> None:
    assert refused(invoke=target).problem == f"{target!r} does not name a capability; write tool-name:capability_name"


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"assert": "1 +"}, "assert", "Syntax error"),
        ({"assert": "'text'"}, "assert", "true or false"),
        ({"assert": "output.ok"}, "assert", "'output' is not available in a before step"),
        ({"transform": "nothing"}, "transform", "'nothing' is not available"),
        ({"invoke": "git:pull", "bindings": {"x": "buoyant-systems"}}, "bindings.x", "'buoyant' is not available"),
        ({"assert": "true", "condition": "3"}, "condition", "true or false"),
        ({"assert": "true", "condition": "review('bob')"}, "condition", "'review' is not available"),
        ({"assert": "true", "error_message": "{"}, "error_message", "without"),
        ({"assert": "true", "error_message": "{output.x}"}, "error_message", "'output' is not available"),
    ],
)
def test_every_expression_is_checked_at_load(fields: dict[str, Any], field: str, problem: str) -> None:
    error = refused(**fields)
    assert error.field == f"before[0].{field}"
    assert problem in error.problem


def test_the_place_of_a_step_is_told() -> None:
    with pytest.raises(StepError, match=r"^after\[1\]: a step has exactly one"):
        compile_steps(Phase.AFTER, [StepConfig(transform="output"), StepConfig()])


@pytest.mark.parametrize(
    "fields", [{"assert": "true", "on_fail": "explode"}, {"assert": "true", "unknown": 1}, {"assert": True}]
)
def test_fields_and_values_that_do_not_exist_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(fields, StepConfig)
