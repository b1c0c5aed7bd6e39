"""What agents from manifests and functions under a policy count: tokens by model, and calls by outcome."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.rig import ADDING, Desk, at_work, call, say
from tests.agents.shop import Shop, agent

pytestmark = pytest.mark.anyio


def counted(desk: Desk, name: str) -> dict[tuple[str, ...], float]:
    """The values of a metric that are not 0, by its labels."""
    assert desk.server.reporter is not None
    [shown] = desk.server.reporter.exposed()
    return {tuple(one.labels.values()): one.value for one in shown.samples if one.name == name and one.value}


async def test_tokens_are_counted_by_model_and_calls_by_outcome(tmp_path: Path, storage: str) -> None:
    replies = (
        call(("adder", {"a": 1, "b": 2}), prompt_tokens=10, completion_tokens=3),
        call(("adder", {"a": "one"}), prompt_tokens=20, completion_tokens=4),
        say("3", prompt_tokens=30, completion_tokens=5),
    )
    async with at_work(tmp_path, ADDING, *replies, storage=storage) as desk:
        await desk.say("Add")
        assert counted(desk, "errands_model_tokens_total") == {
            ("test/model", "prompt"): 60,
            ("test/model", "completion"): 12,
        }
        assert counted(desk, "errands_tool_calls_total") == {("ok",): 1, ("failed",): 1}


async def test_a_call_that_a_policy_refuses_is_counted_as_refused(tmp_path: Path, shop: Shop) -> None:
    text = agent("  pay: {before: [{assert: input.amount <= 100, error_message: Too much.}]}")
    replies = (call(("pay", {"amount": 500})), call(("pay", {"amount": 5})), "Paid.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools) as desk:
        await desk.say("Pay")
        assert counted(desk, "errands_tool_calls_total") == {("ok",): 1, ("refused",): 1}
