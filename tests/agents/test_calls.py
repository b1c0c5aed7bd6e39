"""What surrounds a call: bindings, steps before and after it, allow and lock; and the same for inputs and answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from errands.agents.loop.calls import MOST_CALLS
from errands.agents.tools.python import tool
from errands.errors import UnsupportedOperationError
from errands.policy.records import Decided, Ended
from tests.agents.rig import AGENT, TOOL, Desk, at_work, call, reason, told
from tests.agents.shop import Shop, agent

pytestmark = pytest.mark.anyio


# Bindings


async def test_a_bound_parameter_is_hidden_injected_and_sealed(tmp_path: Path, shop: Shop) -> None:
    text = agent("  pay: {bindings: {customer: \"'ann'\"}}")
    replies = (call(("pay", {"amount": 5, "customer": "mallory"})), "Paid.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools) as desk:
        await desk.say("Pay")
        offer = next(offer for offer in desk.model.questions[0].offers if offer.name == "pay")
        assert list(offer.parameters["properties"]) == ["amount"]
        assert shop.paid == [{"amount": 5, "customer": "ann"}]


async def test_a_binding_reads_the_output_of_an_earlier_call(tmp_path: Path, shop: Shop) -> None:
    text = agent("  pay: {bindings: {customer: 'context.capabilities.find.outputs.last().number'}}")
    replies = (call(("pay", {"amount": 1})), call(("find", {"number": "A-1"})), call(("pay", {"amount": 2})), "Done.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools) as desk:
        await desk.say("Pay")
        assert desk.model.results(1) == [{"error": "customer: has no value yet; something else has to be done first"}]
        assert shop.paid == [{"amount": 2, "customer": "A-1"}]


async def test_a_binding_reads_the_output_of_an_earlier_call_of_the_same_answer(tmp_path: Path, shop: Shop) -> None:
    text = agent("  pay: {bindings: {customer: 'context.capabilities.find.outputs.last().number'}}")
    both = [(call(("find", {"number": number}), ("pay", {"amount": 1}))) for number in ("A-1", "A-2")]
    async with at_work(tmp_path, text, *both, "Done.", tools=shop.tools) as desk:
        await desk.say("Pay")
        assert [paid["customer"] for paid in shop.paid] == ["A-1", "A-2"]


# Steps before a call

BOUNDED = """  pay:
    before:
      - assert: input.amount <= 100
        error_message: At most 100, not {input.amount}.
"""


async def test_a_blocked_call_is_not_executed_and_the_model_gets_the_message(
    tmp_path: Path, shop: Shop, storage: str
) -> None:
    replies = (call(("pay", {"amount": 500})), call(("pay", {"amount": 50})), "Done.")
    async with at_work(tmp_path, agent(BOUNDED), *replies, tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        assert desk.model.results() == [{"error": "At most 100, not 500."}, {"paid": 50}]
        assert [paid["amount"] for paid in shop.paid] == [50]
        pay = (await desk.context()).capabilities["pay"]
        assert (pay.count_restricted, pay.count_successful) == (1, 1)
        assert (pay.restricted, pay.successful, pay.outputs) == ([True, False], [False, True], [None, {"paid": 50}])
        decided = [record for record in await desk.records() if isinstance(record, Decided)]
        rule = "capabilities.pay.before[0]"
        assert [(one.step, one.outcome) for one in decided] == [(rule, "failed: block"), (rule, "passed")]


async def test_a_call_that_locks_ends_the_task_as_rejected(tmp_path: Path, shop: Shop, storage: str) -> None:
    text = agent(BOUNDED.replace("error_message", "on_fail: lock_task\n        error_message"))
    async with at_work(tmp_path, text, call(("pay", {"amount": 500})), tools=shop.tools, storage=storage) as desk:
        task = await desk.say("Pay")
        assert (task.status.state.short, told(task), reason(task)) == (
            "rejected",
            "At most 100, not 500.",
            "restricted",
        )
        assert shop.paid == []
        assert [one.reason for one in await desk.records() if isinstance(one, Ended)] == ["restricted"]
        with pytest.raises(UnsupportedOperationError):
            await desk.say("Please")


async def test_before_first_runs_first_and_again_until_a_call_was_executed(tmp_path: Path, shop: Shop) -> None:
    text = agent("""  pay:
    before_first:
      - assert: context.capabilities.find.count_successful > 0
        error_message: Find the order first.
    before:
      - assert: input.amount > 0
""")
    replies = (
        call(("pay", {"amount": 1})),
        call(("find", {"number": "A"})),
        call(("pay", {"amount": 0})),
        call(("pay", {"amount": 2})),
        call(("pay", {"amount": 3})),
        "Done.",
    )
    async with at_work(tmp_path, text, *replies, tools=shop.tools) as desk:
        await desk.say("Pay")
        assert [paid["amount"] for paid in shop.paid] == [2, 3]
        steps = [record.step for record in await desk.records() if isinstance(record, Decided)]
        first, every = "capabilities.pay.before_first[0]", "capabilities.pay.before[0]"
        assert steps == [first, first, every, first, every, every]


async def test_a_transform_before_a_call_replaces_arguments_but_never_a_bound_one(tmp_path: Path, shop: Shop) -> None:
    text = agent("""  pay:
    bindings: {customer: "'ann'"}
    before:
      - transform: "{'amount': 7, 'customer': 'mallory'}"
""")
    async with at_work(tmp_path, text, call(("pay", {"amount": 1})), "Done.", tools=shop.tools) as desk:
        await desk.say("Pay")
        assert shop.paid == [{"amount": 7, "customer": "ann"}]


async def test_an_invoke_step_calls_a_tool_once_and_counts(tmp_path: Path, shop: Shop) -> None:
    text = agent("""  pay:
    before:
      - invoke: audit:audit
        bindings: {what: string(input.amount)}
""")
    async with at_work(tmp_path, text, call(("pay", {"amount": 9})), "Done.", tools=shop.tools) as desk:
        await desk.say("Pay")
        context = await desk.context()
        assert context.invocations == ["audit", "pay"]
        assert context.capabilities["audit"].outputs == ["noted 9"]
        assert context.turns == ["input", "llm", "capability", "llm"]
        assert "audit" not in [offer.name for offer in desk.model.questions[0].offers]


async def test_an_invoke_step_that_fails_blocks_the_call(tmp_path: Path, shop: Shop) -> None:
    text = agent("""  pay:
    before:
      - invoke: audit:audit
        bindings: {what: "'forbidden'"}
        error_message: It could not be noted.
""")
    async with at_work(tmp_path, text, call(("pay", {"amount": 9})), "Done.", tools=shop.tools) as desk:
        await desk.say("Pay")
        assert desk.model.results() == [{"error": "It could not be noted."}]
        assert shop.paid == []


# Steps after a call


async def test_a_transform_after_a_call_changes_what_the_model_sees_and_not_the_context(
    tmp_path: Path, shop: Shop
) -> None:
    text = f"{AGENT}\ncapabilities:\n  find:\n    after: [{{transform: \"output.put('card', 'hidden')\"}}]\n"
    async with at_work(tmp_path, text, call(("find", {"number": "A"})), "Done.", tools=shop.tools) as desk:
        await desk.say("Find")
        assert desk.model.results() == [{"number": "A", "card": "hidden"}]
        assert (await desk.context()).capabilities["find"].outputs == [{"number": "A", "card": "4111 1111"}]


async def test_a_call_that_is_blocked_afterwards_has_been_executed(tmp_path: Path, shop: Shop) -> None:
    text = agent("""  pay:
    after:
      - assert: output.paid < 10
        error_message: "{output.paid} was paid, and that is secret."
""")
    async with at_work(tmp_path, text, call(("pay", {"amount": 20})), "Done.", tools=shop.tools) as desk:
        await desk.say("Pay")
        assert desk.model.results() == [{"error": "20 was paid, and that is secret."}]
        assert (await desk.context()).capabilities["pay"].count_successful == 1


# Guardrails


async def test_a_guardrail_that_refuses_an_input_ends_the_task_before_the_model_sees_it(
    tmp_path: Path, shop: Shop, storage: str
) -> None:
    more = """
guardrails:
  before:
    - assert: "!input.message[0].text.contains('password')"
      error_message: No passwords please.
"""
    async with at_work(tmp_path, agent(more=more), "Hello.", tools=shop.tools, storage=storage) as desk:
        await desk.say("Hi")
        task = await desk.say("My password is x")
        assert (task.status.state.short, told(task), reason(task)) == ("rejected", "No passwords please.", "restricted")
        assert len(desk.model.questions) == 1
        assert len((await desk.context()).input) == 2


async def events_of(desk: Desk, text: str) -> list[str]:
    return [str(event.text) async for event in desk.client.stream(text) if event.text]


async def test_an_answer_that_a_guardrail_holds_back_is_never_seen(tmp_path: Path, shop: Shop, storage: str) -> None:
    more = """
guardrails:
  after:
    - assert: "!output.message[0].text.contains('4111') && size(context.output) == 0"
      error_message: The answer was held back.
"""
    async with at_work(tmp_path, agent(more=more), "The card is 4111.", tools=shop.tools, storage=storage) as desk:
        seen = await events_of(desk, "Which card?")
        assert not any("4111" in text for text in seen)
        assert seen[-1] == "The answer was held back."


async def test_the_arriving_input_is_in_the_context_and_the_pending_answer_is_not(tmp_path: Path, shop: Shop) -> None:
    before = "input == context.input.last() && size(context.input) == size(context.output) + 1"
    text = agent(
        more=f"""guardrails:
  before:
    - assert: {before}
  after:
    - assert: size(context.output) == size(context.input) - 1
"""
    )
    async with at_work(tmp_path, text, "One.", "Two.", tools=shop.tools) as desk:
        await desk.say("First")
        assert (await desk.say("Second")).status.state.short == "input-required"


async def test_the_bindings_of_a_step_win_over_those_of_the_capability(tmp_path: Path, shop: Shop) -> None:
    audit = "  audit: {bindings: {what: \"'the capability'\"}}\n"
    before = "  pay: {before: [{invoke: 'audit:audit', bindings: {what: \"'step ' + string(input.amount)\"}}]}"
    async with at_work(
        tmp_path, agent(audit + before), call(("pay", {"amount": 5})), "Paid.", tools=shop.tools
    ) as desk:
        await desk.say("Pay")
        assert (await desk.context()).capabilities["audit"].inputs == [{"what": "step 5"}]


# Limits


async def test_max_turns_lets_exactly_so_many_answers_happen(tmp_path: Path, shop: Shop, storage: str) -> None:
    text = agent(more="limits: {max_turns: 2}\n")
    replies = (call(("find", {"number": "A"})), call(("find", {"number": "B"})), "Never.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools, storage=storage) as desk:
        task = await desk.say("Find")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
        assert "max_turns is 2" in told(task)
        assert len(desk.model.questions) == 2
        assert [one.reason for one in await desk.records() if isinstance(one, Ended)] == ["limit_exceeded"]
        [decided] = [one for one in await desk.records() if isinstance(one, Decided)]
        assert (decided.step, decided.outcome, decided.policy) == ("limits.max_turns", "exceeded", "")


async def test_max_tool_calls_counts_every_call_also_side_by_side(tmp_path: Path, shop: Shop) -> None:
    text = agent(more="limits: {max_tool_calls: 2}\n")
    replies = (call(*(("find", {"number": n}) for n in "ABC")),)
    async with at_work(tmp_path, text, *replies, tools=shop.tools) as desk:
        task = await desk.say("Find")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
        assert len((await desk.context()).invocations) == 2


async def test_max_age_ends_a_task_that_is_still_at_a_call(tmp_path: Path) -> None:
    @tool
    async def linger() -> str:
        """Never returns."""
        await asyncio.Event().wait()
        return ""

    text = f"{AGENT}\nlimits: {{max_age: 300ms}}\ncapabilities:\n  linger: '*'\n"
    async with at_work(tmp_path, text, call(("linger", {})), tools=[linger]) as desk:
        task = await desk.say("Go")
        assert (task.status.state.short, reason(task)) == ("failed", "limit_exceeded")
        assert "max_age" in told(task)
        assert [one.step for one in await desk.records() if isinstance(one, Decided)] == ["limits.max_age"]


# Too many


async def test_of_too_many_calls_in_one_answer_none_is_made_and_the_model_is_told(tmp_path: Path, shop: Shop) -> None:
    wanted = call(*(("find", {"number": str(number)}) for number in range(MOST_CALLS + 50)))
    few = call(*(("find", {"number": str(number)}) for number in range(MOST_CALLS)))
    async with at_work(tmp_path, agent(), wanted, few, "Found.", tools=shop.tools) as desk:
        assert told(await desk.say("Find all.")) == "Found."
        refused = desk.model.results(1)
        assert len(refused) == MOST_CALLS + 1
        assert refused[0] == {"error": "these are too many calls at once, and none was made; make 256 at most"}
        assert len((await desk.context()).invocations) == MOST_CALLS


async def test_a_binding_gives_a_tool_the_mount_of_its_agent(tmp_path: Path) -> None:
    text = f"""{AGENT}
mount: task
capabilities:
  search: {{bindings: {{bucket: "{{mount.bucket}}", prefix: mount.prefix, url: "file://{{mount.bucket}}{{mount.prefix}}"}}}}
{TOOL}
name: search
description: Searches files.
actions:
  - name: search
    description: Searches files.
    parameters: {{properties: {{bucket: {{type: string}}, prefix: {{type: string}}, url: {{type: string}}}}}}
    execute: {{cel: {{expression: "input"}}}}
"""
    async with at_work(tmp_path, text, call(("search", {})), "Found.") as desk:
        task = await desk.say("search")
        bucket, prefix = str((tmp_path / "files").absolute()), f"/shop/clerk/{task.id}/"
        [result] = desk.model.results()
        assert result == {"bucket": bucket, "prefix": prefix, "url": f"file://{bucket}{prefix}"}
