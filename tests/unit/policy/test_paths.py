"""What an expression names must be able to exist, and its literals must be readable: known before any evaluation."""

from __future__ import annotations

from typing import Any

import pytest

from errands.policy import cel
from errands.policy.cel import CelError, NameScope, scopes
from errands.policy.cel.syntax import CONTEXT, RECORD, Shape
from errands.policy.context_object import Context
from errands.policy.records import CapabilityFinished, InputArrived, ModelCalled, OutputGiven, Started

AT = "2026-05-20T03:45:00Z"


def names(value: Any, shape: Shape) -> Any:
    """All names in a value as far down as the shape knows them."""
    if isinstance(shape, dict):
        return {name: names(one, shape.get(name, getattr(shape, "rest", None))) for name, one in value.items()}
    return [] if isinstance(shape, list) else None


def test_the_shape_of_the_context_is_that_of_a_context() -> None:
    current = Context(Started(at=AT, agent="a", user="u", model="m", functions=(), delegations=("d",)))
    call = CapabilityFinished(at=AT, call="1", function="d", arguments={}, output=1)
    message: dict[str, Any] = {"message": []}
    current.take(
        InputArrived(at=AT, values=message, message_id="1"),
        ModelCalled(at=AT, model="m"),
        call,
        OutputGiven(at=AT, values=message),
    )
    expected = names(CONTEXT, CONTEXT)
    expected["capabilities"]["d"] = names(RECORD, RECORD)
    assert names(dict(current.plain()), CONTEXT) == expected


def problem_of(source: str, scope: NameScope = scopes.AFTER) -> str:
    with pytest.raises(CelError) as caught:
        cel.compile(scope, source)
    return caught.value.problem


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("context.usrs.id", "context has no field 'usrs'"),
        ("context['usrs']", "context has no field 'usrs'"),
        ("c.usrs", "context has no field 'usrs'"),
        ("has(context.usrs)", "context has no field 'usrs'"),
        ("true || context.usrs.id == 1", "context has no field 'usrs'"),
        ("[1].exists(x, c.usrs == x)", "context has no field 'usrs'"),
        ("context.input.message", "context.input is a list and has no field 'message'"),
        ("context.input[0].message.text", "context.input[…].message is a list and has no field 'text'"),
        ("c.cap.find.count", "context.capabilities.find has no field 'count'"),
        ("c.cap.find.inputs.amount", "context.capabilities.find.inputs is a list and has no field 'amount'"),
        ("input[0]", "input is a map and has no item by number"),
        ("context[0]", "context is a map and has no item by number"),
    ],
)
def test_a_path_that_leads_nowhere_is_an_error(source: str, problem: str) -> None:
    assert problem_of(source) == problem


def test_an_input_or_output_of_the_agent_is_a_map_with_a_message() -> None:
    assert problem_of("size(i[0].message) < 50000", scopes.GUARDRAIL_BEFORE) == "input is a map, not a list"
    assert problem_of("o[0]", scopes.GUARDRAIL_AFTER) == "output is a map, not a list"
    assert problem_of("output.message.text", scopes.EXPOSES) == "output.message is a list and has no field 'text'"


@pytest.mark.parametrize(
    "source",
    [
        "context.input[0].anything == context.output.last().message[0].text",
        "context[input.name] == 1 && input[input.name] == 1 && context.input[input.index].a == 1",
        "output.list.exists(c, c.usrs == 1) && output.list.all(i, i[0] == 1)",
        "output.context.usrs == 'context.usrs' && output[0] == 1",
        "has(context.capabilities.find) && 'find' in c.cap && context.capabilities.find.task_ids[0] == ''",
        "context.input.size() + size(context.output) > 0 && context.input.exists(one, one.x == 1)",
    ],
)
def test_a_path_that_may_exist_is_none(source: str) -> None:
    cel.compile(scopes.AFTER, source)


@pytest.mark.parametrize(
    "source",
    [
        "input.a.matches('(a+')",
        "matches(input.a, '(a+')",
        "input.a.matches('(a' + '+')",
        r"input.a.matches(r'\p{Nothing}')",
        "input.list.exists(x, x.matches('[z-a]'))",
        "timestamp('2026-13-01T00:00:00Z') < timestamp(now)",
        "duration('5 parsecs') > duration('1s')",
        "input.a == int('x')",
        "input.a == double('x') || input.b == bool('maybe')",
    ],
)
def test_a_literal_that_can_never_be_read_is_an_error(source: str) -> None:
    assert " cannot read " in problem_of(source)


@pytest.mark.parametrize(
    "source",
    [
        r"input.a.matches('(?i)password *[:=]') || input.a.matches(r'\d{3},\d')",
        "input.a.matches(input.b) || input.a.matches('(' + input.b)",
        "timestamp(now) - timestamp('2026-05-20T03:45:00Z') > duration('1h30m')",
        "int('12') + int(input.a) + int(timestamp(now).getFullYear()) > 0",
        "input.a == 'matches(' || input.a == 'duration(\"x\")'",
    ],
)
def test_a_literal_that_can_be_read_is_none(source: str) -> None:
    cel.compile(scopes.AFTER, source)
