"""Limits: which one was exceeded, and by which numbers."""

from __future__ import annotations

import pytest

from errands.clock import from_iso
from errands.errors import ConfigurationError
from errands.policy.context_object import Context, replay
from errands.policy.limits import (
    Exceeded,
    Limits,
    check_after_model,
    check_age,
    check_before_capability,
    check_before_model,
    parse_duration,
)
from errands.policy.records import ModelCalled
from tests.unit.policy.support import NOW, STARTED, finished, restricted

BEGIN = from_iso(NOW)
ANSWER = ModelCalled(at=NOW, model="m", prompt=60, completion=6)


def test_exactly_as_many_answers_of_the_model_as_allowed_are_possible() -> None:
    limits = Limits(max_turns=2)
    assert check_before_model(limits, replay([STARTED, ANSWER]), BEGIN) is None
    exceeded = check_before_model(limits, replay([STARTED, ANSWER, ANSWER]), BEGIN)
    assert exceeded == Exceeded("max_turns", 2, 3)
    assert exceeded.message == "max_turns is 2 and the task has come to 3"


def test_only_turns_of_the_model_count_as_turns() -> None:
    context = replay([STARTED, finished("slack_post"), finished("slack_post")])
    assert check_before_model(Limits(max_turns=1), context, BEGIN) is None


def test_tokens_are_counted_over_all_answers() -> None:
    context = replay([STARTED, ANSWER, ANSWER])
    assert check_after_model(Limits(max_prompt_tokens=120, max_completion_tokens=12), context) is None
    assert check_after_model(Limits(max_prompt_tokens=119), context) == Exceeded("max_prompt_tokens", 119, 120)
    assert check_after_model(Limits(max_completion_tokens=11), context) == Exceeded("max_completion_tokens", 11, 12)


def test_every_call_of_a_capability_counts_also_those_under_way() -> None:
    limits = Limits(max_tool_calls=3)
    context = replay([STARTED, finished("slack_post", caller="step"), restricted("slack_post")])
    assert check_before_capability(limits, context, BEGIN) is None
    assert check_before_capability(limits, context, BEGIN, under_way=1) == Exceeded("max_tool_calls", 3, 4)


def test_a_task_may_be_as_old_as_allowed_and_not_older() -> None:
    limits, context = Limits(max_age="1h30m"), Context(STARTED)
    age = 90 * 60 * 1000
    assert check_age(limits, context, BEGIN + age) is None
    exceeded = check_age(limits, context, BEGIN + age + 1)
    assert exceeded == Exceeded("max_age", age, age + 1)
    assert exceeded.message == "max_age is 5400000 ms and the task has come to 5400001 ms"
    assert check_before_model(limits, context, BEGIN + age + 1) == exceeded
    assert check_before_capability(limits, context, BEGIN + age + 1) == exceeded


def test_without_limits_nothing_is_exceeded() -> None:
    context = replay([STARTED, ANSWER, finished("slack_post")])
    late = BEGIN + 10**12
    checks = (check_age, check_before_model, check_before_capability)
    assert all(check(Limits(), context, late) is None for check in checks)
    assert check_after_model(Limits(), context) is None


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("30s", 30_000),
        ("2h", 7_200_000),
        ("1h30m", 5_400_000),
        ("1.5h", 5_400_000),
        (".5s", 500),
        ("300ms", 300),
        ("1m0.5s", 60_500),
        ("1500us", 2),
        ("1500µs", 2),
        ("2000000ns", 2),
    ],
)
def test_a_duration_is_numbers_with_units(text: str, milliseconds: int) -> None:
    assert parse_duration(text) == milliseconds


@pytest.mark.parametrize("text", ["", "30", "h", "-1s", "1 h", "1d", "1h30", "abc", "1hh", ".s", "1h\n"])
def test_anything_else_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigurationError, match="write numbers with units"):
        parse_duration(text)
    with pytest.raises(ConfigurationError, match="write numbers with units"):
        Limits(max_age=text)


def test_a_limit_cannot_be_negative() -> None:
    with pytest.raises(ConfigurationError, match="max_turns is -1"):
        Limits(max_turns=-1)
