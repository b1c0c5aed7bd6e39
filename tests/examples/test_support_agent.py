"""examples/support-agent as a newcomer runs it: `errands serve` over SQLite, and everything asked over the wire.

The same is asked of the scripted model and of a real HTTP endpoint; nothing but the model's setting differs.
"""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import A2AClient, ClientResult, Part
from errands.engines.urls import engine_from_url
from errands.model.log import ListQuery, Scope
from errands.policy.records import AnyRecord, CapabilityBegan, CapabilityFinished, ModelCalled, Started
from errands.policy.run import stored_records
from tests.agents.support import model_process
from tests.soak import LONG
from tests.unit.cli.processes import LongServed, Served, errands

pytestmark = pytest.mark.anyio

EXAMPLE = Path(__file__).parents[2] / "examples" / "support-agent"
SUPERVISOR = "supervisor@example.com"
HELLO = "Hello! Ask me about order A-17, for a refund for A-17 or B-20, or tell me that A-17 broke five times."
ORDER = "Order A-17 is a kettle for 45. If something is wrong, ask for a refund for A-17."

SCRIPTED = "scripted"
PROVIDER = "openai/gpt-4o-mini"


@dataclass
class Shop:
    """The agent, served."""

    server: Served
    storage: str

    def answer(self, word: str, task_id: str, *options: str) -> str:
        """`errands reviews approve` or `deny`."""
        command = ("reviews", word, task_id, "--by", SUPERVISOR, "--storage", self.storage, *options)
        answered = errands(*command)
        assert answered.returncode == 0, answered.stderr
        return answered.stdout

    async def records(self, task_id: str, agent: str = "support") -> list[AnyRecord]:
        async with engine_from_url(self.storage) as engine:
            return await stored_records(engine, task_id, Scope("", "", agent))


@contextmanager
def opened(folder: Path, model: str, model_url: str = "") -> Iterator[Shop]:
    storage = f"sqlite:///{folder / 'tasks.db'}"
    options = ("--model", model, "--storage", storage)
    with LongServed(EXAMPLE, *options, cwd=folder, model_base_url=model_url) as server:
        yield Shop(server, storage)


@pytest.fixture(scope="module", params=[SCRIPTED, PROVIDER])
def shop(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with ExitStack() as stack:
        model_url = ""
        if request.param == PROVIDER:
            model_url = stack.enter_context(model_process(EXAMPLE / "scripted.json"))
        yield stack.enter_context(opened(tmp_path_factory.mktemp("shop"), request.param, model_url))


@pytest.fixture
async def client(shop: Shop) -> AsyncIterator[A2AClient]:
    async with A2AClient(shop.server.url) as client:
        yield client


def told(result: ClientResult) -> tuple[str, str]:
    """The state, and what the status says."""
    assert result.raw_task is not None
    assert result.raw_task.status.message is not None
    return result.state, result.raw_task.status.message.parts[0].text or ""


def exposed(result: ClientResult) -> Any:
    assert result.raw_task is not None
    assert result.raw_task.status.message is not None
    return result.raw_task.status.message.parts[1].data


async def settled(client: A2AClient, task_id: str) -> ClientResult:
    """The task when it waits again or has ended."""
    async for event in client.subscribe(task_id):
        if event.state not in (None, "submitted", "working"):
            break
    return await client.get_task(task_id)


async def asked_of(model_url: str) -> list[dict[str, Any]]:
    """The bodies of all requests that the model got."""
    async with httpx.AsyncClient(timeout=None) as http:
        requests = (await http.get(httpx.URL(model_url).join("/requests"))).json()
    return [request["body"] for request in requests]


# What a customer can ask


async def test_a_greeting_says_what_can_be_asked(client: A2AClient) -> None:
    assert told(await client.send("hello")) == ("input-required", HELLO)


async def test_an_order_is_looked_up_and_the_talk_goes_on_in_the_same_task(shop: Shop, client: A2AClient) -> None:
    asked = await client.send("Where is my order A-17?")
    assert told(asked) == ("input-required", ORDER)
    assert exposed(asked) == {"exposes": {"refunded": False}}
    paid = await client.send("I want a refund for A-17", task_id=asked.task_id)
    assert told(paid) == ("input-required", "I have paid 45 EUR back for the kettle.")
    assert exposed(paid) == {"exposes": {"refunded": True}}
    called = [record for record in await shop.records(asked.task_id) if isinstance(record, CapabilityFinished)]
    assert [record.function for record in called] == ["orders", "orders", "refunds_quote", "refunds_pay"]
    assert {record.arguments["customer"] for record in called} == {""}, "bound to the caller, who has no name here"


async def test_an_order_that_does_not_exist_is_not_found(client: A2AClient) -> None:
    missing = "I cannot find that order. Its number is on the bill; try A-17 or B-20."
    assert told(await client.send("Where is Z-99?")) == ("input-required", missing)


async def test_the_model_never_sees_a_card_number(shop: Shop, client: A2AClient) -> None:
    asked = await client.send("Where is my order A-17?")
    shown = [record for record in await shop.records(asked.task_id) if not isinstance(record, CapabilityFinished)]
    assert "4111 1111" not in str(shown)
    assert "hidden" in str(shown)


async def test_a_parameter_comes_as_data_and_one_that_does_not_fit_is_refused(client: A2AClient) -> None:
    region = {"region": "us"}
    paid = await client.send([Part(text="I want a refund for A-17"), Part(data=region)])
    assert told(paid) == ("input-required", "I have paid 45 USD back for the kettle.")
    refused = await client.send([Part(text="I want a refund for A-17"), Part(data={"region": "mars"})])
    state, words = told(refused)
    assert (state, '"mars" is not one of' in words) == ("input-required", True)
    again = await client.send([Part(text="I want a refund for A-17"), Part(data=region)], task_id=refused.task_id)
    assert told(again) == ("input-required", "I have paid 45 USD back for the kettle.")


@pytest.mark.parametrize(
    ("story", "answer"),
    [
        ("A-17 broke five times", "My colleague doubts that. Please send us a photo, and we will look at it again."),
        ("A-17 broke again", "I am sorry about that. A colleague will write to you today."),
    ],
)
async def test_an_unusual_story_is_judged_by_the_analyst(
    shop: Shop, client: A2AClient, story: str, answer: str
) -> None:
    judged = await client.send(story)
    assert told(judged) == ("input-required", answer)
    known = await shop.records(judged.task_id)
    [child] = [one.task_id for one in known if isinstance(one, CapabilityFinished) and one.function == "analyst"]
    assert child is not None
    [started] = [record for record in await shop.records(child, "analyst") if isinstance(record, Started)]
    assert started.parent == judged.task_id
    async with engine_from_url(shop.storage) as engine:
        assert (await engine.load(child, Scope("", "", "analyst"))).state.short == "completed"


# Guardrails


async def test_a_message_that_is_too_long_is_refused_before_the_model_sees_it(shop: Shop, client: A2AClient) -> None:
    refused = await client.send("help " * 1000)
    assert told(refused) == ("rejected", "Please write a shorter message.")
    assert not any(isinstance(record, ModelCalled) for record in await shop.records(refused.task_id))


async def test_an_answer_about_a_card_number_is_held_back_and_never_streamed(client: A2AClient) -> None:
    events = [event async for event in client.stream("Which card did I pay A-17 with?")]
    assert events[-1].state == "rejected"
    assert events[-1].text == "The answer was held back."
    assert "card number" not in str([event.raw for event in events])


# Reviews


async def test_a_large_refund_waits_for_the_supervisor_and_is_paid_after_approval(
    shop: Shop, client: A2AClient
) -> None:
    asked = await client.send("I want a refund for B-20")
    state, words = told(asked)
    assert state == "input-required"
    assert words.startswith(f"Waiting for a review by {SUPERVISOR}: refunds_pay ")
    listed = errands("reviews", "list", "--storage", shop.storage).stdout
    assert f"{asked.task_id}  {SUPERVISOR}" in listed
    assert 'refunds_pay {"region":"eu","number":"B-20","amount":240,"customer":""}' in listed
    assert "is approved" in shop.answer("approve", asked.task_id, "--comment", "a good customer")
    paid = await settled(client, asked.task_id)
    assert told(paid) == ("input-required", "I have paid 240 EUR back for the coffee machine.")


async def test_a_large_refund_is_not_paid_after_denial(shop: Shop, client: A2AClient) -> None:
    asked = await client.send("I want a refund for B-20")
    shop.answer("deny", asked.task_id)
    refused = await settled(client, asked.task_id)
    assert told(refused) == ("input-required", "I am sorry: my supervisor did not agree to pay 240 EUR back.")
    assert exposed(refused) == {"exposes": {"refunded": False}}
    began = [one.function for one in await shop.records(asked.task_id) if isinstance(one, CapabilityBegan)]
    assert "refunds_pay" not in began


async def test_nobody_but_the_supervisor_can_approve(shop: Shop, client: A2AClient) -> None:
    asked = await client.send("I want a refund for B-20")
    other = errands("reviews", "approve", asked.task_id, "--by", "me@example.com", "--storage", shop.storage)
    assert (other.returncode, f"only {SUPERVISOR} may answer" in other.stderr) == (2, True)
    # Whoever owns the task may write to it, but that is no answer.
    assert told(await client.send("approve", task_id=asked.task_id))[1].startswith("Waiting for a review")
    assert asked.task_id in errands("reviews", "list", "--storage", shop.storage).stdout


#: `tests/crash/test_loop.py` has the first one for another agent, in the short form too.
WHEN = ["while the server is down", "after it is back"] if LONG else ["after it is back"]


@pytest.mark.crash
@pytest.mark.parametrize("when", WHEN)
async def test_an_approval_survives_the_death_of_the_server(tmp_path: Path, when: str) -> None:
    with model_process(EXAMPLE / "scripted.json") as model_url:
        with opened(tmp_path, PROVIDER, model_url) as shop, ExitStack() as stack:
            async with A2AClient(shop.server.url) as client:
                task_id = (await client.send("I want a refund for B-20")).task_id
            shop.server.stop(signal.SIGKILL)
            if when == "while the server is down":
                shop.answer("approve", task_id)
            shop = stack.enter_context(opened(tmp_path, PROVIDER, model_url))
            if when == "after it is back":
                shop.answer("approve", task_id)
            async with A2AClient(shop.server.url) as client:
                paid = await settled(client, task_id)
            assert told(paid) == ("input-required", "I have paid 240 EUR back for the coffee machine.")
            began = [one.function for one in await shop.records(task_id) if isinstance(one, CapabilityBegan)]
        requests = await asked_of(model_url)
    assert began == ["orders", "refunds_quote", "refunds_pay"], "nothing was done twice"
    assert len(requests) == 4, "the model was not asked twice, either"


# As it is served


async def test_the_model_is_told_what_it_needs_and_not_what_is_bound(tmp_path: Path) -> None:
    with (
        model_process(EXAMPLE / "scripted.json") as model_url,
        opened(tmp_path, PROVIDER, model_url) as shop,
    ):
        async with A2AClient(shop.server.url) as client:
            await client.send("hello")
        [request] = await asked_of(model_url)
    system, user = request["messages"]
    assert system["content"].startswith("You help a customer of a shop. It is 2")
    assert user["content"] == "hello"
    offered = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request["tools"]}
    assert set(offered) == {"orders", "refunds_quote", "refunds_pay", "analyst"}
    assert all("customer" not in parameters["properties"] for parameters in offered.values())


async def test_the_tasks_of_the_analyst_are_nobodys_to_see(shop: Shop, client: A2AClient) -> None:
    await client.send("A-17 broke five times")
    async with engine_from_url(shop.storage) as engine:
        inner = (await engine.list(ListQuery(scope=Scope("", "", "analyst")))).tasks
    seen = {task.task_id async for task in client.list_tasks()}
    assert inner
    assert not seen & {stored.task.id for stored in inner}
