"""`review(user)` in a policy: the task waits for that user, and goes on from where it stood."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from errands import BearerTokenMiddleware
from errands.engines.memory import MemoryEngine
from errands.engines.sqlite import SQLiteEngine
from errands.model.base import encode
from errands.model.core import SETTLED_STATES
from errands.policy.records import Answered, CapabilityBegan, InputArrived, Waiting
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from errands.testing import ManualClock
from tests.agents.rig import AGENT, Desk, at_work, call, told
from tests.agents.shop import Shop, agent
from tests.unit.reviews.support import People, verify
from tests.unit.support import said

pytestmark = pytest.mark.anyio

REVIEWED = """  pay:
    before:
      - assert: input.amount <= 100 || review('boss@example.com')
        error_message: The boss says no.
"""


async def subjects(desk: Desk) -> list[Any]:
    return [(review.user, review.subject) for review in await ReviewDesk(Journal(desk.server.engine)).list()]


async def test_a_call_waits_for_the_reviewer_and_is_made_once(tmp_path: Path, shop: Shop, storage: str) -> None:
    replies = (call(("find", {"number": "A-1"}), ("pay", {"amount": 500})), "Paid.")
    async with at_work(tmp_path, agent(REVIEWED), *replies, tools=shop.tools, storage=storage) as desk:
        task = await desk.say("Pay")
        assert task.status.state.short == "input-required"
        ((user, subject),) = await subjects(desk)
        assert user == "boss@example.com"
        assert subject["amount"] == 500
        assert shop.paid == []
        assert await desk.answer(True) == "input-required"
        assert told(desk.task or task) == "Paid."
        assert [paid["amount"] for paid in shop.paid] == [500]
        assert len(desk.model.questions) == 2
        known = await desk.records()
    assert [record.function for record in known if isinstance(record, CapabilityBegan)] == ["find", "pay"]
    assert len([record for record in known if isinstance(record, InputArrived)]) == 1
    assert len([record for record in known if isinstance(record, Waiting)]) == 1
    assert [record.value for record in known if isinstance(record, Answered)] == [True]


async def test_a_denied_call_is_not_made_and_the_model_is_told(tmp_path: Path, shop: Shop, storage: str) -> None:
    replies = (call(("pay", {"amount": 500})), "The boss does not want it.")
    async with at_work(tmp_path, agent(REVIEWED), *replies, tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        await desk.answer(False)
        assert desk.model.results() == [{"error": "The boss says no."}]
        assert shop.paid == []


async def test_a_reviewer_sees_what_earlier_steps_have_made_of_it(tmp_path: Path, shop: Shop, storage: str) -> None:
    text = agent(
        """  pay:
    before_first:
      - transform: input.put('customer', 'ann')
    before:
      - transform: input.put('amount', 999)
      - assert: review('boss@example.com')
    after:
      - transform: "{'paid': 'hidden'}"
      - assert: review('auditor')
""",
        """guardrails:
  before:
    - transform: "{'message': ['Pay politely']}"
    - assert: review('boss@example.com')
  after:
    - transform: "'Paid politely.'"
    - assert: review('auditor')
""",
    )
    replies = (call(("pay", {"amount": 1, "customer": "mallory"})), "Paid.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        seen = await subjects(desk)
        for reviewer in ("boss@example.com", "boss@example.com", "auditor"):
            await desk.answer(True, by=reviewer)
            seen += await subjects(desk)
        assert await desk.answer(True, by="auditor") == "input-required"
    assert seen == [
        ("boss@example.com", {"message": [{"mimeType": "text/plain", "text": "Pay politely"}]}),
        ("boss@example.com", {"amount": 999, "customer": "ann"}),
        ("auditor", {"paid": "hidden"}),
        ("auditor", {"message": [{"mimeType": "text/plain", "text": "Paid politely."}]}),
    ]
    assert shop.paid == [{"amount": 999, "customer": "ann"}]


async def test_what_was_reviewed_is_what_is_executed_though_a_binding_would_now_give_something_else(
    tmp_path: Path, shop: Shop, storage: str
) -> None:
    text = agent(
        """  pay:
    bindings:
      amount: "size(context.capabilities.audit.outputs) > 0 ? 500 : 5"
    before:
      - invoke: audit:audit
        bindings: {what: "'a payment'"}
      - assert: review('boss@example.com')
"""
    )
    replies = (call(("pay", {"customer": "ann"})), "Paid.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        assert await subjects(desk) == [("boss@example.com", {"amount": 5, "customer": "ann"})]
        await desk.answer(True)
    assert shop.paid == [{"amount": 5, "customer": "ann"}]


async def test_two_calls_of_one_answer_may_wait_for_different_reviewers(
    tmp_path: Path, shop: Shop, storage: str
) -> None:
    text = agent("  pay:\n    before:\n      - assert: review(input.customer)\n")
    calls = [("pay", {"amount": 1, "customer": "ann"}), ("pay", {"amount": 2, "customer": "bob"})]
    async with at_work(tmp_path, text, call(*calls), "Done.", tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        first = await desk.settled()
        assert first in ("ann", "bob")
        second = await desk.answer(True, by=first)
        assert {first, second} == {"ann", "bob"}
        assert await desk.answer(True, by=second) == "input-required"
        assert sorted(paid["amount"] for paid in shop.paid) == [1, 2]
        assert [result["paid"] for result in desk.model.results()] == [1, 2]


async def test_what_is_given_is_what_was_reviewed(tmp_path: Path, shop: Shop) -> None:
    clock = ManualClock()
    text = agent(more="exposes: {moment: now}\nguardrails:\n  after:\n    - assert: review('boss@example.com')\n")
    async with at_work(tmp_path, text, "Now.", tools=shop.tools, storage=MemoryEngine(clock=clock)) as desk:
        await desk.say("When?")
        ((_, subject),) = await subjects(desk)
        clock.advance(seconds=60)
        await desk.answer(True)
        [given] = (await desk.context()).output
        assert given == subject


async def test_a_result_is_shown_to_the_reviewer_before_the_model_and_the_owner_see_it(
    tmp_path: Path, shop: Shop, storage: str
) -> None:
    text = AGENT + "\ncapabilities:\n  find:\n    after:\n      - assert: review('boss@example.com')\n"
    replies = (call(("find", {"number": "A-1"})), "Found.")
    async with at_work(tmp_path, text, *replies, tools=shop.tools, storage=storage) as desk:
        task = await desk.say("Find")
        assert b"4111 1111" not in encode((await desk.client.get_task(task.id)).raw_task)
        assert [subject for _, subject in await subjects(desk)] == [{"number": "A-1", "card": "4111 1111"}]
        await desk.answer(True)
        assert desk.model.results() == [{"number": "A-1", "card": "4111 1111"}]


async def test_an_owner_who_reviews_an_answer_is_shown_it(tmp_path: Path, shop: Shop, storage: str) -> None:
    text = agent(more="guardrails:\n  after:\n    - assert: review(context.user.id)\n")
    server = {"middlewares": [BearerTokenMiddleware(verify)]}
    async with (
        at_work(tmp_path, text, "An answer.", tools=shop.tools, storage=storage, server=server) as desk,
        People(desk.server)("alice") as (alice,),
    ):
        waiting = await alice.send("Hi")
        assert "An answer." in (said(await alice.get_task(waiting.task_id)) or "")
        assert said(await alice.send("yes", task_id=waiting.task_id)) == "An answer."


async def test_what_the_owner_says_meanwhile_is_the_next_input(tmp_path: Path, shop: Shop, storage: str) -> None:
    replies = (call(("pay", {"amount": 500})), "Paid.", "Anything else?")
    async with at_work(tmp_path, agent(REVIEWED), *replies, tools=shop.tools, storage=storage) as desk:
        await desk.say("Pay")
        waiting = await desk.say("And thank you")
        assert waiting.status.state.short == "input-required"
        assert len(desk.model.questions) == 1
        assert desk.task is not None
        await ReviewDesk(Journal(desk.server.engine)).answer(desk.task.id, True, by="boss@example.com")
        stored = await desk.server.engine.load(desk.task.id, desk.server.scope())
        while stored.head.unread:
            with desk.server.engine.expect(desk.task.id, desk.server.scope(), SETTLED_STATES) as expectation:
                stored = await desk.server.engine.load(desk.task.id, desk.server.scope())
                if stored.head.unread:
                    await expectation.wait(stored.version, None)
        known = await desk.records()
        said = [record.values["message"][0]["text"] for record in known if isinstance(record, InputArrived)]
        assert said == ["Pay", "And thank you"]
        assert told(stored.task) == "Anything else?"


async def test_a_review_outlives_the_server(tmp_path: Path, shop: Shop) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    replies = (call(("find", {"number": "A-1"})), call(("pay", {"amount": 500})))
    async with at_work(tmp_path, agent(REVIEWED), *replies, tools=shop.tools, storage=storage) as desk:
        task = await desk.say("Pay")
    async with SQLiteEngine(tmp_path / "tasks.db") as engine:
        await ReviewDesk(Journal(engine)).answer(task.id, True, by="boss@example.com")
    async with at_work(tmp_path, agent(REVIEWED), "Paid.", tools=shop.tools, storage=storage) as desk:
        desk.task = task
        assert await desk.settled() == "input-required"
        assert told(desk.task) == "Paid."
        assert [record.function for record in await desk.records() if isinstance(record, CapabilityBegan)] == [
            "find",
            "pay",
        ]
        assert [paid["amount"] for paid in shop.paid] == [500]
