"""Handing work to an agent somewhere else: real servers on loopback."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from errands import AgentCardConfig, CapabilitiesConfig, TaskContext, Worker
from errands.agents.delegation import DelegationError, RemoteDelegate, remote_message
from errands.client import A2AClient
from errands.model.core import CANCELED, TERMINAL_STATES, Message, Part, Role
from errands.model.log import Scope
from errands.runtime.middleware import BearerTokenMiddleware
from errands.runtime.submission import DELEGATION_DEPTH as DEPTH
from errands.testing import connect, serve
from tests.ports import free_port
from tests.unit.client.serving import serving
from tests.unit.delegation.support import (
    Answers,
    Does,
    Exposing,
    Held,
    Parent,
    Reviewed,
    bare_delegation,
    delegation_of,
    started_run,
)
from tests.unit.reviews.support import desk_of
from tests.unit.support import Gate
from tests.waiting import until

pytestmark = pytest.mark.anyio

HERE = Scope("", "ann", "Parent")
HELLO = {"message": [{"mimeType": "text/plain", "text": "child: go"}]}


def streams(streaming: bool = True) -> AgentCardConfig:
    return AgentCardConfig(name="Far away", description=".", capabilities=CapabilitiesConfig(streaming=streaming))


@asynccontextmanager
async def far_away(worker: Worker, **options: Any) -> AsyncIterator[RemoteDelegate]:
    delegate_options = {name: options.pop(name) for name in ("headers", "patience") if name in options}
    async with serving(serve(worker, **options).app) as url:
        yield RemoteDelegate("far", url, **delegate_options)


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json"])
@pytest.mark.parametrize("streaming", [True, False])
async def test_the_answer_of_a_remote_agent_is_the_output(streaming: bool, protocol: str) -> None:
    card = streams(streaming)
    card.protocol = protocol
    async with far_away(Answers(), agent_card=card) as delegate:
        assert (await delegate.run(bare_delegation("p", HERE))).output == HELLO


@pytest.mark.parametrize("streaming", [True, False])
async def test_a_remote_agent_is_waited_for(streaming: bool) -> None:
    child, told = Held(), asyncio.Event()

    async def began(task_id: str) -> None:
        told.set()

    async with far_away(child, agent_card=streams(streaming)) as delegate:
        running = asyncio.create_task(delegate.run(bare_delegation("p", HERE, began=began)))
        await told.wait()
        assert not running.done()
        child.gate.set()
        assert (await running).output == HELLO


async def test_parameters_and_the_parent_are_told_and_exposed_values_come_back() -> None:
    child = Answers()
    async with far_away(child) as delegate:
        await delegate.run(bare_delegation("p", HERE, parameters={"customer": "c-1"}))
        [ctx] = child.seen
        assert (ctx.data_parts, ctx.reference_task_ids) == ([{"customer": "c-1"}], ["p"])
    async with far_away(Exposing()) as delegate:
        output = (await delegate.run(bare_delegation("p", HERE))).output
        assert output == {"pages": 3, "message": [{"mimeType": "text/plain", "text": "read it"}]}


async def test_an_agent_that_answers_with_a_message_makes_no_task_of_it() -> None:
    async with far_away(Does(lambda ctx: ctx.reply_directly("at once"))) as delegate:
        delegated = await delegate.run(bare_delegation("p", HERE))
        assert delegated.output == {"message": [{"mimeType": "text/plain", "text": "at once"}]}


async def test_the_same_delegation_is_taken_on_once() -> None:
    child = Answers()
    async with far_away(child) as delegate:
        delegation = bare_delegation("p", HERE)
        first = await delegate.run(delegation)
        assert await delegate.run(delegation) == first
        assert await delegate.run(bare_delegation("p", HERE, task_id=first.task_id)) == first
        assert len(child.seen) == 1


@pytest.mark.parametrize(
    ("child", "told"),
    [
        (Does(lambda ctx: ctx.fail("no such page")), "far failed: no such page"),
        (Does(lambda ctx: ctx.reject("not for me")), "far refused: not for me"),
        (Does(lambda ctx: ctx.request_auth("sign in")), "far needs an authorization"),
    ],
)
async def test_a_remote_agent_that_does_not_do_it_is_an_error_with_its_words(child: Worker, told: str) -> None:
    async with far_away(child) as delegate:
        with pytest.raises(DelegationError, match=told) as caught:
            await delegate.run(bare_delegation("p", HERE))
        assert caught.value.task_id


async def test_a_question_is_an_output_and_a_review_is_waited_for() -> None:
    async with far_away(Does(lambda ctx: ctx.request_input("Which one?"))) as delegate:
        output = (await delegate.run(bare_delegation("p", HERE))).output
        assert output == {"message": [{"mimeType": "text/plain", "text": "Which one?"}]}
    child = Reviewed()
    server = serve(child)
    async with serving(server.app) as url, server:
        running = asyncio.create_task(RemoteDelegate("far", url).run(bare_delegation("p", HERE)))
        await child.waits.wait()
        (review,) = await desk_of(server.engine).list()
        await desk_of(server.engine).answer(review.task_id, True, by="boss@example.com")
        assert (await running).output == {"message": [{"mimeType": "text/plain", "text": "did go"}]}


async def test_a_cancel_goes_to_the_remote_agent_and_does_nothing_to_what_has_ended() -> None:
    child, ids = Held(), []

    async def began(task_id: str) -> None:
        ids.append(task_id)

    server = serve(child, cancel_force_timeout=0.05)
    async with serving(server.app) as url:
        delegate = RemoteDelegate("far", url)
        running = asyncio.create_task(delegate.run(bare_delegation("p", HERE, began=began)))
        await child.started.wait()
        while not ids:
            await asyncio.sleep(0)
        await delegate.cancel(bare_delegation("p", HERE, task_id=ids[0]))
        with pytest.raises(DelegationError, match="far was canceled"):
            await running
        await delegate.cancel(bare_delegation("p", HERE, task_id=ids[0]))
        await delegate.cancel(bare_delegation("p", HERE, task_id="no-such-task"))


async def test_a_remote_child_is_noted_even_when_its_parent_is_stopped_while_it_begins() -> None:
    noting, gate, noted = asyncio.Event(), asyncio.Event(), []

    async def began(task_id: str) -> None:
        noting.set()
        await gate.wait()
        noted.append(task_id)

    async with far_away(Answers()) as delegate:
        running = asyncio.create_task(delegate.run(bare_delegation("p", HERE, began=began)))
        await noting.wait()
        running.cancel()
        asyncio.get_running_loop().call_soon(gate.set)
        with pytest.raises(asyncio.CancelledError):
            await running
        assert len(noted) == 1


async def test_an_agent_that_cannot_be_reached_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    delegate = RemoteDelegate("far", "http://127.0.0.1:9", patience=0)
    with pytest.raises(DelegationError, match="far could not be asked: no agent found") as caught:
        await delegate.run(bare_delegation("p", HERE))
    assert caught.value.task_id is None
    with pytest.raises(DelegationError, match="far cannot be reached any more") as caught:
        await delegate.run(bare_delegation("p", HERE, task_id="t"))
    assert caught.value.task_id == "t"
    with caplog.at_level(logging.WARNING):
        await delegate.cancel(bare_delegation("p", HERE, task_id="t"))
    assert "could not be canceled" in caplog.text


@pytest.mark.parametrize("url", ["http://ann:hunter2@127.0.0.1:9", "http://127.0.0.1:9/?key=hunter2"])
async def test_what_is_secret_about_an_address_is_told_to_nobody(url: str, caplog: pytest.LogCaptureFixture) -> None:
    delegate = RemoteDelegate("far", url, patience=0)
    for task_id in (None, "t"):
        with pytest.raises(DelegationError, match=r"far .* no agent found at http://.*127\.0\.0\.1:9") as caught:
            await delegate.run(bare_delegation("p", HERE, task_id=task_id))
        assert "hunter2" not in str(caught.value)
    with caplog.at_level(logging.WARNING):
        await delegate.cancel(bare_delegation("p", HERE, task_id="t"))
    assert "could not be canceled" in caplog.text
    assert "hunter2" not in caplog.text


async def test_credentials_that_a_remote_agent_repeats_are_not_passed_on() -> None:
    class Repeats(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            words = "you sent s3cret-token"
            await (ctx.fail(words) if "fail" in ctx.user_text else ctx.complete(words))

    async with far_away(Repeats(), headers={"Authorization": "Bearer s3cret-token"}) as delegate:
        output = (await delegate.run(bare_delegation("p", HERE))).output
        assert output["message"] == [{"mimeType": "text/plain", "text": "you sent [secret]"}]
        with pytest.raises(DelegationError, match=r"you sent \[secret\]"):
            await delegate.run(bare_delegation("p", HERE, call="2", message="fail"))


async def test_a_remote_agent_may_be_restarted_meanwhile(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'tasks.db'}"
    first, second, ids = Held(), Held(), asyncio.Queue[str]()
    second.gate.set()
    port = free_port()
    async with serving(serve(first, storage=storage).app, port) as url:
        delegate = RemoteDelegate("far", url, patience=30)
        running = asyncio.create_task(delegate.run(bare_delegation("p", HERE, began=ids.put)))
        await ids.get()
        await first.started.wait()
        first.gate.set()
    async with serving(serve(second, storage=storage).app, port):
        assert (await running).output == HELLO


async def test_a_task_that_the_remote_agent_no_longer_has_is_an_error() -> None:
    async with far_away(Answers()) as delegate:
        with pytest.raises(DelegationError, match="far no longer has the task"):
            await delegate.run(bare_delegation("p", HERE, task_id="gone"))


async def test_credentials_are_the_operators_and_their_lack_is_an_error() -> None:
    async def verify(token: str) -> dict[str, Any] | None:
        return {} if token == "s3cret" else None

    options: dict[str, Any] = {"middlewares": [BearerTokenMiddleware(verify)]}
    async with far_away(Answers(), headers={"Authorization": "Bearer s3cret"}, **options) as delegate:
        assert (await delegate.run(bare_delegation("p", HERE))).output == HELLO
    async with far_away(Answers(), headers={"Authorization": "Bearer other"}, **options) as delegate:
        with pytest.raises(DelegationError) as caught:
            await delegate.run(bare_delegation("p", HERE))
        assert "other" not in str(caught.value)


async def test_work_is_not_handed_down_without_end() -> None:
    with pytest.raises(DelegationError, match="delegated 5 times"):
        await RemoteDelegate("far", "http://127.0.0.1:9").run(bare_delegation("p", HERE, depth=6))


async def test_a_parent_uses_a_remote_child_like_a_local_one(storage: str) -> None:
    async with far_away(Answers()) as delegate, connect(Parent(delegate), storage=storage) as client:
        assert (await client.send("go")).data == HELLO


async def test_an_agent_with_nothing_but_grpc_is_refused() -> None:
    card = {
        "name": "G",
        "description": ".",
        "version": "1",
        "capabilities": {},
        "defaultInputModes": [],
        "defaultOutputModes": [],
        "skills": [],
        "supportedInterfaces": [{"url": "127.0.0.1:1", "protocolBinding": "GRPC", "protocolVersion": "1.0"}],
    }

    async def app(scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            headers = [(b"content-type", b"application/json")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": json.dumps(card).encode()})

    async with serving(app) as url:
        with pytest.raises(DelegationError, match="neither as JSON-RPC nor as HTTP"):
            await RemoteDelegate("far", url).run(bare_delegation("p", HERE))


# How often work has been delegated


class Relay(Worker):
    """Hands everything on, and tells what came of it."""

    delegate: RemoteDelegate

    def __init__(self) -> None:
        self.depths: list[int] = []

    async def handle(self, ctx: TaskContext) -> None:
        self.depths.append(ctx._turn.options.depth)
        try:
            delegated = await self.delegate.run(delegation_of(ctx, await started_run(ctx)))
        except DelegationError as error:
            await ctx.complete(str(error))
        else:
            await ctx.complete(delegated.output["message"][0]["text"])


@pytest.mark.parametrize("protocol", ["jsonrpc", "http+json"])
async def test_a_circle_across_two_servers_comes_to_an_end(protocol: str) -> None:
    here, there = Relay(), Relay()
    card = streams()
    card.protocol = protocol
    async with serving(serve(here, agent_card=card).app) as first, serving(serve(there, agent_card=card).app) as second:
        here.delegate, there.delegate = RemoteDelegate("there", second), RemoteDelegate("here", first)
        async with A2AClient(first) as client:
            result = await client.send("round and round")
    assert (result.text or "").startswith("this work has been delegated 5 times, which is the limit")
    assert (here.depths, there.depths) == ([0, 2, 4], [1, 3, 5])


@pytest.mark.parametrize(
    ("told", "understood"),
    [(3, 3), (3.0, 3), (0, 0), (-4, 0), (10**30, 1000), (True, 0), ("3", 0), (2.5, 0), (None, 0), ([3], 0)],
)
async def test_whoever_lies_about_the_depth_gains_nothing(told: Any, understood: int) -> None:
    child = Answers()
    async with connect(serve(child)) as client:
        message = Message(message_id="m", role=Role.USER, parts=[Part(text="go")], metadata={DEPTH: told})
        assert (await client.send(message)).text == "child: go"
        assert child.seen[0]._turn.options.depth == understood
        assert child.seen[0]._turn.options.parent == ""


async def test_a_child_that_was_not_recorded_is_canceled_by_its_delegation() -> None:
    child = Held()
    server = serve(child, cancel_force_timeout=0.05)
    async with serving(server.app) as url:
        delegate = RemoteDelegate("far", url)
        async with A2AClient(url) as client:
            sent = await client.send(remote_message(bare_delegation("p", HERE)), blocking=False)
            await delegate.cancel(bare_delegation("p", HERE))
            assert (await client.get_task(sent.task_id)).state == "canceled"
        await delegate.cancel(bare_delegation("p", HERE))


class Holding(httpx.AsyncHTTPTransport):
    """A network on which a cancel takes its time."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if b"CancelTask" in request.content:
            await self._gate()
        return await super().handle_async_request(request)


@pytest.mark.parametrize("noted", [True, False])
async def test_a_remote_child_is_canceled_even_when_its_parents_time_is_up_before(noted: bool) -> None:
    server, gate = serve(Held(), cancel_force_timeout=0.05), Gate()

    async def began(task_id: str) -> None:
        raise AssertionError("the turn is over: nothing can be noted")

    async with serving(server.app) as url:
        delegate = RemoteDelegate("far", url, http=lambda: httpx.AsyncClient(transport=Holding(gate)))
        delegation = bare_delegation("p", HERE, began=began)
        async with A2AClient(url) as client:
            task_id = (await client.send(remote_message(delegation), blocking=False)).task_id
        known = bare_delegation("p", HERE, began=began, task_id=task_id if noted else None)
        canceling = asyncio.create_task(delegate.cancel(known))
        await gate.reached.wait()
        canceling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await canceling
        gate.open()
        ended = await server.engine.wait_for_state(task_id, server.scope(), TERMINAL_STATES, None)
        assert ended.state is CANCELED
        await until(lambda: not delegate._canceling)


async def test_a_delegation_that_cannot_be_canceled_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    await RemoteDelegate("far", "http://127.0.0.1:1/").cancel(bare_delegation("p", HERE))
    assert "the child of task p at far could not be canceled" in caplog.text
