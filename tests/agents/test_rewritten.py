"""An agent that is rewritten while one of its tasks waits: what was approved is not done in another form."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from errands import Settings
from errands.agents.delegation import Delegate, Delegated, Delegation
from errands.engines.sqlite import SQLiteEngine
from errands.policy.document import CapabilitySteps, Policy
from errands.policy.records import Answered, AnyRecord, CapabilityBegan, CapabilityFinished, FunctionCall, Waiting
from errands.policy.reviews import ReviewDesk
from errands.policy.steps import StepConfig
from errands.runtime.journal import Journal
from tests.agents.rig import AGENT, TOOL, Desk, Replies, Reply, at_work, call, told

pytestmark = pytest.mark.anyio

BOSS = "boss@example.com"

LEDGER = f"""{TOOL}
name: ledger
description: Keeps accounts.
actions:
  - name: note
    description: Notes something.
    execute: {{cel: {{expression: "true"}}}}
"""

PAYING = f"""{AGENT}
exposes:
  source: "'cash'"
capabilities:
  pay:
    bindings: {{account: "'main'"}}
    before:
      - invoke: ledger:note
      - assert: review('{BOSS}')
        error_message: No.
{TOOL}
name: pay
description: Pays.
actions:
  - name: pay
    description: Pays an amount.
    parameters: {{properties: {{amount: {{type: integer}}, account: {{type: string}}}}}}
    execute: {{cel: {{expression: "{{'paid': input.amount, 'from': input.account}}"}}}}
{LEDGER}"""

#: The capability is the same, and the review stands elsewhere.
EXECUTED = PAYING.replace(f"      - assert: review('{BOSS}')\n        error_message: No.\n", "").replace(
    "{'paid'", f"!review('{BOSS}') ? {{}} : {{'paid'"
)
GUARDED = f"{AGENT}\nguardrails:\n  before:\n    - assert: review('{BOSS}')\n"
ANSWERED = f"{AGENT}\nexposes: {{source: \"'cash'\"}}\nguardrails:\n  after:\n    - assert: review('{BOSS}')\n"

PAY = call(FunctionCall("p", "pay", {"amount": 5}))


@asynccontextmanager
async def rewritten(
    folder: Path,
    before: str,
    after: str,
    *replies: Reply,
    policies: tuple[Policy | None, Policy | None] = (None, None),
    **options: Any,
) -> AsyncIterator[Desk]:
    """A task is asked about and approved, and then meets an agent that says something else."""
    first, second = ({"policy": policy} for policy in policies)
    storage, model = f"sqlite:///{folder / 'tasks.db'}", Replies(*replies)
    async with at_work(folder, before, model=model, storage=storage, server=first, **options) as desk:
        task = await desk.say("Go")
        assert await desk.settled() == BOSS
    async with SQLiteEngine(folder / "tasks.db") as engine:
        await ReviewDesk(Journal(engine)).answer(task.id, True, by=BOSS)
    async with at_work(folder, after, model=model, storage=storage, server=second, **options) as desk:
        desk.task = task
        yield desk


def outputs(records: list[AnyRecord], function: str) -> list[Any]:
    return [one.output for one in records if isinstance(one, CapabilityFinished) and one.function == function]


@pytest.mark.parametrize(
    ("before", "old", "new", "reply"),
    [
        pytest.param(PAYING, "'main'", "'reserve'", PAY, id="a binding"),
        pytest.param(PAYING, "'paid': input.amount", "'paid': 1000 * input.amount", PAY, id="the tool"),
        pytest.param(PAYING, "error_message: No.", "on_fail: lock_task", PAY, id="a step"),
        pytest.param(PAYING, 'expression: "true"', 'expression: "1 == 1"', PAY, id="a tool that a step invokes"),
        pytest.param(
            EXECUTED, "'paid': input.amount", "'paid': 1000 * input.amount", PAY, id="in the middle of a call"
        ),
        pytest.param(GUARDED, "- assert", "- condition: 'true'\n      assert", "Yes.", id="a guardrail"),
        pytest.param(ANSWERED, "'cash'", "'credit'", "Yes.", id="what the answer exposes"),
    ],
)
async def test_what_was_approved_in_another_form_is_asked_anew(
    tmp_path: Path, before: str, old: str, new: str, reply: Reply
) -> None:
    after = before.replace(old, new)
    assert after != before
    async with rewritten(tmp_path, before, after, reply, "Done.") as desk:
        assert await desk.settled() == BOSS
        assert outputs(await desk.records(), "pay") == []
        assert await desk.answer(True) == "input-required"
        assert desk.task is not None
        assert told(desk.task) in ("Done.", "Yes.")
        assert len([record for record in await desk.records() if isinstance(record, Waiting)]) == 2


@pytest.mark.parametrize("text", [PAYING, EXECUTED])
async def test_what_has_nothing_to_do_with_it_may_be_rewritten(tmp_path: Path, text: str) -> None:
    after = text.replace("You are a clerk.", "You are a kind clerk.").replace("'cash'", "'credit'")
    after = after.replace("Pays.", "Pays money.").replace("Pays an amount.", "Pays some.")
    after = after.replace("Keeps accounts.", "Keeps books.").replace("Notes something.", "Notes it.")
    async with rewritten(tmp_path, text, after, PAY, "Done.") as desk:
        assert await desk.settled() == "input-required"
        known = await desk.records()
        assert outputs(known, "pay") == [{"paid": 5, "from": "main"}]
        assert outputs(known, "ledger") == [True]
        assert len([record for record in known if isinstance(record, CapabilityBegan)]) == 2


@pytest.mark.parametrize("text", [PAYING, EXECUTED])
async def test_what_was_approved_under_another_policy_is_decided_anew(tmp_path: Path, text: str) -> None:
    forbids = StepConfig(assert_="false", error_message="Forbidden.")
    stricter = Policy(version="2", capabilities={"pay": CapabilitySteps(before=[forbids])})
    async with rewritten(tmp_path, text, text, PAY, "Sorry.", policies=(Policy(version="1"), stricter)) as desk:
        assert await desk.settled() == "input-required"
        assert desk.model.results() == [{"error": "Forbidden."}]
        assert outputs(await desk.records(), "pay") == []


@pytest.mark.parametrize("text", [PAYING, EXECUTED])
async def test_what_was_approved_is_asked_anew_under_another_policy(tmp_path: Path, text: str) -> None:
    policies = Policy(version="1"), Policy(version="2")
    async with rewritten(tmp_path, text, text, PAY, "Done.", policies=policies) as desk:
        assert await desk.settled() == BOSS
        assert await desk.answer(True) == "input-required"
        known = await desk.records()
        assert (outputs(known, "pay"), outputs(known, "ledger")) == ([{"paid": 5, "from": "main"}], [True])


async def test_a_call_that_needs_no_review_any_more_is_made_as_it_is_written_now(tmp_path: Path) -> None:
    after = PAYING.replace(f"review('{BOSS}')", "input.amount < 10").replace("'main'", "'reserve'")
    async with rewritten(tmp_path, PAYING, after, PAY, "Done.") as desk:
        assert await desk.settled() == "input-required"
        assert outputs(await desk.records(), "pay") == [{"paid": 5, "from": "reserve"}]


STEPS = f"- invoke: ledger:note\n      - assert: review('{BOSS}')\n"
WRITES = f"mount.write('log', 'x') != '' && review('{BOSS}')"


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        pytest.param(PAYING, PAY, id="before"),
        pytest.param(PAYING.replace("before:", "after:"), PAY, id="after"),
        pytest.param(f"{AGENT}guardrails:\n    before:\n      {STEPS}{LEDGER}", "Done.", id="an input"),
        pytest.param(f"{AGENT}guardrails:\n    after:\n      {STEPS}{LEDGER}", "Done.", id="an answer"),
        pytest.param(
            f"{AGENT}mount: agent\ncapabilities: {{ledger: '*'}}\n{LEDGER.replace('true', WRITES)}",
            call(FunctionCall("p", "ledger", {})),
            id="in the middle of a call",
        ),
    ],
)
async def test_what_was_done_before_a_review_is_not_done_again(tmp_path: Path, text: str, reply: Reply) -> None:
    async with rewritten(tmp_path, text, text, reply, "Done.") as desk:
        assert await desk.settled() == "input-required"
        known = await desk.records()
        assert outputs(known, "ledger") == [True]
        assert len([record for record in known if isinstance(record, Waiting)]) == 1
        assert [record.call.function for record in known if isinstance(record, Answered)].count("mount.write") <= 1


async def test_a_message_that_has_the_name_of_another_and_its_form_is_looked_at_like_any_other(tmp_path: Path) -> None:
    async with at_work(tmp_path, GUARDED, "Yes.", "Again.") as desk:
        await desk.say("Go")
        assert await desk.answer(True) == "input-required"
        [waiting] = [record for record in await desk.records() if isinstance(record, Waiting)]
        assert desk.task is not None
        await desk.client.send("Sneak", task_id=desk.task.id, message_id=waiting.key.removeprefix("input:"))
        assert await desk.settled() == BOSS


HELPER = AGENT.replace("name: clerk", "name: helper").replace("\n", "\n---\n", 1)


def handing_down(account: str) -> str:
    """To an agent of the same server."""
    parameters = "parameters: {properties: {account: {type: string}}}\n"
    return f"{AGENT}capabilities: {{helper: {{bindings: {{account: \"'{account}'\"}}}}}}\n{HELPER}{parameters}"


def handing_far(account: str) -> str:
    bindings = f"{{account: \"'{account}'\"}}"
    return f"{AGENT}capabilities: {{helper: {{url: 'https://example.com', bindings: {bindings}}}}}\n"


class Held(Delegate):
    """Another agent that is at work until it may answer; when it is `noted`, its task is known before."""

    def __init__(self, *, noted: bool = False) -> None:
        self.noted = noted
        self.begun, self.done = asyncio.Event(), asyncio.Event()
        self.errands: list[Delegation] = []

    async def run(self, delegation: Delegation) -> Delegated:
        self.errands.append(delegation)
        if self.noted:
            await delegation.began("child")
        self.begun.set()
        await self.done.wait()
        return Delegated(task_id="child", output={"message": []})

    async def cancel(self, delegation: Delegation) -> None: ...


@pytest.mark.parametrize(
    ("handing", "noted", "given"),
    [
        pytest.param(handing_down, False, "main", id="to an agent of this server"),
        pytest.param(handing_down, True, "main", id="to an agent of this server that was noted"),
        pytest.param(handing_far, True, "main", id="to a remote one that has begun"),
        pytest.param(handing_far, False, "reserve", id="to a remote one of which nobody knows"),
    ],
)
async def test_what_was_handed_down_stays_as_it_was(
    tmp_path: Path, handing: Callable[[str], str], noted: bool, given: str
) -> None:
    storage, model = f"sqlite:///{tmp_path / 'tasks.db'}", Replies(call(("helper", {"message": "Pay"})), "Done.")
    helper = Held(noted=noted)
    settings = Settings(storage=storage, drain_timeout=0.0)
    options: dict[str, Any] = {"model": model, "storage": storage, "delegates": {"helper": helper}}
    async with at_work(tmp_path, handing("main"), server={"settings": settings}, **options) as desk:
        task_id = (await desk.client.send("Go", blocking=False)).task_id
        await helper.begun.wait()
    helper.done.set()
    async with at_work(tmp_path, handing("reserve"), **options) as desk:
        desk.task = (await desk.client.get_task(task_id)).raw_task
        assert await desk.settled() == "input-required"
    accounts = [delegation.parameters["account"] for delegation in helper.errands]
    assert (accounts[0], accounts[-1]) == ("main", given)


@pytest.mark.parametrize("far", [False, True])
async def test_a_call_of_a_tool_that_has_become_an_agent_is_decided_anew(tmp_path: Path, far: bool) -> None:
    after = handing_far("main") if far else handing_down("main")
    helper = Held()
    async with rewritten(
        tmp_path, EXECUTED, after.replace("helper", "pay"), PAY, "Sorry.", delegates={"pay": helper}
    ) as desk:
        assert await desk.settled() == "input-required"
        assert desk.model.results() == [{"error": "message: is missing; amount: is unknown"}]
        assert helper.errands == []


async def test_a_call_that_is_decided_anew_counts_once(tmp_path: Path) -> None:
    limited = EXECUTED.replace("exposes:", "limits: {max_tool_calls: 3}\nexposes:")
    after = limited.replace("1000", "1").replace("'main'", "'reserve'")
    async with rewritten(tmp_path, limited, after, PAY, "Done.") as desk:
        assert await desk.settled() == BOSS
        assert await desk.answer(True) == "input-required"
        context = await desk.context()
        assert (len(context.invocations), context.capabilities["pay"].count_successful) == (3, 1)
