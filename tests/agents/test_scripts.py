"""Scripts of the model in the loop: every call inside goes through the same pipeline, and is made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from errands.agents.tools.functions import tool
from errands.policy.records import CapabilityFinished
from errands.runtime.journal import Journal
from errands.runtime.reviews import ReviewDesk
from tests.agents.rig import AGENT, at_work, call

pytestmark = pytest.mark.anyio

SCRIPTED = AGENT + "\nscript: true\nmount: task\ncapabilities:\n  twice: '*'\n  pay: {before: [BEFORE]}\n"


class Till:
    def __init__(self) -> None:
        self.paid: list[int] = []
        till = self

        @tool
        async def twice(n: int) -> dict[str, int]:
            """Doubles a number."""
            return {"result": 2 * n}

        @tool
        async def pay(amount: int) -> str:
            """Pays."""
            till.paid.append(amount)
            return f"paid {amount}"

        self.tools = [twice, pay]


def agent(before: str = "{assert: input.amount < 100, error_message: Too much.}") -> str:
    return SCRIPTED.replace("BEFORE", before)


def script(source: str) -> tuple[str, dict[str, str]]:
    return ("run_script", {"expression": source})


async def test_a_script_calls_functions_and_puts_their_results_together(tmp_path: Path, storage: str) -> None:
    till = Till()
    replies = (call(script("[1, 2, 3].map(n, twice({'n': n}).result)")), "Done.")
    async with at_work(tmp_path, agent(), *replies, tools=till.tools, storage=storage) as desk:
        await desk.say("Go")
        assert desk.model.questions[0].offers[-1].name == "run_script"
        assert desk.model.results() == [[2, 4, 6]]
        context = await desk.context()
        assert (context.meta.invocations, context.meta.count) == (("twice",) * 3, 3)
        assert context.history.turns == ("input", "llm", "capability", "llm")


async def test_calls_of_a_script_go_through_the_same_steps(tmp_path: Path) -> None:
    till = Till()
    replies = (call(script("pay({'amount': twice({'n': 60}).result})")), "No.")
    async with at_work(tmp_path, agent(), *replies, tools=till.tools) as desk:
        await desk.say("Go")
        assert "Too much." in desk.model.results()[0]["error"]
        assert till.paid == []
        assert (await desk.context()).capabilities["pay"].count_restricted == 1


async def test_calls_of_a_script_count_toward_the_limit(tmp_path: Path) -> None:
    till = Till()
    replies = (call(script("[1, 2, 3].map(n, twice({'n': n}).result)")),)
    async with at_work(tmp_path, agent() + "limits: {max_tool_calls: 2}\n", *replies, tools=till.tools) as desk:
        task = await desk.say("Go")
        assert task.status.state.short == "failed"
        assert (await desk.context()).meta.count == 2


async def test_a_script_that_waits_for_a_review_goes_on_and_repeats_nothing(tmp_path: Path, storage: str) -> None:
    till = Till()
    replies = (call(script("[pay({'amount': 1}), pay({'amount': 2})]")), "Done.")
    text = agent("{assert: \"input.amount < 2 || review('carol')\"}")
    async with at_work(tmp_path, text, *replies, tools=till.tools, storage=storage) as desk:
        task = await desk.say("Go")
        assert (task.status.state.short, till.paid) == ("input-required", [1])
        await ReviewDesk(Journal(desk.server.engine)).answer(task.id, True, by="carol")
        await desk.server.engine.wait_for_state(
            task.id, desk.server.scope(), frozenset({task.status.state}), timeout=20
        )
        assert till.paid == [1, 2]
        finished = [record for record in await desk.records() if isinstance(record, CapabilityFinished)]
        assert [record.caller for record in finished] == ["script", "script"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("context.user.id", "'context' is not available in a capability script"),
        ("twice(1)", "twice() takes one map of arguments"),
        ("file('none.txt')", "none.txt"),
        ("1 +", "Syntax error"),
    ],
)
async def test_what_is_wrong_with_a_script_is_told_to_the_model(tmp_path: Path, source: str, problem: str) -> None:
    async with at_work(tmp_path, agent(), call(script(source)), "Sorry.", tools=Till().tools) as desk:
        assert (await desk.say("Go")).status.state.short == "input-required"
        assert problem in desk.model.results()[0]["error"]


async def test_a_hostile_script_is_stopped_and_the_task_goes_on(tmp_path: Path) -> None:
    loops = "x.contains('b' + x)"
    for name in "pqrst":
        loops = f"[1,2,3,4,5,6,7,8,9].all({name}, {loops})"
    hostile = f"['{'a' * 3000}'].all(x, {loops.replace('x.contains', '!x.contains')})"
    async with at_work(tmp_path, agent(), call(script(hostile)), "Sorry.", tools=Till().tools) as desk:
        assert (await desk.say("Go")).status.state.short == "input-required"
        assert "error" in desk.model.results()[0]
