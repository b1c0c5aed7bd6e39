"""Steps at work: what they let through, what they stop, and what they go on with after a restart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from errands.policy.cel import Call, CallFailed, Session, Suspended
from errands.policy.context_object import Context
from errands.policy.records import CapabilityFinished
from errands.policy.steps import (
    Blocked,
    Decision,
    Locked,
    Outcome,
    Passed,
    Phase,
    StepCall,
    StepConfig,
    Steps,
    Subject,
    compile_steps,
    run_steps,
)
from tests.unit.policy.support import NOW, STARTED, said

pytestmark = pytest.mark.anyio


class World:
    """One task with its context, in which steps invoke and ask."""

    def __init__(self, **answers: bool) -> None:
        self.current = Context(STARTED)
        self.answers = answers
        self.invoked: list[StepCall] = []
        self.asked: list[str] = []
        self.session = Session(NOW)

    async def invoke(self, invocation: StepCall) -> Any:
        self.invoked.append(invocation)
        if invocation.capability == "broken":
            raise CallFailed("503")
        function = f"{invocation.tool}_{invocation.capability}"
        record = CapabilityFinished(at=NOW, call=invocation.step, function=function, output="done", caller="step")
        self.current.take(record)
        return "done"

    async def perform(self, call: Call) -> Any:
        self.asked.append(call.arguments[0])
        if call.arguments[0] not in self.answers:
            raise Suspended(call)
        return self.answers[call.arguments[0]]

    def restart(self) -> None:
        self.session = msgspec.json.decode(msgspec.json.encode(self.session), type=Session)

    async def run(self, steps: Steps, **subject: Any) -> Outcome:
        seen = Subject(context=self.current.plain, **subject)
        return await run_steps(steps, seen, self.session, invoke=self.invoke, perform=self.perform)


def steps_of(phase: Phase, *configs: dict[str, Any]) -> Steps:
    return compile_steps(phase, [msgspec.convert(config, StepConfig) for config in configs])


async def outcome(phase: Phase, *configs: dict[str, Any], **subject: Any) -> Outcome:
    return await World().run(steps_of(phase, *configs), **subject)


async def test_no_steps_pass_the_value_on() -> None:
    assert await outcome(Phase.BEFORE, input={"a": 1}) == Passed({"a": 1})
    assert await outcome(Phase.AFTER, input={"a": 1}, output="x") == Passed("x")


async def test_an_assert_that_holds_passes() -> None:
    result = await outcome(Phase.BEFORE, {"assert": "input.a == 1"}, input={"a": 1})
    assert result == Passed({"a": 1}, False, (Decision("before[0]", "assert", "passed"),))


async def test_an_assert_that_does_not_hold_blocks_and_stops_the_rest() -> None:
    result = await outcome(
        Phase.BEFORE,
        {"assert": "input.a > 1", "error_message": "{input.a} is too little for {context.user.id}"},
        {"assert": "true"},
        input={"a": 1},
    )
    assert isinstance(result, Blocked)
    assert result.message == "1 is too little for ann"
    assert result.decisions == (Decision("before[0]", "assert", "failed", "block", "the assertion is false"),)


async def test_without_a_message_the_model_hears_which_step_it_was_and_nothing_of_the_rule() -> None:
    result = await outcome(Phase.BEFORE, {"assert": "input.secret == 'x'"}, input={"secret": ""})
    assert isinstance(result, Blocked)
    assert result.message == "refused by policy (before[0])"


@pytest.mark.parametrize("phase", [Phase.BEFORE_FIRST, Phase.BEFORE, Phase.AFTER])
async def test_a_capability_blocks_by_default(phase: Phase) -> None:
    assert isinstance(await outcome(phase, {"assert": "false"}, input={}), Blocked)


@pytest.mark.parametrize("phase", [Phase.GUARDRAIL_BEFORE, Phase.GUARDRAIL_AFTER])
async def test_a_guardrail_locks_by_default_and_the_caller_gets_its_message(phase: Phase) -> None:
    result = await outcome(phase, {"assert": "false", "error_message": "not here, {context.user.id}"}, input=said("x"))
    assert isinstance(result, Locked)
    assert result.message == "not here, ann"


async def test_lock_task_ends_the_task_from_a_capability_too() -> None:
    assert isinstance(await outcome(Phase.BEFORE, {"assert": "false", "on_fail": "lock_task"}, input={}), Locked)


async def test_continue_goes_on_after_a_failure_and_keeps_it_in_the_decisions() -> None:
    result = await outcome(
        Phase.BEFORE, {"assert": "false", "on_fail": "continue"}, {"transform": "{'b': 2}"}, input={"a": 1}
    )
    assert isinstance(result, Passed)
    assert result.value == {"b": 2}
    assert [(d.step, d.outcome, d.on_fail) for d in result.decisions] == [
        ("before[0]", "failed", "continue"),
        ("before[1]", "passed", None),
    ]


@pytest.mark.parametrize(
    "step",
    [
        {"assert": "input.nothing"},
        {"assert": "input.a"},
        {"assert": "true", "condition": "input.nothing"},
        {"transform": "{'b': input.nothing}"},
        {"invoke": "git:pull", "bindings": {"x": "input.nothing"}},
    ],
)
async def test_an_error_in_an_expression_fails_the_step_closed(step: dict[str, Any]) -> None:
    result = await outcome(Phase.BEFORE, step, input={"a": 1})
    assert isinstance(result, Blocked)
    assert result.decisions[0].outcome == "error"
    assert "in `" in result.decisions[0].detail
    assert "`" not in result.message


async def test_an_error_in_a_message_does_not_open_the_gate() -> None:
    result = await outcome(Phase.BEFORE, {"assert": "false", "error_message": "{input.nothing}"}, input={})
    assert isinstance(result, Blocked)
    assert result.message == "refused by policy (before[0])"
    assert "error_message: Key not found" in result.decisions[0].detail


async def test_a_step_for_another_capability_is_skipped_without_a_trace() -> None:
    step = {"assert": "false", "match": "write_file"}
    assert await outcome(Phase.BEFORE, step, input={}, action="read_file") == Passed({})
    assert isinstance(await outcome(Phase.BEFORE, step, input={}, action="write_file"), Blocked)


async def test_a_step_can_match_what_was_discovered_or_what_it_was_discovered_by() -> None:
    for name in ("delete-pet", "all"):
        step = {"assert": "false", "match": name}
        assert isinstance(await outcome(Phase.BEFORE, step, action="all", operation="delete-pet"), Blocked)
    step = {"assert": "false", "match": "delete-pet"}
    assert isinstance(await outcome(Phase.BEFORE, step, action=None, operation="get-pet"), Passed)


async def test_a_step_whose_condition_is_false_is_skipped_without_a_trace() -> None:
    step = {"assert": "false", "condition": "input.a > 1"}
    assert await outcome(Phase.BEFORE, step, input={"a": 1}) == Passed({"a": 1})
    assert isinstance(await outcome(Phase.BEFORE, step, input={"a": 2}), Blocked)


async def test_transforms_after_a_call_replace_what_the_model_sees_one_after_the_other() -> None:
    result = await outcome(
        Phase.AFTER,
        {"transform": "output.put('b', 2)"},
        {"transform": "o.put('c', o.b + 1)"},
        input={},
        output={"a": 1},
    )
    assert isinstance(result, Passed)
    assert (result.value, result.transformed) == ({"a": 1, "b": 2, "c": 3}, True)


async def test_a_transform_before_a_call_replaces_its_arguments_but_never_a_bound_one() -> None:
    result = await outcome(
        Phase.BEFORE,
        {"transform": "{'path': '/safe', 'token': 'stolen', 'extra': 1}"},
        {"assert": "input.token == 'sealed' && input.path == '/safe'"},
        input={"path": "/x", "token": "sealed", "old": True},
        bound=frozenset({"token", "absent"}),
    )
    assert isinstance(result, Passed)
    assert result.value == {"path": "/safe", "token": "sealed", "extra": 1}


async def test_a_transform_cannot_take_or_give_a_bound_argument() -> None:
    result = await outcome(
        Phase.BEFORE, {"transform": "{'absent': 1}"}, input={"a": 1}, bound=frozenset({"a", "absent"})
    )
    assert isinstance(result, Passed)
    assert result.value == {"a": 1}


@pytest.mark.parametrize(
    ("phase", "source"),
    [(Phase.BEFORE, "'text'"), (Phase.BEFORE, "[1]"), (Phase.GUARDRAIL_BEFORE, "{}"), (Phase.GUARDRAIL_BEFORE, "1")],
)
async def test_a_transform_that_gives_no_arguments_or_no_input_fails(phase: Phase, source: str) -> None:
    result = await outcome(phase, {"transform": source}, input=said("x"))
    assert isinstance(result, Blocked | Locked)


async def test_guardrails_transform_input_and_answer() -> None:
    result = await outcome(Phase.GUARDRAIL_BEFORE, {"transform": "input.put('tag', 1)"}, input=said("x"))
    assert isinstance(result, Passed)
    assert result.value == said("x", tag=1)
    result = await outcome(Phase.GUARDRAIL_AFTER, {"transform": "output.put('tag', 1)"}, output=said("y"))
    assert isinstance(result, Passed)
    assert result.value == said("y", tag=1)


async def test_an_invoke_gets_its_bindings_and_later_steps_see_its_record() -> None:
    world = World()
    steps = steps_of(
        Phase.BEFORE,
        {"assert": "context.capabilities._meta.count == 0"},
        {"invoke": "git:pull", "bindings": {"path": "input.path", "depth": "1"}},
        {"assert": "context.capabilities.git_pull.outputs[0] == 'done'"},
    )
    assert isinstance(await world.run(steps, input={"path": "/a"}), Passed)
    assert world.invoked == [StepCall("before[1]", "git", "pull", {"path": "/a", "depth": 1})]


async def test_an_invoke_that_fails_fails_the_step() -> None:
    result = await outcome(Phase.BEFORE, {"invoke": "git:broken"}, input={})
    assert isinstance(result, Blocked)
    assert result.decisions[0].detail == "503"


@pytest.mark.parametrize(("answer", "expected"), [(True, Passed), (False, Blocked)])
async def test_a_review_lets_pass_or_blocks(answer: bool, expected: type[Outcome]) -> None:
    world = World(bob=answer)
    steps = steps_of(Phase.BEFORE, {"assert": "input.amount <= 100 || review('bob')"})
    assert isinstance(await world.run(steps, input={"amount": 50}), Passed)
    assert world.asked == []
    world.session = Session(NOW)
    assert isinstance(await world.run(steps, input={"amount": 500}), expected)
    assert world.asked == ["bob"]


async def test_after_a_restart_steps_go_on_where_they_waited_and_repeat_nothing() -> None:
    world = World()
    steps = steps_of(
        Phase.BEFORE,
        {"assert": "context.capabilities._meta.count == 0"},
        {"transform": "input.put('seen', now)"},
        {"invoke": "git:pull"},
        {"assert": "review('bob')"},
        {"invoke": "git:push"},
    )
    with pytest.raises(Suspended) as caught:
        await world.run(steps, input={"a": 1})
    for _ in range(2):
        world.restart()
        with pytest.raises(Suspended):
            await world.run(steps, input={"a": 1})
    world.restart()
    world.session.settle(caught.value.call, True)
    result = await world.run(steps, input={"a": 1})
    assert isinstance(result, Passed)
    assert result.value == {"a": 1, "seen": NOW}
    assert [d.step for d in result.decisions] == [f"before[{n}]" for n in range(5)]
    assert [invocation.capability for invocation in world.invoked] == ["pull", "push"]
    world.restart()
    assert await world.run(steps, input={"a": 1}) == result
    assert len(world.invoked) == 2


async def test_two_steps_that_ask_the_same_person_ask_twice() -> None:
    world = World(bob=True)
    steps = steps_of(Phase.BEFORE, {"assert": "review('bob')"}, {"assert": "review('bob')"})
    assert isinstance(await world.run(steps, input={}), Passed)
    assert world.asked == ["bob", "bob"]


async def test_a_guardrail_may_ask_for_a_review() -> None:
    world = World(bob=False)
    steps = steps_of(Phase.GUARDRAIL_AFTER, {"assert": "review('bob')"})
    assert isinstance(await world.run(steps, output=said("x")), Locked)
