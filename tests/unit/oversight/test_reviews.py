"""`review()` in the guardrails of a policy: the task waits, in whichever process, and goes on where it stopped."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from errands import TaskContext
from errands.policy.records import Waiting
from errands.policy.reviews import ReviewDesk
from errands.runtime.journal import Journal
from tests.unit.oversight.support import KINDS, Server, after, before, echoes, reason, serving
from tests.unit.support import Agent, reaches, said, spoken

pytestmark = pytest.mark.anyio

ASK = {"assert": "review('carol')", "error_message": "Carol said no."}


@pytest.fixture
def storage(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'tasks.db'}"


def desk_of(server: Server) -> ReviewDesk:
    return ReviewDesk(Journal(server._server.engine))


@pytest.mark.parametrize("kind", KINDS)
async def test_a_message_waits_for_its_review_before_the_agent_sees_it(kind: str) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)[kind], policy=before(ASK)) as server:
        waiting = await server.client.send("hello")
        assert (waiting.state, heard) == ("input-required", [])
        [review] = await desk_of(server).list(user="carol")
        assert review.subject == {"message": [{"mimeType": "text/plain", "text": "hello"}]}
        await desk_of(server).answer(review.task_id, True, by="carol")
        result = await reaches(server.client, review.task_id, "completed")
        assert (result.text, heard) == ("Echo: hello", ["hello"])
        assert await server.decisions(result) == [("guardrails.before[0]", "passed")]


@pytest.mark.parametrize("kind", KINDS)
async def test_a_reviewer_sees_what_earlier_steps_have_made_of_it(kind: str) -> None:
    shouting = {"transform": "{'message': [input.message[0].text + '!']}"}
    async with serving(echoes([])[kind], policy=before(shouting, ASK)) as server:
        await server.client.send("hello")
        [review] = await desk_of(server).list()
        assert review.subject == {"message": [{"mimeType": "text/plain", "text": "hello!"}]}
    masking = {"transform": "{'message': ['(masked)']}"}
    async with serving(echoes([])[kind], policy=after(masking, ASK)) as server:
        await server.client.send("hello")
        [review] = await desk_of(server).list()
        assert review.subject == {"message": [{"mimeType": "text/plain", "text": "(masked)"}]}
        await desk_of(server).answer(review.task_id, True, by="carol")
        assert (await reaches(server.client, review.task_id, "completed")).text == "(masked)"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_denied_message_is_refused(kind: str) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)[kind], policy=before(ASK)) as server:
        waiting = await server.client.send("hello")
        await desk_of(server).answer(waiting.task_id or "", False, by="carol")
        result = await reaches(server.client, waiting.task_id or "", "rejected")
        assert (said(result), reason(result), heard) == ("Carol said no.", "restricted", [])


@pytest.mark.parametrize("kind", KINDS)
async def test_an_approved_answer_is_shown_without_running_the_agent_again(kind: str, storage: str) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)[kind], policy=after(ASK), storage=storage) as server:
        waiting = await server.client.send("hello")
        assert waiting.state == "input-required"
        assert waiting.artifacts == []
        assert "Echo" not in str(waiting.raw_task)
        [review] = await desk_of(server).list()
        assert review.subject == {"message": [{"mimeType": "text/plain", "text": "Echo: hello"}]}
    # Another process answers, and another one shows the answer.
    async with serving(echoes(heard)[kind], policy=after(ASK), storage=storage) as server:
        await desk_of(server).answer(review.task_id, True, by="carol")
        result = await reaches(server.client, review.task_id, "completed")
        assert (result.text, heard) == ("Echo: hello", ["hello"])
        assert (await server.kinds(result))[-1] == "OutputGiven"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_denied_answer_is_never_shown(kind: str) -> None:
    async with serving(echoes([])[kind], policy=after(ASK)) as server:
        waiting = await server.client.send("hello")
        await desk_of(server).answer(waiting.task_id or "", False, by="carol")
        result = await reaches(server.client, waiting.task_id or "", "rejected")
        assert (said(result), result.artifacts) == ("Carol said no.", [])
        assert "Echo" not in str(result.raw_task)


async def test_a_held_question_is_shown_when_it_is_approved_and_the_conversation_goes_on() -> None:
    async def handle(ctx: TaskContext) -> None:
        await (ctx.request_input("Which one?") if ctx.user_text == "buy" else ctx.respond(f"Bought {ctx.user_text}."))

    only_once = {"assert": "size(context.output) > 0 || review('carol')"}
    async with serving(Agent(handle), policy=after(only_once)) as server:
        waiting = await server.client.send("buy")
        await desk_of(server).answer(waiting.task_id or "", True, by="carol")
        asked = await reaches(server.client, waiting.task_id or "", "input-required")
        while said(asked) != "Which one?":
            asked = await server.client.get_task(waiting.task_id or "")
        result = await server.client.send("the blue one", task_id=waiting.task_id)
        assert (result.state, said(result)) == ("completed", "Bought the blue one.")
        assert spoken(result)[-3:] == ["Which one?", "the blue one", "Bought the blue one."]


async def test_a_task_that_waits_can_be_canceled() -> None:
    heard: list[str] = []
    async with serving(echoes(heard)["worker"], policy=before(ASK)) as server:
        waiting = await server.client.send("hello")
        assert (await server.client.cancel(waiting.task_id or "")).state == "canceled"
        assert heard == []


async def test_a_review_that_names_nobody_fails_its_step() -> None:
    async with serving(echoes([])["worker"], policy=before({"assert": "review('')"})) as server:
        result = await server.client.send("hello")
        assert (result.state, reason(result)) == ("rejected", "restricted")
        assert await server.decisions(result) == [("guardrails.before[0]", "error: lock_task")]


async def test_two_reviews_of_one_message_are_asked_for_one_after_the_other() -> None:
    steps = before({"assert": "review('carol') && review('dave')"})
    async with serving(echoes([])["worker"], policy=steps) as server:
        waiting = await server.client.send("hello")
        task_id = waiting.task_id or ""
        await desk_of(server).answer(task_id, True, by="carol")
        while not (reviews := await desk_of(server).list(user="dave")):
            await asyncio.sleep(0)
        await desk_of(server).answer(reviews[0].task_id, True, by="dave")
        result = await reaches(server.client, task_id, "completed")
        assert len([r for r in await server.records(result) if isinstance(r, Waiting)]) == 2


async def test_another_version_of_the_policy_asks_anew(storage: str) -> None:
    heard: list[str] = []
    async with serving(echoes(heard)["worker"], policy=before(ASK), storage=storage) as server:
        waiting = await server.client.send("hello")
    changed = before({"assert": "review('dave')"}, version="v2")
    async with serving(echoes(heard)["worker"], policy=changed, storage=storage) as server:
        await desk_of(server).answer(waiting.task_id or "", True, by="carol")
        while not (reviews := await desk_of(server).list(user="dave")):
            await asyncio.sleep(0)
        assert (reviews[0].task_id, heard) == (waiting.task_id, [])
