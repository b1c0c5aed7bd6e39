"""Scripts of the model in a whole server: their calls go the same way as all calls, and are made once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from errands.agents.models.base import FunctionCall
from errands.policy.cel.evaluators import Evaluators
from errands.policy.records import CapabilityErrored, CapabilityFinished, CapabilityRestricted
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from tests.agents.rig import at_work, call, reason
from tests.agents.shop import Shop, agent

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def evaluators(anyio_backend: str) -> AsyncIterator[Evaluators]:
    made = Evaluators(timeout=20, most=1)
    yield made
    await made.close()


def script(expression: Any) -> Any:
    return call(("run_script", {"expression": expression}))


SCRIPTED = "script: true"


async def test_the_model_is_offered_scripts_only_if_the_agent_says_so(
    tmp_path: Path, shop: Shop, evaluators: Evaluators
) -> None:
    async with at_work(tmp_path, agent(), script("1"), "Hm.", tools=shop.tools, evaluators=evaluators) as desk:
        await desk.say("Find")
        assert [offer.name for offer in desk.model.questions[0].offers] == ["find"]
        assert desk.model.results() == [{"error": "unknown function 'run_script'; available: find"}]
    text = agent("  pay: {bindings: {customer: \"'ann'\"}}", SCRIPTED)
    async with at_work(tmp_path, text, "Hm.", tools=shop.tools, evaluators=evaluators) as desk:
        await desk.say("Find")
        *_, offer = desk.model.questions[0].offers
        assert offer.name == "run_script"
        assert offer.description.endswith(
            "- find({'number': string}): Finds an order.\n- pay({'amount': integer}): Pays money back."
        )


async def test_each_call_of_a_script_goes_the_way_of_all_calls(
    tmp_path: Path, shop: Shop, evaluators: Evaluators
) -> None:
    capabilities = """
  find: {after: [{transform: "{'number': output.number}"}]}
  pay: {bindings: {customer: "'ann'"}, before: [{assert: 'input.amount < 10', error_message: Too much.}]}
"""
    text = agent(capabilities, SCRIPTED).replace("  find: '*'\n", "")
    wanted = "['A-1', 'A-2'].map(n, [find({'number': n}), pay({'amount': 5, 'customer': 'mallory'})])"
    async with at_work(tmp_path, text, script(wanted), "Done.", tools=shop.tools, evaluators=evaluators) as desk:
        await desk.say("Go")
        assert desk.model.results() == [[[{"number": "A-1"}, {"paid": 5}], [{"number": "A-2"}, {"paid": 5}]]]
        assert shop.paid == [{"amount": 5, "customer": "ann"}] * 2
        records = [record for record in await desk.records() if isinstance(record, CapabilityFinished)]
        assert [(record.function, record.caller) for record in records] == [
            ("find", "script"),
            ("pay", "script"),
            ("find", "script"),
            ("pay", "script"),
        ]
        context = await desk.context()
        assert context.invocations == ["find", "pay", "find", "pay"]
        assert context.turns == ["input", "llm", "capability", "llm"]


async def test_what_goes_wrong_in_a_script_is_told_to_the_model(
    tmp_path: Path, shop: Shop, evaluators: Evaluators
) -> None:
    text = agent("  pay: {before: [{assert: 'input.amount < 10', error_message: Too much.}]}\n  audit: '*'", SCRIPTED)
    replies = (
        script("pay({'amount': 50})"),
        script("audit({'what': 'forbidden'})"),
        script("find({'name': 'A-1'})"),
        script("context.user.id"),
        script(5),
        call(FunctionCall("raw", "run_script", None)),
        script("find({'number': 'A-1'}).number"),
        "Done.",
    )
    async with at_work(tmp_path, text, *replies, tools=shop.tools, evaluators=evaluators) as desk:
        await desk.say("Go")
        *errors, found = desk.model.results()
        assert found == "A-1"
        expected = [
            "pay: Too much.",
            "audit: audit failed (reference ",
            "find: number: is missing; name: is unknown",
            "'context' is not available in a capability script",
            "expression: is missing, or not a text",
            "expression: is missing, or not a text",
        ]
        assert [one in error["error"] for one, error in zip(expected, errors, strict=True)] == [True] * 6, errors
        records = await desk.records()
        assert [type(one).__name__ for one in records if isinstance(one, CapabilityRestricted)] == [
            "CapabilityRestricted"
        ]
        assert len([one for one in records if isinstance(one, CapabilityErrored)]) == 2
    assert shop.paid == []


async def test_a_script_cannot_pass_a_limit(tmp_path: Path, shop: Shop, evaluators: Evaluators) -> None:
    text = agent("  pay: '*'", f"{SCRIPTED}\nlimits: {{max_tool_calls: 3}}")
    wanted = "[1, 2, 3, 4, 5].map(n, pay({'amount': n}))"
    async with at_work(tmp_path, text, script(wanted), tools=shop.tools, evaluators=evaluators) as desk:
        task = await desk.say("Pay")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
    assert [paid["amount"] for paid in shop.paid] == [1, 2, 3]


async def test_a_review_inside_of_a_script_suspends_it_and_no_call_is_made_twice(
    tmp_path: Path, shop: Shop, evaluators: Evaluators
) -> None:
    text = agent("  pay: {before: [{assert: \"input.amount < 10 || review('boss')\"}]}", SCRIPTED)
    wanted = "[5, 50, 7].map(n, pay({'amount': n}).paid)"
    async with at_work(tmp_path, text, script(wanted), "Done.", tools=shop.tools, evaluators=evaluators) as desk:
        task = await desk.say("Pay")
        assert task.status.state.short == "input-required"
        assert [paid["amount"] for paid in shop.paid] == [5]
        [review] = await ReviewDesk(Journal(desk.server.engine)).list()
        assert (review.function, review.subject) == ("pay", {"amount": 50, "customer": "nobody"})
        assert await desk.answer(True, by="boss") == "input-required"
        assert [paid["amount"] for paid in shop.paid] == [5, 50, 7]
        assert desk.model.results() == [[5, 50, 7]]


async def test_files_are_passed_on_by_scripts(tmp_path: Path, shop: Shop, evaluators: Evaluators) -> None:
    text = agent("  audit: '*'", f"{SCRIPTED}\nmount: agent")
    home = tmp_path / "files" / "shop" / "clerk"
    home.mkdir(parents=True)
    (home / "a.txt").write_text("x" * 2000)
    wanted = "[file('a.txt'), audit({'what': file('a.txt').path})]"
    async with at_work(tmp_path, text, script(wanted), "Done.", tools=shop.tools, evaluators=evaluators) as desk:
        await desk.say("Look")
        assert desk.model.results() == [["a.txt (text/plain, 2.0 kB)", "noted a.txt"]]
