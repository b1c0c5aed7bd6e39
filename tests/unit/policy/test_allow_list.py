"""The allow list: values accumulate call by call, and what is bound is sealed when the task starts."""

from __future__ import annotations

from typing import Any

from errands.policy.allow_list import AllowList
from errands.policy.records import AllowListSealed, CapabilityBegan, CapabilityRestricted, decode, encode

AT = "2026-05-20T03:45:00Z"
TOOLS = {"github_read": "github", "github_write": "github", "slack": "slack"}


def call(function: str, **arguments: Any) -> CapabilityBegan:
    return CapabilityBegan(at=AT, call=f"{function}-{arguments}", function=function, arguments=arguments)


def test_values_of_all_actions_of_a_tool_accumulate_once_each() -> None:
    records = [call("github_read", path="a"), call("github_write", path="b"), call("github_read", path="a")]
    assert AllowList(TOOLS, records).values("github", "path") == ["a", "b"]


def test_tools_are_kept_apart() -> None:
    assert AllowList(TOOLS, [call("slack", path="a")]).values("github", "path") == []


def test_a_bound_parameter_is_sealed_to_its_value_at_the_start() -> None:
    sealed = AllowListSealed(at=AT, tools={"github": {"repo": ["errands"], "branch": []}})
    allowed = AllowList(TOOLS, [sealed, call("github_read", repo="errands", branch="main", path="a")])
    assert allowed.values("github", "repo") == ["errands"]
    assert allowed.values("github", "branch") == []
    assert allowed.values("github", "path") == ["a"]


def test_a_call_that_was_not_executed_adds_nothing() -> None:
    stopped = CapabilityRestricted(at=AT, call="x", function="slack", arguments={"text": "a"}, reason="no")
    assert AllowList(TOOLS, [stopped]).values("slack", "text") == []


def test_a_call_by_a_step_adds_nothing() -> None:
    by_step = CapabilityBegan(at=AT, call="x", function="slack", arguments={"text": "a"}, caller="step")
    assert AllowList(TOOLS, [by_step]).values("slack", "text") == []


def test_values_may_be_any_json() -> None:
    records = [call("slack", text={"b": [1], "a": None}), call("slack", text={"a": None, "b": [1]})]
    assert AllowList(TOOLS, records).values("slack", "text") == [{"a": None, "b": [1]}]


def test_what_was_sealed_is_a_record_like_any_other() -> None:
    sealed = AllowListSealed(at=AT, tools={"github": {"repo": ["errands"]}})
    assert decode(encode(sealed)) == sealed
