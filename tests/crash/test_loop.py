"""The process of an agent that is written down is killed in every phase of its loop; another one goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from errands.model.log import ListQuery, Scope
from errands.policy.context_object import Context, replay
from errands.policy.records import CapabilityFinished, DelegationBegan
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from tests.agents.openai_server import Call, OpenAIServer, Reply
from tests.agents.rig import told
from tests.crash.scene import Scene
from tests.live import live
from tests.unit.cli.processes import Served

pytestmark = [pytest.mark.anyio, pytest.mark.crash]

MANIFEST = """
kind: commonagents.info/v1beta2/agent
namespace: shop
name: clerk
description: A clerk.
prompt: You are a clerk.
model: openai/test
close_after: 1
script: true
capabilities:
  pay: {PAY}
  find: "*"
  helper: "*"
---
kind: commonagents.info/v1beta2/agent
namespace: shop
name: helper
description: Helps a clerk.
prompt: You help a clerk.
model: openai/helper
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: pay
description: Pays.
actions:
  - name: pay
    description: Pays money back.
    parameters: {properties: {amount: {type: integer}}}
    execute: {stateless_http: {method: POST, url: "URL/pay", body: {amount: "{parameters.amount}"}}}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: find
description: Finds.
actions:
  - name: find
    description: Finds an order.
    execute: {stateless_http: {method: POST, url: "URL/find"}}
---
kind: commonagents.info/v1beta2/tool
namespace: shop
name: note
description: Notes.
actions:
  - name: note
    description: Notes something.
    execute: {stateless_http: {method: POST, url: "URL/note"}}
"""


class Shop:
    """A service that counts, and holds the requests it is told to hold."""

    def __init__(self) -> None:
        self.keys: dict[str, list[str]] = {"pay": [], "find": [], "note": []}
        self._hold: str | None = None
        self.holding = threading.Event()
        self._released = threading.Event()
        self.app = Starlette(routes=[Route("/{name}", self._endpoint, methods=["POST"])])

    def hold(self, name: str) -> None:
        self._hold = name

    def release(self) -> None:
        self._hold = None
        self._released.set()

    def _endpoint(self, request: Request) -> JSONResponse:
        name = request.path_params["name"]
        self.keys[name].append(request.headers["idempotency-key"])
        if name == self._hold:
            self.holding.set()
            self._released.wait(170)
        return JSONResponse({"done": name})

    def count(self, name: str) -> int:
        return len(self.keys[name])


class Clerk(Scene):
    """A service, a model, and the agent that uses both."""

    def __init__(self, folder: Path, shop: Shop, url: str, model: OpenAIServer, pay: str) -> None:
        super().__init__(folder, "clerk")
        self.shop = shop
        self.model = model
        (folder / "agents").mkdir()
        (folder / "agents" / "agent.yaml").write_text(MANIFEST.replace("{PAY}", pay).replace("URL", url), "utf-8")

    def serve(self) -> Served:
        return Served(
            self.folder / "agents",
            cwd=self.folder,
            storage=self.storage,
            model_base_url=self.model.url,
            model_api_key="none",
            outbound_allow="127.0.0.1",
            lease_seconds="1",
            poll_interval="0.1",
            max_attempts="10",
        )

    async def kill_when(self, happened: threading.Event | asyncio.Event, *, finished: str = "") -> None:
        """Starts a process, sends it a message, and kills it when something has happened and a call has finished."""
        async with self.killed_at_the_end() as client:
            self.task_id = (await client.send("Go", blocking=False)).task_id
            await _happened(happened)
            while finished and finished not in await self._finished():
                await asyncio.sleep(0.01)

    async def _finished(self) -> list[str]:
        records = await self.records()
        return [record.function for record in records if isinstance(record, CapabilityFinished)]

    async def context(self) -> Context:
        return replay(await self.records())


async def _happened(event: threading.Event | asyncio.Event) -> None:
    if isinstance(event, asyncio.Event):
        await event.wait()
    else:
        assert await asyncio.to_thread(event.wait, 170)


@pytest.fixture
def shop() -> Iterator[tuple[Shop, str]]:
    made = Shop()
    with live(made.app) as url:
        yield made, url
        made.release()


ARGUMENTS = {
    "pay": '{"amount": 5}',
    "find": "{}",
    "helper": '{"message": "Is it true?"}',
    "run_script": '{"expression": "[find({}), pay({\'amount\': 5}), find({})].map(answer, answer.done)"}',
}


def call(*names: str) -> Reply:
    return Reply(calls=[Call(name=name, arguments=ARGUMENTS[name]) for name in names])


@asynccontextmanager
async def scene(folder: Path, shop: tuple[Shop, str], *replies: Reply, pay: str = '"*"') -> AsyncIterator[Clerk]:
    async with OpenAIServer(replies) as model:
        yield Clerk(folder, *shop, model, pay)


async def test_killed_while_the_steps_before_a_call_run_the_call_is_made_once(
    tmp_path: Path, shop: tuple[Shop, str]
) -> None:
    steps = "{before: [{invoke: 'note:note'}]}"
    async with scene(tmp_path, shop, call("pay"), Reply(text="Paid."), pay=steps) as at:
        at.shop.hold("note")
        await at.kill_when(at.shop.holding)
        at.shop.release()
        assert told(await at.finish()) == "Paid."
        assert (len(set(at.shop.keys["note"])), at.shop.count("pay")) == (1, 1)
        context = await at.context()
        assert context.invocations == ["note", "pay"]
        assert context.turns == ["input", "llm", "capability", "llm"]


async def test_killed_during_a_call_it_is_made_again_as_the_same_call(tmp_path: Path, shop: tuple[Shop, str]) -> None:
    async with scene(tmp_path, shop, call("pay"), Reply(text="Paid.")) as at:
        at.shop.hold("pay")
        await at.kill_when(at.shop.holding)
        at.shop.release()
        assert told(await at.finish()) == "Paid."
        assert (at.shop.count("pay"), len(set(at.shop.keys["pay"]))) == (2, 1)
        assert (await at.context()).capabilities["pay"].count_successful == 1


async def test_killed_after_a_call_while_the_model_thinks_the_call_is_not_repeated(
    tmp_path: Path, shop: tuple[Shop, str]
) -> None:
    replies = (call("pay"), Reply(text="Lost.", hold_before=0), Reply(text="Paid."))
    async with scene(tmp_path, shop, *replies) as at:
        await at.kill_when(at.model.holding)
        assert told(await at.finish()) == "Paid."
        assert at.shop.count("pay") == 1
        context = await at.context()
        assert (context.capabilities["pay"].count_successful, len(context.invocations)) == (1, 1)
        assert (context.turns, context.prompt_tokens + context.completion_tokens) == (
            ["input", "llm", "capability", "llm"],
            36,
        )
        assert [message["role"] for message in at.model.requests[-1].body["messages"]] == [
            "system",
            "user",
            "assistant",
            "tool",
        ]


async def test_killed_when_one_of_two_calls_has_finished_only_the_other_is_repeated(
    tmp_path: Path, shop: tuple[Shop, str]
) -> None:
    async with scene(tmp_path, shop, call("find", "pay"), Reply(text="Done.")) as at:
        at.shop.hold("pay")
        await at.kill_when(at.shop.holding, finished="find")
        at.shop.release()
        assert told(await at.finish()) == "Done."
        assert (at.shop.count("find"), at.shop.count("pay")) == (1, 2)
        assert (await at.context()).invocations == ["find", "pay"]


async def test_killed_while_the_steps_after_a_call_run_the_call_is_not_repeated(
    tmp_path: Path, shop: tuple[Shop, str]
) -> None:
    steps = "{after: [{invoke: 'note:note'}]}"
    async with scene(tmp_path, shop, call("pay"), Reply(text="Paid."), pay=steps) as at:
        at.shop.hold("note")
        await at.kill_when(at.shop.holding)
        at.shop.release()
        assert told(await at.finish()) == "Paid."
        assert (at.shop.count("pay"), len(set(at.shop.keys["note"]))) == (1, 1)
        assert (await at.context()).invocations == ["pay", "note"]


@pytest.mark.parametrize("approved", [True, False])
async def test_killed_while_a_review_waits_its_answer_still_decides(
    tmp_path: Path, shop: tuple[Shop, str], approved: bool
) -> None:
    steps = "{before: [{assert: \"review('carol')\", error_message: Carol did not agree.}]}"
    async with scene(tmp_path, shop, call("find"), call("pay"), Reply(text="Done."), pay=steps) as at:
        async with at.killed_at_the_end() as client:
            result = await client.send("Go")
            assert (result.state, at.shop.count("pay")) == ("input-required", 0)
            at.task_id = result.task_id
        async with at.engine() as engine:
            await ReviewDesk(Journal(engine)).answer(at.task_id, approved, by="carol")
        assert told(await at.finish()) == "Done."
        assert (at.shop.count("find"), at.shop.count("pay")) == (1, int(approved))
        pay = (await at.context()).capabilities["pay"]
        assert (pay.count_successful, pay.count_restricted) == (int(approved), int(not approved))


async def test_killed_during_a_delegation_the_same_child_goes_on(tmp_path: Path, shop: tuple[Shop, str]) -> None:
    replies = (call("helper"), Reply(text="Lost.", hold_before=0), Reply(text="It is."), Reply(text="Yes."))
    async with scene(tmp_path, shop, *replies) as at:
        await at.kill_when(at.model.holding)
        assert told(await at.finish()) == "Yes."
        async with at.engine() as engine:
            children = (await engine.list(ListQuery(scope=Scope("", "", "helper")))).tasks
        records = await at.records()
        assert [child.state.short for child in children] == ["completed"]
        assert [one.task_id for one in records if isinstance(one, DelegationBegan)] == [children[0].task.id]
        context = await at.context()
        meta = context.plain()["capabilities"]["_meta"]
        assert (meta["delegation_count"], meta["count"]) == (1, 1)
        assert context.capabilities["helper"].task_ids == [children[0].task.id]
        assert context.capabilities["helper"].outputs[0]["message"][0]["text"] == "It is."


async def test_killed_inside_of_a_script_its_finished_calls_are_not_repeated(
    tmp_path: Path, shop: tuple[Shop, str]
) -> None:
    async with scene(tmp_path, shop, call("run_script"), Reply(text="Done.")) as at:
        at.shop.hold("pay")
        await at.kill_when(at.shop.holding)
        at.shop.release()
        assert told(await at.finish()) == "Done."
        assert (at.shop.count("pay"), len(set(at.shop.keys["pay"]))) == (2, 1)
        assert (at.shop.count("find"), len(set(at.shop.keys["find"]))) == (2, 2)
        assert at.model.requests[-1].body["messages"][-1]["content"] == '["find","pay","find"]'
        context = await at.context()
        assert context.invocations == ["find", "pay", "find"]
        assert context.turns == ["input", "llm", "capability", "llm"]
