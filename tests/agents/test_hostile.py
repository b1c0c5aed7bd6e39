"""A model that was talked into something, and tools that answer whatever they like: nothing gets around a policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.agents.rig import at_work, call
from tests.agents.test_loop import ADDING

pytestmark = pytest.mark.anyio

ONCE = ADDING.replace(
    'adder: "*"',
    """adder:
    before:
      - assert: context.capabilities.adder.count_successful < 1
        error_message: Only once.""",
)


async def test_a_call_counts_also_beside_one_of_a_function_that_does_not_exist(tmp_path: Path) -> None:
    twice = [call(("nothing", {}), ("adder", {"a": number})) for number in (1, 2)]
    async with at_work(tmp_path, ONCE, *twice, "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results()[1::2] == [{"sum": 2}, {"error": "Only once."}]
        assert (await desk.context()).meta.invocations == ("adder", "adder")
        adder = (await desk.context()).capabilities["adder"]
        assert (adder.count_successful, adder.count_restricted) == (1, 1)


async def test_a_call_counts_also_beside_a_script(tmp_path: Path) -> None:
    script = ("run_script", {"expression": "1 + 1"})
    text = ONCE.replace("prompt:", "script: true\nprompt:", 1)
    async with at_work(tmp_path, text, call(script, ("adder", {"a": 1})), call(("adder", {"a": 2})), "Done.") as desk:
        await desk.say("Go")
        assert desk.model.results() == [2, {"sum": 2}, {"error": "Only once."}]
